"""The models file: TOML to declarations, every problem at once and with its line."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from service.admission.limits import DEFAULT_BATCH_TURN, DEFAULT_WAITING, reserved_problem
from service.backends.llamacpp.options import LlamaCppOptions
from service.backends.simulator import SimulatorOptions
from service.backends.triton.options import TritonOptions
from service.catalog.lines import line_of
from service.core.validate import MAX_STOP_BYTES
from service.templates import BUILTIN_NAMES

__all__ = [
    "BackendOptions",
    "ModelDeclaration",
    "ModelsFileError",
    "ReasoningParserName",
    "SamplingDefaults",
    "ToolParserName",
    "parse_models",
]

BackendOptions: TypeAlias = LlamaCppOptions | TritonOptions | SimulatorOptions
ToolParserName = Literal["auto", "none", "hermes", "llama3_json", "mistral", "json"]
ReasoningParserName = Literal["auto", "none", "think"]

# What `template` may be besides a built-in's name and a path.
WORDS_FOR_TEMPLATES: Final = ("auto", "model", "none")

_STRICT: Final = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
_OPTIONS: Final[Mapping[str, type[BackendOptions]]] = {
    "llamacpp": LlamaCppOptions,
    "triton": TritonOptions,
    "simulator": SimulatorOptions,
}


def _short(text: str) -> str:
    if len(text.encode()) > MAX_STOP_BYTES:
        raise ValueError(f"must be at most {MAX_STOP_BYTES} bytes")
    return text


class ModelsFileError(Exception):
    """The file cannot be used; `problems` has one line of text each, with its place."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class SamplingDefaults(BaseModel):
    """Values for sampling fields that a request leaves unset."""

    model_config = _STRICT

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None


class ModelDeclaration(BaseModel):
    """One `[[models]]` table."""

    model_config = _STRICT

    id: Annotated[str, Field(min_length=1, max_length=256)]
    aliases: tuple[Annotated[str, Field(min_length=1, max_length=256)], ...] = ()
    owned_by: str = "headrace"
    backend: Literal["llamacpp", "triton", "simulator"]
    # "auto" (the model file's own, else qa), "model", a built-in's name, a path, or "none".
    template: str = "auto"
    # How tool calls and reasoning stand in the model's answers; "auto" reads it off the template.
    tool_parser: ToolParserName = "auto"
    reasoning_parser: ReasoningParserName = "auto"
    stop: tuple[Annotated[str, Field(min_length=1), AfterValidator(_short)], ...] = ()
    # Path to a Hugging Face tokenizer.json, for a backend that reports no counts.
    tokenizer: Path | None = None
    max_context_tokens: Annotated[int, Field(ge=16)] | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] = 4096
    default_max_output_tokens: Annotated[int, Field(ge=1)] = 512
    max_choices: Annotated[int, Field(ge=1, le=128)] = 8
    # Slots: choices that run at once; unset takes the engine's own number.
    max_running: Annotated[int, Field(ge=1)] | None = None
    # Requests that may wait for one, of each class.
    max_waiting: Annotated[int, Field(ge=0)] = DEFAULT_WAITING
    max_waiting_batch: Annotated[int, Field(ge=0)] = DEFAULT_WAITING
    # Slots that batch leaves free; unset takes an eighth of them, at least 1 of 4 or more.
    reserved_slots: Annotated[int, Field(ge=0)] | None = None
    # Of so many slots that are granted while batch waits, one is batch's.
    batch_turn: Annotated[int, Field(ge=2)] = DEFAULT_BATCH_TURN
    # Refuse at once what cannot have a token before its deadline.
    refuse_hopeless_deadlines: bool = True
    sampling: SamplingDefaults = SamplingDefaults()
    options: dict[str, Any] = {}

    def backend_options(self) -> BackendOptions:
        """Return the backend's own options. Raises pydantic's ValidationError."""
        options: BackendOptions = TypeAdapter(_OPTIONS[self.backend]).validate_python(self.options)
        return options


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    models: Annotated[list[dict[str, Any]], Field(min_length=1)]


