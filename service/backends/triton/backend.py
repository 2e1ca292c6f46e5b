"""The Triton backend: one generation per stream, on whichever server takes it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from typing import Final

import grpc

from service.backends.base import (
    BackendInfo,
    EngineItem,
    EngineOutput,
    EngineRequest,
    EngineStop,
    Feature,
    Health,
)
from service.backends.triton.channel import address_of
from service.backends.triton.contracts.contract import ContractSettings, TextMode, Tokenizer
from service.backends.triton.description import Described
from service.backends.triton.endpoint import Endpoint, closing
from service.backends.triton.endpoints import Endpoints
from service.backends.triton.faults import is_misfit, is_retriable
from service.backends.triton.options import TritonOptions
from service.backends.triton.run import EngineRun
from service.backends.triton.stop import Stopper
from service.backends.triton.token_count import count_tokens
from service.core.errors import Reason, ServiceError
from service.tokens import read_text

__all__ = ["TritonBackend"]

_log = logging.getLogger(__name__)

# A request is begun at most this often, each time on another server.
_MOST_ATTEMPTS: Final = 3

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
        Feature.REGEX,
        Feature.GRAMMAR,
        Feature.CHOICE,
    }
)


class TritonBackend:
    """Serves one model of one Triton, or of several; implements `service.backends.base.Backend`.

    `tokenizer` is that of the model; the `raw` contract needs it. `on_stop` is
    told about every generation that was left before its end. Must be started,
    used and closed in one event loop.
    """

    def __init__(
        self,
        options: TritonOptions,
        *,
        tokenizer: Tokenizer | None = None,
        on_stop: Callable[[EngineStop], None] = lambda _stop: None,
    ) -> None:
        self._options = options
        self._bos_text = options.bos_text or ("" if tokenizer is None else tokenizer.bos_text)
        self._settings = ContractSettings(
            max_context_tokens=options.max_context_tokens,
            bos_text=self._bos_text,
            text_mode=None if options.text == "auto" else TextMode(options.text),
            lora_task_id=options.lora_task_id,
            lora_name=options.lora_name,
            lora_path=options.lora_path,
            end_ids=options.end_ids,
            tokenizer=tokenizer,
        )
        self._tokenizer = tokenizer
        self._stopper = Stopper(options.stop_timeout_s, on_stop)
        self._endpoints: Endpoints | None = None
        # Asked for on every request, and the same until a model is described anew.
        self._info: BackendInfo | None = None
        self._info_of: list[Described | None] | None = None
        self._is_closed = False

    async def start(self) -> None:
        """Open the channels and read what the servers say about the model.

        Returns normally when a server or the model is not there yet. Raises
        `ServiceError` when the model is there and fits no contract on any server.
        """
        if self._endpoints is not None:
            return
        self._endpoints = Endpoints(self._options.url, self._open)
        await self._endpoints.refresh()
        endpoints = self._endpoints.all()
        readings = await asyncio.gather(
            *(endpoint.description.read() for endpoint in endpoints), return_exceptions=True
        )
        misfits = []
        for endpoint, reading in zip(endpoints, readings, strict=True):
            if isinstance(reading, ServiceError):
                _log.warning("Triton at %s cannot be used: %s", endpoint.url, reading.detail or reading.message)
                if is_misfit(reading):
                    misfits.append(reading)
            elif isinstance(reading, BaseException):
                raise reading
        if misfits and len(misfits) == len(endpoints):
            raise misfits[0]

    async def close(self) -> None:
        """Cancel running generations, send their stops, and close the channels."""
        self._is_closed = True
        if self._endpoints is not None:
            await self._endpoints.close()

    @property
    def info(self) -> BackendInfo:
        """Facts about the engine, from the last descriptions that could be read; only what every server can do."""
        endpoints = [] if self._endpoints is None else self._endpoints.all()
        read = [endpoint.description.last for endpoint in endpoints]
        if self._info is None or self._info_of != read:
            self._info, self._info_of = self._read_info(read), read
        return self._info

    def _read_info(self, read: list[Described | None]) -> BackendInfo:
        known = [described for described in read if described is not None]
        host, port = address_of(self._options.url.partition(",")[0])
        features = _ASSUMED_FEATURES
        if known:
            features = frozenset.intersection(*(one.contract.features(one.model) for one in known))
        return BackendInfo(
            provider="nvidia.triton",
            features=features,
            fingerprint=f"{known[0].server.version}-{known[0].model.fingerprint}" if known else "unknown",
            max_context_tokens=self._options.max_context_tokens,
            vocab_size=None if self._tokenizer is None else self._tokenizer.vocab_size,
            bos_text=self._bos_text,
            control_texts=() if self._tokenizer is None else self._tokenizer.control_texts,
            server_address=host,
            server_port=port,
            max_running=_max_running(read),
        )

    async def health(self, timeout_s: float) -> Health:
        """Return the best of the servers' healths: READY only for an engine that generates. Never raises.

        Cancelling it cancels the probes.
        """
        if self._endpoints is None or self._is_closed:
            return Health.UNAVAILABLE
        await self._endpoints.refresh()
        healths = await asyncio.gather(*(endpoint.health(timeout_s) for endpoint in self._endpoints.all()))
        return next((one for one in (Health.READY, Health.LOADING) if one in healths), Health.UNAVAILABLE)

    async def count_tokens(self, prompt: str, *, add_special_tokens: bool) -> int | None:
        """Return the prompt's length as the model's own tokenizer counts it, None where it does not answer."""
        endpoint = None if self._endpoints is None or self._is_closed else self._endpoints.pick()
        if endpoint is None:
            return None
        if self._tokenizer is not None:
            return len(await read_text(self._tokenizer.encode, prompt, add_special_tokens=add_special_tokens))
        text = prompt if add_special_tokens else prompt.removeprefix(self._bos_text)
        try:
            described = await endpoint.description.read()
            return await count_tokens(endpoint.stub, described.tokenizer, text, self._options.metadata_timeout_s)
        except (ServiceError, grpc.aio.AioRpcError, ValueError) as error:
            _log.debug("a prompt's tokens could not be counted: %s", error)
            return None

    @property
    def tokenizer(self) -> None:
        """None: what a caller may look at is the declared tokenizer.json, which the model has."""
        return None

    async def generate(self, request: EngineRequest) -> AsyncGenerator[EngineItem]:
        """Run one generation; see `Backend.generate`.

        A failure before the first output is tried on another server, where it is
        safe; after it never. `request.request_id` must be unique among running
        generations: a stop reaches everything with its id. Raises ValueError otherwise.
        """
        endpoint, run, output = await self._begin(request)
        try:
            yield run.started()
            if output is not None:
                yield output
            while not run.is_final:
                output = await run.take()
                if output is not None:
                    endpoint.proved(run.heard_s)
                    yield output
            rest, finished = await run.finish()
            if rest is not None:
                yield rest
            yield finished
        except ServiceError as error:
            endpoint.failed(error)
            raise
        finally:
            run.end()

    async def _begin(self, request: EngineRequest) -> tuple[Endpoint, EngineRun, EngineOutput | None]:
        """Return a run that has answered, with its first output."""
        if self._endpoints is None or self._is_closed:
            raise ServiceError(Reason.BACKEND_UNAVAILABLE, "The service is not connected to the inference server.")
        tried: list[Endpoint] = []
        while True:
            endpoint = self._endpoints.pick(tried)
            if endpoint is None:
                raise ServiceError(Reason.BACKEND_UNAVAILABLE, "The inference server's address cannot be resolved.")
            tried.append(endpoint)
            try:
                return endpoint, *await self._answered(endpoint, request)
            except ServiceError as error:
                endpoint.failed(error)
                is_last = len(tried) >= _MOST_ATTEMPTS or self._is_closed or request.deadline.remaining_s() <= 0
                if is_last or not is_retriable(error) or self._endpoints.pick(tried) is None:
                    raise
                _log.info("%s failed before the first token, trying another: %s", endpoint.url, error.detail or error)

    async def _answered(self, endpoint: Endpoint, request: EngineRequest) -> tuple[EngineRun, EngineOutput | None]:
        if self._is_closed:
            raise closing()
        run = await endpoint.begin(request)
        try:
            output = None
            while output is None and not run.is_final:
                output = await run.take()
            if output is None:
                await run.finish()  # raises: an end without any output is a failure, and has a status of its own
        except BaseException:
            run.end()
            raise
        endpoint.proved(run.heard_s)
        return run, output

    def _open(self, url: str) -> Endpoint:
        try:
            return Endpoint(url, self._options, self._settings, self._stopper)
        except (OSError, ValueError) as error:
            raise ServiceError(
                Reason.BACKEND_ERROR,
                "The TLS files for the inference server cannot be used.",
                detail=f"root_certificates, client_key, client_certificate: {error}",
            ) from None


def _max_running(read: list[Described | None]) -> int | None:
    """Return how many generations all servers run at once; None if none was read yet, or one does not say.

    A server that could not be read counts like the smallest of those that were: they serve the same model.
    """
    told = [described.max_running for described in read if described is not None]
    known = [number for number in told if number is not None]
    if not known or len(known) < len(told):
        return None
    return sum(known) + (len(read) - len(known)) * min(known)
