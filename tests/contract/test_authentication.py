"""Who calls, over real sockets: keys, tokens, certificates, and what each caller may see."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headrace.cli._keys_file import revoke
from headrace.v1 import generation_pb2, generation_pb2_grpc, model_pb2, model_pb2_grpc, tokenize_pb2, tokenize_pb2_grpc
from service.rpc.server import ServerOptions, TlsFiles
from service.tenancy.authenticator import Authenticator
from service.tenancy.key_file import KeyFile
from service.tenancy.tokens import open_issuer_keys
from tests.contract.test_server import make_certificates
from tests.support.credentials import Issuer, bearer, certificate, made_key, pem, serving_issuer, started
from tests.support.service import (
    Failure,
    GenerateRequest,
    RunningService,
    eventually,
    running_service,
    script,
    simulated_model,
)

LOOK_S = 0.02
SAY = GenerateRequest(model="sim", prompt=script(tokens=["a"], output_tokens=1))
WRONG = "Incorrect API key or token provided."
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


@asynccontextmanager
async def guarded(
    path: Path | None, *models: Any, tokens: Any = None, now: Any = None, **options: Any
) -> AsyncIterator[RunningService]:
    """Serve with the keys of a file, the tokens of a checker, or both."""
    clock = {} if now is None else {"now_s": now}
    file = None if path is None else KeyFile(path, look_s=LOOK_S)
    async with (
        started(Authenticator(file, tokens, **clock)) as authenticator,
        running_service(*models, authenticator=authenticator, **options) as service,
    ):
        yield service


async def refused(service: RunningService, metadata: Any = ()) -> Failure:
    return await service.failure(SAY, metadata=metadata)


async def is_taken(service: RunningService, credentials: str) -> bool:
    try:
        await service.model.ListModels(model_pb2.ListModelsRequest(), metadata=bearer(credentials), timeout=5)
    except grpc.aio.AioRpcError as error:
        if error.code() is not UNAUTHENTICATED:
            raise
        return False
    return True


async def until(service: RunningService, credentials: str, *, taken: bool) -> None:
    """Wait until credentials are taken, or are not any more."""
    async with asyncio.timeout(5):
        while await is_taken(service, credentials) is not taken:  # noqa: ASYNC110 - nobody tells when
            await asyncio.sleep(LOOK_S)


def written(path: Path, text: str) -> str:
    """Write a file, and return what was in it."""
    old = path.read_text() if path.exists() else ""
    new = path.with_suffix(".new")  # in one step: half a file may be a whole one
    new.write_text(text)
    new.replace(path)
    return old


# Keys


async def test_a_key_opens_the_service_and_its_tenant_stands_in_log_and_span(
    path: Path, caplog: pytest.LogCaptureFixture, spans: InMemorySpanExporter
) -> None:
    caplog.set_level(logging.INFO)
    key = made_key(path, "acme")
    async with guarded(path) as service:
        assert await service.events(SAY, metadata=bearer(key.text))
        assert await service.events(SAY, metadata=(("authorization", f"bEARER   {key.text} "),))
        await eventually(lambda: sum(record.name == "headrace.request" for record in caplog.records) == 2)
    line = next(record.__dict__ for record in caplog.records if record.name == "headrace.request")
    assert (line["tenant"], line["subject"]) == ("acme", f"key:{key.id}")
    span = next(span for span in spans.get_finished_spans() if span.name.endswith("/Generate"))
    attributes = dict(span.attributes or {})
    assert (attributes["headrace.tenant"], attributes["headrace.subject"]) == ("acme", f"key:{key.id}")


async def test_without_an_authenticator_nobody_is_named(
    service: RunningService, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await service.events(SAY, metadata=bearer("whatever"))
    await eventually(lambda: any(record.name == "headrace.request" for record in caplog.records))
    line = next(record.__dict__ for record in caplog.records if record.name == "headrace.request")
    assert (line["tenant"], line["subject"]) == (None, None)


async def test_every_wrong_credential_gets_the_same_words_and_the_log_the_cause(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gone, old, good = made_key(path), made_key(path, expires=datetime.now(UTC) - timedelta(seconds=1)), made_key(path)
    revoke(path, gone.id)
    cases = {
        bearer(gone.text): "revoked",
        bearer(old.text): "expired",
        bearer(good.text[:-1] + ("A" if good.text[-1] != "A" else "B")): "wrong secret",
        bearer(f"hr_00000000_{good.text[-43:]}"): "no API key",
        bearer("hr_"): "malformed",
        bearer("sk-something-else"): "neither",
        bearer(""): "neither",
        bearer("a.b.c"): "no issuer",
        (("authorization", good.text),): "Bearer",
        (("authorization", f"Basic {good.text}"),): "Bearer",
        (("authorization", ""),): "Bearer",
        (*bearer(good.text), *bearer(good.text)): "more than one",
    }
    async with guarded(path) as service:
        for metadata, cause in cases.items():
            caplog.clear()
            failure = await refused(service, metadata)
            assert (failure.code, failure.info.reason) == (UNAUTHENTICATED, "UNAUTHENTICATED")
            assert (failure.error.details(), dict(failure.info.metadata)) == (WRONG, {})
            assert any(cause in record.getMessage() for record in caplog.records), cause
        nothing = await refused(service)
        assert (nothing.code, nothing.info.reason) == (UNAUTHENTICATED, "UNAUTHENTICATED")
        assert "No credentials were sent" in (nothing.error.details() or "")


async def test_every_method_asks_who_calls_and_health_and_reflection_do_not(path: Path) -> None:
    made_key(path)
    async with guarded(path) as service:
        generation, tokens = service.generation, tokenize_pb2_grpc.TokenizeServiceStub(service.channel)
        asked = [
            generation.GetGeneration(generation_pb2.GetGenerationRequest(generation_id="gen-x"), timeout=5),
            generation.CancelGeneration(generation_pb2.CancelGenerationRequest(generation_id="gen-x"), timeout=5),
            service.model.ListModels(model_pb2.ListModelsRequest(), timeout=5),
            service.model.GetModel(model_pb2.GetModelRequest(model="sim"), timeout=5),
            tokens.Tokenize(tokenize_pb2.TokenizeRequest(model="sim", text="a"), timeout=5),
            tokens.Detokenize(tokenize_pb2.DetokenizeRequest(model="sim", token_ids=[1]), timeout=5),
            # Who it is is asked first, so that strangers learn nothing of what is wrong with the rest.
            service.channel.unary_unary("/headrace.v1.ModelService/GetModel")(b"\xff\xff", timeout=5),
        ]
        for call in asked:
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await call
            assert failed.value.code() is UNAUTHENTICATED
        health = health_pb2_grpc.HealthStub(service.channel)
        assert (await health.Check(health_pb2.HealthCheckRequest(), timeout=5)).status == 1
        stub = reflection_pb2_grpc.ServerReflectionStub(service.channel)
        call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=5)
        assert [answer async for answer in call]


async def test_keys_come_and_go_while_the_service_runs(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = made_key(path)
    async with guarded(path) as service:
        second = made_key(path)
        await until(service, second.text, taken=True)
        revoke(path, first.id)
        await until(service, first.text, taken=False)
        good = written(path, "[[keys")
        await eventually(lambda: "stay in effect" in caplog.text)
        assert await is_taken(service, second.text)
        assert not await is_taken(service, first.text)
        written(path, good)
        third = made_key(path)
        await until(service, third.text, taken=True)


async def test_a_key_expires_while_the_service_runs(path: Path) -> None:
    now = datetime.now(UTC)
    key = made_key(path, expires=now + timedelta(hours=1))
    at = [now.timestamp()]
    async with guarded(path, now=lambda: at[0]) as service:
        assert await is_taken(service, key.text)
        at[0] += 3600
        assert not await is_taken(service, key.text)


async def test_generations_belong_to_tenants_and_not_to_keys(path: Path) -> None:
    one, two, other = made_key(path, "acme"), made_key(path, "acme"), made_key(path, "beta")
    async with guarded(path) as service:
        call = service.generation.Generate(SAY, metadata=bearer(one.text), timeout=5)
        request = generation_pb2.GetGenerationRequest(generation_id=(await call.read()).started.generation_id)
        get = service.generation.GetGeneration
        assert (await get(request, metadata=bearer(two.text), timeout=5)).model == "sim"
        with pytest.raises(grpc.aio.AioRpcError) as hidden:
            await get(request, metadata=bearer(other.text), timeout=5)
        assert hidden.value.code() is grpc.StatusCode.NOT_FOUND
        call.cancel()


# Models


async def test_a_caller_sees_and_uses_its_own_models_alone(path: Path) -> None:
    models = [simulated_model("a", aliases=("first",)), simulated_model("b"), simulated_model("c")]
    some, every, none = made_key(path, models=["a", "c"]), made_key(path), made_key(path, models=[])
    async with guarded(path, *models) as service:

        async def listed(credentials: str, size: int = 0, token: str = "") -> list[str]:
            request = model_pb2.ListModelsRequest(page_size=size, page_token=token)
            found = await service.model.ListModels(request, metadata=bearer(credentials), timeout=5)
            return [model.id for model in found.models]

        assert await listed(every.text) == ["a", "b", "c"]
        assert await listed(some.text) == ["a", "c"]
        assert await listed(some.text, 1, "a") == ["c"]
        assert await listed(none.text) == []

        async def found(name: str, stub: Any, request: Any) -> Failure | None:
            try:
                await stub(request, metadata=bearer(some.text), timeout=5)
            except grpc.aio.AioRpcError as error:
                return Failure(error, 0)
            return None

        get, tokenize = service.model.GetModel, tokenize_pb2_grpc.TokenizeServiceStub(service.channel).Tokenize
        assert await found("a", get, model_pb2.GetModelRequest(model="first")) is None
        hidden, absent = [await found(name, get, model_pb2.GetModelRequest(model=name)) for name in ("b", "x")]
        assert hidden is not None
        assert absent is not None
        assert hidden.info.reason == absent.info.reason == "MODEL_NOT_FOUND"
        assert (hidden.error.details() or "").replace("'b'", "'x'") == absent.error.details()
        assert await found("a", tokenize, tokenize_pb2.TokenizeRequest(model="first", text="a")) is None
        denied = await found("b", tokenize, tokenize_pb2.TokenizeRequest(model="b", text="a"))
        assert denied is not None
        assert (denied.code, denied.info.reason) == (grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED")
        assert dict(denied.info.metadata) == {"model": "b"}


@pytest.mark.parametrize("fields", [{}, {"idempotency_key": "k"}], ids=["plain", "retained"])
async def test_a_generation_on_a_model_that_is_not_the_callers_is_denied(path: Path, fields: dict[str, str]) -> None:
    key = made_key(path, models=["a"])
    async with guarded(path, simulated_model("a"), simulated_model("b", aliases=("other",))) as service:
        for name in ("b", "other"):
            request = GenerateRequest(model=name, prompt="hi", **fields)  # type: ignore[arg-type]
            failure = await service.failure(request, metadata=bearer(key.text))
            assert (failure.code, failure.info.reason) == (grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED")
            assert dict(failure.info.metadata) == {"model": name}
        assert await service.events(GenerateRequest(model="a", prompt="hi"), metadata=bearer(key.text))


# Tokens


async def test_a_token_opens_the_service_beside_keys(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    key = made_key(path)
    async with serving_issuer() as issuer, guarded(path, tokens=issuer.checker()) as service:
        assert await is_taken(service, key.text)
        assert await service.events(SAY, metadata=bearer(issuer.token(tenant="beta")))
        line = next(record.__dict__ for record in caplog.records if record.name == "headrace.request")
        assert (line["tenant"], line["subject"]) == ("beta", "token:alice")
        failure = await refused(service, bearer(issuer.token(exp=1)))
        assert (failure.code, failure.error.details()) == (UNAUTHENTICATED, WRONG)


async def test_an_issuer_is_found_by_its_discovery_document_or_a_file(tmp_path: Path) -> None:
    async with serving_issuer() as issuer:
        by_name = issuer.checker(open_issuer_keys(issuer.url, None, refresh_s=60))
        async with guarded(None, tokens=by_name) as service:
            assert await is_taken(service, issuer.token())
        file = tmp_path / "jwks.json"
        written(file, json.dumps(issuer.key_set()))
        from_file = issuer.checker(open_issuer_keys(issuer.url, str(file), refresh_s=60))
        issuer.is_down = True
        async with guarded(None, tokens=from_file) as service:
            assert await is_taken(service, issuer.token())


async def test_a_new_key_of_the_issuer_is_fetched_with_the_first_token_that_needs_it() -> None:
    async with serving_issuer() as issuer:
        checker = issuer.checker()
        checker.keys._least_gap_s = 0.0
        async with guarded(None, tokens=checker) as service:
            old = issuer.token()
            assert await is_taken(service, old)
            issuer.rotate("k2")
            assert await is_taken(service, issuer.token())
            assert issuer.answered == 2
            assert not await is_taken(service, old)  # the issuer shows it no longer


async def test_an_issuer_that_is_down_or_slow_changes_nothing_for_known_keys(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving_issuer() as issuer:
        checker = issuer.checker()
        checker.keys._least_gap_s = 0.0
        async with guarded(None, tokens=checker) as service:
            issuer.is_down = True
            assert not await is_taken(service, issuer.token(headers={"kid": "unknown"}))
            assert "stay in effect" in caplog.text
            assert await is_taken(service, issuer.token())
            issuer.is_down, issuer.gate = False, asyncio.Event()
            waiting = asyncio.create_task(is_taken(service, issuer.token(headers={"kid": "unknown"})))
            await eventually(lambda: issuer.answered == 3)
            assert await is_taken(service, issuer.token())
            assert not waiting.done()
            issuer.gate.set()
            assert not await waiting


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", "302 Found\r\nlocation: /elsewhere"),
        (b"[]", "200 OK"),
        (b"{", "200 OK"),
        (b"{}", "200 OK"),
        (b"x" * 2_000_000, "200 OK"),
        (b"{}", "500 Oops"),
    ],
    ids=["redirect", "no object", "no json", "no keys", "too large", "error"],
)
async def test_an_issuer_that_talks_nonsense_at_the_start_is_waited_for(
    body: bytes, status: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving_issuer() as issuer:
        issuer.body, issuer.status = body, status
        checker = issuer.checker()
        checker.keys._least_gap_s = 0.0
        async with guarded(None, tokens=checker) as service:
            assert "no token can be checked" in caplog.text
            failure = await refused(service, bearer(issuer.token()))
            assert (failure.code, failure.info.reason) == (grpc.StatusCode.UNAVAILABLE, "STORE_UNAVAILABLE")
            assert failure.trailer("grpc-retry-pushback-ms") == "5000"
            assert not await is_taken(service, "hr_x")
            issuer.body, issuer.status = None, "200 OK"
            assert await is_taken(service, issuer.token())


# Certificates

SUBJECTS = """
[[subjects]]
name = "payments"
tenant = "acme"
[[subjects]]
name = "spiffe://prod/search"
tenant = "beta"
models = []
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    make_certificates(folder)
    certificate(folder, "payments", "payments", "DNS:payments.internal")
    certificate(folder, "search", "anything", "URI:spiffe://prod/search,DNS:payments")
    certificate(folder, "gateway", "gateway", "URI:spiffe://prod/gateway")
    certificate(folder, "impostor", "spiffe://prod/search", "DNS:payments")
    return folder


