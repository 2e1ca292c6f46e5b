package dev.headrace.client;

import dev.headrace.client.errors.HeadraceException;
import dev.headrace.client.errors.ProtocolException;
import dev.headrace.v1.FinishReason;
import dev.headrace.v1.GenerateResponse;
import dev.headrace.v1.GenerationCompleted;
import dev.headrace.v1.GenerationQueued;
import dev.headrace.v1.GenerationStarted;
import dev.headrace.v1.Timing;
import dev.headrace.v1.Usage;
import io.grpc.ClientCall;
import io.grpc.Metadata;
import io.grpc.Status;
import java.util.Iterator;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Optional;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/**
 * A generation in progress: read it in a {@code for} loop inside {@code try (...)}, whose end cancels what is left.
 *
 * <p>The call runs already, with a deadline. Iterating waits for each event, gives all that this client knows in their
 * order, and throws a {@link HeadraceException} if the call fails or the stream has a gap or no end: a cut never looks
 * like success. There is one reader and one iterator; a thread that is interrupted while it reads cancels the call.
 * {@link #cancel()}, {@link #close()} and the questions may come from any thread.
 *
 * <p>Leaving a generation that is retained (it has an idempotency key, or asks for retention) ends this call alone; the
 * server stops it when nobody has read it for a while.
 */
public final class GenerationStream implements Iterable<GenerateResponse>, AutoCloseable {
    // Messages that wait here unread: enough that the reader seldom waits for another thread. Behind them gRPC's flow
    // control holds the server back, which then sends larger pieces.
    private static final int PREFETCH = 8;
    // The status follows `completed` at once, unless the network fails.
    private static final long STATUS_WAIT_MS = 1_000;
    private static final String BY_CALLER = "cancelled by the caller";

    private record End(Status status, Metadata trailers) {}

    // Bounded by what was asked for: a message for each request, and one End.
    private final BlockingQueue<Object> inbox = new LinkedBlockingQueue<>();
    private final CountDownLatch ended = new CountDownLatch(1);
    private final Progress progress;
    private final ClientCall<?, GenerateResponse> call;
    private volatile boolean isCancelled;
    private volatile boolean isClosed;
    // Of the reader alone.
    private boolean isOver;
    private HeadraceException failure;
    private GenerateResponse ahead;

    GenerationStream(EventCall<?> calling) {
        progress = new Progress(calling.after());
        call = calling.start(new Listener());
        call.request(PREFETCH);
    }

    /** All events, once: every call returns the same iterator. */
    @Override
    public Iterator<GenerateResponse> iterator() {
        return new Iterator<>() {
            @Override
            public boolean hasNext() {
                if (ahead == null) {
                    ahead = read();
                }
                return ahead != null;
            }

            @Override
            public GenerateResponse next() {
                if (!hasNext()) {
                    throw new NoSuchElementException("the generation has ended");
                }
                GenerateResponse event = ahead;
                ahead = null;
                return event;
            }
        };
    }

    /** The pieces of text of choice 0, as they come. */
    public Iterable<String> deltas() {
        return () -> new Deltas(iterator());
    }

    /** Reads what is left and returns the text of choice 0 in it, also of an answer that ended early. */
    public String text() {
        return collect().text();
    }

    /** Reads what is left and returns it whole: texts, reasoning, tool calls, finish reasons, usage and timing. */
    public Answer collect() {
        AnswerBuilder answer = new AnswerBuilder();
        forEach(answer::add);
        return answer.build();
    }

    /**
     * Stops the call at once, from any thread. A read that waits, and every later one, throws
     * {@link dev.headrace.client.errors.CancelledException}: there is no end and no usage. For those there is
     * {@link HeadraceClient#cancelGeneration(String)}. Does nothing after the end.
     */
    public void cancel() {
        isCancelled = true;
        call.cancel(BY_CALLER, null);
    }

