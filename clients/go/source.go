package headrace

import (
	"context"

	"google.golang.org/grpc"

	headracev1 "github.com/headrace/headrace/clients/go/gen/headrace/v1"
)

// events is a call that streams events: Generate or AttachGeneration.
type events = grpc.ServerStreamingClient[headracev1.GenerateResponse]

// source knows how the events of one generation are asked for, for the first time and again.
type source struct {
	request    *Request // of Generate; nil: attach to the target
	target     Target
	isRetained bool
}

// open begins the call that brings the events behind `after`. The id is empty until an event has come; until then the
// same request with the same key is the same generation, whether it was begun or not.
func (s *source) open(ctx context.Context, client *Client, id string, after int32) (events, error) {
	target := s.target
	if id != "" && s.isRetained {
		target = ByID(id)
	} else if s.request != nil {
		return client.generations.Generate(ctx, s.request)
	}
	request := &headracev1.AttachGenerationRequest{
		Target:        &headracev1.AttachGenerationRequest_GenerationId{GenerationId: target.id},
		AfterSequence: after,
	}
	if target.key != "" {
		request.Target = &headracev1.AttachGenerationRequest_IdempotencyKey{IdempotencyKey: target.key}
	}
	return client.generations.AttachGeneration(ctx, request)
}

// canFind tells whether the generation can be asked for again without running it twice.
func (s *source) canFind(id string) bool {
	return s.isRetained && (s.request == nil || s.request.GetIdempotencyKey() != "" || id != "")
}
