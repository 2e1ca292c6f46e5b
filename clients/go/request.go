package headrace

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	headracev1 "github.com/headrace/headrace/clients/go/gen/headrace/v1"
)

// RequestOption sets something in a request. Those here are the usual ones; a function of one's own sets any other field.
type RequestOption func(*Request)

// NewRequest returns a request for a model, by its id or an alias. It needs one input: [Prompt], [Chat] or [Tokens].
// Ranges are checked by the service, which names all violations at once.
func NewRequest(model string, options ...RequestOption) *Request {
	request := &Request{Model: model}
	for _, option := range options {
		option(request)
	}
	return request
}

// Prompt is raw text to continue.
func Prompt(text string) RequestOption {
	return func(r *Request) { r.Input = &headracev1.GenerateRequest_Prompt{Prompt: text} }
}

// Tokens are token ids to continue, in the model's own vocabulary.
func Tokens(ids ...int32) RequestOption {
	return func(r *Request) {
		r.Input = &headracev1.GenerateRequest_Tokens{Tokens: &headracev1.TokenIds{Ids: ids}}
	}
}

// Chat is a conversation, oldest message first: [System], [User], [Assistant], [ToolResult].
func Chat(messages ...*Message) RequestOption {
	return func(r *Request) {
		r.Input = &headracev1.GenerateRequest_Chat{Chat: &headracev1.ChatInput{Messages: messages}}
	}
}

// System is a message of instructions.
func System(text string) *Message { return message(headracev1.Role_ROLE_SYSTEM, text) }

// Developer is a message of the developer's instructions.
func Developer(text string) *Message { return message(headracev1.Role_ROLE_DEVELOPER, text) }

// User is a message of the person.
func User(text string) *Message { return message(headracev1.Role_ROLE_USER, text) }

// Assistant is an earlier message of the model.
func Assistant(text string) *Message { return message(headracev1.Role_ROLE_ASSISTANT, text) }

// ToolResult is what a tool call that the model made has given.
func ToolResult(callID, text string) *Message {
	result := message(headracev1.Role_ROLE_TOOL, text)
	result.ToolCallId = callID
	return result
}

func message(role headracev1.Role, text string) *Message {
	part := &headracev1.ContentPart{Part: &headracev1.ContentPart_Text{Text: text}}
	return &Message{Role: role, Content: []*headracev1.ContentPart{part}}
}

// Tools are functions that the model may call, in a conversation: give it after [Chat].
func Tools(functions ...*headracev1.FunctionTool) RequestOption {
	return func(r *Request) {
		if chat := r.GetChat(); chat != nil {
			for _, function := range functions {
				kind := &headracev1.Tool_Function{Function: function}
				chat.Tools = append(chat.Tools, &headracev1.Tool{Kind: kind})
			}
		}
	}
}

// MaxOutputTokens ends the output after so many tokens, with the finish reason LENGTH.
func MaxOutputTokens(tokens int32) RequestOption {
	return func(r *Request) { sampling(r).MaxOutputTokens = &tokens }
}

// Temperature is 0 (greedy) to 2.
func Temperature(value float32) RequestOption {
	return func(r *Request) { sampling(r).Temperature = &value }
}

// TopP is above 0 and at most 1.
func TopP(value float32) RequestOption { return func(r *Request) { sampling(r).TopP = &value } }

// Seed makes sampling repeatable, as far as the engine can.
func Seed(seed int64) RequestOption { return func(r *Request) { sampling(r).Seed = &seed } }

// Stop ends the output where one of the texts would begin.
func Stop(sequences ...string) RequestOption {
	return func(r *Request) {
		if r.Stop == nil {
			r.Stop = &headracev1.StopCriteria{}
		}
		r.Stop.Sequences = append(r.Stop.Sequences, sequences...)
	}
}

// JSONSchema holds the output to a JSON Schema, given as JSON text.
func JSONSchema(schema string) RequestOption {
	return func(r *Request) {
		kind := &headracev1.OutputConstraint_JsonSchema{JsonSchema: schema}
		r.Constraint = &headracev1.OutputConstraint{Kind: kind}
	}
}

// ChoiceCount asks for so many independent answers.
func ChoiceCount(count int32) RequestOption { return func(r *Request) { r.ChoiceCount = &count } }

// Batch is for work that nobody waits for: it takes a slot when no interactive request wants one.
func Batch() RequestOption {
	return func(r *Request) { r.Priority = headracev1.Priority_PRIORITY_BATCH }
}

// TimeLimit ends the answer early and well, with usage and the finish reason TIME_LIMIT. The context's deadline stays the
// hard one.
func TimeLimit(limit time.Duration) RequestOption {
	return func(r *Request) { r.TimeLimit = durationpb.New(limit) }
}

// QueueEvents asks for events while the request waits for a slot. gRPC repeats such a call only until the first of them.
func QueueEvents() RequestOption {
	return func(r *Request) {
		if r.Output == nil {
			r.Output = &headracev1.OutputOptions{}
		}
		r.Output.QueueEvents = true
	}
}

// EndUser is an id for the server's log and trace.
func EndUser(id string) RequestOption { return func(r *Request) { r.EndUser = id } }

// IdempotencyKey makes a repetition the same generation: it runs once, and a connection that is lost is made again.
func IdempotencyKey(key string) RequestOption {
	return func(r *Request) { r.IdempotencyKey = key }
}

// Retain keeps the events for that time behind the end of the generation.
func Retain(keep time.Duration) RequestOption {
	return func(r *Request) { retention(r).RetainFor = durationpb.New(keep) }
}

// ContinueOnDisconnect runs the generation to its end though nobody reads.
func ContinueOnDisconnect() RequestOption {
	return func(r *Request) { retention(r).ContinueOnDisconnect = true }
}

func sampling(r *Request) *headracev1.SamplingParams {
	if r.Sampling == nil {
		r.Sampling = &headracev1.SamplingParams{}
	}
	return r.Sampling
}

func retention(r *Request) *headracev1.RetentionPolicy {
	if r.Retention == nil {
		r.Retention = &headracev1.RetentionPolicy{}
	}
	return r.Retention
}
