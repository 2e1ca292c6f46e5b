"""How the embedded engine's tokenizer is asked: never for more than it takes to refuse a prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from service.backends.llamacpp.counting import PromptCounter
from service.core.errors import Reason, ServiceError


class Letters:
    """Four characters a token, and one in front; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.error: Exception | None = None
        self.was_asked, self.gate = Event(), Event()
        self.gate.set()

    def tokenize(self, text: str, *, add_special_tokens: bool, timeout_s: float) -> list[int]:
        self.asked.append(len(text))
        self.was_asked.set()
        assert self.gate.wait(10)
        if self.error is not None:
            raise self.error
        return [7] * (add_special_tokens + -(-len(text) // 4))


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


async def test_a_short_prompt_is_counted_at_once(threads: ThreadPoolExecutor) -> None:
    letters = Letters()
    counter = PromptCounter(letters, threads, context_tokens=8192)
    assert await counter.count("x" * 400, add_special_tokens=True) == 101
    assert await counter.count("x" * 400, add_special_tokens=False) == 100
    assert letters.asked == [400, 400]


async def test_a_prompt_that_fits_no_window_is_read_no_further_than_it_takes_to_see(
    threads: ThreadPoolExecutor,
) -> None:
    letters = Letters()
    counter = PromptCounter(letters, threads, context_tokens=8192)
    with pytest.raises(ServiceError, match="8192 tokens; the prompt has more") as caught:
        await counter.count("x" * 14 * 1024 * 1024, add_special_tokens=True)
    assert caught.value.reason is Reason.CONTEXT_LENGTH_EXCEEDED
    assert caught.value.metadata == {"maxContextTokens": "8192"}
    assert sum(letters.asked) <= 128 * 1024


async def test_a_long_prompt_that_may_fit_is_counted_exactly(threads: ThreadPoolExecutor) -> None:
    counter = PromptCounter(Letters(), threads, context_tokens=131_072)
    assert await counter.count("x" * 400_001, add_special_tokens=True) == 100_002
    # A handful above the window is for whoever asked to judge: cuts make slices longer than the whole.
    assert await counter.count("x" * 4 * 131_073, add_special_tokens=False) == 131_073
    unbounded = PromptCounter(Letters(), threads, context_tokens=None)
    assert await unbounded.count("x" * 4_000_000, add_special_tokens=False) == 1_000_000


@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize("error", [TimeoutError("slow"), ConnectionRefusedError(), ValueError("500")])
async def test_an_engine_that_does_not_answer_gets_no_prompt(
    threads: ThreadPoolExecutor, error: Exception, size: int
) -> None:
    letters = Letters()
    letters.error = error
    with pytest.raises(ServiceError) as caught:
        await PromptCounter(letters, threads, context_tokens=8192).count("x" * size, add_special_tokens=True)
    assert caught.value.reason is Reason.BACKEND_UNAVAILABLE


async def test_a_closed_engine_counts_nothing(threads: ThreadPoolExecutor) -> None:
    threads.shutdown()
    with pytest.raises(ServiceError) as caught:
        await PromptCounter(Letters(), threads, context_tokens=8192).count("x", add_special_tokens=True)
    assert caught.value.reason is Reason.BACKEND_UNAVAILABLE


async def test_a_caller_who_leaves_ends_the_reading_with_the_slice(threads: ThreadPoolExecutor) -> None:
    letters = Letters()
    letters.gate.clear()
    counter = PromptCounter(letters, threads, context_tokens=1_000_000)
    task = asyncio.create_task(counter.count("x" * 1_000_000, add_special_tokens=True))
    assert await asyncio.to_thread(letters.was_asked.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    letters.gate.set()
    threads.shutdown()
    assert len(letters.asked) == 1
