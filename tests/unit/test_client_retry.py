"""When the client's own HTTP/2 tries a call again, and what it counts."""

import grpc
import pytest

from headrace._http2.outcome import OK, Outcome
from headrace._http2.retry import RetryThrottle, retry_delay_s

Code = grpc.StatusCode
BUSY = Outcome(Code.UNAVAILABLE)


def pushed(status: grpc.StatusCode, pushback: str) -> Outcome:
    return Outcome(status, "", (("grpc-retry-pushback-ms", pushback),))


def is_open(throttle: RetryThrottle) -> bool:
    return retry_delay_s(pushed(Code.UNAVAILABLE, "7"), 1, throttle) == 0.007


def test_after_a_pushback_the_backoff_begins_anew() -> None:
    delay_s = retry_delay_s(BUSY, 2, RetryThrottle(), pushed_back=1)
    assert delay_s is not None
    assert 0.16 <= delay_s <= 0.24


@pytest.mark.parametrize("pushback", ["-1", "0", "1500"])
@pytest.mark.parametrize("status", [Code.RESOURCE_EXHAUSTED, Code.DEADLINE_EXCEEDED, Code.INTERNAL])
def test_a_status_that_is_not_retried_costs_no_retries_whatever_its_pushback(
    status: grpc.StatusCode, pushback: str
) -> None:
    throttle = RetryThrottle()
    assert [retry_delay_s(pushed(status, pushback), 1, throttle) for _ in range(20)] == [None] * 20
    assert is_open(throttle)


def test_a_pushback_of_never_counts_like_any_failure_that_is_retried() -> None:
    throttle = RetryThrottle()
    for _ in range(5):
        assert retry_delay_s(pushed(Code.UNAVAILABLE, "-1"), 1, throttle) is None
    assert not is_open(throttle)


def test_failures_that_nobody_may_retry_are_counted_where_they_are_noted() -> None:
    throttle = RetryThrottle()
    assert [throttle.note(BUSY) for _ in range(6)] == [True] * 4 + [False] * 2
    for _ in range(30):
        assert not throttle.note(OK)
    assert is_open(throttle)
