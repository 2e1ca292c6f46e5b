"""Builds what is served from the settings: declarations to backends to models.

Part of the composition root: the one place that knows every backend.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.admission.limits import AdmissionLimits, default_reserved, reserved_problem
from service.admission.slots import Slots
from service.backends.base import Backend, BackendInfo, Feature, Health
from service.backends.llamacpp.backend import LlamaCppBackend
from service.backends.llamacpp.options import LlamaCppOptions
from service.backends.simulator import SimulatorBackend, SimulatorOptions
from service.backends.triton.options import TritonOptions
from service.catalog.declared_tokenizer import DeclaredTokenizer
from service.catalog.file import BackendOptions, ModelDeclaration, ModelsFileError, SamplingDefaults, parse_models
from service.catalog.model import Model
from service.catalog.registry import Registry
from service.config import ServiceSettings
from service.core.errors import Reason, ServiceError
from service.core.request import Sampling
from service.ledger import Ledger, open_store, parse_address
from service.parsing import ReasoningFormat, ToolFormat, reasoning_format_of, tool_format_of
from service.telemetry.instruments import record_engine_stop, record_ledger_lost, watch_model, watch_slots
from service.telemetry.limits import record_limited, record_shared
from service.templates import ChatTemplate, TemplateError, load_template
from service.tenancy.authenticator import Authenticator
from service.tenancy.key_file import KeyFile
from service.tenancy.keys import KeysFileError
from service.tenancy.limits.file import LimitsFile, LimitsFileError
from service.tenancy.limits.limiter import Limiter
from service.tenancy.limits.redis_line import RedisLine, RedisMissingError
from service.tenancy.limits.store import LimitStore
from service.tokens import DecoderError, JsonTokenizer, TokenCodec

if TYPE_CHECKING:  # needs an optional package
    from service.sharing.sharing import Sharing

__all__ = [
    "declared_models",
    "open_authenticator",
    "open_ledger",
    "open_limiter",
    "open_models",
    "open_sharing",
    "share_lines",
]

logger = logging.getLogger("headrace.service")

# Used where neither the declaration nor the engine says how much it can run at once.
DEFAULT_RUNNING = 16
# A Redis on the same network needs a hundredth of it; who waits longer waits more for its limits than for a token.
_LIMITS_TIMEOUT_S = 0.25


def declared_models(settings: ServiceSettings) -> list[ModelDeclaration]:
    """Return the declarations of the models file, or the single model of the settings.

    Raises `ModelsFileError`.
    """
    if settings.models_file is not None:
        name = str(settings.models_file)
        try:
            text = settings.models_file.read_text("utf-8")
        except (OSError, ValueError) as error:
            raise ModelsFileError([f"{name}: cannot be read: {error}"]) from None
        return parse_models(text, name)
    return [_single_model(settings)]


def open_authenticator(settings: ServiceSettings) -> Authenticator | None:
    """Return what tells who calls; None where the settings ask for nothing. Raises `KeysFileError`."""
    if not settings.checks_callers:
        return None
    key_file = None if settings.keys_file is None else KeyFile(settings.keys_file)
    if settings.jwt_issuer is None:
        return Authenticator(key_file)
    try:
        from service.tenancy.tokens import TokenChecker, TokenRules, open_issuer_keys
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in {"jwt", "cryptography"}:
            raise
        raise KeysFileError(["tokens (--jwt-issuer) need: pip install 'headrace-server[auth]'"]) from None
    assert settings.jwt_audience is not None
    rules = TokenRules(
        issuer=settings.jwt_issuer,
        audience=settings.jwt_audience,
        algorithms=settings.jwt_algorithm_names,
        tenant_claim=settings.jwt_tenant_claim,
        models_claim=settings.jwt_models_claim,
        leeway_s=settings.jwt_leeway_s,
    )
    keys = open_issuer_keys(settings.jwt_issuer, settings.jwt_jwks, refresh_s=settings.jwt_refresh_s)
    return Authenticator(key_file, TokenChecker(rules, keys))


async def open_ledger(settings: ServiceSettings) -> Ledger | None:
    """Return the usage ledger, ready; None where the settings ask for none. Raises `service.ledger.StoreError`."""
    if settings.ledger is None:
        return None
    ledger = Ledger(open_store(parse_address(settings.ledger)), on_lost=record_ledger_lost)
    await ledger.start()
    return ledger


def open_limiter(settings: ServiceSettings) -> Limiter | None:
    """Return what holds tenants to the limits file; None where there is none. Raises `LimitsFileError`."""
    if settings.limits_file is None:
        return None
    store = LimitStore()
    url = settings.limits_store.get_secret_value() or settings.store.get_secret_value()
    if url:
        try:
            store = LimitStore(RedisLine(url, timeout_s=_LIMITS_TIMEOUT_S), on_change=record_shared)
        except (RedisMissingError, ValueError) as error:
            raise LimitsFileError([f"--limits-store: {error}"]) from None
    return Limiter(LimitsFile(settings.limits_file), store, prefix=settings.store_prefix, on_refusal=record_limited)


def open_sharing(settings: ServiceSettings) -> Sharing | None:
    """Return what replicas share; None where this one is alone. ValueError for an address that is none."""
    url = settings.store.get_secret_value()
    if not url:
        return None
    try:
        from service.sharing.sharing import Sharing
        from service.sharing.store import SharedStore
    except ModuleNotFoundError:
        raise ValueError("the package redis is not installed: pip install 'headrace-server[redis]'") from None
    return Sharing(SharedStore(url, prefix=settings.store_prefix), settings.max_deadline_s)


def share_lines(registry: Registry, limiter: Limiter) -> None:
    """Hold tenants to their shares of the models' lines. Tells the log of rules for models that nobody serves."""
    for model in registry:
        model.slots.share_of = partial(limiter.queue_share, model=model.id)
    if unknown := limiter.models - {model.id for model in registry}:
        logger.warning("the limits file names models that are not served here: %s", ", ".join(sorted(unknown)))


