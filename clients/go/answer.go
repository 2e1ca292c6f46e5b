package headrace

import (
	"maps"
	"slices"
	"strings"

	headracev1 "github.com/headrace/headrace/clients/go/gen/headrace/v1"
)

// Answer is a whole generation, or what came of one that failed.
type Answer struct {
	// ID is the generation's, RequestID that of the request in the server's log.
	ID, RequestID string
	// Model is the resolved id.
	Model string
	// Choices are in the order of their indices.
	Choices []Choice
	// Usage is nil if the generation did not complete. A count that is unset is unknown.
	Usage *headracev1.Usage
	// Timing is the server's; nil if the generation did not complete.
	Timing *headracev1.Timing
}

// Choice is one of the answers to a request.
type Choice struct {
	Index           int32
	Text, Reasoning string
	// ToolCalls are in order; the last one of an answer that was cut may be cut as well.
	ToolCalls []*headracev1.ToolCall
	// FinishReason is "STOP", "LENGTH", "TOOL_CALLS" ...; empty if the choice did not end.
	FinishReason string
}

// Text returns the text of choice 0.
func (a *Answer) Text() string {
	if len(a.Choices) > 0 && a.Choices[0].Index == 0 {
		return a.Choices[0].Text
	}
	return ""
}

// Text reads the generation to its end and returns the text of choice 0. With an error it returns what came until then. A
// text that ended early is no error: [Generation.FinishReason] says LENGTH, TIME_LIMIT or CANCELLED.
func (g *Generation) Text() (string, error) {
	var text strings.Builder
	for piece, err := range g.Deltas() {
		if err != nil {
			return text.String(), err
		}
		text.WriteString(piece)
	}
	return text.String(), nil
}

// Collect reads the generation to its end and returns all of it. With an error it returns what came until then; the answer
// is never nil.
func (g *Generation) Collect() (*Answer, error) {
	parts := map[int32]*choiceParts{}
	var failure error
	for event, err := range g.Events() {
		if err != nil {
			failure = err
			break
		}
		if delta := event.GetDelta(); delta != nil {
			part(parts, delta.GetIndex()).add(delta)
		} else if finished := event.GetChoiceFinished(); finished != nil {
			part(parts, finished.GetIndex())
		}
	}
	answer := &Answer{
		ID:        g.id,
		RequestID: g.requestID,
		Model:     g.started.GetModel(),
		Usage:     g.Usage(),
		Timing:    g.Timing(),
	}
	for _, index := range slices.Sorted(maps.Keys(parts)) {
		answer.Choices = append(answer.Choices, parts[index].choice(index, g.FinishReason(index)))
	}
	return answer, failure
}

// choiceParts is what came of one choice until now.
type choiceParts struct {
	text, reasoning strings.Builder
	calls           map[int32]*callParts
}

type callParts struct {
	id, name  string
	arguments strings.Builder
}

func part(parts map[int32]*choiceParts, index int32) *choiceParts {
	if parts[index] == nil {
		parts[index] = &choiceParts{calls: map[int32]*callParts{}}
	}
	return parts[index]
}

func (p *choiceParts) add(delta *headracev1.ChoiceDelta) {
	p.text.WriteString(delta.GetText())
	p.reasoning.WriteString(delta.GetReasoningText())
	piece := delta.GetToolCall()
	if piece == nil {
		return
	}
	call := p.calls[piece.GetIndex()]
	if call == nil { // id and name come with the first piece alone
		call = &callParts{id: piece.GetId(), name: piece.GetFunctionName()}
		p.calls[piece.GetIndex()] = call
	}
	call.arguments.WriteString(piece.GetArgumentsFragment())
}

func (p *choiceParts) choice(index int32, finishReason string) Choice {
	choice := Choice{
		Index:        index,
		Text:         p.text.String(),
		Reasoning:    p.reasoning.String(),
		FinishReason: finishReason,
	}
	for _, index := range slices.Sorted(maps.Keys(p.calls)) {
		call := p.calls[index]
		choice.ToolCalls = append(choice.ToolCalls, &headracev1.ToolCall{
			Id:            call.id,
			FunctionName:  call.name,
			ArgumentsJson: call.arguments.String(),
		})
	}
	return choice
}
