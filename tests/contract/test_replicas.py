"""Two services that share a real Redis: a key runs once, and a generation is known, read and stopped at either."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import redis as client

from headrace.v1 import generation_pb2 as gen
from service.retention.policy import RetentionLimits
from service.sharing.sharing import Sharing
from service.sharing.store import SharedStore
from tests.support import retained
from tests.support.redis_server import RedisServer, redis_server
from tests.support.retained import attached, refused
from tests.support.service import GenerateRequest, RunningService, eventually, running_service, script, text_of

TOKENS = [f"{number} " for number in range(60)]
WHOLE = "".join(TOKENS)
ANSWER = script(tokens=TOKENS, output_tokens=60, token_ms=10)
ENDLESS = script(tokens=["e"], token_ms=5)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


@asynccontextmanager
async def replica(redis: RedisServer, **retention: Any) -> AsyncIterator[RunningService]:
    sharing = Sharing(SharedStore(redis.url, timeout_s=0.3, lease_s=1.0), longest_s=60)
    async with running_service(retention=RetentionLimits(**retention), sharing=sharing) as service:
        yield service


@asynccontextmanager
async def two(redis: RedisServer, **retention: Any) -> AsyncIterator[tuple[RunningService, RunningService]]:
    async with replica(redis, **retention) as here, replica(redis, **retention) as there:
        yield here, there


def keyed(prompt: str = ANSWER, key: str = "k1", **fields: Any) -> GenerateRequest:
    return retained.keyed(prompt, key, **fields)


def started(*services: RunningService) -> int:
    return sum(service.sim.started for service in services)


async def test_two_hundred_duplicates_over_two_replicas_run_once_and_read_the_same(redis: RedisServer) -> None:
    async with two(redis) as (here, there):
        answers = await asyncio.gather(*((here, there)[number % 2].events(keyed()) for number in range(200)))
        late = [await service.events(keyed()) for service in (here, there)]
        assert started(here, there) == 1
        assert len({b"".join(event.SerializeToString() for event in answer) for answer in answers + late}) == 1
        assert text_of(answers[0]) == WHOLE


async def test_more_keys_at_once_than_connections_wait_their_turn(redis: RedisServer) -> None:
    quick = script(tokens=["a"], output_tokens=2, token_ms=1)
    async with replica(redis) as service:
        answers = await asyncio.gather(*(service.events(keyed(quick, key=f"k{number}")) for number in range(150)))
        assert {text_of(events) for events in answers} == {"aa"}


async def test_a_key_with_another_request_is_refused_at_the_other_replica(redis: RedisServer) -> None:
    async with two(redis) as (here, there):
        await here.events(keyed())
        failure = await there.failure(keyed("something else"))
        assert failure.info.reason == "IDEMPOTENCY_MISMATCH"
        assert started(here, there) == 1


async def test_a_stream_goes_on_at_the_other_replica(redis: RedisServer) -> None:
    async with two(redis) as (here, there):
        call = here.generation.Generate(keyed(), timeout=20)
        had = [await call.read() for _ in range(10)]
        call.cancel()
        rest = await attached(there, after=had[-1].sequence, generation_id=had[0].started.generation_id)
        assert [event.sequence for event in had + rest] == list(range(1, len(had + rest) + 1))
        assert text_of(had + rest) == WHOLE
        assert await attached(there, idempotency_key="k1") == had + rest


async def test_readers_that_hop_between_replicas_read_it_whole(redis: RedisServer) -> None:
    async with two(redis) as (here, there):
        first = asyncio.create_task(here.events(keyed()))
        await eventually(lambda: here.sim.running == 1)

        async def reader(seed: int) -> list[gen.GenerateResponse]:
            lots, events = random.Random(seed), list[gen.GenerateResponse]()
            while not (events and events[-1].HasField("completed")):
                service = lots.choice((here, there))
                call = service.generation.AttachGeneration(
                    gen.AttachGenerationRequest(idempotency_key="k1", after_sequence=len(events)), timeout=20
                )
                for _ in range(lots.randint(1, 15)):
                    event = await call.read()
                    if event is grpc.aio.EOF:
                        break
                    events.append(event)
                call.cancel()
            return events

        readers = await asyncio.gather(*(reader(seed) for seed in range(10)))
        expected = await first
        assert all(events == expected for events in readers)


def written(redis: RedisServer) -> int:
    """Return how many entries were added to logs so far."""
    with client.Redis.from_url(redis.url) as connection:
        counts: Any = connection.info("commandstats")
    return int(counts.get("cmdstat_xadd", {}).get("calls", 0))


async def test_a_log_is_written_seldom_until_somebody_reads_it_elsewhere(redis: RedisServer) -> None:
    slow = script(tokens=["e"], token_ms=20)
    async with two(redis) as (here, there):
        call = here.generation.Generate(keyed(slow), timeout=30)
        generation_id = (await call.read()).started.generation_id
        await asyncio.sleep(0.6)
        before = written(redis)
        await asyncio.sleep(2)
        alone = written(redis) - before
        reader = there.generation.AttachGeneration(gen.AttachGenerationRequest(generation_id=generation_id), timeout=20)
        for _ in range(120):
            await reader.read()
        before = written(redis)
        await asyncio.sleep(2)
        read = written(redis) - before
        assert alone <= 6  # two a second, and a little for a machine that is busy
        assert read >= 10  # ten a second
        reader.cancel()
        await asyncio.sleep(4)
        before = written(redis)
        await asyncio.sleep(2)
        assert written(redis) - before <= 6
        call.cancel()


async def test_a_reader_at_the_other_replica_keeps_it_running(redis: RedisServer) -> None:
    async with two(redis, reattach_s=0.3) as (here, there):
        call = here.generation.Generate(keyed(ENDLESS), timeout=20)
        generation_id = (await call.read()).started.generation_id
        other = there.generation.AttachGeneration(gen.AttachGenerationRequest(generation_id=generation_id), timeout=20)
        await other.read()
        await asyncio.sleep(1.2)  # the other replica has told that it is read there
        call.cancel()
        await asyncio.sleep(1.0)
        assert here.sim.running == 1
        other.cancel()
        await eventually(lambda: here.sim.running == 0, 10)


async def test_state_and_cancel_at_the_other_replica_also_without_retention(redis: RedisServer) -> None:
    async with two(redis) as (here, there):
        for request in (keyed(ENDLESS), GenerateRequest(model="sim", prompt=ENDLESS)):
            call = here.generation.Generate(request, timeout=20)
            generation_id = (await call.read()).started.generation_id
            asked = gen.GetGenerationRequest(generation_id=generation_id)
            state = await there.generation.GetGeneration(asked, timeout=5)
            assert (state.state, state.generation_id) == (gen.GENERATION_STATE_RUNNING, generation_id)
            cancel = gen.CancelGenerationRequest(generation_id=generation_id)
            answer = await there.generation.CancelGeneration(cancel, timeout=5)
            assert answer.state == gen.GENERATION_STATE_CANCELLED
            while (event := await call.read()) is not grpc.aio.EOF:
                last = event
            assert last.HasField("completed")
            state = await there.generation.GetGeneration(asked, timeout=5)
            assert state.state == gen.GENERATION_STATE_CANCELLED


async def test_what_is_anothers_is_not_there_either(redis: RedisServer) -> None:
    async with two(redis) as (here, there):
        alice, bob = (("authorization", "Bearer alice"),), (("authorization", "Bearer bob"),)
        events = await here.events(keyed(), metadata=alice)
        generation_id = events[0].started.generation_id
        told = set()
        for target in ({"generation_id": generation_id}, {"idempotency_key": "k1"}, {"generation_id": "gen_nope"}):
            for call in (
                attached(there, metadata=bob, **target),
                there.generation.GetGeneration(gen.GetGenerationRequest(**target), timeout=5, metadata=bob),
                there.generation.CancelGeneration(gen.CancelGenerationRequest(**target), timeout=5, metadata=bob),
            ):
                failure = await refused(call)
                told.add((failure.code, failure.info.reason, failure.error.details()))
        assert len(told) == 1
        assert await attached(there, generation_id=generation_id, metadata=alice) == events


async def test_a_failure_is_the_same_at_the_other_replica(redis: RedisServer) -> None:
    async with two(redis) as (here, there):
        request = keyed(script(tokens=["a"], token_ms=5, fault="error", fault_after=3))
        failures = await asyncio.gather(*((here, there)[number % 2].failure(request) for number in range(8)))
        assert {failure.info.reason for failure in failures} == {"BACKEND_ERROR"}
        assert len({failure.received for failure in failures}) == 1
        assert started(here, there) == 1


async def test_what_failed_before_its_first_token_runs_again_anywhere(redis: RedisServer) -> None:
    async with two(redis) as (here, there):
        request = keyed(script(fault="error", fault_after=0))
        for service in (here, there, here):
            assert (await service.failure(request)).info.reason == "BACKEND_ERROR"
            await asyncio.sleep(0.1)
        assert started(here, there) == 3


async def test_the_events_stay_when_their_server_leaves_in_order(redis: RedisServer) -> None:
    async with replica(redis) as there:
        async with replica(redis) as here:
            events = await here.events(keyed())
        assert await there.events(keyed()) == events
        assert await attached(there, after=5, generation_id=events[0].started.generation_id) == events[5:]
        state = await there.generation.GetGeneration(gen.GetGenerationRequest(idempotency_key="k1"), timeout=5)
        assert state.state == gen.GENERATION_STATE_COMPLETED
        assert there.sim.started == 0


async def test_what_a_drain_cut_runs_again_elsewhere(redis: RedisServer) -> None:
    async with replica(redis) as there:
        async with replica(redis) as here:
            call = asyncio.create_task(here.failure(keyed(ENDLESS)))
            await eventually(lambda: here.sim.running == 1)
            joined = asyncio.create_task(there.failure(keyed(ENDLESS)))
            await asyncio.sleep(0.2)
            await here.server.stop(0)
            assert (await call).info.reason == "DRAINING"
        assert (await joined).info.reason == "DRAINING"
        again = there.generation.Generate(keyed(ENDLESS), timeout=20)
        await again.read()
        assert there.sim.started == 1
        again.cancel()


async def test_a_reader_at_the_other_replica_counts_from_its_first_moment(redis: RedisServer) -> None:
    async with two(redis, reattach_s=0.4) as (here, there):
        call = here.generation.Generate(keyed(ENDLESS), timeout=20)
        generation_id = (await call.read()).started.generation_id
        await asyncio.sleep(0.2)  # it is shown there
        call.cancel()
        await asyncio.sleep(0.2)
        other = there.generation.AttachGeneration(gen.AttachGenerationRequest(generation_id=generation_id), timeout=20)
        await other.read()
        await asyncio.sleep(1.0)
        assert here.sim.running == 1
        other.cancel()


async def test_a_generation_is_found_at_the_other_replica_from_its_first_event_on(redis: RedisServer) -> None:
    async with two(redis) as (here, there):
        for number in range(5):
            call = here.generation.Generate(keyed(key=f"k{number}"), timeout=20)
            generation_id = (await call.read()).started.generation_id
            assert text_of(await attached(there, generation_id=generation_id)) == WHOLE
            call.cancel()


async def test_who_has_more_than_is_shown_waits_for_it(redis: RedisServer) -> None:
    async with two(redis) as (here, there):
        call = here.generation.Generate(keyed(), timeout=20)
        generation_id = (await call.read()).started.generation_id
        rest = await attached(there, after=40, generation_id=generation_id)
        assert rest[0].sequence == 41
        failure = await refused(attached(there, after=1000, generation_id=generation_id))
        assert failure.fields == ["after_sequence"]


async def test_long_names_go_to_no_other_replica(redis: RedisServer) -> None:
    async with two(redis) as (here, _):
        for target in ({"generation_id": "g" * 1_000_000}, {"idempotency_key": "k" * 1_000_000}):
            failure = await refused(here.generation.GetGeneration(gen.GetGenerationRequest(**target), timeout=5))
            assert failure.info.reason == "GENERATION_NOT_FOUND"


# Redis is not there


async def test_a_store_that_is_down_at_the_start_costs_only_what_needs_it(redis: RedisServer) -> None:
    redis.kill()
    async with replica(redis) as service:
        assert text_of(await service.events(GenerateRequest(model="sim", prompt=ANSWER))) == WHOLE
        failure = await service.failure(keyed())
        assert (failure.code, failure.info.reason) == (grpc.StatusCode.UNAVAILABLE, "STORE_UNAVAILABLE")
        assert service.sim.started == 1
        kept = await service.events(GenerateRequest(model="sim", prompt=ANSWER, retention=gen.RetentionPolicy()))
        assert await attached(service, generation_id=kept[0].started.generation_id) == kept
        assert "the store that replicas share is not there" in service.server.monitor.problems()
        redis.start()
        await asyncio.sleep(0.6)
        assert text_of(await service.events(keyed())) == WHOLE
        assert not service.server.monitor.problems()


async def test_a_store_that_dies_in_the_middle_stops_no_reader_of_the_owner(redis: RedisServer) -> None:
    async with two(redis) as (here, there):
        call = asyncio.create_task(here.events(keyed(ANSWER)))
        await eventually(lambda: here.sim.running == 1)
        await asyncio.sleep(0.1)
        redis.kill()
        joined = await refused(attached(there, idempotency_key="k1"))
        assert joined.info.reason == "STORE_UNAVAILABLE"
        assert text_of(await call) == WHOLE
        assert text_of(await here.events(keyed(ANSWER))) == WHOLE  # known here


async def test_a_store_that_comes_back_empty_gets_what_runs_anew(redis: RedisServer) -> None:
    tokens = [f"{number} " for number in range(300)]
    request = keyed(script(tokens=tokens, output_tokens=300, token_ms=15))
    async with two(redis) as (here, there):
        call = asyncio.create_task(here.events(request))
        await eventually(lambda: here.sim.running == 1)
        await asyncio.sleep(0.3)
        redis.kill()
        await asyncio.sleep(0.2)
        redis.start()
        await asyncio.sleep(1.8)
        generation_id = next(iter(here.server.recordings.ids))
        rest = await attached(there, generation_id=generation_id)
        assert rest == await call
        assert text_of(rest) == "".join(tokens)


async def test_a_slow_store_holds_nobody_up_who_does_not_need_it(redis: RedisServer) -> None:
    async with replica(redis) as service:
        redis.freeze()
        async with asyncio.timeout(5):
            assert text_of(await service.events(GenerateRequest(model="sim", prompt=ANSWER))) == WHOLE
            assert (await service.failure(keyed())).info.reason == "STORE_UNAVAILABLE"
        redis.thaw()
        await asyncio.sleep(0.5)
        assert text_of(await service.events(keyed(key="k2"))) == WHOLE


async def test_a_claim_that_the_store_took_without_saying_so_is_no_key_that_hangs(redis: RedisServer) -> None:
    async with two(redis) as (here, there):
        for key, service in (("k1", here), ("k2", there)):
            redis.freeze()
            assert (await here.failure(keyed(key=key))).info.reason == "STORE_UNAVAILABLE"
            redis.thaw()
            await asyncio.sleep(1.0)
            async with asyncio.timeout(5):
                assert text_of(await service.events(keyed(key=key))) == WHOLE


async def test_an_end_that_the_store_did_not_take_is_told_later(redis: RedisServer) -> None:
    async with two(redis) as (here, there):
        call = asyncio.create_task(here.events(keyed()))
        await eventually(lambda: here.sim.running == 1)
        joined = asyncio.create_task(attached(there, idempotency_key="k1"))
        await asyncio.sleep(0.3)
        redis.freeze()
        expected = await call
        await asyncio.sleep(0.6)
        redis.thaw()
        async with asyncio.timeout(5):
            assert await joined == expected
            assert await there.events(keyed()) == expected
        assert started(here, there) == 1


async def test_a_store_that_is_emptied_under_way_loses_nothing_that_runs(redis: RedisServer) -> None:
    tokens = [f"{number} " for number in range(250)]
    request = keyed(script(tokens=tokens, output_tokens=250, token_ms=15))
    async with two(redis) as (here, there):
        call = asyncio.create_task(here.events(request))
        await eventually(lambda: here.sim.running == 1)
        joined = asyncio.create_task(attached(there, idempotency_key="k1"))
        await asyncio.sleep(0.5)
        redis.flush()
        late = asyncio.create_task(here.events(keyed(key="k2")))
        await eventually(lambda: here.sim.running == 2)
        assert text_of(await there.events(keyed(key="k2"))) == WHOLE
        await late
        assert started(here, there) == 2
        assert text_of(await joined) == "".join(tokens)
        assert await there.events(request) == await call
        assert started(here, there) == 2
