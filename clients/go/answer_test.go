package headrace_test

import (
	"errors"
	"testing"

	headrace "github.com/headrace/headrace/clients/go"
	headracev1 "github.com/headrace/headrace/clients/go/gen/headrace/v1"
)

func ofChoice(index int32, text string) *headrace.Event {
	return deltaOf(&headracev1.ChoiceDelta{Index: index, Content: &headracev1.ChoiceDelta_Text{Text: text}})
}

func reasoning(text string) *headrace.Event {
	return deltaOf(&headracev1.ChoiceDelta{Content: &headracev1.ChoiceDelta_ReasoningText{ReasoningText: text}})
}

func toolCall(index int32, id, name, arguments string) *headrace.Event {
	piece := &headracev1.ToolCallDelta{Index: index, Id: id, FunctionName: name, ArgumentsFragment: arguments}
	return deltaOf(&headracev1.ChoiceDelta{Content: &headracev1.ChoiceDelta_ToolCall{ToolCall: piece}})
}

func TestAnAnswerHasAllThatCame(t *testing.T) {
	t.Parallel()
	end := finished(headracev1.FinishReason_FINISH_REASON_LENGTH)
	end.GetChoiceFinished().Index = 2
	fake := serve(t, numbered(0,
		started(), ofChoice(2, "c"), ofChoice(0, "a"), ofChoice(2, "C"), ofChoice(0, "A"), stopped(), end, completed()))
	answer, err := fake.client(t).Generate(within(t), hello()).Collect()
	if err != nil {
		t.Fatal(err)
	}
	if answer.Text() != "aA" || answer.ID != "gen-1" || answer.RequestID != "req-1" || answer.Model != "fake" {
		t.Errorf("%+v", answer)
	}
	if len(answer.Choices) != 2 || answer.Choices[1].Index != 2 || answer.Choices[1].Text != "cC" {
		t.Fatalf("%+v", answer.Choices)
	}
	if answer.Choices[0].FinishReason != "STOP" || answer.Choices[1].FinishReason != "LENGTH" {
		t.Errorf("%+v", answer.Choices)
	}
	if answer.Usage.GetOutputTokenCount() != 2 || answer.Timing == nil {
		t.Errorf("%v, %v", answer.Usage, answer.Timing)
	}
}

func TestReasoningAndToolCallsAreToldApart(t *testing.T) {
	t.Parallel()
	fake := serve(t, numbered(0,
		started(), reasoning("Let me "), reasoning("see."),
		toolCall(0, "call-1", "weather", ""), toolCall(0, "", "", `{"city": `), toolCall(1, "call-2", "time", `{}`),
		toolCall(0, "", "", `"Bern"}`), finished(headracev1.FinishReason_FINISH_REASON_TOOL_CALLS), completed()))
	answer, err := fake.client(t).Generate(within(t), hello()).Collect()
	if err != nil {
		t.Fatal(err)
	}
	choice := answer.Choices[0]
	if choice.Text != "" || choice.Reasoning != "Let me see." || len(choice.ToolCalls) != 2 {
		t.Fatalf("%+v", choice)
	}
	if first := choice.ToolCalls[0]; first.GetId() != "call-1" || first.GetFunctionName() != "weather" || first.GetArgumentsJson() != `{"city": "Bern"}` {
		t.Errorf("%v", first)
	}
	if second := choice.ToolCalls[1]; second.GetId() != "call-2" || second.GetArgumentsJson() != `{}` {
		t.Errorf("%v", second)
	}
}

func TestAnAnswerThatBrokeHasWhatCame(t *testing.T) {
	t.Parallel()
	fake := serve(t, numbered(0, started(), delta("half"), lost), script{lost})
	answer, err := fake.client(t).Generate(within(t), hello()).Collect()
	if answer.Text() != "half" || answer.Usage != nil || answer.Choices[0].FinishReason != "" || !errors.Is(err, headrace.ErrUnavailable) {
		t.Errorf("%+v, %v", answer, err)
	}
	answer, err = fake.client(t, headrace.WithoutRetries()).Generate(within(t), hello()).Collect()
	if answer.Text() != "" || len(answer.Choices) != 0 || err == nil {
		t.Errorf("%+v, %v", answer, err)
	}
}

func TestAFinishReasonOfANewerServerIsANumber(t *testing.T) {
	t.Parallel()
	fake := serve(t, numbered(0, started(), finished(77), completed()))
	generation := fake.client(t).Generate(within(t), hello())
	if _, err := generation.Text(); err != nil || generation.FinishReason(0) != "77" {
		t.Errorf("%q, %v", generation.FinishReason(0), err)
	}
}
