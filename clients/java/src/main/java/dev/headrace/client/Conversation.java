package dev.headrace.client;

import dev.headrace.v1.ChatInput;
import dev.headrace.v1.ChatMessage;
import dev.headrace.v1.ContentPart;
import dev.headrace.v1.FunctionTool;
import dev.headrace.v1.Role;
import dev.headrace.v1.Tool;
import java.util.List;

/**
 * Short ways to write the input of a chat. What they return are messages of the contract, which have a builder for
 * everything else.
 */
public final class Conversation {
    private Conversation() {}

    /** A conversation, oldest message first. */
    public static ChatInput of(ChatMessage... messages) {
        return of(List.of(messages));
    }

    /** A conversation, oldest message first. */
    public static ChatInput of(Iterable<ChatMessage> messages) {
        return ChatInput.newBuilder().addAllMessages(messages).build();
    }

    /** Instructions. */
    public static ChatMessage system(String text) {
        return message(Role.ROLE_SYSTEM, text);
    }

    /** What the person says. */
    public static ChatMessage user(String text) {
        return message(Role.ROLE_USER, text);
    }

    /** What the model said. */
    public static ChatMessage assistant(String text) {
        return message(Role.ROLE_ASSISTANT, text);
    }

    /** What a choice of an earlier answer said, with the calls that it made. */
    public static ChatMessage assistant(Choice choice) {
        return message(Role.ROLE_ASSISTANT, choice.text()).toBuilder()
                .addAllToolCalls(choice.toolCalls())
                .setReasoningText(choice.reasoning())
                .build();
    }

    /** The result of the tool call {@code toolCallId}. */
    public static ChatMessage toolResult(String toolCallId, String text) {
        return message(Role.ROLE_TOOL, text).toBuilder().setToolCallId(toolCallId).build();
    }

    /** A function that the model may call; its parameters are a JSON Schema of type object, as text. */
    public static Tool function(String name, String description, String parametersJsonSchema) {
        return Tool.newBuilder()
                .setFunction(FunctionTool.newBuilder()
                        .setName(name)
                        .setDescription(description)
                        .setParametersJsonSchema(parametersJsonSchema))
                .build();
    }

    private static ChatMessage message(Role role, String text) {
        ChatMessage.Builder message = ChatMessage.newBuilder().setRole(role);
        return text.isEmpty()
                ? message.build()
                : message.addContent(ContentPart.newBuilder().setText(text)).build();
    }
}
