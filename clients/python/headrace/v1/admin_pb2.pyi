import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from headrace.v1 import generation_pb2 as _generation_pb2
from headrace.v1 import model_pb2 as _model_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ServingState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SERVING_STATE_UNSPECIFIED: _ClassVar[ServingState]
    SERVING_STATE_READY: _ClassVar[ServingState]
    SERVING_STATE_DEGRADED: _ClassVar[ServingState]
    SERVING_STATE_NOT_READY: _ClassVar[ServingState]
    SERVING_STATE_DRAINING: _ClassVar[ServingState]
SERVING_STATE_UNSPECIFIED: ServingState
SERVING_STATE_READY: ServingState
SERVING_STATE_DEGRADED: ServingState
SERVING_STATE_NOT_READY: ServingState
SERVING_STATE_DRAINING: ServingState

class GetServerStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetServerStatusResponse(_message.Message):
    __slots__ = ("version", "state", "problems", "models", "uptime", "active_count", "outcome_counts")
    class OutcomeCountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    UPTIME_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_COUNT_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_COUNTS_FIELD_NUMBER: _ClassVar[int]
    version: str
    state: ServingState
    problems: _containers.RepeatedScalarFieldContainer[str]
    models: _containers.RepeatedCompositeFieldContainer[ModelLoad]
    uptime: _duration_pb2.Duration
    active_count: int
    outcome_counts: _containers.ScalarMap[str, int]
    def __init__(self, version: _Optional[str] = ..., state: _Optional[_Union[ServingState, str]] = ..., problems: _Optional[_Iterable[str]] = ..., models: _Optional[_Iterable[_Union[ModelLoad, _Mapping]]] = ..., uptime: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., active_count: _Optional[int] = ..., outcome_counts: _Optional[_Mapping[str, int]] = ...) -> None: ...

class ModelLoad(_message.Message):
    __slots__ = ("model", "state", "running_count", "running_limit", "classes")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    RUNNING_COUNT_FIELD_NUMBER: _ClassVar[int]
    RUNNING_LIMIT_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    model: str
    state: _model_pb2.ModelState
    running_count: int
    running_limit: int
    classes: _containers.RepeatedCompositeFieldContainer[ClassLoad]
    def __init__(self, model: _Optional[str] = ..., state: _Optional[_Union[_model_pb2.ModelState, str]] = ..., running_count: _Optional[int] = ..., running_limit: _Optional[int] = ..., classes: _Optional[_Iterable[_Union[ClassLoad, _Mapping]]] = ...) -> None: ...

class ClassLoad(_message.Message):
    __slots__ = ("priority", "running_count", "waiting_count", "waiting_limit")
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    RUNNING_COUNT_FIELD_NUMBER: _ClassVar[int]
    WAITING_COUNT_FIELD_NUMBER: _ClassVar[int]
    WAITING_LIMIT_FIELD_NUMBER: _ClassVar[int]
    priority: _generation_pb2.Priority
    running_count: int
    waiting_count: int
    waiting_limit: int
    def __init__(self, priority: _Optional[_Union[_generation_pb2.Priority, str]] = ..., running_count: _Optional[int] = ..., waiting_count: _Optional[int] = ..., waiting_limit: _Optional[int] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("grace",)
    GRACE_FIELD_NUMBER: _ClassVar[int]
    grace: _duration_pb2.Duration
    def __init__(self, grace: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("active_count",)
    ACTIVE_COUNT_FIELD_NUMBER: _ClassVar[int]
    active_count: int
    def __init__(self, active_count: _Optional[int] = ...) -> None: ...

class ResumeServingRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeServingResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
