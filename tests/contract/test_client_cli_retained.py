"""The commands and retained generations: a key that runs once, and `headrace attach`."""

from __future__ import annotations

import json

from tests.support.command_line import end, read, run, start
from tests.support.service import RunningService, script

ANSWER = script(tokens=["one ", "two ", "three "], output_tokens=9, token_ms=30)
TEXT = "one two three " * 3


async def test_a_key_is_asked_twice_and_runs_once(service: RunningService) -> None:
    address = f"127.0.0.1:{service.port}"
    first = await run(address, "generate", ANSWER, "--model", "sim", "--idempotency-key", "k")
    second = await run(address, "generate", ANSWER, "--model", "sim", "--idempotency-key", "k")
    assert (first.code, first.out.rstrip("\n")) == (0, TEXT)
    assert second.out == first.out
    assert service.sim.started == 1
    other = await run(address, "generate", "else", "--model", "sim", "--idempotency-key", "k")
    assert other.code == 1
    assert "IDEMPOTENCY_MISMATCH" in other.err


async def test_attach_reads_what_another_one_left(service: RunningService) -> None:
    address = f"127.0.0.1:{service.port}"
    left = await start(address, "generate", ANSWER, "--model", "sim", "--retain-for", "20", "--continue-on-disconnect")
    await read(left, "one ")
    left.terminate()
    await left.wait()
    generation_id = service.server.recordings.ids[0]
    whole = await run(address, "attach", f"chatcmpl-{generation_id}")
    assert (whole.code, whole.out.rstrip("\n")) == (0, TEXT)
    assert "finish: stop" in whole.err
    events = await run(address, "attach", generation_id, "--json")
    rest = await run(address, "attach", generation_id, "--after", "2", "--json")
    assert rest.out.splitlines() == events.out.splitlines()[2:]
    assert json.loads(rest.out.splitlines()[0])["sequence"] == 3
    assert service.sim.started == 1


async def test_status_and_cancel_take_a_key(service: RunningService) -> None:
    address = f"127.0.0.1:{service.port}"
    endless = script(tokens=["e"], token_ms=20)
    running = await start(address, "generate", endless, "--model", "sim", "--idempotency-key", "k")
    await read(running, "e")
    assert (await run(address, "status", "--key", "k")).out.startswith("running")
    assert (await run(address, "cancel", "--key", "k")).code == 0
    done = await end(running)
    assert done.code == 1
    assert "was stopped by CancelGeneration" in done.err
    assert (await run(address, "status", "--key", "k")).out.startswith("cancelled")


async def test_what_is_not_kept_or_not_named_is_said(service: RunningService) -> None:
    address = f"127.0.0.1:{service.port}"
    unknown = await run(address, "attach", "gen_nope")
    assert unknown.code == 1
    assert "GENERATION_NOT_FOUND" in unknown.err
    for command in ("attach", "status", "cancel"):
        nothing = await run(address, command)
        assert (nothing.code, "give ID or --key" in nothing.err) == (2, True)
