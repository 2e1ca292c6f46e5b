"""Each client carries out the scenarios of clients/conformance.yaml, and has to answer what they expect."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from service.admission.limits import AdmissionLimits
from service.retention.policy import RetentionLimits
from service.tenancy.authenticator import Authenticator
from service.tenancy.key_file import KeyFile
from tests.conformance.clients import CLIENTS, ROOT, Client
from tests.conformance.scripts import ScriptedServer, scripted
from tests.support.credentials import made_key, started
from tests.support.service import RunningService, eventually, running_service, simulated_model

SCENARIOS: Final[list[dict[str, Any]]] = yaml.safe_load((ROOT / "clients" / "conformance.yaml").read_text())[
    "scenarios"
]
# Of one scenario: a client's own patience for what never comes.
PATIENCE_S: Final = 20.0
# A client that has to be compiled and loaded first.
START_S: Final = 40.0
_OF_PROGRAM: Final = ("name", "call", "request", "timeout_ms", "api_key", "retries", "act")


class Program:
    """The running program of one client."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._is_first = True

    async def answer(self, scenario: Mapping[str, Any], target: str, api_key: str = "") -> dict[str, Any]:
        """Have one scenario carried out."""
        told = {name: scenario[name] for name in _OF_PROGRAM if name in scenario} | {"target": target}
        if "api_key" in told:
            told["api_key"] = api_key
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(told).encode() + b"\n")
        async with asyncio.timeout(START_S if self._is_first else PATIENCE_S):
            await self._process.stdin.drain()
            line = await self._process.stdout.readline()
        self._is_first = False
        assert line, "the program has ended"
        answer = json.loads(line)
        assert answer["name"] == scenario["name"]
        return {name: value for name, value in answer.items() if value is not None}


@asynccontextmanager
async def program(client: Client) -> AsyncIterator[Program]:
    """Run a client's program for the length of the block."""
    process = await asyncio.create_subprocess_exec(
        *client.command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "NO_COLOR": "1"},
        limit=1 << 20,
    )
    try:
        yield Program(process)
        assert process.stdin is not None
        process.stdin.close()
        async with asyncio.timeout(10):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


class Servers:
    """The servers of the scenarios: opened when they are first asked for, and closed together."""

    def __init__(self, stack: AsyncExitStack, folder: Path) -> None:
        self._stack = stack
        self._folder = folder
        self._open: dict[str, RunningService] = {}
        self.api_key = ""

    async def service(self, name: str) -> RunningService:
        """Return a real service in the state that a scenario asks for."""
        if name not in self._open:
            self._open[name] = await self._opened(name)
        return self._open[name]

    async def _opened(self, name: str) -> RunningService:
        limits = AdmissionLimits(running=1, waiting=0, waiting_batch=0) if name == "full" else None
        authenticator = None
        if name == "keys":
            path = self._folder / "keys.toml"
            self.api_key = made_key(path).text
            authenticator = await self._stack.enter_async_context(started(Authenticator(KeyFile(path))))
        service = await self._stack.enter_async_context(
            running_service(simulated_model(limits=limits), retention=RetentionLimits(), authenticator=authenticator)
        )
        if name == "full":
            service.models["sim"].slots.enter()
        elif name == "draining":
            service.server.drain.begin(None)
        return service

    async def scripted(self, name: str) -> ScriptedServer:
        """Return a server that plays a script from its begin."""
        return await self._stack.enter_async_context(scripted(name))


@pytest.mark.parametrize("client", CLIENTS, ids=[client.name for client in CLIENTS])
@pytest.mark.timeout(240)
async def test_a_client_does_what_all_clients_do(client: Client, tmp_path: Path) -> None:
    if not client.is_there:
        pytest.skip(f"the {client.name} client is not built: {client.made_by}")
    problems: list[str] = []
    async with AsyncExitStack() as stack, program(client) as running:
        servers = Servers(stack, tmp_path)
        for scenario in SCENARIOS:
            try:
                problems += [f"{scenario['name']}: {told}" for told in await _problems(scenario, running, servers)]
            except (TimeoutError, AssertionError) as error:
                problems.append(f"{scenario['name']}: {type(error).__name__} {error}")
    assert not problems, "\n".join(problems)


async def _problems(scenario: Mapping[str, Any], running: Program, servers: Servers) -> list[str]:
    """Carry out a scenario; return what is not as it should be."""
    server, found = scenario["server"], list[str]()
    if server == "closed":
        with socket.create_server(("127.0.0.1", 0)) as free:
            target = f"127.0.0.1:{free.getsockname()[1]}"
        return _differences(scenario["expect"], await running.answer(scenario, target))
    if isinstance(server, Mapping):
        script = await servers.scripted(server["script"])
        found += _differences(scenario["expect"], await running.answer(scenario, script.address))
        if script.calls != scenario.get("calls", script.calls):
            found.append(f"{script.calls} calls reached the server, not {scenario['calls']}")
        return found
    service = await servers.service(server)
    before = service.sim.started
    answers = [
        await running.answer(scenario, f"127.0.0.1:{service.port}", servers.api_key)
        for _ in range(scenario.get("repeat", 1))
    ]
    for answer in answers:
        found += _differences(scenario["expect"], answer)
    if len({answer.get("generation_id") for answer in answers}) > 1:
        found.append("the repetition got another generation")
    if service.sim.started - before != scenario.get("runs", service.sim.started - before):
        found.append(f"the engine ran {service.sim.started - before} times, not {scenario['runs']}")
    if scenario.get("engine_stops"):
        try:
            await eventually(lambda: service.sim.running == 0, timeout_s=2)
        except AssertionError:
            found.append("the engine runs on")
    return found


def _differences(expected: Mapping[str, Any], answer: Mapping[str, Any]) -> list[str]:
    found = []
    for name, wanted in expected.items():
        value = answer.get(name)
        if isinstance(wanted, Mapping) and wanted.keys() <= {"min", "max", "any", "absent"}:
            is_right = _is_within(wanted, value)
        else:
            is_right = value == wanted
        if not is_right:
            found.append(f"{name} is {value!r}, not {wanted!r} ({dict(answer)})")
    return found


def _is_within(wanted: Mapping[str, Any], value: Any) -> bool:
    if wanted.get("any"):
        return bool(value)
    if wanted.get("absent"):
        return value is None
    return value is not None and wanted.get("min", value) <= value <= wanted.get("max", value)