def parse_models(text: str, name: str) -> list[ModelDeclaration]:
    """Return the declarations in `text`, a TOML document; `name` is shown in problems.

    Raises `ModelsFileError` with every problem as `name:line: where: what`.
    """
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ModelsFileError([f"{name}: not TOML: {error}"]) from None
    problems: list[tuple[int, str]] = []
    try:
        tables = _File.model_validate(document).models
    except ValidationError as error:
        raise ModelsFileError([line for _, line in _located(text, name, (), error)]) from None
    declarations: list[ModelDeclaration] = []
    for number, table in enumerate(tables):
        where = ("models", number)
        try:
            declaration = ModelDeclaration.model_validate(table)
        except ValidationError as error:
            problems += _located(text, name, where, error)
        else:
            declarations.append(declaration)
        problems += _options_problems(text, name, where, table)
        problems += _file_problems(text, name, where, table)
        problems += _slots_problems(text, name, where, table)
    problems += _duplicates(text, name, tables)
    if problems:
        raise ModelsFileError([line for _, line in sorted(problems)])
    return declarations


def _options_problems(
    text: str, name: str, where: tuple[str | int, ...], table: dict[str, Any]
) -> list[tuple[int, str]]:
    """Return the problems of the backend's own options, also where the table around them is wrong already."""
    kind, options = _OPTIONS.get(str(table.get("backend"))), table.get("options", {})
    if kind is None or not isinstance(options, dict):
        return []
    known = {field.name for field in dataclasses.fields(kind)}
    found = [
        _problem(text, name, (*where, "options", key), "there is no such option") for key in options.keys() - known
    ]
    try:
        TypeAdapter(kind).validate_python({key: value for key, value in options.items() if key in known})
    except ValidationError as error:
        found += _located(text, name, (*where, "options"), error)
    return found


def _file_problems(text: str, name: str, where: tuple[str | int, ...], table: dict[str, Any]) -> list[tuple[int, str]]:
    """Return which files that the table names are not there."""
    found = []
    template, tokenizer = table.get("template"), table.get("tokenizer")
    known = (*WORDS_FOR_TEMPLATES, *BUILTIN_NAMES)
    if isinstance(template, str) and template not in known and not Path(template).is_file():
        what = f"must be {', '.join(known)}, or the path of a file, got {template!r}"
        found.append(_problem(text, name, (*where, "template"), what))
    if isinstance(tokenizer, str) and not Path(tokenizer).is_file():
        found.append(_problem(text, name, (*where, "tokenizer"), f"no such file: {tokenizer}"))
    return found


def _slots_problems(text: str, name: str, where: tuple[str | int, ...], table: dict[str, Any]) -> list[tuple[int, str]]:
    """Return whether more slots are reserved than there are, as far as the table tells how many there are."""
    reserved, running, options = table.get("reserved_slots"), table.get("max_running"), table.get("options", {})
    if running is None and table.get("backend") == "llamacpp" and isinstance(options, dict):
        running = options.get("slots", LlamaCppOptions().slots)
    if not isinstance(reserved, int) or not isinstance(running, int) or running < 1:
        return []
    problem = reserved_problem(reserved, running)
    return [_problem(text, name, (*where, "reserved_slots"), problem)] if problem else []


def _located(text: str, name: str, base: tuple[str | int, ...], error: ValidationError) -> list[tuple[int, str]]:
    return [
        _problem(text, name, (*base, *problem["loc"]), problem["msg"]) for problem in error.errors(include_url=False)
    ]


def _problem(text: str, name: str, path: tuple[str | int, ...], what: str) -> tuple[int, str]:
    line = line_of(text, path)
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
    return line, f"{name}:{line}: {where}: {what}"


def _duplicates(text: str, name: str, tables: list[dict[str, Any]]) -> list[tuple[int, str]]:
    seen: dict[str, int] = {}
    found = []
    for number, table in enumerate(tables):
        aliases = table.get("aliases", ())
        for key, value in [("id", table.get("id")), *(("aliases", a) for a in aliases if isinstance(aliases, list))]:
            if not isinstance(value, str):
                continue
            if value in seen:
                line = line_of(text, ("models", number, key))
                found.append(
                    (line, f"{name}:{line}: models[{number}].{key}: {value!r} is taken by models[{seen[value]}]")
                )
            else:
                seen[value] = number
    return found
