// OpenAI's package for Node: whole answers, streams, helpers, aborts and errors.
import assert from "node:assert/strict";
import { test } from "node:test";

import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

import { all, answer, answerTokens, can, count, counting, endless, model, name, prompt, scripted, url } from "./backend.mjs";

const client = new OpenAI({ baseURL: url, apiKey: "k", maxRetries: 0, timeout: 40_000 });

test("a whole answer has text, reason and usage", async () => {
  const { data, response, request_id } = await client.chat.completions.create(counting).withResponse();
  assert.equal(response.headers.get("content-type"), "application/json");
  assert.ok(request_id);
  assert.deepEqual(
    data.choices.map((choice) => [choice.index, choice.message.content, choice.finish_reason]),
    [[0, answer, "length"]],
  );
  assert.equal(data.usage.completion_tokens, answerTokens);
  assert.equal(data.usage.total_tokens, data.usage.prompt_tokens + answerTokens);
});

test("a stream adds up to the answer and ends with its usage", async () => {
  const stream = await client.chat.completions.create({
    ...counting,
    stream: true,
    stream_options: { include_usage: true },
  });
  const chunks = await all(stream);
  const last = chunks.pop();
  assert.deepEqual(last.choices, []);
  assert.equal(last.usage.completion_tokens, answerTokens);
  assert.equal(chunks.map((chunk) => chunk.choices[0].delta.content ?? "").join(""), answer);
  assert.equal(chunks.at(-1).choices[0].finish_reason, "length");
});

test("the stream helper builds the whole answer and tells each piece", async () => {
  const pieces = [];
  const stream = client.chat.completions
    .stream({ ...counting, stop: ", 3", max_tokens: 20, stream_options: { include_usage: true } })
    .on("content", (delta) => pieces.push(delta));
  const final = await stream.finalChatCompletion();
  assert.equal(final.choices[0].message.content, " 1, 2");
  assert.equal(final.choices[0].finish_reason, "stop");
  assert.equal(pieces.join(""), " 1, 2");
  assert.equal(await stream.finalContent(), " 1, 2");
  assert.ok((await stream.totalUsage()).completion_tokens > 0);
});

test("structured output is parsed, or refused by its name", async () => {
  const City = z.object({ is_large: z.boolean() });
  const asked = {
    model,
    messages: [
      { role: "user", content: "Describe Rome." },
      { role: "assistant", content: '{"is_large": true}' },
      { role: "user", content: "Describe Paris." },
    ],
    temperature: 0,
    max_tokens: 40,
    response_format: zodResponseFormat(City, "city"),
  };
  if (!can("CONSTRAINT")) {
    await assert.rejects(client.chat.completions.parse(asked), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError);
      assert.match(error.param, /^response_format/);
      return true;
    });
    return;
  }
  const parsed = (await client.chat.completions.parse(asked)).choices[0].message.parsed;
  assert.deepEqual(City.parse(parsed), parsed);
  const final = await client.chat.completions.stream(asked).finalChatCompletion();
  assert.deepEqual(final.choices[0].message.parsed, parsed);
});

test("a text is continued, streamed and whole", async () => {
  const { messages, ...options } = counting;
  const whole = await client.completions.create({ ...options, prompt });
  assert.equal(whole.choices[0].text, answer);
  const chunks = await all(await client.completions.create({ ...options, prompt, stream: true }));
  assert.equal(chunks.flatMap((chunk) => chunk.choices.map((choice) => choice.text)).join(""), answer);
});

test("a stream that is aborted ends for the reader at once", async () => {
  const stream = await client.chat.completions.create(
    { model, messages: [{ role: "user", content: endless }], max_tokens: 2000, temperature: 0, ignore_eos: true, stream: true },
    { headers: { "x-request-id": `node-left-${name}` } },
  );
  for await (const chunk of stream) {
    if (chunk.choices[0].delta.content) break; // leaving the loop aborts the request
  }
  const controller = new AbortController();
  const answered = client.chat.completions.create(
    { model, messages: [{ role: "user", content: endless }], max_tokens: 2000, temperature: 0, ignore_eos: true },
    { signal: controller.signal, headers: { "x-request-id": `node-aborted-${name}` } },
  );
  setTimeout(() => controller.abort(), 300);
  await assert.rejects(answered, OpenAI.APIUserAbortError);
});

test("wrong requests are the package's own errors, with their field", async () => {
  for (const stream of [false, true]) {
    const messages = [{ role: "user", content: "hi" }];
    await assert.rejects(client.chat.completions.create({ model: "no-such-model", messages, stream }), (error) => {
      assert.ok(error instanceof OpenAI.NotFoundError);
      assert.deepEqual([error.code, error.type], ["model_not_found", "invalid_request_error"]);
      return true;
    });
    await assert.rejects(client.chat.completions.create({ model, messages, top_p: 7, stream }), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError);
      assert.deepEqual([error.code, error.param], ["decimal_above_max_value", "top_p"]);
      assert.ok(error.requestID);
      return true;
    });
  }
});

test("models are listed", async () => {
  assert.ok((await all(client.models.list())).some((found) => found.id === model));
  assert.equal((await client.models.retrieve(model)).object, "model");
});

test("a failure within a stream is thrown behind the text", { skip: !can("SCRIPT") }, async () => {
  const content = scripted(["a", "b", "c"], { fault: "error", fault_after: 2 });
  const asked = { model, messages: [{ role: "user", content }] };
  let text = "";
  await assert.rejects(async () => {
    for await (const chunk of await client.chat.completions.create({ ...asked, stream: true })) {
      text += chunk.choices[0].delta.content ?? "";
    }
  }, OpenAI.APIError);
  assert.equal(text, "ab");
  await assert.rejects(client.chat.completions.stream(asked).finalChatCompletion(), OpenAI.APIError);
});

test("an engine that is away is asked again", { skip: !can("SCRIPT") }, async () => {
  let asked = 0;
  const counted = new OpenAI({
    baseURL: url,
    apiKey: "k",
    maxRetries: 1,
    fetch: (...request) => {
      asked += 1;
      return fetch(...request);
    },
  });
  const content = scripted(["a"], { fault: "unavailable" });
  await assert.rejects(counted.chat.completions.create({ model, messages: [{ role: "user", content }] }), (error) => {
    assert.equal(error.status, 503);
    return true;
  });
  assert.equal(asked, 2);
});
