"""The request members that chat and text completions share, and their checks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError, PydanticKnownError

from gateway.openai.base import RequestModel
from gateway.openai.constraints import ConstraintFields
from gateway.openai.json_values import struct_from_json
from gateway.openai.parameters import NO_CODE, Hint, Unserved
from headrace.v1 import generation_pb2 as gen
from headrace.v1 import sampling_pb2

__all__ = [
    "GenerationFields",
    "Hint",
    "Metadata",
    "RequestModel",
    "ServiceTier",
    "StreamOptions",
    "Unserved",
    "priorities",
    "served_tiers",
    "struct_from_json",
]

INT32_MAX: Final = 2**31 - 1
INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
# The contract's decimals are single precision: beyond these they would be infinite or 0.
FLOAT32_MIN: Final = 1e-37
FLOAT32_MAX: Final = 1e38

ServiceTier = Literal["auto", "default", "flex", "priority", "fast"]
# Tier asked for -> scheduling class; the others take the server's default.
priorities: Final[Mapping[str, gen.Priority]] = {
    "priority": gen.PRIORITY_INTERACTIVE,
    "fast": gen.PRIORITY_INTERACTIVE,
    "flex": gen.PRIORITY_BATCH,
}
# Tier asked for -> tier that the answer says was used.
served_tiers: Final[Mapping[str, str]] = {
    "auto": "default",
    "default": "default",
    "priority": "priority",
    "fast": "priority",
    "flex": "flex",
}


def _stop_kind(value: Any) -> str | None:
    return "<text>" if isinstance(value, str) else "<list>" if isinstance(value, list) else None


_StopText = Annotated[str, Field(min_length=1)]
_Stop = Annotated[
    Annotated[_StopText, Tag("<text>")]
    | Annotated[list[_StopText], Field(max_length=4, fail_fast=True), Tag("<list>")],
    Discriminator(_stop_kind),
]
_TokenId = Annotated[int, Field(ge=0, le=INT32_MAX)]
# The schema library's own reading of keys also takes " 5", "+5", "1_0" and "5.0".
_BIAS_KEY: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,18})", re.ASCII)
MAX_BIASES: Final = 1024
MAX_METADATA: Final = 16
# In characters; the contract counts bytes.
MAX_USER_CHARS: Final = 512


def _token_id_from_key(key: Any) -> int:
    if isinstance(key, str) and _BIAS_KEY.fullmatch(key):
        return int(key)
    raise PydanticKnownError("int_parsing")


def _at_most(members: int) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        # Before the members are looked at: an error for each would cost seconds.
        if isinstance(value, dict) and len(value) > members:
            raise PydanticKnownError(
                "too_long", {"field_type": "Dictionary", "max_length": members, "actual_length": len(value)}
            )
        return value

    return check


_Biases = Annotated[
    dict[Annotated[_TokenId, BeforeValidator(_token_id_from_key)], Annotated[float, Field(ge=-100, le=100)]],
    Field(fail_fast=True),
    BeforeValidator(_at_most(MAX_BIASES)),
    Field(json_schema_extra={"maxProperties": MAX_BIASES}),
]
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(fail_fast=True),
    BeforeValidator(_at_most(MAX_METADATA)),
    Field(json_schema_extra={"maxProperties": MAX_METADATA}),
]
_BadWord = Annotated[str, Field(min_length=1, max_length=256)]
_TokenLimit = Annotated[int, Field(ge=1, le=INT32_MAX)]


class StreamOptions(RequestModel):
    """What a stream carries besides text."""

    include_usage: bool | None = Field(
        default=None, description="Send one more chunk with the usage before the stream ends."
    )
    include_obfuscation: bool | None = Field(default=None, description="Accepted and not used.")


class GenerationFields(ConstraintFields):
    """Members of both endpoints."""

    model: Annotated[str, Field(min_length=1, max_length=512, description="Model id or alias.")]
    stream: bool | None = Field(default=None, description="Answer as server-sent events.")
    stream_options: StreamOptions | None = Field(default=None, description="Only with stream.")
    n: Annotated[int, Field(ge=1, le=128)] | None = Field(default=None, description="Number of choices; 1 if absent.")
    temperature: Annotated[float, Field(ge=0, le=2)] | None = Field(default=None, description="0 is greedy.")
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=INT32_MAX)] | None = Field(
        default=None, description="Extension. 0 and -1 switch it off."
    )
    min_p: Annotated[float, Field(ge=0, le=1)] | None = Field(default=None, description="Extension. 0 switches it off.")
    repetition_penalty: Annotated[float, Field(ge=FLOAT32_MIN, le=FLOAT32_MAX)] | None = Field(
        default=None, description="Extension. 1 switches it off."
    )
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    max_tokens: _TokenLimit | None = Field(default=None, description="Most tokens to generate per choice.")
    min_tokens: Annotated[int, Field(ge=0, le=INT32_MAX)] | None = Field(
        default=None, description="Extension. No end of sequence before this many tokens."
    )
    ignore_eos: bool | None = Field(default=None, description="Extension. Go on past the end of sequence.")
    seed: Annotated[int, Field(ge=INT64_MIN, le=INT64_MAX)] | None = Field(
        default=None, description="Any 64-bit integer. Choice i runs with seed + i."
    )
    stop: _Stop | None = Field(default=None, description="At most four non-empty texts; not part of the answer.")
    stop_token_ids: Annotated[list[_TokenId], Field(max_length=16, fail_fast=True)] | None = Field(
        default=None, description="Extension."
    )
    include_stop_str_in_output: bool | None = Field(
        default=None, description="Extension. Keep the matched stop text in the answer."
    )
    bad_words: Annotated[list[_BadWord], Field(max_length=16, fail_fast=True)] | None = Field(
        default=None, description="Extension. Texts that must not be generated."
    )
    logit_bias: _Biases | None = Field(default=None, description="Token id (as a string) to bias, -100 to 100.")
    service_tier: ServiceTier | None = Field(
        default=None, description="flex is served after everything else; the answer says which tier was used."
    )
    user: Annotated[str, Field(max_length=MAX_USER_CHARS)] | None = Field(
        default=None, description="The end user, for traces and logs."
    )
    metadata: Metadata | None = Field(default=None, description="Accepted and not used.")
    store: Hint
    add_special_tokens: Unserved
    allowed_token_ids: Unserved
    length_penalty: Unserved
    prompt_logprobs: Unserved
    skip_special_tokens: Unserved
    spaces_between_special_tokens: Unserved
    truncate_prompt_tokens: Unserved
    use_beam_search: Unserved

    @field_validator("stream_options")
    @classmethod
    def _only_with_stream(cls, value: StreamOptions | None, info: ValidationInfo) -> StreamOptions | None:
        if value is not None and "stream" in info.data and not info.data["stream"]:
            raise PydanticCustomError(
                NO_CODE, "The 'stream_options' parameter is only allowed when 'stream' is enabled."
            )
        return value

    def output_limit(self) -> tuple[int, str] | None:
        """Return the token limit and the name under which the caller gave it; None if there is none."""
        return None if self.max_tokens is None else (self.max_tokens, "max_tokens")

    def sampling_to_proto(self) -> sampling_pb2.SamplingParams:
        """Return the sampling controls; what the caller left out stays unset."""
        limit = self.output_limit()
        return sampling_pb2.SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=None if self.top_k is None else max(self.top_k, 0),
            min_p=self.min_p,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            repetition_penalty=self.repetition_penalty,
            seed=self.seed,
            max_output_tokens=None if limit is None else limit[0],
            min_output_tokens=self.min_tokens,
            logit_bias=self.logit_bias,
            ignore_eos=bool(self.ignore_eos),
            bad_words=self.bad_words,
        )

    def stop_to_proto(self) -> sampling_pb2.StopCriteria | None:
        """Return the stop criteria; None if there are none."""
        sequences = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if not sequences and not self.stop_token_ids:
            return None
        return sampling_pb2.StopCriteria(
            sequences=sequences,
            token_ids=self.stop_token_ids,
            include_in_output=bool(self.include_stop_str_in_output),
        )

    def end_user(self) -> tuple[str, str] | None:
        """Return who the end user is and the name under which the caller said so; None if nothing was said."""
        return None if self.user is None else (self.user, "user")

    def priority(self) -> gen.Priority | None:
        """Return the scheduling class; None takes the server's default."""
        return priorities.get(self.service_tier or "")

    def names(self) -> dict[str, str]:
        """Return how this request spells those paths of the contract that can be spelled in several ways."""
        names = dict(self.constraint_names())
        if (limit := self.output_limit()) is not None:
            names["sampling.max_output_tokens"] = limit[1]
        if (end_user := self.end_user()) is not None:
            names["end_user"] = end_user[1]
        return names

    @property
    def wants_usage(self) -> bool:
        """Whether the stream ends with a usage chunk."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)
