// Package headrace is the Go client of the Headrace streaming inference service.
//
// A [Client] is one HTTP/2 channel; share it, it is safe for concurrent use. A [Generation] is one call, read once, by
// one goroutine, as an iterator:
//
//	client, err := headrace.New("127.0.0.1:50051")
//	...
//	defer client.Close()
//	request := headrace.NewRequest("default", headrace.Prompt("The river"))
//	for piece, err := range client.Generate(ctx, request).Deltas() {
//		...
//	}
//
// The context of a call carries its deadline and its cancel, and both reach the engine: it stops making tokens and its
// slot is free. Leaving the loop does the same. A failure is an [*Error]; errors.Is tells its kind ([ErrOverloaded],
// [ErrDeadline], ...), errors.As has the reason, the violated fields and the time to wait, and status.FromError the gRPC
// status.
//
// The messages themselves are those of the contract, in the package headracev1 (gen/headrace/v1).
package headrace

import headracev1 "github.com/headrace/headrace/clients/go/gen/headrace/v1"

// Version of this client, sent in the user agent.
const Version = "0.1.0"

// The messages that this package's functions take and return, by shorter names.
type (
	// Request is one generation request; [NewRequest] makes one, and so does a literal.
	Request = headracev1.GenerateRequest
	// Event is one event of a generation.
	Event = headracev1.GenerateResponse
	// Message is one message of a conversation.
	Message = headracev1.ChatMessage
	// Model is what the service tells of a model.
	Model = headracev1.Model
)
