"""One table per mapping, and a walk over each."""

from __future__ import annotations

import pytest
from google.rpc import error_details_pb2, status_pb2

from headrace.v1 import chat_pb2, error_reason_pb2, generation_pb2
from service.core.errors import Reason, ServiceError, Violation, invalid
from service.core.events import FinishReason
from service.core.request import Role
from service.rpc.convert_chat import _ROLES
from service.rpc.status import STATUS_BY_REASON, to_status


def test_every_reason_has_a_wire_status_and_a_wire_name() -> None:
    assert STATUS_BY_REASON.keys() == set(Reason)
    wire = {
        name.removeprefix("ERROR_REASON_"): number for name, number in error_reason_pb2.ErrorReason.items() if number
    }
    assert wire == {reason.name: reason.value for reason in Reason}


def test_the_finish_reasons_are_those_of_the_wire() -> None:
    wire = {
        name.removeprefix("FINISH_REASON_"): number for name, number in generation_pb2.FinishReason.items() if number
    }
    assert wire == {reason.name: reason.value for reason in FinishReason}


def test_the_roles_are_those_of_the_wire() -> None:
    assert set(_ROLES.values()) == set(Role)
    assert set(_ROLES) == {number for _, number in chat_pb2.Role.items() if number}


def status(error: ServiceError, last_sequence: int = 0) -> tuple[status_pb2.Status, dict[str, object]]:
    wire = to_status(error, "req_1", last_sequence)
    trailers = dict(wire.trailing_metadata)
    return status_pb2.Status.FromString(trailers["grpc-status-details-bin"]), trailers


@pytest.mark.parametrize("reason", Reason)
def test_every_error_has_one_error_info_and_the_request_id(reason: Reason) -> None:
    wire, _ = status(ServiceError(reason, "text", detail="secret"), 7)
    infos = [box for box in wire.details if box.Is(error_details_pb2.ErrorInfo.DESCRIPTOR)]
    assert len(infos) == 1
    info = error_details_pb2.ErrorInfo()
    infos[0].Unpack(info)
    assert (info.reason, info.domain, info.metadata["lastSequence"]) == (reason.name, "headrace.v1", "7")
    assert any(box.Is(error_details_pb2.RequestInfo.DESCRIPTOR) for box in wire.details)
    assert b"secret" not in wire.SerializeToString()
    assert len({box.type_url for box in wire.details}) == len(wire.details), "each kind of detail at most once"


def test_a_retry_is_timed_before_output_and_forbidden_after_it() -> None:
    error = ServiceError(Reason.QUEUE_FULL, "full", retry_after_s=1.5)
    assert status(error)[1]["grpc-retry-pushback-ms"] == "1500"
    assert status(error, 3)[1]["grpc-retry-pushback-ms"] == "-1"
    assert "grpc-retry-pushback-ms" not in status(ServiceError(Reason.INVALID_FIELD, "x"))[1]


@pytest.mark.parametrize("reason", [Reason.RATE_LIMITED, Reason.QUOTA_EXHAUSTED])
def test_a_limit_that_was_reached_is_a_quota_failure_with_its_headers_beside_it(reason: Reason) -> None:
    headers = (("x-ratelimit-limit-requests", "60"), ("x-ratelimit-reset-requests", "1s"))
    violation = Violation("tenant:acme", "limit 60, used 60")
    wire = to_status(ServiceError(reason, "no", [violation], retry_after_s=1.5, headers=headers), "r", 0)
    trailers = dict(wire.trailing_metadata)
    assert [trailers[name] for name, _ in headers] == ["60", "1s"]
    assert trailers["grpc-retry-pushback-ms"] == "-1"  # grpc-java would wait as long, whatever the status
    found = error_details_pb2.QuotaFailure()
    details = status_pb2.Status.FromString(trailers["grpc-status-details-bin"]).details
    assert [box.Unpack(found) for box in details].count(True) == 1
    assert [(v.subject, v.description) for v in found.violations] == [("tenant:acme", "limit 60, used 60")]


def test_violations_become_one_bad_request() -> None:
    wire, _ = status(invalid([Violation("a", "is bad"), Violation("b", "is worse")]))
    bad = error_details_pb2.BadRequest()
    (box,) = [box for box in wire.details if box.Is(bad.DESCRIPTOR)]
    box.Unpack(bad)
    assert [(v.field, v.description) for v in bad.field_violations] == [("a", "is bad"), ("b", "is worse")]
    assert wire.message == "a: is bad; b: is worse"
