"""What tenants may use, over real sockets: each limit refuses as it should, with all that a caller can use."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from headrace import AsyncClient
from headrace.errors import QuotaExhausted, RateLimited
from headrace.v1 import generation_pb2
from service.tenancy.authenticator import Authenticator
from service.tenancy.key_file import KeyFile
from service.tenancy.limits.file import parse_limits
from tests.support.credentials import bearer, made_key, started
from tests.support.limited_service import limited, rules_of, say
from tests.support.service import (
    Failure,
    eventually,
    simulated_model,
)


def quota_failure(failure: Failure) -> list[tuple[str, str]]:
    class _Call:
        trailing_metadata = staticmethod(lambda: tuple(failure.error.trailing_metadata() or ()))
        code = staticmethod(failure.error.code)
        details = staticmethod(failure.error.details)

    status = rpc_status.from_call(_Call())
    found = []
    for box in status.details:
        message = error_details_pb2.QuotaFailure()
        if box.Unpack(message):
            found += [(violation.subject, violation.description) for violation in message.violations]
    return found


def retry_after_s(failure: Failure) -> float:
    (retry,) = [d for d in failure.details if isinstance(d, error_details_pb2.RetryInfo)]
    return retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9


async def test_requests_above_the_limit_of_a_minute_are_refused_with_all_that_a_caller_can_use() -> None:
    async with limited(rules_of(requests_per_minute=2)) as (service, books):
        await service.events(say())
        await service.events(say())
        failure = await service.failure(say())
        assert failure.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert failure.info.reason == "RATE_LIMITED"
        assert dict(failure.info.metadata) == {"limit": "requests_per_minute", "limitValue": "2"}
        told = "Limit reached on requests per minute: limit 2, used 2."
        assert quota_failure(failure) == [("tenant:", told)]
        assert str(failure.error.details()).startswith(told)
        assert 50 < retry_after_s(failure) <= 60
        assert failure.trailer("x-ratelimit-limit-requests") == "2"
        assert failure.trailer("x-ratelimit-remaining-requests") == "0"
        assert str(failure.trailer("x-ratelimit-reset-requests")).endswith("s")
        # grpc-java would wait as long as it says, whatever the status: RetryInfo is for callers.
        assert failure.trailer("grpc-retry-pushback-ms") == "-1"
        assert books.refused == ["requests_per_minute"]
        assert service.sim.running == 0
        books.clock.ahead_s = 60.0
        await service.events(say())


async def test_tokens_above_the_limit_of_a_minute_are_refused_until_they_are_settled() -> None:
    async with limited(rules_of(tokens_per_minute=100)) as (service, books):
        wanted = say(3, sampling={"max_output_tokens": 60})
        await service.events(wanted)
        used = books.used("tokens_per_minute")
        assert used < 40  # a script of few words, and three tokens
        books.clock.ahead_s = 0.5
        await service.events(wanted)
        assert books.used("tokens_per_minute") == 2 * used
        running = service.generation.Generate(
            say(60, sampling={"max_output_tokens": 60}, plays={"token_ms": 50}), timeout=20
        )
        await running.read()
        failure = await service.failure(wanted)
        assert (failure.info.reason, failure.info.metadata["limit"]) == ("RATE_LIMITED", "tokens_per_minute")
        assert failure.trailer("x-ratelimit-limit-tokens") == "100"
        assert failure.trailer("x-ratelimit-limit-requests") is None
        running.cancel()


async def test_a_quota_that_is_spent_says_so_until_midnight() -> None:
    async with limited(rules_of(tokens_per_day=60)) as (service, books):
        # Not within a second of midnight.
        books.clock.ahead_s = 43_200 - time.time() % 86_400
        await service.events(say(40, sampling={"max_output_tokens": 45}))
        failure = await service.failure(say(sampling={"max_output_tokens": 45}))
        assert (failure.code, failure.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXHAUSTED")
        assert 43_000 < retry_after_s(failure) <= 43_200
        books.clock.ahead_s += 43_200
        await service.events(say(sampling={"max_output_tokens": 45}))


async def test_streams_above_the_limit_are_refused_until_one_ends() -> None:
    async with limited(rules_of(concurrent_streams=1)) as (service, books):
        running = service.generation.Generate(say(1000, plays={"token_ms": 50}), timeout=20)
        await running.read()
        failure = await service.failure(say())
        assert (failure.info.reason, failure.info.metadata["limit"]) == ("RATE_LIMITED", "concurrent_streams")
        assert retry_after_s(failure) == 1.0
        running.cancel()
        await eventually(lambda: books.streams == 0)
        await service.events(say())


async def test_a_tenant_gets_its_share_of_a_line_and_others_the_rest() -> None:
    model = simulated_model(running=1, waiting=4)
    async with limited(rules_of(queue_share=0.5), model) as (service, books):
        model.slots.share_of = lambda tenant: books.limiter.queue_share(tenant, "sim")
        mine, others = bearer("mine"), bearer("others")
        slow = say(1000, plays={"token_ms": 50})
        calls = [service.generation.Generate(slow, metadata=mine, timeout=20) for _ in range(3)]
        await eventually(lambda: model.slots.waiting == 2)
        failure = await service.failure(say(), metadata=mine)
        assert failure.info.reason == "QUEUE_FULL"
        assert failure.info.metadata["limit"] == "queue_share"
        assert failure.info.metadata["queueLimit"] == "2"
        assert not model.slots.was_full_within(60)
        calls.append(service.generation.Generate(slow, metadata=others, timeout=20))
        await eventually(lambda: model.slots.waiting == 3)
        for call in calls:
            call.cancel()


async def test_more_output_than_a_tenant_may_have_is_a_mistake_of_the_request() -> None:
    async with limited(rules_of(max_output_tokens=10, requests_per_minute=1)) as (service, books):
        failure = await service.failure(say(sampling={"max_output_tokens": 11}))
        assert (failure.info.reason, failure.fields) == ("INVALID_FIELD", ["sampling.max_output_tokens"])
        assert books.used("requests_per_minute") == 0
        await service.events(say(sampling={"max_output_tokens": 10}))


async def test_a_request_that_names_no_maximum_gets_the_tenants() -> None:
    async with limited(rules_of(max_output_tokens=10)) as (service, _):
        events = await service.events(say(40, sampling={}))
        assert events[-1].completed.usage.output_token_count == 10
        assert events[-2].choice_finished.reason == generation_pb2.FINISH_REASON_LENGTH
        failure = await service.failure(say(40, sampling={"min_output_tokens": 11}))
        assert (failure.info.reason, failure.fields) == ("INVALID_FIELD", ["sampling.min_output_tokens"])


async def test_tenants_do_not_use_each_others_limits(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    acme, globex = (made_key(path, tenant).text for tenant in ("acme", "globex"))
    rules = parse_limits("[default]\nrequests_per_minute = 1\n[tenant.globex]\nrequests_per_minute = 2\n", "")
    async with (
        started(Authenticator(KeyFile(path))) as authenticator,
        limited(rules, authenticator=authenticator) as (service, _),
    ):
        await service.events(say(), metadata=bearer(acme))
        failure = await service.failure(say(), metadata=bearer(acme))
        assert quota_failure(failure)[0][0] == "tenant:acme"
        for _ in range(2):
            await service.events(say(), metadata=bearer(globex))
        assert quota_failure(await service.failure(say(), metadata=bearer(globex)))[0][0] == "tenant:globex"


async def test_headers_tell_where_the_limits_stand_over_both_transports() -> None:
    rules = rules_of(requests_per_minute=5, tokens_per_minute=10_000)
    async with limited(rules) as (service, _):
        for transport, left in (("grpcio", "4"), ("asyncio", "3")):
            async with AsyncClient(f"127.0.0.1:{service.port}", transport=transport) as client:
                async with client.generate(say(), timeout_s=10) as stream:
                    await stream.text()
                assert stream.headers["x-ratelimit-limit-requests"] == "5"
                assert stream.headers["x-ratelimit-remaining-requests"] == left
                assert stream.headers["x-ratelimit-limit-tokens"] == "10000"
                assert stream.headers["x-ratelimit-reset-tokens"]
                assert stream.headers["x-request-id"] == stream.request_id


@pytest.mark.parametrize("transport", ["grpcio", "asyncio"])
async def test_the_client_raises_what_a_limit_means(transport: Any) -> None:
    async with (
        limited(rules_of(requests_per_minute=1, tokens_per_day=1000)) as (service, books),
        AsyncClient(f"127.0.0.1:{service.port}", transport=transport) as client,
    ):
        async with client.generate(say(200), timeout_s=10) as stream:
            await stream.text()
        with pytest.raises(RateLimited) as refused:
            async with client.generate(say(), timeout_s=10) as stream:
                await stream.text()
        assert refused.value.is_retriable
        assert refused.value.headers["x-ratelimit-remaining-requests"] == "0"
        books.clock.ahead_s = 61
        with pytest.raises(QuotaExhausted):
            async with client.generate(say(sampling={"max_output_tokens": 850}), timeout_s=10) as stream:
                await stream.text()
