"""`python -m gateway`: reads the settings, sets up logs and telemetry, serves."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import uvloop

from gateway.app import Gateway
from gateway.config import GatewaySettings
from gateway.server import GatewayServer
from runtime import logs, otel
from runtime.settings import load

__all__ = ["main"]


def main() -> None:
    """Run the gateway until it is told to end."""
    settings = load(GatewaySettings, prog="python -m gateway")
    logs.configure(settings.log_level, settings.log_format)
    uvloop.run(_run(settings))


async def _run(settings: GatewaySettings) -> None:
    telemetry = otel.configure("headrace-gateway", _version())
    try:
        await GatewayServer(Gateway(settings, version=_version())).serve()
    finally:
        await telemetry.shutdown()


def _version() -> str:
    try:
        return version("headrace-server")
    except PackageNotFoundError:
        return "0"


if __name__ == "__main__":
    main()
