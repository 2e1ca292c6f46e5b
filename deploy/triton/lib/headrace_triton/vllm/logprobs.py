"""The `logprobs` output of vLLM's contract: JSON text, one object per token. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, Protocol

from headrace_triton.vocabulary import Vocabulary

__all__ = ["logprobs_text"]


class _Part(Protocol):
    ids: list[int]
    logprobs: list[float]
    alternatives: list[Sequence[tuple[int, float]]]


def logprobs_text(part: _Part, vocabulary: Vocabulary) -> str:
    """Return a list of objects from token id to `logprob`, `rank` and `decoded_token`.

    The generated token comes first, then the alternatives. `logprob` is null
    where the engine does not report it, and `rank` where the token is not among
    the alternatives.
    """
    return json.dumps(
        [_entry(*one, vocabulary) for one in zip(part.ids, part.logprobs, part.alternatives, strict=True)]
    )


def _entry(
    token: int, logprob: float, alternatives: Sequence[tuple[int, float]], vocabulary: Vocabulary
) -> dict[str, Any]:
    ranks = {other: rank for rank, (other, _) in enumerate(alternatives, 1)}
    known = {token: logprob} | dict(alternatives)
    return {
        str(other): {
            "logprob": value if math.isfinite(value) else None,
            "rank": ranks.get(other),
            "decoded_token": vocabulary.pieces[other].decode("utf-8", "replace"),
        }
        for other, value in known.items()
    }
