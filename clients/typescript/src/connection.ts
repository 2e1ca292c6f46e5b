/**
 * Calls over one channel: a deadline, metadata, a span, an AbortSignal, and a HeadraceError for each that fails.
 *
 * Owns everything of grpc-js but the channel's options. Knows neither which calls there are nor what events mean.
 */
import type { DescMessage, DescMethodServerStreaming, DescMethodUnary, MessageShape } from "@bufbuild/protobuf";
import { fromBinary, toBinary } from "@bufbuild/protobuf";
import { Client, Metadata, type ClientReadableStream, type ServiceError } from "@grpc/grpc-js";
import type { Context } from "@opentelemetry/api";

import { channelCredentials, channelOptions, type ChannelSettings } from "./channel.js";
import { readDetails } from "./details.js";
import { abortError, HeadraceError, kindOf, STATUS_NAMES } from "./errors.js";
import { toMetadata, toRecord, type CallMetadata } from "./metadata.js";
import { CallSpan, type StreamFacts } from "./telemetry.js";

/** Of a call that is given none. */
export const UNARY_TIMEOUT_MS = 10_000;

/** What goes with one call. */
export interface CallOptions {
  /** Aborting it cancels the call. */
  readonly signal?: AbortSignal | undefined;
  /** Deadline of the call, in milliseconds from its begin. */
  readonly timeoutMs?: number | undefined;
  readonly metadata?: CallMetadata;
  /** Parent of the call's span; the active context if left out. */
  readonly context?: Context;
}

const CLOSED = new Error("the client was closed");

interface Running {
  cancel(cause: unknown): void;
}

/** One channel to one target, opened by its first call. */
export class Connection {
  readonly #target: string;
  readonly #client: Client;
  readonly #metadata: () => CallMetadata;
  readonly #running = new Set<Running>();
  #isClosed = false;

  constructor(target: string, settings: ChannelSettings, metadata: () => CallMetadata) {
    this.#target = target;
    this.#client = new Client(target, channelCredentials(settings.tls), channelOptions(settings));
    this.#metadata = metadata;
  }

