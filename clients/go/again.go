package headrace

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
)

const (
	firstPause   = 100 * time.Millisecond
	longestPause = 2 * time.Second
	// Of failures that may be a fault that stays: an event that cannot be read, a proxy's own error.
	maxDoubtfulTries = 3
	maxUnseenTries   = 2
	// While nothing has come: who asks a server that is not there is told so within seconds.
	maxFirstTries = 3
)

// mayRepeat tells whether anything can be gained by another call after one that has failed. A server that is asked says
// why, in a reason; what is told without one is the transport's.
func (c *Client) mayRepeat(ctx context.Context, failed *Error) bool {
	return c.settings.retries && failed.Reason == "" && ctx.Err() == nil && !c.isClosed.Load()
}

// wasUnseen tells whether a call of which nothing came may have been looked at by nobody: a server that stops says CANCELLED
// to those that it has accepted and not begun.
func wasUnseen(failed *Error) bool { return failed.Code == codes.Canceled }

// goesOn tells whether this generation is asked for again after its call has failed: nobody has looked at it, or it is
// retained and the connection was lost, not the generation.
func (g *Generation) goesOn(ctx context.Context, failed *Error) bool {
	if !g.client.mayRepeat(ctx, failed) {
		return false
	}
	hasBegun := g.order.last > g.order.after
	if !hasBegun && wasUnseen(failed) && g.tries < maxUnseenTries {
		return true
	}
	if !g.source.canFind(g.id) {
		return false
	}
	switch failed.Code {
	case codes.Unavailable:
		return hasBegun || g.tries < maxFirstTries
	case codes.Unknown, codes.Internal, codes.Canceled:
		return g.call != nil && g.tries < maxDoubtfulTries // a call that cannot be made cannot be made again
	default:
		return false
	}
}

// pause waits before the next try, each time longer, and returns whether there is time for one.
func pause(ctx context.Context, tries int) bool {
	wait := min(longestPause, firstPause<<min(tries, 10))
	wait = time.Duration(float64(wait) * (0.5 + rand.Float64()/2))
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= wait {
		return false
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
