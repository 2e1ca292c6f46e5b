package dev.headrace.client.errors;

import io.grpc.Metadata;
import io.grpc.Status;

/** The stream broke the rules of the contract, so its content cannot be trusted to be whole. */
public class ProtocolException extends InternalException {
    private static final long serialVersionUID = 1L;

    /**
     * Makes one for a stream that broke off its order.
     *
     * @param text what was wrong, for people
     * @param eventsReceived how many good events had come
     */
    public ProtocolException(String text, int eventsReceived) {
        super(new Facts(Status.Code.INTERNAL, text, ErrorDetails.NONE, new Metadata(), eventsReceived, null));
    }
}
