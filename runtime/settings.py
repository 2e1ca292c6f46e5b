"""Settings from the environment and flags, one field each; all problems at once.

A process declares one subclass of `Settings` and calls `load`. Nothing else
reads the environment (the OpenTelemetry SDK reads its own OTEL_* variables).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TypeVar

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

__all__ = ["Settings", "load"]


class Settings(BaseSettings):
    """Base of a process's settings.

    A field `grpc_port` is the variable `<prefix>GRPC_PORT` and the flag
    `--grpc-port`; a flag wins over the variable.
    """

    model_config = SettingsConfigDict(
        env_prefix="HEADRACE_",
        frozen=True,
        extra="ignore",
        env_ignore_empty=True,
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
    )

    print_config: bool = Field(
        default=False, description="Print the settings in effect as JSON, secrets masked, and end."
    )


T = TypeVar("T", bound=Settings)


def load(cls: type[T], argv: Sequence[str] | None = None, *, prog: str) -> T:
    """Return the settings of this process.

    Prints every problem, one a line, and exits with 2 if there is one; prints
    the settings and exits with 0 for `--print-config`.
    """
    try:
        # The keyword arguments are pydantic-settings' own and not fields.
        settings = cls(_cli_parse_args=list(sys.argv[1:] if argv is None else argv), _cli_prog_name=prog)  # type: ignore[call-arg]
    except ValidationError as error:
        sys.stderr.write("".join(f"{prog}: {line}\n" for line in _problems(cls, error)))
        raise SystemExit(2) from None
    except SettingsError as error:
        sys.stderr.write(f"{prog}: {error}\n")
        raise SystemExit(2) from None
    if settings.print_config:
        sys.stdout.write(json.dumps(settings.model_dump(mode="json"), indent=2) + "\n")
        raise SystemExit(0)
    return settings


def _problems(cls: type[Settings], error: ValidationError) -> list[str]:
    prefix = cls.model_config.get("env_prefix") or ""
    lines = []
    for problem in error.errors(include_url=False):
        name = str(problem["loc"][0]) if problem["loc"] else ""
        where = f"{prefix}{name.upper()} (--{name.replace('_', '-')})" if name else "settings"
        field = cls.model_fields.get(name)
        is_secret = field is not None and field.annotation is SecretStr
        got = "" if is_secret or not name else f", got {problem['input']!r}"
        lines.append(f"{where}: {problem['msg']}{got}")
    return lines
