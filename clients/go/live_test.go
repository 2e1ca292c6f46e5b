package headrace_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	headrace "github.com/headrace/headrace/clients/go"
	headracev1 "github.com/headrace/headrace/clients/go/gen/headrace/v1"
	"github.com/headrace/headrace/clients/go/internal/live"
)

// simulator is a real service that all tests here share.
var simulator live.Shared

func TestMain(m *testing.M) {
	code := m.Run()
	simulator.Close()
	os.Exit(code)
}

// plays is a prompt that scripts the simulator.
func plays(script string, arguments ...any) headrace.RequestOption {
	return headrace.Prompt("simulate: " + fmt.Sprintf(script, arguments...))
}

func liveClient(t *testing.T, target string, options ...headrace.Option) *headrace.Client {
	t.Helper()
	client, err := headrace.New(target, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func TestManyGenerationsOverOneConnection(t *testing.T) {
	t.Parallel()
	client := liveClient(t, simulator.Target(t))
	ctx := within(t)
	var all sync.WaitGroup
	for number := range 16 {
		all.Go(func() {
			token := fmt.Sprintf("%d ", number)
			request := headrace.NewRequest("default", plays(`{"tokens": [%q], "output_tokens": 50, "token_ms": 1}`, token))
			answer, err := client.Generate(ctx, request).Collect()
			if err != nil || answer.Text() != strings.Repeat(token, 50) || answer.Usage.GetOutputTokenCount() != 50 {
				t.Errorf("%d: %v, %+v", number, err, answer)
			}
		})
	}
	all.Wait()
}

func TestAGenerationThatIsLeftEndsAtTheServer(t *testing.T) {
	t.Parallel()
	client := liveClient(t, simulator.Target(t))
	ctx := within(t)
	request := headrace.NewRequest("default", plays(`{"tokens": ["t"], "token_ms": 20}`), headrace.MaxOutputTokens(4000))
	generation := client.Generate(ctx, request)
	for _, err := range generation.Deltas() {
		if err != nil {
			t.Fatal(err)
		}
		break
	}
	for {
		found, err := client.GetGeneration(ctx, headrace.ByID(generation.ID()))
		if err != nil {
			t.Fatal(err)
		}
		if found.GetState() == headracev1.GenerationState_GENERATION_STATE_CANCELLED {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestAReaderThatStallsIsToldAndHoldsUpNobodyElse(t *testing.T) {
	t.Parallel()
	client := liveClient(t, live.Service(t, "--full-reader-timeout-s", "0.5"))
	ctx := within(t)
	token := strings.Repeat("x", 2000)
	request := headrace.NewRequest("default", plays(`{"tokens": [%q]}`, token), headrace.MaxOutputTokens(4000))
	generation := client.Generate(ctx, request)
	isStalled := true
	var failure error
	for _, failure = range generation.Deltas() {
		if !isStalled {
			continue
		}
		isStalled = false
		for { // does not read until the server has stopped it; another generation gets through meanwhile
			found, err := client.GetGeneration(ctx, headrace.ByID(generation.ID()))
			if err != nil {
				t.Fatal(err)
			}
			if found.GetState() == headracev1.GenerationState_GENERATION_STATE_FAILED {
				break
			}
			other := headrace.NewRequest("default", plays(`{"tokens": ["t"], "output_tokens": 3}`))
			if text, err := client.Generate(ctx, other).Text(); text != "ttt" || err != nil {
				t.Fatalf("%q, %v", text, err)
			}
		}
	}
	if !errors.Is(failure, headrace.ErrConsumerTooSlow) {
		t.Errorf("%v", failure)
	}
}

func TestAConnectionThatIsCutCostsNothingWithAKey(t *testing.T) {
	t.Parallel()
	relay := newRelay(t, simulator.Target(t))
	client := liveClient(t, relay.address)
	request := headrace.NewRequest("default",
		plays(`{"tokens": ["a ", "b ", "c "], "output_tokens": 60, "token_ms": 10}`),
		headrace.IdempotencyKey("cut-"+rand.Text()))
	generation := client.Generate(within(t), request)
	var text strings.Builder
	pieces := 0
	for piece, err := range generation.Deltas() {
		if err != nil {
			t.Fatal(err)
		}
		text.WriteString(piece)
		if pieces++; pieces == 5 || pieces == 15 {
			relay.cut()
		}
	}
	if text.String() != strings.Repeat("a b c ", 20) {
		t.Errorf("%q", text.String())
	}
	if generation.Rejoined() < 2 || generation.FinishReason(0) != "STOP" {
		t.Errorf("joined %d times, ended with %q", generation.Rejoined(), generation.FinishReason(0))
	}
}

func TestAKeyOfAnotherRequestIsRefused(t *testing.T) {
	t.Parallel()
	client := liveClient(t, simulator.Target(t))
	key := headrace.IdempotencyKey("other-" + rand.Text())
	script := plays(`{"tokens": ["a"], "output_tokens": 2}`)
	if _, err := client.Generate(within(t), headrace.NewRequest("default", script, key)).Text(); err != nil {
		t.Fatal(err)
	}
	_, err := client.Generate(within(t), headrace.NewRequest("default", script, key, headrace.Seed(9))).Text()
	if !errors.Is(err, headrace.ErrIdempotencyMismatch) || !errors.Is(err, headrace.ErrInvalidRequest) {
		t.Errorf("%v", err)
	}
	_, err = client.Attach(within(t), headrace.ByKey("nobody's"), 0).Text()
	if !errors.Is(err, headrace.ErrNotFound) {
		t.Errorf("%v", err)
	}
}

func TestTheOtherServicesHaveTheClientsErrors(t *testing.T) {
	t.Parallel()
	tokens := headracev1.NewTokenizeServiceClient(liveClient(t, simulator.Target(t)).Conn())
	_, err := tokens.Tokenize(context.Background(), &headracev1.TokenizeRequest{Model: "nobody"})
	var failed *headrace.Error
	if !errors.As(err, &failed) || failed.RequestID == "" {
		t.Errorf("%#v", err)
	}
	model, err := liveClient(t, simulator.Target(t)).Model(context.Background(), "default")
	if err != nil || model.GetId() == "" {
		t.Errorf("%v, %v", model, err)
	}
}

func TestTLSWithAClientCertificateAndAKey(t *testing.T) {
	t.Parallel()
	c := live.NewCredentials(t)
	target := live.Service(t, c.Flags()...)
	for name, test := range map[string]struct {
		files  headrace.TLSFiles
		key    string
		wanted error
	}{
		"all of it":                {files: headrace.TLSFiles{CA: c.CA, Cert: c.Cert, Key: c.CertKey}, key: c.APIKey},
		"a wrong key":              {files: headrace.TLSFiles{CA: c.CA, Cert: c.Cert, Key: c.CertKey}, key: "hr_0123abcd_no", wanted: headrace.ErrAccessDenied},
		"no key":                   {files: headrace.TLSFiles{CA: c.CA, Cert: c.Cert, Key: c.CertKey}, wanted: headrace.ErrAccessDenied},
		"no client certificate":    {files: headrace.TLSFiles{CA: c.CA}, key: c.APIKey, wanted: headrace.ErrUnavailable},
		"the system's authorities": {files: headrace.TLSFiles{Cert: c.Cert, Key: c.CertKey}, key: c.APIKey, wanted: headrace.ErrUnavailable},
	} {
		config, err := test.files.Config()
		if err != nil {
			t.Fatal(err)
		}
		client := liveClient(t, target, headrace.WithTLS(config), headrace.WithAPIKey(test.key), headrace.WithoutRetries())
		if _, err := client.Models(within(t)); !errors.Is(err, test.wanted) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// relay stands between client and service, and cuts what is open.
type relay struct {
	address string
	mutex   sync.Mutex
	open    []net.Conn
}

func newRelay(t *testing.T, target string) *relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{address: listener.Addr().String()}
	t.Cleanup(func() { _ = listener.Close(); r.cut() })
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", target)
			if err != nil {
				_ = near.Close()
				continue
			}
			r.mutex.Lock()
			r.open = append(r.open, near, far)
			r.mutex.Unlock()
			go func() { _, _ = io.Copy(far, near); _ = far.Close() }()
			go func() { _, _ = io.Copy(near, far); _ = near.Close() }()
		}
	}()
	return r
}

func (r *relay) cut() {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	for _, conn := range r.open {
		_ = conn.Close()
	}
	r.open = nil
}
