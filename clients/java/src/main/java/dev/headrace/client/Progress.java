package dev.headrace.client;

import dev.headrace.client.errors.ProtocolException;
import dev.headrace.v1.FinishReason;
import dev.headrace.v1.GenerateResponse;
import dev.headrace.v1.GenerationCompleted;
import dev.headrace.v1.GenerationQueued;
import dev.headrace.v1.GenerationStarted;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;

/**
 * What a stream has told so far, held to the order of the contract: {@code queued* started (delta | choice_finished)*
 * completed}, numbered without gaps.
 *
 * <p>One thread tells it, any may ask. Knows no transport.
 */
final class Progress {
    private final int after;
    private final Map<Integer, FinishReason> finishReasons = new TreeMap<>();
    private int sequence;
    private String requestId;
    private String generationId;
    private GenerationQueued queued;
    private GenerationStarted started;
    private GenerationCompleted completed;

    /** The stream goes on behind event {@code after}; 0 for one that is read from its beginning. */
    Progress(int after) {
        this.after = after;
        this.sequence = after;
    }

    /** Notes the initial metadata, which come before the first event. */
    synchronized void identify(String requestId, String generationId) {
        this.requestId = requestId;
        this.generationId = generationId;
    }

    /**
     * Takes the next event.
     *
     * @return false for one that this client does not know, and skips
     * @throws ProtocolException if it must not come here
     */
    synchronized boolean accept(GenerateResponse event) {
        if (event.getSequence() != sequence + 1) {
            throw broken("event " + event.getSequence() + " came in place of event " + (sequence + 1));
        }
        switch (event.getEventCase()) {
            case QUEUED -> {
                require(started == null && after == 0, "`queued` came after `started`");
                queued = event.getQueued();
                learnId(queued.getGenerationId());
            }
            case STARTED -> {
                require(started == null && after == 0, "`started` came twice");
                started = event.getStarted();
                learnId(started.getGenerationId());
            }
            case DELTA -> requireOutput("delta");
            case CHOICE_FINISHED -> {
                requireOutput("choice_finished");
                finishReasons.put(event.getChoiceFinished().getIndex(), event.getChoiceFinished().getReason());
            }
            case COMPLETED -> {
                requireOutput("completed");
                completed = event.getCompleted();
            }
            case EVENT_NOT_SET -> {} // of a newer server
        }
        sequence++;
        return event.getEventCase() != GenerateResponse.EventCase.EVENT_NOT_SET;
    }

    /**
     * Notes that the stream ended with status OK.
     *
     * @throws ProtocolException if it may not end here
     */
    synchronized void end() {
        // Behind the last event there is nothing more.
        boolean isBehindTheEnd = after > 0 && sequence == after;
        require(completed != null || isBehindTheEnd, "the stream ended without `completed`, so output may be missing");
    }

    private void requireOutput(String kind) {
        require(started != null || after > 0, "`" + kind + "` came before `started`");
        require(completed == null, "`" + kind + "` came after `completed`");
    }

    private void require(boolean isRight, String problem) {
        if (!isRight) {
            throw broken(problem);
        }
    }

    private ProtocolException broken(String problem) {
        return new ProtocolException(problem, sequence - after);
    }

    private void learnId(String id) {
        if (!id.isEmpty()) {
            generationId = id;
        }
    }

    synchronized int eventsReceived() {
        return sequence - after;
    }

    synchronized int lastSequence() {
        return sequence;
    }

    synchronized Optional<String> requestId() {
        return Optional.ofNullable(requestId);
    }

    synchronized Optional<String> generationId() {
        return Optional.ofNullable(generationId);
    }

    synchronized Optional<GenerationQueued> queued() {
        return Optional.ofNullable(queued);
    }

    synchronized Optional<GenerationStarted> started() {
        return Optional.ofNullable(started);
    }

    synchronized Optional<GenerationCompleted> completed() {
        return Optional.ofNullable(completed);
    }

    synchronized Map<Integer, FinishReason> finishReasons() {
        return Map.copyOf(finishReasons);
    }
}
