"""Settings of one Triton model, and its address."""

from __future__ import annotations

from typing import Any

import pytest

from service.backends.triton.channel import address_of
from service.backends.triton.options import TritonOptions


def test_options_that_cannot_work_are_all_named() -> None:
    with pytest.raises(
        ValueError, match=r"url must not be empty; stop_timeout_s must be above 0 and at most 2000000, got 0"
    ):
        TritonOptions(url="", stop_timeout_s=0)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("triton:8001", ("triton", 8001)),
        ("dns:///triton.svc:8001", ("triton.svc", 8001)),
        ("[::1]:8001", ("::1", 8001)),
        ("unix:/tmp/triton", ("unix:/tmp/triton", None)),
    ],
)
def test_host_and_port_are_taken_from_the_target(url: str, address: tuple[str, int | None]) -> None:
    assert address_of(url) == address


@pytest.mark.parametrize(
    "url",
    [
        "triton",
        "http://127.0.0.1:8001",
        "127.0.0.1:99999",
        "127.0.0.1:0",
        ":8001",
        "a:1,b",
        "dns:///a:1,dns:///b:2",
        "dns:///localhost:99999",
        "a\nb:1",
        "a\0:1",
        "x" * 70_000 + ":1",
        " , ",
    ],
)
def test_a_url_that_can_reach_nothing_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="url"):
        TritonOptions(url=url)


@pytest.mark.parametrize("url", ["a:1", "[::1]:8001", "a:1, b:2", "dns:///a.b:1", "unix:/tmp/x", "ipv4:127.0.0.1:1"])
def test_a_url_that_may_reach_something_is_taken(url: str) -> None:
    assert TritonOptions(url=url).url == url


@pytest.mark.parametrize(
    "options",
    [
        {"first_token_timeout_s": float("nan")},
        {"keepalive_time_s": 1e12},
        {"canary_interval_s": float("inf")},
        {"lora_task_id": -1},
        {"end_ids": (-1,)},
    ],
)
def test_numbers_that_cannot_be_used_are_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        TritonOptions(**options)
