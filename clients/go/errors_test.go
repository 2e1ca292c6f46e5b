package headrace

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	headracev1 "github.com/headrace/headrace/clients/go/gen/headrace/v1"
)

func withDetails(t *testing.T, code codes.Code, details ...protoadapt.MessageV1) error {
	t.Helper()
	st, err := status.New(code, "no").WithDetails(details...)
	if err != nil {
		t.Fatal(err)
	}
	return st.Err()
}

func info(reason string) *errdetails.ErrorInfo {
	return &errdetails.ErrorInfo{Reason: reason, Domain: errorDomain}
}

func TestEveryReasonOfTheContractHasAKind(t *testing.T) {
	for number, name := range headracev1.ErrorReason_name {
		reason := Reason(strings.TrimPrefix(name, "ERROR_REASON_"))
		if _, ok := kindByReason[reason]; ok != (number != 0) {
			t.Errorf("%s: in the table: %t", reason, ok)
		}
	}
	if len(kindByReason) != len(headracev1.ErrorReason_name)-1 {
		t.Errorf("%d reasons in the table, %d in the contract", len(kindByReason), len(headracev1.ErrorReason_name)-1)
	}
}

func TestEveryStatusHasAKind(t *testing.T) {
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		if kindByCode[code] == nil {
			t.Errorf("%s has none", code)
		}
	}
}

func TestDetailsAreToldAsFields(t *testing.T) {
	err := errorFrom(context.Background(), withDetails(t, codes.InvalidArgument,
		&errdetails.ErrorInfo{Reason: "INVALID_FIELD", Domain: errorDomain, Metadata: map[string]string{"limit": "2"}},
		&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
			{Field: "model", Description: "required"}, {Field: "sampling.top_p", Description: "at most 1"},
		}},
		&errdetails.RetryInfo{RetryDelay: durationpb.New(1500 * time.Millisecond)},
		&errdetails.RequestInfo{RequestId: "req-7"},
		&errdetails.ResourceInfo{ResourceName: "nobody"},
	))
	if err.Reason != ReasonInvalidField || err.Code != codes.InvalidArgument || err.Metadata["limit"] != "2" {
		t.Errorf("%#v", err)
	}
	if fmt.Sprint(err.Violations) != "[{model required} {sampling.top_p at most 1}]" {
		t.Errorf("%v", err.Violations)
	}
	if err.RetryAfter != 1500*time.Millisecond || err.RequestID != "req-7" || err.Resource != "nobody" {
		t.Errorf("%#v", err)
	}
	if err.Error() != "headrace: INVALID_FIELD: no" {
		t.Errorf("%q", err.Error())
	}
}

func TestTheStatusIsFoundInAnErrorAlsoOneThatIsWrapped(t *testing.T) {
	err := fmt.Errorf("while writing a poem: %w", errorFrom(context.Background(), withDetails(t, codes.Unavailable, info("DRAINING"))))
	st, ok := status.FromError(err)
	if !ok || st.Code() != codes.Unavailable || len(st.Details()) != 1 {
		t.Errorf("%v, %t", st, ok)
	}
	var failed *Error
	if !errors.As(err, &failed) || failed.Reason != ReasonDraining || !errors.Is(err, ErrUnavailable) {
		t.Errorf("%#v", failed)
	}
}

func TestDetailsThatSayNothingLeaveTheStatus(t *testing.T) {
	broken := &anypb.Any{TypeUrl: "type.googleapis.com/google.rpc.ErrorInfo", Value: []byte{0xff}}
	proto := status.New(codes.NotFound, "no").Proto()
	proto.Details = append(proto.Details, broken)
	for name, err := range map[string]error{
		"none":              status.Error(codes.NotFound, "no"),
		"broken":            status.FromProto(proto).Err(),
		"another domain":    withDetails(t, codes.NotFound, &errdetails.ErrorInfo{Reason: "QUEUE_FULL", Domain: "elsewhere"}),
		"a negative delay":  withDetails(t, codes.NotFound, &errdetails.RetryInfo{RetryDelay: durationpb.New(-time.Second)}),
		"an unknown reason": withDetails(t, codes.NotFound, info("FROM_THE_FUTURE")),
	} {
		failed := errorFrom(context.Background(), err)
		if !errors.Is(failed, ErrNotFound) || failed.RetryAfter != 0 || errors.Is(failed, ErrOverloaded) {
			t.Errorf("%s: %#v", name, failed)
		}
	}
}

func TestKindsWithinKindsAreFoundByBothNames(t *testing.T) {
	for reason, kinds := range map[string][]error{
		"QUEUE_FULL":              {ErrOverloaded},
		"RATE_LIMITED":            {ErrRateLimited, ErrOverloaded},
		"QUOTA_EXHAUSTED":         {ErrQuotaExhausted, ErrRateLimited, ErrOverloaded},
		"CONTEXT_LENGTH_EXCEEDED": {ErrContextLength, ErrInvalidRequest},
		"IDEMPOTENCY_MISMATCH":    {ErrIdempotencyMismatch, ErrInvalidRequest},
		"CONSUMER_TOO_SLOW":       {ErrConsumerTooSlow},
	} {
		err := errorFrom(context.Background(), withDetails(t, codes.ResourceExhausted, info(reason)))
		for _, kind := range []error{
			ErrOverloaded, ErrRateLimited, ErrQuotaExhausted, ErrInvalidRequest, ErrContextLength, ErrIdempotencyMismatch,
			ErrConsumerTooSlow, ErrUnavailable,
		} {
			wanted := false
			for _, one := range kinds {
				wanted = wanted || one == kind
			}
			if errors.Is(err, kind) != wanted {
				t.Errorf("%s is %v: %t", reason, kind, !wanted)
			}
		}
	}
}

func TestARequestThatIsTooLargeIsNoOverload(t *testing.T) {
	err := errorFrom(context.Background(), status.Error(codes.ResourceExhausted, "grpc: received message larger than max (9 vs. 4)"))
	if !errors.Is(err, ErrRequestTooLarge) || errors.Is(err, ErrOverloaded) {
		t.Errorf("%v", err)
	}
}

func TestOnlyWhatMayPassAndHasNotBegunIsRetriable(t *testing.T) {
	for reason, wanted := range map[string]bool{
		"QUEUE_FULL": true, "RATE_LIMITED": true, "DRAINING": true, "BACKEND_UNAVAILABLE": true,
		"QUOTA_EXHAUSTED": false, "INVALID_FIELD": false, "BACKEND_ERROR": false, "CONSUMER_TOO_SLOW": false,
		"DEADLINE_IN_QUEUE": false, "UNAUTHENTICATED": false,
	} {
		err := errorFrom(context.Background(), withDetails(t, codes.Unavailable, info(reason)))
		if err.Retriable() != wanted {
			t.Errorf("%s: %t", reason, err.Retriable())
		}
		if err.EventsReceived = 1; err.Retriable() {
			t.Errorf("%s behind output is retriable", reason)
		}
	}
}

func TestAnErrorWithoutAStatusKeepsItsWords(t *testing.T) {
	if err := errorFrom(context.Background(), errors.New("odd")); err.Code != codes.Unknown || !strings.Contains(err.Error(), "odd") {
		t.Errorf("%v", err)
	}
	if err := errorFrom(context.Background(), context.DeadlineExceeded); !errors.Is(err, ErrDeadline) {
		t.Errorf("%v", err)
	}
}
