"""Keeps what is known about a server and its models, and reads it again when it may have changed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

import grpc

from service.backends.base import EngineRequest
from service.backends.triton.channel import being_cancelled
from service.backends.triton.contracts.contract import Contract, ContractSettings
from service.backends.triton.facts import ModelFacts, ServerFacts, read_model, read_server
from service.backends.triton.faults import fault_from_status, fault_of_stream, is_misfit, misfit
from service.backends.triton.options import TritonOptions
from service.backends.triton.recognition import MisfitError, make_contract, recognise
from service.backends.triton.tensors import UNWRITABLE
from service.core.deadline import Deadline
from service.core.errors import ServiceError
from service.core.request import Sampling

__all__ = ["Described", "Description"]

_log = logging.getLogger(__name__)

# Parameters of a BLS model that name the models it calls, and the names it has by default.
_BLS_ENGINE: Final = ("tensorrt_llm_model_name", "tensorrt_llm")
_BLS_TOKENIZER: Final = ("preprocessing_model_name", "preprocessing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """One consistent reading.

    `engine` is the model that generates: the called model itself, or one inside
    it; None where it is not known. `tokenizer` is None where there is none.
    """

    server: ServerFacts
    model: ModelFacts
    contract: Contract
    engine: ModelFacts | None
    tokenizer: ModelFacts | None

    @property
    def passes_id_on(self) -> bool:
        """Whether a BLS model says that its engine knows a request by the same id."""
        return self.model.parameters.get("forward_request_id", "").lower() == "true"

    @property
    def max_running(self) -> int | None:
        """How many generations run here at once, as far as the configuration says; None where it does not.

        It is the engine model's batch size, which deployments set to that of the
        engine they built; Triton itself does not hold a decoupled model to it. An
        instance of a BLS model has one request at a time.
        """
        bounds = []
        if self.engine is not None and self.engine.max_batch_size > 0:
            bounds.append(self.engine.max_batch_size * self.engine.instances)
        if self.contract.name == "bls":
            bounds.append(self.model.instances)
        return min(bounds, default=None)


class Description:
    """Reads the description of one server at the first need, after a fault that may mean a change, and now and then.

    A reading that fails takes nothing away: the last one stands until a later
    one says otherwise. One that shows a model that cannot be served does.
    """

    def __init__(self, stub: Any, options: TritonOptions, settings: ContractSettings) -> None:
        self._stub = stub
        self._options = options
        self._settings = settings
        self._timeout_s = options.metadata_timeout_s
        self._reading: asyncio.Task[Described] | None = None
        # A fault may have meant a change: the next use waits for a new reading.
        self._is_doubted = False
        self._misfit: ServiceError | None = None
        self._read_at_s = 0.0
        # The last reading that could be served.
        self.last: Described | None = None

    def forget(self) -> None:
        """Read again before the next use."""
        self._is_doubted = True

    async def read(self) -> Described:
        """Return the current description; those who ask at the same time share one reading.

        Takes the timeout at most. Raises `ServiceError` when Triton has never
        given it, or when the model fits no contract. Cancelling it leaves the
        shared reading to the others.
        """
        if self.last is not None and not self._is_doubted and self._misfit is None:
            return self.last
        reading = self._begin()
        try:
            return await asyncio.shield(reading)
        except asyncio.CancelledError:
            if reading.cancelled() and not being_cancelled():
                raise fault_of_stream("the backend was closed") from None
            raise
        except ServiceError as error:
            if self.last is None or is_misfit(error):
                raise
            return self.last

    async def refresh_if_old(self, wait_s: float) -> None:
        """Read again if the last reading is older than the options allow; wait for it no longer than `wait_s`.

        Raises `ServiceError` when the model is known to fit no contract.
        """
        if self._misfit is not None or time.monotonic() - self._read_at_s > self._options.metadata_max_age_s:
            await asyncio.wait([self._begin()], timeout=wait_s)
        if self._misfit is not None:
            raise self._misfit

    def _begin(self) -> asyncio.Task[Described]:
        if self._reading is None:
            self._reading = asyncio.create_task(self._refresh(), name="triton-description")
            self._reading.add_done_callback(self._on_read)
        return self._reading

    async def close(self) -> None:
        """Cancel a reading under way; those who wait for it get `ServiceError`."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    def _on_read(self, task: asyncio.Task[Described]) -> None:
        self._reading = None
        if not task.cancelled():
            task.exception()  # everybody who asked may have left

    async def _refresh(self) -> Described:
        # Also where it fails: not every request is to wait for a server that does not answer.
        self._is_doubted = False
        try:
            async with asyncio.timeout(self._timeout_s):
                described = await self._read()
        except TimeoutError:
            raise fault_of_stream("the model's description did not arrive in time") from None
        except grpc.aio.AioRpcError as error:
            raise _unreadable(error) from None
        except ServiceError as error:
            self._misfit = error
            raise
        finally:
            self._read_at_s = time.monotonic()
        self._misfit = None
        if self.last != described:
            if self.last is None or self.last.model != described.model or self.last.server != described.server:
                _tell(described, self._options.url)
            self.last = described
        return self.last

    async def _read(self) -> Described:
        server = await read_server(self._stub, self._timeout_s)
        model = await read_model(self._stub, self._options.model, self._timeout_s)
        contract = self._contract(model)
        engine, tokenizer = await self._inside(contract.name, model)
        problems = contract.problems(model)
        if engine is not None and not engine.is_decoupled:
            problems.append(f"model {engine.name} is not decoupled: set model_transaction_policy {{ decoupled: true }}")
        if not problems:
            problems += _trial(contract, model)
        if problems:
            raise misfit(f"model {model.name} as {contract.name}: {'; '.join(problems)}")
        return Described(server=server, model=model, contract=contract, engine=engine, tokenizer=tokenizer)

    def _contract(self, model: ModelFacts) -> Contract:
        name = self._options.contract
        if name == "auto":
            try:
                name = recognise(model)  # type: ignore[assignment]
            except MisfitError as error:
                raise misfit(f"model {model.name}: {error}") from None
        last = self.last
        if last is not None and last.contract.name == name and last.model == model:
            return last.contract
        return make_contract(name, self._settings)

    async def _inside(self, contract: str, model: ModelFacts) -> tuple[ModelFacts | None, ModelFacts | None]:
        """Return the model that generates and the one that tokenizes."""
        engine = tokenizer = None
        if contract in ("raw", "llmapi", "vllm"):
            engine = model
        elif contract == "bls":
            engine = await self._optional(_parameter(model, _BLS_ENGINE))
            tokenizer = await self._optional(_parameter(model, _BLS_TOKENIZER))
        else:
            async for step in self._steps(model):
                if {"input_ids", "request_output_len"} <= step.inputs.keys() and "output_ids" in step.outputs:
                    engine = step
                elif "QUERY" in step.inputs and "REQUEST_INPUT_LEN" in step.outputs:
                    tokenizer = step
        if self._options.engine_model:
            engine = await self._optional(self._options.engine_model)
        if self._options.tokenizer_model:
            tokenizer = await self._optional(self._options.tokenizer_model)
        return engine, tokenizer

    async def _steps(self, model: ModelFacts) -> AsyncIterator[ModelFacts]:
        for name in model.steps:
            step = await self._optional(name)
            if step is not None:
                yield step

    async def _optional(self, name: str) -> ModelFacts | None:
        try:
            return await read_model(self._stub, name, self._timeout_s)
        except grpc.aio.AioRpcError as error:
            # Triton's answer for an unknown model is one of these, by version.
            if error.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT):
                return None
            raise


