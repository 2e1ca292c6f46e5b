"""What metrics show of a generation that goes on: its first token and its tokens, before its end."""

from __future__ import annotations

from service.rpc.progress import count_progress
from tests.support.metering import install_reader
from tests.support.service import GenerateRequest, RunningService, eventually, script, service

__all__ = ["service"]


async def test_a_stream_that_goes_on_is_counted_while_it_does(service: RunningService) -> None:
    metered = install_reader()
    prompt = script(tokens=["t"], token_ms=10, prefill_ms=30)
    call = service.generation.Generate(GenerateRequest(model="sim", prompt=prompt), timeout=20)
    for _ in range(8):
        await call.read()
    metered.read()
    (ttft,) = metered.named("gen_ai.server.time_to_first_token")
    assert ttft.sum >= 0.03
    assert metered.sum("headrace.server.prefill.duration") == 1
    assert metered.sum("headrace.server.queue.duration") == 1
    assert metered.sum("gen_ai.server.request.duration") == 0
    live = list(service.server._generation._serving.generations)
    count_progress(live)
    metered.read()
    under_way = metered.sum("headrace.server.output_tokens")
    assert under_way >= 6
    call.cancel()
    await eventually(lambda: service.server.drain.running == 0)
    metered.read()
    # Nothing is counted twice: the rest comes at the end.
    total = live[0].generation.output_tokens_so_far
    assert under_way + metered.sum("headrace.server.output_tokens") == total
    assert metered.sum("gen_ai.server.time_to_first_token") == 0
    assert metered.sum("headrace.server.queue.duration") == 0
    assert metered.sum("gen_ai.server.request.duration") == 1
