"""Who gets a slot next: the rules of admission as a state machine. Reads no clock and awaits nothing.

The rules:

- Interactive and batch requests stand in lines of their own, each with a bound. A
  tenant may be held to a share of it: others still find a place then.
- In a class each tenant's requests go in the order in which they came. Between
  tenants the one that uses the fewest slots of the class goes first; of several
  such, the one that waits longest for its turn: since it last got a slot, or since
  its oldest waiting request came if that was later.
- A request that needs several slots waits until it has them all. From the first
  free slot that is kept for it none of its class overtakes it.
- Interactive goes before batch. But of every `batch_turn` slots that are granted
  while batch waits one is batch's: then it goes before interactive, and slots are
  kept for it as for anybody. A batch request that needs several slots uses up as
  many turns. A batch request that waits only for its class's own share (next
  rule) keeps nothing from interactive.
- A request that needs more slots than there are now waits until nothing runs.
- Batch leaves `reserved` slots free. A batch request that alone needs more than
  the rest may run while no other batch request does.

So nobody waits for ever as long as what runs ends: an interactive request has a
bounded number of requests in front of it, and batch gets its share.
"""

from __future__ import annotations

from typing import NamedTuple

from service.admission.entry import Entry, State
from service.admission.limits import AdmissionLimits
from service.admission.line import Before, Line
from service.core.request import Priority

__all__ = ["AdmissionQueue", "Outlook"]


class Outlook(NamedTuple):
    """What lies before a request, if nothing but the end of running work changes it.

    ahead: requests of its class in front of it.
    slots_ahead: the slots that these ask for.
    shortage: slots that have to come free until it has its own, as far as the
        rules tell: 0 or more, and not always whole.
    lanes: slots that come free for its class in turn.
    """

    ahead: int
    slots_ahead: int
    shortage: float
    lanes: int


