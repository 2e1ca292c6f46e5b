from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_REASON_UNSPECIFIED: _ClassVar[ErrorReason]
    ERROR_REASON_INVALID_FIELD: _ClassVar[ErrorReason]
    ERROR_REASON_CONTEXT_LENGTH_EXCEEDED: _ClassVar[ErrorReason]
    ERROR_REASON_CAPABILITY_UNSUPPORTED: _ClassVar[ErrorReason]
    ERROR_REASON_MODEL_NOT_FOUND: _ClassVar[ErrorReason]
    ERROR_REASON_MODEL_NOT_READY: _ClassVar[ErrorReason]
    ERROR_REASON_QUEUE_FULL: _ClassVar[ErrorReason]
    ERROR_REASON_DEADLINE_TOO_SHORT: _ClassVar[ErrorReason]
    ERROR_REASON_DEADLINE_IN_QUEUE: _ClassVar[ErrorReason]
    ERROR_REASON_DEADLINE_IN_DECODE: _ClassVar[ErrorReason]
    ERROR_REASON_DRAINING: _ClassVar[ErrorReason]
    ERROR_REASON_BACKEND_UNAVAILABLE: _ClassVar[ErrorReason]
    ERROR_REASON_BACKEND_ERROR: _ClassVar[ErrorReason]
    ERROR_REASON_CONSUMER_TOO_SLOW: _ClassVar[ErrorReason]
    ERROR_REASON_GENERATION_NOT_FOUND: _ClassVar[ErrorReason]
    ERROR_REASON_INTERNAL: _ClassVar[ErrorReason]
    ERROR_REASON_QUEUE_TIMEOUT: _ClassVar[ErrorReason]
    ERROR_REASON_FIRST_TOKEN_TIMEOUT: _ClassVar[ErrorReason]
    ERROR_REASON_TOKEN_GAP_TIMEOUT: _ClassVar[ErrorReason]
ERROR_REASON_UNSPECIFIED: ErrorReason
ERROR_REASON_INVALID_FIELD: ErrorReason
ERROR_REASON_CONTEXT_LENGTH_EXCEEDED: ErrorReason
ERROR_REASON_CAPABILITY_UNSUPPORTED: ErrorReason
ERROR_REASON_MODEL_NOT_FOUND: ErrorReason
ERROR_REASON_MODEL_NOT_READY: ErrorReason
ERROR_REASON_QUEUE_FULL: ErrorReason
ERROR_REASON_DEADLINE_TOO_SHORT: ErrorReason
ERROR_REASON_DEADLINE_IN_QUEUE: ErrorReason
ERROR_REASON_DEADLINE_IN_DECODE: ErrorReason
ERROR_REASON_DRAINING: ErrorReason
ERROR_REASON_BACKEND_UNAVAILABLE: ErrorReason
ERROR_REASON_BACKEND_ERROR: ErrorReason
ERROR_REASON_CONSUMER_TOO_SLOW: ErrorReason
ERROR_REASON_GENERATION_NOT_FOUND: ErrorReason
ERROR_REASON_INTERNAL: ErrorReason
ERROR_REASON_QUEUE_TIMEOUT: ErrorReason
ERROR_REASON_FIRST_TOKEN_TIMEOUT: ErrorReason
ERROR_REASON_TOKEN_GAP_TIMEOUT: ErrorReason
