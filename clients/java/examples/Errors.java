import dev.headrace.client.HeadraceClient;
import dev.headrace.client.errors.HeadraceException;
import dev.headrace.client.errors.InvalidRequestException;
import dev.headrace.client.errors.OverloadedException;
import dev.headrace.v1.GenerateRequest;
import dev.headrace.v1.SamplingParams;

/** Failures by their kind. */
public class Errors {
    public static void main(String[] args) {
        try (var client = HeadraceClient.connect()) {
            var sampling = SamplingParams.newBuilder().setTemperature(9).setTopP(3);
            ask(client, GenerateRequest.newBuilder().setModel("any").setPrompt("Hi").setSampling(sampling));
            ask(client, GenerateRequest.newBuilder().setModel("no-such-model").setPrompt("Hi"));
        }
    }

    static void ask(HeadraceClient client, GenerateRequest.Builder request) {
        try (var stream = client.generate(request.build())) {
            System.out.println(stream.text());
        } catch (InvalidRequestException e) {
            e.violations().forEach(it -> System.out.println(it.field() + ": " + it.description())); // all of them
        } catch (OverloadedException e) {
            System.out.println("busy; come back in " + e.retryAfter().map(Object::toString).orElse("a while"));
        } catch (HeadraceException e) {
            System.out.println(e.getMessage() + " (request " + e.requestId().orElse("unknown") + ")");
        }
    }
}
