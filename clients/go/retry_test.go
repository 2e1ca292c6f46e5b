package headrace_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	headrace "github.com/headrace/headrace/clients/go"
)

func TestACallThatIsPushedBackIsRepeatedAfterThatTime(t *testing.T) {
	t.Parallel()
	busy := pushedBack{failure(codes.Unavailable, "BACKEND_UNAVAILABLE"), "60"}
	fake := serve(t, script{busy}, whole())
	began := time.Now()
	text, err := fake.client(t).Generate(within(t), hello()).Text()
	if text != "Hello world" || err != nil || fake.count() != 2 {
		t.Errorf("%q, %v, %d calls", text, err, fake.count())
	}
	if took := time.Since(began); took < 60*time.Millisecond {
		t.Errorf("came back after %v", took)
	}
}

func TestWhatIsNotRepeated(t *testing.T) {
	t.Parallel()
	full := pushedBack{failure(codes.ResourceExhausted, "QUEUE_FULL"), "1"}
	never := pushedBack{failure(codes.Unavailable, "FIRST_TOKEN_TIMEOUT"), "-1"}
	broken := failure(codes.Unavailable, "BACKEND_UNAVAILABLE")
	busy := pushedBack{broken, "1"}
	for name, test := range map[string]struct {
		script  script
		options []headrace.Option
		text    string
	}{
		"a full line":                            {script: script{full}},
		"a server that says never":               {script: script{never}},
		"what broke after output":                {script: numbered(0, started(), delta("half"), broken), text: "half"},
		"anything, for a client without retries": {script: script{busy}, options: []headrace.Option{headrace.WithoutRetries()}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := serve(t, test.script, whole())
			text, err := fake.client(t, test.options...).Generate(within(t), hello()).Text()
			if text != test.text || err == nil || fake.count() != 1 {
				t.Errorf("%q, %v, %d calls", text, err, fake.count())
			}
		})
	}
}

func TestTheErrorOfTheLastTryIsToldAsItIs(t *testing.T) {
	t.Parallel()
	retry := &errdetails.RetryInfo{RetryDelay: durationpb.New(2 * time.Second)}
	busy := pushedBack{failure(codes.Unavailable, "MODEL_NOT_READY", retry), "1"}
	fake := serve(t, script{busy})
	_, err := fake.client(t).Generate(within(t), hello()).Text()
	var failed *headrace.Error
	if !errors.As(err, &failed) || fake.count() != 3 {
		t.Fatalf("%v after %d calls", err, fake.count())
	}
	if failed.Message != "refused by the script" || failed.Reason != headrace.ReasonModelNotReady ||
		failed.RetryAfter != 2*time.Second || !failed.Retriable() {
		t.Errorf("%#v", failed)
	}
}

func TestACallThatAServerAcceptedAndDidNotBeginIsRepeated(t *testing.T) {
	t.Parallel()
	unseen := script{status.Error(codes.Canceled, "CANCELLED")}
	fake := serve(t, unseen, unseen, whole())
	if text, err := fake.client(t).Generate(within(t), hello()).Text(); text != "Hello world" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	for wanted, options := range map[int][]headrace.Option{3: nil, 1: {headrace.WithoutRetries()}} {
		fake := serve(t, unseen)
		_, err := fake.client(t, options...).Generate(within(t), hello()).Text()
		if !errors.Is(err, headrace.ErrCancelled) || fake.count() != wanted {
			t.Errorf("%v after %d calls, not %d", err, fake.count(), wanted)
		}
	}
}

func TestAUnaryCallIsRepeatedLikeAGeneration(t *testing.T) {
	t.Parallel()
	fake := serve(t, whole())
	fake.models = pages([]string{"a"})
	fake.failures = []error{status.Error(codes.Canceled, "CANCELLED"), status.Error(codes.Unavailable, "gone")}
	if models, err := fake.client(t).Models(within(t)); len(models) != 1 || err != nil {
		t.Errorf("%v, %v", models, err)
	}
	cancelled, cancel := context.WithCancel(within(t))
	cancel()
	if _, err := fake.client(t).Models(cancelled); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// lost is what a transport says; a server that is asked would say why.
var lost = status.Error(codes.Unavailable, "the connection is gone")

func TestARetainedGenerationGoesOnBehindTheLastEvent(t *testing.T) {
	t.Parallel()
	for name, option := range map[string]headrace.RequestOption{
		"with a key":     headrace.IdempotencyKey("order-1"),
		"with retention": headrace.Retain(time.Minute),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := serve(
				t, numbered(0, started(), delta("Hello"), lost), script{lost}, numbered(2, delta(" world"), stopped(), completed()),
			)
			generation := fake.client(t).Generate(within(t), headrace.NewRequest("fake", headrace.Prompt("hi"), option))
			text, err := generation.Text()
			if text != "Hello world" || err != nil || generation.Rejoined() < 1 {
				t.Fatalf("%q, %v, joined %d times", text, err, generation.Rejoined())
			}
			last := fake.call(fake.count() - 1).attach
			if last.GetGenerationId() != "gen-1" || last.GetAfterSequence() != 2 {
				t.Errorf("attached with %v", last)
			}
		})
	}
}

func TestTheSameRequestAgainIsTheSameGenerationWhileNothingHasCome(t *testing.T) {
	t.Parallel()
	gone := pushedBack{lost, "-1"} // gRPC itself does not repeat it
	fake := serve(t, script{gone}, whole())
	text, err := fake.client(t).Generate(within(t), headrace.NewRequest("fake", headrace.Prompt("hi"), headrace.IdempotencyKey("k"))).Text()
	if text != "Hello world" || err != nil || fake.count() != 2 {
		t.Fatalf("%q, %v, %d calls", text, err, fake.count())
	}
	if key := fake.call(1).request.GetIdempotencyKey(); key != "k" {
		t.Errorf("asked with key %q", key)
	}
}

