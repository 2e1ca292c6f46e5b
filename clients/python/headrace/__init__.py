"""Client of the Headrace streaming inference service, and its generated stubs in `headrace.v1`.

Names are loaded when they are first asked for, so that whoever wants the stubs
alone does not load the client.
"""

__all__ = [
    "Answer",
    "AsyncClient",
    "Client",
    "Generation",
    "GenerationStream",
    "HeadraceError",
    "RequestFields",
    "TlsConfig",
    "__version__",
    "cancel_generation",
    "errors",
    "generate_text",
    "get_generation",
]

import importlib
from typing import TYPE_CHECKING

from headrace._version import __version__

if TYPE_CHECKING:
    from headrace import errors
    from headrace._aio import AsyncClient
    from headrace._answer import Answer
    from headrace._channel import TlsConfig
    from headrace._oneshot import cancel_generation, generate_text, get_generation
    from headrace._requests import RequestFields
    from headrace._stream import GenerationStream
    from headrace._sync import Client, Generation
    from headrace.errors import HeadraceError

_MODULES = {
    "Answer": "headrace._answer",
    "AsyncClient": "headrace._aio",
    "Client": "headrace._sync",
    "Generation": "headrace._sync",
    "GenerationStream": "headrace._stream",
    "HeadraceError": "headrace.errors",
    "RequestFields": "headrace._requests",
    "TlsConfig": "headrace._channel",
    "cancel_generation": "headrace._oneshot",
    "generate_text": "headrace._oneshot",
    "get_generation": "headrace._oneshot",
}


def __getattr__(name: str) -> object:
    if name == "errors":
        return importlib.import_module("headrace.errors")
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
