package dev.headrace.client.errors;

/** The stream was read too slowly, so the server stopped the generation. */
public class ConsumerTooSlowException extends HeadraceException {
    private static final long serialVersionUID = 1L;

    ConsumerTooSlowException(Facts facts) {
        super(facts);
    }
}
