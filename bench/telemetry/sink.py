"""A collector that takes everything and keeps nothing: `python -m bench.telemetry.sink`; prints its port."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

__all__ = ["main"]


class _Anything(grpc.GenericRpcHandler):
    def service(self, handler_call_details: Any) -> Any:  # noqa: ARG002 - of the base class
        # An empty message is a full success of every OTLP service.
        return grpc.unary_unary_rpc_method_handler(lambda _request, _context: b"")


def main() -> None:
    """Serve until killed, or until standard input ends."""
    server = grpc.server(ThreadPoolExecutor(2), handlers=[_Anything()])
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    sys.stdin.read()
    server.stop(0)


if __name__ == "__main__":
    main()
