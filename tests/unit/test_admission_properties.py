"""The queue against the same rules written down plainly: lists, searched from end to end, and no heap or picture."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import takewhile

import hypothesis.strategies as st
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from service.admission.entry import Entry, State
from service.admission.limits import AdmissionLimits
from service.admission.queue import AdmissionQueue
from service.core.request import Priority

PRIORITIES = (Priority.INTERACTIVE, Priority.BATCH)


@dataclass(eq=False)
class Request:
    number: int
    count: int
    priority: Priority
    tenant: str
    came: int


@dataclass
class PlainRules:
    """Who waits and who runs, by the rules in `service.admission.queue`."""

    limits: AdmissionLimits
    waiting: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    last_turn: dict[tuple[Priority, str], int] = field(default_factory=dict)
    kept_for: dict[Priority, Request] = field(default_factory=dict)
    passed: int = 0
    events: int = 0

    def line(self, priority: Priority) -> list[Request]:
        return [request for request in self.waiting if request.priority is priority]

    def used(self, priority: Priority | None = None, tenant: str | None = None) -> int:
        return sum(
            r.count
            for r in self.running
            if (priority is None or r.priority is priority) and (tenant is None or r.tenant == tenant)
        )

    def head(self, priority: Priority) -> Request | None:
        if kept := self.kept_for.get(priority):
            return kept
        firsts: dict[str, Request] = {}
        for request in self.line(priority):
            firsts.setdefault(request.tenant, request)
        return min(firsts.values(), key=lambda r: (self.used(priority, r.tenant), self.since(r)), default=None)

    def since(self, request: Request) -> int:
        key = (request.priority, request.tenant)
        is_known = any((r.priority, r.tenant) == key for r in (*self.running, *self.waiting))
        return max(request.came, self.last_turn.get(key, 0) if is_known else 0)

    def enter(self, request: Request, share: float | None = None) -> bool:
        line = self.line(request.priority)
        places = self.limits.waiting_of(request.priority)
        own = [other for other in line if other.tenant == request.tenant]
        is_full = len(line) >= places or (share is not None and len(own) >= max(1, int(share * places)))
        self.events += 1
        request.came = self.events
        self.waiting.append(request)
        if self.settle() == [request]:
            return True
        assert request in self.waiting
        if is_full:
            self.waiting.remove(request)
            if self.kept_for.get(request.priority) is request:
                del self.kept_for[request.priority]
            return False
        return True

    def leave(self, request: Request) -> list[Request]:
        if request in self.waiting:
            self.waiting.remove(request)
            if self.kept_for.get(request.priority) is request:
                del self.kept_for[request.priority]
            self.forget()
        else:
            self.running.remove(request)
        key = (request.priority, request.tenant)
        if not any((r.priority, r.tenant) == key for r in (*self.running, *self.waiting)):
            self.last_turn.pop(key, None)
        return self.settle()

    def forget(self) -> None:
        if not self.line(Priority.BATCH):
            self.passed = min(self.passed, 0)

    def settle(self) -> list[Request]:
        granted = []
        while (request := self.next()) is not None:
            granted.append(request)
            self.waiting.remove(request)
            self.kept_for.pop(request.priority, None)
            turn = self.limits.batch_turn - 1
            if request.priority is Priority.INTERACTIVE:
                if self.line(Priority.BATCH):
                    self.passed = min(self.passed + request.count, turn)
            elif self.line(Priority.INTERACTIVE):
                self.passed -= turn * request.count
                self.forget()
            else:
                self.passed = 0
            self.running.append(request)
            self.events += 1
            self.last_turn[request.priority, request.tenant] = self.events
        return granted

    def next(self) -> Request | None:
        free = self.limits.running - self.used()
        interactive, batch = self.head(Priority.INTERACTIVE), self.head(Priority.BATCH)
        batch_used = self.used(Priority.BATCH)
        chosen = interactive
        if batch and (interactive is None or self.passed >= self.limits.batch_turn - 1):
            if batch_used == 0 or batch_used + batch.count <= self.limits.running_batch:
                chosen = batch
            elif batch_used < self.limits.running_batch:
                self.kept_for[Priority.BATCH] = batch
        if chosen and min(chosen.count, self.limits.running) > free:
            if free > 0:
                self.kept_for[chosen.priority] = chosen
            return None
        return chosen


@st.composite
def bounds(draw: st.DrawFn) -> AdmissionLimits:
    running = draw(st.integers(1, 6))
    return AdmissionLimits(
        running=running,
        reserved=draw(st.integers(0, running - 1)),
        waiting=draw(st.integers(0, 8)),
        waiting_batch=draw(st.integers(0, 8)),
        batch_turn=draw(st.integers(2, 5)),
    )


class QueueMachine(RuleBasedStateMachine):
    """Requests come and go in any order; after each step the queue and the plain rules agree."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: AdmissionQueue | None = None
        self.entries: list[tuple[Entry, Request]] = []
        self.number = 0

    @precondition(lambda self: self.queue is None)
    @rule(limits=bounds())
    def start(self, limits: AdmissionLimits) -> None:
        self.queue = AdmissionQueue(limits)
        self.rules = PlainRules(limits)
        self.most, self.most_batch = limits.running, limits.running_batch

    @precondition(lambda self: self.queue is not None)
    @rule(
        count=st.integers(1, 6),
        priority=st.sampled_from(PRIORITIES),
        tenant=st.sampled_from("abc"),
        share=st.sampled_from([None, 0.1, 0.5, 1.0]),
    )
    def enter(self, count: int, priority: Priority, tenant: str, share: float | None) -> None:
        assert self.queue is not None
        count = min(count, self.queue.limits.running)
        self.number += 1
        request = Request(self.number, count, priority, tenant, 0)
        would_wait = not self.queue._may_start(self.queue._line(priority), priority, count)
        is_refused = would_wait and self.queue.is_full(priority, tenant, share)
        entry = self.queue.enter(count, priority, tenant, float(self.number), share)
        assert (entry is not None) == self.rules.enter(request, share) == (not is_refused)
        if entry is not None:
            self.entries.append((entry, request))

    @precondition(lambda self: self.queue is not None)
    @rule(running=st.integers(1, 8), reserved=st.integers(0, 3))
    def resize(self, running: int, reserved: int) -> None:
        assert self.queue is not None
        limits = replace(self.queue.limits, running=running, reserved=min(reserved, running - 1))
        granted = self.queue.resize(limits, 0.0)
        self.rules.limits = limits
        self.most, self.most_batch = max(self.most, running), max(self.most_batch, limits.running_batch)
        assert [r for e in granted for other, r in self.entries if other is e] == self.rules.settle()

    @precondition(lambda self: self.entries)
    @rule(which=st.integers(0, 30))
    def leave(self, which: int) -> None:
        assert self.queue is not None
        entry, request = self.entries.pop(which % len(self.entries))
        granted = self.queue.leave(entry, 0.0)
        assert [r for e in granted for other, r in self.entries if other is e] == self.rules.leave(request)
        assert self.queue.leave(entry, 0.0) == []

    @precondition(lambda self: self.queue is not None)
    @invariant()
    def everybody_is_where_the_rules_say(self) -> None:
        assert self.queue is not None
        limits = self.queue.limits
        for entry, request in self.entries:
            assert (entry.state is State.GRANTED) == (request in self.rules.running)
            assert (entry.state is State.WAITING) == (request in self.rules.waiting)
        assert self.queue.running == self.rules.used() <= self.most
        assert self.queue.waiting == len(self.rules.waiting)
        for priority in PRIORITIES:
            assert self.queue.running_of(priority) == self.rules.used(priority)
            assert self.queue.waiting_of(priority) == len(self.rules.line(priority)) <= limits.waiting_of(priority)
        batch = [request for request in self.rules.running if request.priority is Priority.BATCH]
        assert len(batch) == 1 or self.queue.running_of(Priority.BATCH) <= self.most_batch

    @precondition(lambda self: self.queue is not None)
    @invariant()
    def nobody_is_overtaken_by_a_later_one_of_the_same_tenant_and_class(self) -> None:
        for _, request in self.entries:
            if request in self.rules.waiting:
                key = (request.priority, request.tenant)
                running = [r for r in self.rules.running if (r.priority, r.tenant) == key]
                assert all(r.number < request.number for r in running)

    @precondition(lambda self: self.queue is not None)
    @invariant()
    def the_places_are_a_count_without_gaps(self) -> None:
        """Those of a class who wait have 0, 1, 2, ... in front of them, whatever their tenants and sizes."""
        assert self.queue is not None
        for priority in PRIORITIES:
            waiting = [e for e, _ in self.entries if e.state is State.WAITING and e.priority is priority]
            outlooks = [self.queue.outlook(entry) for entry in waiting]
            assert sorted(outlook.ahead for outlook in outlooks) == list(range(len(waiting)))
            assert all(outlook.shortage >= 0 for outlook in outlooks)

    def teardown(self) -> None:
        """All that runs ends, one after the other: everybody gets a turn, and nothing is left."""
        if self.queue is None:
            return
        steps = 0
        while running := [pair for pair in self.entries if pair[0].state is State.GRANTED]:
            self.entries.remove(running[0])
            self.queue.leave(running[0][0], 0.0)
            steps += 1
        assert not self.entries, "somebody waits, and nothing runs"
        assert (self.queue.running, self.queue.waiting) == (0, 0)
        for line in (self.queue._interactive, self.queue._batch):
            assert (line._used_by, line._last_turn, line._waiting, line.head) == ({}, {}, {}, None)


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


