// Vercel's AI SDK: tools that it runs itself, and reasoning.
import assert from "node:assert/strict";
import { test } from "node:test";

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

import { all, can, toolsModel, url, written } from "./backend.mjs";

const provider = createOpenAICompatible({ name: "headrace", baseURL: url, apiKey: "k", supportsStructuredOutputs: true });
const Weather = z.object({ city: z.enum(["Zürich", "Rome"]) });
const call = (city) => `<tool_call>\n{"name": "get_weather", "arguments": {"city": "${city}"}}\n</tool_call>`;
const WRITTEN = `<think>Two cities.</think>I look.\n${call("Zürich")}\n${call("Rome")}`;
const asked = {
  model: provider.chatModel(toolsModel),
  prompt: can("SCRIPT") ? written(WRITTEN) : "What is the weather in Rome?",
  tools: {
    get_weather: tool({
      description: "The weather of a city.",
      inputSchema: Weather,
      execute: async ({ city }) => `Sunny in ${city}.`,
    }),
  },
  ...(can("SCRIPT") ? {} : { toolChoice: "required", providerOptions: { headrace: { parallel_tool_calls: false } } }),
  temperature: 0,
  maxOutputTokens: 1000,
  maxRetries: 0,
};

test("generateText runs the tool and goes on with its result", async () => {
  const { steps } = await generateText({ ...asked, stopWhen: stepCountIs(2) });
  assert.equal(steps.length, 2);
  const [first] = steps;
  assert.equal(first.finishReason, "tool-calls");
  for (const { input } of first.toolCalls) assert.deepEqual(Weather.parse(input), input);
  assert.deepEqual(
    first.toolResults.map(({ output }) => output),
    first.toolCalls.map(({ input }) => `Sunny in ${input.city}.`),
  );
  if (can("SCRIPT")) {
    assert.deepEqual(first.toolCalls.map(({ input }) => input.city), ["Zürich", "Rome"]);
    assert.equal(first.reasoningText.trim(), "Two cities.");
    assert.equal(first.text.trim(), "I look.");
  }
});

test("streamText streams the input of each call", async () => {
  const parts = await all(streamText({ ...asked, stopWhen: stepCountIs(1), onError: () => {} }).fullStream);
  assert.deepEqual(parts.filter((part) => part.type === "error"), []);
  const calls = parts.filter((part) => part.type === "tool-call");
  assert.ok(calls.length > 0);
  for (const { toolCallId, input } of calls) {
    const pieces = parts.filter((part) => part.type === "tool-input-delta" && part.id === toolCallId);
    assert.ok(pieces.length > 1);
    assert.deepEqual(JSON.parse(pieces.map((part) => part.delta).join("")), input);
  }
  if (can("SCRIPT")) {
    assert.equal(calls.length, 2);
    const thoughts = parts.filter((part) => part.type === "reasoning-delta").map((part) => part.text);
    assert.equal(thoughts.join("").trim(), "Two cities.");
  }
});
