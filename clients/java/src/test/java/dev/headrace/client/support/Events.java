package dev.headrace.client.support;

import com.google.protobuf.ByteString;
import com.google.protobuf.UnknownFieldSet;
import dev.headrace.v1.ChoiceDelta;
import dev.headrace.v1.ChoiceFinished;
import dev.headrace.v1.FinishReason;
import dev.headrace.v1.GenerateResponse;
import dev.headrace.v1.GenerationCompleted;
import dev.headrace.v1.GenerationStarted;
import dev.headrace.v1.Usage;
import java.util.ArrayList;
import java.util.List;

/** Events of a stream, and streams of them. */
public final class Events {
    public static final String ID = "gen_1";

    private Events() {}

    public static GenerateResponse started() {
        return GenerateResponse.newBuilder()
                .setStarted(GenerationStarted.newBuilder().setGenerationId(ID).setModel("sim"))
                .build();
    }

    public static GenerateResponse delta(String text) {
        return delta(ChoiceDelta.newBuilder().setText(text));
    }

    public static GenerateResponse delta(ChoiceDelta.Builder delta) {
        return GenerateResponse.newBuilder().setDelta(delta).build();
    }

    public static GenerateResponse finished(int index, FinishReason reason) {
        return GenerateResponse.newBuilder()
                .setChoiceFinished(ChoiceFinished.newBuilder().setIndex(index).setReason(reason))
                .build();
    }

    public static GenerateResponse completed() {
        return GenerateResponse.newBuilder()
                .setCompleted(GenerationCompleted.newBuilder()
                        .setUsage(Usage.newBuilder().setOutputTokenCount(3)))
                .build();
    }

    /** An event of a version that is not written yet. */
    public static GenerateResponse unknown() {
        var field = UnknownFieldSet.Field.newBuilder()
                .addLengthDelimited(ByteString.copyFromUtf8("more"))
                .build();
        return GenerateResponse.newBuilder()
                .setUnknownFields(
                        UnknownFieldSet.newBuilder().addField(777, field).build())
                .build();
    }

    /** The events with their numbers, from 1. */
    public static List<GenerateResponse> numbered(GenerateResponse... events) {
        List<GenerateResponse> numbered = new ArrayList<>();
        for (GenerateResponse event : events) {
            numbered.add(event.toBuilder().setSequence(numbered.size() + 1).build());
        }
        return numbered;
    }

    /** A whole stream with these pieces of text. */
    public static List<GenerateResponse> answer(String... pieces) {
        List<GenerateResponse> events = new ArrayList<>();
        events.add(started());
        for (String piece : pieces) {
            events.add(delta(piece));
        }
        events.add(finished(0, FinishReason.FINISH_REASON_STOP));
        events.add(completed());
        return numbered(events.toArray(GenerateResponse[]::new));
    }
}
