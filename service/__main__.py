"""`python -m service`: settings, logs, telemetry, models, server, and an end that loses nothing."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvloop

from runtime import logs, otel
from runtime.addresses import is_loopback
from runtime.garbage import leave_out_what_is_loaded
from runtime.settings import load
from service import __version__
from service.catalog.file import ModelDeclaration, ModelsFileError
from service.composition import (
    declared_models,
    open_authenticator,
    open_ledger,
    open_limiter,
    open_models,
    open_sharing,
    share_lines,
)
from service.config import ServiceSettings
from service.core.account import Accounts, NoAccounts
from service.core.errors import ServiceError
from service.generation.limits import Limits
from service.ledger import Ledger, LedgerAccounts, StoreError
from service.retention.policy import RetentionLimits
from service.rpc.generation import DeadlinePolicy
from service.rpc.server import RpcServer, ServerOptions, TlsFiles
from service.templates import TemplateError
from service.tenancy.authenticator import Authenticator
from service.tenancy.keys import KeysFileError
from service.tenancy.limits.file import LimitsFileError
from service.tenancy.limits.limiter import Limiter
from service.tokens import TokenizerError

logger = logging.getLogger("headrace.service")


def main() -> int:
    """Run until SIGTERM or SIGINT. Returns 0, or 1 if the server could not start."""
    settings = load(ServiceSettings, prog="service")
    logs.configure(settings.log_level, settings.log_format)
    try:
        declarations = declared_models(settings)
        authenticator = open_authenticator(settings)
        limiter = open_limiter(settings)
    except (ModelsFileError, KeysFileError, LimitsFileError) as error:
        sys.stderr.write("".join(f"service: {problem}\n" for problem in error.problems))
        return 2
    # About a tenth less CPU per token than asyncio's own loop (interleaved runs, 1 to 128 streams).
    return uvloop.run(_serve(settings, declarations, authenticator, limiter))


async def _serve(
    settings: ServiceSettings,
    declarations: list[ModelDeclaration],
    authenticator: Authenticator | None,
    limiter: Limiter | None,
) -> int:
    signals = _Signals()
    try:
        telemetry = otel.configure(
            "headrace-service",
            __version__,
            objectives=settings.objectives,
            keep_notable=settings.keep_notable_traces,
            metrics_host=settings.metrics_host,
            metrics_port=settings.metrics_port,
        )
    except otel.TelemetryError as error:
        logger.error("cannot start: %s", error)
        return 1
    opening = asyncio.create_task(open_models(declarations))
    asked_to_stop = asyncio.create_task(signals.first.wait())
    await asyncio.wait((opening, asked_to_stop), return_when=asyncio.FIRST_COMPLETED)
    asked_to_stop.cancel()
    try:
        if not opening.done():
            logger.info("stopped while the models were being opened")
            opening.cancel()
        registry = await opening
    except asyncio.CancelledError:
        await telemetry.shutdown()
        return 0
    except (ServiceError, TemplateError, TokenizerError) as error:
        logger.error("cannot start: %s", _told(error))
        await telemetry.shutdown()
        return 1
    ledger: Ledger | None = None
    try:
        if authenticator is not None:
            await authenticator.start()
        accounts: Accounts = NoAccounts()
        if limiter is not None:
            await limiter.start()
            share_lines(registry, limiter)
            accounts = limiter
        try:
            ledger = await open_ledger(settings)
        except StoreError as error:
            logger.error("cannot start: the usage ledger: %s", error)
            return 1
        if ledger is not None:
            accounts = LedgerAccounts(ledger, accounts)
        try:
            sharing = open_sharing(settings)
        except ValueError as error:
            logger.error("cannot start: --store: %s", error)
            return 1
        server = RpcServer(
            registry,
            _server_options(settings),
            _limits(settings),
            _deadlines(settings),
            accounts,
            retention=_retention(settings),
            authenticator=authenticator,
            sharing=sharing,
            objectives=settings.objectives,
        )
        if limiter is not None:
            server.monitor.hints.append(limiter.problem)
        leave_out_what_is_loaded()
        try:
            port = await server.start()
        except OSError as error:
            logger.error("cannot start: %s", error)
            return 1
        if server.admin_port is not None:
            logger.info("admin calls on %s:%d", settings.admin_host, server.admin_port)
        logger.info(
            "serving on %s:%d%s",
            settings.host,
            port,
            " with TLS" if settings.tls_cert_file else "",
            extra={"models": [model.id for model in registry], "version": __version__},
        )
        _warn_of_exposure(settings)
        await signals.first.wait()
        with signals.second_is(server.hurry):
            await server.stop(settings.shutdown_grace_s, delay_s=settings.drain_delay_s)
    finally:
        if ledger is not None:
            await ledger.close()
        if limiter is not None:
            await limiter.close()
        if authenticator is not None:
            await authenticator.close()
        for model in registry:
            await model.backend.close()
        await telemetry.shutdown()
    logger.info("stopped")
    return 0


def _warn_of_exposure(settings: ServiceSettings) -> None:
    if is_loopback(settings.host):
        return
    if not settings.checks_callers and settings.tls_client_ca_file is None:
        logger.warning("others can reach %s, and nobody checks who calls", settings.host)
    elif settings.tls_cert_file is None:
        logger.warning(
            "others can reach %s without TLS: keys and tokens can be read on the way there, unless what is in between "
            "encrypts",
            settings.host,
        )


def _told(error: Exception) -> str:
    """Return what the person who starts it has to know: here the inside is theirs."""
    if isinstance(error, ServiceError):
        return f"{error.message} {error.detail}" if error.detail else error.message
    return str(error)


class _Signals:
    """SIGTERM and SIGINT: the first asks for the end, every other one for the end at once.

    Where nothing else is said, in what cannot be cut short in order, another one
    kills the process as if it were not handled.
    """

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self._do: Callable[[], None] | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._on, number)

    @contextmanager
    def second_is(self, do: Callable[[], None]) -> Iterator[None]:
        """Have a second signal call `do` for the length of the block."""
        self._do = do
        try:
            yield
        finally:
            self._do = None

    def _on(self, number: signal.Signals) -> None:
        if not self.first.is_set():
            self.first.set()
        elif self._do is not None:
            self._do()
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def _server_options(settings: ServiceSettings) -> ServerOptions:
    tls = None
    if settings.tls_cert_file is not None and settings.tls_key_file is not None:
        tls = TlsFiles(
            certificate=settings.tls_cert_file, key=settings.tls_key_file, client_ca=settings.tls_client_ca_file
        )
    return ServerOptions(
        host=settings.host,
        port=settings.grpc_port,
        admin_host=settings.admin_host,
        admin_port=settings.admin_port,
        tls=tls,
        max_message_bytes=settings.max_message_bytes,
        health_interval_s=settings.health_interval_s,
        trust_inbound_trace=settings.trust_inbound_trace,
    )


def _limits(settings: ServiceSettings) -> Limits:
    return Limits(
        queue_s=settings.queue_timeout_s,
        batch_queue_s=settings.batch_queue_timeout_s,
        first_token_s=settings.first_token_timeout_s,
        token_gap_s=settings.token_gap_timeout_s,
        reader_s=settings.reader_timeout_s,
        room_s=settings.full_reader_timeout_s,
        unsent_events=settings.unsent_events,
        unsent_bytes=settings.unsent_bytes,
    )


def _retention(settings: ServiceSettings) -> RetentionLimits:
    return RetentionLimits(
        retain_s=settings.retention_s,
        events=settings.retained_events,
        event_bytes=settings.retained_bytes,
        ended_bytes=settings.retained_total_bytes,
        reattach_s=settings.reattach_s,
    )


def _deadlines(settings: ServiceSettings) -> DeadlinePolicy:
    return DeadlinePolicy(
        default_s=settings.default_deadline_s,
        maximum_s=settings.max_deadline_s,
        floor_s=settings.deadline_floor_s,
        margin_s=settings.deadline_margin_s,
    )


if __name__ == "__main__":
    sys.exit(main())
