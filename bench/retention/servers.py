"""The processes of the retention section: services without a store and with one, and a Redis where there is one."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.processes import end, free_ports, service_of
from bench.retention.plan import MODELS

__all__ = ["NO_REDIS", "Server", "Servers", "running_servers"]

START_S: Final = 20.0
NO_REDIS: Final = "not measured: there is no redis-server here"


@dataclass(frozen=True, slots=True)
class Server:
    """A process and the address that it listens on."""

    pid: int
    target: str

    def cpu_s(self) -> float:
        """Return user + system seconds of all its threads so far, ended ones as well."""
        # clock_getcpuclockid(3), which Python does not have: to the nanosecond, where /proc tells ticks of 10 ms,
        # more than a second of one paced stream costs.
        return time.clock_gettime(~self.pid << 3 | 2)


@dataclass(frozen=True, slots=True)
class Servers:
    """`plain` and `twin` have no store. `owner` and `replica` share that of `redis`; None where there is none."""

    plain: Server
    twin: Server
    owner: Server | None
    replica: Server | None
    redis: Server | None

    @property
    def services(self) -> list[Server]:
        """All of them but the Redis."""
        return [one for one in (self.plain, self.twin, self.owner, self.replica) if one is not None]


@contextmanager
def running_servers() -> Iterator[Servers]:
    """Start everything on free ports of the loopback, and end it with the block."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        models = folder / "models.toml"
        models.write_text(MODELS)
        plain, twin = (_service(stack, models) for _ in range(2))
        program = shutil.which("redis-server") or shutil.which("valkey-server")
        if program is None:
            yield Servers(plain, twin, None, None, None)
            return
        redis = _redis(stack, program, folder)
        owner, replica = (_service(stack, models, f"redis://{redis.target}/0") for _ in range(2))
        yield Servers(plain, twin, owner, replica, redis)


def _service(stack: ExitStack, models: Path, store: str = "") -> Server:
    process, port = service_of(models, **({"HEADRACE_STORE": store} if store else {}))
    stack.callback(end, process)
    return _listening(process, port)


def _redis(stack: ExitStack, program: str, folder: Path) -> Server:
    (port,) = free_ports(1)
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    process = subprocess.Popen([*command, "--dir", str(folder)], stdout=subprocess.DEVNULL, start_new_session=True)
    stack.callback(end, process)
    return _listening(process, port)


def _listening(process: subprocess.Popen[bytes], port: int) -> Server:
    """Return when the process takes connections. SystemExit when it ends or the time is over."""
    give_up_s = time.monotonic() + START_S
    while time.monotonic() < give_up_s:
        if process.poll() is not None:
            raise SystemExit("bench: a process ended while it started; its log is above")
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return Server(process.pid, f"127.0.0.1:{port}")
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f"bench: not ready after {START_S:.0f} s")
