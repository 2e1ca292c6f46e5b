// Vercel's AI SDK with its provider for servers that speak OpenAI's API.
import assert from "node:assert/strict";
import { test } from "node:test";

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateObject, generateText, streamObject, streamText } from "ai";
import { z } from "zod";

import { all, answer, answerTokens, can, count, endless, model, name, prompt, scripted, url } from "./backend.mjs";

const provider = createOpenAICompatible({
  name: "headrace",
  baseURL: url,
  apiKey: "k",
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const chat = provider.chatModel(model);
const counting = { model: chat, messages: count, temperature: 0, seed: 7, maxOutputTokens: answerTokens, maxRetries: 0 };

test("generateText gives text, reason and usage", async () => {
  const { text, finishReason, usage, response } = await generateText(counting);
  assert.deepEqual([text, finishReason], [answer, "length"]);
  assert.equal(usage.outputTokens, answerTokens);
  assert.equal(usage.totalTokens, usage.inputTokens + answerTokens);
  assert.equal(response.modelId, model);
});

test("streamText streams the same", async () => {
  const result = streamText({ ...counting, onError: () => {} });
  const pieces = await all(result.textStream);
  assert.equal(pieces.join(""), answer);
  assert.ok(pieces.length > 1);
  assert.equal(await result.finishReason, "length");
  assert.equal((await result.usage).outputTokens, answerTokens);
  const parts = await all(streamText({ ...counting, onError: () => {} }).fullStream);
  assert.deepEqual(parts.filter((part) => part.type === "error"), []);
});

test("stop sequences end the answer", async () => {
  const { text, finishReason } = await generateText({ ...counting, stopSequences: [", 2"] });
  assert.deepEqual([text, finishReason], [" 1", "stop"]);
});

test("generateObject gives what the schema says, or the server's refusal", async () => {
  const City = z.object({ is_large: z.boolean() });
  const asked = {
    ...counting,
    messages: [
      { role: "user", content: "Describe Rome." },
      { role: "assistant", content: '{"is_large": true}' },
      { role: "user", content: "Describe Paris." },
    ],
    maxOutputTokens: 40,
    schema: City,
  };
  if (!can("CONSTRAINT")) {
    await assert.rejects(generateObject(asked), (error) => {
      assert.ok(APICallError.isInstance(error));
      assert.equal(error.statusCode, 400);
      assert.equal(error.isRetryable, false);
      assert.match(error.responseBody, /response_format/);
      return true;
    });
    return;
  }
  const { object } = await generateObject(asked);
  assert.deepEqual(City.parse(object), object);
  const streamed = streamObject({ ...asked, onError: () => {} });
  const parts = await all(streamed.partialObjectStream);
  assert.deepEqual(parts.at(-1), object);
  assert.deepEqual(await streamed.object, object);
});

test("a text model continues a text", async () => {
  const { messages, ...options } = counting;
  const { text, finishReason } = await generateText({ ...options, model: provider.completionModel(model), prompt });
  // It writes a conversation of its own around the prompt, which ends where a user would speak.
  assert.ok(can("SCRIPT") ? text === answer : text.length > 0);
  assert.match(finishReason, /^(length|stop)$/);
});

test("an aborted stream says so", async () => {
  const controller = new AbortController();
  const result = streamText({
    model: chat,
    prompt: endless,
    temperature: 0,
    maxOutputTokens: 2000,
    maxRetries: 0,
    headers: { "x-request-id": `ai-sdk-left-${name}` },
    providerOptions: { headrace: { ignore_eos: true } },
    abortSignal: controller.signal,
    onError: () => {},
  });
  const kinds = [];
  for await (const part of result.fullStream) {
    kinds.push(part.type);
    if (part.type === "text-delta") controller.abort();
  }
  assert.equal(kinds.at(-1), "abort");
});

test("errors carry the server's words and are not repeated in vain", async () => {
  await assert.rejects(generateText({ ...counting, model: provider.chatModel("no-such-model") }), (error) => {
    assert.ok(APICallError.isInstance(error));
    assert.deepEqual([error.statusCode, error.isRetryable], [404, false]);
    assert.match(error.message, /no-such-model/);
    return true;
  });
});

test("a failure within a stream is an error part behind the text", { skip: !can("SCRIPT") }, async () => {
  const content = scripted(["a", "b", "c"], { fault: "error", fault_after: 2 });
  const parts = await all(streamText({ model: chat, prompt: content, maxRetries: 0, onError: () => {} }).fullStream);
  const text = parts.filter((part) => part.type === "text-delta").map((part) => part.text);
  assert.equal(text.join(""), "ab");
  assert.equal(parts.filter((part) => part.type === "error").length, 1);
});
