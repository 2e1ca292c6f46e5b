"""Who calls, once somebody has looked at the credentials."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["ANONYMOUS", "Identity"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The caller of one RPC.

    `tenant` is whom limits, usage and generations belong to; `subject` names the
    credential within it (the id of an API key, the subject of a token or a
    certificate), never the credential itself. Both may stand in logs and in the
    ledger. `models` are the ids that it may use; None for all.
    """

    tenant: str = ""
    subject: str = ""
    models: frozenset[str] | None = None

    def may_use(self, model_id: str) -> bool:
        """Return whether it may use the model with this id (never an alias)."""
        return self.models is None or model_id in self.models


ANONYMOUS: Final = Identity()
