package headrace

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const errorDomain = "headrace.v1"

// Error is a failed call. errors.Is tells its kind, and status.FromError finds the gRPC status, details included.
type Error struct {
	// Code is the gRPC status code.
	Code codes.Code
	// Reason is what the server says; empty where the failure is not its own (a refused connection, a local deadline).
	Reason Reason
	// Message is for people.
	Message string
	// Violations are all that is wrong with the request, not the first one.
	Violations []Violation
	// RetryAfter is the time to wait that the server names; 0 if it names none.
	RetryAfter time.Duration
	// RequestID finds the request in the server's log; empty if unknown.
	RequestID string
	// Metadata is what the reason has to say, see error_reason.proto.
	Metadata map[string]string
	// Resource names what was not found; empty if the server does not say.
	Resource string
	// EventsReceived counts the events of the stream until the failure.
	EventsReceived int

	status *status.Status
	within []error
}

// Violation is one thing wrong with one field.
type Violation struct {
	// Field is the path in the request, for example sampling.top_p.
	Field string
	// Description says what is accepted there.
	Description string
}

// Error returns the reason, or the status where there is none, and the message.
func (e *Error) Error() string {
	if e.Reason != "" {
		return fmt.Sprintf("headrace: %s: %s", e.Reason, e.Message)
	}
	return fmt.Sprintf("headrace: %s: %s", code.Code(e.Code), e.Message)
}

// Unwrap returns the kind, and the context's error where that is what ended the call.
func (e *Error) Unwrap() []error { return e.within }

// GRPCStatus returns the status of the call; status.FromError and status.Code use it.
func (e *Error) GRPCStatus() *status.Status { return e.status }

// Retriable tells whether the same call may be made again, not before RetryAfter: its cause may pass, and it cannot run
// a generation twice because no event has been delivered. A request with an idempotency key may always be made again.
func (e *Error) Retriable() bool {
	mayPass := errors.Is(e, ErrUnavailable) || errors.Is(e, ErrOverloaded) && !errors.Is(e, ErrQuotaExhausted)
	return mayPass && e.EventsReceived == 0
}

// errorFrom returns the error of a call that was made with ctx. Details that are missing, broken, or of another domain
// are left out; the code alone then makes the kind.
func errorFrom(ctx context.Context, err error) *Error {
	var known *Error
	if errors.As(err, &known) {
		return known
	}
	e := errorOf(statusOf(err))
	switch {
	case e.Code == codes.DeadlineExceeded:
		e.within = append(e.within, context.DeadlineExceeded)
	case e.Code == codes.Canceled && errors.Is(ctx.Err(), context.Canceled):
		e.within = append(e.within, context.Canceled)
		if cause := context.Cause(ctx); cause != context.Canceled {
			e.within = append(e.within, cause)
		}
	}
	return e
}

// protocolError returns the error of a stream that broke the contract's order.
func protocolError(format string, arguments ...any) *Error {
	e := errorOf(status.Newf(codes.Internal, format, arguments...))
	e.within = []error{ErrProtocol}
	return e
}

// statusOf returns the status within an error. status.FromError would put gRPC's own words around the message of a call
// that was tried several times.
func statusOf(err error) *status.Status {
	var carrier interface{ GRPCStatus() *status.Status }
	if errors.As(err, &carrier) {
		return carrier.GRPCStatus()
	}
	return status.FromContextError(err)
}

func errorOf(st *status.Status) *Error {
	e := &Error{Code: st.Code(), Message: st.Message(), status: st}
	for _, detail := range st.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			if detail.GetDomain() == errorDomain {
				e.Reason, e.Metadata = Reason(detail.GetReason()), detail.GetMetadata()
			}
		case *errdetails.BadRequest:
			for _, violation := range detail.GetFieldViolations() {
				e.Violations = append(e.Violations, Violation{violation.GetField(), violation.GetDescription()})
			}
		case *errdetails.RetryInfo:
			e.RetryAfter = max(0, detail.GetRetryDelay().AsDuration())
		case *errdetails.RequestInfo:
			e.RequestID = detail.GetRequestId()
		case *errdetails.ResourceInfo:
			e.Resource = detail.GetResourceName()
		}
	}
	e.within = []error{kindOf(e)}
	return e
}

func kindOf(e *Error) error {
	if kind, ok := kindByReason[e.Reason]; ok {
		return kind
	}
	// Made by the gRPC library, which has no details to tell it by.
	if e.Code == codes.ResourceExhausted && e.Reason == "" && strings.Contains(e.Message, "larger than max") {
		return ErrRequestTooLarge
	}
	if kind, ok := kindByCode[e.Code]; ok {
		return kind
	}
	return ErrInternal
}
