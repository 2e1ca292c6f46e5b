package headrace

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	headracev1 "github.com/headrace/headrace/clients/go/gen/headrace/v1"
)

const (
	requestIDHeader    = "x-request-id"
	generationIDHeader = "x-generation-id"
	// The status follows `completed` at once, unless the network fails.
	statusWait = time.Second
)

// errRead is what a second reader gets.
var errRead = errors.New("headrace: a generation is read once; call Generate again for another one")

// Generation is one call that streams events. Read it once, with one of [Generation.Events], [Generation.Deltas],
// [Generation.Text] and [Generation.Collect], in one goroutine: the call begins there, and has ended when that returns or
// its loop is left. Leaving early cancels what is left of it. To stop it from elsewhere cancel its context.
//
// The other methods tell what the events until now have said.
type Generation struct {
	client *Client
	// Of the whole call, which is begun by reading.
	ctx    context.Context
	source source
	order  order
	call   events
	isRead bool
	tries  int // since the last event

	id        string
	requestID string
	header    metadata.MD
	trailer   metadata.MD
	started   *headracev1.GenerationStarted
	completed *headracev1.GenerationCompleted
	finished  map[int32]*headracev1.ChoiceFinished
	rejoined  int
}

func newGeneration(client *Client, ctx context.Context, source source, after int32) *Generation {
	return &Generation{
		client:   client,
		ctx:      ctx,
		source:   source,
		order:    newOrder(after),
		finished: map[int32]*headracev1.ChoiceFinished{},
	}
}

// Events yields every event in order. An error comes last, with a nil event: an [*Error], also where events are missing.
// Events of a newer server that this client does not know are left out.
func (g *Generation) Events() iter.Seq2[*Event, error] {
	return func(yield func(*Event, error) bool) {
		if g.isRead {
			yield(nil, errRead)
			return
		}
		g.isRead = true
		ctx, cancel := withTimeout(g.ctx, g.client.settings.generationTimeout)
		defer cancel()
		for {
			event, err := g.next(ctx)
			if err == io.EOF {
				return
			}
			if err != nil {
				yield(nil, g.failed(ctx, err))
				return
			}
			if event.GetEvent() == nil {
				continue
			}
			if !yield(event, nil) {
				g.leave(cancel)
				return
			}
		}
	}
}

// Deltas yields the pieces of text of choice 0 as they come. An error comes last, with an empty piece.
func (g *Generation) Deltas() iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for event, err := range g.Events() {
			delta := event.GetDelta()
			isText := delta.GetText() != "" && delta.GetIndex() == 0
			if (isText || err != nil) && !yield(delta.GetText(), err) {
				return
			}
		}
	}
}

// next returns the next event, io.EOF behind the last one, or what has failed.
func (g *Generation) next(ctx context.Context) (*Event, error) {
	// What was cancelled is over, whatever has arrived meanwhile.
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	for {
		event, err := g.receive(ctx)
		if err == nil {
			if err = g.order.take(event); err == nil {
				g.tries = 0
				g.keep(event)
			}
			return event, err
		}
		if err == io.EOF {
			if err = g.order.end(); err == nil {
				return nil, io.EOF
			}
			return nil, err
		}
		lost := errorFrom(ctx, err)
		if !g.goesOn(ctx, lost) || !pause(ctx, g.tries) {
			return nil, lost
		}
		g.tries++
		g.call = nil
		if g.source.isRetained {
			g.rejoined++
		}
	}
}

// receive reads from the call, and begins it if there is none.
func (g *Generation) receive(ctx context.Context) (*Event, error) {
	if g.call == nil {
		call, err := g.source.open(ctx, g.client, g.id, g.order.last)
		if err != nil {
			return nil, err
		}
		g.call = call
	}
	event, err := g.call.Recv()
	if err != nil {
		g.trailer = g.call.Trailer()
	} else if g.header == nil {
		g.header, _ = g.call.Header() // has come with the event
		g.requestID = first(g.header, requestIDHeader)
		g.setID(first(g.header, generationIDHeader))
	}
	return event, err
}

func (g *Generation) keep(event *Event) {
	switch event := event.GetEvent().(type) {
	case *headracev1.GenerateResponse_Queued:
		g.setID(event.Queued.GetGenerationId())
	case *headracev1.GenerateResponse_Started:
		g.started = event.Started
		g.setID(event.Started.GetGenerationId())
	case *headracev1.GenerateResponse_ChoiceFinished:
		g.finished[event.ChoiceFinished.GetIndex()] = event.ChoiceFinished
	case *headracev1.GenerateResponse_Completed:
		g.completed = event.Completed
	}
}

func (g *Generation) setID(id string) {
	if id != "" {
		g.id = id
	}
}

// failed returns the error of the call, with what the stream knows of it.
func (g *Generation) failed(ctx context.Context, err error) *Error {
	e := errorFrom(ctx, err)
	e.EventsReceived = int(g.order.last - g.order.after)
	if e.RequestID == "" {
		e.RequestID = g.requestID
	}
	g.requestID = e.RequestID
	return e
}

// leave ends a call whose reader has gone. One who stops at `completed` has not cancelled: the status is taken.
func (g *Generation) leave(cancel context.CancelFunc) {
	if g.completed == nil || g.call == nil {
		return
	}
	timer := time.AfterFunc(statusWait, cancel)
	defer timer.Stop()
	if _, err := g.call.Recv(); err != nil {
		g.trailer = g.call.Trailer()
	}
}

func first(md metadata.MD, key string) string {
	if values := md.Get(key); len(values) > 0 {
		return values[0]
	}
	return ""
}
