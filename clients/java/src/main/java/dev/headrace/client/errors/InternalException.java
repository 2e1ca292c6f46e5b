package dev.headrace.client.errors;

/** A fault on the other side; {@link #requestId()} finds it in the server's log. */
public class InternalException extends HeadraceException {
    private static final long serialVersionUID = 1L;

    InternalException(Facts facts) {
        super(facts);
    }
}
