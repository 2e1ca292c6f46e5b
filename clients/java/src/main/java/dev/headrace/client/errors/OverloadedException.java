package dev.headrace.client.errors;

/** The server takes no more for now; {@link #retryAfter()} says when to come back, if known. */
public class OverloadedException extends HeadraceException {
    private static final long serialVersionUID = 1L;

    OverloadedException(Facts facts) {
        super(facts);
    }

    @Override
    boolean mayPass() {
        return true;
    }
}
