"""What `headrace doctor` looks at, from the address to a whole generation. Each check says what it saw, and what to do.

A check that finds something wrong ends those that would only fail behind it.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import grpc

from headrace import AsyncClient, HeadraceError, TlsConfig
from headrace._channel import host_and_port, open_channel
from headrace._http2.security import ssl_context
from headrace.v1 import generation_pb2 as pb
from headrace.v1 import model_pb2

__all__ = ["Finding", "State", "examine"]

SERVICE: Final = "headrace.v1.GenerationService"
REFLECTION: Final = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
# A ServerReflectionRequest that asks for all services: field 7, an empty string.
LIST_SERVICES: Final = b"\x3a\x00"
# Of a handshake that nobody asked for: who speaks TLS answers at once.
PROBE_S: Final = 1.0
TOKENS: Final = 8
# What a way between two machines may take; above it something is slow, or buffers.
SLOW_WAY_S: Final = 0.25
CANCEL_S: Final = 2.0


class State(Enum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check: what was seen, and for a person what to do about it. `is_last`: nothing behind it can work."""

    check: str
    state: State
    told: str
    hint: str = ""
    is_last: bool = False


def _failed(check: str, told: str, hint: str = "", *, is_last: bool = True) -> Finding:
    return Finding(check=check, state=State.FAILED, told=told, hint=hint, is_last=is_last)


def _ok(check: str, told: str) -> Finding:
    return Finding(check=check, state=State.OK, told=told)


def _warning(check: str, told: str, hint: str) -> Finding:
    return Finding(check=check, state=State.WARNING, told=told, hint=hint)


async def examine(
    client: AsyncClient,
    tls: TlsConfig | None,
    metadata: tuple[tuple[str, str], ...],
    model: str | None,
    timeout_s: float,
) -> AsyncIterator[Finding]:
    """Yield the findings, one check after the other, until one ends it. `timeout_s` bounds each."""
    host, port = host_and_port(client.target)
    checks: tuple[Callable[[], Awaitable[Finding]], ...] = (
        lambda: _address(host, port, timeout_s),
        lambda: _tls(host, port, tls, timeout_s),
        lambda: _health(client, timeout_s),
        lambda: _reflection(client.target, tls, metadata, timeout_s),
    )
    for check in checks:
        finding = await check()
        yield finding
        if finding.is_last:
            return
    finding, chosen = await _models(client, model, timeout_s)
    yield finding
    if chosen is None:
        return
    async for finding in _round_trip(client, chosen, timeout_s):
        yield finding
    yield await _cancel(client, chosen, timeout_s)


async def _address(host: str, port: int | None, timeout_s: float) -> Finding:
    if port is None:
        return _ok("address", f"{host} is for gRPC to resolve; it is not looked at by itself")
    began_s = time.perf_counter()
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        hint = "A firewall that drops, or a wrong address: nobody refuses, and nobody answers."
        return _failed("address", f"no answer from {host}:{port} in {timeout_s:g} s", hint)
    except ConnectionRefusedError:
        hint = "Nobody listens there: does the service run (`make run`), on this address (HEADRACE_HOST, _GRPC_PORT)?"
        return _failed("address", f"{host}:{port} refuses connections", hint)
    except OSError as error:
        return _failed("address", f"{host}:{port} cannot be reached: {error}", "Is the name right (HEADRACE_TARGET)?")
    writer.close()
    return _ok("address", f"{host}:{port} takes connections, {_ms(time.perf_counter() - began_s)}")


