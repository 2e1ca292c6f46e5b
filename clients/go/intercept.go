package headrace

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

const authorization = "authorization"

// interceptUnary gives every unary call what this client's calls have: a deadline, metadata, and a typed error.
func (c *Client) interceptUnary(
	ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
	options ...grpc.CallOption,
) error {
	ctx, cancel := withTimeout(ctx, c.settings.unaryTimeout)
	defer cancel()
	outgoing := c.settings.outgoing(ctx)
	for tries := 0; ; tries++ {
		err := invoke(outgoing, method, request, reply, conn, options...)
		if err == nil {
			return nil
		}
		failed := errorFrom(ctx, err)
		if !c.mayRepeat(ctx, failed) || !wasUnseen(failed) || tries == maxUnseenTries || !pause(ctx, tries) {
			return failed
		}
	}
}

// interceptStream gives every stream its metadata; deadline and errors are the [Generation]'s.
func (c *Client) interceptStream(
	ctx context.Context, description *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer,
	options ...grpc.CallOption,
) (grpc.ClientStream, error) {
	return open(c.settings.outgoing(ctx), description, conn, method, options...)
}

// outgoing returns the context with the metadata of one call. What the caller put into it is kept.
func (s *settings) outgoing(ctx context.Context) context.Context {
	for _, headers := range s.headers {
		for key, value := range headers(ctx) {
			ctx = metadata.AppendToOutgoingContext(ctx, key, value)
		}
	}
	if md, _ := metadata.FromOutgoingContext(ctx); s.apiKey != "" && len(md.Get(authorization)) == 0 {
		ctx = metadata.AppendToOutgoingContext(ctx, authorization, "Bearer "+s.apiKey)
	}
	return ctx
}

// withTimeout returns a context that has a deadline: its own, or one in that time.
func withTimeout(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, timeout)
}
