package headrace_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"

	headrace "github.com/headrace/headrace/clients/go"
	headracev1 "github.com/headrace/headrace/clients/go/gen/headrace/v1"
)

func TestModelsOfAllPages(t *testing.T) {
	t.Parallel()
	fake := serve(t, whole())
	fake.models = pages([]string{"a", "b"}, []string{"c"})
	client := fake.client(t)
	models, err := client.Models(within(t))
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, model := range models {
		ids = append(ids, model.GetId())
	}
	if !slices.Equal(ids, []string{"a", "b", "c"}) {
		t.Errorf("%v", ids)
	}
	if id, err := client.DefaultModel(within(t)); id != "b" || err != nil {
		t.Errorf("%q, %v", id, err)
	}
}

// pages returns the pages of a list; the second model is the first one that is ready.
func pages(ids ...[]string) []*headracev1.ListModelsResponse {
	var found []*headracev1.ListModelsResponse
	state := headracev1.ModelState_MODEL_STATE_LOADING
	for number, page := range ids {
		answer := &headracev1.ListModelsResponse{}
		for _, id := range page {
			answer.Models = append(answer.Models, &headracev1.Model{Id: id, State: state})
			state = headracev1.ModelState_MODEL_STATE_READY
		}
		if number < len(ids)-1 {
			answer.NextPageToken = "behind " + page[len(page)-1]
		}
		found = append(found, answer)
	}
	return found
}

func TestEveryCallHasTheKeyAndTheHeaders(t *testing.T) {
	t.Parallel()
	type traceKey struct{}
	fake := serve(t, whole())
	fake.models = pages([]string{"a"})
	client := fake.client(t, headrace.WithAPIKey("hr_1"), headrace.WithHeaders(func(ctx context.Context) map[string]string {
		parent, _ := ctx.Value(traceKey{}).(string)
		return map[string]string{"traceparent": parent}
	}))
	ctx := metadata.AppendToOutgoingContext(context.WithValue(within(t), traceKey{}, "00-1-2-01"), "x-own", "mine")
	if _, err := client.Generate(ctx, hello()).Text(); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Models(ctx); err != nil {
		t.Fatal(err)
	}
	for _, seen := range []*call{fake.call(0), fake.unary[0]} {
		for name, wanted := range map[string]string{"authorization": "Bearer hr_1", "traceparent": "00-1-2-01", "x-own": "mine"} {
			if values := seen.metadata.Get(name); !slices.Equal(values, []string{wanted}) {
				t.Errorf("%s: %q", name, values)
			}
		}
		if agent := seen.metadata.Get("user-agent"); len(agent) != 1 || !strings.HasPrefix(agent[0], "headrace-go/"+headrace.Version) {
			t.Errorf("user-agent %q", agent)
		}
	}
}

func TestCredentialsOfTheContextTakeThePlaceOfTheClients(t *testing.T) {
	t.Parallel()
	fake := serve(t, whole())
	ctx := metadata.AppendToOutgoingContext(within(t), "authorization", "Bearer other")
	if _, err := fake.client(t, headrace.WithAPIKey("hr_1")).Generate(ctx, hello()).Text(); err != nil {
		t.Fatal(err)
	}
	if values := fake.call(0).metadata.Get("authorization"); !slices.Equal(values, []string{"Bearer other"}) {
		t.Errorf("%q", values)
	}
}

func TestAKeyThatCannotBeSentIsRefusedAndNotShown(t *testing.T) {
	t.Parallel()
	_, err := headrace.New("127.0.0.1:1", headrace.WithAPIKey("hr_secret\n"))
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("%v", err)
	}
}

func TestFilesThatMakeNoTLSAreNamed(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, files := range []headrace.TLSFiles{{CA: empty}, {CA: empty + ".gone"}, {Cert: empty}, {Key: empty}} {
		if _, err := files.Config(); err == nil {
			t.Errorf("%+v makes a config", files)
		}
	}
	if config, err := (headrace.TLSFiles{ServerName: "llm.internal"}).Config(); err != nil || config.ServerName != "llm.internal" {
		t.Errorf("%v, %v", config, err)
	}
}
