"""Settings from the environment and flags, one field each; all problems at once.

A process declares one subclass of `Settings` and calls `load`. Nothing else
reads the environment (the OpenTelemetry SDK reads its own OTEL_* variables).
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final, TypeVar

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

_FLAG: Final = re.compile(r"^--([a-z0-9-]+)")
# A letter or two of difference: other programs have variables that begin alike.
_LIKE: Final = 0.9


def load(cls: type[T], argv: Sequence[str] | None = None, *, prog: str) -> T:
    """Return the settings of this process.

    Prints every problem, one a line, and exits with 2 if there is one; prints
    the settings and exits with 0 for `--print-config`. A variable that looks like a
    misspelt setting is named, and no problem.
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
    sys.stderr.write("".join(f"{prog}: {line}\n" for line in _misspelt(cls)))
    if settings.print_config:
        sys.stdout.write(json.dumps(settings.model_dump(mode="json"), indent=2) + "\n")
        raise SystemExit(0)
    return settings


def _problems(cls: type[Settings], error: ValidationError) -> list[str]:
    prefix = cls.model_config.get("env_prefix") or ""
    lines = []
    for problem in error.errors(include_url=False):
        name = str(problem["loc"][0]) if problem["loc"] else ""
        if not name:
            # What does not fit together: each begins with the flag that it is about.
            told = problem["msg"].removeprefix("Value error, ").split("; ")
            lines += [_FLAG.sub(lambda flag: _named(prefix, flag[1].replace("-", "_")), line) for line in told]
            continue
        field = cls.model_fields.get(name)
        got = "" if field is not None and field.annotation is SecretStr else f", got {problem['input']!r}"
        lines.append(f"{_named(prefix, name)}: {problem['msg']}{got}")
    return lines


def _named(prefix: str, name: str) -> str:
    return f"{prefix}{name.upper()} (--{name.replace('_', '-')})"


def _misspelt(cls: type[Settings]) -> list[str]:
    """Return a line for each variable that is no setting of this process and looks like one."""
    prefix = cls.model_config.get("env_prefix") or ""
    known = {name.upper() for name in cls.model_fields}
    lines = []
    for variable in sorted(os.environ):
        name = variable.removeprefix(prefix)
        if name == variable or name in known:
            continue
        if likely := get_close_matches(name, known, n=1, cutoff=_LIKE):
            lines.append(f"{variable} is no setting; is {prefix}{likely[0]} meant?")
    return lines