func TestWhatIsNotJoinedAgain(t *testing.T) {
	t.Parallel()
	known := failure(codes.Unavailable, "GENERATION_LOST")
	gone := pushedBack{lost, "-1"}
	key := headrace.IdempotencyKey("k")
	for name, test := range map[string]struct {
		script  script
		request *headrace.Request
		options []headrace.Option
	}{
		"what is not retained":                    {script: numbered(0, started(), lost), request: hello()},
		"what the server gives up":                {script: numbered(0, started(), known), request: headrace.NewRequest("fake", key)},
		"what nobody knows the id of":             {script: script{gone}, request: headrace.NewRequest("fake", headrace.Retain(time.Second))},
		"anything, by a client without retries":   {script: numbered(0, started(), lost), request: headrace.NewRequest("fake", key), options: []headrace.Option{headrace.WithoutRetries()}},
		"a stream that breaks the contract order": {script: numbered(0, started()), request: headrace.NewRequest("fake", key)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := serve(t, test.script)
			if _, err := fake.client(t, test.options...).Generate(within(t), test.request).Text(); err == nil || fake.count() != 1 {
				t.Errorf("%v after %d calls", err, fake.count())
			}
		})
	}
}

func TestAServerThatIsNotThereIsToldAlsoWithAKey(t *testing.T) {
	t.Parallel()
	fake := serve(t, whole())
	fake.server.Stop()
	_, err := fake.client(t).Generate(within(t), headrace.NewRequest("fake", headrace.IdempotencyKey("k"))).Text()
	if !errors.Is(err, headrace.ErrUnavailable) {
		t.Errorf("%v", err)
	}
}

func TestAFaultThatStaysIsNotJoinedForever(t *testing.T) {
	t.Parallel()
	fault := status.Error(codes.Internal, "an event that cannot be read")
	fake := serve(t, numbered(0, started(), fault), script{fault})
	request := headrace.NewRequest("fake", headrace.IdempotencyKey("k"))
	if _, err := fake.client(t).Generate(within(t), request).Text(); !errors.Is(err, headrace.ErrInternal) {
		t.Errorf("%v", err)
	}
	if fake.count() != 4 {
		t.Errorf("%d calls", fake.count())
	}
	unsendable := fake.client(t, headrace.WithHeaders(func(context.Context) map[string]string {
		return map[string]string{"not sendable": "x"}
	}))
	if _, err := unsendable.Generate(within(t), request).Text(); !errors.Is(err, headrace.ErrInternal) || fake.count() != 4 {
		t.Errorf("%v after %d calls", err, fake.count())
	}
}

func TestCancelsOfTheCallerDoNotUseUpTheRetries(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{})
	waiting := script{func() { arrived <- struct{}{} }, hang{}}
	scripts := slices.Repeat([]script{waiting}, 20)
	busy := pushedBack{failure(codes.Unavailable, "MODEL_NOT_READY"), "1"}
	fake := serve(t, append(scripts, script{busy}, whole())...)
	client := fake.client(t)
	for range scripts {
		ctx, cancel := context.WithCancel(within(t))
		go func() {
			<-arrived
			cancel()
		}()
		if _, err := client.Generate(ctx, hello()).Text(); !errors.Is(err, headrace.ErrCancelled) {
			t.Fatal(err)
		}
	}
	if text, err := client.Generate(within(t), hello()).Text(); text != "Hello world" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
}

func TestJoiningAgainEndsWithTheDeadlineTheCancelAndTheClient(t *testing.T) {
	t.Parallel()
	steps := numbered(0, started(), delta("Hello"), lost)
	key := headrace.NewRequest("fake", headrace.IdempotencyKey("k"))
	t.Run("deadline", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithTimeout(within(t), 500*time.Millisecond)
		defer cancel()
		text, err := serve(t, steps, script{lost}).client(t).Generate(ctx, key).Text()
		if text != "Hello" || !errors.Is(err, headrace.ErrUnavailable) && !errors.Is(err, headrace.ErrDeadline) {
			t.Errorf("%q, %v", text, err)
		}
	})
	t.Run("cancel", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(within(t))
		fake := serve(t, steps, script{func() { cancel() }, lost})
		if _, err := fake.client(t).Generate(ctx, key).Text(); !errors.Is(err, headrace.ErrCancelled) {
			t.Errorf("%v", err)
		}
	})
	t.Run("close", func(t *testing.T) {
		t.Parallel()
		fake := serve(t, numbered(0, started(), delta("Hello"), hang{}))
		client := fake.client(t)
		var err error
		for _, err = range client.Generate(within(t), key).Deltas() {
			_ = client.Close()
		}
		if !errors.Is(err, headrace.ErrCancelled) || fake.count() != 1 {
			t.Errorf("%v after %d calls", err, fake.count())
		}
	})
}

func TestAttachReadsBehindANumberAndNotBehindTheLastOne(t *testing.T) {
	t.Parallel()
	fake := serve(t, numbered(2, delta(" world"), stopped(), completed()), script{})
	client := fake.client(t)
	text, err := client.Attach(within(t), headrace.ByKey("order-1"), 2).Text()
	if text != " world" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	if asked := fake.call(0).attach; asked.GetIdempotencyKey() != "order-1" || asked.GetAfterSequence() != 2 {
		t.Errorf("attached with %v", asked)
	}
	if text, err := client.Attach(within(t), headrace.ByID("gen-1"), 5).Text(); text != "" || err != nil {
		t.Errorf("behind the last event: %q, %v", text, err)
	}
	if asked := fake.call(1).attach; asked.GetGenerationId() != "gen-1" {
		t.Errorf("attached with %v", asked)
	}
}
