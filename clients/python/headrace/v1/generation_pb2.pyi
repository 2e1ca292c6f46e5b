import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from headrace.v1 import chat_pb2 as _chat_pb2
from headrace.v1 import error_reason_pb2 as _error_reason_pb2
from headrace.v1 import sampling_pb2 as _sampling_pb2
from headrace.v1 import usage_pb2 as _usage_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Priority(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRIORITY_UNSPECIFIED: _ClassVar[Priority]
    PRIORITY_INTERACTIVE: _ClassVar[Priority]
    PRIORITY_BATCH: _ClassVar[Priority]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_CONTEXT_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_TOOL_CALLS: _ClassVar[FinishReason]
    FINISH_REASON_TIME_LIMIT: _ClassVar[FinishReason]
    FINISH_REASON_CANCELLED: _ClassVar[FinishReason]

class GenerationState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GENERATION_STATE_UNSPECIFIED: _ClassVar[GenerationState]
    GENERATION_STATE_QUEUED: _ClassVar[GenerationState]
    GENERATION_STATE_RUNNING: _ClassVar[GenerationState]
    GENERATION_STATE_COMPLETED: _ClassVar[GenerationState]
    GENERATION_STATE_FAILED: _ClassVar[GenerationState]
    GENERATION_STATE_CANCELLED: _ClassVar[GenerationState]
PRIORITY_UNSPECIFIED: Priority
PRIORITY_INTERACTIVE: Priority
PRIORITY_BATCH: Priority
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_CONTEXT_LENGTH: FinishReason
FINISH_REASON_TOOL_CALLS: FinishReason
FINISH_REASON_TIME_LIMIT: FinishReason
FINISH_REASON_CANCELLED: FinishReason
GENERATION_STATE_UNSPECIFIED: GenerationState
GENERATION_STATE_QUEUED: GenerationState
GENERATION_STATE_RUNNING: GenerationState
GENERATION_STATE_COMPLETED: GenerationState
GENERATION_STATE_FAILED: GenerationState
GENERATION_STATE_CANCELLED: GenerationState

class GenerateRequest(_message.Message):
    __slots__ = ("model", "prompt", "tokens", "chat", "sampling", "stop", "output", "constraint", "choice_count", "priority", "time_limit", "idempotency_key", "retention", "end_user")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINT_FIELD_NUMBER: _ClassVar[int]
    CHOICE_COUNT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TIME_LIMIT_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    END_USER_FIELD_NUMBER: _ClassVar[int]
    model: str
    prompt: str
    tokens: TokenIds
    chat: _chat_pb2.ChatInput
    sampling: _sampling_pb2.SamplingParams
    stop: _sampling_pb2.StopCriteria
    output: OutputOptions
    constraint: _sampling_pb2.OutputConstraint
    choice_count: int
    priority: Priority
    time_limit: _duration_pb2.Duration
    idempotency_key: str
    retention: RetentionPolicy
    end_user: str
    def __init__(self, model: _Optional[str] = ..., prompt: _Optional[str] = ..., tokens: _Optional[_Union[TokenIds, _Mapping]] = ..., chat: _Optional[_Union[_chat_pb2.ChatInput, _Mapping]] = ..., sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ..., stop: _Optional[_Union[_sampling_pb2.StopCriteria, _Mapping]] = ..., output: _Optional[_Union[OutputOptions, _Mapping]] = ..., constraint: _Optional[_Union[_sampling_pb2.OutputConstraint, _Mapping]] = ..., choice_count: _Optional[int] = ..., priority: _Optional[_Union[Priority, str]] = ..., time_limit: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., idempotency_key: _Optional[str] = ..., retention: _Optional[_Union[RetentionPolicy, _Mapping]] = ..., end_user: _Optional[str] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class OutputOptions(_message.Message):
    __slots__ = ("token_ids", "logprobs", "top_logprobs", "queue_events")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_EVENTS_FIELD_NUMBER: _ClassVar[int]
    token_ids: bool
    logprobs: bool
    top_logprobs: int
    queue_events: bool
    def __init__(self, token_ids: _Optional[bool] = ..., logprobs: _Optional[bool] = ..., top_logprobs: _Optional[int] = ..., queue_events: _Optional[bool] = ...) -> None: ...

class RetentionPolicy(_message.Message):
    __slots__ = ("retain_for", "continue_on_disconnect", "annotation")
    RETAIN_FOR_FIELD_NUMBER: _ClassVar[int]
    CONTINUE_ON_DISCONNECT_FIELD_NUMBER: _ClassVar[int]
    ANNOTATION_FIELD_NUMBER: _ClassVar[int]
    retain_for: _duration_pb2.Duration
    continue_on_disconnect: bool
    annotation: bytes
    def __init__(self, retain_for: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., continue_on_disconnect: _Optional[bool] = ..., annotation: _Optional[bytes] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("sequence", "started", "delta", "choice_finished", "completed", "queued")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FINISHED_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    started: GenerationStarted
    delta: ChoiceDelta
    choice_finished: ChoiceFinished
    completed: GenerationCompleted
    queued: GenerationQueued
    def __init__(self, sequence: _Optional[int] = ..., started: _Optional[_Union[GenerationStarted, _Mapping]] = ..., delta: _Optional[_Union[ChoiceDelta, _Mapping]] = ..., choice_finished: _Optional[_Union[ChoiceFinished, _Mapping]] = ..., completed: _Optional[_Union[GenerationCompleted, _Mapping]] = ..., queued: _Optional[_Union[GenerationQueued, _Mapping]] = ...) -> None: ...

class GenerationStarted(_message.Message):
    __slots__ = ("generation_id", "model", "fingerprint", "create_time", "prompt_token_count", "seed")
    GENERATION_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    generation_id: str
    model: str
    fingerprint: str
    create_time: _timestamp_pb2.Timestamp
    prompt_token_count: int
    seed: int
    def __init__(self, generation_id: _Optional[str] = ..., model: _Optional[str] = ..., fingerprint: _Optional[str] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., prompt_token_count: _Optional[int] = ..., seed: _Optional[int] = ...) -> None: ...

class GenerationQueued(_message.Message):
    __slots__ = ("generation_id", "ahead_count", "estimated_wait")
    GENERATION_ID_FIELD_NUMBER: _ClassVar[int]
    AHEAD_COUNT_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_WAIT_FIELD_NUMBER: _ClassVar[int]
    generation_id: str
    ahead_count: int
    estimated_wait: _duration_pb2.Duration
    def __init__(self, generation_id: _Optional[str] = ..., ahead_count: _Optional[int] = ..., estimated_wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ChoiceDelta(_message.Message):
    __slots__ = ("index", "text", "reasoning_text", "tool_call", "token_ids", "logprobs")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    REASONING_TEXT_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    index: int
    text: str
    reasoning_text: str
    tool_call: _chat_pb2.ToolCallDelta
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    def __init__(self, index: _Optional[int] = ..., text: _Optional[str] = ..., reasoning_text: _Optional[str] = ..., tool_call: _Optional[_Union[_chat_pb2.ToolCallDelta, _Mapping]] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("token_id", "logprob", "text", "raw_bytes", "top_logprobs")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    RAW_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprob: float
    text: str
    raw_bytes: bytes
    top_logprobs: _containers.RepeatedCompositeFieldContainer[TopLogprob]
    def __init__(self, token_id: _Optional[int] = ..., logprob: _Optional[float] = ..., text: _Optional[str] = ..., raw_bytes: _Optional[bytes] = ..., top_logprobs: _Optional[_Iterable[_Union[TopLogprob, _Mapping]]] = ...) -> None: ...

class TopLogprob(_message.Message):
    __slots__ = ("token_id", "logprob", "text", "raw_bytes")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    RAW_BYTES_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprob: float
    text: str
    raw_bytes: bytes
    def __init__(self, token_id: _Optional[int] = ..., logprob: _Optional[float] = ..., text: _Optional[str] = ..., raw_bytes: _Optional[bytes] = ...) -> None: ...

class ChoiceFinished(_message.Message):
    __slots__ = ("index", "reason", "stop_sequence", "stop_token_id", "output_token_count")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    index: int
    reason: FinishReason
    stop_sequence: str
    stop_token_id: int
    output_token_count: int
    def __init__(self, index: _Optional[int] = ..., reason: _Optional[_Union[FinishReason, str]] = ..., stop_sequence: _Optional[str] = ..., stop_token_id: _Optional[int] = ..., output_token_count: _Optional[int] = ...) -> None: ...

class GenerationCompleted(_message.Message):
    __slots__ = ("usage", "timing")
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    usage: _usage_pb2.Usage
    timing: _usage_pb2.Timing
    def __init__(self, usage: _Optional[_Union[_usage_pb2.Usage, _Mapping]] = ..., timing: _Optional[_Union[_usage_pb2.Timing, _Mapping]] = ...) -> None: ...

class AttachGenerationRequest(_message.Message):
    __slots__ = ("generation_id", "idempotency_key", "after_sequence")
    GENERATION_ID_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    AFTER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    generation_id: str
    idempotency_key: str
    after_sequence: int
    def __init__(self, generation_id: _Optional[str] = ..., idempotency_key: _Optional[str] = ..., after_sequence: _Optional[int] = ...) -> None: ...

class GetGenerationRequest(_message.Message):
    __slots__ = ("generation_id", "idempotency_key")
    GENERATION_ID_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    generation_id: str
    idempotency_key: str
    def __init__(self, generation_id: _Optional[str] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class GetGenerationResponse(_message.Message):
    __slots__ = ("state", "last_sequence", "first_sequence", "expire_time", "usage", "model", "priority", "create_time", "failure_reason", "timing", "ahead_count", "generation_id", "annotation")
    STATE_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    FAILURE_REASON_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    AHEAD_COUNT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_ID_FIELD_NUMBER: _ClassVar[int]
    ANNOTATION_FIELD_NUMBER: _ClassVar[int]
    state: GenerationState
    last_sequence: int
    first_sequence: int
    expire_time: _timestamp_pb2.Timestamp
    usage: _usage_pb2.Usage
    model: str
    priority: Priority
    create_time: _timestamp_pb2.Timestamp
    failure_reason: _error_reason_pb2.ErrorReason
    timing: _usage_pb2.Timing
    ahead_count: int
    generation_id: str
    annotation: bytes
    def __init__(self, state: _Optional[_Union[GenerationState, str]] = ..., last_sequence: _Optional[int] = ..., first_sequence: _Optional[int] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., usage: _Optional[_Union[_usage_pb2.Usage, _Mapping]] = ..., model: _Optional[str] = ..., priority: _Optional[_Union[Priority, str]] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., failure_reason: _Optional[_Union[_error_reason_pb2.ErrorReason, str]] = ..., timing: _Optional[_Union[_usage_pb2.Timing, _Mapping]] = ..., ahead_count: _Optional[int] = ..., generation_id: _Optional[str] = ..., annotation: _Optional[bytes] = ...) -> None: ...

class CancelGenerationRequest(_message.Message):
    __slots__ = ("generation_id", "idempotency_key")
    GENERATION_ID_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    generation_id: str
    idempotency_key: str
    def __init__(self, generation_id: _Optional[str] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class CancelGenerationResponse(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: GenerationState
    def __init__(self, state: _Optional[_Union[GenerationState, str]] = ...) -> None: ...
