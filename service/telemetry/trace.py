"""The spans of one generation below the RPC's own.

    headrace.v1.GenerationService/Generate   SERVER, by the interceptor
      wait for a slot                        INTERNAL: only of a request that had to wait
      chat <model> | text_completion <model> CLIENT (INTERNAL in process): the engine's work
        await first token                    INTERNAL: admitted to first token
        stream tokens                        INTERNAL: first to last token

Phase spans instead of events: every viewer shows them as bars, and "await
first token" ends at the first token, minutes before a long stream does.
Nothing per token. No span is ever current across a `yield`: contexts are
passed explicitly.
"""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from runtime import semconv
from service.backends.base import BackendInfo, EngineFinished
from service.core.events import FinishReason, Usage
from service.core.request import Chat, GenerationRequest, Sampling

__all__ = ["GenerationTrace"]

_tracer = trace.get_tracer("headrace.service")

_SAMPLING: Mapping[str, str] = {
    "temperature": semconv.GEN_AI_REQUEST_TEMPERATURE,
    "top_p": semconv.GEN_AI_REQUEST_TOP_P,
    "top_k": semconv.GEN_AI_REQUEST_TOP_K,
    "frequency_penalty": semconv.GEN_AI_REQUEST_FREQUENCY_PENALTY,
    "presence_penalty": semconv.GEN_AI_REQUEST_PRESENCE_PENALTY,
    "max_output_tokens": semconv.GEN_AI_REQUEST_MAX_TOKENS,
    "seed": semconv.GEN_AI_REQUEST_SEED,
}


class GenerationTrace:
    """The engine's span and its two phases; `end` must be called once."""

    __slots__ = ("_context", "_generation_id", "_info", "_model", "_phase", "_span", "_wait", "call_context",
                 "operation")  # fmt: skip

    def __init__(self, generation_id: str, model: str, info: BackendInfo, context: Context) -> None:
        self._generation_id = generation_id
        self._model = model
        self._info = info
        self._context = self.call_context = context
        self._span: Span | None = None
        self._phase: Span | None = None
        self._wait: Span | None = None
        self.operation = "text_completion"

    def waits(self) -> None:
        """Begin the span of a wait; where there is no wait, there is none."""
        # Without the model: viewers take a span that has it for a call of the model.
        self._wait = _tracer.start_span("wait for a slot", context=self._context)

    def _end_wait(self) -> None:
        if self._wait is not None:
            self._wait.end()
            self._wait = None

    def admitted(self, request: GenerationRequest, sampling: Sampling) -> None:
        """Begin the engine's span: a refused request never has one."""
        self._end_wait()
        self.operation = "chat" if isinstance(request.input, Chat) else "text_completion"
        attributes: dict[str, str | int | float | bool] = {
            semconv.GEN_AI_OPERATION: self.operation,
            semconv.GEN_AI_PROVIDER: self._info.provider,
            semconv.GEN_AI_REQUEST_MODEL: self._model,
            semconv.GEN_AI_REQUEST_STREAM: True,
            semconv.GENERATION_ID: self._generation_id,
        }
        if self._info.server_address is not None:
            attributes[semconv.SERVER_ADDRESS] = self._info.server_address
            if self._info.server_port is not None:
                attributes[semconv.SERVER_PORT] = self._info.server_port
        if request.end_user:
            attributes[semconv.ENDUSER_ID] = request.end_user
        if request.choice_count != 1:
            attributes[semconv.GEN_AI_REQUEST_CHOICES] = request.choice_count
        for name, key in _SAMPLING.items():
            value = getattr(sampling, name)
            if value is not None:
                attributes[key] = value
        is_remote = self._info.server_address is not None
        self._span = _tracer.start_span(
            f"{self.operation} {self._model}",
            context=self._context,
            kind=SpanKind.CLIENT if is_remote else SpanKind.INTERNAL,
            attributes=attributes,
        )
        self._context = trace.set_span_in_context(self._span, self._context)
        self._phase = _tracer.start_span("await first token", context=self._context)

    def headers(self) -> Mapping[str, str]:
        """Return the W3C headers for the engine; empty unless the span is sampled.

        Triton traces every request that carries a valid context, whatever its
        sampled flag says, so an unsampled one sends none.
        """
        carrier: dict[str, str] = {}
        if self._span is not None and self._span.get_span_context().trace_flags.sampled:
            propagate.inject(carrier, context=self._context)
        return carrier

    def first_token(self) -> None:
        """Turn from the first phase to the second."""
        if self._phase is not None:
            self._phase.end()
            self._phase = _tracer.start_span("stream tokens", context=self._context)

    def engine_reported(self, finished: EngineFinished) -> None:
        """Note the engine's own times, which are never mixed with ours."""
        if self._span is None:
            return
        for key, value in (
            (semconv.GEN_AI_LATENCY_QUEUE, finished.engine_queue_s),
            (semconv.GEN_AI_LATENCY_PREFILL, finished.engine_prefill_s),
            (semconv.GEN_AI_LATENCY_DECODE, finished.engine_decode_s),
        ):
            if value is not None:
                self._span.set_attribute(key, value)

    def end(
        self,
        *,
        ttft_s: float | None,
        usage: Usage,
        finish_reasons: list[FinishReason],
        error_type: str | None = None,
        detail: str | None = None,
    ) -> None:
        """End the spans; `error_type` is the status of a failure, None for success and for a cancel."""
        self._end_wait()
        if self._span is None:
            return
        if self._phase is not None:
            self._phase.end()
        span = self._span
        span.set_attribute(semconv.GEN_AI_RESPONSE_ID, self._generation_id)
        span.set_attribute(semconv.GEN_AI_RESPONSE_MODEL, self._model)
        if ttft_s is not None:
            span.set_attribute(semconv.GEN_AI_TTFC, ttft_s)
        if finish_reasons:
            span.set_attribute(semconv.GEN_AI_FINISH_REASONS, [reason.name.lower() for reason in finish_reasons])
        for key, count in (
            (semconv.GEN_AI_INPUT_TOKENS, usage.prompt_tokens),
            (semconv.GEN_AI_OUTPUT_TOKENS, usage.output_tokens),
            (semconv.GEN_AI_CACHED_TOKENS, usage.cached_prompt_tokens),
            (semconv.GEN_AI_REASONING_TOKENS, usage.reasoning_tokens),
        ):
            if count is not None:
                span.set_attribute(key, count)
        if error_type is not None:
            span.set_attribute(semconv.ERROR_TYPE, error_type)
            span.set_status(Status(StatusCode.ERROR, detail))
        span.end()
        self._span = None
