package headrace_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	headrace "github.com/headrace/headrace/clients/go"
	headracev1 "github.com/headrace/headrace/clients/go/gen/headrace/v1"
)

// wait bounds every wait in these tests; one that reaches it is broken.
const wait = 10 * time.Second

// script is what the server does for one call: an *Event is sent, an error ends the call, a func is called, hang waits for
// a cancel. At its end comes OK.
type script []any

type hang struct{}

// call is what the server saw of one Generate or AttachGeneration.
type call struct {
	request  *headrace.Request
	attach   *headracev1.AttachGenerationRequest
	metadata metadata.MD
	deadline time.Time
	// over is closed when the handler returns, with what it was told then.
	over  chan struct{}
	cause error
}

// fake is a scripted service on a real socket. Each call takes the next script, and the last one serves all that follow.
type fake struct {
	headracev1.UnimplementedGenerationServiceServer
	headracev1.UnimplementedModelServiceServer
	address string
	server  *grpc.Server
	scripts []script
	models  []*headracev1.ListModelsResponse
	// Ends one call of ListModels each.
	failures []error

	mutex sync.Mutex
	calls []*call
	unary []*call
}

func serve(t *testing.T, scripts ...script) *fake {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{address: listener.Addr().String(), server: grpc.NewServer(), scripts: scripts}
	headracev1.RegisterGenerationServiceServer(f.server, f)
	headracev1.RegisterModelServiceServer(f.server, f)
	go func() { _ = f.server.Serve(listener) }()
	t.Cleanup(f.server.Stop)
	return f
}

func (f *fake) client(t *testing.T, options ...headrace.Option) *headrace.Client {
	t.Helper()
	client, err := headrace.New(f.address, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// count returns how many streams were asked for.
func (f *fake) count() int {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return len(f.calls)
}

func (f *fake) call(number int) *call {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return f.calls[number]
}

func (f *fake) Generate(request *headrace.Request, stream grpc.ServerStreamingServer[headrace.Event]) error {
	return f.play(&call{request: request}, stream)
}

func (f *fake) AttachGeneration(
	request *headracev1.AttachGenerationRequest, stream grpc.ServerStreamingServer[headrace.Event],
) error {
	return f.play(&call{attach: request}, stream)
}

func (f *fake) ListModels(ctx context.Context, request *headracev1.ListModelsRequest) (*headracev1.ListModelsResponse, error) {
	seen := &call{}
	seen.metadata, _ = metadata.FromIncomingContext(ctx)
	seen.deadline, _ = ctx.Deadline()
	f.mutex.Lock()
	f.unary = append(f.unary, seen)
	number := len(f.unary) - 1
	f.mutex.Unlock()
	if number < len(f.failures) {
		return nil, f.failures[number]
	}
	for number, page := range f.models {
		if number == 0 && request.GetPageToken() == "" || number > 0 && f.models[number-1].GetNextPageToken() == request.GetPageToken() {
			return page, nil
		}
	}
	return nil, failure(codes.NotFound, "MODEL_NOT_FOUND")
}

func (f *fake) play(seen *call, stream grpc.ServerStreamingServer[headrace.Event]) error {
	seen.metadata, _ = metadata.FromIncomingContext(stream.Context())
	seen.deadline, _ = stream.Context().Deadline()
	seen.over = make(chan struct{})
	f.mutex.Lock()
	steps := f.scripts[min(len(f.calls), len(f.scripts)-1)]
	f.calls = append(f.calls, seen)
	f.mutex.Unlock()
	defer close(seen.over)
	seen.cause = run(steps, stream)
	return seen.cause
}

func run(steps script, stream grpc.ServerStreamingServer[headrace.Event]) error {
	stream.SetTrailer(metadata.Pairs("server-timing", "total;dur=1"))
	for _, step := range steps {
		switch step := step.(type) {
		case *headrace.Event:
			_ = stream.SetHeader(metadata.Pairs("x-request-id", "req-1", "x-generation-id", "gen-1"))
			if err := stream.Send(step); err != nil {
				return err
			}
		case pushedBack:
			stream.SetTrailer(metadata.Pairs("grpc-retry-pushback-ms", step.pushback))
			return step.error
		case error:
			return step
		case func():
			step()
		case hang:
			<-stream.Context().Done()
			return stream.Context().Err()
		}
	}
	return nil
}

// pushedBack ends a call with word of when to come back.
type pushedBack struct {
	error
	pushback string
}

// failure returns a status with the details of a Headrace error.
func failure(code codes.Code, reason string, more ...protoadapt.MessageV1) error {
	details := append([]protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: reason, Domain: "headrace.v1"}}, more...)
	st, err := status.New(code, "refused by the script").WithDetails(details...)
	if err != nil {
		panic(err)
	}
	return st.Err()
}

// numbered gives events their numbers, after `after`, and returns the script with them.
func numbered(after int32, steps ...any) script {
	for _, step := range steps {
		if event, ok := step.(*headrace.Event); ok {
			after++
			event.Sequence = after
		}
	}
	return steps
}

func queued(ahead int32) *headrace.Event {
	value := &headracev1.GenerationQueued{GenerationId: "gen-1", AheadCount: ahead}
	return &headrace.Event{Event: &headracev1.GenerateResponse_Queued{Queued: value}}
}

func started() *headrace.Event {
	value := &headracev1.GenerationStarted{GenerationId: "gen-1", Model: "fake", Seed: 7}
	return &headrace.Event{Event: &headracev1.GenerateResponse_Started{Started: value}}
}

func deltaOf(value *headracev1.ChoiceDelta) *headrace.Event {
	return &headrace.Event{Event: &headracev1.GenerateResponse_Delta{Delta: value}}
}

func delta(text string) *headrace.Event {
	return deltaOf(&headracev1.ChoiceDelta{Content: &headracev1.ChoiceDelta_Text{Text: text}})
}

func finished(reason headracev1.FinishReason) *headrace.Event {
	value := &headracev1.ChoiceFinished{Reason: reason}
	return &headrace.Event{Event: &headracev1.GenerateResponse_ChoiceFinished{ChoiceFinished: value}}
}

func stopped() *headrace.Event { return finished(headracev1.FinishReason_FINISH_REASON_STOP) }

func completed() *headrace.Event {
	tokens := int32(2)
	value := &headracev1.GenerationCompleted{
		Usage:  &headracev1.Usage{OutputTokenCount: &tokens},
		Timing: &headracev1.Timing{TotalDuration: durationpb.New(100 * time.Millisecond)},
	}
	return &headrace.Event{Event: &headracev1.GenerateResponse_Completed{Completed: value}}
}

// whole is the script of a good answer, "Hello world".
func whole() script {
	return numbered(0, started(), delta("Hello"), delta(" world"), stopped(), completed())
}

func hello() *headrace.Request { return headrace.NewRequest("fake", headrace.Prompt("hello")) }

// ended waits until the server's handler has returned.
func (c *call) ended(t *testing.T) {
	t.Helper()
	select {
	case <-c.over:
	case <-time.After(wait):
		t.Fatal("the server still works for the call")
	}
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	t.Cleanup(cancel)
	return ctx
}
