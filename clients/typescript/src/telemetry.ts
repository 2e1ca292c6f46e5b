/**
 * One CLIENT span per call, and the W3C trace context that goes on the wire, with the OpenTelemetry API alone.
 *
 * Without an SDK the spans are no-ops, and nothing is sent. Nothing here runs per event. Names are those of
 * docs/observability.md.
 */
import {
  context as contexts,
  isSpanContextValid,
  SpanKind,
  SpanStatusCode,
  trace,
  type Context,
  type Span,
} from "@opentelemetry/api";

import type { HeadraceError } from "./errors.js";
import { VERSION } from "./version.js";

const TARGET_SCHEME = /^(dns|ipv4|ipv6|xds):(\/\/[^/]*\/)?/;

/** The span of one call; ended once, by the first of its `end` methods. */
export class CallSpan {
  readonly #span: Span;

  /** Begin it. `method` is "package.Service/Method"; the parent is the active context if none is given. */
  constructor(method: string, target: string, parent: Context = contexts.active()) {
    const { address, port } = hostAndPort(target);
    this.#span = trace.getTracer("@headrace/client", VERSION).startSpan(
      method,
      {
        kind: SpanKind.CLIENT,
        attributes: {
          "rpc.system.name": "grpc",
          "rpc.method": method,
          "server.address": address,
          ...(port === undefined ? {} : { "server.port": port }),
        },
      },
      parent,
    );
  }

  /** traceparent and tracestate of this span, so that the server's becomes its child; nothing where nobody traces. */
  get headers(): Readonly<Record<string, string>> {
    // Written here and not by the global propagator, which would also forward baggage, and that may hold anything.
    const span = this.#span.spanContext();
    if (!isSpanContextValid(span)) return {};
    const flags = span.traceFlags.toString(16).padStart(2, "0");
    const state = span.traceState?.serialize();
    return { traceparent: `00-${span.traceId}-${span.spanId}-${flags}`, ...(state ? { tracestate: state } : {}) };
  }

  /** End after status OK, having read this many messages and the first output after this long. */
  endOk(facts: StreamFacts = {}): void {
    this.#end("OK", facts);
  }

  /** End a call that this side cancelled: not an error, since nothing went wrong. */
  endCancelled(facts: StreamFacts = {}): void {
    this.#end("CANCELLED", facts);
  }

  /** End after any other status. The message stays out: it may quote the request. */
  endError(error: HeadraceError, facts: StreamFacts = {}): void {
    this.#span.setAttribute("error.type", error.status);
    if (error.reason !== undefined) this.#span.setAttribute("headrace.error.reason", error.reason);
    this.#span.setStatus(
      error.reason === undefined
        ? { code: SpanStatusCode.ERROR }
        : { code: SpanStatusCode.ERROR, message: error.reason },
    );
    this.#end(error.status, facts);
  }

  #end(status: string, { messages, firstDeltaMs }: StreamFacts): void {
    if (!this.#span.isRecording()) return;
    this.#span.setAttribute("rpc.response.status_code", status);
    if (messages !== undefined) this.#span.setAttribute("headrace.stream.messages", messages);
    if (firstDeltaMs !== undefined) {
      this.#span.setAttribute("headrace.stream.time_to_first_delta_s", firstDeltaMs / 1000);
    }
    this.#span.end();
  }
}

/** What is known of a stream at its end. */
export interface StreamFacts {
  readonly messages?: number;
  readonly firstDeltaMs?: number | undefined;
}

/** Split a gRPC target into what telemetry calls server.address and server.port. */
export function hostAndPort(target: string): { address: string; port?: number } {
  if (target.startsWith("unix:")) return { address: target.replace(/^unix:(\/\/)?/, "") };
  const [first = ""] = target.replace(TARGET_SCHEME, "").split(",");
  const match = /^(\[[^\]]*\]|[^:]*):(\d+)$/.exec(first);
  if (match === null) return { address: first.replace(/^\[|\]$/g, "") };
  return { address: match[1]!.replace(/^\[|\]$/g, ""), port: Number(match[2]) };
}
