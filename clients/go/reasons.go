package headrace

// Reason is the name of an ErrorReason of the contract, without its prefix. A newer server may send others.
type Reason string

// What a Headrace server says of a failure. error_reason.proto says what each one means and carries.
const (
	ReasonInvalidField          Reason = "INVALID_FIELD"
	ReasonContextLengthExceeded Reason = "CONTEXT_LENGTH_EXCEEDED"
	ReasonCapabilityUnsupported Reason = "CAPABILITY_UNSUPPORTED"
	ReasonModelNotFound         Reason = "MODEL_NOT_FOUND"
	ReasonModelNotReady         Reason = "MODEL_NOT_READY"
	ReasonQueueFull             Reason = "QUEUE_FULL"
	ReasonRateLimited           Reason = "RATE_LIMITED"
	ReasonQuotaExhausted        Reason = "QUOTA_EXHAUSTED"
	ReasonDeadlineTooShort      Reason = "DEADLINE_TOO_SHORT"
	ReasonDeadlineInQueue       Reason = "DEADLINE_IN_QUEUE"
	ReasonDeadlineInDecode      Reason = "DEADLINE_IN_DECODE"
	ReasonDraining              Reason = "DRAINING"
	ReasonBackendUnavailable    Reason = "BACKEND_UNAVAILABLE"
	ReasonBackendError          Reason = "BACKEND_ERROR"
	ReasonConsumerTooSlow       Reason = "CONSUMER_TOO_SLOW"
	ReasonIdempotencyMismatch   Reason = "IDEMPOTENCY_MISMATCH"
	ReasonGenerationNotFound    Reason = "GENERATION_NOT_FOUND"
	ReasonReplayExpired         Reason = "REPLAY_EXPIRED"
	ReasonUnauthenticated       Reason = "UNAUTHENTICATED"
	ReasonPermissionDenied      Reason = "PERMISSION_DENIED"
	ReasonInternal              Reason = "INTERNAL"
	ReasonQueueTimeout          Reason = "QUEUE_TIMEOUT"
	ReasonFirstTokenTimeout     Reason = "FIRST_TOKEN_TIMEOUT"
	ReasonTokenGapTimeout       Reason = "TOKEN_GAP_TIMEOUT"
	ReasonGenerationLost        Reason = "GENERATION_LOST"
	ReasonStoreUnavailable      Reason = "STORE_UNAVAILABLE"
)

// kindByReason is the one table from reasons to kinds.
var kindByReason = map[Reason]error{
	ReasonInvalidField:          ErrInvalidRequest,
	ReasonContextLengthExceeded: ErrContextLength,
	ReasonCapabilityUnsupported: ErrCapability,
	ReasonModelNotFound:         ErrNotFound,
	ReasonModelNotReady:         ErrUnavailable,
	ReasonQueueFull:             ErrOverloaded,
	ReasonRateLimited:           ErrRateLimited,
	ReasonQuotaExhausted:        ErrQuotaExhausted,
	ReasonDeadlineTooShort:      ErrDeadline,
	ReasonDeadlineInQueue:       ErrDeadline,
	ReasonDeadlineInDecode:      ErrDeadline,
	ReasonDraining:              ErrUnavailable,
	ReasonBackendUnavailable:    ErrUnavailable,
	ReasonBackendError:          ErrInternal,
	ReasonConsumerTooSlow:       ErrConsumerTooSlow,
	ReasonIdempotencyMismatch:   ErrIdempotencyMismatch,
	ReasonGenerationNotFound:    ErrNotFound,
	ReasonReplayExpired:         ErrNotFound,
	ReasonUnauthenticated:       ErrAccessDenied,
	ReasonPermissionDenied:      ErrAccessDenied,
	ReasonInternal:              ErrInternal,
	ReasonQueueTimeout:          ErrOverloaded,
	ReasonFirstTokenTimeout:     ErrUnavailable,
	ReasonTokenGapTimeout:       ErrUnavailable,
	ReasonGenerationLost:        ErrUnavailable,
	ReasonStoreUnavailable:      ErrUnavailable,
}
