"""Log set-up: one line per record, JSON for machines, plain text for a terminal."""

from __future__ import annotations

import logging
import sys
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


_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "color_message"}


def configure(level: str, log_format: LogFormat = "auto") -> None:
    """Send all records of `level` and above to stderr.

    `auto` is text on a terminal and JSON elsewhere. Fields are passed with
    `extra=`; they never hold prompts, outputs or credentials.
    """
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "text" or (log_format == "auto" and sys.stderr.isatty()):
        handler.setFormatter(_TextFormatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S"))
    else:
        handler.setFormatter(
            JsonFormatter(
                "{asctime}{levelname}{name}{message}",
                style="{",
                rename_fields={"asctime": "time", "levelname": "level", "name": "logger"},
                datefmt="%Y-%m-%dT%H:%M:%S%z",
            )
        )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
