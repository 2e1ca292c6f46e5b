package headrace_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	headrace "github.com/headrace/headrace/clients/go"
	headracev1 "github.com/headrace/headrace/clients/go/gen/headrace/v1"
)

func TestRequestsAreWhatTheirOptionsSay(t *testing.T) {
	t.Parallel()
	weather := &headracev1.FunctionTool{Name: "weather", ParametersJsonSchema: `{"type": "object"}`}
	for name, test := range map[string]struct {
		options []headrace.RequestOption
		wanted  string
	}{
		"prompt": {[]headrace.RequestOption{headrace.Prompt("hi")}, `{"prompt": "hi"}`},
		"tokens": {[]headrace.RequestOption{headrace.Tokens(1, 2)}, `{"tokens": {"ids": [1, 2]}}`},
		"chat": {
			[]headrace.RequestOption{headrace.Chat(
				headrace.System("a"), headrace.Developer("b"), headrace.User("c"), headrace.Assistant("d"),
				headrace.ToolResult("call-1", "e"),
			), headrace.Tools(weather)},
			`{"chat": {"messages": [
				{"role": "ROLE_SYSTEM", "content": [{"text": "a"}]}, {"role": "ROLE_DEVELOPER", "content": [{"text": "b"}]},
				{"role": "ROLE_USER", "content": [{"text": "c"}]}, {"role": "ROLE_ASSISTANT", "content": [{"text": "d"}]},
				{"role": "ROLE_TOOL", "content": [{"text": "e"}], "toolCallId": "call-1"}],
			 "tools": [{"function": {"name": "weather", "parametersJsonSchema": "{\"type\": \"object\"}"}}]}}`,
		},
		"sampling": {
			[]headrace.RequestOption{
				headrace.MaxOutputTokens(0), headrace.Temperature(0), headrace.TopP(0.5), headrace.Seed(-1),
			},
			`{"sampling": {"maxOutputTokens": 0, "temperature": 0, "topP": 0.5, "seed": "-1"}}`,
		},
		"stop": {
			[]headrace.RequestOption{headrace.Stop("a", "b"), headrace.Stop("c")}, `{"stop": {"sequences": ["a", "b", "c"]}}`,
		},
		"what else": {
			[]headrace.RequestOption{
				headrace.JSONSchema("{}"), headrace.ChoiceCount(2), headrace.Batch(), headrace.TimeLimit(1500 * time.Millisecond),
				headrace.QueueEvents(), headrace.EndUser("ann"),
			},
			`{"constraint": {"jsonSchema": "{}"}, "choiceCount": 2, "priority": "PRIORITY_BATCH", "timeLimit": "1.500s",
			  "output": {"queueEvents": true}, "endUser": "ann"}`,
		},
		"retention": {
			[]headrace.RequestOption{
				headrace.IdempotencyKey("k"), headrace.Retain(time.Minute), headrace.ContinueOnDisconnect(),
			},
			`{"idempotencyKey": "k", "retention": {"retainFor": "60s", "continueOnDisconnect": true}}`,
		},
		"a function of one's own": {
			[]headrace.RequestOption{func(r *headrace.Request) { r.EndUser = "bob" }}, `{"endUser": "bob"}`,
		},
	} {
		wanted := &headrace.Request{}
		if err := protojson.Unmarshal([]byte(test.wanted), wanted); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		wanted.Model = "m"
		if request := headrace.NewRequest("m", test.options...); !proto.Equal(request, wanted) {
			t.Errorf("%s: %v is not %v", name, request, wanted)
		}
	}
}
