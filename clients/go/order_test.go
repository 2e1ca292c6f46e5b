package headrace

import (
	"slices"
	"testing"

	headracev1 "github.com/headrace/headrace/clients/go/gen/headrace/v1"
)

// stream returns events for letters: q(ueued), s(tarted), d(elta), f(inished), c(ompleted), u(nknown).
func stream(kinds string) []*Event {
	var events []*Event
	for number, kind := range kinds {
		event := &Event{Sequence: int32(number + 1)}
		switch kind {
		case 'q':
			event.Event = &headracev1.GenerateResponse_Queued{Queued: &headracev1.GenerationQueued{}}
		case 's':
			event.Event = &headracev1.GenerateResponse_Started{Started: &headracev1.GenerationStarted{}}
		case 'd':
			event.Event = &headracev1.GenerateResponse_Delta{Delta: &headracev1.ChoiceDelta{}}
		case 'f':
			event.Event = &headracev1.GenerateResponse_ChoiceFinished{ChoiceFinished: &headracev1.ChoiceFinished{}}
		case 'c':
			event.Event = &headracev1.GenerateResponse_Completed{Completed: &headracev1.GenerationCompleted{}}
		}
		events = append(events, event)
	}
	return events
}

// verdict takes all events and the end.
func verdict(after int32, events []*Event) error {
	order := newOrder(after)
	for _, event := range events {
		if err := order.take(event); err != nil {
			return err
		}
	}
	return order.end()
}

var good = []string{"sc", "sdc", "sfc", "qqsddfdfc", "usudufuc", "uqusdddfc"}

func TestStreamsThatFollowTheContractAreTaken(t *testing.T) {
	for _, kinds := range good {
		events := stream(kinds)
		if err := verdict(0, events); err != nil {
			t.Errorf("%s: %v", kinds, err)
		}
		for after := range events {
			if err := verdict(int32(after), events[after:]); err != nil {
				t.Errorf("%s behind %d: %v", kinds, after, err)
			}
		}
	}
}

func TestAStreamWithAnEventMissingTwiceOrSwappedIsNotTaken(t *testing.T) {
	for _, kinds := range good {
		events := stream(kinds)
		for i := range events {
			if err := verdict(0, slices.Delete(slices.Clone(events), i, i+1)); err == nil {
				t.Errorf("%s without %d is taken", kinds, i+1)
			}
			if err := verdict(0, slices.Insert(slices.Clone(events), i, events[i])); err == nil {
				t.Errorf("%s with %d twice is taken", kinds, i+1)
			}
			if i > 0 {
				swapped := slices.Clone(events)
				swapped[i-1], swapped[i] = swapped[i], swapped[i-1]
				if err := verdict(0, swapped); err == nil {
					t.Errorf("%s with %d and %d swapped is taken", kinds, i, i+1)
				}
			}
		}
	}
}

func TestStreamsThatBreakTheContractAreNotTaken(t *testing.T) {
	for _, kinds := range []string{"", "s", "sd", "sdf", "u", "dc", "fc", "c", "sqc", "ssc", "scd", "scc", "sdcs", "qc", "qd"} {
		if err := verdict(0, stream(kinds)); err == nil {
			t.Errorf("%q is taken", kinds)
		}
	}
}

func TestAnUnknownEventBehindCompletedIsANewerServers(t *testing.T) {
	if err := verdict(0, stream("sdfcu")); err != nil {
		t.Error(err)
	}
}

func TestOnlyBehindTheLastEventThereIsNothingMore(t *testing.T) {
	if err := verdict(5, nil); err != nil {
		t.Error(err)
	}
	if err := verdict(5, []*Event{{Sequence: 6, Event: &headracev1.GenerateResponse_Delta{}}}); err == nil {
		t.Error("an end without `completed` is taken")
	}
}
