package dev.headrace.client;

import static dev.headrace.client.support.Events.answer;
import static dev.headrace.client.support.Events.delta;
import static dev.headrace.client.support.Events.numbered;
import static dev.headrace.client.support.Events.started;
import static dev.headrace.client.support.Events.unknown;
import static dev.headrace.client.support.Peer.failing;
import static dev.headrace.client.support.Peer.hangingAfter;
import static dev.headrace.client.support.Peer.playing;
import static dev.headrace.client.support.Peer.sending;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.headrace.client.errors.CancelledException;
import dev.headrace.client.errors.DeadlineExceededException;
import dev.headrace.client.errors.HeadraceException;
import dev.headrace.client.errors.ProtocolException;
import dev.headrace.client.errors.UnavailableException;
import dev.headrace.client.support.Failures;
import dev.headrace.client.support.Peer;
import dev.headrace.v1.FinishReason;
import dev.headrace.v1.GenerateRequest;
import dev.headrace.v1.GenerateResponse;
import io.grpc.Context;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;

class GenerationStreamTest {
    private static final GenerateRequest REQUEST =
            GenerateRequest.newBuilder().setModel("sim").setPrompt("hi").build();
    private static final List<GenerateResponse> HALF = numbered(started(), delta("half"));

    @Test
    void events_come_in_their_order_and_then_their_facts() {
        try (var peer = playing(sending(answer("a", "b")));
                var client = peer.client();
                var stream = client.generate(REQUEST)) {
            List<GenerateResponse> events = new ArrayList<>();
            for (var event : stream) {
                events.add(event);
            }
            assertEquals(answer("a", "b"), events);
            assertEquals("gen_1", stream.generationId().orElseThrow());
            assertEquals("req_1", stream.requestId().orElseThrow());
            assertEquals(Map.of(0, FinishReason.FINISH_REASON_STOP), stream.finishReasons());
            assertEquals(3, stream.usage().orElseThrow().getOutputTokenCount());
            assertTrue(stream.timing().isPresent());
            assertEquals(5, stream.lastSequence());
            assertThrows(NoSuchElementException.class, stream.iterator()::next);
        }
    }

    @Test
    void text_and_answer_are_what_is_left_of_the_stream() {
        try (var peer = playing(sending(answer("a", "b", "c"))); var client = peer.client()) {
            try (var stream = client.generate(REQUEST)) {
                assertEquals("abc", stream.text());
                assertEquals("", stream.text());
            }
            try (var stream = client.generate(REQUEST)) {
                assertEquals("a", stream.deltas().iterator().next());
                assertEquals("bc", stream.collect().text());
            }
        }
    }

    @Test
    void an_unknown_event_is_skipped() {
        var events = numbered(started(), delta("a"), unknown(), delta("b"), completedOf(answer()));
        try (var peer = playing(sending(events)); var client = peer.client(); var stream = client.generate(REQUEST)) {
            assertEquals("ab", stream.text());
        }
    }

    @Test
    void a_stream_with_a_gap_fails_and_the_call_is_cancelled() throws InterruptedException {
        var gap = List.of(HALF.get(0), delta("c").toBuilder().setSequence(4).build());
        try (var peer = playing(hangingAfter(gap)); var client = peer.client(); var stream = client.generate(REQUEST)) {
            ProtocolException error = assertThrows(ProtocolException.class, stream::text);
            assertEquals(1, error.eventsReceived());
            assertSame(error, assertThrows(ProtocolException.class, stream::text));
            assertTrue(peer.sawCancel());
        }
    }

    @Test
    void a_stream_that_just_ends_fails() {
        try (var peer = playing(sending(HALF)); var client = peer.client(); var stream = client.generate(REQUEST)) {
            assertThrows(ProtocolException.class, stream::text);
        }
    }

    @Test
    void a_failure_comes_behind_the_events_before_it() {
        try (var peer = playing(failing(Failures.gone(-1), HALF));
                var client = peer.client();
                var stream = client.generate(REQUEST)) {
            Iterator<String> pieces = stream.deltas().iterator();
            assertEquals("half", pieces.next());
            var error = assertThrows(UnavailableException.class, pieces::hasNext);
            assertEquals("BACKEND_UNAVAILABLE", error.reason().orElseThrow());
            assertEquals(2, error.eventsReceived());
            assertFalse(error.isRetriable());
            assertEquals(1, peer.calls());
        }
    }

