package dev.headrace.client;

import dev.headrace.v1.FinishReason;
import dev.headrace.v1.ToolCall;
import java.util.List;

/**
 * One choice of an answer.
 *
 * @param index from 0
 * @param text its text; may be empty
 * @param reasoning what the model thought aloud, where that is told apart
 * @param toolCalls the calls that it asks for, whole
 * @param finishReason why it ended; {@code UNRECOGNIZED} where a newer server knows another reason
 */
public record Choice(int index, String text, String reasoning, List<ToolCall> toolCalls, FinishReason finishReason) {}
