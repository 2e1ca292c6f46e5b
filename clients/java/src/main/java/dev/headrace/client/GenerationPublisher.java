package dev.headrace.client;

import dev.headrace.client.errors.ProtocolException;
import dev.headrace.v1.GenerateResponse;
import io.grpc.ClientCall;
import io.grpc.Metadata;
import io.grpc.Status;
import java.util.Objects;
import java.util.concurrent.Flow;

/** The events of a generation as a {@link Flow.Publisher}: each subscriber starts a call of its own. */
final class GenerationPublisher implements Flow.Publisher<GenerateResponse> {
    private final EventCall<?> calling;

    GenerationPublisher(EventCall<?> calling) {
        this.calling = calling;
    }

    @Override
    public void subscribe(Flow.Subscriber<? super GenerateResponse> subscriber) {
        new Subscription(calling, Objects.requireNonNull(subscriber)).begin();
    }

    /** One call. gRPC calls its listener one callback after the other; `request` and `cancel` come from anywhere. */
    private static final class Subscription extends ClientCall.Listener<GenerateResponse>
            implements Flow.Subscription {
        private final EventCall<?> calling;
        private final Flow.Subscriber<? super GenerateResponse> subscriber;
        private final Progress progress;
        // What the subscriber wanted before there was a call to ask; guarded by this, like the call.
        private long wanted;
        private ClientCall<?, GenerateResponse> call;
        private volatile boolean isCancelled;
        private volatile Throwable failure;

        Subscription(EventCall<?> calling, Flow.Subscriber<? super GenerateResponse> subscriber) {
            this.calling = calling;
            this.subscriber = subscriber;
            progress = new Progress(calling.after());
        }

        void begin() {
            subscriber.onSubscribe(this);
            if (isCancelled) {
                return;
            }
            if (failure != null) { // it asked for nothing at all
                subscriber.onError(failure);
                return;
            }
            synchronized (this) {
                call = calling.start(this);
                ask(wanted);
            }
            stopIfOver();
        }

        @Override
        public void request(long count) {
            if (count <= 0) {
                fail(new IllegalArgumentException("a subscriber asks for at least one event, not " + count));
                return;
            }
            synchronized (this) {
                if (call == null) {
                    wanted = wanted + count < 0 ? Long.MAX_VALUE : wanted + count;
                } else {
                    ask(count);
                }
            }
        }

        @Override
        public void cancel() {
            isCancelled = true;
            stopIfOver();
        }

        @Override
        public void onHeaders(Metadata headers) {
            EventCall.onHeaders(progress, headers);
        }

        @Override
        public void onMessage(GenerateResponse event) {
            if (isCancelled || failure != null) {
                return;
            }
            try {
                if (progress.accept(event)) {
                    subscriber.onNext(event);
                } else {
                    request(1); // the subscriber is still owed one
                }
            } catch (ProtocolException e) {
                fail(e);
            }
        }

        @Override
        public void onClose(Status status, Metadata trailers) {
            if (isCancelled) {
                return;
            }
            Throwable end =
                    failure != null ? failure : EventCall.failure(progress, status, trailers).orElse(null);
            if (end == null) {
                subscriber.onComplete();
            } else {
                subscriber.onError(end);
            }
        }

        /** Ends the call; its last callback tells the subscriber. */
        private void fail(Throwable problem) {
            failure = problem;
            stopIfOver();
        }

        private void stopIfOver() {
            ClientCall<?, GenerateResponse> running;
            synchronized (this) {
                running = call;
            }
            if (running != null && (isCancelled || failure != null)) {
                running.cancel(isCancelled ? "cancelled by the caller" : failure.getMessage(), failure);
            }
        }

        private void ask(long count) {
            if (count > 0) {
                call.request((int) Math.min(count, Integer.MAX_VALUE));
            }
        }
    }
}
