import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from headrace.v1 import sampling_pb2 as _sampling_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ModelState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODEL_STATE_UNSPECIFIED: _ClassVar[ModelState]
    MODEL_STATE_LOADING: _ClassVar[ModelState]
    MODEL_STATE_READY: _ClassVar[ModelState]
    MODEL_STATE_DRAINING: _ClassVar[ModelState]
    MODEL_STATE_UNAVAILABLE: _ClassVar[ModelState]

class ModelCapability(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODEL_CAPABILITY_UNSPECIFIED: _ClassVar[ModelCapability]
    MODEL_CAPABILITY_PROMPT: _ClassVar[ModelCapability]
    MODEL_CAPABILITY_CHAT: _ClassVar[ModelCapability]
    MODEL_CAPABILITY_TOOLS: _ClassVar[ModelCapability]
    MODEL_CAPABILITY_CONSTRAINT: _ClassVar[ModelCapability]
    MODEL_CAPABILITY_LOGPROBS: _ClassVar[ModelCapability]
    MODEL_CAPABILITY_REASONING: _ClassVar[ModelCapability]
    MODEL_CAPABILITY_TOKENS: _ClassVar[ModelCapability]
    MODEL_CAPABILITY_TOKENIZE: _ClassVar[ModelCapability]
MODEL_STATE_UNSPECIFIED: ModelState
MODEL_STATE_LOADING: ModelState
MODEL_STATE_READY: ModelState
MODEL_STATE_DRAINING: ModelState
MODEL_STATE_UNAVAILABLE: ModelState
MODEL_CAPABILITY_UNSPECIFIED: ModelCapability
MODEL_CAPABILITY_PROMPT: ModelCapability
MODEL_CAPABILITY_CHAT: ModelCapability
MODEL_CAPABILITY_TOOLS: ModelCapability
MODEL_CAPABILITY_CONSTRAINT: ModelCapability
MODEL_CAPABILITY_LOGPROBS: ModelCapability
MODEL_CAPABILITY_REASONING: ModelCapability
MODEL_CAPABILITY_TOKENS: ModelCapability
MODEL_CAPABILITY_TOKENIZE: ModelCapability

class ListModelsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models", "next_page_token")
    MODELS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    next_page_token: str
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("id", "aliases", "owned_by", "create_time", "state", "max_context_tokens", "max_output_tokens", "capabilities", "vocab_size", "default_sampling")
    ID_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    OWNED_BY_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_SAMPLING_FIELD_NUMBER: _ClassVar[int]
    id: str
    aliases: _containers.RepeatedScalarFieldContainer[str]
    owned_by: str
    create_time: _timestamp_pb2.Timestamp
    state: ModelState
    max_context_tokens: int
    max_output_tokens: int
    capabilities: _containers.RepeatedScalarFieldContainer[ModelCapability]
    vocab_size: int
    default_sampling: _sampling_pb2.SamplingParams
    def __init__(self, id: _Optional[str] = ..., aliases: _Optional[_Iterable[str]] = ..., owned_by: _Optional[str] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., state: _Optional[_Union[ModelState, str]] = ..., max_context_tokens: _Optional[int] = ..., max_output_tokens: _Optional[int] = ..., capabilities: _Optional[_Iterable[_Union[ModelCapability, str]]] = ..., vocab_size: _Optional[int] = ..., default_sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ...) -> None: ...
