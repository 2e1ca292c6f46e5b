import assert from "node:assert/strict";
import { test } from "node:test";

import { NO_DETAILS, readDetails } from "#dist/details.js";

// Written by Google's own Python classes: ErrorInfo, BadRequest with two fields, RetryInfo of 1.250000001 s, RequestInfo,
// ResourceInfo and a DebugInfo, which this client does not read.
const ALL =
  "CAMSCnR3byB0aGluZ3MaVAoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLkVycm9ySW5mbxIoCg1JTlZBTElEX0ZJRUxEEgtoZWFkcmFjZS52" +
  "MRoKCgVsaW1pdBIBMhqZAQopdHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLkJhZFJlcXVlc3QSbAo2ChRzYW1wbGluZy50ZW1wZXJhdHVyZRIe" +
  "bXVzdCBiZSBmcm9tIDAgdG8gMiwgZ290IDkg4piDCjIKEXN0b3Auc2VxdWVuY2VzWzFdEh1tdXN0IGJlIDEgdG8gMjU2IGJ5dGVzLCBnb3QgMBo1Cih0" +
  "eXBlLmdvb2dsZWFwaXMuY29tL2dvb2dsZS5ycGMuUmV0cnlJbmZvEgkKBwgBEIHlmncaNQoqdHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJl" +
  "cXVlc3RJbmZvEgcKBXJlcV8xGj4KK3R5cGUuZ29vZ2xlYXBpcy5jb20vZ29vZ2xlLnJwYy5SZXNvdXJjZUluZm8SDwoFbW9kZWwSBm5vYm9keRo0Cih0" +
  "eXBlLmdvb2dsZWFwaXMuY29tL2dvb2dsZS5ycGMuRGVidWdJbmZvEggSBmluc2lkZQ==";
// An ErrorInfo with the same reason in the domain "other.example".
const FOREIGN =
  "CAgSAXgaUgoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLkVycm9ySW5mbxImCg1JTlZBTElEX0ZJRUxEEg1vdGhlci5leGFtcGxlGgYKAWES" +
  "AWI=";

test("every detail of a status is read", () => {
  assert.deepEqual(readDetails(Buffer.from(ALL, "base64")), {
    reason: "INVALID_FIELD",
    metadata: { limit: "2" },
    violations: [
      { field: "sampling.temperature", description: "must be from 0 to 2, got 9 ☃" },
      { field: "stop.sequences[1]", description: "must be 1 to 256 bytes, got 0" },
    ],
    retryAfterMs: 1251,
    requestId: "req_1",
    resource: "nobody",
  });
});

test("a reason of another domain is not taken for ours", () => {
  assert.deepEqual(readDetails(Buffer.from(FOREIGN, "base64")), NO_DETAILS);
});

test("details that are cut anywhere are read as far as they go, and never throw", () => {
  const bytes = Buffer.from(ALL, "base64");
  for (let end = 0; end < bytes.length; end += 1) {
    const details = readDetails(bytes.subarray(0, end));
    assert.ok(details.reason === undefined || details.reason === "INVALID_FIELD");
  }
});

test("bytes that are broken anywhere never throw", () => {
  const bytes = Buffer.from(ALL, "base64");
  for (let at = 0; at < bytes.length; at += 1) {
    const broken = Buffer.from(bytes);
    broken[at] = broken[at]! ^ 0xff;
    readDetails(broken);
  }
});
