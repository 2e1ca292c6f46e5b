package dev.headrace.client;

import static dev.headrace.client.support.Events.answer;
import static dev.headrace.client.support.Peer.playing;
import static dev.headrace.client.support.Peer.sending;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.headrace.client.errors.UnavailableException;
import dev.headrace.client.support.Certificates;
import dev.headrace.client.support.Peer;
import dev.headrace.v1.GenerateRequest;
import io.grpc.TlsServerCredentials;
import io.grpc.TlsServerCredentials.ClientAuth;
import java.io.UncheckedIOException;
import java.nio.file.Path;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class TlsTest {
    private static final GenerateRequest REQUEST =
            GenerateRequest.newBuilder().setModel("sim").setPrompt("hi").build();

    @TempDir
    static Path folder;

    private static Certificates server;
    private static Certificates mine;
    private static Peer peer;

    /** A server that asks for a certificate. */
    @BeforeAll
    static void start() throws Exception {
        server = Certificates.make(folder, "server");
        mine = Certificates.make(folder, "mine");
        var credentials = TlsServerCredentials.newBuilder()
                .keyManager(server.certificate().toFile(), server.key().toFile())
                .trustManager(mine.certificate().toFile())
                .clientAuth(ClientAuth.REQUIRE)
                .build();
        peer = playing(credentials, sending(answer("a")));
    }

    @AfterAll
    static void stop() {
        peer.close();
    }

    @Test
    void both_sides_show_a_certificate() {
        assertEquals(
                "a",
                text(peer.builder().tls(server.certificate()).clientCertificate(mine.certificate(), mine.key())));
    }

    @Test
    void a_server_that_is_not_trusted_is_refused() {
        var trusting = peer.builder().tls(mine.certificate()).clientCertificate(mine.certificate(), mine.key());
        assertThrows(UnavailableException.class, () -> text(trusting));
        var strict = peer.builder().tls().clientCertificate(mine.certificate(), mine.key());
        assertThrows(UnavailableException.class, () -> text(strict));
    }

    @Test
    void a_name_that_the_certificate_lacks_is_refused() {
        var other = peer.builder()
                .tls(server.certificate())
                .clientCertificate(mine.certificate(), mine.key())
                .authority("llm.example");
        assertThrows(UnavailableException.class, () -> text(other));
    }

    @Test
    void without_tls_there_is_no_answer() {
        assertThrows(UnavailableException.class, () -> text(peer.builder()));
    }

    @Test
    void a_file_that_is_not_there_is_told_at_once() {
        assertThrows(UncheckedIOException.class, () -> peer.builder().tls(folder.resolve("missing.pem")));
    }

    private static String text(HeadraceClientBuilder builder) {
        try (var client = builder.retries(false).build(); var stream = client.generate(REQUEST)) {
            return stream.text();
        }
    }
}
