package dev.headrace.client;

import static dev.headrace.client.support.Events.answer;
import static dev.headrace.client.support.Events.delta;
import static dev.headrace.client.support.Events.finished;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;

import dev.headrace.v1.ChoiceDelta;
import dev.headrace.v1.FinishReason;
import dev.headrace.v1.ToolCall;
import dev.headrace.v1.ToolCallDelta;
import java.util.List;
import org.junit.jupiter.api.Test;

class AnswerBuilderTest {
    private final AnswerBuilder builder = new AnswerBuilder();

    @Test
    void an_answer_has_text_reason_usage_and_where_it_is_from() {
        answer("Grüße ", "👋").forEach(builder::add);
        Answer answer = builder.build();
        assertEquals("Grüße 👋", answer.text());
        assertEquals(FinishReason.FINISH_REASON_STOP, answer.finishReason());
        assertEquals("gen_1", answer.generationId());
        assertEquals("sim", answer.model());
        assertEquals(3, answer.usage().getOutputTokenCount());
        assertFalse(answer.usage().hasPromptTokenCount()); // unknown, and not 0
    }

    @Test
    void choices_are_told_apart_and_ordered() {
        builder.add(delta(ChoiceDelta.newBuilder().setIndex(1).setText("b")));
        builder.add(delta(ChoiceDelta.newBuilder().setIndex(0).setText("a")));
        builder.add(finished(1, FinishReason.FINISH_REASON_LENGTH));
        Answer answer = builder.build();
        assertEquals(List.of("a", "b"), answer.choices().stream().map(Choice::text).toList());
        assertEquals(FinishReason.FINISH_REASON_LENGTH, answer.choices().get(1).finishReason());
    }

    @Test
    void reasoning_is_kept_apart_from_the_text() {
        builder.add(delta(ChoiceDelta.newBuilder().setReasoningText("hm ")));
        builder.add(delta(ChoiceDelta.newBuilder().setReasoningText("yes")));
        builder.add(delta("42"));
        Choice choice = builder.build().choices().get(0);
        assertEquals("hm yes", choice.reasoning());
        assertEquals("42", choice.text());
    }

    @Test
    void pieces_of_tool_calls_become_whole_calls() {
        call(0, "call_1", "look", "{\"a\":");
        call(1, "call_2", "wait", "");
        call(0, "", "", "1}");
        assertEquals(
                List.of(
                        ToolCall.newBuilder()
                                .setId("call_1")
                                .setFunctionName("look")
                                .setArgumentsJson("{\"a\":1}")
                                .build(),
                        ToolCall.newBuilder().setId("call_2").setFunctionName("wait").build()),
                builder.build().choices().get(0).toolCalls());
    }

    @Test
    void an_answer_without_choices_has_no_text() {
        assertEquals("", builder.build().text());
        assertEquals(FinishReason.FINISH_REASON_UNSPECIFIED, builder.build().finishReason());
    }

    private void call(int index, String id, String name, String fragment) {
        builder.add(delta(ChoiceDelta.newBuilder()
                .setToolCall(ToolCallDelta.newBuilder()
                        .setIndex(index)
                        .setId(id)
                        .setFunctionName(name)
                        .setArgumentsFragment(fragment))));
    }
}
