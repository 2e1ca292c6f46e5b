"""One Triton server: its connections, what it says about itself, and what runs there."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import AsyncGenerator
from typing import Final

from tritonclient.grpc import service_pb2_grpc

from service.backends.base import EngineItem, EngineRequest, Health
from service.backends.triton.channel import open_channel, open_infer
from service.backends.triton.contracts.contract import ContractSettings
from service.backends.triton.description import Described, Description
from service.backends.triton.encoding import encoded
from service.backends.triton.faults import fault_of_stream, is_configuration_fault, is_death, is_retriable, misfit
from service.backends.triton.health import HealthProbe
from service.backends.triton.options import TritonOptions
from service.backends.triton.run import EngineRun, infer_request
from service.backends.triton.stop import LeftRun, Stopper
from service.backends.triton.stream import InferStream
from service.backends.triton.tensors import UNWRITABLE
from service.core.deadline import Deadline
from service.core.errors import Reason, ServiceError

__all__ = ["Endpoint", "closing"]

_log = logging.getLogger(__name__)

_TOLD: Final = {
    Health.READY: "generates",
    Health.LOADING: "is not loaded, or there is no such model",
    Health.UNAVAILABLE: "does not generate, or the server does not answer",
}
# A server that failed is avoided for this long, or until a health check finds it well.
_REST_S: Final = 2.0
# A run this silent on a server that no longer generates will say nothing more.
_SILENT_S: Final = 1.0


class Endpoint:
    """Begins runs on one server and knows whether it is well.

    `is_up` is what the last health check saw; True until the first. Request ids
    must be unique among the runs of one server: a stop reaches everything with
    its id.
    """

    def __init__(self, url: str, options: TritonOptions, settings: ContractSettings, stopper: Stopper) -> None:
        self.url = url
        self._options = dataclasses.replace(options, url=url)
        self._stopper = stopper
        self._tokenizer = settings.tokenizer
        self._channel = open_channel(self._options)
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._opener = open_infer(self._options, self.stub)
        self.description = Description(self.stub, self._options, settings)
        self._probe = HealthProbe(self.stub, options.model, self.description, self._canary, options.canary_interval_s)
        # None while only the stop of that id is under way.
        self._runs: dict[str, EngineRun | None] = {}
        self._rests_until_s = 0.0
        self.is_up = True
        self._health: Health | None = None
        self._is_closed = False

    @property
    def running(self) -> int:
        """How many runs it carries, those being stopped included."""
        return len(self._runs)

    @property
    def is_well(self) -> bool:
        """Whether it is worth a try before others."""
        return self.is_up and time.monotonic() >= self._rests_until_s

    async def begin(self, request: EngineRequest) -> EngineRun:
        """Send `request`; raises `ServiceError` when the server cannot be described, and for what it cannot do."""
        described = await self._described(request.deadline)
        if described.contract.takes_ids and self._tokenizer is not None:
            request = await encoded(request, self._tokenizer)
        try:
            message = infer_request(request, described)
        except UNWRITABLE as error:
            raise misfit(f"model {described.model.name}: a request cannot be written: {error!r}") from None
        if self._is_closed:
            raise closing()
        if not request.request_id or request.request_id in self._runs:
            raise ValueError(f"request id {request.request_id!r} is empty or in use")
        metadata = list(request.trace_headers.items())
        if described.server.abilities.grpc_errors:
            metadata.append(("triton_grpc_error", "true"))
        stream = InferStream(
            self._opener,
            message,
            timeout_s=request.deadline.remaining_s(),
            metadata=metadata,
            first_timeout_s=self._options.first_token_timeout_s,
            gap_timeout_s=self._options.token_gap_timeout_s,
        )
        request_id = request.request_id
        run = EngineRun(stream, described, request, lambda left: self._on_end(request_id, described, left))
        self._runs[request_id] = run
        return run

    def proved(self, at_s: float) -> None:
        """Note that a token came at `time.monotonic` = `at_s`: any proves the engine alive, not the canary's alone."""
        self._probe.token_at_s = at_s

    def failed(self, error: ServiceError) -> None:
        """Take the failure of a run as a sign: the next check generates a token, and others are asked before it."""
        if error.reason in (Reason.BACKEND_UNAVAILABLE, Reason.BACKEND_ERROR):
            self._probe.doubt()
        if is_retriable(error):
            self._rests_until_s = time.monotonic() + _REST_S
        if is_configuration_fault(error):
            self.description.forget()
        last = self.description.last
        if last is not None and is_death(error, last.contract.name):
            self._give_up_silent_runs()

    async def health(self, timeout_s: float) -> Health:
        """Return whether this server generates, within `timeout_s`. Never raises but for its own cancellation."""
        health = await self._probe.check(timeout_s)
        if health is not self._health:
            # Once per change: a server that is gone must be seen, also while others take its requests.
            level = logging.INFO if health is Health.READY else logging.WARNING
            _log.log(level, "model %s at %s: %s", self._options.model, self.url, _TOLD[health])
            self._health = health
        self.is_up = health is Health.READY
        if self.is_up:
            self._rests_until_s = 0.0
        elif self._probe.is_dead:
            self._give_up_silent_runs()
        return health

    async def close(self) -> None:
        """Cancel running generations, see their stops through, and close the connections."""
        self._is_closed = True
        for run in list(self._runs.values()):
            if run is not None:
                run.abort(closing())
                run.end()
        await self._stopper.wait()
        await self.description.close()
        await self._opener.close()
        await self._channel.close()

    def _give_up_silent_runs(self) -> None:
        """End what would hang to its deadline: Triton tells running streams nothing when their process has died."""
        now_s = time.monotonic()
        for run in list(self._runs.values()):
            if run is not None and now_s - run.heard_s > _SILENT_S:
                run.abort(fault_of_stream(f"silent for {now_s - run.heard_s:.1f} s, and the server is gone"))

    def _on_end(self, request_id: str, described: Described, left: LeftRun | None) -> None:
        if self._runs.get(request_id) is None:  # ended before, or closed
            return
        if left is None:
            self._release(request_id)
            return
        # The id stays taken until the stop was tried.
        self._runs[request_id] = None
        self._stopper.send(self._opener, described, left, on_done=lambda: self._release(request_id))

    def _release(self, request_id: str) -> None:
        self._runs.pop(request_id, None)

    async def _described(self, deadline: Deadline) -> Described:
        try:
            async with asyncio.timeout(deadline.remaining_s()):
                return await self.description.read()
        except TimeoutError:
            raise ServiceError(Reason.DEADLINE_IN_DECODE, "The deadline passed before the model was reached.") from None

    async def _canary(self, request: EngineRequest) -> AsyncGenerator[EngineItem]:
        """Run one generation here and nowhere else."""
        run = await self.begin(request)
        try:
            while not run.is_final:
                item = await run.take()
                if item is not None:
                    self.proved(run.heard_s)
                    yield item
            yield (await run.finish())[1]
        finally:
            run.end()


def closing() -> ServiceError:
    """Return the failure of whatever is asked while the backend closes."""
    return ServiceError(Reason.BACKEND_UNAVAILABLE, "The service is shutting down.")
