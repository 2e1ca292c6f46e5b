"""Whether an answer kept to its constraint, as far as that can be told from outside the engine.

Engines drop a constraint without a word: one that they cannot compile, or one
whose limits they meet on the way. What must not happen is that such an answer
ends like a good one.
"""

from __future__ import annotations

import json

from service.core.errors import Reason, ServiceError
from service.core.request import Constraint, ConstraintKind, GenerationRequest
from service.generation.calls import is_forced
from service.generation.choice import Choice

__all__ = ["check_kept", "is_broken", "is_checked"]

_CHECKED = frozenset({ConstraintKind.JSON_OBJECT, ConstraintKind.JSON_SCHEMA, ConstraintKind.CHOICE})


def is_checked(request: GenerationRequest) -> bool:
    """Return whether a whole answer can be held against the request's constraint.

    Not where a stop criterion may have cut it, and not against expressions and
    grammars in the engine's own dialect.
    """
    constraint, stop = request.constraint, request.stop
    return constraint is not None and constraint.kind in _CHECKED and not (stop.sequences or stop.token_ids)


def is_broken(constraint: Constraint, answer: str) -> bool:
    """Return whether `answer`, which its model ended, is no JSON, or none of the choices.

    A schema is not looked at: the engine has compiled it, and an answer that left it
    half-way does not end as JSON.
    """
    if constraint.kind is ConstraintKind.CHOICE:
        return answer not in json.loads(constraint.source)
    try:
        value = json.loads(answer)
    except RecursionError:
        return False
    except ValueError:
        return True
    return constraint.kind is ConstraintKind.JSON_OBJECT and not isinstance(value, dict)


def check_kept(request: GenerationRequest, choice: Choice) -> None:
    """Raise BACKEND_ERROR if an answer that its model ended is not what the engine was held to."""
    if request.constraint is not None and choice.answer is not None:
        is_kept = not is_broken(request.constraint, "".join(choice.answer))
    else:
        is_kept = not is_forced(request) or (choice.parser is not None and bool(choice.parser.calls))
    if not is_kept:
        raise ServiceError(Reason.BACKEND_ERROR, "The engine did not keep to what the answer has to look like.")