    @Test
    void what_is_pushed_back_before_any_output_is_repeated_unasked() {
        try (var peer = playing(failing(Failures.gone(50), List.of()), sending(answer("second")));
                var client = peer.client()) {
            try (var stream = client.generate(REQUEST)) {
                assertEquals("second", stream.text());
                assertEquals(2, peer.calls());
            }
        }
    }

    @Test
    void nothing_is_repeated_where_that_is_switched_off() {
        try (var peer = playing(failing(Failures.gone(50), List.of()), sending(answer("second")));
                var client = peer.builder().retries(false).build();
                var stream = client.generate(REQUEST)) {
            assertTrue(assertThrows(UnavailableException.class, stream::text).isRetriable());
            assertEquals(1, peer.calls());
        }
    }

    @Test
    void leaving_the_block_cancels_what_is_left() throws InterruptedException {
        try (var peer = playing(hangingAfter(HALF)); var client = peer.client()) {
            GenerationStream left;
            try (var stream = client.generate(REQUEST)) {
                left = stream;
                assertEquals("half", stream.deltas().iterator().next());
            }
            assertTrue(peer.sawCancel());
            assertThrows(IllegalStateException.class, left::text);
        }
    }

    @Test
    void leaving_behind_the_last_event_does_not_look_like_a_cancel() throws InterruptedException {
        var later = CompletableFuture.delayedExecutor(100, TimeUnit.MILLISECONDS);
        Peer.Script slowToEnd = call -> {
            answer("a").forEach(call::onNext);
            later.execute(call::onCompleted);
        };
        try (var peer = playing(slowToEnd); var client = peer.client()) {
            try (var stream = client.generate(REQUEST)) {
                for (var event : stream) {
                    if (event.hasCompleted()) {
                        break;
                    }
                }
            }
            assertFalse(peer.sawCancel());
        }
    }

    @Test
    void a_cancel_from_another_thread_wakes_the_reader() throws Exception {
        try (var peer = playing(hangingAfter(HALF));
                var client = peer.client();
                var stream = client.generate(REQUEST)) {
            Iterator<String> pieces = stream.deltas().iterator();
            assertEquals("half", pieces.next());
            var reader = CompletableFuture.supplyAsync(pieces::hasNext);
            stream.cancel();
            var error = assertThrows(ExecutionException.class, () -> reader.get(5, TimeUnit.SECONDS));
            assertInstanceOf(CancelledException.class, error.getCause());
            assertThrows(CancelledException.class, stream::text);
            assertTrue(peer.sawCancel());
        }
    }

    @Test
    void what_came_before_a_cancel_and_was_not_read_is_not_given_out() {
        try (var peer = playing(sending(answer("a", "b")));
                var client = peer.client();
                var stream = client.generate(REQUEST)) {
            assertTrue(stream.iterator().next().hasStarted());
            stream.cancel();
            assertThrows(CancelledException.class, stream::text);
        }
    }

    @Test
    void a_cancel_behind_the_end_does_nothing() {
        try (var peer = playing(sending(answer("a")));
                var client = peer.client();
                var stream = client.generate(REQUEST)) {
            assertEquals("a", stream.text());
            stream.cancel();
            assertEquals("", stream.text());
        }
    }

    @Test
    void an_interrupt_cancels_the_call_and_stays_set() throws Exception {
        try (var peer = playing(hangingAfter(HALF));
                var client = peer.client();
                var stream = client.generate(REQUEST)) {
            CountDownLatch reading = new CountDownLatch(1);
            FutureTask<Boolean> read = new FutureTask<>(() -> {
                assertThrows(CancelledException.class, () -> stream.forEach(event -> reading.countDown()));
                return Thread.currentThread().isInterrupted();
            });
            Thread reader = new Thread(read);
            reader.start();
            reading.await();
            reader.interrupt();
            assertTrue(read.get(5, TimeUnit.SECONDS));
            assertTrue(peer.sawCancel());
        }
    }

