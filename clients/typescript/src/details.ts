/**
 * What the google.rpc details of a failed call say.
 *
 * Owns the bytes of `grpc-status-details-bin`: google.rpc.Status and five of the messages in it, read by their field
 * numbers, which saves a dependency for a dozen fields. Knows neither gRPC's calls nor what a reason means.
 */
import { BinaryReader, WireType } from "@bufbuild/protobuf/wire";

/** One thing wrong with one field: its path in the request, and what is accepted there. */
export interface Violation {
  readonly field: string;
  readonly description: string;
}

/** The details of one status; what it does not say is left out. */
export interface ErrorDetails {
  readonly reason?: string;
  /** Of the reason, for programs: names and values as docs/errors.md has them. */
  readonly metadata: Readonly<Record<string, string>>;
  readonly violations: readonly Violation[];
  readonly retryAfterMs?: number;
  readonly requestId?: string;
  /** Name of what was not found. */
  readonly resource?: string;
}

export const NO_DETAILS: ErrorDetails = { metadata: {}, violations: [] };

const DOMAIN = "headrace.v1";

/** Read the details; those that are broken, unknown or of another domain are left out. */
export function readDetails(status: Uint8Array): ErrorDetails {
  const found: Mutable<ErrorDetails> = { ...NO_DETAILS };
  for (const [type, value] of anysOf(status)) {
    try {
      READERS[type]?.(new Fields(value), found);
    } catch {
      // A detail that cannot be read is as good as none: the status itself still tells what happened.
    }
  }
  return found;
}

type Mutable<T> = { -readonly [K in keyof T]: T[K] };

const READERS: Readonly<Record<string, (fields: Fields, into: Mutable<ErrorDetails>) => void>> = {
  "google.rpc.ErrorInfo": (fields, into) => {
    if (fields.text(2) !== DOMAIN) return;
    const reason = fields.text(1);
    if (reason) into.reason = reason;
    into.metadata = Object.fromEntries(fields.messages(3).map((entry) => [entry.text(1), entry.text(2)]));
  },
  "google.rpc.BadRequest": (fields, into) => {
    into.violations = fields.messages(1).map((one) => ({ field: one.text(1), description: one.text(2) }));
  },
  "google.rpc.RetryInfo": (fields, into) => {
    const [delay] = fields.messages(1);
    // Whole milliseconds, rounded up: who comes back after them is not early.
    const ms = delay === undefined ? 0 : Math.ceil(delay.integer(1) * 1000 + delay.integer(2) / 1e6);
    if (ms >= 0) into.retryAfterMs = ms;
  },
  "google.rpc.RequestInfo": (fields, into) => {
    const requestId = fields.text(1);
    if (requestId) into.requestId = requestId;
  },
  "google.rpc.ResourceInfo": (fields, into) => {
    const resource = fields.text(2);
    if (resource) into.resource = resource;
  },
};

function anysOf(status: Uint8Array): [string, Uint8Array][] {
  try {
    // google.rpc.Status.details, google.protobuf.Any
    return new Fields(status).messages(3).map((any) => [any.text(1).replace(/^.*\//, ""), any.bytes(2)]);
  } catch {
    return [];
  }
}

/** The fields of one message, by number. Reading throws for bytes that are none. */
class Fields {
  readonly #values = new Map<number, (Uint8Array | number)[]>();

  constructor(message: Uint8Array) {
    const reader = new BinaryReader(message);
    while (reader.pos < reader.len) {
      const [number, type] = reader.tag();
      const values = this.#values.get(number) ?? [];
      this.#values.set(number, values);
      if (type === WireType.LengthDelimited) values.push(reader.bytes());
      else if (type === WireType.Varint) values.push(Number(reader.int64()));
      else reader.skip(type, number);
    }
  }

  bytes(number: number): Uint8Array {
    const value = this.#values.get(number)?.at(-1);
    return value instanceof Uint8Array ? value : new Uint8Array();
  }

  text(number: number): string {
    return new TextDecoder().decode(this.bytes(number));
  }

  integer(number: number): number {
    const value = this.#values.get(number)?.at(-1);
    return typeof value === "number" ? value : 0;
  }

  messages(number: number): Fields[] {
    const values = this.#values.get(number) ?? [];
    return values.filter((value) => value instanceof Uint8Array).map((value) => new Fields(value));
  }
}
