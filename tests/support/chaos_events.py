"""Follows the events of one answer against its plan, as they come: order, numbers, text, ids, counts.

One reader for each wire: `EventCheck` for the contract's events, `ChunkCheck` for server-sent chunks,
`DocumentCheck` for whole answers. Pure; they say what is wrong and never raise.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from headrace.v1 import generation_pb2 as gen
from tests.support.chaos_plan import Plan
from tests.support.chaos_script import ChoiceText

__all__ = ["AnswerCheck", "ChunkCheck", "DocumentCheck", "EventCheck"]

# The rest of what is wrong follows from the first few.
_MOST: Final = 4
_PREFIX: Final = "FINISH_REASON_"
_CHUNK_ID: Final = re.compile(r"(\d+)(?:\.(\d+))?")


class AnswerCheck:
    """What the checks of all wires have in common: the choices, and how far the answer is."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.problems: list[str] = []
        self.choices = [ChoiceText(plan.script) for _ in range(plan.choices)]
        self.generation_id = ""
        self.events = 0
        self.is_started = False
        self.is_complete = False
        self.output_tokens: int | None = None

    @property
    def finishes(self) -> list[str | None]:
        """Why each choice ended; None for one that did not."""
        return [choice.finish for choice in self.choices]

    @property
    def is_unrun(self) -> bool:
        """Whether it was stopped from outside before there was any text."""
        return set(self.finishes) <= {"CANCELLED", "TIME_LIMIT"} and not any(choice.chars for choice in self.choices)

    def wrong(self, problem: str | None) -> None:
        """Note a problem, if it is one."""
        if problem is not None and len(self.problems) < _MOST:
            self.problems.append(f"event {self.events}: {problem}")

    def _choice(self, index: int) -> ChoiceText | None:
        if 0 <= index < len(self.choices):
            return self.choices[index]
        self.wrong(f"choice {index} of {len(self.choices)}")
        return None

    def _check_usage(self, output_tokens: int | None, prompt_tokens: int | None) -> None:
        self.output_tokens = output_tokens
        if self.finishes == ["TIME_LIMIT"] and output_tokens is not None and self.choices[0].tokens is None:
            self.wrong(self.choices[0].check_count(output_tokens))
        counted = [choice.tokens for choice in self.choices]
        if None not in counted and sum(count or 0 for count in counted) != output_tokens:
            self.wrong(f"usage of {output_tokens} tokens for choices of {counted}")
        # What was stopped before the engine took it has no prompt that anybody counted.
        if output_tokens is None or (prompt_tokens is None and not self.is_unrun):
            self.wrong("usage without counts")
        elif prompt_tokens is not None and not self.plan.is_chat and prompt_tokens != self.plan.script.prompt_tokens:
            self.wrong(f"{prompt_tokens} prompt tokens in place of {self.plan.script.prompt_tokens}")


