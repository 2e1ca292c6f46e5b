package headrace_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	headrace "github.com/headrace/headrace/clients/go"
)

func TestEventsComeInOrderAndTheFactsWithThem(t *testing.T) {
	t.Parallel()
	generation := serve(t, whole()).client(t).Generate(within(t), hello())
	var sequences []int32
	for event, err := range generation.Events() {
		if err != nil {
			t.Fatal(err)
		}
		sequences = append(sequences, event.GetSequence())
		if generation.ID() != "gen-1" || generation.RequestID() != "req-1" {
			t.Errorf("ids %q and %q with event %d", generation.ID(), generation.RequestID(), event.GetSequence())
		}
	}
	if !slices.Equal(sequences, []int32{1, 2, 3, 4, 5}) {
		t.Errorf("events %v", sequences)
	}
	if generation.FinishReason(0) != "STOP" || generation.FinishReason(1) != "" {
		t.Errorf("finish reasons %q and %q", generation.FinishReason(0), generation.FinishReason(1))
	}
	if generation.Usage().GetOutputTokenCount() != 2 || generation.Usage().PromptTokenCount != nil {
		t.Errorf("usage %v", generation.Usage())
	}
	if generation.Timing().GetTotalDuration().AsDuration() != 100*time.Millisecond || generation.Started().GetSeed() != 7 {
		t.Errorf("timing %v, started %v", generation.Timing(), generation.Started())
	}
	if timing := generation.Trailer().Get("server-timing"); len(timing) != 1 {
		t.Errorf("trailer %v", generation.Trailer())
	}
}

func TestTheTextIsWholeAndItsPiecesAreThoseThatCame(t *testing.T) {
	t.Parallel()
	client := serve(t, whole()).client(t)
	text, err := client.Generate(within(t), hello()).Text()
	if text != "Hello world" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	var pieces []string
	for piece, err := range client.Generate(within(t), hello()).Deltas() {
		if err != nil {
			t.Fatal(err)
		}
		pieces = append(pieces, piece)
	}
	if !slices.Equal(pieces, []string{"Hello", " world"}) {
		t.Errorf("%q", pieces)
	}
}

func TestNothingIsSentBeforeTheGenerationIsRead(t *testing.T) {
	t.Parallel()
	fake := serve(t, whole())
	client := fake.client(t)
	_ = client.Generate(within(t), hello())
	if _, err := client.Generate(within(t), hello()).Text(); err != nil {
		t.Fatal(err)
	}
	if fake.count() != 1 {
		t.Errorf("%d calls", fake.count())
	}
}

func TestAGenerationIsReadOnce(t *testing.T) {
	t.Parallel()
	fake := serve(t, whole())
	generation := fake.client(t).Generate(within(t), hello())
	if _, err := generation.Text(); err != nil {
		t.Fatal(err)
	}
	if text, err := generation.Text(); text != "" || err == nil {
		t.Errorf("%q, %v", text, err)
	}
	if fake.count() != 1 {
		t.Errorf("%d calls", fake.count())
	}
}

func TestLeavingTheLoopCancelsTheCall(t *testing.T) {
	t.Parallel()
	fake := serve(t, numbered(0, started(), delta("Hello"), hang{}))
	for range fake.client(t).Generate(within(t), hello()).Deltas() {
		break
	}
	fake.call(0).ended(t)
	if !errors.Is(fake.call(0).cause, context.Canceled) {
		t.Errorf("the server saw %v", fake.call(0).cause)
	}
}

func TestAPanicInTheLoopCancelsTheCall(t *testing.T) {
	t.Parallel()
	fake := serve(t, numbered(0, started(), delta("Hello"), hang{}))
	client := fake.client(t)
	func() {
		defer func() { _ = recover() }()
		for range client.Generate(within(t), hello()).Deltas() {
			panic("a bug of the caller")
		}
	}()
	fake.call(0).ended(t)
}

func TestLeavingAtCompletedIsNoCancel(t *testing.T) {
	t.Parallel()
	fake := serve(t, whole())
	generation := fake.client(t).Generate(within(t), hello())
	for event := range generation.Events() {
		if event.GetCompleted() != nil {
			break
		}
	}
	if len(generation.Trailer().Get("server-timing")) != 1 {
		t.Errorf("the status was not taken: trailer %v", generation.Trailer())
	}
	fake.call(0).ended(t)
	if fake.call(0).cause != nil {
		t.Errorf("the server saw %v", fake.call(0).cause)
	}
}

func TestCancellingTheContextEndsTheLoopAndTheCall(t *testing.T) {
	t.Parallel()
	fake := serve(t, numbered(0, started(), delta("Hello"), delta(" behind"), hang{}))
	cause := errors.New("the user pressed stop")
	ctx, cancel := context.WithCancelCause(within(t))
	defer cancel(nil)
	var pieces []string
	var failure error
	for piece, err := range fake.client(t).Generate(ctx, hello()).Deltas() {
		if err != nil {
			failure = err
			break
		}
		pieces = append(pieces, piece)
		cancel(cause)
	}
	if !slices.Equal(pieces, []string{"Hello"}) {
		t.Errorf("pieces %q: what was cancelled is over", pieces)
	}
	if !errors.Is(failure, headrace.ErrCancelled) || !errors.Is(failure, context.Canceled) || !errors.Is(failure, cause) {
		t.Errorf("%v", failure)
	}
	if status.Code(failure) != codes.Canceled {
		t.Errorf("status %v", status.Code(failure))
	}
	fake.call(0).ended(t)
}