    /** Cancels what is left of the call. Behind the last event it waits for the status, a second at most. */
    @Override
    public void close() {
        if (isClosed) {
            return;
        }
        if (progress.completed().isPresent()) {
            awaitStatus(); // or this would look like one who cancels
        }
        isClosed = true;
        call.cancel("left by the caller", null);
    }

    /** The server's id, with the first event; for {@link HeadraceClient#cancelGeneration(String)} and the like. */
    public Optional<String> generationId() {
        return progress.generationId();
    }

    /** The request as the server's log knows it, with the first event. */
    public Optional<String> requestId() {
        return progress.requestId();
    }

    /** Number of the last event that was read, for {@link HeadraceClient#attach(String, int)}. */
    public int lastSequence() {
        return progress.lastSequence();
    }

    /** The last place in line that was told; only with {@code output.queue_events}. */
    public Optional<GenerationQueued> queued() {
        return progress.queued();
    }

    /** What was told when the engine took the request. */
    public Optional<GenerationStarted> started() {
        return progress.started();
    }

    /** Token counts, behind the last event; those that are not set are unknown. */
    public Optional<Usage> usage() {
        return progress.completed().map(GenerationCompleted::getUsage);
    }

    /** Where the time went on the server, behind the last event. */
    public Optional<Timing> timing() {
        return progress.completed().map(GenerationCompleted::getTiming);
    }

    /** Why each choice ended, by index, so far. */
    public Map<Integer, FinishReason> finishReasons() {
        return progress.finishReasons();
    }

    /** Returns the next event, or null at a good end. */
    private GenerateResponse read() {
        while (true) {
            if (failure != null) {
                throw failure;
            }
            if (isOver) {
                return null;
            }
            if (isClosed) {
                throw new IllegalStateException("this generation was left; nothing more can be read from it");
            }
            Object next = take();
            if (next instanceof End end) {
                isOver = true;
                Status status = isCancelled ? Status.CANCELLED.withDescription(BY_CALLER) : end.status();
                failure = EventCall.failure(progress, status, end.trailers()).orElse(null);
            } else if (!isCancelled) { // what came before the cancel and was not read is not given out any more
                call.request(1);
                GenerateResponse event = (GenerateResponse) next;
                if (accept(event)) {
                    return event;
                }
            }
        }
    }

    private boolean accept(GenerateResponse event) {
        try {
            return progress.accept(event);
        } catch (ProtocolException e) {
            call.cancel(e.text(), e);
            failure = e;
            return false;
        }
    }

    private Object take() {
        try {
            return inbox.take(); // as long as the deadline of the call
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            call.cancel("the reading thread was interrupted", e);
            Status status = Status.CANCELLED.withDescription("the reading thread was interrupted").withCause(e);
            return new End(status, new Metadata());
        }
    }

    private void awaitStatus() {
        try {
            ended.await(STATUS_WAIT_MS, TimeUnit.MILLISECONDS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private final class Listener extends ClientCall.Listener<GenerateResponse> {
        @Override
        public void onHeaders(Metadata headers) {
            EventCall.onHeaders(progress, headers);
        }

        @Override
        public void onMessage(GenerateResponse event) {
            inbox.add(event);
        }

        @Override
        public void onClose(Status status, Metadata trailers) {
            inbox.add(new End(status, trailers));
            ended.countDown();
        }
    }

    /** The texts of choice 0 among events. */
    private static final class Deltas implements Iterator<String> {
        private final Iterator<GenerateResponse> events;
        private String ahead = "";

        Deltas(Iterator<GenerateResponse> events) {
            this.events = events;
        }

        @Override
        public boolean hasNext() {
            while (ahead.isEmpty() && events.hasNext()) {
                GenerateResponse event = events.next();
                if (event.hasDelta() && event.getDelta().getIndex() == 0) {
                    ahead = event.getDelta().getText();
                }
            }
            return !ahead.isEmpty();
        }

        @Override
        public String next() {
            if (!hasNext()) {
                throw new NoSuchElementException("the generation has ended");
            }
            String text = ahead;
            ahead = "";
            return text;
        }
    }
}
