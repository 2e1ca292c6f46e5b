"""From keyword arguments to a GenerateRequest.

It owns the names that `client.generate(...)` takes and where they go in the
message. It checks shapes only: ranges are the service's business, which names
all violations at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypedDict

from google.protobuf.duration_pb2 import Duration

from headrace._chat import ChatTurn, chat_messages, reasoning_effort, tool_choice
from headrace.v1 import chat_pb2, sampling_pb2
from headrace.v1 import generation_pb2 as pb

__all__ = ["RequestFields", "build_request"]


class RequestFields(TypedDict, total=False):
    """The keywords of `generate`. One of prompt, chat and tokens is needed; what is left out is left to the model."""

    model: str
    prompt: str
    chat: Sequence[ChatTurn]  # ("user", "hi"), {"role": "user", "content": "hi"}, or ChatMessage
    tokens: Sequence[int]
    template_args: Mapping[str, Any]  # extra variables of the chat template
    tools: Sequence[chat_pb2.Tool]
    tool_choice: str | chat_pb2.ToolChoice  # "none", "auto", "required"; a ToolChoice names a function
    parallel_tool_calls: bool
    reasoning_effort: str  # "none", "minimal", "low", "medium", "high", "xhigh" or "max"
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    seed: int
    max_output_tokens: int
    min_output_tokens: int
    logit_bias: Mapping[int, float]
    ignore_eos: bool
    bad_words: Sequence[str]
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    include_stop: bool
    json_object: bool
    json_schema: str
    regex: str
    grammar: str
    choices: Sequence[str]  # the output is one of them
    choice_count: int
    logprobs: bool
    top_logprobs: int
    token_ids: bool  # send the ids of the generated tokens
    time_limit_s: float  # soft end with usage; the timeout stays the hard one
    priority: str  # "interactive", the default, or "batch": throughput work, which waits behind interactive requests
    queue_events: bool  # send `queued` events while the request waits; gives up gRPC's transparent retry then
    end_user: str  # for the server's log and trace
    idempotency_key: str  # the same key and request is the same generation: it runs once, and can be joined again
    retain_for_s: float  # keep the events so long behind the end of the generation
    continue_on_disconnect: bool  # run to the end though nobody reads
    annotation: bytes  # kept with a retained generation, for whoever attaches to it


SAMPLING_FIELDS: Final = tuple(field.name for field in sampling_pb2.SamplingParams.DESCRIPTOR.fields)
CONSTRAINTS: Final = ("json_object", "json_schema", "regex", "grammar", "choices")
CHAT_ONLY: Final = ("template_args", "tools", "tool_choice", "parallel_tool_calls", "reasoning_effort")

MAX_DURATION_S: Final = 315_576_000_000  # of google.protobuf.Duration
PRIORITIES: Final[Mapping[str, pb.Priority]] = {
    "interactive": pb.PRIORITY_INTERACTIVE,
    "batch": pb.PRIORITY_BATCH,
}


def build_request(fields: RequestFields) -> pb.GenerateRequest:
    """Return the message for the keywords; None counts as left out.

    Raises TypeError for an unknown keyword, for not exactly one input, for
    two constraints, and for values that do not fit their field.
    """
    given = {key: value for key, value in fields.items() if value is not None}
    _check_names(given)
    request = pb.GenerateRequest()
    if "model" in given:
        request.model = fields["model"]
    _set_input(request, fields, given)
    for name in SAMPLING_FIELDS:
        if name in given:
            value: dict[str, Any] = {name: given[name]}
            with _naming(name):
                request.sampling.MergeFrom(sampling_pb2.SamplingParams(**value))
    if "stop" in given:
        stop = fields["stop"]
        request.stop.sequences.extend([stop] if isinstance(stop, str) else stop)
    if "stop_token_ids" in given:
        with _naming("stop_token_ids"):
            request.stop.token_ids.extend(fields["stop_token_ids"])
    if given.get("include_stop"):
        request.stop.include_in_output = True
    _set_constraint(request, given)
    if given.get("logprobs"):
        request.output.logprobs = True
    if "top_logprobs" in given:
        with _naming("top_logprobs"):
            request.output.top_logprobs = fields["top_logprobs"]
    if given.get("token_ids"):
        request.output.token_ids = True
    if "choice_count" in given:
        with _naming("choice_count"):
            request.choice_count = fields["choice_count"]
    if "time_limit_s" in given:
        with _naming("time_limit_s"):
            request.time_limit.CopyFrom(_duration(fields["time_limit_s"]))
    if given.get("queue_events"):
        request.output.queue_events = True
    if "priority" in given:
        request.priority = _priority(fields["priority"])
    if "end_user" in given:
        request.end_user = fields["end_user"]
    _set_retention(request, fields, given)
    return request


def _set_retention(request: pb.GenerateRequest, fields: RequestFields, given: Mapping[str, object]) -> None:
    if "idempotency_key" in given:
        request.idempotency_key = fields["idempotency_key"]
    if "retain_for_s" in given:
        with _naming("retain_for_s"):
            request.retention.retain_for.CopyFrom(_duration(fields["retain_for_s"]))
    if given.get("continue_on_disconnect"):
        request.retention.continue_on_disconnect = True
    if "annotation" in given:
        request.retention.annotation = fields["annotation"]


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Say which keyword it is whose value does not fit: protobuf tells the value alone."""
    try:
        yield
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{name}: {error}") from error


