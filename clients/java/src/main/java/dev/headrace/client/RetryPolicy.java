package dev.headrace.client;

import java.util.List;
import java.util.Map;

/**
 * Which calls gRPC repeats by itself, as its service config says it; docs/lifecycle.md has the same as JSON and the
 * reasons.
 */
final class RetryPolicy {
    /** A request larger than this is sent once; the library's default of 1 MiB is a long chat. */
    static final long BUFFER_BYTES = 4L * 1024 * 1024;

    private static final List<Map<String, ?>> SERVICES = List.of(
            Map.of("service", "headrace.v1.GenerationService"),
            Map.of("service", "headrace.v1.ModelService"),
            Map.of("service", "headrace.v1.TokenizeService"));

    // A target with several addresses uses them all, with retries and without.
    private static final Map<String, ?> BALANCING = Map.of("round_robin", Map.of());

    /** Repeats nothing. */
    static final Map<String, ?> NONE = Map.of("loadBalancingConfig", List.of(BALANCING));

    /** Repeats what has a status that may pass, while nothing has come back. Numbers are doubles, as in JSON. */
    static final Map<String, ?> DEFAULT = Map.of(
            "methodConfig",
            List.of(Map.of(
                    "name",
                    SERVICES,
                    "retryPolicy",
                    Map.of(
                            "maxAttempts", 3.0,
                            "initialBackoff", "0.2s",
                            "maxBackoff", "2.0s",
                            "backoffMultiplier", 2.0,
                            "retryableStatusCodes", List.of("UNAVAILABLE", "CANCELLED")))),
            "retryThrottling",
            Map.of("maxTokens", 10.0, "tokenRatio", 0.1),
            "loadBalancingConfig",
            List.of(BALANCING));

    private RetryPolicy() {}
}
