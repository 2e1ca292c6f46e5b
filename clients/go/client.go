package headrace

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	headracev1 "github.com/headrace/headrace/clients/go/gen/headrace/v1"
)

const modelsPageSize = 200

// Client is one channel to a Headrace service. It is safe for concurrent use.
//
// Every call has a deadline: its context's, or the default ([WithTimeouts]). Every call fails with an [*Error].
type Client struct {
	conn        *grpc.ClientConn
	settings    *settings
	generations headracev1.GenerationServiceClient
	models      headracev1.ModelServiceClient
	isClosed    atomic.Bool
}

// New returns a client of the service at a gRPC target: "host:port", or "dns:///name:port" for all addresses of a name.
// It connects with the first call. An error means that the target or an option cannot be used.
func New(target string, options ...Option) (*Client, error) {
	settings, err := newSettings(options)
	if err != nil {
		return nil, err
	}
	c := &Client{settings: settings}
	if c.conn, err = grpc.NewClient(target, c.dialOptions()...); err != nil {
		return nil, err
	}
	c.generations = headracev1.NewGenerationServiceClient(c.conn)
	c.models = headracev1.NewModelServiceClient(c.conn)
	return c, nil
}

// Close closes the channel. Calls that still run end as cancelled.
func (c *Client) Close() error {
	c.isClosed.Store(true)
	return c.conn.Close()
}

// Conn returns the channel, for the contract's other services:
// headracev1.NewTokenizeServiceClient(client.Conn()). Their unary calls have the client's deadline, credentials, retries
// and errors.
func (c *Client) Conn() grpc.ClientConnInterface { return c.conn }

// Generate returns a generation to read; nothing is sent before that. The context carries its deadline and its cancel.
//
// One that is retained (it has an idempotency key, or asks for retention) is joined again when the connection is lost, as
// often as the deadline allows (three times while nothing has come), and goes on behind the last event. Leaving such a one ends this call and not the
// generation, which the server stops when nobody has read it for a while; [Client.CancelGeneration] stops it at once.
func (c *Client) Generate(ctx context.Context, request *Request) *Generation {
	isRetained := request.GetIdempotencyKey() != "" || request.GetRetention() != nil
	return newGeneration(c, ctx, source{request: request, isRetained: isRetained}, 0)
}

// Attach returns a retained generation to read, from the event behind number after on; 0 is all of it. What is kept comes
// at once, the rest as it is generated. Leaving it does not stop the generation.
func (c *Client) Attach(ctx context.Context, target Target, after int32) *Generation {
	return newGeneration(c, ctx, source{target: target, isRetained: true}, after)
}

// Target names a generation: [ByID] or [ByKey].
type Target struct{ id, key string }

// ByID names a generation by the id that the service gave it.
func ByID(id string) Target { return Target{id: id} }

// ByKey names a generation by the idempotency key that it was asked for with.
func ByKey(key string) Target { return Target{key: key} }

// GetGeneration returns where a generation is: one that waits or runs, or has ended within the last minutes.
func (c *Client) GetGeneration(ctx context.Context, target Target) (*headracev1.GetGenerationResponse, error) {
	request := &headracev1.GetGenerationRequest{Target: &headracev1.GetGenerationRequest_GenerationId{GenerationId: target.id}}
	if target.key != "" {
		request.Target = &headracev1.GetGenerationRequest_IdempotencyKey{IdempotencyKey: target.key}
	}
	return c.generations.GetGeneration(ctx, request)
}

// CancelGeneration stops a generation, from whichever client it was begun, and returns the state that it is in. Its reader
// gets what was generated until then, the finish reason CANCELLED, usage, and no error. One that has ended stays as it
// ended, so that the call may be repeated.
func (c *Client) CancelGeneration(ctx context.Context, target Target) (headracev1.GenerationState, error) {
	request := &headracev1.CancelGenerationRequest{
		Target: &headracev1.CancelGenerationRequest_GenerationId{GenerationId: target.id},
	}
	if target.key != "" {
		request.Target = &headracev1.CancelGenerationRequest_IdempotencyKey{IdempotencyKey: target.key}
	}
	response, err := c.generations.CancelGeneration(ctx, request)
	return response.GetState(), err
}

// Models returns every model, ordered by id. The deadline is that of all pages together.
func (c *Client) Models(ctx context.Context) ([]*Model, error) {
	ctx, cancel := withTimeout(ctx, c.settings.unaryTimeout)
	defer cancel()
	var models []*Model
	request := &headracev1.ListModelsRequest{PageSize: modelsPageSize}
	for {
		page, err := c.models.ListModels(ctx, request)
		if err != nil {
			return nil, err
		}
		models = append(models, page.GetModels()...)
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			return models, nil
		}
	}
}

// Model returns one model by its id or an alias.
func (c *Client) Model(ctx context.Context, model string) (*Model, error) {
	response, err := c.models.GetModel(ctx, &headracev1.GetModelRequest{Model: model})
	return response.GetModel(), err
}

// DefaultModel returns the id of the first model that is ready, else of the first one.
func (c *Client) DefaultModel(ctx context.Context) (string, error) {
	models, err := c.Models(ctx)
	if err != nil {
		return "", err
	}
	for _, model := range models {
		if model.GetState() == headracev1.ModelState_MODEL_STATE_READY {
			return model.GetId(), nil
		}
	}
	if len(models) == 0 {
		return "", errorOf(status.New(codes.NotFound, "the service lists no models"))
	}
	return models[0].GetId(), nil
}
