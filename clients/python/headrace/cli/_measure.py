"""What `headrace ttft` measures: prompts of a given length, and the statistics of their runs. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

__all__ = ["Case", "Run", "percentile", "prompt_words", "summarize"]

Number = TypeVar("Number", int, float)

QUESTION: Final = "Name three things that matter here, and say why."
WORDS: Final = tuple(
    "river stone harbour window letter garden engine market shadow copper signal bridge winter paper "  # noqa: SIM905
    "morning valley anchor mirror candle forest station pocket thunder orange ladder island needle".split()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One generation as the client saw it, with what the service says of it. None is unknown."""

    ttft_s: float | None
    gaps_s: Sequence[float]
    prompt_tokens: int | None
    output_tokens: int | None
    server_queue_s: float | None
    server_prefill_s: float | None
    output_tokens_per_second: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Runs of prompts of one length."""

    name: str
    words: int
    runs: Sequence[Run]


def prompt_words(count: int, seed: int) -> str:
    """Return `count` words of text; another seed differs from the first word on, so no prefix cache serves it."""
    pick = random.Random(seed)  # noqa: S311 - text, not a secret
    words = [f"{pick.choice(WORDS)}{seed}"] + [pick.choice(WORDS) for _ in range(count - 1)]
    return " ".join(words[:count])


def percentile(values: Sequence[float], rank: float) -> float | None:
    """Return the `rank` (0 to 1) quantile, linear between the two nearest values; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    position = (len(ordered) - 1) * rank
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def summarize(case: Case) -> dict[str, Any]:
    """Return the figures of one case, ready for JSON: seconds, tokens, and null for what nobody knows."""
    return {
        "case": case.name,
        "prompt_words": case.words,
        "runs": len(case.runs),
        "prompt_tokens": _middle(_known([run.prompt_tokens for run in case.runs])),
        "output_tokens": _middle(_known([run.output_tokens for run in case.runs])),
        "ttft_s": _quantiles(_known([run.ttft_s for run in case.runs])),
        "server_queue_s": _quantiles(_known([run.server_queue_s for run in case.runs])),
        "server_prefill_s": _quantiles(_known([run.server_prefill_s for run in case.runs])),
        "inter_token_gap_s": _quantiles([gap for run in case.runs for gap in run.gaps_s]),
        "output_tokens_per_second": _quantiles(_known([run.output_tokens_per_second for run in case.runs])),
    }


def _known(values: Sequence[Number | None]) -> list[Number]:
    return [value for value in values if value is not None]


def _middle(values: Sequence[int]) -> int | None:
    return sorted(values)[(len(values) - 1) // 2] if values else None


def _quantiles(values: Sequence[float]) -> dict[str, float | None]:
    return {"p50": percentile(values, 0.5), "p90": percentile(values, 0.9)}
