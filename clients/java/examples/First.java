import dev.headrace.client.HeadraceClient;
import dev.headrace.v1.GenerateRequest;
import dev.headrace.v1.SamplingParams;

/** Streams an answer. */
public class First {
    public static void main(String[] args) {
        try (var client = HeadraceClient.connect()) {
            var request = GenerateRequest.newBuilder()
                    .setModel(client.defaultModel())
                    .setPrompt("The river")
                    .setSampling(SamplingParams.newBuilder().setMaxOutputTokens(64))
                    .build();
            try (var stream = client.generate(request)) {
                for (var piece : stream.deltas()) {
                    System.out.print(piece);
                }
                System.out.println("\n" + stream.finishReasons());
            }
        }
    }
}
