"""A real Prometheus over service and gateway, with the configuration and the rules of deploy/observability."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from tests.support.processes import Process, free_ports, process
from tests.support.promql import FOLDER

__all__ = ["Prometheus", "prometheus", "promtool"]

_START_S: Final = 15.0
# Every second, so that a test need not wait for longer.
_INTERVAL: Final = "1s"

Sample = tuple[Mapping[str, str], float]


@dataclass(frozen=True, slots=True)
class Prometheus:
    """One running server."""

    process: Process

    def get(self, path: str, **parameters: str) -> Any:
        """Return `data` of an answer of its HTTP API; fails with its words for an error."""
        query = f"?{urlencode(parameters)}" if parameters else ""
        try:
            with urlopen(f"http://127.0.0.1:{self.process.port}/api/v1/{path}{query}", timeout=10) as answer:
                return json.load(answer)["data"]
        except HTTPError as error:
            raise AssertionError(f"{path} {parameters}: {error} {error.read().decode()}") from None

    def ask(self, expr: str) -> list[Sample]:
        """Return what an expression gives now: labels and value of each series."""
        found = self.get("query", query=expr)
        if found["resultType"] == "scalar":
            return [({}, float(found["result"][1]))]
        return [(sample["metric"], float(sample["value"][1])) for sample in found["result"]]

    def number(self, expr: str) -> float | None:
        """Return the value of an expression that gives one series at most."""
        samples = self.ask(expr)
        assert len(samples) <= 1, samples
        return samples[0][1] if samples else None

    def until(self, check: Callable[[], bool], what: str, timeout_s: float = 15.0) -> None:
        """Wait until `check` holds."""
        give_up_s = time.monotonic() + timeout_s
        while not check():
            assert time.monotonic() < give_up_s, f"after {timeout_s} s still not: {what}"
            time.sleep(0.1)


def promtool(*arguments: str) -> str:
    """Run promtool in deploy/observability and return what it says; fails if it finds a fault."""
    command = [_program("promtool"), *arguments]
    done = subprocess.run(command, cwd=FOLDER, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=55)
    assert done.returncode == 0, done.stdout
    return done.stdout


@contextmanager
def prometheus(folder: Path, *, service: int, gateway: int) -> Iterator[Prometheus]:
    """Run it over the metrics ports of both until the end of the block; yields when it has read both once."""
    program = _program("prometheus")
    config = folder / "prometheus.yml"
    config.write_text(_configured(folder, service=service, gateway=gateway))
    (port,) = free_ports(1)
    command = [
        program,
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with process("prometheus", command, folder) as running:
        running.port = port
        server = Prometheus(running)
        server.until(lambda: _is_up(server), "both are read", _START_S)
        yield server
        assert running.end() == 0


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name}; install it (Debian: apt-get install prometheus)")
    return found


def _configured(folder: Path, *, service: int, gateway: int) -> str:
    """Return the configuration for these ports, and write its rules beside it: only ports and intervals are changed."""
    text = (FOLDER / "prometheus.yml").read_text()
    (folder / "rules").mkdir()
    for there, here in (("127.0.0.1:9464", f"127.0.0.1:{service}"), ("127.0.0.1:9465", f"127.0.0.1:{gateway}")):
        assert f'["{there}"]' in text
        text = text.replace(f'["{there}"]', f'["{here}"]')
    for name in re.findall(r"rules/\w+\.yml", text):
        rules = (FOLDER / name).read_text()
        (folder / name).write_text(re.sub(r"(?m)^    interval: \w+$", f"    interval: {_INTERVAL}", rules))
    assert len(list((folder / "rules").iterdir())) == 2
    text, count = re.subn(r"(?m)^  (scrape|evaluation)_interval: 15s$", rf"  \1_interval: {_INTERVAL}", text)
    assert count == 2
    # Prometheus refuses to wait for an answer longer than until the next question.
    return text.replace("global:\n", f"global:\n  scrape_timeout: {_INTERVAL}\n")


def _is_up(server: Prometheus) -> bool:
    assert server.process.is_running, server.process.output()
    try:
        return len(server.ask("up == 1")) == 2
    except (URLError, ConnectionError, AssertionError):
        return False  # it does not listen yet, or is not ready
