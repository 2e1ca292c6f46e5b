"""A whole response: the document of the same items that a stream tells one by one."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.openai.errors import ApiError
from gateway.openai.responses.document import ResponseStatus, failure_document
from gateway.openai.responses.item import OutputItem, documents
from gateway.openai.responses.output import OutputReader

__all__ = ["WholeResponse"]


class WholeResponse(OutputReader):
    """Collects a generation into one document; `feed` returns nothing until then."""

    def unfinished(self, status: ResponseStatus, error: ApiError | None = None) -> bytes:
        """Return the response as far as it came, with the `status` that it has or ended with."""
        if self._open is not None and status != "in_progress":
            self._open.status = "incomplete"
        return self.head.document(
            status,
            documents(self.items),
            error=None if error is None else failure_document(error),
            usage=self.usage,
            timing=self.timing,
        ).encode("ascii")

    def _on_completed(self) -> bytes:
        because = self.incomplete_because
        return self.head.document(
            "completed" if because is None else "incomplete",
            documents(self.items),
            incomplete_because=because,
            native_finish_reason=self.native_reasons.get(0),
            usage=self.usage,
            timing=self.timing,
        ).encode("ascii")

    def _framed(self, frames: Sequence[str]) -> bytes:  # noqa: ARG002 - nothing is said on the way
        return b""

    def _on_began(self, item: OutputItem) -> Sequence[str]:  # noqa: ARG002
        return ()

    def _on_grew(self, item: OutputItem, text: str, logprobs: Sequence[str]) -> Sequence[str]:  # noqa: ARG002
        return ()

    def _on_ended(self, item: OutputItem) -> Sequence[str]:  # noqa: ARG002
        return ()
