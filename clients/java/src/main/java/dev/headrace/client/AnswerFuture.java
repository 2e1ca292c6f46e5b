package dev.headrace.client;

import dev.headrace.v1.GenerateResponse;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Flow;

/** A whole answer that is still to come; a call that is cancelled with the future, and ends when nobody wants it. */
final class AnswerFuture extends CompletableFuture<Answer> implements Flow.Subscriber<GenerateResponse> {
    private final AnswerBuilder answer = new AnswerBuilder();

    AnswerFuture(EventCall<?> calling) {
        new GenerationPublisher(calling).subscribe(this);
    }

    @Override
    public void onSubscribe(Flow.Subscription subscription) {
        // Completed from elsewhere, by cancel() or a timeout of its own: nobody waits for the rest.
        whenComplete((done, error) -> subscription.cancel());
        subscription.request(Long.MAX_VALUE);
    }

    @Override
    public void onNext(GenerateResponse event) {
        answer.add(event);
    }

    @Override
    public void onError(Throwable error) {
        completeExceptionally(error);
    }

    @Override
    public void onComplete() {
        complete(answer.build());
    }
}
