package headrace

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
)

const (
	// DefaultGenerationTimeout is the deadline of a generation whose context has none.
	DefaultGenerationTimeout = 600 * time.Second
	// DefaultUnaryTimeout is the deadline of any other call whose context has none.
	DefaultUnaryTimeout = 10 * time.Second
)

// Option says how a [Client] is set up.
type Option func(*settings)

// Headers returns metadata that goes with a call, made from its context.
type Headers func(context.Context) map[string]string

type settings struct {
	apiKey            string
	tls               *tls.Config
	headers           []Headers
	keepalive         time.Duration
	retries           bool
	generationTimeout time.Duration
	unaryTimeout      time.Duration
	dial              []grpc.DialOption
}

func newSettings(options []Option) (*settings, error) {
	s := &settings{
		keepalive:         keepalivePeriod,
		retries:           true,
		generationTimeout: DefaultGenerationTimeout,
		unaryTimeout:      DefaultUnaryTimeout,
	}
	for _, option := range options {
		option(s)
	}
	if strings.ContainsFunc(s.apiKey, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, errors.New("headrace: the API key has characters other than visible ASCII") // and is not shown: a secret
	}
	return s, nil
}

// WithAPIKey sends a key (or a token) with each call, unless its context brings an authorization of its own. An empty
// key is none. Over plaintext everybody on the way can read it: use [WithTLS] beyond loopback.
func WithAPIKey(key string) Option { return func(s *settings) { s.apiKey = key } }

// WithTLS connects over TLS; nil takes the system's roots. [TLSFiles] makes a config from PEM files.
func WithTLS(config *tls.Config) Option {
	return func(s *settings) {
		if config == nil {
			config = &tls.Config{MinVersion: tls.VersionTLS12}
		}
		s.tls = config
	}
}

// WithHeaders sends what headers returns with each call; may be given several times. It is the place for a trace context
// where no OpenTelemetry stats handler sends it.
func WithHeaders(headers Headers) Option {
	return func(s *settings) { s.headers = append(s.headers, headers) }
}

// WithKeepalive pings a silent connection after that time, and gives it up after 20 s without an answer. The default of
// 310 s is what any gRPC server tolerates; Headrace allows 30 s, which notices a vanished server sooner.
func WithKeepalive(period time.Duration) Option { return func(s *settings) { s.keepalive = period } }

// WithoutRetries makes one attempt of each call, and joins no generation again.
func WithoutRetries() Option { return func(s *settings) { s.retries = false } }

// WithTimeouts sets the deadlines of calls whose context has none: of a generation, and of every other call.
func WithTimeouts(generation, unary time.Duration) Option {
	return func(s *settings) { s.generationTimeout, s.unaryTimeout = generation, unary }
}

// WithDialOptions sets options of the channel itself: a stats handler, a resolver, a proxy. They win over the client's.
func WithDialOptions(options ...grpc.DialOption) Option {
	return func(s *settings) { s.dial = append(s.dial, options...) }
}

// TLSFiles names PEM files for TLS. Every field may be empty.
type TLSFiles struct {
	// CA has the authorities that are trusted; empty: the system's.
	CA string
	// Cert and Key are the client's certificate and its key, for mutual TLS; both or none.
	Cert, Key string
	// ServerName is the name to verify when it is not the one in the target.
	ServerName string
}

// Config reads the files. It fails if one cannot be read, or has no certificate.
func (f TLSFiles) Config() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: f.ServerName}
	if f.CA != "" {
		pem, err := os.ReadFile(f.CA)
		if err != nil {
			return nil, fmt.Errorf("headrace: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("headrace: %s has no certificate in PEM", f.CA)
		}
	}
	if f.Cert != "" || f.Key != "" {
		pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, fmt.Errorf("headrace: client certificate: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}
