package dev.headrace.client.errors;

import static dev.headrace.client.support.Failures.failure;
import static dev.headrace.client.support.Failures.info;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.Any;
import com.google.protobuf.ByteString;
import com.google.protobuf.Duration;
import com.google.rpc.BadRequest;
import com.google.rpc.RequestInfo;
import com.google.rpc.ResourceInfo;
import com.google.rpc.RetryInfo;
import dev.headrace.v1.ErrorReason;
import io.grpc.Metadata;
import io.grpc.Status;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

class HeadraceExceptionTest {
    private static final Metadata.Key<byte[]> DETAILS =
            Metadata.Key.of("grpc-status-details-bin", Metadata.BINARY_BYTE_MARSHALLER);

    @Test
    void every_reason_of_the_contract_has_a_kind() {
        var reasons = Arrays.stream(ErrorReason.values())
                .filter(it -> it != ErrorReason.UNRECOGNIZED && it != ErrorReason.ERROR_REASON_UNSPECIFIED)
                .map(it -> it.name().replaceFirst("^ERROR_REASON_", ""))
                .collect(Collectors.toSet());
        assertEquals(reasons, ErrorKind.BY_REASON.keySet());
    }

    @ParameterizedTest
    @EnumSource(Status.Code.class)
    void every_status_has_a_kind(Status.Code code) {
        HeadraceException error = HeadraceException.of(code.toStatus().withDescription("text"), null, 0);
        assertEquals(code, error.status());
        assertEquals(code.name() + ": text", error.getMessage());
        assertTrue(error.reason().isEmpty());
    }

    @Test
    void all_details_are_told() {
        var error = HeadraceException.of(failure(
                Status.Code.INVALID_ARGUMENT,
                "two fields are wrong",
                info("headrace.v1", "INVALID_FIELD").toBuilder().putMetadata("k", "v").build(),
                BadRequest.newBuilder()
                        .addFieldViolations(BadRequest.FieldViolation.newBuilder()
                                .setField("sampling.temperature")
                                .setDescription("must be from 0 to 2"))
                        .addFieldViolations(BadRequest.FieldViolation.newBuilder().setField("model"))
                        .build(),
                RetryInfo.newBuilder().setRetryDelay(Duration.newBuilder().setNanos(5_000_000)).build(),
                RequestInfo.newBuilder().setRequestId("req_1").build(),
                ResourceInfo.newBuilder().setResourceName("m").build()));
        assertInstanceOf(InvalidRequestException.class, error);
        assertEquals(Optional.of("INVALID_FIELD"), error.reason());
        assertEquals("INVALID_FIELD: two fields are wrong", error.getMessage());
        assertEquals("two fields are wrong", error.text());
        assertEquals("v", error.metadata().get("k"));
        assertEquals(
                List.of(new Violation("sampling.temperature", "must be from 0 to 2"), new Violation("model", "")),
                error.violations());
        assertEquals(Optional.of(java.time.Duration.ofMillis(5)), error.retryAfter());
        assertEquals(Optional.of("req_1"), error.requestId());
        assertEquals(Optional.of("m"), error.resource());
    }

    @Test
    void a_reason_chooses_the_kind_before_the_status() {
        assertKind(QuotaExhaustedException.class, Status.Code.RESOURCE_EXHAUSTED, "QUOTA_EXHAUSTED");
        assertKind(ConsumerTooSlowException.class, Status.Code.RESOURCE_EXHAUSTED, "CONSUMER_TOO_SLOW");
        assertKind(IdempotencyMismatchException.class, Status.Code.ALREADY_EXISTS, "IDEMPOTENCY_MISMATCH");
        assertKind(ContextLengthExceededException.class, Status.Code.INVALID_ARGUMENT, "CONTEXT_LENGTH_EXCEEDED");
        assertKind(NotFoundException.class, Status.Code.OUT_OF_RANGE, "REPLAY_EXPIRED");
    }

    @Test
    void a_reason_of_a_newer_server_is_told_and_the_status_chooses() {
        HeadraceException error = assertKind(OverloadedException.class, Status.Code.RESOURCE_EXHAUSTED, "NEW_ONE");
        assertEquals(Optional.of("NEW_ONE"), error.reason());
    }

    @Test
    void a_reason_of_another_domain_is_none_of_ours() {
        var error = HeadraceException.of(
                failure(Status.Code.UNAVAILABLE, "proxy", info("proxy.example", "QUEUE_FULL")));
        assertInstanceOf(UnavailableException.class, error);
        assertTrue(error.reason().isEmpty());
    }

    @Test
    void details_that_are_broken_are_left_out() {
        Metadata noStatus = new Metadata();
        noStatus.put(DETAILS, new byte[] {1, 2, 3});
        assertTrue(HeadraceException.of(Status.UNAVAILABLE, noStatus, 0).reason().isEmpty());

        var half = com.google.rpc.Status.newBuilder()
                .setCode(Status.Code.UNAVAILABLE.value())
                .addDetails(Any.newBuilder()
                        .setTypeUrl("type.googleapis.com/google.rpc.RetryInfo")
                        .setValue(ByteString.copyFrom(new byte[] {10, 99})))
                .addDetails(Any.pack(info("headrace.v1", "DRAINING")))
                .build();
        Metadata trailers = new Metadata();
        trailers.put(DETAILS, half.toByteArray());
        HeadraceException error = HeadraceException.of(Status.UNAVAILABLE, trailers, 0);
        assertEquals(Optional.of("DRAINING"), error.reason());
        assertTrue(error.retryAfter().isEmpty());
    }

    @Test
    void a_message_over_the_limit_is_a_request_that_is_too_large() {
        var status = Status.RESOURCE_EXHAUSTED.withDescription("Received message larger than max (5 vs. 4)");
        assertInstanceOf(RequestTooLargeException.class, HeadraceException.of(status, null, 0));
    }

    @Test
    void only_what_may_pass_before_any_event_may_be_made_again() {
        assertTrue(HeadraceException.of(Status.UNAVAILABLE, null, 0).isRetriable());
        assertFalse(HeadraceException.of(Status.UNAVAILABLE, null, 1).isRetriable());
        assertFalse(HeadraceException.of(Status.INVALID_ARGUMENT, null, 0).isRetriable());
        assertTrue(assertKind(RateLimitedException.class, Status.Code.RESOURCE_EXHAUSTED, "RATE_LIMITED")
                .isRetriable());
        assertFalse(assertKind(QuotaExhaustedException.class, Status.Code.RESOURCE_EXHAUSTED, "QUOTA_EXHAUSTED")
                .isRetriable());
    }

    private static HeadraceException assertKind(
            Class<? extends HeadraceException> kind, Status.Code code, String reason) {
        HeadraceException error = HeadraceException.of(failure(code, "text", info("headrace.v1", reason)));
        assertEquals(kind, error.getClass());
        return error;
    }
}
