"""Log set-up: one line per record, JSON for machines, plain text for a terminal."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Literal

from pythonjsonlogger.json import JsonFormatter

__all__ = ["LogFormat", "configure"]

LogFormat = Literal["auto", "json", "text"]


class _TextFormatter(logging.Formatter):
    """Message first, then the record's own fields as key=value."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        extra = {k: v for k, v in record.__dict__.items() if k not in _STANDARD and v is not None}
        fields = " ".join(f"{key}={value}" for key, value in extra.items())
        return f"{line} {fields}" if fields else line


class _JsonFormatter(JsonFormatter):
    """One JSON object a line, with times that order the lines of two processes."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802, ARG002
        moment = datetime.fromtimestamp(record.created, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


_FIELDS = "{asctime}{levelname}{name}{message}"
_NAMES = {"asctime": "time", "levelname": "level", "name": "logger"}
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "color_message"}


def configure(level: str, log_format: LogFormat = "auto") -> None:
    """Send all records of `level` and above to stderr.

    `auto` is text on a terminal and JSON elsewhere. Fields are passed with
    `extra=`; they never hold prompts, outputs or credentials.
    """
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "text" or (log_format == "auto" and sys.stderr.isatty()):
        handler.setFormatter(
            _TextFormatter("%(asctime)s.%(msecs)03d %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S")
        )
    else:
        handler.setFormatter(_JsonFormatter(_FIELDS, style="{", rename_fields=_NAMES, reserved_attrs=sorted(_STANDARD)))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # uvicorn tells its life step by step; the gateway's own lines say what matters.
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLogger().level))
