package dev.headrace.client;

import io.grpc.Metadata;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;

/** What one call has of its own, besides its request. Unchangeable: each {@code with} returns another one. */
public final class RequestOptions {
    /** Nothing of its own: the client's timeout. */
    public static final RequestOptions DEFAULT = new RequestOptions(Optional.empty(), Map.of());

    private final Optional<Duration> timeout;
    private final Map<String, String> headers;

    private RequestOptions(Optional<Duration> timeout, Map<String, String> headers) {
        this.timeout = timeout;
        this.headers = headers;
    }

    /** The same as {@code DEFAULT.withTimeout(timeout)}. */
    public static RequestOptions timeout(Duration timeout) {
        return DEFAULT.withTimeout(timeout);
    }

    /**
     * Ends the call with {@link dev.headrace.client.errors.DeadlineExceededException} when this much time has passed,
     * its waiting in line included. It goes to the server as the deadline of the call. A deadline of the current
     * {@link io.grpc.Context} that is earlier counts.
     */
    public RequestOptions withTimeout(Duration timeout) {
        return new RequestOptions(Optional.of(positive(timeout)), headers);
    }

    /** Sends one header more, in lower case. */
    public RequestOptions withHeader(String name, String value) {
        Map<String, String> more = new LinkedHashMap<>(headers);
        more.put(Objects.requireNonNull(name), Objects.requireNonNull(value));
        return new RequestOptions(timeout, more);
    }

    Duration timeoutOr(Duration other) {
        return timeout.orElse(other);
    }

    Metadata headers() {
        Metadata metadata = new Metadata();
        headers.forEach((name, value) -> metadata.put(headerKey(name), value));
        return metadata;
    }

    static Metadata.Key<String> headerKey(String name) {
        return Metadata.Key.of(name, Metadata.ASCII_STRING_MARSHALLER);
    }

    static Duration positive(Duration timeout) {
        if (timeout.isNegative() || timeout.isZero()) {
            throw new IllegalArgumentException("a timeout is above 0, got " + timeout);
        }
        return timeout;
    }
}
