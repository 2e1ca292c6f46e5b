"""Which documented members of a request are accepted without being used, and which are refused by name.

Everything else that the API documents is honoured, or refused by the service
where the model cannot do it. `docs` quotes these tables, and a test holds them
against the request models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, NamedTuple

from pydantic import BeforeValidator, Field, JsonValue, ValidationInfo
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

__all__ = ["HINTS", "NO_CODE", "OF_CHAT", "REFUSED", "UNSERVED_VALUES", "Hint", "OfChat", "Unserved"]

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
    # Empty, it asks for a search as it is by default.
    "web_search_options": Refused("Nothing is searched for here.", (False,)),
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

_CONVERSATIONS: Final = "Only conversations have it: use /v1/chat/completions."
# Members of chat that text completions refuse.
OF_CHAT: Final[Mapping[str, Refused]] = {
    "audio": REFUSED["audio"],
    "chat_template": Refused("A text is no conversation: no chat template is applied to it."),
    "chat_template_kwargs": Refused("A text is no conversation: no chat template is applied to it."),
    "documents": Refused("Put them into the prompt."),
    "function_call": Refused(_CONVERSATIONS, ("", "none", "auto")),
    "functions": Refused(_CONVERSATIONS),
    "max_completion_tokens": Refused("Use 'max_tokens' instead.", ()),
    "messages": Refused("Use 'prompt', or /v1/chat/completions.", ()),
    "modalities": Refused("Only text is generated.", ([], ["text"])),
    "reasoning_effort": Refused(_CONVERSATIONS, ()),
    "tool_choice": Refused(_CONVERSATIONS, ("", "none", "auto")),
    "tools": Refused(_CONVERSATIONS),
    "top_logprobs": Refused("Use 'logprobs' with the number of alternatives.", (0,)),
    "web_search_options": REFUSED["web_search_options"],
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


def _refuser(table: Mapping[str, Refused]) -> Callable[[Any, ValidationInfo], None]:
    def _refuse(value: Any, info: ValidationInfo) -> None:
        known = table.get(info.field_name or "", Refused())
        if value is not None and value not in known.harmless:
            raise PydanticCustomError(
                "unsupported_parameter", "This parameter is not supported. {hint}", {"hint": known.hint}
            )

    return _refuse


# Accepted and not used.
Hint = Annotated[Any, Field(default=None, description="Accepted and not used.")]
# Known, not served, and would change the answer if it were: refused by name.
Unserved = Annotated[SkipJsonSchema[Any], BeforeValidator(_refuser(REFUSED)), Field(default=None)]
# The same of a member of chat in a text completion.
OfChat = Annotated[SkipJsonSchema[Any], BeforeValidator(_refuser(OF_CHAT)), Field(default=None)]
