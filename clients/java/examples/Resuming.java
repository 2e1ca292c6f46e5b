import dev.headrace.client.HeadraceClient;
import dev.headrace.v1.GenerateRequest;
import dev.headrace.v1.SamplingParams;
import java.util.UUID;

/** With an idempotency key a generation runs once: a repetition joins it, and a lost reader reads on. */
public class Resuming {
    public static void main(String[] args) {
        try (var client = HeadraceClient.connect()) {
            var request = GenerateRequest.newBuilder()
                    .setModel(client.defaultModel())
                    .setPrompt("The river")
                    .setSampling(SamplingParams.newBuilder().setMaxOutputTokens(32))
                    .setIdempotencyKey(UUID.randomUUID().toString())
                    .build();

            var text = new StringBuilder();
            String id;
            int last;
            try (var stream = client.generate(request)) {
                text.append(stream.deltas().iterator().next()); // and here the connection is lost
                id = stream.generationId().orElseThrow();
                last = stream.lastSequence();
            }
            try (var stream = client.attach(id, last)) {
                stream.deltas().forEach(text::append);
            }
            try (var again = client.generate(request)) { // runs nothing
                System.out.println(again.text().contentEquals(text) + ": " + text);
            }
        }
    }
}
