/**
 * Joining a retained generation again after the connection to it was lost.
 *
 * Owns which failures are a lost connection, and how long to try. Knows nothing of calls: whoever makes a stream says how
 * one is opened again.
 */
import { setTimeout as pause } from "node:timers/promises";

import type { HeadraceError, StatusName } from "./errors.js";

const FIRST_PAUSE_MS = 100;
const LONGEST_PAUSE_MS = 2000;

// What the transport says; a server that is asked says why, in a reason.
const LOST: ReadonlySet<StatusName> = new Set<StatusName>(["UNAVAILABLE", "UNKNOWN", "INTERNAL", "CANCELLED"]);

/** Return whether the connection was lost, rather than the generation, and not by this side. */
export function isLost(error: HeadraceError): boolean {
  return error.reason === undefined && LOST.has(error.status) && error.kind !== "protocol" && error.name !== "AbortError";
}

/** The tries of one stream, within what is left of its timeout: pauses grow from 0.1 s to 2 s, each shortened by lot. */
export class Tries {
  readonly #endsMs: number;
  #count = 0;

  constructor(timeoutMs: number) {
    this.#endsMs = performance.now() + timeoutMs;
  }

  /** Note that an event has come: pauses begin anew. */
  progressed(): void {
    this.#count = 0;
  }

  /** Wait before the next try; return the time that is left for it, undefined for none. Rejects where `signal` is aborted. */
  async next(signal: AbortSignal): Promise<number | undefined> {
    const pauseMs = Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** this.#count) * (0.5 + Math.random() / 2);
    this.#count += 1;
    const leftMs = this.#endsMs - performance.now() - pauseMs;
    if (leftMs <= 0) return undefined;
    await pause(pauseMs, undefined, { signal });
    return leftMs;
  }
}
