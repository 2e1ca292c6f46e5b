"""Makes sure that an output constraint is really in force.

llama.cpp compiles JSON Schemas, regular expressions and choices with LLGuidance,
and when that fails it writes a line to stderr and generates without the constraint.
The guard runs one token under the constraint with the odds turned to a text that
cannot come then: no JSON value begins with it, and what might is put behind a
letter. If that text comes out, the constraint was ignored, and the request is
refused instead.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from typing import Any, Final

from service.backends.llamacpp.chunks import engine_error
from service.backends.llamacpp.engine import Engine
from service.backends.llamacpp.lexical import behind_prefix
from service.backends.llamacpp.schema_nodes import doubtful_keywords
from service.core.errors import Reason, ServiceError, Violation, invalid
from service.core.request import Constraint, ConstraintKind

__all__ = ["ConstraintGuard"]

_MAX_REMEMBERED: Final = 256
_MAX_NAMED: Final = 8
_NEVER_JSON: Final = "Q"
_PREFIX: Final = "A"
_ANY_OBJECT: Final = {"type": "object"}
# Beats any logit of any model.
_CERTAIN: Final = 1e6
_TIMEOUT_S: Final = 10.0


class ConstraintGuard:
    """Remembers which constraints were seen to work. Safe to use from several threads; `check` blocks."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._verdicts: OrderedDict[bytes, bool] = OrderedDict()
        self._bait = engine.tokenize(_NEVER_JSON, add_special_tokens=False, timeout_s=_TIMEOUT_S)[-1]

    def warm_up(self) -> None:
        """Compile one schema. The first one builds tables of the whole vocabulary, seconds in which nothing decodes."""
        self._is_enforced({"json_schema": _ANY_OBJECT})

    def check(self, body: dict[str, Any], constraint: Constraint | None) -> None:
        """Raise INVALID_FIELD if the engine would ignore the constraint in `body`. Costs one token per new one."""
        if constraint is None or constraint.kind is ConstraintKind.GRAMMAR:
            return  # a faulty GBNF grammar is refused by llama.cpp itself
        if "json_schema" in body:
            tested = {"json_schema": body["json_schema"]}
        else:
            tested = {"grammar": behind_prefix(body["grammar"], _PREFIX)}
        key = hashlib.sha256(json.dumps(tested).encode()).digest()
        with self._lock:
            verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = self._is_enforced(tested)
            with self._lock:
                self._verdicts[key] = verdict
                while len(self._verdicts) > _MAX_REMEMBERED:
                    self._verdicts.popitem(last=False)
        if not verdict:
            description = (
                "the engine cannot enforce this: it is invalid, contradictory or uses what the engine does not support"
            )
            if "json_schema" in body and (doubtful := doubtful_keywords(body["json_schema"])):
                description += f"; it uses {', '.join(doubtful[:_MAX_NAMED])}"
            raise invalid([Violation(f"constraint.{constraint.kind.value}", description)])

    def _is_enforced(self, tested: dict[str, Any]) -> bool:
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
            **tested,
        }
        self._engine.run(body, on_chunk)
        ids: list[int] = []
        for chunk in chunks:
            if "choices" not in chunk:
                raise engine_error(chunk.get("error", chunk), has_output=False)
            details = chunk["choices"][0]["logprobs"]
            ids += [entry["id"] for entry in details["content"]] if details else []
        if not ids:
            raise ServiceError(Reason.BACKEND_ERROR, "The engine did not answer whether it can enforce the constraint.")
        return self._bait not in ids
