/**
 * The rules that the events of one generation keep: numbers without a gap, `started` before output, `completed` last.
 *
 * Pure: it sees events and knows nothing of calls.
 */
import { protocolError } from "./errors.js";
import type { GenerateResponse } from "./gen/headrace/v1/generation_pb.js";

/** Watches the events of one stream, that begins behind event `after`. */
export class EventOrder {
  readonly #after: number;
  #sequence: number;
  #isStarted = false;
  #isCompleted = false;

  constructor(after = 0) {
    this.#after = after;
    this.#sequence = after;
  }

  /** Events that have come, by this stream and before it. */
  get sequence(): number {
    return this.#sequence;
  }

  /** Take the next event; one of a kind that this version does not know counts as well. Throws for one out of order. */
  take(message: GenerateResponse): void {
    if (message.sequence !== this.#sequence + 1) {
      throw this.#broken(`event ${message.sequence} came in place of event ${this.#sequence + 1}`);
    }
    const kind = message.event.case;
    if (this.#isCompleted) throw this.#broken(`\`${kind ?? "an unknown event"}\` came behind \`completed\``);
    this.#sequence = message.sequence;
    if (kind === undefined) return;
    // The beginning of a generation that is joined in its middle was somebody else's to look at.
    if (this.#after === 0 && (kind === "queued" || kind === "started") === this.#isStarted) {
      throw this.#broken(`\`${kind}\` came ${this.#isStarted ? "behind" : "before"} \`started\``);
    }
    if (kind === "started") this.#isStarted = true;
    if (kind === "completed") this.#isCompleted = true;
  }

  /** Look at the end of the stream. Throws where it comes too early. */
  end(): void {
    // Behind the last event of a generation there is nothing to come.
    const isBehindTheLast = this.#after > 0 && this.#sequence === this.#after;
    if (!this.#isCompleted && !isBehindTheLast) {
      throw this.#broken("the stream ended without `completed`, so output may be missing");
    }
  }

  #broken(message: string): Error {
    return protocolError(message, this.#sequence);
  }
}