  /** Cancel what runs, and close the channel. Closing again does nothing. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    for (const call of this.#running) call.cancel(CLOSED);
    this.#client.close();
  }

  /** Make a unary call. Rejects with HeadraceError, and with TypeError for options that cannot be sent. */
  async unary<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    request: MessageShape<I>,
    options: CallOptions,
  ): Promise<MessageShape<O>> {
    const { deadline, metadata, span, path } = this.#begin(method, options);
    return await new Promise<MessageShape<O>>((resolve, reject) => {
      let cause: { value: unknown } | undefined;
      const call = this.#client.makeUnaryRequest(
        path,
        serializer(method.input),
        parser(method.output),
        request,
        metadata,
        { deadline },
        (failure, response) => {
          release();
          if (failure === null) {
            span.endOk();
            resolve(response!);
          } else if (cause !== undefined) {
            span.endCancelled();
            reject(abortError(cause.value));
          } else {
            const error = errorFromGrpc(failure);
            span.endError(error);
            reject(error);
          }
        },
      );
      const release = this.#watch(
        {
          cancel(why) {
            cause ??= { value: why };
            call.cancel();
          },
        },
        options.signal,
      );
    });
  }

  /** Begin a call that streams its answer. Throws HeadraceError if its signal is aborted, TypeError as `unary`. */
  stream<I extends DescMessage, O extends DescMessage>(
    method: DescMethodServerStreaming<I, O>,
    request: MessageShape<I>,
    options: CallOptions,
  ): StreamCall<MessageShape<O>> {
    const { deadline, metadata, span, path } = this.#begin(method, options);
    const messages = this.#client.makeServerStreamRequest(
      path,
      serializer(method.input),
      parser(method.output),
      request,
      metadata,
      { deadline },
    );
    const call = new StreamCall<MessageShape<O>>(messages, span);
    call.onEnd = this.#watch(call, options.signal);
    return call;
  }

  #begin(
    method: { readonly parent: { readonly typeName: string }; readonly name: string },
    options: CallOptions,
  ): { deadline: number; metadata: Metadata; span: CallSpan; path: string } {
    if (this.#isClosed) throw abortError(CLOSED);
    const { timeoutMs = UNARY_TIMEOUT_MS } = options;
    if (!Number.isFinite(timeoutMs)) {
      throw new TypeError(`timeoutMs has to be a finite number of milliseconds, got ${timeoutMs}`);
    }
    const given = [this.#metadata(), options.metadata ?? {}];
    toMetadata(...given); // says what is wrong with it before there is a span
    if (options.signal?.aborted) throw abortError(options.signal.reason);
    const name = `${method.parent.typeName}/${method.name}`;
    const span = new CallSpan(name, this.#target, options.context);
    return { deadline: Date.now() + timeoutMs, metadata: toMetadata(...given, span.headers), span, path: `/${name}` };
  }

  /** Have a call cancelled by its signal or by `close`, until the function that is returned is called. */
  #watch(call: Running, signal: AbortSignal | undefined): () => void {
    const onAbort = (): void => call.cancel(signal?.reason);
    signal?.addEventListener("abort", onAbort, { once: true });
    this.#running.add(call);
    return () => {
      signal?.removeEventListener("abort", onAbort);
      this.#running.delete(call);
    };
  }
}

/** A call that streams its answer, in progress. Whoever reads it says how it ended, with one of the `end` methods. */
export class StreamCall<T> {
  /** What has come and was not read is at most 16 messages here; HTTP/2's windows bound the rest. */
  readonly messages: AsyncIterable<T>;
  /** The initial metadata, once the first message has come. */
  headers: Readonly<Record<string, string>> = {};
  onEnd: () => void = () => undefined;
  readonly #call: ClientReadableStream<T>;
  readonly #span: CallSpan;
  #cause: { value: unknown } | undefined;
  #isOver = false;

  constructor(call: ClientReadableStream<T>, span: CallSpan) {
    this.#call = call;
    this.#span = span;
    this.messages = call as AsyncIterable<T>;
    call.on("metadata", (metadata: Metadata) => {
      this.headers = toRecord(metadata);
    });
    // A call that is left ends as cancelled when nobody listens any more, and an unheard error ends the process.
    call.on("error", () => undefined);
  }

  /** Whether this side asked for the end. */
  get isCancelled(): boolean {
    return this.#cause !== undefined;
  }

  /** Ask for the end, once; `cause` is told to whoever reads. */
  cancel(cause: unknown): void {
    this.#cause ??= { value: cause };
    this.#call.cancel();
  }

  /** Note that everything came, and status OK. */
  endOk(facts: StreamFacts): void {
    if (this.#close()) this.#span.endOk(facts);
  }

  /** Note that the reader leaves: what is left is cancelled. */
  endLeft(facts: StreamFacts): void {
    if (this.#close()) this.#span.endCancelled(facts);
  }

  /** Note a failure, and return what the reader is to be told; `failure` may be of grpc-js. */
  endFailed(failure: unknown, facts: StreamFacts): HeadraceError {
    const received = facts.messages ?? 0;
    const isOurs = this.#cause !== undefined && !(failure instanceof HeadraceError && failure.kind === "protocol");
    const error = isOurs
      ? abortError(this.#cause?.value, received)
      : failure instanceof HeadraceError
        ? failure
        : errorFromGrpc(failure, received, this.headers["x-request-id"]);
    if (this.#close()) {
      if (isOurs) this.#span.endCancelled(facts);
      else this.#span.endError(error, facts);
    }
    return error;
  }

  #close(): boolean {
    if (this.#isOver) return false;
    this.#isOver = true;
    this.onEnd();
    this.#call.cancel(); // nothing, where the call has ended
    return true;
  }
}

/** Return the error for what grpc-js failed with. */
export function errorFromGrpc(failure: unknown, eventsReceived = 0, requestId?: string): HeadraceError {
  if (!isServiceError(failure)) {
    const message = failure instanceof Error ? failure.message : String(failure);
    return new HeadraceError(message, { kind: "internal", status: "UNKNOWN", eventsReceived, requestId, cause: failure });
  }
  const status = STATUS_NAMES[failure.code] ?? "UNKNOWN";
  const [bytes] = failure.metadata?.get("grpc-status-details-bin") ?? [];
  const details = bytes instanceof Uint8Array ? readDetails(bytes) : undefined;
  return new HeadraceError(failure.details, {
    kind: kindOf(status, details?.reason, failure.details),
    status,
    ...(details === undefined ? {} : { details }),
    requestId,
    eventsReceived,
  });
}

function isServiceError(failure: unknown): failure is ServiceError {
  return failure instanceof Error && "code" in failure && typeof failure.code === "number" && "details" in failure;
}

function serializer<D extends DescMessage>(schema: D): (message: MessageShape<D>) => Buffer {
  return (message) => {
    const bytes = toBinary(schema, message);
    return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  };
}

function parser<D extends DescMessage>(schema: D): (bytes: Buffer) => MessageShape<D> {
  return (bytes) => fromBinary(schema, bytes);
}
