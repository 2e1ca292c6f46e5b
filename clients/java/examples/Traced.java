import dev.headrace.client.HeadraceClient;
import dev.headrace.v1.GenerateRequest;
import dev.headrace.v1.SamplingParams;
import io.opentelemetry.api.GlobalOpenTelemetry;
import io.opentelemetry.context.Context;
import java.util.function.BiConsumer;

/** Hands the context of the current trace on, with whatever propagators OpenTelemetry was set up with. */
public class Traced {
    public static void main(String[] args) {
        var propagator = GlobalOpenTelemetry.getPropagators().getTextMapPropagator();
        try (var client = HeadraceClient.builder()
                .headers(put -> propagator.inject(Context.current(), put, BiConsumer::accept))
                .build()) {
            var request = GenerateRequest.newBuilder()
                    .setModel(client.defaultModel())
                    .setPrompt("The river")
                    .setSampling(SamplingParams.newBuilder().setMaxOutputTokens(16))
                    .build();
            try (var stream = client.generate(request)) {
                System.out.println(stream.text());
            }
        }
    }
}
