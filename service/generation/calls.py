"""Tools and reasoning of one request: what the model can do, what the engine is held to, how the output is read."""

from __future__ import annotations

from dataclasses import replace

from service.catalog.model import Model
from service.core.errors import Reason, ServiceError, Violation, invalid
from service.core.request import Chat, Constraint, ConstraintKind, GenerationRequest, ToolChoice, ToolChoiceMode
from service.parsing import (
    AnyCalls,
    GuidedCalls,
    NamedCall,
    OutputParser,
    guided_schema,
    marks_of,
    open_parser,
    opens_reasoning,
)

__all__ = [
    "blamed_on_tools",
    "call_violations",
    "constraint_of",
    "is_forced",
    "marks_in_output",
    "missing_for_tools",
    "parser_of",
    "shown_to_template",
    "tells_reasoning_apart",
]


def missing_for_tools(chat: Chat, model: Model) -> list[str]:
    """Return the fields of `chat` that this model cannot serve."""
    if model.can_call_tools:
        return []
    missing = ["chat.tools"] if shown_to_template(chat).tools else []
    return missing + [
        f"chat.messages[{at}]"
        for at, message in enumerate(chat.messages)
        if message.tool_calls or message.tool_call_id is not None
    ]


def call_violations(request: GenerationRequest) -> list[Violation]:
    """Return what contradicts itself: an output that has to match a constraint cannot be a call as well."""
    chat = request.input
    if request.constraint is None or not isinstance(chat, Chat) or not shown_to_template(chat).tools:
        return []
    return [Violation(f"constraint.{request.constraint.kind.value}", "cannot be combined with tools")]


def shown_to_template(chat: Chat) -> Chat:
    """Return `chat` as the template sees it: without tools that must not be called."""
    if chat.tools and chat.tool_choice is not None and _is_none(chat.tool_choice):
        return replace(chat, tools=(), tool_choice=None)
    return chat


def is_forced(request: GenerationRequest) -> bool:
    """Return whether the answer has to be a call."""
    chat = request.input
    return isinstance(chat, Chat) and chat.tool_choice is not None and chat.tool_choice.is_forced


def constraint_of(request: GenerationRequest) -> Constraint | None:
    """Return what the engine is held to: the request's own constraint, or the shape of a forced call."""
    chat = request.input
    if not isinstance(chat, Chat) or chat.tool_choice is None or not chat.tool_choice.is_forced:
        return request.constraint
    return Constraint(
        kind=ConstraintKind.JSON_SCHEMA,
        source=guided_schema(chat.tools, chat.tool_choice, parallel=chat.parallel_tool_calls),
    )


def blamed_on_tools(error: ServiceError, request: GenerationRequest) -> ServiceError:
    """Return `error` in the caller's terms: the constraint of a forced call is made of the tools."""
    if not is_forced(request) or error.reason is not Reason.INVALID_FIELD:
        return error
    return invalid(
        [
            Violation("chat.tools", violation.description) if violation.field.startswith("constraint") else violation
            for violation in error.violations
        ]
    )


def parser_of(request: GenerationRequest, model: Model, prompt: str | tuple[int, ...]) -> OutputParser | None:
    """Return the reader of one choice's text; None if it is sent as it is."""
    chat = request.input
    if not isinstance(chat, Chat) or _is_no_json(request.constraint):
        return None
    chat = shown_to_template(chat)
    reasoning = model.reasoning_format
    return open_parser(
        tools=model.tool_format if chat.tools else None,
        guided=_guided(chat),
        reasoning=reasoning,
        starts_in_reasoning=reasoning is not None and isinstance(prompt, str) and opens_reasoning(reasoning, prompt),
        parallel=chat.parallel_tool_calls,
        tool_names=frozenset(tool.name for tool in chat.tools),
        is_json=request.constraint is not None,
    )


def marks_in_output(request: GenerationRequest, model: Model) -> tuple[str, ...]:
    """Return the texts that `parser_of` looks for, and which the engine must not leave out."""
    chat = request.input
    if not isinstance(chat, Chat) or _is_no_json(request.constraint):
        return ()
    return marks_of(model.tool_format if shown_to_template(chat).tools else None, model.reasoning_format)


def tells_reasoning_apart(request: GenerationRequest, model: Model) -> bool:
    """Return whether reasoning tokens of this request are counted."""
    return isinstance(request.input, Chat) and model.reasoning_format is not None


def _guided(chat: Chat) -> GuidedCalls | None:
    choice = chat.tool_choice
    if choice is None or not choice.is_forced:
        return None
    return NamedCall(choice.function) if choice.function is not None else AnyCalls(parallel=chat.parallel_tool_calls)


def _is_none(choice: ToolChoice) -> bool:
    return choice.function is None and choice.mode is ToolChoiceMode.NONE


def _is_no_json(constraint: Constraint | None) -> bool:
    # Reasoning before such an answer cannot be told from it.
    return constraint is not None and constraint.kind not in {ConstraintKind.JSON_OBJECT, ConstraintKind.JSON_SCHEMA}
