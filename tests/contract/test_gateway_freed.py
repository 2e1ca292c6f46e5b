"""What a request held is free when it has ended, however it ended: nothing waits for the collector of cycles."""

import asyncio

import grpc
import pytest

from tests.support.fake_service import HANG, Fail, FakeService, completed, delta, fake_service, finished, started
from tests.support.garbage import kept_by_cycles
from tests.support.gateway_harness import RawClient, RunningGateway, chat_body, running_gateway

COMPLETIONS = "/v1/completions"
ANSWER = (started(), delta("a"), delta("b"), finished(), completed())


async def streamed(fake: FakeService, client: RawClient) -> None:
    fake.will(*ANSWER)
    assert (await client.post(chat_body(stream=True))).status == 200


async def whole(fake: FakeService, client: RawClient) -> None:
    fake.will(*ANSWER)
    assert (await client.post(chat_body(stream=False))).status == 200


async def wrong(_fake: FakeService, client: RawClient) -> None:
    assert (await client.post(chat_body(temperature=9))).status == 400


async def unknown(_fake: FakeService, client: RawClient) -> None:
    assert (await client.get("/v1/nothing")).status == 404


async def failed(fake: FakeService, client: RawClient) -> None:
    fake.will(Fail(code=grpc.StatusCode.INTERNAL, reason="BACKEND_ERROR"))
    assert (await client.post(chat_body(stream=True))).status == 500


async def failed_late(fake: FakeService, client: RawClient) -> None:
    fake.will(started(), delta("a"), Fail(code=grpc.StatusCode.INTERNAL, reason="BACKEND_ERROR"))
    assert b"backend_error" in (await client.post(chat_body(stream=True))).body


async def fanned_out(fake: FakeService, client: RawClient) -> None:
    fake.will(*ANSWER)
    fake.will(*ANSWER)
    body = {"model": "m", "prompt": ["a", "b"], "stream": True}
    assert (await client.post(body, COMPLETIONS)).status == 200


async def fanned_out_failed(fake: FakeService, client: RawClient) -> None:
    fake.will(*ANSWER)
    fake.will(started(), Fail(code=grpc.StatusCode.INTERNAL, reason="BACKEND_ERROR"))
    assert (await client.post({"model": "m", "prompt": ["a", "b"]}, COMPLETIONS)).status == 500


async def against_the_contract(fake: FakeService, client: RawClient) -> None:
    fake.will(delta("a"), started(), finished(), completed())
    assert (await client.post(chat_body())).status == 500


async def leave(fake: FakeService, client: RawClient, prompts: int) -> None:
    for _ in range(prompts):
        fake.will(started(), delta("a"), HANG)
    await client.send("POST", COMPLETIONS, {"model": "m", "prompt": ["a"] * prompts, "stream": True})
    calls = [await fake.next_call() for _ in range(prompts)]
    await client.head()
    client.leave()
    for call in calls:
        await call.wait_cancelled()


async def left(fake: FakeService, client: RawClient) -> None:
    await leave(fake, client, 1)


async def fanned_out_left(fake: FakeService, client: RawClient) -> None:
    await leave(fake, client, 2)


@pytest.mark.parametrize(
    "ask",
    [
        streamed,
        whole,
        wrong,
        unknown,
        failed,
        failed_late,
        fanned_out,
        fanned_out_failed,
        against_the_contract,
        left,
        fanned_out_left,
    ],
)
async def test_the_gateway_keeps_nothing_of_a_request(ask: object) -> None:
    assert callable(ask)
    async with fake_service() as fake, running_gateway(fake.address) as gateway:

        async def once() -> None:
            async with gateway.connect() as client:
                await ask(fake, client)

        await once()
        with kept_by_cycles("gateway.", "headrace._", "starlette.") as kept:
            for _ in range(3):
                await once()
            await settled(gateway, fake)
        assert not kept


async def settled(gateway: RunningGateway, fake: FakeService) -> None:
    fake.forget()
    await gateway.wait_idle()
    await asyncio.sleep(0.1)  # connections close a little later
