package dev.headrace.client.errors;

import static java.util.Map.entry;

import io.grpc.Status;
import java.util.Map;

/**
 * Which exception a failure becomes: a table by reason, and one by status for failures without a reason that is known.
 *
 * <p>Knows neither trailers nor streams.
 */
final class ErrorKind {
    /** Makes an exception of one kind. */
    @FunctionalInterface
    interface Maker {
        HeadraceException make(HeadraceException.Facts facts);
    }

    static final Map<String, Maker> BY_REASON = Map.ofEntries(
            entry("INVALID_FIELD", InvalidRequestException::new),
            entry("CONTEXT_LENGTH_EXCEEDED", ContextLengthExceededException::new),
            entry("CAPABILITY_UNSUPPORTED", CapabilityUnsupportedException::new),
            entry("MODEL_NOT_FOUND", NotFoundException::new),
            entry("MODEL_NOT_READY", UnavailableException::new),
            entry("QUEUE_FULL", OverloadedException::new),
            entry("QUEUE_TIMEOUT", OverloadedException::new),
            entry("DEADLINE_TOO_SHORT", DeadlineExceededException::new),
            entry("DEADLINE_IN_QUEUE", DeadlineExceededException::new),
            entry("DEADLINE_IN_DECODE", DeadlineExceededException::new),
            entry("DRAINING", UnavailableException::new),
            entry("BACKEND_UNAVAILABLE", UnavailableException::new),
            entry("BACKEND_ERROR", InternalException::new),
            entry("FIRST_TOKEN_TIMEOUT", UnavailableException::new),
            entry("TOKEN_GAP_TIMEOUT", UnavailableException::new),
            entry("CONSUMER_TOO_SLOW", ConsumerTooSlowException::new),
            entry("GENERATION_NOT_FOUND", NotFoundException::new),
            entry("INTERNAL", InternalException::new),
            entry("RATE_LIMITED", RateLimitedException::new),
            entry("QUOTA_EXHAUSTED", QuotaExhaustedException::new),
            entry("IDEMPOTENCY_MISMATCH", IdempotencyMismatchException::new),
            entry("REPLAY_EXPIRED", NotFoundException::new),
            entry("UNAUTHENTICATED", AccessDeniedException::new),
            entry("PERMISSION_DENIED", AccessDeniedException::new),
            entry("GENERATION_LOST", UnavailableException::new),
            entry("STORE_UNAVAILABLE", UnavailableException::new));

    private ErrorKind() {}

    static Maker of(HeadraceException.Facts facts) {
        Maker byReason = facts.details().reason().map(BY_REASON::get).orElse(null);
        if (byReason != null) {
            return byReason;
        }
        boolean isFromServer = facts.details().reason().isPresent();
        if (!isFromServer && facts.code() == Status.Code.RESOURCE_EXHAUSTED && isTooLarge(facts.text())) {
            return RequestTooLargeException::new;
        }
        return byStatus(facts.code());
    }

    private static Maker byStatus(Status.Code code) {
        return switch (code) {
            case CANCELLED -> CancelledException::new;
            case INVALID_ARGUMENT, ALREADY_EXISTS, OUT_OF_RANGE -> InvalidRequestException::new;
            case DEADLINE_EXCEEDED -> DeadlineExceededException::new;
            case NOT_FOUND -> NotFoundException::new;
            case PERMISSION_DENIED, UNAUTHENTICATED -> AccessDeniedException::new;
            case RESOURCE_EXHAUSTED -> OverloadedException::new;
            case FAILED_PRECONDITION, UNIMPLEMENTED -> CapabilityUnsupportedException::new;
            case UNAVAILABLE -> UnavailableException::new;
            case OK, UNKNOWN, ABORTED, INTERNAL, DATA_LOSS -> InternalException::new;
        };
    }

    // Made by the gRPC libraries of either side, which have no details to tell it by.
    private static boolean isTooLarge(String text) {
        return text.contains("larger than max") || text.contains("exceeds maximum");
    }
}
