"""The Triton backend against a scripted Triton: streams, failures, cancels, health."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from service.backends.base import (
    EngineFinish,
    EngineFinished,
    EngineItem,
    EngineOutput,
    EngineRequest,
    EngineStarted,
    Feature,
    Health,
)
from service.backends.triton.backend import TritonBackend
from service.backends.triton.options import TritonOptions
from service.core.deadline import Deadline
from service.core.errors import Reason, ServiceError
from service.core.request import Constraint, ConstraintKind, Sampling
from tests.support.triton_fake import Abort, Drop, Error, FakeTriton, Final, Hang, Says, Step

LEAK = "Failed to process the request(s) for model 'x', message: RuntimeError: boom\n\nAt:\n  /srv/1/model.py(28)"


@pytest.fixture
async def fake() -> AsyncIterator[FakeTriton]:
    async with FakeTriton() as server:
        yield server


async def opened(fake: FakeTriton, **options: object) -> TritonBackend:
    backend = TritonBackend(TritonOptions(url=fake.url, **options))  # type: ignore[arg-type]
    await backend.start()
    return backend


def request(request_id: str = "r1", timeout_s: float = 10, **fields: object) -> EngineRequest:
    given = {"prompt": "Hi", "sampling": Sampling(max_output_tokens=8, seed=1), **fields}
    return EngineRequest(request_id=request_id, deadline=Deadline.after(timeout_s), **given)  # type: ignore[arg-type]


async def collect(backend: TritonBackend, wanted: EngineRequest) -> list[EngineItem]:
    return [item async for item in backend.generate(wanted)]


async def until_ready(backend: TritonBackend) -> None:
    """Wait out the channel's pause between two attempts to connect, which is 2 s at most."""
    for _ in range(200):
        if await backend.health(1) is Health.READY:
            return
        await asyncio.sleep(0.05)
    pytest.fail("Triton is back and was not found")


async def failure(fake: FakeTriton, script: list[Step], **options: object) -> ServiceError:
    fake.script = script
    backend = await opened(fake, **options)
    try:
        with pytest.raises(ServiceError) as caught:
            await collect(backend, request())
        return caught.value
    finally:
        await backend.close()


async def test_a_stream_becomes_started_outputs_and_finished(fake: FakeTriton) -> None:
    fake.script = [Says(b"caf\xc3"), Says(b"\xa9", tokens=2), Final()]
    backend = await opened(fake)
    items = await collect(backend, request())
    await backend.close()
    assert items == [
        EngineStarted(prompt_tokens=7, queue_s=0.25),
        EngineOutput(b"caf\xc3", 1),
        EngineOutput(b"\xa9", 2),
        EngineFinished(
            reason=EngineFinish.STOP,
            prompt_tokens=7,
            output_tokens=3,
            engine_queue_s=0.25,
            engine_prefill_s=0.5,
            engine_decode_s=1.0,
        ),
    ]


@pytest.mark.parametrize("script", [[Says(b"a"), Says(b"b", is_final=True)], [Says(b"a"), Says(b"b"), Final()]])
async def test_both_shapes_of_the_end_give_the_same_items(fake: FakeTriton, script: list[Step]) -> None:
    fake.script = script
    backend = await opened(fake)
    items = await collect(backend, request())
    await backend.close()
    assert [item.data for item in items if isinstance(item, EngineOutput)] == [b"a", b"b"]
    assert isinstance(items[-1], EngineFinished)


@pytest.mark.report("I01", "H05")
async def test_the_request_is_half_closed_and_carries_id_deadline_and_trace(fake: FakeTriton) -> None:
    backend = await opened(fake)
    await collect(backend, request("abc", timeout_s=5, trace_headers={"traceparent": "00-1-2-01"}))
    await backend.close()
    sent = fake.requests[0]
    assert sent.id == "abc"
    assert sent.parameters["triton_enable_empty_final_response"].bool_param is True
    assert fake.half_closed == [True]
    assert fake.metadata[0]["traceparent"] == "00-1-2-01"
    assert fake.timeouts_s[0] is not None
    assert 3 < fake.timeouts_s[0] < 5.5
    assert fake.stops == []