class AdmissionQueue:
    """The slots of one model and the requests that run and wait.

    Times are given, on any one monotonic clock, in seconds. Every call leaves the
    queue settled: nothing waits that could be granted. Operations are O(log n) for n
    waiting requests; an outlook between many tenants is now and then O(n log n).
    """

    def __init__(self, limits: AdmissionLimits) -> None:
        self.limits = limits
        self._interactive = Line()
        self._batch = Line()
        # Slots that interactive was granted past a waiting batch line since batch's last turn; below 0 after a batch
        # request that took several slots in one turn.
        self._passed = 0

    @property
    def running(self) -> int:
        """Slots in use."""
        return self._interactive.used + self._batch.used

    @property
    def waiting(self) -> int:
        """Requests that wait, of both classes."""
        return len(self._interactive) + len(self._batch)

    def running_of(self, priority: Priority) -> int:
        """Return the slots that a class uses."""
        return self._line(priority).used

    def waiting_of(self, priority: Priority) -> int:
        """Return how many requests of a class wait."""
        return len(self._line(priority))

    def enter(
        self, count: int, priority: Priority, tenant: str, now_s: float, share: float | None = None
    ) -> Entry | None:
        """Let a request in: granted at once, or waiting. Returns None if its line is full, or its tenant's share of it.

        Raises ValueError for a count that no state of the queue could ever grant.
        """
        if not 1 <= count <= self.limits.running:
            raise ValueError(f"{count} slots asked for, {self.limits.running} exist")
        line = self._line(priority)
        is_free = self._may_start(line, priority, count)
        if not is_free and self.is_full(priority, tenant, share):
            return None
        entry = Entry(count, priority, tenant, entered_s=now_s)
        if is_free:
            self._start(entry, line, now_s)
        else:
            line.add(entry)
            # Grants nothing; but if it is its turn, the slots that are free are kept for it from now on.
            self._grant(now_s)
        return entry

    def is_full(self, priority: Priority, tenant: str, share: float | None = None) -> bool:
        """Return whether one more of a tenant finds no place to wait in."""
        line, limits = self._line(priority), self.limits
        return len(line) >= limits.waiting_of(priority) or line.waiting_of(tenant) >= limits.places_of(priority, share)

    def resize(self, limits: AdmissionLimits, now_s: float) -> list[Entry]:
        """Go by other limits from now on; returns those that are granted by that. What runs and waits stays."""
        self.limits = limits
        return self._grant(now_s)

    def leave(self, entry: Entry, now_s: float) -> list[Entry]:
        """Let a request go, from the line or from work; returns those that are granted by that. Idempotent."""
        line = self._line(entry.priority)
        match entry.state:
            case State.LEFT:
                return []
            case State.WAITING:
                line.remove(entry)
                self._forget_turn()
            case State.GRANTED:
                line.stop(entry)
        entry.state = State.LEFT
        return self._grant(now_s)

    def outlook(self, entry: Entry) -> Outlook:
        """Return what lies before a waiting request."""
        return self._outlook(entry.priority, entry.count, self._line(entry.priority).before(entry))

    def outlook_of_new(self, count: int, priority: Priority, tenant: str) -> Outlook:
        """Return what would lie before a request that came now. Any `count` is taken."""
        line = self._line(priority)
        if self._may_start(line, priority, count):
            return Outlook(0, 0, 0.0, self.limits.running_of(priority))
        return self._outlook(priority, count, line.before_new(tenant))

    def outlook_of_place(self, priority: Priority, tenant: str | None = None) -> Outlook:
        """Return what lies before the head of a class: when it goes, its place in the line is free.

        With a tenant: before the first one of its own, whose place is free for it.
        """
        line = self._line(priority)
        if tenant is not None and (first := line.first_of(tenant)) is not None:
            return self.outlook(first)
        head = line.head
        return self._outlook(priority, 1 if head is None else head.count, Before(0, 0))

    def _line(self, priority: Priority) -> Line:
        return self._batch if priority is Priority.BATCH else self._interactive

    def _may_start(self, line: Line, priority: Priority, count: int) -> bool:
        """Return whether a newcomer is granted at once."""
        if line or self.running + count > self.limits.running:
            return False
        if priority is Priority.BATCH:
            return not self._interactive and self._batch_may_take(count)
        return not self._is_batch_due()

    def _grant(self, now_s: float) -> list[Entry]:
        """Grant what can be granted, in turn."""
        granted: list[Entry] = []
        while (line := self._next_line()) is not None:
            entry = line.head
            assert entry is not None
            free = self.limits.running - self.running
            if min(entry.count, self.limits.running) > free:
                if free > 0:
                    line.pin(entry)
                break
            line.remove(entry)
            self._start(entry, line, now_s)
            granted.append(entry)
        return granted

    def _next_line(self) -> Line | None:
        """Return whose turn it is; None if nobody waits who may run as soon as there are slots."""
        if self._interactive and self._passed < self.limits.batch_turn - 1:
            return self._interactive
        head = self._batch.head
        if head is not None:
            if self._batch_may_take(head.count):
                return self._batch
            if self._batch.used < self.limits.running_batch:
                self._batch.pin(head)
        return self._interactive or None

    def _is_batch_due(self) -> bool:
        if self._passed < self.limits.batch_turn - 1:
            return False
        head = self._batch.head
        return head is not None and self._batch_may_take(head.count)

    def _batch_may_take(self, count: int) -> bool:
        used = self._batch.used
        return not used or used + count <= self.limits.running_batch

    def _start(self, entry: Entry, line: Line, now_s: float) -> None:
        """Grant a request that is in no line any more, and keep account of the turns."""
        entry.state = State.GRANTED
        entry.granted_s = now_s
        line.start(entry)
        turn = self.limits.batch_turn - 1
        if line is self._interactive:
            if self._batch:
                self._passed = min(self._passed + entry.count, turn)
        elif self._interactive:
            self._passed -= turn * entry.count
            self._forget_turn()
        else:
            self._passed = 0

    def _forget_turn(self) -> None:
        """An empty batch line has no claim to a turn; what it took in advance stays taken."""
        if not self._batch:
            self._passed = min(self._passed, 0)

    def _outlook(self, priority: Priority, count: int, before: Before) -> Outlook:
        limits, free = self.limits, float(self.limits.running - self.running)
        lanes = limits.running_of(priority)
        need: float = before.slots + min(count, limits.running)
        if free < 0:
            # More run than there are slots now: so many come free in turn, and not as many as `lanes`.
            free *= lanes / self.running
        if priority is Priority.INTERACTIVE:
            if self._is_batch_due():
                head = self._batch.head
                need += 0 if head is None else head.count
            if self._batch:
                need *= limits.batch_turn / (limits.batch_turn - 1)
            shortage = need - free
        elif self._interactive:
            # As long as interactive requests wait, batch has its turns and nothing else.
            shortage, lanes = need * limits.batch_turn - self._passed - free, limits.running
        else:
            shortage = need - min(free, max(0, lanes - self._batch.used))
        return Outlook(before.requests, before.slots, max(shortage, 0.0), lanes)