def _trial(contract: Contract, model: ModelFacts) -> list[str]:
    """Return why no request can be written: a tensor has the right name and another datatype or shape."""
    request = EngineRequest(
        request_id="trial",
        prompt=(0,) if contract.takes_ids else "trial",
        sampling=Sampling(max_output_tokens=1, seed=0),
        deadline=Deadline.after(1),
    )
    try:
        contract.request(request, model)
    except UNWRITABLE as error:
        return [f"a request cannot be written: {error!r}"]
    return []


def _parameter(model: ModelFacts, names: tuple[str, str]) -> str:
    key, default = names
    value = model.parameters.get(key, "")
    # A placeholder of the deployment's templates that nobody filled in.
    return default if not value or value.startswith("${") else value


def _tell(described: Described, url: str) -> None:
    running = described.max_running
    _log.info(
        "model %s at %s has the contract %s, on Triton %s; its configuration says %s run at once",
        described.model.name,
        url,
        described.contract.name,
        described.server.version,
        "not how many" if running is None else running,
    )
    if described.contract.name == "bls" and not described.passes_id_on:
        _log.warning(
            "no cancel gets through %s to its engine: generations that are left run to their end%s",
            described.model.name,
            "; on this server its code can cancel its own request" if described.server.abilities.bls_cancel else "",
        )
    if described.contract.name == "ensemble" and (described.engine is None or "stop" not in described.engine.inputs):
        _log.warning(
            "no model inside %s takes a stop: generations that are left run to their end", described.model.name
        )


def _unreadable(error: Any) -> ServiceError:
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        # The time for the description ran out, not the caller's.
        return fault_of_stream("the model's description did not arrive in time")
    return fault_from_status(error, has_output=False)
