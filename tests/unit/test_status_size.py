"""An error fits into what clients take as trailers, whatever a caller sent."""

from __future__ import annotations

import base64
from urllib.parse import quote

import pytest
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from service.core.errors import Reason, ServiceError, Violation, invalid
from service.rpc.status import MAX_VIOLATIONS, to_status

LIMIT_BYTES = 8192
ID = "r" * 128

TEXTS = st.builds(
    lambda piece, times: piece * times,
    st.text(st.characters(), min_size=1, max_size=20),
    st.sampled_from([0, 1, 7, 100, 5000]),
)
VIOLATIONS = st.lists(st.builds(Violation, TEXTS, TEXTS), max_size=40)


def size_of(error: ServiceError) -> int:
    """Return the size of all trailers as HTTP/2 counts them: names, values, and 32 bytes for each."""
    wire = to_status(error, ID, 2**31)
    trailers: list[tuple[str, str]] = [("grpc-status", "99"), ("content-type", "application/grpc")]
    # gRPC escapes everything but printable ASCII, and quotes the percent sign.
    printable = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
    trailers.append(("grpc-message", quote(wire.details, safe=printable)))
    for name, value in wire.trailing_metadata:
        trailers.append((name, base64.b64encode(value).decode() if name.endswith("-bin") else value))
    return sum(len(name) + len(value) + 32 for name, value in trailers)


def violations_of(error: ServiceError) -> list[tuple[str, str]]:
    wire = status_pb2.Status.FromString(dict(to_status(error, ID, 0).trailing_metadata)["grpc-status-details-bin"])
    for box in wire.details:
        bad = error_details_pb2.BadRequest()
        if box.Unpack(bad):
            return [(violation.field, violation.description) for violation in bad.field_violations]
    return []


@given(
    reason=st.sampled_from(list(Reason)),
    message=TEXTS,
    violations=VIOLATIONS,
    metadata=st.dictionaries(st.sampled_from(["model", "capability", "a", "b", "c", "d"]), TEXTS),
    retry_after_s=st.none() | st.just(12.5),
    headers=st.lists(st.tuples(st.just("x-ratelimit-remaining-requests"), TEXTS.map(ascii)), max_size=8),
)
def test_no_error_is_larger_than_clients_take(
    reason: Reason,
    message: str,
    violations: list[Violation],
    metadata: dict[str, str],
    retry_after_s: float | None,
    headers: list[tuple[str, str]],
) -> None:
    error = ServiceError(reason, message, violations, metadata, retry_after_s, headers=headers)
    assert size_of(error) < LIMIT_BYTES
    assert size_of(invalid(violations)) < LIMIT_BYTES


@pytest.mark.parametrize("character", ["x", "%", "é", "🧿", "\ud800", "\n"])
def test_the_largest_of_everything_fits(character: str) -> None:
    text = character * 100_000
    error = ServiceError(
        Reason.MODEL_NOT_FOUND, text, [Violation(text, text)] * 100, {"model": text, "a": text, "b": text}, 1e6
    )
    assert size_of(error) < LIMIT_BYTES


def test_of_many_violations_the_first_are_named_and_the_rest_counted() -> None:
    error = invalid([Violation(f"chat.messages[{at}]", "is bad") for at in range(300)])
    found = violations_of(error)
    assert found[:MAX_VIOLATIONS] == [(f"chat.messages[{at}]", "is bad") for at in range(MAX_VIOLATIONS)]
    assert found[MAX_VIOLATIONS:] == [("", "and 280 more")]
    assert error.message.startswith("chat.messages[0]: is bad; ")
    assert error.message.endswith("; and 290 more")


def test_as_many_as_there_is_room_for_are_all_there_and_uncut() -> None:
    violations = [Violation(f"a[{at}]", "must be at most 20, got 21") for at in range(MAX_VIOLATIONS)]
    assert violations_of(invalid(violations)) == [(one.field, one.description) for one in violations]


def test_a_long_text_is_cut_between_characters() -> None:
    (found,) = violations_of(invalid([Violation("a", "é" * 1000)]))
    assert found[1].lstrip("é") == "..."
    assert 500 <= len(found[1].encode()) <= 512
    message = to_status(ServiceError(Reason.BACKEND_ERROR, "é" * 1000), ID, 0).details
    assert message.lstrip("é") == "..."
    assert to_status(ServiceError(Reason.BACKEND_ERROR, "x" * 1024), ID, 0).details == "x" * 1024
