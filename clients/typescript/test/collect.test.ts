import assert from "node:assert/strict";
import { test } from "node:test";

import { create } from "@bufbuild/protobuf";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import { GenerateResponseSchema, TimingSchema } from "@headrace/client/v1";

import { Collector, finishReasonName, timingMs } from "#dist/collect.js";

test("choices, reasoning and tool calls are put together from their pieces", () => {
  const collector = new Collector();
  const contents = [
    { index: 1, content: { case: "text", value: "b" } },
    { index: 0, content: { case: "reasoningText", value: "hm" } },
    { index: 0, content: { case: "text", value: "a" } },
    { index: 0, content: { case: "toolCall", value: { index: 0, id: "c1", functionName: "f" } } },
    { index: 0, content: { case: "toolCall", value: { index: 0, argumentsFragment: '{"x":' } } },
    { index: 0, content: { case: "toolCall", value: { index: 0, argumentsFragment: "1}" } } },
    { index: 1, content: { case: undefined } },
  ] as const;
  for (const value of contents) collector.take(create(GenerateResponseSchema, { event: { case: "delta", value } }));
  const finish = { index: 0, reason: 4, outputTokenCount: 5 };
  collector.take(create(GenerateResponseSchema, { event: { case: "choiceFinished", value: finish } }));
  assert.deepEqual(collector.choices, [
    {
      index: 0,
      text: "a",
      reasoningText: "hm",
      toolCalls: [{ id: "c1", functionName: "f", argumentsJson: '{"x":1}' }],
      finishReason: "TOOL_CALLS",
      outputTokenCount: 5,
    },
    { index: 1, text: "b", reasoningText: "", toolCalls: [], finishReason: "UNSPECIFIED", outputTokenCount: undefined },
  ]);
});

test("a finish reason of a newer server is told by its number", () => {
  assert.equal(finishReasonName(1), "STOP");
  assert.equal(finishReasonName(77 as 1), "77");
});

test("times that were not told are not made up", () => {
  const timing = create(TimingSchema, { totalDuration: durationFromMs(1500), outputTokensPerSecond: 7 });
  const unknown = { queueMs: undefined, prefillMs: undefined, timeToFirstTokenMs: undefined, decodeMs: undefined };
  assert.deepEqual(timingMs(timing), { ...unknown, totalMs: 1500, outputTokensPerSecond: 7 });
});
