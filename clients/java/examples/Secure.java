import dev.headrace.client.HeadraceClient;
import java.nio.file.Path;
import java.time.Duration;

/** TLS with a certificate authority of one's own, and an API key. */
public class Secure {
    public static void main(String[] args) {
        try (var client = HeadraceClient.builder() // HEADRACE_TARGET and HEADRACE_API_KEY
                .tls(Path.of("ca.pem"))
                .keepAlive(Duration.ofSeconds(30)) // the service allows it; a proxy may not
                .build()) {
            client.listModels().forEach(model -> System.out.println(model.getId() + " " + model.getState()));
        }
    }
}
