package dev.headrace.client;

import static dev.headrace.client.support.Events.answer;
import static dev.headrace.client.support.Events.completed;
import static dev.headrace.client.support.Events.delta;
import static dev.headrace.client.support.Events.finished;
import static dev.headrace.client.support.Events.numbered;
import static dev.headrace.client.support.Events.started;
import static dev.headrace.client.support.Events.unknown;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.headrace.client.errors.ProtocolException;
import dev.headrace.v1.FinishReason;
import dev.headrace.v1.GenerateResponse;
import dev.headrace.v1.GenerationQueued;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

class ProgressTest {
    private static final GenerateResponse QUEUED = GenerateResponse.newBuilder()
            .setQueued(GenerationQueued.newBuilder().setGenerationId("gen_1").setAheadCount(2))
            .build();

    @Test
    void a_whole_stream_is_accepted_and_remembered() {
        Progress progress = new Progress(0);
        answer("a", "b").forEach(event -> assertTrue(progress.accept(event)));
        progress.end();
        assertEquals("gen_1", progress.generationId().orElseThrow());
        assertEquals("sim", progress.started().orElseThrow().getModel());
        assertEquals(Map.of(0, FinishReason.FINISH_REASON_STOP), progress.finishReasons());
        assertEquals(3, progress.completed().orElseThrow().getUsage().getOutputTokenCount());
        assertEquals(5, progress.eventsReceived());
    }

    @Test
    void an_unknown_event_is_skipped_and_counted() {
        Progress progress = new Progress(0);
        List<GenerateResponse> events = numbered(started(), unknown(), delta("a"));
        assertTrue(progress.accept(events.get(0)));
        assertFalse(progress.accept(events.get(1)));
        assertTrue(progress.accept(events.get(2)));
    }

    @Test
    void queued_events_tell_the_id_before_started() {
        Progress progress = new Progress(0);
        numbered(QUEUED, QUEUED, started(), delta("a")).forEach(progress::accept);
        assertEquals(2, progress.queued().orElseThrow().getAheadCount());
        assertEquals("gen_1", progress.generationId().orElseThrow());
    }

    @Test
    void events_out_of_their_order_are_refused() {
        refuses("event 3 came in place of event 2", numbered(started(), delta("a"), delta("b")), 0, 2);
        refuses("event 1 came in place of event 2", numbered(started()), 0, 0);
        refuses("event 2 came in place of event 1", numbered(started(), delta("a")), 1);
        refuses("`delta` came before `started`", numbered(delta("a")), 0);
        refuses("`choice_finished` came before", numbered(finished(0, FinishReason.FINISH_REASON_STOP)), 0);
        refuses("`completed` came before `started`", numbered(completed()), 0);
        refuses("`started` came twice", numbered(started(), started()), 0, 1);
        refuses("`queued` came after `started`", numbered(started(), QUEUED), 0, 1);
        refuses("`delta` came after `completed`", numbered(started(), completed(), delta("a")), 0, 1, 2);
    }

    @Test
    void an_end_without_completed_is_refused() {
        Progress progress = new Progress(0);
        numbered(started(), delta("a")).forEach(progress::accept);
        ProtocolException error = assertThrows(ProtocolException.class, progress::end);
        assertEquals(2, error.eventsReceived());
        assertFalse(error.isRetriable());
        assertThrows(ProtocolException.class, new Progress(0)::end);
    }

    @Test
    void a_stream_that_is_joined_goes_on_behind_its_event() {
        List<GenerateResponse> events = answer("a", "b");
        Progress progress = new Progress(2);
        events.subList(2, events.size()).forEach(progress::accept);
        progress.end();
        assertEquals(5, progress.lastSequence());
        assertEquals(3, progress.eventsReceived());
    }

    @Test
    void behind_the_last_event_there_is_nothing_more_to_join() {
        new Progress(5).end();
        Progress cut = new Progress(2);
        cut.accept(answer("a", "b").get(2));
        assertThrows(ProtocolException.class, cut::end);
    }

    /** The last of these events, by their places, is refused. */
    private static void refuses(String problem, List<GenerateResponse> events, int... places) {
        Progress progress = new Progress(0);
        for (int i = 0; i < places.length - 1; i++) {
            progress.accept(events.get(places[i]));
        }
        GenerateResponse wrong = events.get(places[places.length - 1]);
        ProtocolException error = assertThrows(ProtocolException.class, () -> progress.accept(wrong));
        assertTrue(error.text().contains(problem), error.text());
        assertEquals(places.length - 1, error.eventsReceived());
    }
}
