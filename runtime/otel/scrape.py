"""The port on which Prometheus reads the metrics of this process.

prometheus_client's own server waits for a slow client for ever; this is its WSGI
application behind a server whose every wait has an end. It runs in threads: reading
takes some milliseconds, and happens every ten seconds or so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import ThreadingWSGIServer, make_wsgi_app

__all__ = ["MetricsPort"]

_TIMEOUT_S: Final = 10.0
_MAX_CONNECTIONS: Final = 16


class _Handler(WSGIRequestHandler):
    timeout = _TIMEOUT_S  # of every read and write on the connection

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing: it is asked every few seconds."""


class _Server(ThreadingWSGIServer):
    daemon_threads = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._places = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        super().__init__(*arguments, **options)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that leave or never ask."""


class MetricsPort:
    """Serves /metrics from its making until `close`. `port` is the one in use. OSError if it cannot be had."""

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        self._server = make_server(host, port, _one_at_a_time(make_wsgi_app(registry)), _Server, _Handler)
        self.port: int = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.2,), name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening; what is being read may end."""
        self._server.shutdown()
        self._server.server_close()


def _one_at_a_time(app: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    lock = threading.Lock()

    def serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] not in {"/metrics", "/"}:
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [b"the metrics are at /metrics\n"]
        with lock:  # the exporter's collector is made for one reader
            return app(environ, start_response)

    return serve