async def _tls(host: str, port: int | None, tls: TlsConfig | None, timeout_s: float) -> Finding:
    if port is None:
        return _ok("TLS", "not looked at by itself")
    if tls is None:
        if await _speaks_tls(host, port, timeout_s):
            return _failed(
                "TLS",
                "the server speaks TLS, and this client does not",
                "Add --tls, and --tls-ca for a private authority.",
            )
        return _ok("TLS", "none, as asked for")
    try:
        context = ssl_context(tls)
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=tls.server_name or host)
    except ssl.SSLCertVerificationError as error:
        hint = "--tls-ca names the authority that made the server's certificate, --tls-server-name the name in it."
        return _failed("TLS", f"the server's certificate is not trusted: {error.verify_message}", hint)
    except (ssl.SSLError, TimeoutError, ConnectionError) as error:
        hint = (
            "Does the server speak TLS at all (--tls-cert-file), and does it ask for a client certificate (--tls-cert)?"
        )
        return _failed("TLS", f"no TLS connection: {error or 'no answer'}", hint)
    except ValueError as error:
        return _failed("TLS", str(error))
    secured: ssl.SSLObject = writer.get_extra_info("ssl_object")
    certificate = secured.getpeercert() or {}
    left_s = ssl.cert_time_to_seconds(str(certificate["notAfter"])) - time.time() if "notAfter" in certificate else None
    told, agreed = (
        f"{secured.version()}, certificate until {certificate.get('notAfter', '?')}",
        secured.selected_alpn_protocol(),
    )
    writer.close()
    if agreed != "h2":
        return _failed(
            "TLS", f"{told}; the server does not offer HTTP/2", "Something between that ends TLS has to pass HTTP/2 on."
        )
    if left_s is not None and left_s < 14 * 86_400:
        return _warning("TLS", told, f"The certificate ends in {left_s / 86_400:.0f} days.")
    return _ok("TLS", told)


