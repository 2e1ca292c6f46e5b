package dev.headrace.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.params.provider.Arguments.arguments;

import dev.headrace.client.support.Certificates;
import dev.headrace.client.support.LiveService;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/** Every program in examples/ runs, as its reader would run it, and says what the guide promises. */
class ExamplesTest {
    private static final Set<String> RAN = new TreeSet<>();
    private static final Path LIB = Path.of("target/lib").toAbsolutePath();

    @TempDir
    static Path folder;

    private static LiveService service;

    @BeforeAll
    static void start() throws Exception {
        service = LiveService.start(Map.of(), "--simulator-token-ms", "5");
    }

    @AfterAll
    static void stop() throws Exception {
        if (service != null) {
            service.close();
        }
        try (var files = Files.list(Path.of("examples"))) {
            var all = files.map(file -> file.getFileName().toString().replace(".java", ""))
                    .collect(Collectors.toCollection(TreeSet::new));
            assertEquals(all, RAN);
        }
    }

    @ParameterizedTest
    @MethodSource
    void an_example_says_what_the_guide_promises(String name, List<String> promised) throws Exception {
        String printed = run(name, Map.of("HEADRACE_TARGET", service.target()), "");
        promised.forEach(text -> assertTrue(printed.contains(text), printed));
    }

    static Stream<Arguments> an_example_says_what_the_guide_promises() {
        return Stream.of(
                arguments("First", List.of("{0=FINISH_REASON_LENGTH}")),
                arguments("Talk", List.of("FINISH_REASON_LENGTH, 32 tokens")),
                arguments("Deadlines", List.of("out of time after ", "FINISH_REASON_TIME_LIMIT after ")),
                arguments(
                        "Cancelling",
                        List.of(
                                "left after: ",
                                "cancelled from another thread",
                                "stopped by id: {0=FINISH_REASON_CANCELLED}")),
                arguments(
                        "Errors",
                        List.of(
                                "sampling.temperature: must be from 0 to 2",
                                "sampling.top_p: ",
                                "MODEL_NOT_FOUND: ")),
                arguments("Async", List.of("\n")),
                arguments("Resuming", List.of("true: ")),
                arguments("Traced", List.of(" ")));
    }

    @Test
    void the_chat_answers_each_line() throws Exception {
        String printed = run("ChatLoop", Map.of("HEADRACE_TARGET", service.target()), "Hi\nAnd then?\n");
        assertEquals(4, printed.split("simulator> ", -1).length, printed);
    }

    @Test
    void the_secure_example_reaches_a_server_that_asks_who_calls() throws Exception {
        Certificates certificates = Certificates.make(folder, "ca");
        Map<String, String> keys = Map.of("HEADRACE_KEYS_FILE", folder.resolve("keys.toml").toString());
        String key = LiveService.headrace(keys, "keys", "create", "--tenant", "acme");
        try (LiveService secure = LiveService.start(
                keys,
                "--tls-cert-file", certificates.certificate().toString(),
                "--tls-key-file", certificates.key().toString())) {
            Map<String, String> environment = Map.of("HEADRACE_TARGET", secure.target(), "HEADRACE_API_KEY", key);
            assertTrue(run("Secure", environment, "").contains("simulator MODEL_STATE_READY"));
        }
    }

    private static String run(String name, Map<String, String> environment, String input) throws Exception {
        ProcessBuilder builder = new ProcessBuilder(
                        Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                        "-XX:TieredStopAtLevel=1",
                        "-cp",
                        classes("test-classes") + ":" + classes("classes") + ":" + LIB + "/*",
                        name)
                .directory(folder.toFile())
                .redirectErrorStream(true);
        builder.environment().putAll(environment);
        Process process = builder.start();
        try (var out = process.getOutputStream()) {
            out.write(input.getBytes(StandardCharsets.UTF_8));
        }
        String printed = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        assertEquals(0, process.waitFor(), printed);
        RAN.add(name);
        return printed;
    }

    private static Path classes(String folder) throws IOException {
        return Path.of("target", folder).toRealPath();
    }
}
