"""The rules of admission, case by case: who is granted, who waits, who is refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from service.admission.entry import Entry, State
from service.admission.limits import AdmissionLimits
from service.admission.queue import AdmissionQueue
from service.core.request import Priority

INTERACTIVE, BATCH = Priority.INTERACTIVE, Priority.BATCH


class Play:
    """A queue whose requests have names: "i" is interactive, "b" batch, then the tenant, "*3" for three slots."""

    def __init__(self, **limits: int) -> None:
        self.queue = AdmissionQueue(AdmissionLimits(**limits))
        self.entries: dict[str, Entry] = {}
        self.granted: list[str] = []
        self.now_s = 0.0

    def enter(self, *names: str) -> None:
        for name in names:
            what, _, count = name.partition("*")
            tenant = "".join(letter for letter in what[1:] if letter.isalpha())
            entry = self.queue.enter(int(count or 1), BATCH if what[0] == "b" else INTERACTIVE, tenant, self.now_s)
            assert entry is not None, f"{name} was refused"
            self.entries[name] = entry
            if entry.state is State.GRANTED:
                self.granted.append(name)

    def is_refused(self, name: str) -> bool:
        return self.queue.enter(1, BATCH if name[0] == "b" else INTERACTIVE, name[1:], self.now_s) is None

    def leave(self, *names: str) -> list[str]:
        """Let them go; returns who is granted by that, in order."""
        before = len(self.granted)
        for name in names:
            granted = self.queue.leave(self.entries[name], self.now_s)
            self.granted += [next(n for n, e in self.entries.items() if e is entry) for entry in granted]
        return self.granted[before:]

    def ahead(self, *names: str) -> list[int]:
        return [self.queue.outlook(self.entries[name]).ahead for name in names]


def test_requests_run_at_once_while_there_are_slots_and_then_wait_in_order() -> None:
    play = Play(running=2)
    play.enter("i1", "i2", "i3", "i4")
    assert play.granted == ["i1", "i2"]
    assert (play.queue.running, play.queue.waiting) == (2, 2)
    assert play.leave("i2") == ["i3"]
    assert play.leave("i1", "i3") == ["i4"]
    assert play.leave("i4") == []
    assert (play.queue.running, play.queue.waiting) == (0, 0)


def test_times_of_the_grants_are_kept() -> None:
    play = Play(running=1)
    play.now_s = 3.0
    play.enter("i1", "i2")
    play.now_s = 7.5
    play.leave("i1")
    assert [play.entries[name].granted_s for name in ("i1", "i2")] == [3.0, 7.5]


@pytest.mark.parametrize(("waiting", "waiting_batch"), [(0, 0), (0, 2), (3, 1)])
def test_each_class_has_a_bound_of_its_own(waiting: int, waiting_batch: int) -> None:
    play = Play(running=1, waiting=waiting, waiting_batch=waiting_batch)
    play.enter("i")
    play.enter(*(f"i{n}" for n in range(waiting)), *(f"b{n}" for n in range(waiting_batch)))
    assert (play.queue.waiting_of(INTERACTIVE), play.queue.waiting_of(BATCH)) == (waiting, waiting_batch)
    assert play.is_refused("i")
    assert play.is_refused("b")
    assert (play.queue.running, play.queue.waiting) == (1, waiting + waiting_batch), "a refusal leaves no trace"


def test_a_line_without_places_still_lets_in_what_can_run() -> None:
    play = Play(running=2, waiting=0, waiting_batch=0)
    play.enter("i1", "b2")
    assert play.granted == ["i1", "b2"]


@pytest.mark.parametrize("count", [0, -1, 3])
def test_more_slots_than_exist_or_none_is_a_programming_error(count: int) -> None:
    queue = AdmissionQueue(AdmissionLimits(running=2))
    with pytest.raises(ValueError, match="asked for"):
        queue.enter(count, INTERACTIVE, "", 0.0)
    assert (queue.running, queue.waiting) == (0, 0)


class TestSeveralSlots:
    def test_slots_are_kept_for_the_one_whose_turn_it_is(self) -> None:
        play = Play(running=3)
        play.enter("i1", "i2", "i3", "i4*2", "i5")
        assert play.leave("i1") == []
        assert play.queue.running == 2
        assert play.leave("i2") == ["i4*2"]
        assert play.leave("i3") == ["i5"]

    def test_one_that_comes_later_does_not_take_what_is_kept(self) -> None:
        play = Play(running=2)
        play.enter("i1", "i2*2", "i3")
        assert play.granted == ["i1"]
        assert play.leave("i1") == ["i2*2"]

    def test_kept_slots_go_on_when_their_owner_leaves(self) -> None:
        play = Play(running=3)
        play.enter("i1", "i2*3", "i3", "i4")
        assert play.leave("i2*3") == ["i3", "i4"]

    def test_another_tenant_does_not_overtake_once_slots_are_kept(self) -> None:
        play = Play(running=2)
        play.enter("iA1", "iA2*2")
        play.enter("iB3")
        assert play.granted == ["iA1"], "B uses nothing, but a slot is kept for A already"
        assert play.ahead("iA2*2", "iB3") == [0, 1]
        assert play.leave("iA1") == ["iA2*2"]


class TestTenants:
    def test_the_one_that_uses_fewest_slots_goes_first(self) -> None:
        play = Play(running=2)
        play.enter("iA1", "iA2", "iA3", "iA4", "iB1", "iC1")
        assert play.leave("iA1") == ["iB1"], "A uses one, B and C none, B has waited longer"
        assert play.leave("iA2") == ["iA3"], "A and C use none, and A has waited longest"
        assert play.leave("iB1") == ["iC1"]

    def test_one_slot_is_shared_out_in_turn(self) -> None:
        play = Play(running=1)
        play.enter("iA1", "iA2", "iA3", "iB1", "iB2")
        order = ["iA1"]
        for _ in range(4):
            order += play.leave(order[-1])
        assert order == ["iA1", "iA2", "iB1", "iA3", "iB2"]

    def test_one_that_comes_behind_floods_of_others_waits_for_a_turn_of_each_at_most(self) -> None:
        play = Play(running=2, waiting=100)
        for n in range(20):
            play.enter(*(f"i{tenant}{n}" for tenant in "ABC"))
        play.enter("iD")
        order = play.granted.copy()
        for name in order:
            order += play.leave(name)
            if "iD" in order:
                break
        assert len(order) <= 2 + 3 + 1

    def test_a_turn_is_as_old_as_the_last_one_or_the_request_that_waits(self) -> None:
        play = Play(running=2)
        play.enter("iA1", "iB1", "iB2", "iC1", "iA2")
        assert play.leave("iA1") == ["iC1"], "A's last turn is longer ago, but its request came after C's"
        assert play.leave("iB1") == ["iB2"]

    def test_a_newcomer_passes_a_flood(self) -> None:
        play = Play(running=4, waiting=100)
        play.enter(*(f"iA{n}" for n in range(50)))
        play.enter("iB1")
        assert play.ahead("iB1") == [0]
        assert play.leave("iA0") == ["iB1"]

    def test_without_tenants_it_is_first_come_first_served(self) -> None:
        play = Play(running=1)
        play.enter(*(f"i{n}" for n in range(5)))
        assert [play.leave(f"i{n}") for n in range(4)] == [[f"i{n}"] for n in range(1, 5)]

    def test_what_a_tenant_uses_in_one_class_does_not_count_in_the_other(self) -> None:
        play = Play(running=3)
        play.enter("iA1", "iA2", "bC1", "bA1", "bB1")
        assert play.leave("bC1") == ["bA1"], "A came first, and uses no batch slot"

    def test_a_tenant_that_leaves_is_forgotten(self) -> None:
        play = Play(running=1)
        play.enter("iA1", "iB1", "iC1")
        play.leave("iB1", "iA1", "iC1")
        line = play.queue._interactive
        assert (line._used_by, line._waiting, line.used, len(line)) == ({}, {}, 0, 0)


class TestClasses:
    def test_interactive_goes_before_batch(self) -> None:
        play = Play(running=1)
        play.enter("i1", "b2", "i3", "b4", "i5")
        assert [play.leave(name) for name in ("i1", "i3", "i5", "b2")] == [["i3"], ["i5"], ["b2"], ["b4"]]

    def test_a_small_batch_request_does_not_pass_a_large_interactive_one(self) -> None:
        play = Play(running=2)
        play.enter("i1", "i2*2", "b3")
        assert play.granted == ["i1"]

    def test_an_interactive_request_passes_a_batch_one_that_does_not_fit(self) -> None:
        play = Play(running=3)
        play.enter("i1", "b2*3", "i3")
        assert play.granted == ["i1", "i3"]

    @pytest.mark.parametrize("turn", [2, 3, 8])
    def test_of_so_many_slots_one_is_granted_to_batch(self, turn: int) -> None:
        play = Play(running=1, batch_turn=turn)
        play.enter("i", *(f"i{n}" for n in range(3 * turn)), *(f"b{n}" for n in range(3)))
        order = play.granted.copy()
        for _ in range(3 * turn):
            order += play.leave(order[-1])
        assert [at for at, name in enumerate(order) if name[0] == "b"] == [turn * n for n in (1, 2, 3)]

    def test_a_batch_request_for_several_slots_uses_up_as_many_turns(self) -> None:
        play = Play(running=2, batch_turn=3, reserved=0)
        play.enter("i*2", "b1*2", "b2", *(f"i{n}" for n in range(30)))
        order = ["i*2"]
        for name in order:
            order += play.leave(name)
            if "b2" in order:
                break
        slots = [2 if name.endswith("*2") else 1 for name in order[1:]]
        assert order[1:].index("b1*2") == 2, "two interactive slots, then its turn"
        assert sum(slots) == 9, "b1 took two of the first six, b2 one of the next three"

    def test_slots_are_kept_for_batch_when_it_is_its_turn(self) -> None:
        play = Play(running=3, batch_turn=3)
        play.enter("i1", "i2", "b3*2", "i4")
        assert play.granted == ["i1", "i2", "i4"]
        play.enter("i5", "i6", "i7")
        assert play.leave("i1") == ["i5"], "the second slot that went past b3"
        assert play.leave("i2") == [], "its turn: one is kept"
        assert play.leave("i4") == ["b3*2"]
        assert play.leave("i5") == ["i6"]

    def test_a_turn_that_began_holds_newcomers_back_too(self) -> None:
        play = Play(running=3, batch_turn=2)
        play.enter("i1", "b2*3", "i3", "i4")
        assert play.granted == ["i1", "i3"], "one has gone past it, the next one waits"
        assert play.leave("i1") == []
        assert play.leave("i3") == ["b2*3"]
        assert play.leave("b2*3") == ["i4"]

    def test_when_the_batch_request_whose_turn_it_is_leaves_the_others_go_on(self) -> None:
        play = Play(running=3, batch_turn=2)
        play.enter("i1", "b2*3", "i3", "i4")
        assert play.leave("b2*3") == ["i4"]
        play.enter("b5", "i6")
        assert play.leave("i1") == ["i6"], "the turn went with it"

    def test_a_batch_request_that_runs_because_nobody_else_waits_is_its_turn_too(self) -> None:
        play = Play(running=2, batch_turn=3)
        play.enter("i1", "b1*2", "b2", "i2")
        assert play.leave("i1", "i2") == ["b1*2"], "i2 went past it, and then nobody waited"
        play.enter("i3", "i4", "i5")
        assert play.leave("b1*2") == ["i3", "i4"]
        assert play.leave("i3") == ["b2"]

    def test_what_passes_an_empty_batch_line_gives_no_turn(self) -> None:
        play = Play(running=1, batch_turn=2)
        play.enter("i1", "i2", "i3", "i4")
        play.leave("i1", "i2")
        play.enter("b5")
        assert play.leave("i3") == ["i4"]
        assert play.leave("i4") == ["b5"]


class TestReservedSlots:
    def test_batch_leaves_them_free(self) -> None:
        play = Play(running=4, reserved=2)
        play.enter("b1", "b2", "b3")
        assert play.granted == ["b1", "b2"]
        play.enter("i4", "i5")
        assert play.granted == ["b1", "b2", "i4", "i5"]
        assert play.leave("i4") == []
        assert play.leave("b1") == ["b3"]

    def test_interactive_may_use_them_all(self) -> None:
        play = Play(running=4, reserved=1)
        play.enter("i1", "i2", "i3", "i4", "b5")
        assert play.queue.running_of(INTERACTIVE) == 4
        assert play.leave("i1") == ["b5"]

    def test_one_batch_request_that_needs_more_runs_alone(self) -> None:
        play = Play(running=4, reserved=2)
        play.enter("b1", "b2*4", "b3")
        assert play.granted == ["b1"]
        assert play.leave("b1") == ["b2*4"]
        assert play.leave("b2*4") == ["b3"]

    def test_batch_at_its_bound_keeps_nothing_from_interactive(self) -> None:
        play = Play(running=3, reserved=1, batch_turn=2)
        play.enter("b1", "b2", "b3", "i4")
        for n in range(5, 10):
            play.enter(f"i{n}")
            assert play.leave(f"i{n - 1}") == [f"i{n}"], "the third slot stays interactive's"
        play.enter("i10")
        assert play.leave("b1") == ["b3"], "its turn has come long ago"

    def test_turns_do_not_pile_up_while_batch_is_at_its_bound(self) -> None:
        play = Play(running=3, reserved=1, batch_turn=3)
        play.enter("b1", "b2", "b3", "b4", "i0", *(f"i{n}" for n in range(1, 20)))
        for n in range(10):
            assert play.leave(f"i{n}") == [f"i{n + 1}"]
        assert play.leave("b1") == ["b3"]
        assert play.leave("b2") == ["i11"]
        assert play.leave("b3") == ["i12"], "two slots have to go past before its next turn"
        assert play.leave("i10") == ["b4"]

    def test_what_is_kept_for_a_large_batch_request_is_kept_from_other_batch(self) -> None:
        play = Play(running=6, reserved=2)
        play.enter("bA1", "bB2", "bC3", "bA4*3")
        play.enter("bD5")
        assert play.granted == ["bA1", "bB2", "bC3"]
        assert play.leave("bC3") == []
        assert play.leave("bB2") == ["bA4*3"]
        assert play.leave("bA1") == ["bD5"]


class TestLeaving:
    def test_it_is_idempotent(self) -> None:
        play = Play(running=1)
        play.enter("i1", "i2", "i3")
        assert play.leave("i2", "i2") == []
        assert play.leave("i1", "i1") == ["i3"]
        assert play.leave("i3", "i1", "i2") == []
        assert (play.queue.running, play.queue.waiting) == (0, 0)

    def test_anybody_may_leave_the_line_and_the_order_of_the_others_stays(self) -> None:
        play = Play(running=1, waiting=10)
        play.enter(*(f"i{n}" for n in range(8)))
        play.leave("i1", "i4", "i7")
        assert play.ahead("i2", "i3", "i5", "i6") == [0, 1, 2, 3]
        order = ["i0"]
        for _ in range(4):
            order += play.leave(order[-1])
        assert order == ["i0", "i2", "i3", "i5", "i6"]

    def test_a_line_in_which_many_come_and_go_behind_the_first_stays_small(self) -> None:
        play = Play(running=1)
        play.enter("i0", "i1", "i2")
        for n in range(3, 2000):
            play.enter(f"i{n}")
            play.leave(f"i{n - 1}")
        assert play.ahead("i1", "i1999") == [0, 1]
        fifo = play.queue._interactive._waiting[""]
        assert len(fifo._gaps) < 100
        assert len(play.queue._interactive._order) < 200

    def test_tenants_that_come_and_go_behind_a_waiting_one_leave_nothing(self) -> None:
        play = Play(running=2)
        play.enter("iA1", "iB2", "bA1", "bA2")
        for n in range(1000):
            play.enter(f"iB{n}x")
            play.leave(f"iB{n}x")
        assert len(play.queue._interactive._order) < 200


@pytest.mark.parametrize(
    ("enter", "expected"),
    [
        (["i1", "i2", "i3", "i4"], {"i2": 0, "i3": 1, "i4": 2}),
        (["iA1", "iA2", "iA3", "iB4", "iC5"], {"iB4": 0, "iC5": 1, "iA2": 2, "iA3": 3}),
        (["iA1", "iB2", "iB3", "iC4"], {"iB2": 0, "iC4": 1, "iB3": 2}),
        (["i1", "i2", "b3", "b4"], {"i2": 0, "b3": 0, "b4": 1}),
    ],
)
def test_those_in_front_are_counted_by_the_order_they_would_go_in(
    enter: Sequence[str], expected: dict[str, int]
) -> None:
    play = Play(running=1)
    play.enter(*enter)
    assert {name: play.ahead(name)[0] for name in expected} == expected


class TestOutlook:
    """How many slots have to come free first."""

    def test_it_is_nothing_for_who_would_run_at_once(self) -> None:
        queue = Play(running=2).queue
        assert queue.outlook_of_new(2, INTERACTIVE, "") == (0, 0, 0.0, 2)

    def test_it_counts_the_slots_in_front_and_its_own(self) -> None:
        play = Play(running=4)
        play.enter("i1*3", "i2*4", "i3*2")
        last = play.queue.outlook(play.entries["i3*2"])
        assert (last.ahead, last.shortage, last.lanes) == (1, 3 + 2 - 1, 4), "of one tenant, a mean of 3 each"
        outlook = play.queue.outlook_of_new(2, INTERACTIVE, "")
        assert (outlook.ahead, outlook.slots_ahead) == (2, 6)
        assert outlook.shortage == 6 + 2 - 1, "one slot is free, though kept"

    def test_batch_takes_its_share_of_what_comes_free(self) -> None:
        play = Play(running=8, batch_turn=8, reserved=1)
        play.enter("i1*8", "i2")
        assert play.queue.outlook_of_new(6, INTERACTIVE, "").shortage == 7
        play.enter("b3", "b4")
        assert play.queue.outlook_of_new(6, INTERACTIVE, "").shortage == 8
        assert play.queue.outlook(play.entries["b4"]).shortage == 16
        play.leave("i2")
        assert play.queue.outlook(play.entries["b4"]) == (1, 1, 2.0, 7)

    def test_batch_at_its_bound_counts_its_own_slots_alone(self) -> None:
        play = Play(running=8, reserved=4)
        play.enter("b1*4", "b2", "b3")
        assert play.queue.outlook(play.entries["b3"]) == (1, 1, 2.0, 4)

    def test_who_needs_more_slots_than_there_are_waits_until_nothing_runs(self) -> None:
        play = Play(running=2)
        assert play.queue.outlook_of_new(5, INTERACTIVE, "").shortage == 0
        play.enter("a")
        assert play.queue.outlook_of_new(5, INTERACTIVE, "").shortage == 1

    def test_while_more_run_than_there_are_slots_they_come_free_side_by_side(self) -> None:
        play = Play(running=8)
        play.enter("i1*8", "i2*8")
        play.queue.resize(AdmissionLimits(running=2), 0.0)
        outlook = play.queue.outlook(play.entries["i2*8"])
        assert (outlook.shortage, outlook.lanes) == (3.5, 2)
