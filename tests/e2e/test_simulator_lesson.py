"""The learner's lesson: a longer queue moves the time to first token and leaves the gap between tokens alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import ROOT, clean_environment, service

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(90)]

TOKEN_MS = 20
QUEUE_MS = 300


def measured(folder: Path, **settings: object) -> dict[str, Any]:
    """Return what `headrace ttft --json` says of the short prompt on a simulator with `settings`."""
    with service(folder, backend="simulator", simulator_token_ms=TOKEN_MS, **settings) as running:
        command = [str(Path(sys.executable).with_name("headrace")), "ttft", "--json", "--runs=3", "--max-tokens=8"]
        done = subprocess.run(
            [*command, "--short=8", "--long=20", f"--target=127.0.0.1:{running.port}"],
            cwd=ROOT,
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    (case,) = [case for case in report["cases"] if case["case"] == "short"]
    assert case["output_tokens"] == 8
    return dict(case)


def test_a_queue_moves_the_first_token_and_not_the_gaps(tmp_path: Path) -> None:
    without, queued = measured(tmp_path), measured(tmp_path, simulator_queue_ms=QUEUE_MS)
    moved_s = queued["ttft_s"]["p50"] - without["ttft_s"]["p50"]
    assert 0.9 * QUEUE_MS / 1000 < moved_s < 1.5 * QUEUE_MS / 1000
    assert queued["ttft_s"]["p50"] > 4 * without["ttft_s"]["p50"]
    ratio = queued["inter_token_gap_s"]["p50"] / without["inter_token_gap_s"]["p50"]
    assert 0.6 < ratio < 1.6
    assert without["inter_token_gap_s"]["p50"] * 1000 == pytest.approx(TOKEN_MS, rel=0.5)
    # The service tells the two apart as well: it waited, it did not compute.
    assert queued["server_queue_s"]["p50"] >= 0.95 * QUEUE_MS / 1000
    assert queued["server_prefill_s"]["p50"] < 0.5 * QUEUE_MS / 1000
