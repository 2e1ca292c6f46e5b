"""Storms of requests that leave, stall, break and are broken, against service and gateway as processes.

`make chaos` sends 6,000 in about ten minutes; `make test` a short form. HEADRACE_CHAOS_REQUESTS, HEADRACE_CHAOS_S
(the seconds in which they are sent) and HEADRACE_CHAOS_SEED choose others; HEADRACE_CHAOS_ONLY sends the numbers
that are named ("17,230") and nothing else.
"""

from __future__ import annotations

import os
from collections import defaultdict
from functools import partial
from itertools import chain
from pathlib import Path

import pytest

from tests.support.chaos_fates import fate_problems
from tests.support.chaos_ledger import (
    calls_in,
    count_problems,
    gateway_problems,
    ledger_problems,
    stray_lines,
    unexpected_lines,
)
from tests.support.chaos_report import explained, reached, summary
from tests.support.chaos_site import Held, Site, running_site
from tests.support.chaos_storm import Asked, Strike, storm
from tests.support.chaos_verdict import verdict
from tests.support.chaos_world import Target, World

REQUESTS = int(os.environ.get("HEADRACE_CHAOS_REQUESTS", "600"))
DURATION_S = float(os.environ.get("HEADRACE_CHAOS_S", "36"))
SEED = int(os.environ.get("HEADRACE_CHAOS_SEED", "1"))
ONLY = [int(number) for number in os.environ.get("HEADRACE_CHAOS_ONLY", "").split(",") if number]
IDLE_S = 8.0
# Every disturbance comes once in so many seconds of a whole run, and at least once.
ROUND_S = 120.0
# Fewer requests need not reach everything.
ENOUGH = 400
# A service drains for a second or less, and not everybody asks just then.
REACHED_BY_MANY = {"DRAINING"}
MANY = 3000
# Lines of a log that are shown of each kind.
MOST = 10
# What a storm has to reach; else it proves nothing about it.
REACHED = {
    *("completed", "client_cancelled", "cancelled", "deadline_exceeded", "rejected", "backend_error", "internal_error"),
    *("QUEUE_FULL", "QUEUE_TIMEOUT", "DEADLINE_TOO_SHORT", "DEADLINE_IN_QUEUE", "DEADLINE_IN_DECODE"),
    *("FIRST_TOKEN_TIMEOUT", "TOKEN_GAP_TIMEOUT", "CONSUMER_TOO_SLOW"),
    *("BACKEND_ERROR", "BACKEND_UNAVAILABLE"),
    *("STOP", "LENGTH", "TIME_LIMIT", "CANCELLED"),
}

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120 + 2 * DURATION_S)]

cut_gateway, cut_clients = partial(Site.cut, target=Target.GATEWAY_WIRE), partial(Site.cut, target=Target.CLIENT_WIRE)
freeze_gateway = partial(Site.freeze, target=Target.GATEWAY_WIRE, for_s=0.4)
freeze_clients = partial(Site.freeze, target=Target.CLIENT_WIRE, for_s=0.8)
RESTARTS = (
    Strike(at=0.15, do=cut_gateway),
    Strike(at=0.25, do=Site.kill_gateway),
    Strike(at=0.4, do=freeze_clients),
    Strike(at=0.5, do=Site.restart_service),
    Strike(at=0.85, do=Site.restart_gateway),
)
BREAKS = (Strike(at=0.3, do=freeze_gateway), Strike(at=0.5, do=cut_clients), Strike(at=0.7, do=cut_gateway))


async def test_after_a_storm_every_request_has_one_end_and_nothing_is_left(tmp_path: Path) -> None:
    """First with restarts; then a calm for processes that are new; then without restarts, for what these leave."""
    world, asked = World(), Asked()
    left: list[str] = []
    held: list[tuple[Held, Held]] = []
    async with running_site(tmp_path, world) as site:
        for name, numbers, strikes in _phases():
            duration_s = DURATION_S * len(numbers) / max(REQUESTS, 1)
            asked |= await storm(site, seed=SEED, numbers=numbers, duration_s=duration_s, strikes=strikes)
            left += [f"after {name} {what}" for what in await site.idle(IDLE_S)]
            held.append(site.held())
        left += [] if ONLY else _growth(*held[-2:])
        fates = await fate_problems(site.target, asked, site.service_since_s)
        left += count_problems(calls_in(site.services[-1].lines()), (await site.status()).outcome_counts)
    processes = {f"{one.name}{at}": one for ran in (site.services, site.gateways) for at, one in enumerate(ran)}
    logs = {name: process.lines() for name, process in processes.items()}
    calls = calls_in(chain(*logs.values()))
    problems: dict[str, list[str]] = defaultdict(list, {"": left})
    for name, process in processes.items():
        problems[""] += [f"{name} logged {line}" for line in unexpected_lines(logs[name], asked)[:MOST]]
        problems[""] += [f"{name} wrote {line}" for line in stray_lines(process.output())[:MOST]]
    for kind in (fates, ledger_problems(asked, calls, world), gateway_problems(asked, chain(*logs.values()), world)):
        for request_id, told in kind.items():
            problems[request_id] += told
    for request_id, (plan, seen) in asked.items():
        problems[request_id] += verdict(plan, seen, world)
    if len(asked) >= ENOUGH:
        expected = REACHED | (REACHED_BY_MANY if len(asked) >= MANY else set())
        problems[""] += [f"the storm did not reach {what}" for what in sorted(expected - reached(calls))]
    found = {request_id: told for request_id, told in problems.items() if told}
    print(summary(asked, calls))  # noqa: T201 - shown of a test that fails, and by pytest -s
    assert not found, explained(SEED, asked, found, logs, world)


def _phases() -> list[tuple[str, list[int], tuple[Strike, ...]]]:
    """Return the storms one after the other: name, numbers of the requests, strikes."""
    if ONLY:
        return [("the storm", ONLY, ())]
    first, second = REQUESTS * 45 // 100, REQUESTS * 55 // 100
    return [
        ("the storm with restarts", list(range(first)), _rounds(RESTARTS)),
        ("the calm", list(range(first, second)), ()),
        ("the storm without restarts", list(range(second, REQUESTS)), _rounds(BREAKS)),
    ]


def _rounds(strikes: tuple[Strike, ...]) -> tuple[Strike, ...]:
    """Return the strikes as often as a storm of this length has room for them."""
    rounds = max(1, round(DURATION_S / ROUND_S))
    return tuple(Strike(at=(number + one.at) / rounds, do=one.do) for number in range(rounds) for one in strikes)


def _growth(before: tuple[Held, Held], after: tuple[Held, Held]) -> list[str]:
    """Return what the processes hold more than before."""
    most_mib = 24 + REQUESTS / 500
    found = []
    for name, was, now in zip(("service", "gateway"), before, after, strict=True):
        if now.files > was.files + 4:
            found.append(f"{name} holds {now.files} files, {was.files} before; connections {now.connections}")
        if now.mib > was.mib + most_mib:
            found.append(f"{name} grew from {was.mib:.1f} to {now.mib:.1f} MiB")
    return found
