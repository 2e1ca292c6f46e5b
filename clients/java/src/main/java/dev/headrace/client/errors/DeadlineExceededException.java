package dev.headrace.client.errors;

/** The timeout passed. Running the same call again costs the same again. */
public class DeadlineExceededException extends HeadraceException {
    private static final long serialVersionUID = 1L;

    DeadlineExceededException(Facts facts) {
        super(facts);
    }
}
