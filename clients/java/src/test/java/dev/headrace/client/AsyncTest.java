package dev.headrace.client;

import static dev.headrace.client.support.Events.answer;
import static dev.headrace.client.support.Events.completed;
import static dev.headrace.client.support.Events.delta;
import static dev.headrace.client.support.Events.numbered;
import static dev.headrace.client.support.Events.started;
import static dev.headrace.client.support.Events.unknown;
import static dev.headrace.client.support.Peer.failing;
import static dev.headrace.client.support.Peer.hangingAfter;
import static dev.headrace.client.support.Peer.playing;
import static dev.headrace.client.support.Peer.sending;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.headrace.client.errors.ProtocolException;
import dev.headrace.client.errors.UnavailableException;
import dev.headrace.client.support.Failures;
import dev.headrace.v1.GenerateRequest;
import dev.headrace.v1.GenerateResponse;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.Flow;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

class AsyncTest {
    private static final GenerateRequest REQUEST =
            GenerateRequest.newBuilder().setModel("sim").setPrompt("hi").build();
    private static final List<GenerateResponse> HALF = numbered(started(), delta("half"));

    /** Keeps what it is told, and asks for nothing by itself. */
    private static final class Listener implements Flow.Subscriber<GenerateResponse> {
        final BlockingQueue<GenerateResponse> events = new LinkedBlockingQueue<>();
        final CompletableFuture<Throwable> end = new CompletableFuture<>();
        Flow.Subscription subscription;

        @Override
        public void onSubscribe(Flow.Subscription subscription) {
            this.subscription = subscription;
        }

        @Override
        public void onNext(GenerateResponse event) {
            events.add(event);
        }

        @Override
        public void onError(Throwable error) {
            end.complete(error);
        }

        @Override
        public void onComplete() {
            end.complete(null);
        }

        Throwable end() throws Exception {
            return end.get(5, TimeUnit.SECONDS);
        }

        GenerateResponse next() throws InterruptedException {
            subscription.request(1);
            return events.poll(5, TimeUnit.SECONDS);
        }
    }

    @Test
    void events_come_as_they_are_asked_for_and_then_the_end() throws Exception {
        try (var peer = playing(sending(answer("a", "b"))); var client = peer.client()) {
            Listener listener = new Listener();
            client.publisher(REQUEST, RequestOptions.DEFAULT).subscribe(listener);
            for (GenerateResponse event : answer("a", "b")) {
                assertTrue(listener.events.isEmpty());
                assertEquals(event, listener.next());
            }
            assertNull(listener.end());
        }
    }

    @Test
    void an_unknown_event_is_skipped_and_another_one_given_for_it() throws Exception {
        try (var peer = playing(sending(numbered(started(), unknown(), delta("a"), completed())));
                var client = peer.client()) {
            Listener listener = new Listener();
            client.publisher(REQUEST, RequestOptions.DEFAULT).subscribe(listener);
            assertTrue(listener.next().hasStarted());
            assertTrue(listener.next().hasDelta());
            assertTrue(listener.next().hasCompleted());
            assertNull(listener.end());
        }
    }

    @Test
    void each_subscriber_has_a_call_of_its_own() throws Exception {
        try (var peer = playing(sending(answer("a"))); var client = peer.client()) {
            var publisher = client.publisher(REQUEST, RequestOptions.DEFAULT);
            assertEquals(0, peer.calls());
            for (int calls = 1; calls <= 2; calls++) {
                Listener listener = new Listener();
                publisher.subscribe(listener);
                listener.subscription.request(Long.MAX_VALUE);
                assertNull(listener.end());
                assertEquals(calls, peer.calls());
            }
        }
    }

    @Test
    void cancelling_a_subscription_cancels_the_call() throws Exception {
        try (var peer = playing(hangingAfter(HALF)); var client = peer.client()) {
            Listener listener = new Listener();
            client.publisher(REQUEST, RequestOptions.DEFAULT).subscribe(listener);
            assertTrue(listener.next().hasStarted());
            listener.subscription.cancel();
            assertTrue(peer.sawCancel());
            assertTrue(!listener.end.isDone());
        }
    }

    @Test
    void failures_and_broken_streams_are_told_as_errors() throws Exception {
        try (var peer = playing(failing(Failures.gone(-1), HALF), sending(HALF)); var client = peer.client()) {
            var publisher = client.publisher(REQUEST, RequestOptions.DEFAULT);
            Listener failed = new Listener();
            publisher.subscribe(failed);
            failed.subscription.request(10);
            assertInstanceOf(UnavailableException.class, failed.end());
            Listener cut = new Listener();
            publisher.subscribe(cut);
            cut.subscription.request(10);
            assertInstanceOf(ProtocolException.class, cut.end());
            assertEquals(2, cut.events.size());
        }
    }

    @Test
    void asking_for_nothing_is_an_error_of_the_subscriber() throws Exception {
        try (var peer = playing(hangingAfter(HALF)); var client = peer.client()) {
            Listener listener = new Listener();
            client.publisher(REQUEST, RequestOptions.DEFAULT).subscribe(listener);
            listener.subscription.request(0);
            assertInstanceOf(IllegalArgumentException.class, listener.end());
        }
    }

    @Test
    void a_future_has_the_whole_answer() throws Exception {
        try (var peer = playing(sending(answer("a", "b"))); var client = peer.client()) {
            Answer answer = client.generateAsync(REQUEST, RequestOptions.DEFAULT).get(5, TimeUnit.SECONDS);
            assertEquals("ab", answer.text());
            assertEquals("gen_1", answer.generationId());
        }
    }

    @Test
    void a_future_fails_with_what_the_call_failed_with() {
        try (var peer = playing(failing(Failures.gone(-1), HALF)); var client = peer.client()) {
            var future = client.generateAsync(REQUEST, RequestOptions.DEFAULT);
            var error = assertThrows(CompletionException.class, future::join);
            assertInstanceOf(UnavailableException.class, error.getCause());
        }
    }

    @Test
    void cancelling_a_future_cancels_the_call() throws InterruptedException {
        try (var peer = playing(hangingAfter(HALF)); var client = peer.client()) {
            var future = client.generateAsync(REQUEST, RequestOptions.DEFAULT);
            peer.awaitCall();
            future.cancel(true);
            assertTrue(peer.sawCancel());
        }
    }

    @Test
    void a_future_that_nobody_waits_for_any_more_cancels_the_call() throws InterruptedException {
        try (var peer = playing(hangingAfter(HALF)); var client = peer.client()) {
            var future = client.generateAsync(REQUEST, RequestOptions.DEFAULT).orTimeout(300, TimeUnit.MILLISECONDS);
            assertThrows(CompletionException.class, future::join);
            assertTrue(peer.sawCancel());
        }
    }
}
