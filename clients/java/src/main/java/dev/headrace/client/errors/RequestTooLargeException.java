package dev.headrace.client.errors;

/** The message is over the size limit of the transport. */
public class RequestTooLargeException extends InvalidRequestException {
    private static final long serialVersionUID = 1L;

    RequestTooLargeException(Facts facts) {
        super(facts);
    }
}
