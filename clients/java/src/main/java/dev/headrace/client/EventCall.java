package dev.headrace.client;

import dev.headrace.client.errors.HeadraceException;
import dev.headrace.client.errors.ProtocolException;
import dev.headrace.v1.GenerateResponse;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.TimeUnit;

/**
 * How one stream of events is asked for, and what its beginning and end mean; the same for whoever reads it.
 *
 * @param after number of the event behind which the stream goes on; 0 for its beginning
 */
record EventCall<Q>(
        Channel channel,
        MethodDescriptor<Q, GenerateResponse> method,
        Q request,
        int after,
        Duration timeout,
        RequestOptions options) {

    private static final Metadata.Key<String> REQUEST_ID = RequestOptions.headerKey("x-request-id");
    private static final Metadata.Key<String> GENERATION_ID = RequestOptions.headerKey("x-generation-id");

    /** Starts a call, which delivers nothing before it is asked for messages. */
    ClientCall<?, GenerateResponse> start(ClientCall.Listener<GenerateResponse> listener) {
        CallOptions bounded = CallOptions.DEFAULT.withDeadlineAfter(timeout.toNanos(), TimeUnit.NANOSECONDS);
        ClientCall<Q, GenerateResponse> call = channel.newCall(method, bounded);
        call.start(listener, options.headers());
        call.sendMessage(request);
        call.halfClose();
        return call;
    }

    static void onHeaders(Progress progress, Metadata headers) {
        progress.identify(headers.get(REQUEST_ID), headers.get(GENERATION_ID));
    }

    /** Returns what the end of a call is as a failure; nothing for a good end. */
    static Optional<HeadraceException> failure(Progress progress, Status status, Metadata trailers) {
        if (!status.isOk()) {
            return Optional.of(HeadraceException.of(status, trailers, progress.eventsReceived()));
        }
        try {
            progress.end();
            return Optional.empty();
        } catch (ProtocolException e) {
            return Optional.of(e);
        }
    }
}
