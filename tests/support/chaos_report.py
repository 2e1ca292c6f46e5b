"""Tells what a storm found, so that a failure explains itself: the request, what came, and what the servers logged."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Final

from tests.support.chaos_ledger import Line
from tests.support.chaos_storm import Asked
from tests.support.chaos_world import World

__all__ = ["explained", "reached", "summary"]

_EXAMPLES: Final = 3
_MOST_LINES: Final = 6
_NUMBER: Final = re.compile(r"\d+(\.\d+)?")


def explained(
    seed: int, asked: Asked, problems: Mapping[str, Sequence[str]], logs: Mapping[str, Iterable[Line]], world: World
) -> str:
    """Return a text about the requests with problems, by request id; those of no request stand under ""."""
    lines_of: dict[str, list[str]] = defaultdict(list)
    for name, lines in logs.items():
        for line in lines:
            if line.get("request_id") in problems:
                lines_of[line["request_id"]].append(f"{name}: {json.dumps(line)}")
    kinds: dict[str, list[str]] = defaultdict(list)
    for request_id, found in problems.items():
        for problem in found if request_id else ():
            kinds[_NUMBER.sub("#", problem)].append(request_id)
    told = [f"{len(problems) - ('' in problems)} of {len(asked)} requests have problems; seed {seed}"]
    told += [f"  {problem}" for problem in problems.get("", ())]
    told += [f"{len(those):6} x {kind}" for kind, those in kinds.items()]
    for request_id in dict.fromkeys(chain(*(those[:_EXAMPLES] for those in kinds.values()))):
        plan, seen = asked[request_id]
        told.append(f"\nrequest {plan.number} ({request_id})")
        told += [f"  PROBLEM {problem}" for problem in problems[request_id]]
        slack_s = world.slack_s(seen.began_s, seen.ended_s)
        told += [f"  plan  {plan}", f"  came  {seen}", f"  slack {slack_s:.3f} s, with what lagged at that time"]
        for felt in world.disturbed_by(plan, seen.began_s, seen.ended_s):
            told.append(f"  felt  {felt.what} of {felt.target.value}, {felt.from_s - seen.began_s:+.3f} s")
        told += [f"  log   {line}" for line in lines_of[request_id][:_MOST_LINES]] or ["  log   nothing"]
    return "\n".join(told)


def summary(asked: Asked, calls: Sequence[Line]) -> str:
    """Return how the requests ended, counted, and what the log of calls has besides."""
    ends = Counter(
        f"{plan.way.value}: {seen.end.value} {seen.reason or seen.code or seen.status}".strip()
        for plan, seen in asked.values()
    )
    logged = Counter(f"logged {line['outcome']} {line.get('stopped_in') or ''}".strip() for line in calls)
    return "\n".join(f"{count:6} {end}" for end, count in [*sorted(ends.items()), *sorted(logged.items())])


def reached(calls: Iterable[Line]) -> set[str]:
    """Return every outcome, reason and finish reason in the log of calls: what a storm has reached."""
    found: set[str] = set()
    for line in calls:
        found |= {line["outcome"], line.get("reason") or ""} | {one.upper() for one in line.get("finish_reasons") or ()}
    return found - {""}
