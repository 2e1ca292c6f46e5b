package dev.headrace.client.errors;

/** The call was cancelled: from here, by an interrupt of the reading thread, or by the server. */
public class CancelledException extends HeadraceException {
    private static final long serialVersionUID = 1L;

    CancelledException(Facts facts) {
        super(facts);
    }
}
