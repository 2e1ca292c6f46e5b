package dev.headrace.client;

import dev.headrace.v1.ChoiceDelta;
import dev.headrace.v1.FinishReason;
import dev.headrace.v1.GenerateResponse;
import dev.headrace.v1.GenerationCompleted;
import dev.headrace.v1.GenerationStarted;
import dev.headrace.v1.ToolCall;
import dev.headrace.v1.ToolCallDelta;
import java.util.Map;
import java.util.TreeMap;

/** Puts the pieces of a stream together. Its events are in order already; knows no transport. */
final class AnswerBuilder {
    private static final class Pieces {
        final StringBuilder text = new StringBuilder();
        final StringBuilder reasoning = new StringBuilder();
        final Map<Integer, ToolCall.Builder> toolCalls = new TreeMap<>();
        // Apart, because a builder's own string is copied with every fragment.
        final Map<Integer, StringBuilder> arguments = new TreeMap<>();
        FinishReason finishReason = FinishReason.FINISH_REASON_UNSPECIFIED;

        void add(ToolCallDelta delta) {
            ToolCall.Builder call = toolCalls.computeIfAbsent(delta.getIndex(), index -> ToolCall.newBuilder());
            if (!delta.getId().isEmpty()) {
                call.setId(delta.getId()).setFunctionName(delta.getFunctionName());
            }
            arguments
                    .computeIfAbsent(delta.getIndex(), index -> new StringBuilder())
                    .append(delta.getArgumentsFragment());
        }

        Choice choice(int index) {
            var calls = toolCalls.entrySet().stream()
                    .map(call -> call.getValue()
                            .setArgumentsJson(arguments.get(call.getKey()).toString())
                            .build())
                    .toList();
            return new Choice(index, text.toString(), reasoning.toString(), calls, finishReason);
        }
    }

    private final Map<Integer, Pieces> choices = new TreeMap<>();
    private GenerationStarted started = GenerationStarted.getDefaultInstance();
    private GenerationCompleted completed = GenerationCompleted.getDefaultInstance();

    void add(GenerateResponse event) {
        switch (event.getEventCase()) {
            case STARTED -> started = event.getStarted();
            case DELTA -> add(event.getDelta());
            case CHOICE_FINISHED ->
                pieces(event.getChoiceFinished().getIndex()).finishReason =
                        event.getChoiceFinished().getReason();
            case COMPLETED -> completed = event.getCompleted();
            case QUEUED, EVENT_NOT_SET -> {}
        }
    }

    Answer build() {
        return new Answer(
                started.getGenerationId(),
                started.getModel(),
                choices.entrySet().stream()
                        .map(entry -> entry.getValue().choice(entry.getKey()))
                        .toList(),
                completed.getUsage(),
                completed.getTiming());
    }

    private void add(ChoiceDelta delta) {
        Pieces pieces = pieces(delta.getIndex());
        switch (delta.getContentCase()) {
            case TEXT -> pieces.text.append(delta.getText());
            case REASONING_TEXT -> pieces.reasoning.append(delta.getReasoningText());
            case TOOL_CALL -> pieces.add(delta.getToolCall());
            case CONTENT_NOT_SET -> {} // token ids alone, or of a newer server
        }
    }

    private Pieces pieces(int index) {
        return choices.computeIfAbsent(index, key -> new Pieces());
    }
}
