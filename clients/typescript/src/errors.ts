/**
 * Failures of Headrace calls: one class, told apart by its `kind`.
 *
 * Owns the way from a gRPC status with its details to a kind, in two tables. Knows neither streams nor grpc-js.
 */
import { NO_DETAILS, type ErrorDetails, type Violation } from "./details.js";
import type { ErrorReason } from "./gen/headrace/v1/error_reason_pb.js";

/** What went wrong, as far as a caller would act differently; a `switch` over it can be exhaustive. */
export type ErrorKind =
  /** The request is wrong; `violations` names every field. */
  | "invalid_request"
  /** Prompt plus requested output do not fit the model; `metadata` has the numbers. */
  | "context_length"
  /** The message is over the transport's size limit. */
  | "too_large"
  /** The idempotency key was used for another request. */
  | "idempotency_mismatch"
  /** This model cannot do what was asked; `metadata.capability` names what. */
  | "unsupported"
  /** No such model or generation, or its events are no longer kept. */
  | "not_found"
  /** Credentials are missing, wrong, or not enough. */
  | "access_denied"
  /** The waiting line is full or too slow; `retryAfterMs` says when to come back. */
  | "overloaded"
  /** A limit of the caller's own tenant; `retryAfterMs` says when there is room again. */
  | "rate_limited"
  /** The tenant's quota is spent; waiting for seconds does not help. */
  | "quota_exhausted"
  /** The stream was not read fast enough, and the server stopped the generation. */
  | "reader_too_slow"
  /** The deadline passed, in the line or while decoding. */
  | "deadline"
  /** The server or its engine cannot be reached, is loading, or is shutting down. */
  | "unavailable"
  /** The call was cancelled: from here (then `name` is "AbortError"), or by the other side. */
  | "cancelled"
  /** A fault of the server; `requestId` finds it in its log. */
  | "internal"
  /** The stream broke its own rules: a gap, or an end without `completed`. What came is not the whole. */
  | "protocol";

/** Names of the gRPC statuses; the index is the code. */
export const STATUS_NAMES = [
  "OK",
  "CANCELLED",
  "UNKNOWN",
  "INVALID_ARGUMENT",
  "DEADLINE_EXCEEDED",
  "NOT_FOUND",
  "ALREADY_EXISTS",
  "PERMISSION_DENIED",
  "RESOURCE_EXHAUSTED",
  "FAILED_PRECONDITION",
  "ABORTED",
  "OUT_OF_RANGE",
  "UNIMPLEMENTED",
  "INTERNAL",
  "UNAVAILABLE",
  "DATA_LOSS",
  "UNAUTHENTICATED",
] as const;

export type StatusName = (typeof STATUS_NAMES)[number];

/** The names that this version knows of headrace.v1.ErrorReason. */
export type Reason = Exclude<keyof typeof ErrorReason, "UNSPECIFIED">;

export const KIND_BY_REASON: Readonly<Record<Reason, ErrorKind>> = {
  INVALID_FIELD: "invalid_request",
  CONTEXT_LENGTH_EXCEEDED: "context_length",
  CAPABILITY_UNSUPPORTED: "unsupported",
  MODEL_NOT_FOUND: "not_found",
  MODEL_NOT_READY: "unavailable",
  QUEUE_FULL: "overloaded",
  RATE_LIMITED: "rate_limited",
  QUOTA_EXHAUSTED: "quota_exhausted",
  DEADLINE_TOO_SHORT: "deadline",
  DEADLINE_IN_QUEUE: "deadline",
  DEADLINE_IN_DECODE: "deadline",
  DRAINING: "unavailable",
  BACKEND_UNAVAILABLE: "unavailable",
  BACKEND_ERROR: "internal",
  CONSUMER_TOO_SLOW: "reader_too_slow",
  IDEMPOTENCY_MISMATCH: "idempotency_mismatch",
  GENERATION_NOT_FOUND: "not_found",
  REPLAY_EXPIRED: "not_found",
  UNAUTHENTICATED: "access_denied",
  PERMISSION_DENIED: "access_denied",
  INTERNAL: "internal",
  QUEUE_TIMEOUT: "overloaded",
  FIRST_TOKEN_TIMEOUT: "unavailable",
  TOKEN_GAP_TIMEOUT: "unavailable",
  GENERATION_LOST: "unavailable",
  STORE_UNAVAILABLE: "unavailable",
};

