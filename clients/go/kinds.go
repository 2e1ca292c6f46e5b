package headrace

import "google.golang.org/grpc/codes"

// The kinds of failures, for errors.Is. A kind within another one is found by both names: a rate limit is an overload.
var (
	// ErrInvalidRequest: the request is wrong, and fails again as it is; Violations names every field.
	ErrInvalidRequest = newKind("invalid request", nil)
	// ErrContextLength: prompt plus requested output do not fit the model. Within ErrInvalidRequest.
	ErrContextLength = newKind("context length exceeded", ErrInvalidRequest)
	// ErrRequestTooLarge: the message is over the transport's size limit. Within ErrInvalidRequest.
	ErrRequestTooLarge = newKind("request too large", ErrInvalidRequest)
	// ErrIdempotencyMismatch: the key was used for another request. Within ErrInvalidRequest.
	ErrIdempotencyMismatch = newKind("idempotency key used for another request", ErrInvalidRequest)
	// ErrCapability: this model cannot do what was asked; Metadata["capability"] names what.
	ErrCapability = newKind("capability unsupported", nil)
	// ErrNotFound: no such model or generation, or its events are no longer kept.
	ErrNotFound = newKind("not found", nil)
	// ErrAccessDenied: credentials are missing, wrong, or not enough.
	ErrAccessDenied = newKind("access denied", nil)
	// ErrOverloaded: the waiting line is full or too slow; RetryAfter says when to come back, if known.
	ErrOverloaded = newKind("overloaded", nil)
	// ErrRateLimited: a limit of the caller's tenant. Within ErrOverloaded.
	ErrRateLimited = newKind("rate limited", ErrOverloaded)
	// ErrQuotaExhausted: the tenant's quota of the day is spent; seconds do not help. Within ErrRateLimited.
	ErrQuotaExhausted = newKind("quota exhausted", ErrRateLimited)
	// ErrConsumerTooSlow: the stream was not read fast enough, and the server stopped it.
	ErrConsumerTooSlow = newKind("consumer too slow", nil)
	// ErrDeadline: the deadline passed, in the line or while decoding, or leaves too little time to begin. Such an error
	// is a context.DeadlineExceeded too.
	ErrDeadline = newKind("deadline exceeded", nil)
	// ErrUnavailable: the server or its engine cannot be reached, is loading, or is shutting down.
	ErrUnavailable = newKind("unavailable", nil)
	// ErrCancelled: the call was cancelled. It is a context.Canceled too where this side's context was.
	ErrCancelled = newKind("cancelled", nil)
	// ErrInternal: a fault of the server; RequestID finds it in the server's log.
	ErrInternal = newKind("internal error", nil)
	// ErrProtocol: the stream broke the contract's order (a gap, an end without `completed`), so that what came cannot be
	// trusted to be whole. Within ErrInternal.
	ErrProtocol = newKind("protocol error", ErrInternal)
)

// kindByCode has the kinds of failures that tell no reason, or one that this client does not know.
var kindByCode = map[codes.Code]error{
	codes.Canceled:           ErrCancelled,
	codes.Unknown:            ErrInternal,
	codes.InvalidArgument:    ErrInvalidRequest,
	codes.DeadlineExceeded:   ErrDeadline,
	codes.NotFound:           ErrNotFound,
	codes.AlreadyExists:      ErrInvalidRequest,
	codes.PermissionDenied:   ErrAccessDenied,
	codes.ResourceExhausted:  ErrOverloaded,
	codes.FailedPrecondition: ErrCapability,
	codes.Aborted:            ErrInternal,
	codes.OutOfRange:         ErrInvalidRequest,
	codes.Unimplemented:      ErrCapability,
	codes.Internal:           ErrInternal,
	codes.Unavailable:        ErrUnavailable,
	codes.DataLoss:           ErrInternal,
	codes.Unauthenticated:    ErrAccessDenied,
}

// kind is a sentinel that leads on to the kind that it is within.
type kind struct {
	text   string
	within error
}

func newKind(text string, within error) error { return &kind{text: text, within: within} }

func (k *kind) Error() string { return "headrace: " + k.text }

func (k *kind) Unwrap() error { return k.within }
