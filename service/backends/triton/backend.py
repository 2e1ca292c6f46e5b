"""The Triton backend: one channel, one generation per stream, and a stop for whatever is left early."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any, Final

import grpc
from tritonclient.grpc import service_pb2_grpc

from service.backends.base import (
    BackendInfo,
    EngineItem,
    EngineRequest,
    Feature,
    Health,
)
from service.backends.triton.channel import address_of, open_channel
from service.backends.triton.contract import Contract
from service.backends.triton.description import Described, Description
from service.backends.triton.ensemble import EnsembleContract
from service.backends.triton.faults import is_configuration_fault, is_refusal
from service.backends.triton.health import HealthProbe
from service.backends.triton.options import TritonOptions
from service.backends.triton.stop import Stopper
from service.backends.triton.stream import InferStream
from service.backends.triton.token_count import count_tokens
from service.core.deadline import Deadline
from service.core.errors import Reason, ServiceError

__all__ = ["TritonBackend"]

_log = logging.getLogger(__name__)

# After these a young token no longer proves the engine alive.
_ENGINE_FAULTS: Final = frozenset({Reason.BACKEND_UNAVAILABLE, Reason.BACKEND_ERROR})

# Before Triton was reached once, the features of the newest models are assumed,
# so that a caller hears UNAVAILABLE and not that the model lacks something.
_ASSUMED_FEATURES: Final = frozenset(
    {
        Feature.TEMPERATURE,
        Feature.TOP_P,
        Feature.TOP_K,
        Feature.FREQUENCY_PENALTY,
        Feature.PRESENCE_PENALTY,
        Feature.REPETITION_PENALTY,
        Feature.SEED,
        Feature.MIN_OUTPUT_TOKENS,
        Feature.JSON_OBJECT,
        Feature.JSON_SCHEMA,
        Feature.GRAMMAR,
    }
)


class TritonBackend:
    """Serves one model of one Triton; implements `service.backends.base.Backend`.

    Must be started, used and closed in one event loop.
    """

    def __init__(self, options: TritonOptions) -> None:
        self._options = options
        self._contract: Contract = EnsembleContract(
            max_context_tokens=options.max_context_tokens, bos_text=options.bos_text
        )
        self._stopper = Stopper(options.stop_timeout_s)
        self._channel: Any = None
        self._stub: Any = None
        self._description: Description | None = None
        self._streams: dict[str, InferStream | None] = {}
        self._probe: HealthProbe | None = None
        # Asked for on every request, and the same until the model is described anew.
        self._info: BackendInfo | None = None
        self._info_of: Described | None = None
        self._is_closed = False

    async def start(self) -> None:
        """Open the channel and read the model's description.

        Returns normally when Triton or the model is not there yet. Raises
        `ServiceError` when the model is there and fits no known contract.
        """
        if self._channel is not None:
            return
        self._channel = open_channel(self._options)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._description = Description(
            self._stub,
            self._options.model,
            self._options.engine_model,
            self._options.tokenizer_model,
            timeout_s=self._options.metadata_timeout_s,
        )
        self._probe = HealthProbe(
            self._stub, self._options.model, self._description, self.generate, self._options.canary_interval_s
        )
        try:
            described = await self._description.read()
        except ServiceError as error:
            _log.warning("Triton at %s is not ready: %s", self._options.url, error.detail or error.message)
            return
        problems = self._contract.problems(described.model)
        if problems:
            raise self._misfit(problems)

    async def close(self) -> None:
        """Cancel running generations, send their stops, and close the channel."""
        self._is_closed = True
        for request_id, stream in list(self._streams.items()):
            if stream is not None:
                stream.abort(_closing())
                self._leave(request_id, stream)
        await self._stopper.wait()
        if self._description is not None:
            await self._description.close()
        if self._channel is not None:
            await self._channel.close()

    @property
    def info(self) -> BackendInfo:
        """Facts about the engine, from the last description that could be read."""
        described = None if self._description is None else self._description.last
        if self._info is None or self._info_of is not described:
            self._info, self._info_of = self._read_info(described), described
        return self._info

    def _read_info(self, described: Described | None) -> BackendInfo:
        host, port = address_of(self._options.url)
        return BackendInfo(
            provider="nvidia.triton",
            features=_ASSUMED_FEATURES if described is None else self._contract.features(described.model),
            fingerprint="unknown" if described is None else f"{described.server.version}-{described.model.fingerprint}",
            max_context_tokens=self._options.max_context_tokens,
            bos_text=self._options.bos_text,
            server_address=host,
            server_port=port,
        )

    async def health(self, timeout_s: float) -> Health:
        """Return READY only for an engine that generates: a recent token, or one now. Never raises.

        Cancelling it cancels the probe.
        """
        if self._probe is None or self._is_closed:
            return Health.UNAVAILABLE
        return await self._probe.check(timeout_s)

    async def count_tokens(self, prompt: str, *, add_special_tokens: bool) -> int | None:
        """Return the prompt's length as the ensemble's own tokenizer counts it, None where it does not answer."""
        if self._description is None or self._is_closed:
            return None
        text = prompt if add_special_tokens else prompt.removeprefix(self._options.bos_text)
        try:
            described = await self._description.read()
            return await count_tokens(self._stub, described.tokenizer, text, self._options.metadata_timeout_s)
        except (ServiceError, grpc.aio.AioRpcError, ValueError) as error:
            _log.debug("a prompt's tokens could not be counted: %s", error)
            return None

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineItem]:
        """Run one generation; see `Backend.generate`.

        `request.request_id` must be unique among running generations: a stop
        reaches everything with its id. Raises ValueError otherwise.
        """
        described, probe = await self._described(request.deadline), self._probe
        assert probe is not None  # made together with the description
        loop = asyncio.get_running_loop()
        message = self._contract.request(request, described.model)
        reader = self._contract.reader(request)
        stream = self._open(request, message, described)
        is_over = False
        try:
            is_started = False
            while not stream.is_final:
                response = await stream.next()
                item = reader.read(response)
                if item is None:
                    continue
                if not is_started:
                    is_started = True
                    yield reader.started()
                # Any token proves the engine alive, not the canary's alone.
                probe.token_at_s = loop.time()
                yield item
            is_over = True
            await stream.drain()
            yield reader.finished()
        except ServiceError as error:
            is_over = is_over or is_refusal(error)
            if error.reason in _ENGINE_FAULTS:
                probe.doubt()
            if is_configuration_fault(error) and self._description is not None:
                self._description.forget()
            raise
        finally:
            if is_over:
                stream.close()
                self._release(request.request_id)
            else:
                self._leave(request.request_id, stream)

    def _open(self, request: EngineRequest, message: Any, described: Described) -> InferStream:
        if self._is_closed:
            raise _closing()
        if not request.request_id or request.request_id in self._streams:
            raise ValueError(f"request id {request.request_id!r} is empty or in use")
        metadata = list(request.trace_headers.items())
        if described.server.has_safe_grpc_errors:
            metadata.append(("triton_grpc_error", "true"))
        stream = InferStream(
            self._stub,
            message,
            timeout_s=request.deadline.remaining_s(),
            metadata=metadata,
            first_timeout_s=self._options.first_token_timeout_s,
            gap_timeout_s=self._options.token_gap_timeout_s,
        )
        self._streams[request.request_id] = stream
        return stream

    def _leave(self, request_id: str, stream: InferStream) -> None:
        """Close the stream, then stop the engine; the id stays taken until the stop was tried."""
        stream.close()
        if self._streams.get(request_id) is not stream:
            return
        self._streams[request_id] = None
        engine = None if self._description is None or self._description.last is None else self._description.last.engine
        self._stopper.send(self._stub, engine, request_id, on_done=lambda: self._release(request_id))

    def _release(self, request_id: str) -> None:
        self._streams.pop(request_id, None)

    async def _described(self, deadline: Deadline) -> Described:
        if self._description is None or self._is_closed:
            raise ServiceError(Reason.BACKEND_UNAVAILABLE, "The service is not connected to the inference server.")
        try:
            async with asyncio.timeout(deadline.remaining_s()):
                described = await self._description.read()
        except TimeoutError:
            raise ServiceError(Reason.DEADLINE_IN_DECODE, "The deadline passed before the model was reached.") from None
        problems = self._contract.problems(described.model)
        if problems:
            raise self._misfit(problems)
        return described

    def _misfit(self, problems: list[str]) -> ServiceError:
        return ServiceError(
            Reason.BACKEND_ERROR,
            "The model on the inference server does not have the interface that the service expects.",
            detail=f"model {self._options.model}: {'; '.join(problems)}",
        )


def _closing() -> ServiceError:
    return ServiceError(Reason.BACKEND_UNAVAILABLE, "The service is shutting down.")
