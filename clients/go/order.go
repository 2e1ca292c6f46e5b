package headrace

import headracev1 "github.com/headrace/headrace/clients/go/gen/headrace/v1"

// order checks that events come as the contract says: numbered without a gap, `queued` before `started`, nothing else
// before it, nothing behind `completed`, and no end without it.
type order struct {
	after       int32 // of a generation that was attached to: the number of the last event that somebody else has
	last        int32
	isStarted   bool
	isCompleted bool
}

func newOrder(after int32) order { return order{after: after, last: after} }

// take notes an event, or returns what is wrong with it.
func (o *order) take(event *Event) error {
	if event.GetSequence() != o.last+1 {
		return protocolError("event %d came in place of event %d", event.GetSequence(), o.last+1)
	}
	o.last++
	// What came before `after` is somebody else's.
	isBegun := o.isStarted || o.after > 0
	name, isRight := "", true
	switch event.GetEvent().(type) {
	case nil: // of a newer server
		return nil
	case *headracev1.GenerateResponse_Queued:
		name, isRight = "queued", !o.isStarted
	case *headracev1.GenerateResponse_Started:
		name, isRight = "started", !o.isStarted
		o.isStarted = true
	case *headracev1.GenerateResponse_Delta:
		name, isRight = "delta", isBegun
	case *headracev1.GenerateResponse_ChoiceFinished:
		name, isRight = "choice_finished", isBegun
	case *headracev1.GenerateResponse_Completed:
		name, isRight = "completed", isBegun
	}
	switch {
	case o.isCompleted:
		return protocolError("`%s` came behind `completed`", name)
	case !isRight && isBegun:
		return protocolError("`%s` came after `started`", name)
	case !isRight:
		return protocolError("`%s` came before `started`", name)
	}
	o.isCompleted = event.GetCompleted() != nil
	return nil
}

// end returns what is wrong with an end at this place. Behind the last event of a generation there is nothing more.
func (o *order) end() error {
	if o.isCompleted || o.after > 0 && o.last == o.after {
		return nil
	}
	return protocolError("the stream ended without `completed`, so that output may be missing")
}