func TestACancelByTheServerIsNoCancelOfTheContext(t *testing.T) {
	t.Parallel()
	fake := serve(t, numbered(0, started(), status.Error(codes.Canceled, "")))
	_, err := fake.client(t).Generate(within(t), hello()).Text()
	if !errors.Is(err, headrace.ErrCancelled) || errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestADeadlineKeepsTheTextThatCame(t *testing.T) {
	t.Parallel()
	fake := serve(t, numbered(0, started(), delta("Hello"), hang{}))
	ctx, cancel := context.WithTimeout(within(t), 200*time.Millisecond)
	defer cancel()
	text, err := fake.client(t).Generate(ctx, hello()).Text()
	if text != "Hello" || !errors.Is(err, headrace.ErrDeadline) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%q, %v", text, err)
	}
	var failed *headrace.Error
	if !errors.As(err, &failed) || failed.EventsReceived != 2 || failed.Retriable() {
		t.Errorf("%#v", failed)
	}
	fake.call(0).ended(t)
}

func TestACallWithoutADeadlineGetsTheClientsOwn(t *testing.T) {
	t.Parallel()
	fake := serve(t, whole())
	for _, option := range []headrace.Option{
		headrace.WithTimeouts(headrace.DefaultGenerationTimeout, headrace.DefaultUnaryTimeout),
		headrace.WithTimeouts(time.Minute, time.Second),
	} {
		client := fake.client(t, option)
		if _, err := client.Generate(context.Background(), hello()).Text(); err != nil {
			t.Fatal(err)
		}
		_, _ = client.Models(context.Background())
	}
	for number, wanted := range []time.Duration{600 * time.Second, time.Minute} {
		if left := time.Until(fake.call(number).deadline); left > wanted || left < wanted-wait {
			t.Errorf("a generation has %v, not %v", left, wanted)
		}
	}
	for number, wanted := range []time.Duration{10 * time.Second, time.Second} {
		if left := time.Until(fake.unary[number].deadline); left > wanted || left < wanted-wait {
			t.Errorf("a unary call has %v, not %v", left, wanted)
		}
	}
}

func TestEventsOfANewerServerAreSkipped(t *testing.T) {
	t.Parallel()
	fake := serve(t, numbered(0, started(), delta("be"), &headrace.Event{}, delta("fore"), stopped(), completed()))
	generation := fake.client(t).Generate(within(t), hello())
	seen, text := 0, ""
	for event, err := range generation.Events() {
		if err != nil {
			t.Fatal(err)
		}
		seen++
		text += event.GetDelta().GetText()
	}
	if seen != 5 || text != "before" {
		t.Errorf("%d events, %q", seen, text)
	}
}

func TestAStreamThatBreaksTheOrderIsAnErrorAndCancelled(t *testing.T) {
	t.Parallel()
	gap := numbered(0, started(), delta("a"), delta("b"), hang{})
	gap[2].(*headrace.Event).Sequence = 4
	for name, script := range map[string]script{
		"a gap":                 gap,
		"an end without an end": numbered(0, started(), delta("a")),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := serve(t, script)
			generation := fake.client(t).Generate(within(t), hello())
			text, err := generation.Text()
			if text != "a" || !errors.Is(err, headrace.ErrProtocol) || !errors.Is(err, headrace.ErrInternal) {
				t.Errorf("%q, %v", text, err)
			}
			if status.Code(err) != codes.Internal {
				t.Errorf("status %v", status.Code(err))
			}
			fake.call(0).ended(t)
		})
	}
}

func TestQueuedEventsComeBeforeTheStart(t *testing.T) {
	t.Parallel()
	fake := serve(t, numbered(0, queued(2), queued(1), started(), delta("now"), stopped(), completed()))
	var ahead []int32
	generation := fake.client(t).Generate(within(t), headrace.NewRequest("fake", headrace.Prompt("hi"), headrace.QueueEvents()))
	for event, err := range generation.Events() {
		if err != nil {
			t.Fatal(err)
		}
		if place := event.GetQueued(); place != nil {
			ahead = append(ahead, place.GetAheadCount())
		}
	}
	if !slices.Equal(ahead, []int32{2, 1}) || !fake.call(0).request.GetOutput().GetQueueEvents() {
		t.Errorf("%v, %v", ahead, fake.call(0).request)
	}
}

// Not parallel: it counts what is left of its own calls.
func TestCallsThatAreLeftLeaveNothing(t *testing.T) {
	fake := serve(t, numbered(0, started(), delta("Hello"), hang{}))
	client := fake.client(t)
	leave := func() {
		for range client.Generate(within(t), hello()).Deltas() {
			break
		}
	}
	leave() // opens the connection
	fake.call(0).ended(t)
	before := runtime.NumGoroutine()
	for range 100 {
		leave()
	}
	ends := time.Now().Add(wait)
	for runtime.NumGoroutine() > before {
		if time.Now().After(ends) {
			t.Fatalf("%d goroutines before, %d behind", before, runtime.NumGoroutine())
		}
		time.Sleep(time.Millisecond)
	}
}
