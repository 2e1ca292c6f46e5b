// Package examples has programs that the documentation quotes. Its tests run every one of them against a real service, and
// hold the pages to them.
package examples

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/headrace/headrace/clients/go/internal/live"
)

// address is what the examples say; the tests put that of their own service in its place, and change nothing else.
const address = "127.0.0.1:50051"

const patience = 2 * time.Minute // of a build and a run, on a slow machine

// simulator makes a token each 20 ms, so that deadlines pass and cancels come in the middle.
var simulator = live.Shared{Flags: []string{"--simulator-token-ms", "20"}}

func TestMain(m *testing.M) {
	code := m.Run()
	simulator.Close()
	os.Exit(code)
}

// shown has what each example has to print, on any engine.
var shown = map[string]string{
	"first": `\S`,
	"chat":  `(?s)\S.*\nended with (LENGTH|STOP) in model \S+\n\d+ tokens, the first after [\d.]+(µs|ms|s)\n$`,
	"deadline": `(?s)^".*" in time, then headrace: DEADLINE_.*\n` +
		`\d+ tokens, ended with TIME_LIMIT\n$`,
	"cancel":   `^enough: ".+"\ncancelled after \d+ characters\n$`,
	"stop":     `^ended with CANCELLED after \d+ tokens\nit is GENERATION_STATE_CANCELLED\n$`,
	"failures": `^sampling.temperature must be .*\nsampling.top_p must be .*\nNotFound MODEL_NOT_FOUND .* retriable: false\nthe server's log has it as req_\w+\n$`,
	"again":    `^the same text: true of the same generation: true\nbehind event 2: \d+ of \d+ characters\n$`,
	"models":   `(?m)^\S+ \[default\] MODEL_STATE_READY \d+ \[MODEL_CAPABILITY_PROMPT.*\]$`,
	"tokens":   `^\d+ tokens: \[\d+( \d+)*\]\n$`,
	"secure":   `^simulator\n$`,
	"trace":    `^trace [0-9a-f]{32}, request req_\w+\n\[queue;dur=.*\]\n$`,
}

func TestEveryExampleDoesWhatItSays(t *testing.T) {
	folders, err := filepath.Glob("*/main.go")
	if err != nil || len(folders) != len(shown) {
		t.Fatalf("%d examples, and %d that are known: %v", len(folders), len(shown), err)
	}
	for _, path := range folders {
		name := filepath.Dir(path)
		t.Run(name, func(t *testing.T) {
			target, variables := "", []string(nil)
			if name == "secure" {
				c := live.NewCredentials(t)
				target = live.Service(t, c.Flags()...)
				variables = []string{"CA=" + c.CA, "CERT=" + c.Cert, "CERT_KEY=" + c.CertKey, "HEADRACE_API_KEY=" + c.APIKey}
			} else {
				target = simulator.Target(t)
			}
			output := runExample(t, path, target, variables)
			if !regexp.MustCompile(shown[name]).MatchString(output) {
				t.Errorf("it prints %q", output)
			}
		})
	}
}

// runExample builds one example with the address of a service, and returns what it prints.
func runExample(t *testing.T, path, target string, variables []string) string {
	t.Helper()
	source, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(source), address) != 1 {
		t.Fatalf("%s does not say %s once", path, address)
	}
	folder := t.TempDir()
	changed, overlay := filepath.Join(folder, "main.go"), filepath.Join(folder, "overlay.json")
	program := filepath.Join(folder, "program")
	whole, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	replaced, err := json.Marshal(map[string]any{"Replace": map[string]string{whole: changed}})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		changed: []byte(strings.Replace(string(source), address, target, 1)), overlay: replaced,
	} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	// Without symbols it links faster.
	build := exec.CommandContext(ctx, "go", "build", "-ldflags=-s -w", "-overlay", overlay, "-o", program, "./"+filepath.Dir(path))
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	run := exec.CommandContext(ctx, program)
	run.Env = append(os.Environ(), variables...)
	output, err := run.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	return string(output)
}

var (
	block = regexp.MustCompile("(?s)```go\n(.*?)```")
	named = regexp.MustCompile(`examples/(\w+)/main\.go`)
)

func TestThePagesQuoteTheExamples(t *testing.T) {
	root := live.Root()
	if root == "" {
		t.Skip("the pages are not here")
	}
	quoted := map[string]bool{}
	for _, page := range []string{"docs/clients/go.md", "clients/go/README.md"} {
		content, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}
		text, end := string(content), 0
		for _, place := range block.FindAllStringSubmatchIndex(text, -1) {
			example := "first" // the README's
			if names := named.FindAllStringSubmatch(text[end:place[0]], -1); len(names) > 0 {
				example = names[len(names)-1][1]
			}
			source, err := os.ReadFile(filepath.Join(example, "main.go"))
			if err != nil {
				t.Fatal(err)
			}
			if !quotes(string(source), text[place[2]:place[3]]) {
				t.Errorf("%s: not in examples/%s:\n%s", page, example, text[place[2]:place[3]])
			}
			quoted[example], end = true, place[1]
		}
	}
	for name := range shown {
		if !quoted[name] {
			t.Errorf("examples/%s is quoted nowhere", name)
		}
	}
}

// quotes tells whether lines stand in a file, one behind the other, as they are or a tab further in.
func quotes(source, lines string) bool {
	indented := "\t" + strings.ReplaceAll(strings.TrimSuffix(lines, "\n"), "\n", "\n\t") + "\n"
	indented = strings.ReplaceAll(indented, "\n\t\n", "\n\n")
	return strings.Contains("\n"+source, "\n"+lines) || strings.Contains("\n"+source, "\n"+indented)
}
