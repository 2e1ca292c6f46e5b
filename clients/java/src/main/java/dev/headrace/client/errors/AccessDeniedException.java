package dev.headrace.client.errors;

/** Credentials are missing, wrong, or do not allow this call. */
public class AccessDeniedException extends HeadraceException {
    private static final long serialVersionUID = 1L;

    AccessDeniedException(Facts facts) {
        super(facts);
    }
}
