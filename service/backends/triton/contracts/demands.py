"""What a request asks for beyond text: named, and refused where a model does not have it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

from service.backends.base import NEUTRAL, EngineRequest, Feature
from service.backends.triton.contracts.fields import unsupported
from service.core.request import Sampling

__all__ = ["demands", "prompt_text", "refuse"]

# A seed is none of them: it is always set, also when the caller did not ask for one.
_VALUES: Final = (Feature.TEMPERATURE, *NEUTRAL)
_SWITCHES: Final = (Feature.LOGIT_BIAS, Feature.BAD_WORDS, Feature.IGNORE_EOS)


def demands(request: EngineRequest) -> Iterator[Feature]:
    """Yield the features without which the output would not be what was asked for."""
    if not isinstance(request.prompt, str):
        yield Feature.TOKEN_INPUT
    for feature in _VALUES:
        value = _field(request.sampling, feature)
        if value is not None and value != NEUTRAL.get(feature):
            yield feature
    for feature in _SWITCHES:
        if _field(request.sampling, feature):
            yield feature
    if request.token_ids:
        yield Feature.TOKEN_IDS
    if request.logprobs is not None:
        yield Feature.LOGPROBS
    if request.logprobs:
        yield Feature.TOP_LOGPROBS
    if request.constraint is not None:
        yield Feature(f"constraint.{request.constraint.kind.value}")


def refuse(request: EngineRequest, features: Collection[Feature]) -> None:
    """Raise `ServiceError` for the first thing that is asked for and is not among `features`."""
    for feature in demands(request):
        if feature not in features:
            raise unsupported(feature)


def prompt_text(request: EngineRequest, bos_text: str) -> str:
    """Return the prompt for a model that adds `bos_text` itself: without it, if a template wrote it already.

    Raises `ServiceError` for token ids.
    """
    if not isinstance(request.prompt, str):
        raise unsupported(Feature.TOKEN_INPUT)
    if not request.add_special_tokens and bos_text:
        return request.prompt.removeprefix(bos_text)
    return request.prompt


def _field(sampling: Sampling, feature: Feature) -> Any:
    return getattr(sampling, feature.value.removeprefix("sampling."))
