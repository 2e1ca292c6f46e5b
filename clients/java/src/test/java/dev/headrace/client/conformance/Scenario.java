package dev.headrace.client.conformance;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.Message;
import com.google.protobuf.util.JsonFormat;
import dev.headrace.client.GenerationStream;
import dev.headrace.client.HeadraceClient;
import dev.headrace.client.HeadraceClientBuilder;
import dev.headrace.client.RequestOptions;
import dev.headrace.client.errors.HeadraceException;
import dev.headrace.client.errors.ProtocolException;
import dev.headrace.v1.CancelGenerationRequest;
import dev.headrace.v1.FinishReason;
import dev.headrace.v1.GenerateRequest;
import dev.headrace.v1.GenerateResponse;
import dev.headrace.v1.GenerationState;
import dev.headrace.v1.GetGenerationRequest;
import dev.headrace.v1.Model;
import dev.headrace.v1.Usage;
import java.time.Duration;
import java.util.Map;
import java.util.TreeMap;

/** One scenario, carried out with the public interface of the client. */
final class Scenario {
    private final JsonObject scenario;
    private final Map<Integer, StringBuilder> texts = new TreeMap<>();
    private int deltas;
    private int queued;

    Scenario(JsonObject scenario) {
        this.scenario = scenario;
    }

    /** Carries it out and writes into {@code told} what came of it. */
    void play(JsonObject told) {
        HeadraceClientBuilder builder = HeadraceClient.builder(text("target", ""));
        if (!text("api_key", "").isEmpty()) {
            builder.apiKey(text("api_key", ""));
        }
        builder.retries(!scenario.has("retries") || scenario.get("retries").getAsBoolean());
        try (HeadraceClient client = builder.build()) {
            switch (text("call", "generate")) {
                case "generate" -> generate(client, told);
                case "models" -> models(client, told);
                case "get_generation" -> {
                    var request = request(GetGenerationRequest.newBuilder()).build();
                    state(told, client.getGeneration(request, options()).getState());
                }
                case "cancel_generation" -> {
                    var request = request(CancelGenerationRequest.newBuilder()).build();
                    state(told, client.cancelGeneration(request, options()).getState());
                }
                default -> throw new IllegalArgumentException("no such call: " + text("call", ""));
            }
            told.addProperty("status", "OK");
        } catch (HeadraceException e) {
            failed(told, e);
        }
    }

    private void generate(HeadraceClient client, JsonObject told) {
        GenerateRequest request = request(GenerateRequest.newBuilder()).build();
        try (GenerationStream stream = client.generate(request, options())) {
            try {
                for (GenerateResponse event : stream) {
                    take(event);
                    act(client, stream, event);
                }
            } finally {
                heard(told, stream);
            }
        }
    }

    private void take(GenerateResponse event) {
        if (event.hasQueued()) {
            queued++;
        } else if (event.hasDelta()) {
            deltas++;
            texts.computeIfAbsent(event.getDelta().getIndex(), index -> new StringBuilder())
                    .append(event.getDelta().getText());
        }
    }

    private void act(HeadraceClient client, GenerationStream stream, GenerateResponse event) {
        if (!event.hasDelta() || !scenario.has("act")) {
            return;
        }
        JsonObject act = scenario.getAsJsonObject("act");
        if (act.has("cancel_after_deltas") && deltas == act.get("cancel_after_deltas").getAsInt()) {
            stream.cancel();
        } else if (act.has("stop_after_deltas") && deltas == act.get("stop_after_deltas").getAsInt()) {
            client.cancelGeneration(stream.generationId().orElseThrow());
        }
    }

    private void heard(JsonObject told, GenerationStream stream) {
        told.addProperty("text", texts.getOrDefault(0, new StringBuilder()).toString());
        told.addProperty("deltas", deltas);
        told.addProperty("queued", queued);
        if (texts.size() > 1) {
            JsonObject all = new JsonObject();
            texts.forEach((index, text) -> all.addProperty(index.toString(), text.toString()));
            told.add("texts", all);
        }
        Map<Integer, FinishReason> reasons = new TreeMap<>(stream.finishReasons());
        if (reasons.containsKey(0)) {
            told.addProperty("finish_reason", name(reasons.get(0), "FINISH_REASON_"));
        }
        if (reasons.size() > 1) {
            JsonObject all = new JsonObject();
            reasons.forEach((index, reason) -> all.addProperty(index.toString(), name(reason, "FINISH_REASON_")));
            told.add("finish_reasons", all);
        }
        Usage usage = stream.usage().orElse(Usage.getDefaultInstance());
        if (usage.hasPromptTokenCount()) {
            told.addProperty("prompt_tokens", usage.getPromptTokenCount());
        }
        if (usage.hasOutputTokenCount()) {
            told.addProperty("output_tokens", usage.getOutputTokenCount());
        }
        stream.generationId().ifPresent(id -> told.addProperty("generation_id", id));
        stream.requestId().ifPresent(id -> told.addProperty("request_id", id));
    }

    private static void models(HeadraceClient client, JsonObject told) {
        JsonArray ids = new JsonArray();
        client.listModels().stream().map(Model::getId).forEach(ids::add);
        told.add("models", ids);
    }

    private static void state(JsonObject told, GenerationState state) {
        told.addProperty("state", name(state, "GENERATION_STATE_"));
    }

    private static void failed(JsonObject told, HeadraceException error) {
        told.addProperty("status", error.status().name());
        if (error instanceof ProtocolException) {
            told.addProperty("reason", "PROTOCOL");
        }
        error.reason().ifPresent(reason -> told.addProperty("reason", reason));
        error.requestId().ifPresent(id -> told.addProperty("request_id", id));
        error.retryAfter().ifPresent(after -> told.addProperty("retry_after_ms", after.toMillis()));
        if (!error.violations().isEmpty()) {
            JsonArray fields = new JsonArray();
            error.violations().forEach(violation -> fields.add(violation.field()));
            told.add("violations", fields);
        }
    }

    private RequestOptions options() {
        return scenario.has("timeout_ms")
                ? RequestOptions.timeout(Duration.ofMillis(scenario.get("timeout_ms").getAsLong()))
                : RequestOptions.DEFAULT;
    }

    private <B extends Message.Builder> B request(B builder) {
        try {
            JsonFormat.parser().merge(scenario.get("request").toString(), builder);
            return builder;
        } catch (InvalidProtocolBufferException e) {
            throw new IllegalArgumentException("the request of " + text("name", "?") + " is none", e);
        }
    }

    private String text(String name, String otherwise) {
        return scenario.has(name) ? scenario.get(name).getAsString() : otherwise;
    }

    private static String name(Enum<?> value, String prefix) {
        return value.name().replaceFirst("^" + prefix, "");
    }
}