class EventCheck(AnswerCheck):
    """Follows `GenerateResponse` messages: `queued* started (delta | choice_finished)* completed`, numbered from 1."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.queued = 0

    def feed(self, event: gen.GenerateResponse) -> str:
        """Take the next event; return its kind."""
        self.events += 1
        kind = event.WhichOneof("event") or "nothing"
        if event.sequence != self.events:
            self.wrong(f"sequence {event.sequence}")
        if self.is_complete:
            self.wrong(f"{kind} behind completed")
        elif kind != "queued" and kind != "started" and not self.is_started:
            self.wrong(f"{kind} before started")
        match kind:
            case "queued":
                self._on_queued(event.queued)
            case "started":
                self._on_started(event.started)
            case "delta":
                self._on_delta(event.delta)
            case "choice_finished":
                self._on_finished(event.choice_finished)
            case "completed":
                self._on_completed(event.completed)
            case _:
                self.wrong("an event of no known kind")
        return kind

    def _on_queued(self, queued: gen.GenerationQueued) -> None:
        self.queued += 1
        if not self.plan.queue_events:
            self.wrong("a queued event that nobody asked for")
        if self.is_started:
            self.wrong("queued behind started")
        if queued.ahead_count < 0:
            self.wrong(f"{queued.ahead_count} ahead")
        self._identify(queued.generation_id)

    def _on_started(self, started: gen.GenerationStarted) -> None:
        if self.is_started:
            self.wrong("started a second time")
        self.is_started = True
        self._identify(started.generation_id)
        if started.model != self.plan.model:
            self.wrong(f"model {started.model!r}")

    def _identify(self, generation_id: str) -> None:
        if not generation_id or self.generation_id not in ("", generation_id):
            self.wrong(f"generation id {generation_id!r} behind {self.generation_id!r}")
        self.generation_id = generation_id

    def _on_delta(self, delta: gen.ChoiceDelta) -> None:
        choice = self._choice(delta.index)
        if choice is None:
            return
        if delta.WhichOneof("content") not in ("text", None):
            self.wrong(f"a delta of {delta.WhichOneof('content')}")
        if not (delta.text or delta.token_ids or delta.logprobs):
            self.wrong("an empty delta")
        self.wrong(choice.add_text(delta.text))
        if self.plan.wants_details:
            self.wrong(choice.add_ids(delta.token_ids))
            for one in delta.logprobs:
                self.wrong(choice.add_logprob(one.raw_bytes, one.logprob, one.token_id))
            self.wrong(choice.check_places())
        elif delta.token_ids or delta.logprobs:
            self.wrong("token details that nobody asked for")

    def _on_finished(self, finished: gen.ChoiceFinished) -> None:
        choice = self._choice(finished.index)
        if choice is None:
            return
        reason = gen.FinishReason.Name(finished.reason).removeprefix(_PREFIX)
        tokens = finished.output_token_count if finished.HasField("output_token_count") else None
        if tokens is None:
            self.wrong("the end of a choice without a count")
        details = self.plan.wants_details
        self.wrong(choice.end(reason, tokens, has_ids=details, has_logprobs=details))
        script = self.plan.script
        if reason == "STOP" and finished.stop_sequence != (script.stop if script.stop_at is not None else ""):
            self.wrong(f"stop sequence {finished.stop_sequence!r}")

    def _on_completed(self, completed: gen.GenerationCompleted) -> None:
        self.is_complete = True
        if None in self.finishes:
            self.wrong("completed while choices are open")
        usage = completed.usage
        self._check_usage(
            usage.output_token_count if usage.HasField("output_token_count") else None,
            usage.prompt_token_count if usage.HasField("prompt_token_count") else None,
        )


class ChunkCheck(AnswerCheck):
    """Follows the server-sent events of a streamed answer, up to [DONE] or an error event."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.error: dict[str, Any] | None = None
        self._place = (0, 0)

    def feed(self, data: str, event_id: str) -> None:
        """Take the next event: its data, and the last id that stood before it."""
        self.events += 1
        if self.is_complete or self.error is not None:
            self.wrong(f"an event behind the end: {data[:60]}")
        if data == "[DONE]":
            self.is_complete = True
            if self.output_tokens is None and self.is_unrun:
                self.output_tokens = 0  # usage is null where the prompt was not counted
            if None in self.finishes or self.output_tokens is None:
                self.wrong(f"[DONE] behind choices {self.finishes} and usage {self.output_tokens}")
            return
        document = json.loads(data)
        if "error" in document:
            self.error = document["error"]
            return
        self._check_place(event_id)
        self._identify(document["id"])
        for choice in document["choices"]:
            self._on_choice(choice)
        if usage := document.get("usage"):
            self._check_usage(usage["completion_tokens"], usage["prompt_tokens"])

    def _check_place(self, event_id: str) -> None:
        """Ids are the numbers of the contract's events; of several chunks of one, only the last has no part."""
        match = _CHUNK_ID.fullmatch(event_id)
        if match is None:
            self.wrong(f"id {event_id!r}")
            return
        last, place = self._place, (int(match[1]), int(match[2] or 0))
        is_next = place[0] > last[0] and place[1] in (0, 1) if last[1] == 0 else place[0] == last[0]
        if not is_next or (last[1] and place[1] not in (0, last[1] + 1)):
            self.wrong(f"id {event_id} behind {last[0]}.{last[1]}")
        self._place = place

    def _identify(self, name: str) -> None:
        generation_id = name.partition("-")[2]
        if not self.generation_id:
            self.is_started, self.generation_id = True, generation_id
        if generation_id != self.generation_id:
            self.wrong(f"id {name} behind {self.generation_id}")

    def _on_choice(self, document: dict[str, Any]) -> None:
        choice = self._choice(document["index"])
        if choice is None:
            return
        text = document["delta"].get("content") if "delta" in document else document["text"]
        if text and "error" not in document:
            self.wrong(choice.add_text(text))
        _add_logprobs(self, choice, document.get("logprobs"))
        if document["finish_reason"] is not None:
            _end(self, choice, document)


class DocumentCheck(AnswerCheck):
    """Checks a whole answer."""

    def feed(self, document: dict[str, Any]) -> None:
        """Take the answer."""
        self.events = 1
        self.is_started = self.is_complete = True
        self.generation_id = document["id"].partition("-")[2]
        if sorted(choice["index"] for choice in document["choices"]) != list(range(len(self.choices))):
            self.wrong(f"choices {[choice['index'] for choice in document['choices']]}")
        for one in document["choices"]:
            choice = self._choice(one["index"])
            if choice is not None:
                self.wrong(choice.add_text(one["message"]["content"] if "message" in one else one["text"]))
                _add_logprobs(self, choice, one.get("logprobs"))
                _end(self, choice, one)
        if document["usage"] is None and self.is_unrun:
            self.output_tokens = 0
            return
        usage = document["usage"] or {}
        self._check_usage(usage.get("completion_tokens"), usage.get("prompt_tokens"))


def _add_logprobs(check: AnswerCheck, choice: ChoiceText, logprobs: dict[str, Any] | None) -> None:
    if logprobs is None:
        return
    if not check.plan.wants_details:
        check.wrong("log-probs that nobody asked for")
    for one in logprobs["content"]:
        check.wrong(choice.add_logprob(bytes(one["bytes"]), one["logprob"]))


def _end(check: AnswerCheck, choice: ChoiceText, document: dict[str, Any]) -> None:
    """Take the end of a choice in OpenAI's words: no count, and one word for every way to run out of room."""
    native = document.get("native_finish_reason", document["finish_reason"])
    check.wrong(choice.end(native.upper(), None, has_ids=False, has_logprobs=check.plan.wants_details))
    if document["finish_reason"] != {"time_limit": "length"}.get(native, native):
        check.wrong(f"finish reason {document['finish_reason']} for {native}")
