"""What docs/openai.md says of parameters and errors is what the gateway does, in both directions.

A table's first column holds names in backticks; one with a column `where` is about those endpoints alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, get_args

import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gateway.openai import outcomes, parameters
from gateway.openai.chat import ChatRequest
from gateway.openai.completions import CompletionRequest
from gateway.openai.responses import parameters as responses_parameters
from gateway.openai.responses.request import ResponseRequest
from gateway.openai.tokenize import DetokenizeRequest, TokenizeRequest
from service.core.errors import Reason
from service.rpc.status import STATUS_BY_REASON

DOCS: Final = Path(__file__).parents[2] / "docs"
PAGE: Final = (DOCS / "openai.md").read_text()
GENERATIONS: Final[dict[str, type[BaseModel]]] = {
    "chat": ChatRequest,
    "completions": CompletionRequest,
    "responses": ResponseRequest,
}
OWN_TABLES: Final = {"chat": "Chat completions", "completions": "Completions", "responses": "Responses"}
HINTS: Final = "Accepted without effect"
REFUSED: Final = "Refused by name"
TOKEN_REQUESTS: Final[dict[str, type[BaseModel]]] = {"tokenize": TokenizeRequest, "detokenize": DetokenizeRequest}
SDK_PARAMETERS: Final[dict[str, Any]] = {
    "chat": (chat_create_params.CompletionCreateParamsNonStreaming, chat_create_params.CompletionCreateParamsStreaming),
    "completions": (
        completion_create_params.CompletionCreateParamsNonStreaming,
        completion_create_params.CompletionCreateParamsStreaming,
    ),
    "responses": (
        response_create_params.ResponseCreateParamsNonStreaming,
        response_create_params.ResponseCreateParamsStreaming,
    ),
}

Row = dict[str, str]


def rows_of(heading: str, page: str = PAGE) -> list[Row]:
    """Return the rows of the last table of a section, by the names of their columns."""
    (section,) = re.findall(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", page, re.DOTALL | re.MULTILINE)
    table = re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)[-1]
    head, _, *body = ([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines())
    return [dict(zip(head, cells, strict=True)) for cells in body]


def names(cell: str) -> list[str]:
    """Return what stands in backticks."""
    return re.findall(r"`([^`]+)`", cell)


def named_in(heading: str, endpoint: str) -> list[str]:
    """Return the parameters that a table names for an endpoint."""
    return [
        name
        for row in rows_of(heading)
        if row.get("where", "all") == "all" or endpoint in row["where"].split(", ")
        for name in names(row["parameter"])
    ]


def members(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {field.alias or name: field for name, field in model.model_fields.items()}


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from models_in(argument)


def paths(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield every member at any depth, with its path."""
    for name, field in members(model).items():
        yield prefix + name, field
        for inner in models_in(field.annotation):
            yield from paths(inner, f"{prefix}{name}.")


def is_hint(field: FieldInfo) -> bool:
    return (field.description or "").startswith("Accepted and not used")


def is_refused(field: FieldInfo) -> bool:
    validators = (getattr(item, "func", None) for item in field.metadata)
    return any(getattr(validator, "__name__", "") == "_refuse" for validator in validators)


@pytest.mark.parametrize("endpoint", GENERATIONS)
def test_the_tables_name_every_parameter_of_an_endpoint_once_and_no_other(endpoint: str) -> None:
    tables = ("Of all three endpoints", OWN_TABLES[endpoint], "Extensions", HINTS, REFUSED)
    named = [name for table in tables for name in named_in(table, endpoint) if "." not in name]
    assert sorted(named) == sorted(members(GENERATIONS[endpoint]))


@pytest.mark.parametrize("endpoint", TOKEN_REQUESTS)
def test_the_table_names_every_parameter_of_the_token_endpoints(endpoint: str) -> None:
    assert sorted(named_in("Tokenize and detokenize", endpoint)) == sorted(members(TOKEN_REQUESTS[endpoint]))


@pytest.mark.parametrize("endpoint", GENERATIONS)
def test_what_is_accepted_without_effect_is_listed_at_any_depth(endpoint: str) -> None:
    hints = {path for path, field in paths(GENERATIONS[endpoint]) if is_hint(field)}
    assert set(named_in(HINTS, endpoint)) == hints


@pytest.mark.parametrize("endpoint", GENERATIONS)
def test_what_is_refused_is_listed_at_any_depth(endpoint: str) -> None:
    refused = {path for path, field in paths(GENERATIONS[endpoint]) if is_refused(field)}
    assert set(named_in(REFUSED, endpoint)) == refused


@pytest.mark.parametrize(
    ("heading", "known"),
    [(HINTS, parameters.HINTS), (REFUSED, parameters.REFUSED), (REFUSED, responses_parameters.REFUSED)],
)
def test_the_page_has_what_the_gateway_s_own_tables_have(heading: str, known: dict[str, Any]) -> None:
    listed = {name.rpartition(".")[2] for row in rows_of(heading) for name in names(row["parameter"])}
    assert known.keys() <= listed


@pytest.mark.parametrize("endpoint", GENERATIONS)
def test_no_parameter_of_the_official_client_is_unknown(endpoint: str) -> None:
    documented = {name for shape in SDK_PARAMETERS[endpoint] for name in shape.__annotations__}
    assert documented <= members(GENERATIONS[endpoint]).keys()


def test_every_reason_is_in_the_table_of_errors_with_what_it_is_over_http() -> None:
    rows = rows_of("Errors", (DOCS / "errors.md").read_text())
    told = {reason: row for row in rows for reason in names(row["reason"])}
    assert told.keys() == {reason.name for reason in Reason}
    for reason in Reason:
        row, outcome = told[reason.name], outcomes.by_reason[reason.name]
        assert names(row["gRPC status"]) == [STATUS_BY_REASON[reason].name]
        assert row["HTTP"] == str(outcome.http_status)
        assert names(row["`code`"]) == ([outcome.code] if outcome.code else [])
        assert row["SDKs retry"] == ("yes" if outcome.should_retry else "no")


def test_every_failure_of_the_service_has_its_row_on_the_page() -> None:
    rows = {
        (row["HTTP"], kind, code, row["SDKs retry"])
        for row in rows_of("Errors")
        for kind in names(row["`type`"])
        for code in names(row["`code`"]) or ["null"]
    }
    for reason, outcome in outcomes.by_reason.items():
        if reason == "INVALID_FIELD":  # its code is that of the parameter
            continue
        retry = "yes" if outcome.should_retry else "no"
        assert (str(outcome.http_status), outcome.type, outcome.code or "null", retry) in rows, reason


def test_every_code_of_a_refusal_by_the_gateway_is_on_the_page() -> None:
    codes = {code for row in rows_of("Errors") for code in names(row["`code`"])}
    sources = [path.read_text() for path in (DOCS.parent / "gateway").rglob("*.py") if path.name != "documents.py"]
    raised = {code for source in sources for code in re.findall(r'\bcode="([a-z_]+)"', source)}
    assert len(raised) > 8
    assert raised <= codes


def test_links_lead_to_sections_that_exist() -> None:
    for page, anchor in re.findall(r"\]\(([\w./-]*)#([\w-]+)\)", PAGE):
        text = (DOCS / page).read_text() if page else PAGE
        titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        assert anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_code_on_the_page_is_python_and_its_bodies_are_json() -> None:
    blocks = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)
    for language, text in blocks:
        if language == "python":
            compile(text, "openai.md", "exec")
        elif language == "json":
            json.loads(text)
        else:
            assert isinstance(json.loads(text.partition("-d '")[2].rpartition("'")[0]), dict)
