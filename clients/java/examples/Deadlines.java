import dev.headrace.client.HeadraceClient;
import dev.headrace.client.RequestOptions;
import dev.headrace.client.errors.DeadlineExceededException;
import dev.headrace.v1.GenerateRequest;
import dev.headrace.v1.SamplingParams;
import java.time.Duration;

/** A hard limit, which fails the call, and a soft one, which ends the answer early and well. */
public class Deadlines {
    public static void main(String[] args) {
        try (var client = HeadraceClient.connect()) {
            var request = GenerateRequest.newBuilder()
                    .setModel(client.defaultModel())
                    .setPrompt("The river")
                    .setSampling(SamplingParams.newBuilder().setMaxOutputTokens(1000));

            var text = new StringBuilder();
            try (var stream = client.generate(request.build(), RequestOptions.timeout(Duration.ofMillis(500)))) {
                stream.deltas().forEach(text::append);
            } catch (DeadlineExceededException e) {
                System.out.println("out of time after " + text.length() + " characters");
            }

            var half = com.google.protobuf.Duration.newBuilder().setNanos(500_000_000);
            try (var stream = client.generate(request.setTimeLimit(half).build())) {
                var answer = stream.collect();
                System.out.println(answer.finishReason() + " after " + answer.text().length() + " characters");
            }
        }
    }
}
