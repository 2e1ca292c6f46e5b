package headrace

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// serviceConfig is the one that docs/lifecycle.md has for every client, but for CANCELLED; a test compares them. gRPC
// repeats a call only while nothing has come back, and the service sends nothing before its first event, so the waiting
// line is covered. How long it waits is the server's word where it has one (grpc-retry-pushback-ms).
//
// CANCELLED is repeated by this package (wasUnseen): grpc-go takes a cancel by the caller for a failure of the server, and
// after five of them, in the waiting line say, repeats nothing more.
const serviceConfig = `{
  "methodConfig": [
    {
      "name": [
        { "service": "headrace.v1.GenerationService" },
        { "service": "headrace.v1.ModelService" },
        { "service": "headrace.v1.TokenizeService" }
      ],
      "retryPolicy": {
        "maxAttempts": 3,
        "initialBackoff": "0.2s",
        "maxBackoff": "2.0s",
        "backoffMultiplier": 2,
        "retryableStatusCodes": ["UNAVAILABLE"]
      }
    }
  ],
  "retryThrottling": { "maxTokens": 10, "tokenRatio": 0.1 },
  "loadBalancingConfig": [{ "round_robin": {} }]
}`

const (
	maxMessageBytes = 64 << 20
	// A request larger than this is never repeated; the library's default of 256 KiB is a long chat.
	retryBufferBytes = 4 << 20
	// Windows that stay as they are. The library's own grow with bandwidth, and then a reader that stalls lets the server
	// run tens of thousands of tokens ahead of it. The connection's is not held up by one stream's.
	streamWindowBytes = 64 << 10
	connWindowBytes   = 1 << 20
	// A gRPC server with default settings answers more pings than one in five minutes with GOAWAY.
	keepalivePeriod  = 310 * time.Second
	keepaliveTimeout = 20 * time.Second
	// The library waits up to two minutes before it tries a server again that was gone.
	firstReconnectPause   = 200 * time.Millisecond
	longestReconnectPause = 3 * time.Second
	connectTimeout        = 5 * time.Second
)

// dialOptions returns how the channel is set up. The caller's own options come last and win.
func (c *Client) dialOptions() []grpc.DialOption {
	s := c.settings
	transport := insecure.NewCredentials()
	if s.tls != nil {
		transport = credentials.NewTLS(s.tls)
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithDefaultServiceConfig(serviceConfig),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(maxMessageBytes),
			grpc.MaxCallSendMsgSize(maxMessageBytes),
			grpc.MaxRetryRPCBufferSize(retryBufferBytes),
		),
		grpc.WithStaticStreamWindowSize(streamWindowBytes),
		grpc.WithStaticConnWindowSize(connWindowBytes),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: s.keepalive, Timeout: keepaliveTimeout}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay:  firstReconnectPause,
				Multiplier: backoff.DefaultConfig.Multiplier,
				Jitter:     backoff.DefaultConfig.Jitter,
				MaxDelay:   longestReconnectPause,
			},
			MinConnectTimeout: connectTimeout,
		}),
		grpc.WithUserAgent("headrace-go/" + Version),
		grpc.WithChainUnaryInterceptor(c.interceptUnary),
		grpc.WithChainStreamInterceptor(c.interceptStream),
	}
	if !s.retries {
		options = append(options, grpc.WithDisableRetry())
	}
	return append(options, s.dial...)
}
