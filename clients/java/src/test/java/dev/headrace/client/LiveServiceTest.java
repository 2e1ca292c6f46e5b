package dev.headrace.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.headrace.client.errors.CapabilityUnsupportedException;
import dev.headrace.client.errors.DeadlineExceededException;
import dev.headrace.client.errors.IdempotencyMismatchException;
import dev.headrace.client.errors.InvalidRequestException;
import dev.headrace.client.errors.NotFoundException;
import dev.headrace.client.support.LiveService;
import dev.headrace.v1.FinishReason;
import dev.headrace.v1.GenerateRequest;
import dev.headrace.v1.GenerationState;
import dev.headrace.v1.GetGenerationRequest;
import dev.headrace.v1.OutputOptions;
import dev.headrace.v1.SamplingParams;
import dev.headrace.v1.TokenizeRequest;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** The whole surface against the service as it is started. */
class LiveServiceTest {
    private static final String MODEL = "simulator";
    private static LiveService service;
    private static HeadraceClient client;

    @BeforeAll
    static void start() throws Exception {
        service = LiveService.start(Map.of());
        client = HeadraceClient.connect(service.target());
    }

    @AfterAll
    static void stop() throws Exception {
        if (client != null) {
            client.close();
        }
        if (service != null) {
            service.close();
        }
    }

    @Test
    void text_comes_in_pieces_with_usage_and_timing() {
        var request = script("\"tokens\": [\"Grüße \", \"👋 \"], \"output_tokens\": 4, \"token_ms\": 5");
        try (var stream = client.generate(request)) {
            List<String> pieces = new ArrayList<>();
            stream.deltas().forEach(pieces::add);
            assertEquals("Grüße 👋 Grüße 👋 ", String.join("", pieces));
            assertTrue(pieces.size() > 1, pieces.toString());
            assertEquals(4, stream.usage().orElseThrow().getOutputTokenCount());
            assertTrue(stream.timing().orElseThrow().hasTimeToFirstToken());
            assertFalse(stream.requestId().orElseThrow().isEmpty());
        }
    }

    @Test
    void several_choices_are_collected() {
        var request = script("\"tokens\": [\"x\"], \"output_tokens\": 3").toBuilder().setChoiceCount(2).build();
        try (var stream = client.generate(request)) {
            Answer answer = stream.collect();
            assertEquals(List.of("xxx", "xxx"), answer.choices().stream().map(Choice::text).toList());
            assertEquals(MODEL, answer.model());
        }
    }

    @Test
    void a_generation_can_be_found_and_stopped_by_its_id() {
        try (var stream = client.generate(endless())) {
            var pieces = stream.deltas().iterator();
            pieces.next();
            String id = stream.generationId().orElseThrow();
            assertEquals(GenerationState.GENERATION_STATE_RUNNING, client.getGeneration(id).getState());
            assertEquals(
                    GenerationState.GENERATION_STATE_CANCELLED,
                    client.cancelGeneration(id).getState());
            pieces.forEachRemaining(piece -> {});
            assertEquals(Map.of(0, FinishReason.FINISH_REASON_CANCELLED), stream.finishReasons());
            assertTrue(stream.usage().orElseThrow().hasOutputTokenCount());
        }
    }

    @Test
    void a_retained_generation_is_read_on_where_it_was_left() {
        var request = script("\"tokens\": [\"a\", \"b\"], \"output_tokens\": 20, \"token_ms\": 5").toBuilder()
                .setIdempotencyKey("java-live-1")
                .build();
        StringBuilder text = new StringBuilder();
        String id;
        int last;
        try (var stream = client.generate(request)) {
            text.append(stream.deltas().iterator().next());
            id = stream.generationId().orElseThrow();
            last = stream.lastSequence();
        }
        try (var stream = client.attach(id, last)) {
            stream.deltas().forEach(text::append);
            assertEquals(id, stream.generationId().orElseThrow());
        }
        assertEquals("ab".repeat(10), text.toString());
        try (var again = client.generate(request)) {
            assertEquals(text.toString(), again.text());
            assertEquals(id, again.generationId().orElseThrow());
        }
        var byKey = GetGenerationRequest.newBuilder().setIdempotencyKey("java-live-1").build();
        assertEquals(
                GenerationState.GENERATION_STATE_COMPLETED,
                client.getGeneration(byKey, RequestOptions.DEFAULT).getState());
        var other = request.toBuilder().setPrompt("something else").build();
        try (var stream = client.generate(other)) {
            assertThrows(IdempotencyMismatchException.class, stream::text);
        }
        try (var behind = client.attach(id, last + 100)) {
            assertThrows(InvalidRequestException.class, behind::text);
        }
    }