const KIND_BY_STATUS: Readonly<Record<StatusName, ErrorKind>> = {
  OK: "internal", // not a failure; never asked for
  CANCELLED: "cancelled",
  UNKNOWN: "internal",
  INVALID_ARGUMENT: "invalid_request",
  DEADLINE_EXCEEDED: "deadline",
  NOT_FOUND: "not_found",
  ALREADY_EXISTS: "invalid_request",
  PERMISSION_DENIED: "access_denied",
  RESOURCE_EXHAUSTED: "overloaded",
  FAILED_PRECONDITION: "unsupported",
  ABORTED: "internal",
  OUT_OF_RANGE: "invalid_request",
  UNIMPLEMENTED: "unsupported",
  INTERNAL: "internal",
  UNAVAILABLE: "unavailable",
  DATA_LOSS: "internal",
  UNAUTHENTICATED: "access_denied",
};

// Causes that may go away by themselves.
const MAY_PASS: ReadonlySet<ErrorKind> = new Set<ErrorKind>(["overloaded", "rate_limited", "unavailable"]);

/** A call failed. `kind` says how, `reason` exactly why; `message` is for people, the rest for programs. */
export class HeadraceError extends Error {
  readonly kind: ErrorKind;
  readonly status: StatusName;
  /** Name of the ErrorReason; undefined where the failure did not come from a Headrace server (no connection, a local timeout). */
  readonly reason: Reason | (string & {}) | undefined;
  readonly metadata: Readonly<Record<string, string>>;
  readonly violations: readonly Violation[];
  /** When to come back, if the server said so. */
  readonly retryAfterMs: number | undefined;
  /** As the server's log knows the request. */
  readonly requestId: string | undefined;
  /** Name of what was not found. */
  readonly resource: string | undefined;
  /** How many events came before it. */
  readonly eventsReceived: number;

  constructor(message: string, options: HeadraceErrorOptions) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    const details = options.details ?? NO_DETAILS;
    this.name = options.isAbort ? "AbortError" : "HeadraceError";
    this.kind = options.kind;
    this.status = options.status;
    this.reason = details.reason;
    this.metadata = details.metadata;
    this.violations = details.violations;
    this.retryAfterMs = details.retryAfterMs;
    this.requestId = details.requestId ?? options.requestId;
    this.resource = details.resource;
    this.eventsReceived = options.eventsReceived ?? 0;
  }

  /** Whether the same call may be made again, after `retryAfterMs`, without running a generation twice. */
  get isRetriable(): boolean {
    return this.eventsReceived === 0 && MAY_PASS.has(this.kind);
  }
}

export interface HeadraceErrorOptions {
  readonly kind: ErrorKind;
  readonly status: StatusName;
  readonly details?: ErrorDetails;
  /** Where the details have none. */
  readonly requestId?: string | undefined;
  readonly eventsReceived?: number;
  /** The caller asked for the end. */
  readonly isAbort?: boolean;
  readonly cause?: unknown;
}

/** Return the kind of a failure: by its reason where it has one that is known, else by its status. */
export function kindOf(status: StatusName, reason: string | undefined, message: string): ErrorKind {
  if (reason !== undefined && Object.hasOwn(KIND_BY_REASON, reason)) return KIND_BY_REASON[reason as Reason];
  // Made by the gRPC libraries, which have no details to tell it by.
  if (status === "RESOURCE_EXHAUSTED" && reason === undefined && message.includes("larger than max")) return "too_large";
  return KIND_BY_STATUS[status];
}

/** Return the error of a call that this side ended, with what made it do so. */
export function abortError(cause: unknown, eventsReceived = 0): HeadraceError {
  const why = cause instanceof Error ? `: ${cause.message}` : "";
  return new HeadraceError(`the call was cancelled${why}`, {
    kind: "cancelled",
    status: "CANCELLED",
    isAbort: true,
    cause,
    eventsReceived,
  });
}

/** Return the error of a stream that cannot be trusted to be whole. */
export function protocolError(message: string, eventsReceived: number): HeadraceError {
  return new HeadraceError(message, { kind: "protocol", status: "INTERNAL", eventsReceived });
}