@settings(max_examples=60, deadline=None)
@given(
    limits=bounds(),
    counts=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    batch_count=st.integers(1, 6),
    ends=st.lists(st.integers(0, 5), min_size=1, max_size=6),
)
def test_batch_gets_its_turn_however_interactive_requests_come(
    limits: AdmissionLimits, counts: list[int], batch_count: int, ends: list[int]
) -> None:
    """Interactive requests of any sizes never stop coming; what runs ends in any order."""
    queue = AdmissionQueue(limits)
    running: list[Entry] = []
    first = queue.enter(limits.running, Priority.INTERACTIVE, "", 0.0)
    assert first is not None
    running.append(first)
    batch = queue.enter(min(batch_count, limits.running), Priority.BATCH, "", 0.0)
    if batch is None:
        assert limits.waiting_batch == 0
        return
    passed, waiting = 0, []
    for step in range(400):
        while (
            entry := queue.enter(min(counts[step % len(counts)], limits.running), Priority.INTERACTIVE, "", 0.0)
        ) is not None:
            if entry.state is not State.GRANTED:
                waiting.append(entry)
                continue
            running.append(entry)
            passed += entry.count
        if batch.state is State.GRANTED:
            break
        ended = running.pop(ends[step % len(ends)] % len(running))
        granted = queue.leave(ended, 0.0)
        running += granted
        passed += sum(entry.count for entry in takewhile(lambda entry: entry is not batch, granted))
    assert batch.state is State.GRANTED
    assert passed <= (limits.batch_turn - 2) + limits.running, "what is granted last may take several slots"


