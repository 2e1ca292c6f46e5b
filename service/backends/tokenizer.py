"""The seam to a model's tokenizer, for whoever wants to look at prompts and not to run them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

__all__ = ["MAX_TEXT_BYTES", "EncodedText", "EngineTokenizer"]

# The most that a caller may send for any model.
MAX_TEXT_BYTES: Final = 4 * 1024 * 1024


class EncodedText(NamedTuple):
    """A text as token ids, and the bytes of each if they were asked for.

    The pieces of special tokens are their texts. Where the tokenizer normalises,
    the pieces spell what it made of the text.
    """

    token_ids: Sequence[int]
    pieces: Sequence[bytes] = ()


class EngineTokenizer(Protocol):
    """A model's tokenizer, for whoever wants to look at prompts.

    Its methods may take as long as the text is long, and do not hold up the
    event loop. Raises BACKEND_UNAVAILABLE if the engine does not answer.
    Cancelling ends the wait, not the work: whoever bounds the work must wait for it.
    """

    @property
    def vocab_size(self) -> int:
        """One more than the highest token id."""
        ...

    @property
    def has_pieces(self) -> bool:
        """Whether each token has bytes of its own."""
        ...

    @property
    def max_text_bytes(self) -> int:
        """The longest text to be given to `encode`, in bytes of UTF-8; what it takes a few seconds to read."""
        ...

    async def encode(self, text: str, *, add_special_tokens: bool, with_pieces: bool = False) -> EncodedText:
        """Return the ids of `text`, in which the texts of special tokens stand for these tokens."""
        ...

    async def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of ids that are within the vocabulary; bytes that are no UTF-8 become U+FFFD."""
        ...
