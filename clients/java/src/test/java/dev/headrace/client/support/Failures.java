package dev.headrace.client.support;

import com.google.protobuf.Any;
import com.google.protobuf.Message;
import com.google.rpc.ErrorInfo;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;

/** Statuses with details, as a server sends them. */
public final class Failures {
    private static final Metadata.Key<String> PUSHBACK =
            Metadata.Key.of("grpc-retry-pushback-ms", Metadata.ASCII_STRING_MARSHALLER);

    private Failures() {}

    public static ErrorInfo info(String domain, String reason) {
        return ErrorInfo.newBuilder().setDomain(domain).setReason(reason).build();
    }

    public static StatusRuntimeException failure(Status.Code code, String text, Message... details) {
        var status = com.google.rpc.Status.newBuilder().setCode(code.value()).setMessage(text);
        for (Message detail : details) {
            status.addDetails(Any.pack(detail));
        }
        return StatusProto.toStatusRuntimeException(status.build());
    }

    /** UNAVAILABLE, which the client may repeat after so long; -1 for never. */
    public static StatusRuntimeException gone(int pushbackMs) {
        StatusRuntimeException failure =
                failure(Status.Code.UNAVAILABLE, "the engine is gone", info("headrace.v1", "BACKEND_UNAVAILABLE"));
        failure.getTrailers().put(PUSHBACK, Integer.toString(pushbackMs));
        return failure;
    }
}
