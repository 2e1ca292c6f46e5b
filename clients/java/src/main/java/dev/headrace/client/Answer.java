package dev.headrace.client;

import dev.headrace.v1.FinishReason;
import dev.headrace.v1.Timing;
import dev.headrace.v1.Usage;
import java.util.List;
import java.util.Optional;

/**
 * A whole answer. One that ended early is an answer too: its finish reasons say LENGTH, TIME_LIMIT or CANCELLED.
 *
 * @param generationId the server's id; this and the model are empty for an answer that was joined in its middle
 * @param model id of the model that wrote it
 * @param choices by index
 * @param usage token counts; those that are not set are unknown
 * @param timing where the time went, on the server's clock
 */
public record Answer(String generationId, String model, List<Choice> choices, Usage usage, Timing timing) {
    /** The text of choice 0. */
    public String text() {
        return first().map(Choice::text).orElse("");
    }

    /** Why choice 0 ended. */
    public FinishReason finishReason() {
        return first().map(Choice::finishReason).orElse(FinishReason.FINISH_REASON_UNSPECIFIED);
    }

    private Optional<Choice> first() {
        return choices.stream().filter(choice -> choice.index() == 0).findFirst();
    }
}
