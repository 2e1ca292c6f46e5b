"""`python -m service`: settings, logs, telemetry, models, server, and an end that loses nothing."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable

import uvloop

from runtime import logs, otel
from runtime.settings import load
from service import __version__
from service.catalog.file import ModelDeclaration, ModelsFileError
from service.composition import declared_models, open_models
from service.config import ServiceSettings
from service.core.errors import ServiceError
from service.generation.watch import Limits
from service.rpc.generation import DeadlinePolicy
from service.rpc.server import RpcServer, ServerOptions, TlsFiles
from service.templates import TemplateError
from service.tokens import TokenizerError

logger = logging.getLogger("headrace.service")


def main() -> int:
    """Run until SIGTERM or SIGINT. Returns 0, or 1 if the server could not start."""
    settings = load(ServiceSettings, prog="service")
    logs.configure(settings.log_level, settings.log_format)
    try:
        declarations = declared_models(settings)
    except ModelsFileError as error:
        sys.stderr.write("".join(f"service: {problem}\n" for problem in error.problems))
        return 2
    # About a tenth less CPU per token than asyncio's own loop (interleaved runs, 1 to 128 streams).
    return uvloop.run(_serve(settings, declarations))


async def _serve(settings: ServiceSettings, declarations: list[ModelDeclaration]) -> int:
    stop = _on_signals()
    telemetry = otel.configure("headrace-service", __version__)
    opening = asyncio.create_task(open_models(declarations))
    asked_to_stop = asyncio.create_task(stop.wait())
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
    try:
        server = RpcServer(registry, _server_options(settings), _limits(settings), _deadlines(settings))
        try:
            port = await server.start()
        except OSError as error:
            logger.error("cannot start: %s", error)
            return 1
        logger.info(
            "serving on %s:%d%s",
            settings.host,
            port,
            " with TLS" if settings.tls_cert_file else "",
            extra={"models": [model.id for model in registry], "version": __version__},
        )
        await stop.wait()
        # A second signal ends what still runs at once.
        _on_signals(server.drain.hurry)
        logger.info("draining", extra={"running": server.drain.running, "grace_s": settings.shutdown_grace_s})
        await server.stop(settings.shutdown_grace_s)
    finally:
        for model in registry:
            await model.backend.close()
        await telemetry.shutdown()
    logger.info("stopped")
    return 0


def _told(error: Exception) -> str:
    """Return what the person who starts it has to know: here the inside is theirs."""
    if isinstance(error, ServiceError):
        return f"{error.message} {error.detail}" if error.detail else error.message
    return str(error)


def _on_signals(do: Callable[[], None] | None = None) -> asyncio.Event:
    """Handle SIGTERM and SIGINT with `do`, or by setting the event that is returned."""
    event = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, do or event.set)
    return event


def _server_options(settings: ServiceSettings) -> ServerOptions:
    tls = None
    if settings.tls_cert_file is not None and settings.tls_key_file is not None:
        tls = TlsFiles(
            certificate=settings.tls_cert_file, key=settings.tls_key_file, client_ca=settings.tls_client_ca_file
        )
    return ServerOptions(
        host=settings.host,
        port=settings.grpc_port,
        tls=tls,
        max_message_bytes=settings.max_message_bytes,
        health_interval_s=settings.health_interval_s,
    )


def _limits(settings: ServiceSettings) -> Limits:
    return Limits(
        first_token_s=settings.first_token_timeout_s,
        token_gap_s=settings.token_gap_timeout_s,
        reader_s=settings.reader_timeout_s,
    )


def _deadlines(settings: ServiceSettings) -> DeadlinePolicy:
    return DeadlinePolicy(
        default_s=settings.default_deadline_s,
        maximum_s=settings.max_deadline_s,
        floor_s=settings.deadline_floor_s,
    )


if __name__ == "__main__":
    sys.exit(main())
