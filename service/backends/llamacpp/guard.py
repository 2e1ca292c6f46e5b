"""Makes sure that an output constraint is really in force.

llama.cpp compiles JSON Schemas with LLGuidance, and when that fails it writes a
line to stderr and generates without the constraint. The guard runs one token
under the schema with the odds turned to a text that no JSON value begins with: if
that text comes out, the schema was ignored, and the request is refused instead.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from typing import Any, Final

from service.backends.llamacpp.chunks import engine_error
from service.backends.llamacpp.engine import Engine
from service.core.errors import Reason, ServiceError, Violation, invalid
from service.core.request import Constraint, ConstraintKind

__all__ = ["ConstraintGuard"]

_MAX_REMEMBERED: Final = 256
_NEVER_JSON: Final = "Q"
_ANY_OBJECT: Final = {"type": "object"}
# Beats any logit of any model.
_CERTAIN: Final = 1e6
_TIMEOUT_S: Final = 10.0


class ConstraintGuard:
    """Remembers which schemas were seen to work. Safe to use from several threads; `check` blocks."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._verdicts: OrderedDict[str, bool] = OrderedDict()
        self._bait = engine.tokenize(_NEVER_JSON, add_special_tokens=False, timeout_s=_TIMEOUT_S)[-1]

    def warm_up(self) -> None:
        """Compile one schema. The first one builds tables of the whole vocabulary, seconds in which nothing decodes."""
        self._is_enforced(_ANY_OBJECT)

    def check(self, body: dict[str, Any], constraint: Constraint | None) -> None:
        """Raise INVALID_FIELD if the engine would ignore the schema in `body`. Costs one token per new schema."""
        if constraint is None or constraint.kind is ConstraintKind.GRAMMAR:
            return  # a faulty GBNF grammar is refused by llama.cpp itself
        key = json.dumps(body["json_schema"])
        with self._lock:
            verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = self._is_enforced(body["json_schema"])
            with self._lock:
                self._verdicts[key] = verdict
                while len(self._verdicts) > _MAX_REMEMBERED:
                    self._verdicts.popitem(last=False)
        if not verdict:
            description = (
                "the engine cannot enforce this schema: it is invalid, contradictory or uses an unsupported keyword"
            )
            raise invalid([Violation(f"constraint.{constraint.kind.value}", description)])

    def _is_enforced(self, schema: dict[str, Any]) -> bool:
        chunks: list[dict[str, Any]] = []

        def on_chunk(chunk: bytes) -> bool:
            chunks.append(json.loads(chunk))
            return False

        body = {
            "prompt": [self._bait],
            "stream": True,
            "n_predict": 1,
            "temperature": 0,
            "n_probs": 1,
            "logit_bias": [[self._bait, _CERTAIN]],
            "json_schema": schema,
        }
        self._engine.run(body, on_chunk)
        ids: list[int] = []
        for chunk in chunks:
            if "choices" not in chunk:
                raise engine_error(chunk.get("error", chunk), has_output=False)
            details = chunk["choices"][0]["logprobs"]
            ids += [entry["id"] for entry in details["content"]] if details else []
        if not ids:
            raise ServiceError(Reason.BACKEND_ERROR, "The engine did not answer whether it can enforce the schema.")
        return self._bait not in ids