async def _speaks_tls(host: str, port: int, timeout_s: float) -> bool:
    """Return whether a TLS handshake works; whose certificate it is does not matter here, and nothing is sent."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        async with asyncio.timeout(min(timeout_s, PROBE_S)):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def _health(client: AsyncClient, timeout_s: float) -> Finding:
    if await client.health(SERVICE, timeout_s=timeout_s):
        if await client.health("healthy", timeout_s=timeout_s):
            return _ok("health", "serving, and nothing is wrong")
        hint = "`headrace admin status` at the admin port says what is wrong."
        return _warning("health", "serving, but degraded", hint)
    if await client.health("", timeout_s=timeout_s):
        return _failed(
            "health",
            "a gRPC server answers that is no Headrace service",
            "Is this the right port? The gateway speaks HTTP, not gRPC.",
        )
    hint = "It starts, drains, or no model works (its log says which); or something else listens there."
    return _failed("health", "not serving, or no gRPC server", hint, is_last=False)


async def _reflection(
    target: str, tls: TlsConfig | None, metadata: tuple[tuple[str, str], ...], timeout_s: float
) -> Finding:
    async with open_channel(target, tls, ()) as channel:
        call: Any = channel.stream_stream(REFLECTION)(timeout=timeout_s, metadata=metadata)
        try:
            await call.write(LIST_SERVICES)
            await call.done_writing()
            answer = await call.read()
        except grpc.aio.AioRpcError as error:
            hint = "Only tools like grpcurl need it; a proxy may keep it out."
            return _warning("reflection", f"not to be had: {error.code().name}", hint)
    if not isinstance(answer, bytes) or SERVICE.encode() not in answer:
        return _warning("reflection", f"does not list {SERVICE}", "Another gRPC server answers here, or a proxy does.")
    return _ok("reflection", f"lists {SERVICE}")


async def _models(client: AsyncClient, wanted: str | None, timeout_s: float) -> tuple[Finding, str | None]:
    try:
        models = await client.list_models(timeout_s=timeout_s)
    except HeadraceError as error:
        hint = ""
        if error.status is grpc.StatusCode.UNAUTHENTICATED:
            hint = "The service asks who calls: HEADRACE_API_KEY or --api-key (`headrace keys` makes them)."
        elif error.status is grpc.StatusCode.UNAVAILABLE:
            hint = "The connection does not hold: see the checks above."
        return _failed("models", f"{error.reason or error.status.name}: {error.message}", hint), None
    ready = [one for one in models if one.state == model_pb2.MODEL_STATE_READY]
    names = ", ".join(one.id for one in models) or "none"
    if wanted is not None:
        found = next((one for one in models if wanted == one.id or wanted in one.aliases), None)
        if found is None:
            return _failed("models", f"no model {wanted!r}; there are: {names}"), None
        ready = [one for one in ready if one.id == found.id]
        names = found.id
    if not ready:
        return _failed(
            "models", f"none is ready: {names}", "The service's log says why; a large one may be loading."
        ), None
    return _ok("models", f"{names}; {len(ready)} ready"), ready[0].id


async def _round_trip(client: AsyncClient, model: str, timeout_s: float) -> AsyncIterator[Finding]:
    """Yield what a small generation shows: that it works, and whether the two clocks agree on its first token."""
    try:
        async with client.generate(
            model=model, prompt="Hello", max_output_tokens=TOKENS, timeout_s=max(timeout_s, 30.0)
        ) as stream:
            await stream.text()
    except HeadraceError as error:
        told = f"{error.reason or error.status.name}: {error.message}"
        yield _failed("round trip", told, "The request id in the service's log: " + (error.request_id or "unknown"))
        return
    usage, timing = stream.usage, stream.timing
    tokens = usage.output_token_count if usage is not None and usage.HasField("output_token_count") else None
    yield _ok(
        "round trip",
        f"{model} made {'an unknown number of' if tokens is None else tokens} tokens; request {stream.request_id}",
    )
    seen_s = stream.time_to_first_delta_s
    if seen_s is None or timing is None or not timing.HasField("time_to_first_token"):
        yield _warning(
            "time to first token", "no token came, so that there is nothing to compare", "Try another --model."
        )
        return
    server_s = timing.time_to_first_token.ToNanoseconds() / 1e9
    way_s = seen_s - server_s
    told = f"{_ms(seen_s)} here, {_ms(server_s)} by the service's clock: {_ms(way_s)} on the way"
    if way_s > SLOW_WAY_S:
        hint = "The network, a proxy that buffers, or a busy client: `headrace ttft` measures more of it."
        yield _warning("time to first token", told, hint)
    elif way_s < 0:
        hint = "The service counts from the call's arrival; a part cannot be longer than the whole: a clock jumps."
        yield _warning("time to first token", told, hint)
    else:
        yield _ok("time to first token", told)


async def _cancel(client: AsyncClient, model: str, timeout_s: float) -> Finding:
    """Return whether a generation that is left is stopped at the service."""
    try:
        async with client.generate(model=model, prompt="Tell a long story.", timeout_s=max(timeout_s, 30.0)) as stream:
            async for _ in stream.deltas():
                break
        if stream.generation_id is None:
            return _warning("cancel", "the answer was over before it could be left", "Try another --model.")
        began_s = time.perf_counter()
        while time.perf_counter() - began_s < CANCEL_S:
            found = await client.get_generation(stream.generation_id, timeout_s=timeout_s)
            if found.state == pb.GENERATION_STATE_CANCELLED:
                return _ok("cancel", f"a generation that was left is stopped, {_ms(time.perf_counter() - began_s)}")
            if found.state in (pb.GENERATION_STATE_COMPLETED, pb.GENERATION_STATE_FAILED):
                return _ok("cancel", "the answer was over before it was left")
            await asyncio.sleep(0.02)
    except HeadraceError as error:
        hint = (
            "Behind a balancer another replica may have been asked." if error.reason == "GENERATION_NOT_FOUND" else ""
        )
        return _warning("cancel", f"{error.reason or error.status.name}: {error.message}", hint)
    return _failed(
        "cancel", f"a generation that was left runs on after {CANCEL_S:g} s", "A proxy in between keeps the call open."
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