@pytest.mark.parametrize(
    ("version", "is_sent"), [("2.51.0", False), ("2.67.9", False), ("2.68.0", True), ("3.0", True)]
)
async def test_grpc_errors_are_asked_for_only_where_they_cannot_crash_the_server(
    fake: FakeTriton, version: str, is_sent: bool
) -> None:
    fake.version = version
    backend = await opened(fake)
    await collect(backend, request())
    await backend.close()
    assert ("triton_grpc_error" in fake.metadata[0]) is is_sent


@pytest.mark.report("D05", "D07")
@pytest.mark.parametrize(
    ("script", "reason", "detail"),
    [
        ([Says(b"a"), Drop()], Reason.BACKEND_UNAVAILABLE, "without the final flag"),
        ([Drop()], Reason.BACKEND_UNAVAILABLE, "without the final flag"),
        ([Final()], Reason.BACKEND_ERROR, "without any output"),
        ([Error(LEAK, is_final=True)], Reason.BACKEND_ERROR, "model.py"),
        ([Says(b"a"), Error("engine broke"), Says(b"never")], Reason.BACKEND_ERROR, "engine broke"),
        ([Error("Stub process 'engine_0_0' is not healthy.")], Reason.BACKEND_UNAVAILABLE, "not healthy"),
        ([Abort(grpc.StatusCode.UNAVAILABLE, "Server exiting")], Reason.BACKEND_UNAVAILABLE, "Server exiting"),
        ([Abort(grpc.StatusCode.INTERNAL, LEAK)], Reason.BACKEND_ERROR, "model.py"),
    ],
)
async def test_a_broken_stream_is_one_error_that_shows_nothing_of_the_server(
    fake: FakeTriton, script: list[Step], reason: Reason, detail: str
) -> None:
    error = await failure(fake, script)
    assert error.reason is reason
    assert error.detail is not None
    assert detail in error.detail
    assert "model.py" not in error.message
    assert "process" not in error.message or "died" in error.message


async def test_an_error_after_content_ends_the_iteration(fake: FakeTriton) -> None:
    fake.script = [Says(b"a"), Error("engine broke"), Says(b"b"), Final()]
    backend = await opened(fake)
    seen: list[EngineItem] = []
    with pytest.raises(ServiceError):
        async for item in backend.generate(request()):
            seen.append(item)  # noqa: PERF401
    await backend.close()
    assert [item.data for item in seen if isinstance(item, EngineOutput)] == [b"a"]


async def test_a_connection_that_breaks_is_unavailable_and_found_again(fake: FakeTriton) -> None:
    fake.script = [Says(b"a"), Hang()]
    backend = await opened(fake)
    run = backend.generate(request("r1"))
    await anext(run)
    await anext(run)
    port = int(fake.url.rpartition(":")[2])
    await fake.close()
    with pytest.raises(ServiceError) as caught:
        await anext(run)
    assert caught.value.reason is Reason.BACKEND_UNAVAILABLE
    fake.script = [Says(b"a"), Final()]
    await fake.start(port)
    await until_ready(backend)
    assert isinstance((await collect(backend, request("r2")))[-1], EngineFinished)
    await backend.close()


async def test_leaving_closes_the_stream_and_then_stops_the_engine(fake: FakeTriton) -> None:
    fake.script = [Says(b"a"), Hang()]
    backend = await opened(fake)
    run = backend.generate(request("left"))
    await anext(run)
    await run.aclose()
    async with asyncio.timeout(5):
        await fake.stopped.wait()
        await fake.cancelled.wait()
    await backend.close()
    stop = fake.stops[0]
    assert stop.id == "left"
    assert [tensor.name for tensor in stop.inputs] == ["input_lengths", "request_output_len", "stop"]
    assert stop.raw_input_contents[-1] == b"\x01"