    @Test
    void the_deadline_goes_to_the_server_and_ends_the_call_here() {
        try (var peer = playing(sending(answer("a")), hangingAfter(HALF)); var client = peer.client()) {
            try (var stream = client.generate(REQUEST)) { // connects
                stream.text();
            }
            try (var stream = client.generate(REQUEST, RequestOptions.timeout(Duration.ofMillis(500)))) {
                assertThrows(DeadlineExceededException.class, stream::text);
            }
            assertTrue(peer.deadlineMs() <= 500 && peer.deadlineMs() > 0, peer.deadlineMs() + " ms");
        }
    }

    @Test
    void every_call_has_a_deadline() {
        try (var peer = playing(sending(answer("a")))) {
            try (var client = peer.client(); var stream = client.generate(REQUEST)) {
                stream.text();
                assertTrue(peer.deadlineMs() > 590_000 && peer.deadlineMs() <= 600_000, peer.deadlineMs() + " ms");
            }
            try (var client = peer.builder().timeout(Duration.ofSeconds(7)).build();
                    var stream = client.generate(REQUEST)) {
                stream.text();
                assertTrue(peer.deadlineMs() <= 7_000, peer.deadlineMs() + " ms");
            }
        }
    }

    @Test
    void a_context_of_grpc_cancels_its_calls() throws InterruptedException {
        try (var peer = playing(hangingAfter(HALF)); var client = peer.client()) {
            Context.CancellableContext context = Context.current().withCancellation();
            Context before = context.attach();
            try (var stream = client.generate(REQUEST)) {
                context.detach(before);
                assertEquals("half", stream.deltas().iterator().next());
                context.cancel(null);
                assertThrows(CancelledException.class, stream::text);
            }
            assertTrue(peer.sawCancel());
        }
    }

    @Test
    void a_reader_that_does_not_read_holds_the_server_back_and_nobody_else() throws Exception {
        AtomicInteger sent = new AtomicInteger();
        CountDownLatch full = new CountDownLatch(1);
        String large = "x".repeat(8 * 1024);
        Peer.Script asLongAsItIsReady = call -> {
            while (call.isReady() && sent.get() < 1_000) {
                call.onNext((sent.get() == 0 ? started() : delta(large))
                        .toBuilder().setSequence(sent.incrementAndGet()).build());
            }
            full.countDown();
        };
        try (var peer = playing(asLongAsItIsReady, sending(answer(large.repeat(100)))); var client = peer.client()) {
            try (var stalled = client.generate(REQUEST)) {
                assertTrue(stalled.iterator().next().hasStarted());
                assertTrue(full.await(5, TimeUnit.SECONDS));
                assertTrue(sent.get() < 100, sent + " events were taken unread");
                try (var other = client.generate(REQUEST)) {
                    assertEquals(large.length() * 100, other.text().length());
                }
            }
        }
    }

    @Test
    void an_attached_stream_goes_on_behind_its_event() {
        List<GenerateResponse> all = answer("a", "b");
        try (var peer = playing(sending(all.subList(2, all.size())));
                var client = peer.client();
                var stream = client.attach("gen_1", 2)) {
            assertEquals("b", stream.text());
            assertEquals(5, stream.lastSequence());
        }
    }

    @Test
    void a_server_that_is_not_there_is_unavailable_and_why_is_told() {
        String target;
        try (var peer = playing()) {
            target = peer.target();
        }
        try (var client = HeadraceClient.connect(target); var stream = client.generate(REQUEST)) {
            var error = assertThrows(UnavailableException.class, stream::text);
            assertTrue(error.getMessage().contains("Connection refused"), error.getMessage());
            assertTrue(error.isRetriable());
        }
    }

    @Test
    void closing_the_client_ends_its_streams() {
        try (var peer = playing(hangingAfter(HALF))) {
            var client = peer.client();
            var stream = client.generate(REQUEST);
            assertEquals("half", stream.deltas().iterator().next());
            client.close();
            assertThrows(HeadraceException.class, stream::text);
        }
    }

    private static GenerateResponse completedOf(List<GenerateResponse> events) {
        return events.get(events.size() - 1);
    }
}
