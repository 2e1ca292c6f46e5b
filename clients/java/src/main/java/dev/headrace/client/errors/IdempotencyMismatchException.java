package dev.headrace.client.errors;

/** The idempotency key was used for another request; {@link #metadata()} has its {@code generationId}. */
public class IdempotencyMismatchException extends InvalidRequestException {
    private static final long serialVersionUID = 1L;

    IdempotencyMismatchException(Facts facts) {
        super(facts);
    }
}
