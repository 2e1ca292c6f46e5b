package dev.headrace.client.errors;

import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/**
 * A call failed. Catch this for all failures, a subclass for one kind:
 *
 * <pre>
 * HeadraceException
 * ├── InvalidRequestException              the request is wrong; violations() names every field
 * │   ├── ContextLengthExceededException   prompt plus requested output do not fit the model
 * │   ├── RequestTooLargeException         the message is over the transport's size limit
 * │   └── IdempotencyMismatchException     the idempotency key was used for another request
 * ├── CapabilityUnsupportedException       this model cannot do what was asked
 * ├── NotFoundException                    no such model or generation, or its events are no longer kept
 * ├── AccessDeniedException                credentials are missing, wrong, or not enough
 * ├── OverloadedException                  the waiting line is full or too slow; see retryAfter()
 * │   └── RateLimitedException             a limit of the caller's own tenant
 * │       └── QuotaExhaustedException      its quota of the day is spent; waiting for seconds does not help
 * ├── ConsumerTooSlowException             the stream was not read fast enough and was stopped
 * ├── DeadlineExceededException            the timeout passed, in the line or while decoding
 * ├── UnavailableException                 the server or its engine cannot be reached, or is draining
 * ├── CancelledException                   the call was cancelled, from here or by the server
 * └── InternalException                    a fault of the server
 *     └── ProtocolException                the stream broke its own rules: a gap, an end without {@code completed}
 * </pre>
 */
public class HeadraceException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    /** Everything that is known of a failure. */
    record Facts(
            Status.Code code,
            String text,
            ErrorDetails details,
            Metadata trailers,
            int eventsReceived,
            Throwable cause) {}

    private final transient Facts facts;

    HeadraceException(Facts facts) {
        super(facts.details().reason().orElse(facts.code().name()) + ": " + facts.text(), facts.cause());
        this.facts = facts;
    }

    /**
     * Returns the exception for the end of a call, for who makes calls with the generated stubs.
     *
     * @param eventsReceived how many events of the stream came before; 0 for a unary call
     */
    public static HeadraceException of(Status status, Metadata trailers, int eventsReceived) {
        Metadata told = trailers == null ? new Metadata() : trailers;
        Facts facts = new Facts(
                status.getCode(),
                textOf(status),
                ErrorDetails.of(status, told),
                told,
                eventsReceived,
                status.getCause());
        return ErrorKind.of(facts).make(facts);
    }

    /** Returns the exception for a failed unary call. */
    public static HeadraceException of(StatusRuntimeException error) {
        return of(error.getStatus(), error.getTrailers(), 0);
    }

    private static String textOf(Status status) {
        String text = status.getDescription() == null ? "" : status.getDescription();
        // Of a connection that cannot be made the library says "io exception", and why in the cause.
        boolean isOfTransport = status.getCode() == Status.Code.UNAVAILABLE && status.getCause() != null;
        return isOfTransport ? text + ": " + status.getCause().getMessage() : text;
    }

    /** The gRPC status. */
    public Status.Code status() {
        return facts.code();
    }

    /**
     * Name of the {@link dev.headrace.v1.ErrorReason} without its prefix; empty when the failure did not come from a
     * Headrace server, like a refused connection or a local timeout. A newer server may have others.
     */
    public Optional<String> reason() {
        return facts.details().reason();
    }

    /** What went wrong, for people. {@link #getMessage()} has the reason, or the status, in front of it. */
    public String text() {
        return facts.text();
    }

    /** All that is wrong with the request, at once; empty for other kinds of failures. */
    public List<Violation> violations() {
        return facts.details().violations();
    }

    /** When to come back, where the server can tell. */
    public Optional<Duration> retryAfter() {
        return facts.details().retryAfter();
    }

    /** The request as the server's log knows it. */
    public Optional<String> requestId() {
        return facts.details().requestId();
    }

    /** Facts about the reason, by the names in the comments of {@link dev.headrace.v1.ErrorReason}. */
    public Map<String, String> metadata() {
        return facts.details().metadata();
    }

    /** Name of what was not found. */
    public Optional<String> resource() {
        return facts.details().resource();
    }

    /** The trailing metadata, with {@code x-ratelimit-...} of a limit that was reached. */
    public Metadata trailers() {
        return facts.trailers();
    }

    /** How many events of the stream had come. */
    public int eventsReceived() {
        return facts.eventsReceived();
    }

    /**
     * Whether the same call may be made again without running a generation twice: the cause may pass, and no event had
     * come.
     */
    public final boolean isRetriable() {
        return mayPass() && facts.eventsReceived() == 0;
    }

    /** Whether the cause may go away by itself. */
    boolean mayPass() {
        return false;
    }
}
