import dev.headrace.client.HeadraceClient;
import dev.headrace.client.RequestOptions;
import dev.headrace.v1.GenerateRequest;
import dev.headrace.v1.GenerateResponse;
import dev.headrace.v1.SamplingParams;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Flow;

/** Without a thread that waits: a future for the whole answer, a publisher for its events. */
public class Async {
    public static void main(String[] args) {
        try (var client = HeadraceClient.connect()) {
            var request = GenerateRequest.newBuilder()
                    .setModel(client.defaultModel())
                    .setPrompt("The river")
                    .setSampling(SamplingParams.newBuilder().setMaxOutputTokens(32))
                    .build();

            var one = client.generateAsync(request, RequestOptions.DEFAULT);
            var two = client.generateAsync(request, RequestOptions.DEFAULT);
            System.out.println(one.thenCombine(two, (a, b) -> a.text().length() + b.text().length()).join());

            var printer = new Printer();
            client.publisher(request, RequestOptions.DEFAULT).subscribe(printer);
            printer.done.join();
        }
    }

    /** Asks for one event after the other, so that a slow one holds the server back. */
    static class Printer implements Flow.Subscriber<GenerateResponse> {
        final CompletableFuture<Void> done = new CompletableFuture<>();
        private Flow.Subscription subscription;

        public void onSubscribe(Flow.Subscription s) {
            subscription = s;
            subscription.request(1);
        }

        public void onNext(GenerateResponse event) {
            System.out.print(event.getDelta().getText());
            subscription.request(1);
        }

        public void onError(Throwable error) {
            done.completeExceptionally(error);
        }

        public void onComplete() {
            System.out.println();
            done.complete(null);
        }
    }
}
