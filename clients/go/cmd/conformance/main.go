// Command conformance carries out the scenarios of clients/conformance.yaml with this client's public interface: one a line
// as JSON on standard input, one answer a line on standard output, until the input ends.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/protobuf/encoding/protojson"

	headrace "github.com/headrace/headrace/clients/go"
	headracev1 "github.com/headrace/headrace/clients/go/gen/headrace/v1"
)

type scenario struct {
	Name      string          `json:"name"`
	Target    string          `json:"target"`
	Call      string          `json:"call"`
	Request   json.RawMessage `json:"request"`
	TimeoutMS float64         `json:"timeout_ms"`
	APIKey    string          `json:"api_key"`
	Retries   *bool           `json:"retries"`
	Act       struct {
		CancelAfterDeltas int `json:"cancel_after_deltas"`
		StopAfterDeltas   int `json:"stop_after_deltas"`
	} `json:"act"`
}

type answer struct {
	Name          string            `json:"name"`
	Status        string            `json:"status"`
	Reason        string            `json:"reason,omitempty"`
	Text          *string           `json:"text,omitempty"`
	Texts         map[string]string `json:"texts,omitempty"`
	Deltas        *int              `json:"deltas,omitempty"`
	Queued        *int              `json:"queued,omitempty"`
	FinishReason  string            `json:"finish_reason,omitempty"`
	FinishReasons map[string]string `json:"finish_reasons,omitempty"`
	PromptTokens  *int32            `json:"prompt_tokens,omitempty"`
	OutputTokens  *int32            `json:"output_tokens,omitempty"`
	GenerationID  string            `json:"generation_id,omitempty"`
	RequestID     string            `json:"request_id,omitempty"`
	Violations    []string          `json:"violations,omitempty"`
	RetryAfterMS  int64             `json:"retry_after_ms,omitempty"`
	Models        []string          `json:"models,omitempty"`
	State         string            `json:"state,omitempty"`
	ElapsedMS     int64             `json:"elapsed_ms"`
}

func main() {
	if err := answerAll(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func answerAll(in io.Reader, out io.Writer) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var asked scenario
			if err := json.Unmarshal(line, &asked); err != nil {
				return err
			}
			answer, err := carryOut(&asked)
			if err != nil {
				return fmt.Errorf("%s: %w", asked.Name, err)
			}
			if err := json.NewEncoder(out).Encode(answer); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// carryOut returns an error only for a scenario that cannot be understood.
func carryOut(asked *scenario) (*answer, error) {
	options := []headrace.Option{headrace.WithAPIKey(asked.APIKey)}
	if asked.Retries != nil && !*asked.Retries {
		options = append(options, headrace.WithoutRetries())
	}
	client, err := headrace.New(asked.Target, options...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ctx, cancel := context.WithCancel(context.Background())
	if asked.TimeoutMS > 0 {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(asked.TimeoutMS*float64(time.Millisecond)))
	}
	defer cancel()

	given := &answer{Name: asked.Name, Status: "OK"}
	began := time.Now()
	switch asked.Call {
	case "", "generate":
		err = generate(ctx, cancel, client, asked, given)
	case "models":
		var models []*headrace.Model
		models, err = client.Models(ctx)
		for _, model := range models {
			given.Models = append(given.Models, model.GetId())
		}
	case "get_generation", "cancel_generation":
		err = lookUp(ctx, client, asked, given)
	default:
		return nil, fmt.Errorf("no such call: %q", asked.Call)
	}
	given.ElapsedMS = time.Since(began).Milliseconds()
	if err != nil {
		return given, given.fail(err)
	}
	return given, nil
}

func generate(
	ctx context.Context, cancel context.CancelFunc, client *headrace.Client, asked *scenario, given *answer,
) error {
	request := &headrace.Request{}
	if err := protojson.Unmarshal(asked.Request, request); err != nil {
		return err
	}
	texts := map[int32]*strings.Builder{0: {}}
	given.Deltas, given.Queued = new(int), new(int)
	generation := client.Generate(ctx, request)
	var failure error
	for event, err := range generation.Events() {
		if err != nil {
			failure = err
			break
		}
		if event.GetQueued() != nil {
			*given.Queued++
		}
		delta := event.GetDelta()
		if delta == nil {
			continue
		}
		*given.Deltas++
		if texts[delta.GetIndex()] == nil {
			texts[delta.GetIndex()] = &strings.Builder{}
		}
		texts[delta.GetIndex()].WriteString(delta.GetText())
		switch *given.Deltas {
		case asked.Act.CancelAfterDeltas:
			cancel()
		case asked.Act.StopAfterDeltas:
			if _, err := client.CancelGeneration(ctx, headrace.ByID(generation.ID())); err != nil {
				return err
			}
		}
	}

	given.GenerationID, given.RequestID = generation.ID(), generation.RequestID()
	given.FinishReason = generation.FinishReason(0)
	given.Texts, given.FinishReasons = map[string]string{}, map[string]string{}
	for index, text := range texts {
		name, whole := strconv.Itoa(int(index)), text.String()
		given.Texts[name] = whole
		if index == 0 {
			given.Text = &whole
		}
		if reason := generation.FinishReason(index); reason != "" {
			given.FinishReasons[name] = reason
		}
	}
	if usage := generation.Usage(); usage != nil {
		given.PromptTokens, given.OutputTokens = usage.PromptTokenCount, usage.OutputTokenCount
	}
	return failure
}

func lookUp(ctx context.Context, client *headrace.Client, asked *scenario, given *answer) error {
	request := &headracev1.GetGenerationRequest{} // of the same shape for both calls
	if err := protojson.Unmarshal(asked.Request, request); err != nil {
		return err
	}
	target := headrace.ByID(request.GetGenerationId())
	if key := request.GetIdempotencyKey(); key != "" {
		target = headrace.ByKey(key)
	}
	var state headracev1.GenerationState
	var err error
	if asked.Call == "cancel_generation" {
		state, err = client.CancelGeneration(ctx, target)
	} else {
		var found *headracev1.GetGenerationResponse
		found, err = client.GetGeneration(ctx, target)
		state = found.GetState()
	}
	if err == nil {
		given.State = strings.TrimPrefix(state.String(), "GENERATION_STATE_")
	}
	return err
}

// fail writes down a failed call. It returns errors that are none.
func (a *answer) fail(err error) error {
	var failed *headrace.Error
	if !errors.As(err, &failed) {
		return err
	}
	a.Status, a.Reason = code.Code(failed.Code).String(), string(failed.Reason)
	if errors.Is(err, headrace.ErrProtocol) {
		a.Reason = "PROTOCOL"
	}
	for _, violation := range failed.Violations {
		a.Violations = append(a.Violations, violation.Field)
	}
	a.RetryAfterMS = failed.RetryAfter.Milliseconds()
	if failed.RequestID != "" {
		a.RequestID = failed.RequestID
	}
	return nil
}
