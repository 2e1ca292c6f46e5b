import assert from "node:assert/strict";
import { test } from "node:test";

import { create, toJson } from "@bufbuild/protobuf";
import { chatInput, functionTool, Priority, type GenerateInput } from "@headrace/client";
import { ChatInputSchema, ChatMessageSchema, GenerateRequestSchema, Role } from "@headrace/client/v1";

import { toMetadata } from "#dist/metadata.js";
import { generateRequest } from "#dist/requests.js";

test("a prompt, a conversation and token ids become the input", () => {
  assert.deepEqual(generateRequest({ model: "m", prompt: "hi" }).input, { case: "prompt", value: "hi" });
  assert.deepEqual(toJson(GenerateRequestSchema, generateRequest({ model: "m", tokens: [1, 2] })), { model: "m", tokens: { ids: [1, 2] } });
  const request = generateRequest({ model: "m", chat: [{ role: "user", content: "hi", name: "Ann" }] });
  assert.deepEqual(toJson(GenerateRequestSchema, request), {
    model: "m",
    chat: { messages: [{ role: "ROLE_USER", content: [{ text: "hi" }], name: "Ann" }] },
  });
});

test("everything else of a request is written as the contract has it", () => {
  const request = generateRequest({
    model: "m",
    prompt: "hi",
    sampling: { temperature: 0, maxOutputTokens: 5, logitBias: { 7: -100 }, seed: 3n },
    stop: { sequences: ["END"] },
    constraint: { kind: { case: "jsonSchema", value: "{}" } },
    priority: Priority.BATCH,
    timeLimitMs: 1500,
    idempotencyKey: "k",
  });
  assert.deepEqual(toJson(GenerateRequestSchema, request), {
    model: "m",
    prompt: "hi",
    sampling: { temperature: 0, maxOutputTokens: 5, logitBias: { "7": -100 }, seed: "3" },
    stop: { sequences: ["END"] },
    constraint: { jsonSchema: "{}" },
    priority: "PRIORITY_BATCH",
    timeLimit: "1.500s",
    idempotencyKey: "k",
  });
});

test("a message that is ready is taken as it is", () => {
  const request = create(GenerateRequestSchema, { model: "m", input: { case: "prompt", value: "hi" } });
  assert.equal(generateRequest(request), request);
});

test("no input and two inputs are refused", () => {
  assert.throws(() => generateRequest({ model: "m" } as unknown as GenerateInput), TypeError);
  assert.throws(() => generateRequest({ model: "m", prompt: "a", tokens: [1] } as unknown as GenerateInput), TypeError);
});

test("tools, tool calls and their results are told", () => {
  const chat = chatInput({
    messages: [
      { role: "assistant", content: "", toolCalls: [{ id: "c1", functionName: "time", argumentsJson: "{}" }] },
      { role: "tool", content: "noon", toolCallId: "c1" },
      create(ChatMessageSchema, { role: Role.USER }),
    ],
    tools: [functionTool("time", { description: "The time.", parameters: { type: "object" } })],
  });
  assert.deepEqual(toJson(ChatInputSchema, chat), {
    messages: [
      { role: "ROLE_ASSISTANT", toolCalls: [{ id: "c1", functionName: "time", argumentsJson: "{}" }] },
      { role: "ROLE_TOOL", content: [{ text: "noon" }], toolCallId: "c1" },
      { role: "ROLE_USER" },
    ],
    tools: [{ function: { name: "time", description: "The time.", parametersJsonSchema: '{"type":"object"}' } }],
  });
});

test("an unknown role is refused by name", () => {
  const chat = [{ role: "robot", content: "hi" }] as unknown as Parameters<typeof chatInput>[0];
  assert.throws(() => chatInput(chat), /unknown role "robot"/);
});

test("metadata that cannot be sent is refused without its value", () => {
  assert.throws(
    () => toMetadata({ authorization: "Bearer geheim\n" }),
    (error: Error) => error instanceof TypeError && error.message.includes("authorization") && !error.message.includes("geheim"),
  );
  assert.throws(() => toMetadata({ "no spaces": "x" }), TypeError);
  assert.deepEqual(toMetadata({ A: "1" }, { a: "2", "b-bin": new Uint8Array([1]) }).getMap(), { a: "2", "b-bin": Buffer.from([1]) });
});
