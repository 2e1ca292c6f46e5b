/**
 * One generation as the caller holds it: an async iterable of events.
 *
 * Owns the life of one call, the order of its events and what is kept of them. Knows nothing of grpc-js.
 */
import { Collector, finishReasonName, timingMs, type FinishReasonName, type Generated, type TimingMs } from "./collect.js";
import type { StreamCall } from "./connection.js";
import { abortError, type HeadraceError } from "./errors.js";
import type {
  ChoiceFinished,
  GenerateResponse,
  GenerationCompleted,
  GenerationQueued,
  GenerationStarted,
} from "./gen/headrace/v1/generation_pb.js";
import type { Usage } from "./gen/headrace/v1/usage_pb.js";
import { EventOrder } from "./order.js";
import { isLost, Tries } from "./resume.js";

const LEFT = "the generation was left";

/** How the calls of one generation are made. */
export interface HowToRead {
  /** Begin the call, to be ended by the signal. */
  readonly open: (signal: AbortSignal) => StreamCall<GenerateResponse>;
  /** Begin another one, for the events behind a number, where the first was lost; return undefined where that cannot be. */
  readonly reopen?: Reopen | undefined;
  /** Number of the last event that is somebody else's. */
  readonly after: number;
  readonly timeoutMs: number;
  readonly signal: AbortSignal | undefined;
}

/** The id is undefined where no event has told it. */
export type Reopen = (
  generationId: string | undefined,
  after: number,
  options: { signal: AbortSignal; timeoutMs: number },
) => StreamCall<GenerateResponse> | undefined;

/**
 * A generation, to be read once: by iterating its events, or with `deltas`, `text` or `collect`.
 *
 * Nothing is sent before it is read. Leaving the loop, by `break`, `return` or an exception, cancels what is left of it and
 * frees the slot on the server; so do its AbortSignal, `cancel` and `await using`.
 *
 * One that is retained (it has an idempotency key, or asks for retention) is joined again when the connection is lost, as
 * often as its timeout allows, and goes on behind the last event. Leaving such a one ends the call and not the generation,
 * which the server stops when it has had no reader for a while: `client.cancelGeneration` stops it at once.
 *
 * Reading throws HeadraceError if the call fails or if the stream has a gap or no end, so a cut never looks like success.
 */
export class Generation implements AsyncIterable<GenerateResponse>, AsyncDisposable {
  /** The initial metadata, with the first event: `x-ratelimit-...`, `idempotent-replayed`. */
  headers: Readonly<Record<string, string>> = {};
  /** The last event of its kind. */
  queued: GenerationQueued | undefined;
  started: GenerationStarted | undefined;
  completed: GenerationCompleted | undefined;
  /** How each choice ended, so far. */
  readonly choicesFinished = new Map<number, ChoiceFinished>();
  /** From the begin of the call to its first output, on this machine's clock. */
  timeToFirstDeltaMs: number | undefined;
  /** How often the connection was lost, and the generation joined again. */
  resumed = 0;

  readonly #how: HowToRead;
  readonly #order: EventOrder;
  readonly #stop = new AbortController();
  #reading: AsyncGenerator<GenerateResponse, void, undefined> | undefined;
  #isTaken = false;
  #beganMs = 0;

  /** For `HeadraceClient`, which knows the calls. */
  constructor(how: HowToRead) {
    this.#how = how;
    this.#order = new EventOrder(how.after);
  }

  /** For `client.getGeneration` and `client.cancelGeneration`; known with the first event. */
  get generationId(): string | undefined {
    return this.started?.generationId || this.queued?.generationId || this.headers["x-generation-id"];
  }

  /** As the server's log knows the request; known with the first event. */
  get requestId(): string | undefined {
    return this.headers["x-request-id"];
  }

  /** Token counts, once it completed; those that are unset are unknown. */
  get usage(): Usage | undefined {
    return this.completed?.usage;
  }

  /** Where the time went, once it completed. */
  get timing(): TimingMs | undefined {
    return this.completed?.timing === undefined ? undefined : timingMs(this.completed.timing);
  }

  /** Why each choice ended, so far: `{0: "STOP"}`. */
  get finishReasons(): Record<number, FinishReasonName> {
    return Object.fromEntries([...this.choicesFinished].map(([index, choice]) => [index, finishReasonName(choice.reason)]));
  }

  /** Every event in order. Those of a kind that this version does not know are skipped. */
  [Symbol.asyncIterator](): AsyncGenerator<GenerateResponse, void, undefined> {
    const events = this.#leavable(this.#events());
    this.#reading ??= events;
    return events;
  }

  /** The pieces of text of one choice as they come. */
  deltas(choice = 0): AsyncGenerator<string, void, undefined> {
    return this.#leavable(this.#deltas(choice));
  }