@given(
    tenants=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 4)), min_size=1, max_size=40),
    running=st.lists(st.sampled_from("abcd"), max_size=4),
)
def test_who_is_ahead_is_who_would_be_granted_first(tenants: list[tuple[str, int]], running: list[str]) -> None:
    """Against the grants themselves, when many slots come free at once."""
    queue = AdmissionQueue(AdmissionLimits(running=1000, waiting=1000))
    for tenant in running:
        queue.enter(1, Priority.INTERACTIVE, tenant, 0.0)
    blocker = queue.enter(1000 - len(running), Priority.INTERACTIVE, "blocker", 0.0)
    assert blocker is not None
    waiting = [queue.enter(count, Priority.INTERACTIVE, tenant, 0.0) for tenant, count in tenants]
    new = {tenant: queue.outlook_of_new(1, Priority.INTERACTIVE, tenant) for tenant in "abcde"}
    outlooks = [(queue.outlook(entry).ahead, entry) for entry in waiting if entry is not None]
    order = queue.leave(blocker, 0.0)
    assert [entry for _, entry in sorted(outlooks, key=lambda pair: pair[0])] == order
    for tenant, outlook in new.items():
        own = [entry for entry in order if entry.tenant == tenant]
        level = running.count(tenant) + sum(entry.count for entry in own)
        in_front = [entry for entry, used in zip(order, levels(order, running), strict=True) if used <= level]
        assert (outlook.ahead, outlook.slots_ahead) == (len(in_front), sum(entry.count for entry in in_front))


def levels(order: list[Entry], running: list[str]) -> list[int]:
    """Return how many slots the tenant of each uses when its turn comes."""
    used = Counter(running)
    found = []
    for entry in order:
        found.append(used[entry.tenant])
        used[entry.tenant] += entry.count
    return found
