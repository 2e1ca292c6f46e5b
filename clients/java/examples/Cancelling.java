import dev.headrace.client.HeadraceClient;
import dev.headrace.client.errors.CancelledException;
import dev.headrace.v1.GenerateRequest;
import dev.headrace.v1.SamplingParams;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** Three ways to stop: leave the block, cancel from another thread, stop by id. */
public class Cancelling {
    public static void main(String[] args) {
        try (var client = HeadraceClient.connect()) {
            var request = GenerateRequest.newBuilder()
                    .setModel(client.defaultModel())
                    .setPrompt("The river")
                    .setSampling(SamplingParams.newBuilder().setMaxOutputTokens(1000))
                    .build();

            try (var stream = client.generate(request)) {
                System.out.println("left after: " + stream.deltas().iterator().next());
            } // the server stops here

            var later = CompletableFuture.delayedExecutor(300, TimeUnit.MILLISECONDS);
            try (var stream = client.generate(request)) {
                CompletableFuture.runAsync(stream::cancel, later);
                stream.collect();
            } catch (CancelledException e) {
                System.out.println("cancelled from another thread");
            }

            try (var stream = client.generate(request)) {
                var pieces = stream.deltas().iterator();
                pieces.next(); // the id comes with the first event
                client.cancelGeneration(stream.generationId().orElseThrow());
                pieces.forEachRemaining(piece -> {});
                System.out.println("stopped by id: " + stream.finishReasons() + ", "
                        + stream.usage().orElseThrow().getOutputTokenCount() + " tokens");
            }
        }
    }
}
