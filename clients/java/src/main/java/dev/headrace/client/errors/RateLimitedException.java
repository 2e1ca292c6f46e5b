package dev.headrace.client.errors;

/** A limit of the caller's tenant; {@link #retryAfter()} says when there is room again. */
public class RateLimitedException extends OverloadedException {
    private static final long serialVersionUID = 1L;

    RateLimitedException(Facts facts) {
        super(facts);
    }
}
