"""From a gRPC status and its details to the client's exceptions."""

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from headrace import errors
from headrace.v1 import error_reason_pb2
from tests.support.fake_service import Fail

REASONS = [name.removeprefix("ERROR_REASON_") for name in error_reason_pb2.ErrorReason.DESCRIPTOR.values_by_name][1:]
FAILURES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]


def trailers_of(fail: Fail) -> list[tuple[str, bytes]]:
    return [("grpc-status-details-bin", fail.status().SerializeToString())]


def error_of(fail: Fail) -> errors.HeadraceError:
    return errors.error_from_status(fail.code, fail.message, trailers_of(fail))


def test_every_reason_of_the_contract_and_every_status_has_a_class() -> None:
    assert set(errors.ERROR_CLASSES) == {*REASONS, *FAILURES}


@pytest.mark.parametrize("reason", REASONS)
def test_the_reason_chooses_the_class_whatever_the_status(reason: str) -> None:
    error = error_of(Fail(code=grpc.StatusCode.DATA_LOSS, reason=reason))
    assert type(error) is errors.ERROR_CLASSES[reason]
    assert (error.reason, error.status) == (reason, grpc.StatusCode.DATA_LOSS)


@pytest.mark.parametrize("status", FAILURES)
def test_without_a_reason_the_status_chooses_the_class(status: grpc.StatusCode) -> None:
    error = errors.error_from_status(status, "text")
    assert type(error) is errors.ERROR_CLASSES[status]
    assert (error.reason, error.message, str(error)) == (None, "text", f"{status.name}: text")


def test_a_reason_this_client_does_not_know_is_kept_and_the_status_chooses_the_class() -> None:
    error = error_of(Fail(code=grpc.StatusCode.RESOURCE_EXHAUSTED, reason="TO_COME"))
    assert type(error) is errors.Overloaded
    assert error.reason == "TO_COME"


def test_every_detail_reaches_its_attribute() -> None:
    fail = Fail(
        code=grpc.StatusCode.INVALID_ARGUMENT,
        reason="INVALID_FIELD",
        metadata={"limit": "2"},
        violations=[("sampling.temperature", "0 to 2"), ("stop.sequences[3]", "is empty")],
        retry_after_s=1.25,
        request_id="req-9",
    )
    status = fail.status()
    status.details.add().Pack(error_details_pb2.ResourceInfo(resource_type="model", resource_name="m"))
    error = errors.error_from_status(
        fail.code, "bad", [("x", "y"), ("grpc-status-details-bin", status.SerializeToString())]
    )
    assert isinstance(error, errors.InvalidRequest)
    assert error.violations == (
        errors.Violation("sampling.temperature", "0 to 2"),
        errors.Violation("stop.sequences[3]", "is empty"),
    )
    assert error.metadata == {"limit": "2"}
    assert (error.retry_after_s, error.request_id, error.resource) == (1.25, "req-9", "m")


def test_a_retry_delay_of_zero_is_a_delay_and_not_unknown() -> None:
    assert error_of(Fail(code=grpc.StatusCode.UNAVAILABLE, retry_after_s=0.0)).retry_after_s == 0.0
    assert error_of(Fail(code=grpc.StatusCode.UNAVAILABLE)).retry_after_s is None


@pytest.mark.parametrize("raw", [b"\xff\xff\xff", b"", "text"], ids=["garbage", "empty", "not bytes"])
def test_broken_details_leave_the_status_alone(raw: bytes | str) -> None:
    error = errors.error_from_status(grpc.StatusCode.NOT_FOUND, "gone", [("grpc-status-details-bin", raw)])
    assert type(error) is errors.NotFound
    assert (error.reason, error.violations, error.metadata, error.message) == (None, (), {}, "gone")


def test_one_broken_detail_does_not_hide_the_others() -> None:
    status = Fail(code=grpc.StatusCode.UNAVAILABLE, reason="DRAINING", retry_after_s=2).status()
    broken = any_pb2.Any(type_url="type.googleapis.com/google.rpc.BadRequest", value=b"\xff\xff")
    unknown = any_pb2.Any(type_url="type.googleapis.com/example.Unknown", value=b"\x08\x01")
    mixed = status_pb2.Status(code=status.code, details=[broken, unknown, *status.details])
    error = errors.error_from_status(
        grpc.StatusCode.UNAVAILABLE, "", [("grpc-status-details-bin", mixed.SerializeToString())]
    )
    assert (error.reason, error.retry_after_s, error.violations) == ("DRAINING", 2.0, ())


def test_an_error_info_of_another_domain_is_not_a_reason() -> None:
    status = status_pb2.Status(code=14)
    status.details.add().Pack(
        error_details_pb2.ErrorInfo(reason="NOT_FOUND_HERE", domain="example.com", metadata={"a": "b"})
    )
    trailers = [("grpc-status-details-bin", status.SerializeToString())]
    error = errors.error_from_status(grpc.StatusCode.UNAVAILABLE, "", trailers)
    assert (error.reason, error.metadata) == (None, {})


def test_a_message_over_the_transports_limit_is_the_requests_fault() -> None:
    text = "SERVER: Received message larger than max (5000000 vs. 4194304)"
    assert type(errors.error_from_status(grpc.StatusCode.RESOURCE_EXHAUSTED, text)) is errors.RequestTooLarge


def test_only_causes_that_may_pass_before_any_event_are_retriable() -> None:
    retriable = {cls for cls in set(errors.ERROR_CLASSES.values()) if cls("", status=FAILURES[0]).is_retriable}
    assert retriable == {errors.Overloaded, errors.RateLimited, errors.Unavailable}
    late = errors.Unavailable("", status=grpc.StatusCode.UNAVAILABLE)
    late.events_received = 3
    assert not late.is_retriable


def test_the_tree_in_the_docstring_shows_every_class() -> None:
    classes = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.HeadraceError)]
    missing = [cls.__name__ for cls in classes if f"─ {cls.__name__} " not in (errors.__doc__ or "")]
    assert missing == ["HeadraceError"]
