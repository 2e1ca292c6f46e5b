package dev.headrace.client.errors;

/** The server or its engine cannot be reached, is loading, or is shutting down. */
public class UnavailableException extends HeadraceException {
    private static final long serialVersionUID = 1L;

    UnavailableException(Facts facts) {
        super(facts);
    }

    @Override
    boolean mayPass() {
        return true;
    }
}
