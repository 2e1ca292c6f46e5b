package dev.headrace.client;

import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.headrace.v1.ChatInput;
import dev.headrace.v1.ChatMessage;
import dev.headrace.v1.ContentPart;
import dev.headrace.v1.FinishReason;
import dev.headrace.v1.Role;
import dev.headrace.v1.ToolCall;
import java.util.List;
import org.junit.jupiter.api.Test;

class ConversationTest {
    @Test
    void messages_are_those_of_the_contract() {
        ChatInput chat = Conversation.of(Conversation.system("Be brief."), Conversation.user("Hi"));
        assertEquals(
                List.of(message(Role.ROLE_SYSTEM, "Be brief."), message(Role.ROLE_USER, "Hi")),
                chat.getMessagesList());
    }

    @Test
    void a_turn_with_a_tool_can_be_written() {
        ToolCall call = ToolCall.newBuilder()
                .setId("call_1")
                .setFunctionName("look")
                .setArgumentsJson("{}")
                .build();
        Choice choice = new Choice(0, "", "hm", List.of(call), FinishReason.FINISH_REASON_TOOL_CALLS);
        ChatMessage said = Conversation.assistant(choice);
        assertEquals(List.of(call), said.getToolCallsList());
        assertEquals("hm", said.getReasoningText());
        assertEquals(0, said.getContentCount());
        assertEquals("call_1", Conversation.toolResult("call_1", "rain").getToolCallId());
        assertEquals("look", Conversation.function("look", "Looks.", "{}").getFunction().getName());
    }

    private static ChatMessage message(Role role, String text) {
        return ChatMessage.newBuilder()
                .setRole(role)
                .addContent(ContentPart.newBuilder().setText(text))
                .build();
    }
}
