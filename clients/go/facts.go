package headrace

import (
	"strings"

	"google.golang.org/grpc/metadata"

	headracev1 "github.com/headrace/headrace/clients/go/gen/headrace/v1"
)

const finishReasonPrefix = "FINISH_REASON_"

// ID is the generation's, for [ByID]; known with the first event.
func (g *Generation) ID() string { return g.id }

// RequestID finds the request in the server's log; known with the first event, or with the error.
func (g *Generation) RequestID() string { return g.requestID }

// Started is the event with the resolved model and the seed in effect; nil until it has come.
func (g *Generation) Started() *headracev1.GenerationStarted { return g.started }

// Usage has the token counts; nil until the generation has completed. A count that is unset is unknown.
func (g *Generation) Usage() *headracev1.Usage { return g.completed.GetUsage() }

// Timing says where the time went, by the server's clock; nil until the generation has completed.
func (g *Generation) Timing() *headracev1.Timing { return g.completed.GetTiming() }

// FinishReason says why a choice ended: "STOP", "LENGTH", "TIME_LIMIT", "CANCELLED" ...; empty while it has not.
func (g *Generation) FinishReason(choice int32) string {
	finished := g.finished[choice]
	if finished == nil {
		return ""
	}
	return strings.TrimPrefix(finished.GetReason().String(), finishReasonPrefix)
}

// Rejoined counts how often the connection was lost and the generation joined again.
func (g *Generation) Rejoined() int { return g.rejoined }

// Header is the initial metadata, which comes with the first event: x-ratelimit-... tells how limits stand.
func (g *Generation) Header() metadata.MD { return g.header }

// Trailer is the trailing metadata, also of a call that failed: server-timing tells where the time went.
func (g *Generation) Trailer() metadata.MD { return g.trailer }
