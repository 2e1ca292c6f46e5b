"""Which documented members of a request are accepted without being used, and which are refused by name.

Everything else that the API documents is honoured, or refused by the service
where the model cannot do it. `docs` quotes these tables, and a test holds them
against the request models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, NamedTuple

from pydantic import BeforeValidator, Field, JsonValue, ValidationInfo
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

__all__ = ["HINTS", "NO_CODE", "REFUSED", "UNSERVED_VALUES", "Hint", "Unserved"]

# Member -> why nothing has to be done about it.
HINTS: Final[Mapping[str, str]] = {
    "guided_decoding_backend": "the engine has one way to guide its decoding.",
    "include_obfuscation": "no chunk is ever padded.",
    "metadata": "checked, and then dropped: nothing is stored here that it could be found by.",
    "prediction": "speeds up decoding elsewhere; it does not change the answer.",
    "prompt_cache_key": "the engine finds common prefixes by itself.",
    "prompt_cache_options": "the engine finds common prefixes by itself.",
    "prompt_cache_retention": "how long prefixes are kept is the engine's own affair.",
    "store": "nothing is stored here.",
    "verbosity": "a wish for shorter or longer answers; templates that know it take it as a template variable.",
}


class Refused(NamedTuple):
    """Why a member is refused or what to use instead, and its values that ask for nothing."""

    hint: str = ""
    harmless: tuple[JsonValue, ...] = (False, "", [], {})


REFUSED: Final[Mapping[str, Refused]] = {
    # Documented by the API.
    "audio": Refused("Only text is generated."),
    "function_call": Refused("Use 'tool_choice' instead.", ("", "none", "auto")),
    "functions": Refused("Use 'tools' instead."),
    "moderation": Refused("Nothing is moderated here."),
    "suffix": Refused("Text is only generated behind the prompt."),
    "web_search_options": Refused("Nothing is searched for here."),
    # Extensions of other servers that would change the answer.
    "add_generation_prompt": Refused(harmless=(True,)),
    "add_special_tokens": Refused(),
    "allowed_token_ids": Refused("Use 'logit_bias' instead."),
    "chat_template": Refused("A model's template is part of its configuration."),
    "continue_final_message": Refused(),
    "documents": Refused("Put them into a message, or into 'chat_template_kwargs'."),
    "guided_whitespace_pattern": Refused(),
    "include_reasoning": Refused(harmless=(True,)),
    "length_penalty": Refused(harmless=(0, 1)),
    "prompt_logprobs": Refused(harmless=()),
    "skip_special_tokens": Refused(harmless=(True,)),
    "spaces_between_special_tokens": Refused(harmless=(True,)),
    "structural_tag": Refused(),
    "truncate_prompt_tokens": Refused("Shorten the prompt instead."),
    "use_beam_search": Refused(),
}

# Values that the API documents somewhere and that are served nowhere here.
UNSERVED_VALUES: Final[frozenset[JsonValue]] = frozenset(
    {
        "image_url",
        "input_audio",
        "input_file",
        "input_image",
        "file",
        "video_url",
        "audio",
        "image",
        "custom",
        "grammar",
        "python",
        "function",
    }
)


# The type of a problem that the API tells with a text and no code.
NO_CODE: Final = "no_code"


def _refuse(value: Any, info: ValidationInfo) -> None:
    known = REFUSED.get(info.field_name or "", Refused())
    if value is not None and value not in known.harmless:
        raise PydanticCustomError(
            "unsupported_parameter", "This parameter is not supported. {hint}", {"hint": known.hint}
        )


# Accepted and not used.
Hint = Annotated[Any, Field(default=None, description="Accepted and not used.")]
# Known, not served, and would change the answer if it were: refused by name.
Unserved = Annotated[SkipJsonSchema[Any], BeforeValidator(_refuse), Field(default=None)]
