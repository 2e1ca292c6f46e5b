package dev.headrace.client.support;

import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** The real service of this repository over its simulator, in a process of its own on a free port. */
public final class LiveService implements AutoCloseable {
    private static final Path ROOT = Path.of("../..").toAbsolutePath().normalize();
    private static final Path BIN = ROOT.resolve(".venv/bin");
    private static final Pattern SERVING = Pattern.compile("serving on (127\\.0\\.0\\.1:\\d+)");
    private static final long START_S = 30;

    private final Process process;
    private final CompletableFuture<String> target = new CompletableFuture<>();
    private final StringBuffer log = new StringBuffer();

    private LiveService(Process process) {
        this.process = process;
    }

    /**
     * Starts one with settings of its own. Where the service's environment is not made (`make test` and its neighbours
     * make it) the test is skipped, but not in CI.
     */
    public static LiveService start(Map<String, String> environment, String... arguments) throws Exception {
        boolean isThere = Files.isExecutable(BIN.resolve("python"));
        assumeTrue(isThere || System.getenv("CI") != null, "there is no .venv to run the service in");
        List<String> command = new ArrayList<>(List.of(
                BIN.resolve("python").toString(), "-m", "service", "--backend", "simulator", "--grpc-port", "0"));
        command.addAll(List.of(arguments));
        ProcessBuilder builder =
                new ProcessBuilder(command).directory(ROOT.toFile()).redirectErrorStream(true);
        builder.environment().putAll(environment);
        LiveService service = new LiveService(builder.start());
        Thread reader = new Thread(service::read, "log of the service");
        reader.setDaemon(true);
        reader.start();
        service.target.get(START_S, TimeUnit.SECONDS);
        return service;
    }

    /** Runs a command of the Python client and returns what it printed. */
    public static String headrace(Map<String, String> environment, String... arguments) throws Exception {
        List<String> command = new ArrayList<>(List.of(BIN.resolve("headrace").toString()));
        command.addAll(List.of(arguments));
        ProcessBuilder builder = new ProcessBuilder(command);
        builder.environment().putAll(environment);
        Process process = builder.start();
        String printed = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        if (process.waitFor() != 0) {
            throw new IOException(new String(process.getErrorStream().readAllBytes(), StandardCharsets.UTF_8));
        }
        return printed.strip();
    }

    public String target() {
        return target.join();
    }

    /** What it has logged so far. */
    public String log() {
        return log.toString();
    }

    @Override
    public void close() {
        process.destroy();
        try {
            if (!process.waitFor(10, TimeUnit.SECONDS)) {
                process.destroyForcibly();
            }
        } catch (InterruptedException e) {
            process.destroyForcibly();
            Thread.currentThread().interrupt();
        }
    }

    private void read() {
        try (var lines = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                log.append(line).append('\n');
                Matcher serving = SERVING.matcher(line);
                if (serving.find()) {
                    target.complete(serving.group(1));
                }
            }
        } catch (IOException e) {
            log.append(e);
        }
        target.completeExceptionally(new IllegalStateException("the service has ended: " + log));
    }
}
