package dev.headrace.client.errors;

/** No model has this id or alias, or the server that answers knows no such generation of this caller. */
public class NotFoundException extends HeadraceException {
    private static final long serialVersionUID = 1L;

    NotFoundException(Facts facts) {
        super(facts);
    }
}