def _single_model(settings: ServiceSettings) -> ModelDeclaration:
    options: dict[str, Any]
    sampling, running = SamplingDefaults(), settings.max_running
    match settings.backend:
        case "llamacpp":
            is_sample = settings.model_path is None
            options = {
                "model_path": settings.model_path,
                "context_tokens": settings.context_tokens,
                "slots": settings.slots,
                "threads": settings.threads,
                "gpu_layers": settings.gpu_layers,
                "grammars": settings.grammars,
            }
            name = "gemma-3-270m" if settings.model_path is None else settings.model_path.stem
            if is_sample:
                # A base model of this size answers simple questions when it takes the likeliest token.
                sampling = SamplingDefaults(temperature=0.0)
        case "triton":
            options = {
                "url": settings.triton_url,
                "model": settings.triton_model,
                "contract": settings.triton_contract,
                "engine_model": settings.triton_engine_model,
                "max_context_tokens": settings.triton_max_context_tokens,
            }
            name = settings.triton_model
        case "simulator":
            options = {
                "queue_ms": settings.simulator_queue_ms,
                "prefill_ms": settings.simulator_prefill_ms,
                "token_ms": settings.simulator_token_ms,
            }
            name, running = "simulator", running or settings.simulator_max_running
    return ModelDeclaration(
        id=name,
        aliases=("default",),
        backend=settings.backend,
        template=settings.template,
        tool_parser=settings.tool_parser,
        reasoning_parser=settings.reasoning_parser,
        tokenizer=settings.tokenizer,
        max_running=running,
        max_waiting=settings.max_waiting,
        max_waiting_batch=settings.max_waiting_batch,
        reserved_slots=settings.reserved_slots,
        batch_turn=settings.batch_turn,
        refuse_hopeless_deadlines=settings.refuse_hopeless_deadlines,
        sampling=sampling,
        options=options,
    )


async def open_models(declarations: Sequence[ModelDeclaration]) -> Registry:
    """Start every backend, all at once, and return the models.

    Raises `ServiceError` (an engine that cannot work), `TemplateError` or
    `TokenizerError`, and closes the backends then; so does cancelling it.
    """
    tokenizers: dict[tuple[Path, str], JsonTokenizer] = {}
    opened: list[tuple[ModelDeclaration, Backend, JsonTokenizer | None]] = []
    try:
        for declaration in declarations:
            options = declaration.backend_options()
            tokenizer = _tokenizer(declaration, tokenizers)
            opened.append((declaration, _backend(declaration.id, options, tokenizer), tokenizer))
        async with asyncio.TaskGroup() as starting:
            for _, backend, _ in opened:
                starting.create_task(backend.start())
        return Registry([_model(*parts) for parts in opened])
    except BaseException as error:
        for _, backend, _ in opened:
            await backend.close()
        if isinstance(error, BaseExceptionGroup):
            raise error.exceptions[0] from None
        raise


def _tokenizer(declaration: ModelDeclaration, loaded: dict[tuple[Path, str], JsonTokenizer]) -> JsonTokenizer | None:
    """Return the declared tokenizer; models with the same file share one, which may take 250 MB."""
    if declaration.tokenizer is None:
        return None
    key = (declaration.tokenizer.resolve(), declaration.backend)
    if key not in loaded:
        loaded[key] = _load_tokenizer(declaration.tokenizer, declaration)
    return loaded[key]


