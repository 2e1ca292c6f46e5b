"""The client's own HTTP/2 against real gRPC servers: load, cancels, flow control, restarts."""

import asyncio
import gc
import random
import socket
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
import uvloop

from headrace import AsyncClient, errors
from headrace._http2.call import Call
from headrace._http2.connection import Connection
from headrace.v1 import generation_pb2_grpc
from tests.support.fake_service import HANG, FakeService, completed, delta, fake_service, finished, started

Code = grpc.StatusCode


def client_at(address: str, **more: Any) -> AsyncClient:
    return AsyncClient(address, transport="asyncio", **more)


async def text_of(client: AsyncClient, **more: Any) -> str:
    async with client.generate(model="m", prompt="p", **more) as stream:
        return await stream.text()


def left(kind: type) -> int:
    return sum(isinstance(thing, kind) for thing in gc.get_objects())


async def test_two_hundred_streams_at_once_get_each_their_own() -> None:
    async with fake_service() as fake, client_at(fake.address) as client:
        fake.default = (started(), *[delta("x")] * 30, finished(), completed())
        assert await asyncio.gather(*[text_of(client) for _ in range(200)]) == ["x" * 30] * 200


async def test_messages_and_requests_of_megabytes_come_through_both_ways() -> None:
    async with (
        fake_service(options=[("grpc.max_receive_message_length", -1)]) as fake,
        client_at(fake.address) as client,
    ):
        fake.default = (started(), delta("y" * 3_000_000), delta("z" * 65_536), finished(), completed())
        async with client.generate(model="m", prompt="p" * 10_000_000) as stream:
            assert len(await stream.text()) == 3_065_536
        assert len((await fake.next_call()).request.prompt) == 10_000_000


async def test_messages_over_the_limits_are_refused_on_this_side() -> None:
    options = {"grpc.max_receive_message_length": 10_000, "grpc.max_send_message_length": 1_000}
    async with fake_service() as fake, client_at(fake.address, channel_options=options) as client:
        fake.will(started(), delta("y" * 20_000), HANG)
        with pytest.raises(errors.RequestTooLarge, match="Received message larger than max"):
            await text_of(client)
        await (await fake.next_call()).wait_cancelled()
        async with client.generate(model="m", prompt="p" * 2_000) as stream:
            with pytest.raises(errors.RequestTooLarge, match="Sent message larger than max"):
                await stream.text()


async def test_a_reader_that_stalls_holds_the_server_back_and_loses_nothing() -> None:
    async with fake_service() as fake, client_at(fake.address) as client:
        fake.will(started(), *[delta(f"{n:04} " * 200) for n in range(2000)], finished(), completed())
        async with client.generate(model="m", prompt="p") as stream:
            await anext(stream)
            call = await fake.next_call()
            other = [await text_of(client) for _ in range(3)]  # other streams do not wait for it
            assert other == ["Hello world"] * 3
            sent = call.sent
            for _ in range(3):
                await text_of(client)
            assert call.sent - sent < 50  # held back: of 2000 messages about a window's worth was sent
            assert call.sent < 200
            assert await stream.text() == "".join(f"{n:04} " * 200 for n in range(2000))


async def test_many_frozen_streams_hold_up_no_other_one_and_each_holds_one_window() -> None:
    # Together they hold more than the window of their connection.
    async with fake_service() as fake, client_at(fake.address) as client, AsyncExitStack() as frozen:
        fake.default = (started(), *[delta("x" * 4000)] * 20, HANG)
        for _ in range(15):  # a server refuses more than a thousand that come at once
            streams = [await frozen.enter_async_context(client.generate(model="m", prompt="p")) for _ in range(100)]
            await asyncio.gather(*[anext(stream) for stream in streams])
        async with asyncio.timeout(20):
            while min(call.sent for call in fake.calls) < 4:  # noqa: ASYNC110 - the peer has no signal for it
                await asyncio.sleep(0.01)
        fake.default = (started(), *[delta("y" * 1000)] * 200, finished(), completed())
        assert await asyncio.wait_for(text_of(client), 20) == "y" * 200_000
        assert sum(call.sent for call in fake.calls[:1500]) < 1500 * 10