async def test_cancelling_the_reader_stops_the_engine_and_stays_a_cancel(fake: FakeTriton) -> None:
    fake.script = [Hang()]
    backend = await opened(fake)
    task = asyncio.create_task(collect(backend, request("cancelled")))
    async with asyncio.timeout(5):
        await fake.received.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(5):
        await fake.stopped.wait()
    await backend.close()
    assert [stop.id for stop in fake.stops] == ["cancelled"]


async def test_a_deadline_stops_the_engine_too(fake: FakeTriton) -> None:
    fake.script = [Says(b"a"), Hang()]
    backend = await opened(fake)
    with pytest.raises(ServiceError) as caught:
        await collect(backend, request("late", timeout_s=0.2))
    assert caught.value.reason is Reason.DEADLINE_IN_DECODE
    async with asyncio.timeout(5):
        await fake.stopped.wait()
    await backend.close()
    assert fake.stops[0].id == "late"


async def test_one_stop_is_sent_for_every_instance_of_the_engine(fake: FakeTriton) -> None:
    fake.configs["tensorrt_llm"].instance_group[0].count = 3
    fake.script = [Says(b"a"), Hang()]
    backend = await opened(fake)
    run = backend.generate(request("three"))
    await anext(run)
    await run.aclose()
    await backend.close()
    assert [stop.id for stop in fake.stops] == ["three"] * 3


async def test_a_complete_generation_and_a_refusal_send_no_stop(fake: FakeTriton) -> None:
    backend = await opened(fake)
    await collect(backend, request("whole"))
    fake.script = [Error("Prompt length (9001) exceeds maximum input length (2047).", is_final=True)]
    with pytest.raises(ServiceError) as caught:
        await collect(backend, request("long"))
    await backend.close()
    assert caught.value.reason is Reason.CONTEXT_LENGTH_EXCEEDED
    assert caught.value.metadata == {"promptTokens": "9001", "maxContextTokens": "2047"}
    assert fake.stops == []


@pytest.mark.parametrize(
    ("script", "where", "options"),
    [
        ([Hang()], "before the first response", {"first_token_timeout_s": 0.1}),
        ([Says(b"a"), Hang()], "between responses", {"token_gap_timeout_s": 0.1}),
    ],
)
async def test_a_silent_stream_is_given_up_and_its_engine_stopped(
    fake: FakeTriton, script: list[Step], where: str, options: dict[str, object]
) -> None:
    error = await failure(fake, script, **options)
    assert error.reason is Reason.BACKEND_UNAVAILABLE
    assert error.detail is not None
    assert where in error.detail
    assert [stop.id for stop in fake.stops] == ["r1"]


async def test_ids_that_are_empty_or_in_use_are_refused(fake: FakeTriton) -> None:
    fake.script = [Says(b"a"), Hang()]
    backend = await opened(fake)
    run = backend.generate(request("twice"))
    await anext(run)
    for request_id in ("twice", ""):
        with pytest.raises(ValueError, match="empty or in use"):
            await collect(backend, request(request_id))
    await run.aclose()
    await backend.close()


async def test_closing_ends_running_generations_and_stops_them(fake: FakeTriton) -> None:
    fake.script = [Says(b"a"), Hang()]
    backend = await opened(fake)
    task = asyncio.create_task(collect(backend, request("running")))
    async with asyncio.timeout(5):
        await fake.received.wait()
    await backend.close()
    with pytest.raises(ServiceError) as caught:
        await task
    assert caught.value.reason is Reason.BACKEND_UNAVAILABLE
    assert [stop.id for stop in fake.stops] == ["running"]


async def test_a_triton_that_is_not_there_is_no_failure_at_the_start_and_is_found_later(fake: FakeTriton) -> None:
    port = int(fake.url.rpartition(":")[2])
    await fake.close()
    backend = await opened(fake, metadata_timeout_s=1.0)
    assert backend.info.fingerprint == "unknown"
    assert await backend.health(1) is Health.UNAVAILABLE
    with pytest.raises(ServiceError) as caught:
        await collect(backend, request("early"))
    assert caught.value.reason is Reason.BACKEND_UNAVAILABLE
    await fake.start(port)
    await until_ready(backend)
    assert backend.info.fingerprint.startswith("2.51.0-")
    await backend.close()