def _load_tokenizer(path: Path, declaration: ModelDeclaration) -> JsonTokenizer:
    """Return one that gives exact bytes where Triton may need them, else one that counts."""
    if declaration.backend == "triton":
        try:
            return TokenCodec(path)
        except DecoderError as error:
            logger.warning("model %r: %s; it only counts tokens", declaration.id, error)
    return JsonTokenizer(path)


def _backend(model_id: str, options: BackendOptions, tokenizer: JsonTokenizer | None) -> Backend:
    match options:
        case LlamaCppOptions():
            return LlamaCppBackend(options, on_stop=partial(record_engine_stop, model_id))
        case TritonOptions():
            # Its client brings numpy: a third of the time in which a service without it starts.
            from service.backends.triton.backend import TritonBackend

            return TritonBackend(
                options,
                tokenizer=tokenizer if isinstance(tokenizer, TokenCodec) else None,
                on_stop=partial(record_engine_stop, model_id),
            )
        case SimulatorOptions():
            return SimulatorBackend(options, on_stop=partial(record_engine_stop, model_id))


def _template(declaration: ModelDeclaration, info: BackendInfo) -> ChatTemplate | None:
    source = declaration.template
    if source == "none":
        return None
    if source == "auto":
        # A model without a template is a base model, which continues questions and answers.
        source = "qa" if info.chat_template is None else "model"
    try:
        return load_template(source, info)
    except TemplateError as error:
        raise TemplateError(f"model {declaration.id!r}: {error}") from None


def _tool_format(name: str, template: ChatTemplate | None) -> ToolFormat | None:
    if name == "none" or template is None:
        return None
    return tool_format_of(template.source) if name == "auto" else ToolFormat(name)


def _reasoning_format(name: str, template: ChatTemplate | None) -> ReasoningFormat | None:
    if name == "none" or template is None:
        return None
    return reasoning_format_of(template.source) if name == "auto" else ReasoningFormat(name)


def _slots(declaration: ModelDeclaration, info: BackendInfo) -> Slots:
    """Return the model's slots, watched by the gauges. Raises INVALID_FIELD if more are reserved than there are."""
    told, reserved = declaration.max_running or info.max_running, declaration.reserved_slots
    running = told or DEFAULT_RUNNING
    if reserved is not None and (problem := reserved_problem(reserved, running)):
        message = f"model {declaration.id!r}: reserved_slots {problem}; max_running sets how many there are."
        if told or declaration.backend != "triton":  # a Triton that is not there yet tells later
            raise ServiceError(Reason.INVALID_FIELD, message)
        logger.warning("%s", message)
    slots = Slots(_limits(declaration, running))
    watch_slots(declaration.id, slots)
    return slots


def _limits(declaration: ModelDeclaration, running: int) -> AdmissionLimits:
    """Return the bounds of a model whose engine runs so many at once; no more are reserved than leave batch one."""
    reserved = declaration.reserved_slots
    return AdmissionLimits(
        running=running,
        reserved=default_reserved(running) if reserved is None else min(reserved, running - 1),
        waiting=declaration.max_waiting,
        waiting_batch=declaration.max_waiting_batch,
        batch_turn=declaration.batch_turn,
        refuses_hopeless=declaration.refuse_hopeless_deadlines,
    )


def _model(declaration: ModelDeclaration, backend: Backend, tokenizer: JsonTokenizer | None) -> Model:
    info = backend.info
    sampling = declaration.sampling.model_dump(exclude_none=True)
    missing = [name for name in sampling if Feature(f"sampling.{name}") not in info.features]
    if missing:
        logger.warning(
            "model %r: its engine does not take the defaults sampling.%s: requests that do not set them are refused",
            declaration.id,
            ", sampling.".join(missing),
        )
    template = _template(declaration, info)
    context = declaration.max_context_tokens or info.max_context_tokens
    most = declaration.max_output_tokens if context is None else min(declaration.max_output_tokens, context)
    model = Model(
        id=declaration.id,
        backend=backend,
        slots=_slots(declaration, info),
        limits_for=None if declaration.max_running else partial(_limits, declaration),
        aliases=declaration.aliases,
        owned_by=declaration.owned_by,
        created_at_s=time.time(),
        template=template,
        tool_format=_tool_format(declaration.tool_parser, template),
        reasoning_format=_reasoning_format(declaration.reasoning_parser, template),
        tokenizer=tokenizer,
        declared_tokenizer=None if tokenizer is None else DeclaredTokenizer(tokenizer),
        stop_sequences=declaration.stop,
        max_context_tokens=context,
        max_output_tokens=most,
        default_max_output_tokens=min(declaration.default_max_output_tokens, most),
        max_choices=declaration.max_choices,
        default_sampling=Sampling(**declaration.sampling.model_dump(exclude_none=True)),
        health=Health.LOADING,
    )
    watch_model(model)
    return model