async def storm(fake: FakeService, client: AsyncClient, cancels: int) -> None:
    dice = random.Random(7)
    fake.default = (started(), *[delta("x")] * 40, finished(), completed())
    steady = [asyncio.ensure_future(text_of(client)) for _ in range(20)]
    cancelled = []
    for _ in range(cancels // 50):
        batch = [asyncio.ensure_future(text_of(client)) for _ in range(50)]
        for task in batch:
            for _ in range(dice.randrange(4)):
                await asyncio.sleep(0)
            task.cancel()
        cancelled += batch
        steady.append(asyncio.ensure_future(text_of(client)))
        await steady[-1]
    ends = await asyncio.gather(*cancelled, return_exceptions=True)
    assert {type(end) for end in ends} <= {asyncio.CancelledError, str}
    assert await asyncio.gather(*steady) == ["x" * 40] * len(steady)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_thousand_cancels_at_any_moment_leave_nothing_and_harm_no_other_stream(loop: str) -> None:
    async def run() -> None:
        async with fake_service() as fake:
            client = client_at(fake.address)
            gc.collect()
            calls, connections = left(Call), left(Connection)
            gc.disable()
            try:
                await storm(fake, client, 1000)
                assert left(Call) == calls  # freed by reference counts alone
            finally:
                gc.enable()
            await client.close()
            gc.collect()
            assert left(Connection) == connections
            for call in fake.calls:
                async with asyncio.timeout(10):
                    while not call.is_over:  # noqa: ASYNC110 - the fake has no event for it
                        await asyncio.sleep(0.01)
            mine = [task for task in asyncio.all_tasks() if "headrace:" in task.get_name()]
            assert mine == []

    with asyncio.Runner(loop_factory=uvloop.new_event_loop if loop == "uvloop" else None) as runner:
        runner.run(run())


async def test_a_server_that_stops_in_the_middle_is_unavailable_and_its_successor_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    client = client_at(f"127.0.0.1:{port}")
    for _ in range(2):
        server, fake = grpc.aio.server(options=[("grpc.so_reuseport", 0)]), FakeService()
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(fake, server)
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        fake.will(started(), delta("a"), HANG)
        async with client.generate(model="m", prompt="p") as stream:
            assert (await anext(stream)).HasField("started")
            await anext(stream)
            await server.stop(0)
            with pytest.raises(errors.HeadraceError) as caught:
                await stream.text()
            assert caught.value.status in (Code.UNAVAILABLE, Code.CANCELLED)
    await client.close()


async def test_connections_that_the_server_ends_by_age_cost_no_call() -> None:
    options = [("grpc.max_connection_age_ms", 150), ("grpc.max_connection_age_grace_ms", 10_000)]
    async with fake_service(options=options) as fake, client_at(fake.address) as client:
        pause = asyncio.Event()
        asyncio.get_running_loop().call_later(1.0, pause.set)
        fake.will(started(), delta("long"), pause, finished(), completed())
        long = asyncio.ensure_future(text_of(client))  # outlives several connections

        async def keep_calling() -> None:
            count = 0
            while not pause.is_set() or count < 3:  # several connections come and go meanwhile
                assert await text_of(client) == "Hello world"
                count += 1

        await asyncio.gather(*[keep_calling() for _ in range(4)])
        assert await long == "long"
        assert all(call.header("grpc-previous-rpc-attempts") is None for call in fake.calls)


async def test_a_server_that_drains_lets_streams_end_and_gets_no_new_ones() -> None:
    server, fake = grpc.aio.server(options=[("grpc.so_reuseport", 0)]), FakeService()
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(fake, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    more = asyncio.Event()
    fake.will(started(), delta("a"), more, delta("b"), finished(), completed())
    async with client_at(f"127.0.0.1:{port}") as client, client.generate(model="m", prompt="p") as stream:
        await anext(stream)
        await anext(stream)
        stopping = asyncio.ensure_future(server.stop(10))
        # CANCELLED for a call that came before the GOAWAY.
        with pytest.raises((errors.Unavailable, errors.Cancelled)):
            async with asyncio.timeout(10):
                while True:
                    await text_of(client)
        more.set()
        assert await stream.text() == "b"
        await stopping


async def test_all_addresses_of_a_target_are_used_in_turn_and_a_lost_one_is_passed_over() -> None:
    async with fake_service() as one, fake_service() as two:
        async with fake_service() as lost:
            gone = lost.address
        async with client_at(f"ipv4:{one.address},{two.address},{gone}") as client:
            await text_of(client)
            while not (one.calls and two.calls):
                await text_of(client)
            before = len(one.calls), len(two.calls)
            for _ in range(10):
                await text_of(client)
            assert (len(one.calls), len(two.calls)) == (before[0] + 5, before[1] + 5)


async def serve_at(port: int) -> tuple[grpc.aio.Server, FakeService, int]:
    server, fake = grpc.aio.server(options=[("grpc.so_reuseport", 0)]), FakeService()
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(fake, server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    return server, fake, port


async def test_an_address_that_was_lost_is_used_again_when_it_is_back() -> None:
    async with fake_service() as steady:
        server, fake, port = await serve_at(0)
        async with client_at(f"ipv4:{steady.address},127.0.0.1:{port}") as client, asyncio.timeout(20):
            while not fake.calls:
                await text_of(client)
            await server.stop(0)
            for _ in range(4):
                await text_of(client)
            server, fake, _ = await serve_at(port)
            while not fake.calls:
                await text_of(client)
            await server.stop(0)


async def test_names_are_resolved_and_a_name_that_is_none_is_unavailable() -> None:
    async with fake_service() as fake:
        port = fake.address.rpartition(":")[2]
        for target in (f"dns:///localhost:{port}", f"localhost:{port}"):
            async with client_at(target) as client:
                assert await text_of(client) == "Hello world"
    async with client_at("dns:///name.invalid:1") as client:
        with pytest.raises(errors.Unavailable, match="cannot resolve"):
            await text_of(client, timeout_s=8)


async def test_a_unix_socket_is_a_target(tmp_path: Path) -> None:
    server, fake = grpc.aio.server(), FakeService()
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(fake, server)
    server.add_insecure_port(f"unix:{tmp_path}/s")
    await server.start()
    async with client_at(f"unix://{tmp_path}/s") as client:
        assert await text_of(client) == "Hello world"
    await server.stop(0)


async def test_closing_while_connecting_leaves_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = client_at(f"127.0.0.1:{silent.getsockname()[1]}")
        async with client.generate(model="m", prompt="p") as stream:
            reader = asyncio.ensure_future(stream.text())
            await asyncio.sleep(0)
            await client.close()
            with pytest.raises(errors.Cancelled):
                await reader
        assert [task for task in asyncio.all_tasks() if "headrace:" in task.get_name()] == []
