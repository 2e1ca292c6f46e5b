import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Usage(_message.Message):
    __slots__ = ("prompt_token_count", "cached_prompt_token_count", "output_token_count", "reasoning_token_count")
    PROMPT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    CACHED_PROMPT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    REASONING_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    prompt_token_count: int
    cached_prompt_token_count: int
    output_token_count: int
    reasoning_token_count: int
    def __init__(self, prompt_token_count: _Optional[int] = ..., cached_prompt_token_count: _Optional[int] = ..., output_token_count: _Optional[int] = ..., reasoning_token_count: _Optional[int] = ...) -> None: ...

class Timing(_message.Message):
    __slots__ = ("queue_duration", "prefill_duration", "time_to_first_token", "decode_duration", "total_duration", "output_tokens_per_second")
    QUEUE_DURATION_FIELD_NUMBER: _ClassVar[int]
    PREFILL_DURATION_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DECODE_DURATION_FIELD_NUMBER: _ClassVar[int]
    TOTAL_DURATION_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    queue_duration: _duration_pb2.Duration
    prefill_duration: _duration_pb2.Duration
    time_to_first_token: _duration_pb2.Duration
    decode_duration: _duration_pb2.Duration
    total_duration: _duration_pb2.Duration
    output_tokens_per_second: float
    def __init__(self, queue_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., prefill_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., time_to_first_token: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., decode_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., total_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., output_tokens_per_second: _Optional[float] = ...) -> None: ...