async def test_requests_that_wait_for_a_silent_triton_wait_together() -> None:
    """A peer that accepts the connection and says nothing."""
    held = asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await held.wait()
        writer.close()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    backend = TritonBackend(TritonOptions(url=f"{host}:{port}", metadata_timeout_s=0.4))
    await backend.start()
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    runs = [collect(backend, request(str(number))) for number in range(6)]
    results = await asyncio.gather(*runs, collect(backend, request("brief", timeout_s=0.1)), return_exceptions=True)
    assert loop.time() - began_s < 1.5
    reasons = [result.reason for result in results if isinstance(result, ServiceError)]
    assert reasons == [Reason.BACKEND_UNAVAILABLE] * 6 + [Reason.DEADLINE_IN_DECODE]
    waiting = asyncio.create_task(collect(backend, request("last")))
    await asyncio.sleep(0)
    await backend.close()
    with pytest.raises(ServiceError):
        await waiting
    held.set()
    server.close()
    await server.wait_closed()


async def test_a_model_without_the_tensors_of_the_contract_fails_the_start(fake: FakeTriton) -> None:
    del fake.configs["ensemble"].output[:]
    backend = TritonBackend(TritonOptions(url=fake.url))
    with pytest.raises(ServiceError) as caught:
        await backend.start()
    await backend.close()
    detail = caught.value.detail or ""
    assert "outputs (none)" in detail
    assert detail.endswith("; ensemble misses output text_output")


async def test_a_model_that_changed_is_described_again_after_a_fault(fake: FakeTriton) -> None:
    backend = await opened(fake)
    before = backend.info.fingerprint
    for tensor in fake.configs["ensemble"].input:
        if tensor.name == "seed":
            tensor.name = "random_seed"
    fake.script = [Error("unexpected inference input 'seed' for model 'ensemble'")]
    with pytest.raises(ServiceError) as caught:
        await collect(backend, request("old"))
    assert caught.value.reason is Reason.BACKEND_ERROR
    fake.script = [Says(b"a"), Final()]
    await collect(backend, request("new"))
    await backend.close()
    assert "random_seed" in {tensor.name for tensor in fake.requests[-1].inputs}
    assert backend.info.fingerprint != before


async def test_the_features_are_those_of_the_listed_tensors(fake: FakeTriton) -> None:
    kept = {"text_input", "max_tokens", "stream", "top_p", "seed"}
    inputs = [tensor for tensor in fake.configs["ensemble"].input if tensor.name in kept]
    del fake.configs["ensemble"].input[:]
    fake.configs["ensemble"].input.extend(inputs)
    backend = await opened(fake)
    assert backend.info.features == {Feature.TOP_P, Feature.SEED}
    with pytest.raises(ServiceError) as caught:
        await collect(backend, request(constraint=Constraint(kind=ConstraintKind.JSON_OBJECT)))
    assert caught.value.reason is Reason.CAPABILITY_UNSUPPORTED
    items = await collect(backend, request("plain"))
    await backend.close()
    # No counts were asked for, so none are known.
    assert items[-1] == EngineFinished(reason=EngineFinish.UNKNOWN, output_tokens=None)


async def test_the_limit_makes_the_reason_length(fake: FakeTriton) -> None:
    fake.script = [Says(b"abc", tokens=8), Final()]
    backend = await opened(fake, max_context_tokens=100)
    assert (await collect(backend, request()))[-1].reason is EngineFinish.LENGTH  # type: ignore[union-attr]
    long = replace(request("ctx"), sampling=Sampling(max_output_tokens=200, seed=1))
    fake.script = [Says(b"abc", tokens=93), Final()]
    assert (await collect(backend, long))[-1].reason is EngineFinish.CONTEXT_LENGTH  # type: ignore[union-attr]
    await backend.close()


