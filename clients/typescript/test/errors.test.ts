import assert from "node:assert/strict";
import { test } from "node:test";

import { status } from "@grpc/grpc-js";
import { HeadraceError } from "@headrace/client";
import { ErrorReason } from "@headrace/client/v1";

import { abortError, KIND_BY_REASON, kindOf, STATUS_NAMES, type ErrorKind } from "#dist/errors.js";

test("every reason of the contract has a kind", () => {
  const reasons = Object.keys(ErrorReason).filter((name) => Number.isNaN(Number(name)) && name !== "UNSPECIFIED");
  assert.deepEqual(Object.keys(KIND_BY_REASON).sort(), reasons.sort());
});

test("statuses have the names and numbers of gRPC", () => {
  assert.deepEqual(
    STATUS_NAMES.map((name) => status[name]),
    STATUS_NAMES.map((_, code) => code),
  );
});

test("a reason of a newer server falls back to the status", () => {
  assert.equal(kindOf("RESOURCE_EXHAUSTED", "OF_THE_FUTURE", ""), "overloaded");
  assert.equal(kindOf("UNAVAILABLE", "constructor", ""), "unavailable");
});

test("a message over the library's limit is told from an overloaded server", () => {
  assert.equal(kindOf("RESOURCE_EXHAUSTED", undefined, "Received message larger than max (5 vs 4)"), "too_large");
});

test("what may pass is retriable before the first event and not behind it", () => {
  const error = (kind: ErrorKind, eventsReceived = 0): HeadraceError =>
    new HeadraceError("x", { kind, status: "UNAVAILABLE", eventsReceived });
  assert.ok(error("unavailable").isRetriable);
  assert.ok(error("overloaded").isRetriable);
  assert.ok(error("rate_limited").isRetriable);
  assert.ok(!error("unavailable", 1).isRetriable);
  for (const kind of ["quota_exhausted", "invalid_request", "deadline", "cancelled", "internal", "protocol"] as const) {
    assert.ok(!error(kind).isRetriable, kind);
  }
});

test("an error of an aborted call looks like every other AbortError", () => {
  const error = abortError("why");
  assert.equal(error.name, "AbortError");
  assert.equal(error.kind, "cancelled");
  assert.equal(error.cause, "why");
});