async def test_a_listed_certificate_stands_for_its_tenant_and_credentials_go_before_it(
    folder: Path, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    written(path, SUBJECTS)
    key = made_key(path, "gamma")
    read = pem(folder)
    tls = TlsFiles(certificate=folder / "server.pem", key=folder / "server.key", client_ca=folder / "ca.pem")

    async def outcome(name: str, metadata: Any = ()) -> str:
        caplog.clear()
        credentials = grpc.ssl_channel_credentials(read("ca.pem"), read(f"{name}.key"), read(f"{name}.pem"))
        async with grpc.aio.secure_channel(f"127.0.0.1:{service.port}", credentials) as channel:
            try:
                stub = model_pb2_grpc.ModelServiceStub(channel)
                listed = await stub.ListModels(model_pb2.ListModelsRequest(), metadata=metadata, timeout=5)
                generate = generation_pb2_grpc.GenerationServiceStub(channel).Generate
                if listed.models:
                    async for _ in generate(SAY, metadata=metadata, timeout=5):
                        pass
            except grpc.aio.AioRpcError as error:
                return error.code().name
        if not listed.models:
            return "no models"
        await eventually(lambda: any(record.name == "headrace.request" for record in caplog.records))
        line = next(record.__dict__ for record in caplog.records if record.name == "headrace.request")
        return f"{line['tenant']} {line['subject']}"

    async with guarded(path, options=ServerOptions(port=0, tls=tls)) as service:
        assert await outcome("payments") == "acme certificate:payments"
        assert await outcome("search") == "no models"
        for name in ("gateway", "impostor", "client"):
            assert await outcome(name) == "UNAUTHENTICATED"
        assert "not listed" in caplog.text
        for name in ("payments", "gateway"):
            assert await outcome(name, bearer(key.text)) == f"gamma key:{key.id}"
            assert await outcome(name, bearer("wrong")) == "UNAUTHENTICATED"


# Secrets


async def test_no_secret_is_told_in_log_error_or_span(
    path: Path, caplog: pytest.LogCaptureFixture, spans: InMemorySpanExporter
) -> None:
    caplog.set_level(logging.DEBUG)
    good, gone = made_key(path), made_key(path)
    revoke(path, gone.id)
    async with serving_issuer() as issuer, guarded(path, tokens=issuer.checker()) as service:
        stranger = Issuer(port=issuer.port)
        wrong_key = f"hr_{good.id}_{'canary' * 7}x"
        sent = [
            *(bearer(text) for text in (good.text, gone.text, wrong_key, issuer.token(), issuer.token(exp=1))),
            *(
                bearer(text)
                for text in (stranger.token(), issuer.token(tenant="canary canary"), "canary.canary.canary")
            ),
            (("authorization", f"Basic {good.text}"),),
            (*bearer(good.text), *bearer(wrong_key)),
        ]
        told = []
        for metadata in sent:
            for request in (SAY, GenerateRequest(model="nope", prompt="hi"), GenerateRequest()):
                try:
                    await service.events(request, metadata=metadata)
                except grpc.aio.AioRpcError as error:
                    told.append(repr((error.details(), error.trailing_metadata(), error.initial_metadata())))
    shown = [
        *told,
        *(repr(record.__dict__) for record in caplog.records),
        *(span.to_json() for span in spans.get_finished_spans()),
    ]
    secrets = ["canary", *(value.partition(" ")[2][-24:] for metadata in sent for _, value in metadata)]
    assert len(told) > len(sent)
    for text in shown:
        assert not [secret for secret in secrets if secret in text], text
