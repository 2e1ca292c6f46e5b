"""From keyword arguments to a GenerateRequest.

It owns the names that `client.generate(...)` takes and where they go in the
message. It checks shapes only: ranges are the service's business, which names
all violations at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypedDict

from google.protobuf.duration_pb2 import Duration

from headrace.v1 import chat_pb2, sampling_pb2
from headrace.v1 import generation_pb2 as pb

__all__ = ["ChatTurn", "RequestFields", "build_request", "chat_messages"]

ChatTurn = tuple[str, str] | Mapping[str, str] | chat_pb2.ChatMessage


class RequestFields(TypedDict, total=False):
    """The keywords of `generate`. One of prompt, chat and tokens is needed; what is left out is left to the model."""

    model: str
    prompt: str
    chat: Sequence[ChatTurn]  # ("user", "hi"), {"role": "user", "content": "hi"}, or ChatMessage
    tokens: Sequence[int]
    template_args: Mapping[str, Any]  # extra variables of the chat template
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
    grammar: str
    choice_count: int
    logprobs: bool
    top_logprobs: int
    token_ids: bool  # send the ids of the generated tokens
    time_limit_s: float  # soft end with usage; the timeout stays the hard one


SAMPLING_FIELDS: Final = tuple(field.name for field in sampling_pb2.SamplingParams.DESCRIPTOR.fields)
CONSTRAINTS: Final = ("json_object", "json_schema", "grammar")


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
    sampling = {key: given[key] for key in SAMPLING_FIELDS if key in given}
    if sampling:
        request.sampling.CopyFrom(sampling_pb2.SamplingParams(**sampling))  # type: ignore[arg-type]
    if "stop" in given:
        stop = fields["stop"]
        request.stop.sequences.extend([stop] if isinstance(stop, str) else stop)
    if "stop_token_ids" in given:
        request.stop.token_ids.extend(fields["stop_token_ids"])
    if given.get("include_stop"):
        request.stop.include_in_output = True
    if given.get("json_object"):
        request.constraint.json_object.SetInParent()
    if "json_schema" in given:
        request.constraint.json_schema = fields["json_schema"]
    if "grammar" in given:
        request.constraint.grammar = fields["grammar"]
    if given.get("logprobs"):
        request.output.logprobs = True
    if "top_logprobs" in given:
        request.output.top_logprobs = fields["top_logprobs"]
    if given.get("token_ids"):
        request.output.token_ids = True
    if "choice_count" in given:
        request.choice_count = fields["choice_count"]
    if "time_limit_s" in given:
        request.time_limit.CopyFrom(_duration(fields["time_limit_s"]))
    return request


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
        request.tokens.ids.extend(fields["tokens"])
    else:
        request.chat.SetInParent()
        request.chat.messages.extend(chat_messages(fields["chat"]))
    if "template_args" in given:
        if "chat" not in given:
            raise TypeError("template_args go with chat alone")
        request.chat.template_args.update(fields["template_args"])


def chat_messages(turns: Iterable[ChatTurn]) -> list[chat_pb2.ChatMessage]:
    """Return the messages of a conversation. Raises TypeError for a turn that is none."""
    return [turn if isinstance(turn, chat_pb2.ChatMessage) else _chat_message(turn) for turn in turns]


def _chat_message(turn: tuple[str, str] | Mapping[str, str]) -> chat_pb2.ChatMessage:
    if isinstance(turn, Mapping):
        unknown = sorted(turn.keys() - {"role", "content", "name"})
        if unknown or "role" not in turn or "content" not in turn:
            raise TypeError("a chat message has role and content, and may have name")
        role, text, name = turn["role"], turn["content"], turn.get("name", "")
    else:
        role, text = turn
        name = ""
    try:
        return chat_pb2.ChatMessage(role=f"ROLE_{role.upper()}", content=[chat_pb2.ContentPart(text=text)], name=name)
    except ValueError:
        raise TypeError(f"unknown role {role!r}: use system, developer, user or assistant") from None


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration
