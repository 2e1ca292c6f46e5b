"""Settings of one Triton model, and its address."""

from __future__ import annotations

import pytest

from service.backends.triton.channel import address_of
from service.backends.triton.options import TritonOptions


def test_options_that_cannot_work_are_all_named() -> None:
    with pytest.raises(ValueError, match=r"url must not be empty; stop_timeout_s must be above 0, got 0"):
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