def _set_constraint(request: pb.GenerateRequest, given: Mapping[str, Any]) -> None:
    if given.get("json_object"):
        request.constraint.json_object.SetInParent()
    for name in ("json_schema", "regex", "grammar"):
        if name in given:
            setattr(request.constraint, name, given[name])
    if "choices" in given:
        request.constraint.choice.SetInParent()
        request.constraint.choice.choices.extend(given["choices"])


def _check_names(given: Mapping[str, object]) -> None:
    unknown = sorted(given.keys() - RequestFields.__annotations__.keys())
    if unknown:
        raise TypeError(f"unknown request fields: {', '.join(unknown)}")
    inputs = [name for name in ("prompt", "chat", "tokens") if name in given]
    if len(inputs) != 1:
        raise TypeError(f"exactly one of prompt, chat and tokens is needed, got {', '.join(inputs) or 'none'}")
    constraints = [name for name in CONSTRAINTS if given.get(name)]
    if len(constraints) > 1:
        raise TypeError(f"at most one constraint is possible, got {', '.join(constraints)}")


def _set_input(request: pb.GenerateRequest, fields: RequestFields, given: Mapping[str, object]) -> None:
    if "prompt" in given:
        request.prompt = fields["prompt"]
    elif "tokens" in given:
        request.tokens.SetInParent()  # so that an empty list is an empty list, and not an unset input
        with _naming("tokens"):
            request.tokens.ids.extend(fields["tokens"])
    else:
        request.chat.SetInParent()
        _set_chat(request.chat, fields, given)
    misplaced = [name for name in CHAT_ONLY if name in given]
    if misplaced and "chat" not in given:
        raise TypeError(f"only with chat: {', '.join(misplaced)}")


def _set_chat(chat: chat_pb2.ChatInput, fields: RequestFields, given: Mapping[str, object]) -> None:
    chat.messages.extend(chat_messages(fields["chat"]))
    if "template_args" in given:
        chat.template_args.update(fields["template_args"])
    if "tools" in given:
        chat.tools.extend(fields["tools"])
    if "tool_choice" in given:
        chat.tool_choice.CopyFrom(tool_choice(fields["tool_choice"]))
    if "parallel_tool_calls" in given:
        chat.parallel_tool_calls = fields["parallel_tool_calls"]
    if "reasoning_effort" in given:
        chat.MergeFrom(chat_pb2.ChatInput(reasoning_effort=reasoning_effort(fields["reasoning_effort"])))


def _priority(name: str) -> pb.Priority:
    if name not in PRIORITIES:
        raise TypeError(f"unknown priority {name!r}: use {' or '.join(PRIORITIES)}")
    return PRIORITIES[name]


def _duration(seconds: float) -> Duration:
    if not abs(seconds) <= MAX_DURATION_S:
        raise ValueError(f"a number of seconds, got {seconds}")
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration
