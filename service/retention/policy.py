"""What a caller may ask of retention, and the bounds of a server on it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final

from service.core.errors import Reason, ServiceError, Violation

__all__ = [
    "MAX_ANNOTATION_BYTES",
    "MAX_KEY_CHARS",
    "Policy",
    "RetentionLimits",
    "content_digest",
    "key_reused",
    "policy_violations",
]

MAX_KEY_CHARS: Final = 128
MAX_ANNOTATION_BYTES: Final = 65_536
_KEY: Final = re.compile(r"[\x21-\x7e]{1,128}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionLimits:
    """What a server keeps.

    `retain_s` behind the end of a generation, unless its request says less.
    `events` and `event_bytes` of one generation: above them the oldest ones go.
    `ended_bytes` of all that have ended: above it the oldest generations go.
    `reattach_s`: how long a generation runs on without a reader, unless its request
    says that it runs to its end.
    """

    retain_s: float = 300.0
    events: int = 65_536
    event_bytes: int = 4 * 1024 * 1024
    ended_bytes: int = 256 * 1024 * 1024
    reattach_s: float = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How one generation is retained.

    `key` is the caller's, empty for none; `digest` is that of what was asked with it.
    `retain_s` None takes the server's; 0 keeps events until the end of the generation.
    """

    key: str = ""
    digest: bytes = b""
    retain_s: float | None = None
    continues: bool = False
    annotation: bytes = b""


def content_digest(content: bytes) -> bytes:
    """Return what stands for the content of a request; `content` is its deterministic form, without key and policy."""
    return hashlib.blake2b(content, digest_size=20).digest()


def key_reused(generation_id: str) -> ServiceError:
    """Return the refusal of a request whose key is that of another one, which started `generation_id`."""
    return ServiceError(
        Reason.IDEMPOTENCY_MISMATCH,
        "The idempotency key was used for another request.",
        metadata={"generationId": generation_id},
    )


def policy_violations(policy: Policy, limits: RetentionLimits) -> list[Violation]:
    """Return what is wrong with a policy."""
    found = []
    if policy.key and not _KEY.fullmatch(policy.key):
        found.append(Violation("idempotency_key", f"must be 1 to {MAX_KEY_CHARS} visible ASCII characters"))
    retain_s = policy.retain_s
    if retain_s is not None and not 0 <= retain_s <= limits.retain_s:
        found.append(
            Violation("retention.retain_for", f"must be from 0 to {limits.retain_s:g} seconds, got {retain_s:g}")
        )
    if len(policy.annotation) > MAX_ANNOTATION_BYTES:
        found.append(
            Violation(
                "retention.annotation",
                f"must be at most {MAX_ANNOTATION_BYTES} bytes, got {len(policy.annotation)}",
            )
        )
    return found