  /** Read to the end and return the text of the first choice. One that ended early is a text too: see `finishReasons`. */
  async text(): Promise<string> {
    let text = "";
    for await (const piece of this.deltas()) text += piece;
    return text;
  }

  /** Read to the end and return all of it: texts, reasoning, tool calls, finish reasons, usage, timing. */
  async collect(): Promise<Generated> {
    const collector = new Collector();
    for await (const event of this) collector.take(event);
    const { choices } = collector;
    return {
      text: choices[0]?.text ?? "",
      finishReason: choices[0]?.finishReason ?? "UNSPECIFIED",
      choices,
      usage: this.usage,
      timing: this.timing,
      model: this.started?.model,
      generationId: this.generationId,
      requestId: this.requestId,
    };
  }

  /**
   * Stop the call at once; whoever reads it gets the error `cancelled`, with `cause` as its cause. Nothing more comes,
   * neither usage nor a finish reason; `client.cancelGeneration` is for who wants those. Does nothing after the end.
   */
  cancel(cause?: unknown): void {
    this.#stop.abort(cause);
  }

  /** For `await using`: cancels what is left. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.cancel(LEFT);
    await this.#reading?.return();
  }

  async *#events(): AsyncGenerator<GenerateResponse, void, undefined> {
    if (this.#isTaken) throw new Error("a generation is read once; call generate() again for another");
    this.#isTaken = true;
    const { open, signal, timeoutMs } = this.#how;
    const onAbort = (): void => this.cancel(signal?.reason);
    signal?.addEventListener("abort", onAbort, { once: true });
    if (signal?.aborted) onAbort();
    const tries = new Tries(timeoutMs);
    this.#beganMs = performance.now();
    try {
      for (let call = open(this.#stop.signal); ; ) {
        let failure: HeadraceError;
        try {
          for await (const message of call.messages) {
            if (call.isCancelled) break; // what was read ahead is nobody's any more
            this.#take(message, call);
            if (message.event.case === undefined) continue;
            tries.progressed();
            yield message;
          }
          if (call.isCancelled) throw abortError(undefined);
          this.#order.end();
          call.endOk(this.#facts);
          return;
        } catch (caught) {
          failure = call.endFailed(caught, this.#facts);
        } finally {
          call.endLeft(this.#facts); // nothing, where one of the above was
        }
        call = await this.#again(failure, tries);
      }
    } finally {
      signal?.removeEventListener("abort", onAbort);
    }
  }

  /** Return a call that goes on where one was lost. Rejects with `lost` where that may not be, or is in vain. */
  async #again(lost: HeadraceError, tries: Tries): Promise<StreamCall<GenerateResponse>> {
    const { reopen } = this.#how;
    if (reopen === undefined || !isLost(lost)) throw lost;
    const { signal } = this.#stop;
    const timeoutMs = await tries.next(signal).catch(() => {
      throw abortError(signal.reason, this.#order.sequence);
    });
    const call = timeoutMs === undefined ? undefined : reopen(this.generationId, this.#order.sequence, { signal, timeoutMs });
    if (call === undefined) throw lost;
    this.resumed += 1;
    return call;
  }

  async *#deltas(choice: number): AsyncGenerator<string, void, undefined> {
    for await (const { event } of this) {
      if (event.case === "delta" && event.value.index === choice && event.value.content.case === "text") {
        if (event.value.content.value !== "") yield event.value.content.value;
      }
    }
  }

  /**
   * Have a generator's end cancel the call at once. By itself it would wait for the read that is under way, and with it the
   * engine: where a stream that was made of it (`ReadableStream.from`, `Readable.from`) is cancelled during prefill.
   */
  #leavable<T>(items: AsyncGenerator<T, void, undefined>): AsyncGenerator<T, void, undefined> {
    const end = items.return.bind(items);
    const fail = items.throw.bind(items);
    items.return = (value) => {
      this.cancel(LEFT);
      return end(value);
    };
    items.throw = (error) => {
      this.cancel(error);
      return fail(error);
    };
    return items;
  }

  /** Look at the order of an event, and keep what the caller may ask for later. */
  #take(message: GenerateResponse, call: StreamCall<GenerateResponse>): void {
    if (this.#order.sequence === this.#how.after) this.headers = call.headers;
    this.#order.take(message);
    const { event } = message;
    switch (event.case) {
      case "delta":
        if (event.value.content.case !== undefined) this.timeToFirstDeltaMs ??= performance.now() - this.#beganMs;
        break;
      case "queued":
        this.queued = event.value;
        break;
      case "started":
        this.started = event.value;
        break;
      case "choiceFinished":
        this.choicesFinished.set(event.value.index, event.value);
        break;
      case "completed":
        this.completed = event.value;
        break;
    }
  }

  get #facts(): { messages: number; firstDeltaMs: number | undefined } {
    return { messages: this.#order.sequence, firstDeltaMs: this.timeToFirstDeltaMs };
  }
}