@pytest.mark.report("D05")
@pytest.mark.parametrize(
    "outputs",
    [
        {"other": ("BYTES", [1, 1], b"\x01\x00\x00\x00x")},
        {"text_output": ("BYTES", [1, 1], b"\xff\x00\x00\x00x")},
        {"text_output": ("BYTES", [1, 1], b"\x01")},
    ],
)
async def test_tensors_that_break_the_contract_are_an_error(
    fake: FakeTriton, outputs: dict[str, tuple[str, list[int], bytes]]
) -> None:
    error = await failure(fake, [Says(b"", outputs=outputs), Final()])
    assert error.reason is Reason.BACKEND_ERROR
    assert error.detail is not None
    assert error.detail.startswith("ensemble:")


async def test_health_generates_one_token_unless_one_came_just_now(fake: FakeTriton) -> None:
    backend = await opened(fake, canary_interval_s=60)
    assert await backend.health(2) is Health.READY
    assert await backend.health(2) is Health.READY
    assert [sent.id.startswith("canary-") for sent in fake.requests] == [True]
    await backend.close()
    assert await backend.health(2) is Health.UNAVAILABLE


@pytest.mark.parametrize(
    "script", [[Hang()], [Error("Stub process 'x' is not healthy.", is_final=True)], [Drop()], [Final()]]
)
async def test_health_finds_an_engine_that_is_ready_and_does_not_generate(fake: FakeTriton, script: list[Step]) -> None:
    fake.script = script
    backend = await opened(fake)
    started = asyncio.get_running_loop().time()
    assert await backend.health(0.3) is Health.UNAVAILABLE
    assert asyncio.get_running_loop().time() - started < 2
    await backend.close()


async def test_health_says_loading_while_the_model_is_not_ready(fake: FakeTriton) -> None:
    fake.is_model_ready = False
    backend = await opened(fake)
    assert await backend.health(1) is Health.LOADING
    await backend.close()


async def test_starting_twice_is_starting_once(fake: FakeTriton) -> None:
    backend = await opened(fake)
    await backend.start()
    assert isinstance((await collect(backend, request()))[-1], EngineFinished)
    await backend.close()


async def test_a_prompt_is_counted_by_the_ensembles_own_tokenizer(fake: FakeTriton) -> None:
    fake.prompt_tokens = 11
    backend = await opened(fake, bos_text="<s>")
    assert await backend.count_tokens("<s>Hi", add_special_tokens=False) == 11
    assert fake.counted == ["Hi"]
    await backend.close()
    assert await backend.count_tokens("Hi", add_special_tokens=True) is None


@pytest.mark.parametrize("tokenizer_model", ["nope", "tensorrt_llm"])
async def test_without_a_tokenizer_model_a_prompt_has_no_count(fake: FakeTriton, tokenizer_model: str) -> None:
    backend = await opened(fake, tokenizer_model=tokenizer_model)
    assert await backend.count_tokens("Hi", add_special_tokens=True) is None
    await backend.close()


async def test_without_an_engine_model_leaving_sends_no_stop_and_frees_the_id(fake: FakeTriton) -> None:
    fake.script = [Says(b"a"), Hang()]
    backend = await opened(fake, engine_model="nope")
    for _ in range(2):
        run = backend.generate(request("again"))
        await anext(run)
        await run.aclose()
    async with asyncio.timeout(5):
        await fake.cancelled.wait()
    await backend.close()
    assert fake.stops == []


@pytest.fixture
def key_and_certificate(tmp_path: Path) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command for a certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    subprocess.run(
        [*command.split(), "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    return key, certificate


async def test_with_certificates_the_connection_is_mutual_tls(key_and_certificate: tuple[Path, Path]) -> None:
    key, certificate = key_and_certificate
    credentials = grpc.ssl_server_credentials(
        [(key.read_bytes(), certificate.read_bytes())], certificate.read_bytes(), require_client_auth=True
    )
    async with FakeTriton(credentials=credentials) as fake:
        backend = await opened(fake, root_certificates=certificate, client_key=key, client_certificate=certificate)
        assert isinstance((await collect(backend, request()))[-1], EngineFinished)
        await backend.close()
        plain = await opened(fake, metadata_timeout_s=1.0)
        assert await plain.health(1) is Health.UNAVAILABLE
        await plain.close()
