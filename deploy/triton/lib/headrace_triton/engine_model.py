"""A Triton model that generates: takes requests, starts and stops generations. The same for every contract."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from .engines import Loaded, open_engine
from .events import EventLog
from .generations import Generations
from .jobs import EngineError
from .runs import FINAL, Run
from .settings import load_settings
from .tensors import flag, inputs_by_name

__all__ = ["EngineModel"]


class _RunType(Protocol):
    is_polled: ClassVar[bool]

    def __call__(self, request: Any, sender: Any, arrays: dict[str, Any], loaded: Loaded, log: EventLog) -> Run: ...

    def error(self, message: str) -> Any: ...


class EngineModel:
    """Base of the model.py files. One instance only: a stop has to reach the instance that runs the request."""

    run_type: ClassVar[_RunType]
    # Whether the first dimension of every tensor is the batch.
    is_batched: ClassVar[bool]
    # The error of a `stop` request without an id; None where the contract has no such request.
    stop_without_id: ClassVar[str | None] = None

    def initialize(self, args: dict[str, str]) -> None:
        """Load the engine and open the event log."""
        settings = load_settings(args)
        self._loaded = open_engine(settings)
        self._log = EventLog(settings.event_log)
        self._generations = Generations(self._loaded.engine, settings, polls_cancel=self.run_type.is_polled)

    def execute(self, requests: list[Any]) -> None:
        """Start or stop generations and return at once."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                self._take(request, sender)
            except Exception as error:
                message = str(error) if isinstance(error, EngineError) else f"the request failed: {error}"
                self._log.write("refused", request.request_id(), message=message)
                sender.send(self.run_type.error(message), flags=FINAL)

    def finalize(self) -> None:
        """End every generation."""
        self._generations.close()
        self._log.close()

    def _take(self, request: Any, sender: Any) -> None:
        arrays = inputs_by_name(request, is_batched=self.is_batched)
        if self.stop_without_id is not None and flag(arrays, "stop"):
            if not request.request_id():
                sender.send(Run.error(self.stop_without_id), flags=FINAL)
                return
            stopped = self._generations.stop(request.request_id())
            self._log.write("stop", request.request_id(), stopped=stopped)
            self._answer_stop(sender)
        else:
            self._generations.start(self.run_type(request, sender, arrays, self._loaded, self._log))

    def _answer_stop(self, sender: Any) -> None:
        """Answer a `stop` request, whether it found something or not."""
        sender.send(flags=FINAL)
