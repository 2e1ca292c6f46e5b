"""One model on several scripted Tritons: who takes a request, and what happens when one of them fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from service.backends.base import EngineFinished, EngineItem, EngineOutput, EngineRequest, Health
from service.backends.triton.backend import TritonBackend
from service.backends.triton.options import TritonOptions
from service.backends.triton.targets import parse_targets
from service.core.deadline import Deadline
from service.core.errors import Reason, ServiceError
from service.core.request import Sampling
from tests.support.service import eventually
from tests.support.triton_fake import Drop, Error, FakeTriton, Final, Hang, Says, Step

GOOD: list[Step] = [Says(b"Hello"), Final()]
STUB_IS_DEAD = Error("in ensemble 'ensemble', Stub process 'engine_0_0' is not healthy.", is_final=True)
STOPPING = Error("Request for unknown model: 'ensemble' has no available versions")


@pytest.fixture
async def fakes() -> AsyncIterator[list[FakeTriton]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(FakeTriton(script=GOOD)) for _ in range(3)]


async def opened(fakes: list[FakeTriton], **options: object) -> TritonBackend:
    url = ",".join(fake.url for fake in fakes)
    backend = TritonBackend(TritonOptions(url=url, **options))  # type: ignore[arg-type]
    await backend.start()
    return backend


def request(request_id: str, timeout_s: float = 10) -> EngineRequest:
    return EngineRequest(
        request_id=request_id,
        prompt="Hi",
        sampling=Sampling(max_output_tokens=8, seed=1),
        deadline=Deadline.after(timeout_s),
    )


async def collect(backend: TritonBackend, request_id: str) -> list[EngineItem]:
    return [item async for item in backend.generate(request(request_id))]


def is_whole(items: list[EngineItem]) -> bool:
    text = b"".join(item.data for item in items if isinstance(item, EngineOutput))
    return text == b"Hello" and isinstance(items[-1], EngineFinished)


async def test_requests_one_after_another_go_to_all_servers_in_turn(fakes: list[FakeTriton]) -> None:
    backend = await opened(fakes)
    for number in range(9):
        assert is_whole(await collect(backend, str(number)))
    await backend.close()
    assert [len(fake.requests) for fake in fakes] == [3, 3, 3]


async def test_streams_that_run_are_spread_evenly(fakes: list[FakeTriton]) -> None:
    for fake in fakes:
        fake.script = [Says(b"a"), Hang()]
    backend = await opened(fakes)
    runs = [backend.generate(request(str(number))) for number in range(12)]
    for run in runs:
        await anext(run)
    counts = [len(fake.requests) for fake in fakes]
    await backend.close()
    assert counts == [4, 4, 4]


async def test_a_server_whose_streams_have_ended_is_asked_before_a_busy_one(fakes: list[FakeTriton]) -> None:
    idle, busy = fakes[:2]
    idle.script, busy.script = GOOD, [Says(b"a"), Hang()]
    backend = await opened([idle, busy])
    tasks = [asyncio.create_task(collect(backend, str(number))) for number in range(6)]
    await asyncio.wait_for(busy.received.wait(), 5)
    await eventually(
        lambda: (
            len(idle.requests + busy.requests) == len(tasks)
            and sum(task.done() for task in tasks) == len(idle.requests)
        )
    )
    before = len(busy.requests)
    for number in range(4):
        assert is_whole(await collect(backend, f"later-{number}"))
    after = len(busy.requests)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await backend.close()
    assert before == after > 0


@pytest.mark.parametrize(
    "failing",
    [[STUB_IS_DEAD], [STOPPING], [Drop()], [Error("[request id: x] Exceeds maximum queue size")]],
    ids=["dead stub", "unloaded", "cut", "queue full"],
)
async def test_a_failure_before_the_first_token_is_tried_on_another_server(
    fakes: list[FakeTriton], failing: list[Step]
) -> None:
    fakes[0].script = failing
    backend = await opened(fakes)
    for number in range(6):
        assert is_whole(await collect(backend, str(number)))
    await backend.close()
    # Once it has failed it is left alone.
    assert len(fakes[0].requests) == 1


async def test_a_failure_after_the_first_token_is_never_tried_again(fakes: list[FakeTriton]) -> None:
    for fake in fakes:
        fake.script = [Says(b"a"), STUB_IS_DEAD]
    backend = await opened(fakes)
    with pytest.raises(ServiceError) as caught:
        await collect(backend, "1")
    await backend.close()
    assert caught.value.reason is Reason.BACKEND_UNAVAILABLE
    assert sum(len(fake.requests) for fake in fakes) == 1


async def test_what_the_request_itself_did_wrong_is_not_tried_again(fakes: list[FakeTriton]) -> None:
    for fake in fakes:
        fake.script = [Error("Prompt length (9000) exceeds maximum input length (8192).", is_final=True)]
    backend = await opened(fakes)
    with pytest.raises(ServiceError) as caught:
        await collect(backend, "1")
    await backend.close()
    assert caught.value.reason is Reason.CONTEXT_LENGTH_EXCEEDED
    assert sum(len(fake.requests) for fake in fakes) == 1


async def test_when_all_fail_the_last_failure_is_told_after_three_attempts(fakes: list[FakeTriton]) -> None:
    for fake in fakes:
        fake.script = [STUB_IS_DEAD]
    backend = await opened(fakes)
    with pytest.raises(ServiceError, match="model process has died"):
        await collect(backend, "1")
    await backend.close()
    assert [len(fake.requests) for fake in fakes] == [1, 1, 1]


async def test_a_server_that_is_gone_costs_no_request(fakes: list[FakeTriton]) -> None:
    backend = await opened(fakes)
    await fakes[1].close()
    for number in range(8):
        assert is_whole(await collect(backend, str(number)))
    assert await backend.health(2) is Health.READY
    await backend.close()


async def test_a_silent_server_is_left_for_another_one(fakes: list[FakeTriton]) -> None:
    fakes[0].script = fakes[1].script = [Hang()]
    backend = await opened(fakes, first_token_timeout_s=0.2)
    assert is_whole(await collect(backend, "1"))
    await backend.close()


async def test_a_server_that_comes_back_is_used_again(fakes: list[FakeTriton]) -> None:
    backend = await opened(fakes[:2], canary_interval_s=0)
    fakes[0].script = [STUB_IS_DEAD]
    assert await backend.health(2) is Health.READY
    before = len(fakes[0].requests)
    for number in range(4):
        assert is_whole(await collect(backend, str(number)))
    assert len(fakes[0].requests) == before, "a server that failed its check is not asked while another is well"
    fakes[0].script = GOOD
    assert await backend.health(2) is Health.READY
    before = len(fakes[0].requests)
    for number in range(4):
        assert is_whole(await collect(backend, f"again-{number}"))
    assert len(fakes[0].requests) > before
    await backend.close()


async def test_no_server_at_all_is_unavailable_within_the_deadline() -> None:
    async with FakeTriton() as one:
        url = one.url
    backend = TritonBackend(TritonOptions(url=f"{url}, {url[:-1]}{(int(url[-1]) + 1) % 10}"))
    await backend.start()
    with pytest.raises(ServiceError) as caught:
        await collect(backend, "1")
    assert caught.value.reason is Reason.BACKEND_UNAVAILABLE
    assert await backend.health(1) is Health.UNAVAILABLE
    await backend.close()


async def test_the_stop_goes_to_the_server_that_runs_the_request(fakes: list[FakeTriton]) -> None:
    for fake in fakes:
        fake.script = [Says(b"a"), Hang()]
    backend = await opened(fakes)
    run = backend.generate(request("wanted"))
    await anext(run)
    (at,) = [fake for fake in fakes if fake.requests]
    await run.aclose()
    await asyncio.wait_for(at.stopped.wait(), 5)
    await backend.close()
    assert [stop.id for stop in at.stops] == ["wanted"]
    assert not any(fake.stops for fake in fakes if fake is not at)


async def test_a_name_is_resolved_to_its_addresses(fakes: list[FakeTriton]) -> None:
    port = fakes[0].url.rpartition(":")[2]
    backend = TritonBackend(TritonOptions(url=f"dns:///localhost:{port}"))
    await backend.start()
    assert is_whole(await collect(backend, "1"))
    await backend.close()
    assert len(fakes[0].requests) == 1


async def test_a_name_that_does_not_resolve_is_unavailable() -> None:
    backend = TritonBackend(TritonOptions(url="dns:///no-such-host.invalid:8001"))
    await backend.start()
    with pytest.raises(ServiceError) as caught:
        await collect(backend, "1")
    assert caught.value.reason is Reason.BACKEND_UNAVAILABLE
    assert await backend.health(1) is Health.UNAVAILABLE
    await backend.close()


@pytest.mark.parametrize(
    ("url", "addresses", "name"),
    [
        ("a:1", ["a:1"], None),
        ("a:1, b:2,a:1", ["a:1", "b:2"], None),
        ("unix:///tmp/socket", ["unix:///tmp/socket"], None),
        ("dns:///triton.prod:8001", [], ("triton.prod", 8001)),
        ("dns:///[::1]:8001", [], ("::1", 8001)),
    ],
)
def test_a_url_is_a_list_or_a_name(url: str, addresses: list[str], name: tuple[str, int] | None) -> None:
    assert parse_targets(url) == (addresses, name)


@pytest.mark.parametrize("url", ["dns:///triton", "dns:///:8001", "dns:///triton:http"])
def test_a_name_needs_a_port(url: str) -> None:
    with pytest.raises(ValueError, match="name:port"):
        parse_targets(url)
    with pytest.raises(ValueError, match="name:port"):
        TritonOptions(url=url)


def test_a_list_without_any_server_is_refused() -> None:
    with pytest.raises(ValueError, match="names no server"):
        TritonOptions(url=" , ")
