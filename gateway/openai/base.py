"""The base of everything that is read from a request body.

Types are strict: no string counts as a number, no number as a boolean. An
explicit null is the same as an absent member, everywhere. Members that nobody
knows are ignored, because SDKs add some with every release; members that are
known, not served and would change the answer are refused by name
(`parameters`).
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from gateway.openai.parameters import HINTS

__all__ = ["RequestModel"]


def _describe_hints(schema: dict[str, Any]) -> None:
    for name, member in schema.get("properties", {}).items():
        if member.get("description") == "Accepted and not used." and name in HINTS:
            member["description"] = f"Accepted and not used: {HINTS[name]}"


class RequestModel(BaseModel):
    """One object within a request body, or the whole body."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="ignore", json_schema_extra=_describe_hints)
