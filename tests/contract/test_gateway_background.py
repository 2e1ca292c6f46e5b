"""Responses in the background and others that are kept: the official SDK, and the bytes, against a real service."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import Response

from gateway.openai.responses.documents import ResponseObject
from service.generation.limits import Limits
from service.retention.policy import RetentionLimits
from service.sharing.sharing import Sharing
from service.sharing.store import SharedStore
from tests.support.fake_service import HANG, fake_service
from tests.support.gateway_harness import CHAT, RawResponse, RunningGateway, read_events, running_gateway
from tests.support.redis_server import redis_server
from tests.support.service import RunningService, eventually, running_service, script, simulated_model

RESPONSES = "/v1/responses"
TOKENS = [f"{number} " for number in range(30)]
WHOLE = "".join(TOKENS)
ANSWER = script(tokens=TOKENS, output_tokens=30, token_ms=5)
ENDLESS = script(tokens=["e"], token_ms=5)
NOWHERE = "resp_gen_0123456789abcdef01234567"


@asynccontextmanager
async def served(
    *, running: int = 64, waiting: int = 64, limits: Limits | None = None, **retention: Any
) -> AsyncIterator[tuple[RunningService, RunningGateway]]:
    model = simulated_model(running=running, waiting=waiting)
    async with (
        running_service(model, limits=limits, retention=RetentionLimits(**retention)) as service,
        running_gateway(f"127.0.0.1:{service.port}") as gateway,
    ):
        yield service, gateway


KEY = {"authorization": "Bearer k"}  # the SDK's


def sdk(gateway: RunningGateway, key: str = "k") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0)


async def ended(client: openai.AsyncOpenAI, response: Response) -> Response:
    async with asyncio.timeout(10):
        while response.status in {"queued", "in_progress"}:
            await asyncio.sleep(0.02)
            response = await client.responses.retrieve(response.id)
    return response


def asked(prompt: str = ANSWER, **members: Any) -> dict[str, Any]:
    return {"model": "sim", "input": prompt, "background": True, **members}


async def post(gateway: RunningGateway, body: Any, path: str = RESPONSES, **headers: str) -> RawResponse:
    async with gateway.connect() as client:
        return await client.post(body, path, {name.replace("_", "-"): value for name, value in headers.items()})


async def get(gateway: RunningGateway, path: str, method: str = "GET", **headers: str) -> RawResponse:
    async with gateway.connect() as client:
        return await client.get(f"{RESPONSES}/{path}", method, headers)


async def until_ended(gateway: RunningGateway, response_id: str) -> dict[str, Any]:
    async with asyncio.timeout(10):
        while True:
            document: dict[str, Any] = (await get(gateway, response_id)).json()
            if document["status"] not in {"queued", "in_progress"}:
                return document
            await asyncio.sleep(0.02)


def without_ids(body: bytes) -> bytes:
    return b"\n".join(line for line in body.split(b"\n") if not line.startswith((b"id: ", b": ping")))


# Begun and asked for


async def test_the_official_sdk_begins_one_and_polls_it() -> None:
    async with served() as (service, gateway), sdk(gateway) as client:
        begun = await client.responses.create(
            model="sim", input=ANSWER, background=True, store=True, instructions="Be short.", metadata={"a": "b"}
        )
        assert begun.status in {"queued", "in_progress"}
        assert (begun.background, begun.output, begun.metadata) == (True, [], {"a": "b"})
        assert begun.id.startswith("resp_gen_")
        done = await ended(client, begun)
        assert (done.status, done.output_text, done.id) == ("completed", WHOLE, begun.id)
        assert (done.created_at, done.model, done.instructions) == (begun.created_at, "sim", "Be short.")
        assert done.usage is not None
        assert done.usage.output_tokens == 30
        assert service.sim.started == 1


async def test_one_that_is_retrieved_is_what_the_whole_answer_was() -> None:
    members: dict[str, Any] = {"instructions": "Be short.", "top_logprobs": 2, "metadata": {"a": "b"}}
    async with served() as (_, gateway):
        body = {**asked(**members), "background": False}
        whole = await post(gateway, body, idempotency_key="k1")
        response_id = whole.json()["id"]
        again = await get(gateway, response_id)
        assert (again.status, again.body) == (200, whole.body)
        ResponseObject.model_validate_json(again.body)
        unkept = (await post(gateway, {**body, "input": ANSWER})).json()["id"]
        assert (await get(gateway, unkept)).status == 404
        retained = (await post(gateway, body, retain_for_ms="5000")).json()["id"]
        assert (await get(gateway, retained)).json()["output"][0]["content"][0]["text"] == WHOLE


async def test_while_it_runs_it_shows_its_output_so_far() -> None:
    async with served() as (service, gateway):
        begun = (await post(gateway, asked(ENDLESS))).json()
        texts: list[str] = []
        async with asyncio.timeout(10):
            while len(texts) < 3:
                document = (await get(gateway, begun["id"])).json()
                ResponseObject.model_validate(document)
                assert document["status"] == "in_progress"
                if document["output"]:
                    (message,) = document["output"]
                    assert message["status"] == "in_progress"
                    texts.append(message["content"][0]["text"])
                await asyncio.sleep(0.02)
        assert texts == sorted(texts, key=len)
        assert set("".join(texts)) == {"e"}
        await post(gateway, b"", f"{RESPONSES}/{begun['id']}/cancel")
        await eventually(lambda: service.sim.running == 0)


async def test_one_that_waits_in_the_line_is_queued_and_then_runs() -> None:
    async with served(running=1) as (service, gateway):
        first = (await post(gateway, asked(ENDLESS))).json()
        assert first["status"] == "in_progress"
        second = (await post(gateway, asked())).json()
        assert (second["status"], second["output"], second["usage"]) == ("queued", [], None)
        ResponseObject.model_validate(second)
        assert (await get(gateway, second["id"])).json()["status"] == "queued"
        await post(gateway, b"", f"{RESPONSES}/{first['id']}/cancel")
        done = await until_ended(gateway, second["id"])
        assert done["output"][0]["content"][0]["text"] == WHOLE
        assert service.sim.started == 2


async def test_one_that_ran_out_of_tokens_is_incomplete() -> None:
    async with served() as (_, gateway):
        begun = (await post(gateway, asked(ENDLESS, max_output_tokens=16))).json()
        done = await until_ended(gateway, begun["id"])
        assert (done["status"], done["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


async def test_the_answer_comes_before_the_engine_has_said_anything() -> None:
    async with served() as (service, gateway):
        async with asyncio.timeout(2):
            begun = (await post(gateway, asked(script(fault="hang")))).json()
        assert begun["status"] == "in_progress"
        assert (await get(gateway, begun["id"])).json()["status"] == "in_progress"
        cancelled = await post(gateway, b"", f"{RESPONSES}/{begun['id']}/cancel")
        assert cancelled.json()["status"] == "cancelled"
        await eventually(lambda: service.sim.running == 0)


# Streams


async def test_its_stream_is_read_behind_any_of_its_events() -> None:
    async with served() as (service, gateway):
        whole = await post(gateway, asked(stream=True))
        events = [json.loads(event) for event in read_events(whole.body)]
        response_id = events[0]["response"]["id"]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert (await get(gateway, f"{response_id}?stream=true")).body == whole.body
        for at in range(len(events) + 1):
            rest = await get(gateway, f"{response_id}?stream=true&starting_after={at}")
            assert rest.headers["content-type"].startswith("text/event-stream")
            assert [json.loads(event) for event in read_events(rest.body)] == events[at + 1 :]
        assert service.sim.started == 1


async def test_leaving_its_stream_does_not_stop_it_and_the_sdk_reads_the_rest() -> None:
    async with served(reattach_s=0.05) as (service, gateway), sdk(gateway) as client:
        seen = []
        async with await client.responses.create(model="sim", input=ANSWER, background=True, stream=True) as stream:
            async for event in stream:
                seen.append(event)
                if len(seen) == 8:
                    break
        assert seen[0].type == "response.created"
        response_id = seen[0].response.id
        after = seen[-1].sequence_number
        rest = [e async for e in await client.responses.retrieve(response_id, stream=True, starting_after=after)]
        numbers = [event.sequence_number for event in (*seen, *rest)]
        assert numbers == list(range(len(numbers)))
        assert rest[-1].type == "response.completed"
        assert rest[-1].response.output_text == WHOLE
        assert (await client.responses.retrieve(response_id)).output_text == WHOLE
        assert service.sim.started == 1


async def test_the_sdk_s_stream_helper_goes_on_where_it_was_left() -> None:
    async with served() as (_, gateway), sdk(gateway) as client:
        async with client.responses.stream(model="sim", input=ANSWER, background=True) as stream:
            async for event in stream:
                if event.type == "response.created":
                    response_id = event.response.id
                if event.sequence_number == 10:
                    break
        async with client.responses.stream(response_id=response_id, starting_after=10) as stream:
            numbers = [event.sequence_number async for event in stream]
            final = await stream.get_final_response()
        assert numbers[0] == 11
        assert final.output_text == WHOLE


async def test_one_that_is_begun_without_a_stream_can_be_streamed_while_it_waits() -> None:
    async with served(running=1) as (_, gateway), sdk(gateway) as client:
        first = await client.responses.create(model="sim", input=ENDLESS, background=True)
        second = await client.responses.create(model="sim", input=ANSWER, background=True)

        async def read() -> str:
            stream = await client.responses.retrieve(second.id, stream=True)
            return "".join([e.delta async for e in stream if e.type == "response.output_text.delta"])

        reading = asyncio.create_task(read())
        assert (await client.responses.retrieve(second.id)).status == "queued"
        await client.responses.cancel(first.id)
        assert await reading == WHOLE


# Ended early


async def test_a_cancel_returns_what_it_has_become_every_time() -> None:
    async with served() as (service, gateway), sdk(gateway) as client:
        begun = await client.responses.create(model="sim", input=ENDLESS, background=True)
        stream = await client.responses.retrieve(begun.id, stream=True)
        async for event in stream:
            if event.type == "response.output_text.delta":
                break
        cancelled = await client.responses.cancel(begun.id)
        assert (cancelled.id, cancelled.status, cancelled.error) == (begun.id, "cancelled", None)
        assert set(cancelled.output_text) == {"e"}
        await eventually(lambda: service.sim.running == 0)
        assert (await client.responses.cancel(begun.id)).to_dict() == cancelled.to_dict()
        assert (await client.responses.retrieve(begun.id)).to_dict() == cancelled.to_dict()
        ResponseObject.model_validate_json((await get(gateway, begun.id, **KEY)).body)


async def test_a_cancel_in_the_line_leaves_nothing_to_run() -> None:
    async with served(running=1) as (service, gateway), sdk(gateway) as client:
        first = await client.responses.create(model="sim", input=ENDLESS, background=True)
        second = await client.responses.create(model="sim", input=ANSWER, background=True)
        assert (await client.responses.cancel(second.id)).status == "cancelled"
        await client.responses.cancel(first.id)
        assert (await client.responses.retrieve(second.id)).status == "cancelled"
        assert service.sim.started == 1


async def test_a_cancel_of_one_that_is_complete_changes_nothing() -> None:
    async with served() as (_, gateway), sdk(gateway) as client:
        done = await ended(client, await client.responses.create(model="sim", input=ANSWER, background=True))
        assert (await client.responses.cancel(done.id)).to_dict() == done.to_dict()


async def test_only_those_in_the_background_can_be_cancelled() -> None:
    async with served() as (_, gateway), sdk(gateway) as client:
        done = await client.responses.create(model="sim", input=ANSWER, extra_headers={"Idempotency-Key": "k1"})
        with pytest.raises(openai.BadRequestError, match="Cannot cancel a synchronous response"):
            await client.responses.cancel(done.id)


async def test_a_failure_is_told_by_the_object_and_by_the_stream() -> None:
    prompt = script(tokens=["a"], fault="error", fault_after=3)
    async with served() as (_, gateway), sdk(gateway) as client:
        failed = await ended(client, await client.responses.create(model="sim", input=prompt, background=True))
        assert (failed.status, failed.output_text) == ("failed", "aaa")
        assert failed.error is not None
        assert failed.error.code == "server_error"
        document = (await get(gateway, failed.id, **KEY)).json()
        ResponseObject.model_validate(document)
        assert document["output"][0]["status"] == "incomplete"
        streamed = await get(gateway, f"{failed.id}?stream=true&starting_after=3", **KEY)
        *_, error, last = (json.loads(event) for event in read_events(streamed.body))
        assert (error["type"], error["code"]) == ("error", "backend_error")
        assert last["response"]["error"] == document["error"]
        assert last["response"]["output"] == document["output"]
        behind = await get(gateway, f"{failed.id}?stream=true&starting_after={error['sequence_number']}", **KEY)
        assert [json.loads(event) for event in read_events(behind.body)] == [last]


async def test_one_that_failed_in_the_line_says_so_to_whoever_asks_later() -> None:
    async with served(running=1, limits=Limits(queue_s=0.2)) as (service, gateway), sdk(gateway) as client:
        first = await client.responses.create(model="sim", input=ENDLESS, background=True)
        second = await client.responses.create(model="sim", input=ANSWER, background=True)
        assert second.status == "queued"
        failed = await ended(client, second)
        assert (failed.status, failed.output, failed.created_at) == ("failed", [], second.created_at)
        assert failed.error is not None
        with pytest.raises(openai.InternalServerError) as told:
            await client.responses.retrieve(second.id, stream=True)
        assert told.value.code == "queue_timeout"
        await client.responses.cancel(first.id)
        assert service.sim.started == 1


# Refused


async def test_what_is_refused_has_its_status_and_leaves_nothing() -> None:
    async with served(running=1, waiting=0) as (service, gateway):
        refused = await post(gateway, asked(model="nobody"))
        assert (refused.status, refused.json()["error"]["code"]) == (404, "model_not_found")
        refused = await post(gateway, asked(temperature=9))
        assert (refused.status, refused.json()["error"]["param"]) == (400, "temperature")
        refused = await post(gateway, asked(max_output_tokens=100_000))
        assert (refused.status, refused.json()["error"]["param"]) == (400, "max_output_tokens")
        refused = await post(gateway, asked(instructions="x" * 70_000))
        assert (refused.status, refused.json()["error"]["param"]) == (400, "background")
        refused = await post(gateway, asked(background_options={"completion_window": "8h"}))
        assert (refused.status, refused.json()["error"]["code"]) == (400, "unsupported_parameter")
        first = (await post(gateway, asked(ENDLESS, background_options={"completion_window": "soonest"}))).json()
        refused = await post(gateway, asked())
        assert (refused.status, refused.json()["error"]["code"]) == (503, "server_is_overloaded")
        assert refused.headers["x-should-retry"] == "true"
        await post(gateway, b"", f"{RESPONSES}/{first['id']}/cancel")
        assert service.sim.started == 1


async def test_a_key_makes_ten_requests_one_response_and_another_request_with_it_is_refused() -> None:
    async with served(running=1) as (service, gateway):
        blocker = (await post(gateway, asked(ENDLESS))).json()
        answers = await asyncio.gather(*(post(gateway, asked(), idempotency_key="k1") for _ in range(10)))
        assert {answer.json()["status"] for answer in answers} == {"queued"}
        (response_id,) = {answer.json()["id"] for answer in answers}
        mismatch = await post(gateway, asked("something else"), idempotency_key="k1")
        assert (mismatch.status, mismatch.json()["error"]["code"]) == (422, "idempotency_key_reused")
        await post(gateway, b"", f"{RESPONSES}/{blocker['id']}/cancel")
        done = await until_ended(gateway, response_id)
        again = await post(gateway, asked(), idempotency_key="k1")
        assert again.json()["id"] == response_id
        assert again.json()["status"] in {"in_progress", "completed"}
        assert (await get(gateway, response_id)).json() == done
        assert service.sim.started == 2


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("stream=perhaps", "stream"),
        ("stream=true&starting_after=-1", "starting_after"),
        ("starting_after=x", "starting_after"),
    ],
)
async def test_queries_that_are_wrong_are_named(query: str, param: str) -> None:
    async with served() as (_, gateway):
        refused = await get(gateway, f"{NOWHERE}?{query}")
        assert (refused.status, refused.json()["error"]["param"]) == (400, param)


# Not there


async def test_what_is_another_tenant_s_or_nobody_s_looks_alike() -> None:
    async with served() as (service, gateway), sdk(gateway, "alice") as alice, sdk(gateway, "bob") as bob:
        begun = await alice.responses.create(model="sim", input=ENDLESS, background=True)
        for response_id in (begun.id, NOWHERE, "resp_1", begun.id.removeprefix("resp_")):
            for call in (
                bob.responses.retrieve(response_id),
                bob.responses.retrieve(response_id, stream=True),
                bob.responses.cancel(response_id),
            ):
                with pytest.raises(openai.NotFoundError) as told:
                    await call
                text = f"Response with id '{response_id}' not found. This server stores no responses."
                assert told.value.body == {
                    "message": text, "type": "invalid_request_error", "param": "response_id", "code": None
                }  # fmt: skip
        await alice.responses.cancel(begun.id)
        await eventually(lambda: service.sim.running == 0)


async def test_what_is_kept_goes_away() -> None:
    async with served(retain_s=0.3) as (_, gateway), sdk(gateway) as client:
        done = await ended(client, await client.responses.create(model="sim", input=ANSWER, background=True))
        await asyncio.sleep(0.4)
        for call in (
            client.responses.retrieve(done.id), client.responses.retrieve(done.id, stream=True),
            client.responses.cancel(done.id),
        ):  # fmt: skip
            with pytest.raises(openai.NotFoundError, match="not found"):
                await call


async def test_a_kept_chat_is_no_response_and_of_a_response_input_and_delete_are_not_there() -> None:
    async with served() as (_, gateway), sdk(gateway) as client:
        chat = {"model": "sim", "messages": [{"role": "user", "content": ANSWER}]}
        chat_id = (await post(gateway, chat, CHAT, idempotency_key="k1")).json()["id"]
        assert (await get(gateway, chat_id.replace("chatcmpl-", "resp_"))).status == 404
        done = await ended(client, await client.responses.create(model="sim", input=ANSWER, background=True))
        with pytest.raises(openai.NotFoundError, match="goes away by itself"):
            await client.responses.delete(done.id)
        with pytest.raises(openai.NotFoundError, match="of its input nothing is kept"):
            await client.responses.input_items.list(done.id)


async def test_one_of_which_too_much_was_said_shows_no_output_and_is_410_at_its_end() -> None:
    async with served(events=10) as (service, gateway):
        begun = (await post(gateway, asked(script(tokens=["e"], token_ms=1)))).json()
        async with asyncio.timeout(10):
            while not await _has_dropped(gateway, begun["id"]):  # noqa: ASYNC110 - the state is not ours to signal
                await asyncio.sleep(0.02)
        document = (await get(gateway, begun["id"])).json()
        assert (document["status"], document["output"]) == ("in_progress", [])
        stopped = (await post(gateway, b"", f"{RESPONSES}/{begun['id']}/cancel")).json()
        assert (stopped["status"], stopped["output"]) == ("cancelled", [])
        await eventually(lambda: service.sim.running == 0)
        gone = await get(gateway, begun["id"])
        assert (gone.status, gone.json()["error"]["code"]) == (410, "replay_expired")


async def _has_dropped(gateway: RunningGateway, response_id: str) -> bool:
    async with gateway.connect() as client:
        state = (await client.get(f"/v1/generations/{response_id}")).json()
    return bool((state["first_sequence"] or 0) > 1)


# Gateways and clients that go


async def test_another_gateway_goes_on_where_one_has_gone() -> None:
    async with running_service(simulated_model()) as service:
        target = f"127.0.0.1:{service.port}"
        async with running_gateway(target) as gateway:
            begun = (await post(gateway, asked())).json()
            streamed = await get(gateway, f"{begun['id']}?stream=true")
            second = (await post(gateway, asked(ENDLESS))).json()
        async with running_gateway(target) as gateway:
            assert (await until_ended(gateway, begun["id"]))["output"][0]["content"][0]["text"] == WHOLE
            again = await get(gateway, f"{begun['id']}?stream=true")
            assert without_ids(again.body) == without_ids(streamed.body)
            cancelled = await post(gateway, b"", f"{RESPONSES}/{second['id']}/cancel")
            assert cancelled.json()["status"] == "cancelled"
        assert service.sim.started == 2


async def test_replicas_that_share_a_store_know_each_other_s(tmp_path: Path) -> None:
    with redis_server(tmp_path) as redis:

        @asynccontextmanager
        async def replica() -> AsyncIterator[tuple[RunningService, RunningGateway]]:
            sharing = Sharing(SharedStore(redis.url, timeout_s=0.3, lease_s=1.0), longest_s=60)
            model, limits = simulated_model(running=1), Limits(queue_s=0.3)
            async with (
                running_service(model, limits=limits, sharing=sharing) as service,
                running_gateway(f"127.0.0.1:{service.port}") as gateway,
            ):
                yield service, gateway

        async with replica() as (_, here), replica() as (service, there):
            first = (await post(here, asked())).json()
            assert (await get(there, first["id"])).json()["status"] == "in_progress"
            whole = await get(there, f"{first['id']}?stream=true&starting_after=3")
            assert json.loads(read_events(whole.body)[-1])["type"] == "response.completed"
            assert await until_ended(there, first["id"]) == await until_ended(here, first["id"])
            endless = (await post(here, asked(ENDLESS))).json()
            waiting = (await post(here, asked())).json()
            failed = await until_ended(there, waiting["id"])
            assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
            cancelled = await post(there, b"", f"{RESPONSES}/{endless['id']}/cancel")
            assert cancelled.json()["status"] == "cancelled"
            assert service.sim.started == 0


async def test_a_client_that_leaves_before_it_has_the_id_leaves_nothing_behind() -> None:
    async with fake_service() as fake, running_gateway(fake.address) as gateway:
        fake.will(HANG)
        async with gateway.connect() as client:
            await client.send("POST", RESPONSES, asked(model="fake"))
            call = await fake.next_call()
            assert call.request.retention.continue_on_disconnect
            assert call.request.idempotency_key.startswith("background-")
            client.reset()
        await call.wait_cancelled()
        await gateway.wait_idle()


async def test_the_wait_for_the_service_has_the_request_s_deadline() -> None:
    async with fake_service() as fake, running_gateway(fake.address) as gateway:
        fake.will(HANG)
        late = await post(gateway, asked(model="fake"), request_timeout_ms="200")
        assert (late.status, late.json()["error"]["code"]) == (504, "deadline_exceeded")
