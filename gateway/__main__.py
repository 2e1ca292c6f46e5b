"""`python -m gateway`: reads the settings, sets up logs and telemetry, serves."""

from __future__ import annotations

import logging
import os
import sys

# Reading tokens is most of the gateway's CPU, and gRPC's older poller hands a
# message over with one thread switch less: 30 to 40 % less CPU per token on a
# client (71 to 43 us on one stream, 42 to 29 us on 16, medians of three
# interleaved runs). gRPC reads this once, when it is first imported.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client")

from importlib.metadata import PackageNotFoundError, version
from typing import Final

import uvloop

from gateway.app import Gateway
from gateway.config import GatewaySettings
from gateway.exposure import serve_guarded
from gateway.server import GatewayServer
from runtime import logs, otel
from runtime.garbage import leave_out_what_is_loaded
from runtime.settings import load

__all__ = ["main"]

_PROG: Final = "python -m gateway"


def main() -> None:
    """Run the gateway until it is told to end."""
    settings = load(GatewaySettings, prog=_PROG)
    _check_files(settings)
    logs.configure(settings.log_level, settings.log_format)
    sys.exit(uvloop.run(_run(settings)))


def _check_files(settings: GatewaySettings) -> None:
    """Exit with 2 and a line for each file of the settings that cannot be read."""
    problems = []
    for name in ("tls_ca_file", "tls_cert_file", "tls_key_file"):
        path = getattr(settings, name)
        try:
            if path is not None:
                path.read_bytes()
        except OSError as error:
            variable = f"HEADRACE_GATEWAY_{name.upper()}"
            problems.append(f"{_PROG}: {variable} (--{name.replace('_', '-')}): {error.strerror}: '{path}'\n")
    if problems:
        sys.stderr.write("".join(problems))
        raise SystemExit(2)


async def _run(settings: GatewaySettings) -> int:
    try:
        telemetry = otel.configure(
            "headrace-gateway",
            _version(),
            objectives=settings.objectives,
            keep_notable=settings.keep_notable_traces,
            metrics_host=settings.metrics_host,
            metrics_port=settings.metrics_port,
        )
    except otel.TelemetryError as error:
        logging.getLogger("gateway").error("cannot start: %s", error)
        return 1
    try:
        server = GatewayServer(Gateway(settings, version=_version()))
        leave_out_what_is_loaded()
        return await serve_guarded(server, settings)
    finally:
        await telemetry.shutdown()


def _version() -> str:
    try:
        return version("headrace-server")
    except PackageNotFoundError:
        return "0"


if __name__ == "__main__":
    main()
