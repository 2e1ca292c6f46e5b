package dev.headrace.client.errors;

/** The request is wrong; the same request will fail again. {@link #violations()} names every field. */
public class InvalidRequestException extends HeadraceException {
    private static final long serialVersionUID = 1L;

    InvalidRequestException(Facts facts) {
        super(facts);
    }
}
