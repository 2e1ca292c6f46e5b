"""The request members that chat and text completions share, and their checks.

Types are strict: no string counts as a number, no number as a boolean. An
explicit null is the same as an absent member, everywhere. Members that nobody
knows are ignored, because SDKs add some with every release; members that are
known, not served and would change the answer are refused by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

from google.protobuf.struct_pb2 import Struct
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    Tag,
    ValidationInfo,
    field_validator,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError, PydanticKnownError

from headrace.v1 import sampling_pb2

__all__ = ["GenerationFields", "Hint", "RequestModel", "StreamOptions", "Unserved", "struct_from_json"]

# A protobuf parser stops at 100 levels, and one level of a Struct takes three.
MAX_STRUCT_DEPTH: Final = 24
INT32_MAX: Final = 2**31 - 1
INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
# The contract's decimals are single precision: beyond these they would be infinite or 0.
FLOAT32_MIN: Final = 1e-37
FLOAT32_MAX: Final = 1e38

# Accepted and not used: it says nothing about the text to generate.
Hint = Annotated[Any, Field(default=None, description="Accepted and not used.")]


class RequestModel(BaseModel):
    """Base of everything that is read from a request body."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="ignore")


# Values of members that are not served which ask for nothing.
_HARMLESS: Final[Mapping[str | None, tuple[JsonValue, ...]]] = {
    "best_of": (1,),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "tool_choice": ("none", "auto"),
}


def _refuse(value: Any, info: ValidationInfo) -> None:
    # Null, false and empty values ask for nothing either.
    if value and value not in _HARMLESS.get(info.field_name, ()):
        raise PydanticCustomError("unsupported_parameter", "This parameter is not supported.")


# Known, not served, and would change the answer if it were: refused by name.
Unserved = Annotated[SkipJsonSchema[Any], BeforeValidator(_refuse), Field(default=None)]


def struct_from_json(value: dict[str, JsonValue]) -> Struct:
    """Return `value` as a protobuf Struct; ValueError with a sentence if it cannot be one."""
    if _depth(value) > MAX_STRUCT_DEPTH:
        raise ValueError(f"it is nested deeper than {MAX_STRUCT_DEPTH} levels.")
    struct = Struct()
    try:
        json.dumps(value, allow_nan=False)
        struct.update(value)
    except (OverflowError, ValueError) as error:
        raise ValueError("every number has to be finite and fit a double.") from error
    return struct


def _depth(value: JsonValue) -> int:
    # The parser bounds the nesting of a body to about 200: recursion is safe.
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0


def _stop_kind(value: Any) -> str | None:
    return "<text>" if isinstance(value, str) else "<list>" if isinstance(value, list) else None


_StopText = Annotated[str, Field(min_length=1)]
_Stop = Annotated[
    Annotated[_StopText, Tag("<text>")] | Annotated[list[_StopText], Field(max_length=4), Tag("<list>")],
    Discriminator(_stop_kind),
]
_TokenId = Annotated[int, Field(ge=0, le=INT32_MAX)]
# The schema library's own reading of keys also takes " 5", "+5", "1_0" and "5.0".
_BIAS_KEY: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,18})", re.ASCII)
MAX_BIASES: Final = 1024


def _token_id_from_key(key: Any) -> int:
    if isinstance(key, str) and _BIAS_KEY.fullmatch(key):
        return int(key)
    raise PydanticKnownError("int_parsing")


def _few(value: Any) -> Any:
    # Before the members are looked at: an error for each would cost seconds.
    if isinstance(value, dict) and len(value) > MAX_BIASES:
        raise PydanticKnownError(
            "too_long", {"field_type": "Dictionary", "max_length": MAX_BIASES, "actual_length": len(value)}
        )
    return value


_Biases = Annotated[
    dict[Annotated[_TokenId, BeforeValidator(_token_id_from_key)], Annotated[float, Field(ge=-100, le=100)]],
    BeforeValidator(_few),
]
_BadWord = Annotated[str, Field(min_length=1, max_length=256)]
_TokenLimit = Annotated[int, Field(ge=1, le=INT32_MAX)]


class StreamOptions(RequestModel):
    """What a stream carries besides text."""

    include_usage: bool | None = Field(
        default=None, description="Send one more chunk with the usage before the stream ends."
    )


class GenerationFields(RequestModel):
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
    stop_token_ids: Annotated[list[_TokenId], Field(max_length=16)] | None = Field(
        default=None, description="Extension."
    )
    include_stop_str_in_output: bool | None = Field(
        default=None, description="Extension. Keep the matched stop text in the answer."
    )
    bad_words: Annotated[list[_BadWord], Field(max_length=16)] | None = Field(
        default=None, description="Extension. Texts that must not be generated."
    )
    logit_bias: _Biases | None = Field(default=None, description="Token id (as a string) to bias, -100 to 100.")
    user: Hint
    metadata: Hint
    store: Hint
    service_tier: Hint

    # Ways in which other servers take a constraint on the output.
    guided_json: Unserved
    guided_regex: Unserved
    guided_choice: Unserved
    guided_grammar: Unserved
    structured_outputs: Unserved
    use_beam_search: Unserved
    prompt_logprobs: Unserved

    @field_validator("stream_options")
    @classmethod
    def _only_with_stream(cls, value: StreamOptions | None, info: ValidationInfo) -> StreamOptions | None:
        if value is not None and "stream" in info.data and not info.data["stream"]:
            raise PydanticCustomError(
                "invalid_parameter", "The 'stream_options' parameter is only allowed when 'stream' is enabled."
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

    @property
    def wants_usage(self) -> bool:
        """Whether the stream ends with a usage chunk."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)
