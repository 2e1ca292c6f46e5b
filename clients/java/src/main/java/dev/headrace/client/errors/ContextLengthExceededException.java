package dev.headrace.client.errors;

/**
 * Prompt plus requested output do not fit; {@link #metadata()} has {@code maxContextTokens} and what is known of the
 * rest.
 */
public class ContextLengthExceededException extends InvalidRequestException {
    private static final long serialVersionUID = 1L;

    ContextLengthExceededException(Facts facts) {
        super(facts);
    }
}