    @Test
    void a_soft_limit_is_an_answer_and_a_hard_one_a_failure() {
        var soft = endless().toBuilder()
                .setTimeLimit(com.google.protobuf.Duration.newBuilder().setNanos(300_000_000))
                .build();
        try (var stream = client.generate(soft)) {
            Answer answer = stream.collect();
            assertEquals(FinishReason.FINISH_REASON_TIME_LIMIT, answer.finishReason());
            assertFalse(answer.text().isEmpty());
        }
        try (var stream = client.generate(endless(), RequestOptions.timeout(Duration.ofMillis(300)))) {
            assertThrows(DeadlineExceededException.class, stream::text);
        }
    }

    @Test
    void wrong_fields_are_named_all_at_once() {
        var request = GenerateRequest.newBuilder()
                .setModel(MODEL)
                .setPrompt("hi")
                .setSampling(SamplingParams.newBuilder().setTemperature(9).setTopP(3))
                .build();
        try (var stream = client.generate(request)) {
            var error = assertThrows(InvalidRequestException.class, stream::text);
            assertEquals(
                    List.of("sampling.temperature", "sampling.top_p"),
                    error.violations().stream().map(it -> it.field()).toList());
            assertEquals("INVALID_FIELD", error.reason().orElseThrow());
            assertFalse(error.requestId().orElseThrow().isEmpty());
        }
    }

    @Test
    void models_are_listed_and_found() {
        assertEquals(MODEL, client.defaultModel());
        assertEquals(1, client.listModels().size());
        assertEquals(MODEL, client.getModel(MODEL).getId());
        var error = assertThrows(NotFoundException.class, () -> client.getModel("nobody"));
        assertEquals("nobody", error.resource().orElseThrow());
    }

    @Test
    void what_a_model_cannot_do_is_told_by_name() {
        var request = endless().toBuilder()
                .setOutput(OutputOptions.newBuilder().setQueueEvents(true))
                .setConstraint(dev.headrace.v1.OutputConstraint.newBuilder().setRegex("a+"))
                .build();
        try (var stream = client.generate(request)) {
            var error = assertThrows(CapabilityUnsupportedException.class, stream::text);
            assertFalse(error.metadata().get("capability").isEmpty());
        }
    }

    @Test
    void texts_become_tokens_or_the_reason_why_not() {
        try {
            var tokens = client.tokenize(
                    TokenizeRequest.newBuilder().setModel(MODEL).setText("the river").build());
            assertTrue(tokens.getTokenCount() > 0);
        } catch (CapabilityUnsupportedException e) {
            assertEquals("CAPABILITY_UNSUPPORTED", e.reason().orElseThrow());
        }
    }

    @Test
    void a_future_has_the_answer() {
        var request = script("\"tokens\": [\"a\"], \"output_tokens\": 3");
        assertEquals("aaa", client.generateAsync(request, RequestOptions.DEFAULT).join().text());
    }

    private static GenerateRequest script(String script) {
        return GenerateRequest.newBuilder()
                .setModel(MODEL)
                .setPrompt("simulate: {" + script + "}")
                .build();
    }

    private static GenerateRequest endless() {
        return script("\"tokens\": [\"t\"], \"token_ms\": 20").toBuilder()
                .setSampling(SamplingParams.newBuilder().setMaxOutputTokens(4000))
                .build();
    }
}
