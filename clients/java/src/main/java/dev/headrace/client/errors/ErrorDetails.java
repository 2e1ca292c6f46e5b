package dev.headrace.client.errors;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.Message;
import com.google.rpc.BadRequest;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RequestInfo;
import com.google.rpc.ResourceInfo;
import com.google.rpc.RetryInfo;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.protobuf.StatusProto;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/**
 * What the google.rpc details of one status say. Details that are missing, broken or of another domain are left out.
 *
 * <p>Owns the reading of the details; knows no kinds of exceptions.
 */
record ErrorDetails(
        Optional<String> reason,
        Map<String, String> metadata,
        List<Violation> violations,
        Optional<Duration> retryAfter,
        Optional<String> requestId,
        Optional<String> resource) {

    static final String DOMAIN = "headrace.v1";
    static final ErrorDetails NONE = of(List.of());
    // The longest that a Duration of Protobuf's may be.
    private static final long MAX_SECONDS = 315_576_000_000L;

    static ErrorDetails of(Status status, Metadata trailers) {
        try {
            return of(StatusProto.fromStatusAndTrailers(status, trailers).getDetailsList());
        } catch (IllegalArgumentException e) { // no Status in the trailer, or one of another code
            return NONE;
        }
    }

    private static ErrorDetails of(List<Any> details) {
        Optional<ErrorInfo> info = find(details, ErrorInfo.class).filter(it -> it.getDomain().equals(DOMAIN));
        return new ErrorDetails(
                info.map(ErrorInfo::getReason).filter(it -> !it.isEmpty()),
                info.map(ErrorInfo::getMetadataMap).map(Map::copyOf).orElse(Map.of()),
                find(details, BadRequest.class).map(ErrorDetails::violationsOf).orElse(List.of()),
                find(details, RetryInfo.class).flatMap(ErrorDetails::delayOf),
                find(details, RequestInfo.class).map(RequestInfo::getRequestId).filter(it -> !it.isEmpty()),
                find(details, ResourceInfo.class).map(ResourceInfo::getResourceName).filter(it -> !it.isEmpty()));
    }

    private static <T extends Message> Optional<T> find(List<Any> details, Class<T> kind) {
        for (Any detail : details) {
            if (detail.is(kind)) {
                try {
                    return Optional.of(detail.unpack(kind));
                } catch (InvalidProtocolBufferException e) {
                    return Optional.empty();
                }
            }
        }
        return Optional.empty();
    }

    private static List<Violation> violationsOf(BadRequest request) {
        return request.getFieldViolationsList().stream()
                .map(it -> new Violation(it.getField(), it.getDescription()))
                .toList();
    }

    private static Optional<Duration> delayOf(RetryInfo retry) {
        long seconds = retry.getRetryDelay().getSeconds();
        return seconds < 0 || seconds > MAX_SECONDS
                ? Optional.empty()
                : Optional.of(Duration.ofSeconds(seconds, retry.getRetryDelay().getNanos()));
    }
}
