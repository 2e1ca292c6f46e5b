package dev.headrace.client;

import static dev.headrace.client.support.Events.answer;
import static dev.headrace.client.support.Peer.playing;
import static dev.headrace.client.support.Peer.sending;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.headrace.v1.GenerateRequest;
import io.opentelemetry.api.trace.Span;
import io.opentelemetry.api.trace.SpanContext;
import io.opentelemetry.api.trace.TraceFlags;
import io.opentelemetry.api.trace.TraceState;
import io.opentelemetry.api.trace.propagation.W3CTraceContextPropagator;
import io.opentelemetry.context.Context;
import io.opentelemetry.context.Scope;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BiConsumer;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Test;

class HeadersTest {
    private static final GenerateRequest REQUEST =
            GenerateRequest.newBuilder().setModel("sim").setPrompt("hi").build();

    @Test
    void the_user_agent_has_the_version_of_the_package() throws IOException {
        var version = Pattern.compile("<artifactId>headrace-client</artifactId>\\s*<version>(.*?)</version>")
                .matcher(Files.readString(Path.of("pom.xml")));
        assertTrue(version.find());
        try (var peer = playing(sending(answer("a"))); var client = peer.client()) {
            generate(client, RequestOptions.DEFAULT);
            assertEquals("headrace-java/" + version.group(1), peer.header("user-agent").split(" ")[0]);
        }
    }

    @Test
    void a_key_is_sent_with_each_call() {
        try (var peer = playing(sending(answer("a"))); var client = peer.builder().apiKey("hr_1").build()) {
            generate(client, RequestOptions.DEFAULT);
            assertEquals("Bearer hr_1", peer.header("authorization"));
        }
    }

    @Test
    void a_call_may_have_headers_of_its_own() {
        try (var peer = playing(sending(answer("a"))); var client = peer.client()) {
            generate(client, RequestOptions.DEFAULT.withHeader("x-request-id", "req_mine"));
            assertEquals("req_mine", peer.header("x-request-id"));
        }
    }

    @Test
    void a_source_is_asked_for_each_call() {
        AtomicInteger count = new AtomicInteger();
        try (var peer = playing(sending(answer("a")));
                var client = peer.builder()
                        .headers(put -> put.accept("authorization", "Bearer " + count.incrementAndGet()))
                        .build()) {
            generate(client, RequestOptions.DEFAULT);
            generate(client, RequestOptions.DEFAULT);
            assertEquals("Bearer 2", peer.header("authorization"));
        }
    }

    @Test
    void the_context_of_a_trace_goes_along() {
        var propagator = W3CTraceContextPropagator.getInstance();
        var span = SpanContext.create(
                "4bf92f3577b34da6a3ce929d0e0e4736",
                "00f067aa0ba902b7",
                TraceFlags.getSampled(),
                TraceState.getDefault());
        try (var peer = playing(sending(answer("a")));
                var client = peer.builder()
                        .headers(put -> propagator.inject(Context.current(), put, BiConsumer::accept))
                        .build();
                Scope scope = Span.wrap(span).makeCurrent()) {
            assertTrue(Span.current().getSpanContext().isValid(), scope.toString());
            generate(client, RequestOptions.DEFAULT);
            assertEquals("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", peer.header("traceparent"));
        }
    }

    private static void generate(HeadraceClient client, RequestOptions options) {
        try (var stream = client.generate(REQUEST, options)) {
            assertEquals("a", stream.text());
        }
    }
}
