"""One generation on one server: its stream, its reader, and what is left of it.

The owner of the stream: whoever begins a run ends it with `end`, exactly once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from service.backends.base import EngineFinished, EngineOutput, EngineRequest, EngineStarted
from service.backends.triton.description import Described
from service.backends.triton.faults import is_refusal
from service.backends.triton.stop import LeftRun
from service.backends.triton.stream import InferStream
from service.core.errors import ServiceError

__all__ = ["EngineRun", "infer_request"]


class EngineRun:
    """Reads one stream by its contract. `on_end` gets the run to stop, or None when nothing runs any more."""

    __slots__ = (
        "_described",
        "_fault",
        "_first_s",
        "_on_end",
        "_output_tokens",
        "_reader",
        "_request",
        "_stream",
        "heard_s",
        "is_over",
    )

    def __init__(
        self,
        stream: InferStream,
        described: Described,
        request: EngineRequest,
        on_end: Callable[[LeftRun | None], None],
    ) -> None:
        self._stream = stream
        self._described = described
        self._request = request
        self._reader = described.contract.reader(request, described.model)
        self._on_end = on_end
        self._first_s = 0.0
        # When something came last, by `time.monotonic`; at first, when it began.
        self.heard_s = time.monotonic()
        self._output_tokens = 0
        # A response that could not be read, behind others that were.
        self._fault: ServiceError | None = None
        # The engine has said its last, or refused: nothing is left to stop.
        self.is_over = False

    @property
    def is_final(self) -> bool:
        """Whether the last response was read."""
        return self._stream.is_final and self._fault is None

    async def take(self) -> EngineOutput | None:
        """Return everything that has arrived as one output, None if it carried no tensors; waits for the first.

        Raises `ServiceError`. Cancelling the wait cancels the call.
        """
        try:
            if self._fault is not None:
                raise self._fault
            responses = await self._stream.take()
            item = self._reader.read(responses[0])
            if len(responses) > 1:
                item = self._merged(item, responses)
        except ServiceError as error:
            self.is_over = self.is_over or is_refusal(error)
            raise
        if item is not None:
            self._note(item)
        self.is_over = self.is_final
        return item

    def started(self) -> EngineStarted:
        """Return the facts known with the first response."""
        return self._reader.started()

    async def finish(self) -> tuple[EngineOutput | None, EngineFinished]:
        """Return what was held back, and the end; called once after the last response."""
        await self._stream.drain()
        return self._reader.rest(), self._reader.finished()

    def abort(self, cause: ServiceError) -> None:
        """Cancel the stream; whoever waits for it gets `cause`."""
        self._stream.abort(cause)

    def end(self) -> None:
        """Close the stream, and have the engine stopped if it may still run."""
        self._stream.close()
        if self.is_over:
            self._on_end(None)
            return
        tokens = self._output_tokens
        gap_s = (self.heard_s - self._first_s) / (tokens - 1) if tokens > 1 else None
        self._on_end(
            LeftRun(
                request_id=self._request.request_id,
                output_tokens=tokens,
                max_output_tokens=self._request.sampling.max_output_tokens or tokens,
                token_gap_s=gap_s,
            )
        )

    def _merged(self, first: EngineOutput | None, responses: list[Any]) -> EngineOutput | None:
        """Return one output for all that were read; what cannot be read is told by the next `take`."""
        items = [first]
        for response in responses[1:]:
            try:
                items.append(self._reader.read(response))
            except ServiceError as error:
                self._fault = error
                break
        return _joined(items)

    def _note(self, item: EngineOutput) -> None:
        self.heard_s = time.monotonic()
        if not self._output_tokens:
            self._first_s = self.heard_s
        # Without a count a response is about a token.
        self._output_tokens += 1 if item.tokens is None else item.tokens


def infer_request(request: EngineRequest, described: Described) -> Any:
    """Return the `ModelInferRequest`: the contract's tensors, and what all contracts need around them.

    Raises `ServiceError` for what the model cannot do.
    """
    message = described.contract.request(request, described.model)
    # Else a model that ends without content (BLS does) ends without any message.
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    engine = described.engine
    if engine is not None and engine.honours_timeout:
        remaining_s = request.deadline.remaining_s()
        message.parameters["timeout"].int64_param = max(1, int(remaining_s * 1_000_000))
    return message


def _joined(items: list[EngineOutput | None]) -> EngineOutput | None:
    """Return one output for several that waited together; its tokens are unknown if any were."""
    outputs = [item for item in items if item is not None]
    if len(outputs) < 2:
        return outputs[0] if outputs else None
    tokens: int | None = 0
    for output in outputs:
        tokens = None if tokens is None or output.tokens is None else tokens + output.tokens
    return EngineOutput(
        b"".join([output.data for output in outputs]),
        tokens,
        tuple(token_id for output in outputs for token_id in output.token_ids),
        tuple(logprob for output in outputs for logprob in output.logprobs),
    )
