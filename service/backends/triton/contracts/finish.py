"""Why the engine ended, for the contracts that say it: `finish_reason`."""

from __future__ import annotations

from typing import Final

from service.backends.base import EngineFinish
from service.backends.triton.contracts.response import broken
from service.backends.triton.contracts.text_reader import TextReader
from service.backends.triton.tensors import single_bytes
from service.core.errors import Reason, ServiceError

__all__ = ["FINISH_REASON", "RETURN_FINISH_REASON", "ReasonReader"]

FINISH_REASON: Final = "finish_reason"
# The input that switches the output on.
RETURN_FINISH_REASON: Final = "return_finish_reason"


class ReasonReader(TextReader):
    """Reads the engine's own reason from the last response.

    An output that was cut must not look like a whole one. So everything but the
    two ends that a caller asked for is a failure: cancelled, timeout, abort,
    error, and also "None", which engines write while they are not done. The
    reason is computed, as in the other contracts, where the model has no such output.
    """

    __slots__ = ()

    def reason(self) -> EngineFinish:
        """Return why it ended; raises `ServiceError` when the engine did not get to the end."""
        try:
            said = single_bytes(self.raw_of_last(FINISH_REASON)).decode(errors="replace")
        except ValueError as error:
            raise broken(self.contract, f"{FINISH_REASON}: {error}") from None
        if not said:
            return super().reason()
        if said == "stop":
            return EngineFinish.STOP
        if said == "length":
            # One word for two limits; only the window ends a generation before its own limit.
            is_full = self._output_tokens is not None and self._output_tokens < self._max_output_tokens
            return EngineFinish.CONTEXT_LENGTH if is_full else EngineFinish.LENGTH
        raise ServiceError(
            Reason.BACKEND_ERROR,
            "The inference server ended the generation before it was complete.",
            detail=f"{self.contract}: {FINISH_REASON} is {said[:100]!r}",
        )
