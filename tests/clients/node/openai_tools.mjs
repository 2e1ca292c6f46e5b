// OpenAI's package for Node: tools, reasoning and the Responses API.
import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout } from "node:timers/promises";

import OpenAI from "openai";
import { zodFunction, zodResponsesFunction, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

import { all, answer, can, count, endless, model, toolsModel, url, written } from "./backend.mjs";

const client = new OpenAI({ baseURL: url, apiKey: "k", maxRetries: 0, timeout: 40_000 });
const Weather = z.object({ city: z.enum(["Zürich", "Rome"]) });
const described = { name: "get_weather", description: "The weather of a city.", parameters: Weather };
const call = (city) => `<tool_call>\n{"name": "get_weather", "arguments": {"city": "${city}"}}\n</tool_call>`;
const WRITTEN = `<think>Two cities.</think>I look.\n${call("Zürich")}\n${call("Rome")}`;

// Scripted where that can be; else a call is forced, and one is enough.
const content = can("SCRIPT") ? written(WRITTEN) : "What is the weather in Rome?";
const force = can("SCRIPT") ? {} : { tool_choice: "required", parallel_tool_calls: false };

test("calls are streamed and whole the same", async () => {
  const asked = {
    model: toolsModel,
    messages: [{ role: "user", content }],
    tools: [zodFunction(described)],
    temperature: 0,
    max_tokens: 1000,
    ...force,
  };
  const whole = await client.chat.completions.parse(asked);
  const { message, finish_reason } = whole.choices[0];
  assert.equal(finish_reason, "tool_calls");
  for (const { function: called } of message.tool_calls) assert.deepEqual(Weather.parse(called.parsed_arguments), called.parsed_arguments);
  if (can("SCRIPT")) {
    assert.deepEqual(message.tool_calls.map((found) => found.function.parsed_arguments.city), ["Zürich", "Rome"]);
    assert.equal(message.reasoning_content.trim(), "Two cities.");
    assert.equal(message.content.trim(), "I look.");
  }
  const deltas = [];
  const stream = client.chat.completions.stream(asked).on("tool_calls.function.arguments.delta", (event) => deltas.push(event));
  const final = await stream.finalChatCompletion();
  const told = ({ tool_calls }) => tool_calls.map(({ function: called }) => [called.name, JSON.parse(called.arguments)]);
  assert.deepEqual(told(final.choices[0].message), told(message));
  assert.equal(final.choices[0].finish_reason, "tool_calls");
  assert.ok(deltas.length > message.tool_calls.length);
});

test("a runner plays the tool and goes on with its result", { skip: can("SCRIPT") }, async () => {
  const asked = [];
  const runner = client.chat.completions.runTools({
    model: toolsModel,
    messages: [{ role: "user", content: "What is the weather in Rome?" }],
    temperature: 0,
    max_tokens: 200,
    // The runner stops behind a function that was named.
    tool_choice: { type: "function", function: { name: "get_weather" } },
    parallel_tool_calls: false,
    tools: [
      {
        type: "function",
        function: {
          ...zodFunction(described).function,
          parse: JSON.parse,
          function: ({ city }) => {
            asked.push(city);
            return "Sunny.";
          },
        },
      },
    ],
  });
  await runner.done();
  assert.equal(asked.length, 1);
  assert.equal(runner.messages.at(-1).role, "tool");
});

test("a response is streamed and whole the same", async () => {
  const asked = { model, input: count, temperature: 0, max_output_tokens: 16 };
  const whole = await client.responses.create(asked);
  assert.ok(whole.output_text.startsWith(answer));
  assert.deepEqual([whole.status, whole.incomplete_details.reason], ["incomplete", "max_output_tokens"]);
  const events = await all(await client.responses.create({ ...asked, stream: true }));
  assert.deepEqual(events.map((event) => event.sequence_number), [...events.keys()]);
  assert.equal(
    events.filter((event) => event.type === "response.output_text.delta").map((event) => event.delta).join(""),
    whole.output_text,
  );
  // What its helper makes of events is the same whoever sent them, so that the quick backend is enough.
  if (!can("SCRIPT")) return;
  const final = await client.responses.stream(asked).finalResponse();
  assert.equal(final.output_text, whole.output_text);
  assert.equal(final.usage.total_tokens, whole.usage.total_tokens);
});

test("a response in the background is polled, streamed behind an event, and stopped", async () => {
  const asked = { model, input: count, temperature: 0, max_output_tokens: 16 };
  const whole = await client.responses.create(asked);
  let response = await client.responses.create({ ...asked, background: true, store: true });
  const { id } = response;
  while (["queued", "in_progress"].includes(response.status)) {
    await setTimeout(20);
    response = await client.responses.retrieve(id);
  }
  assert.deepEqual([response.id, response.output_text, response.status], [id, whole.output_text, whole.status]);
  const events = await all(await client.responses.retrieve(id, { stream: true }));
  const rest = await all(await client.responses.retrieve(id, { stream: true, starting_after: 5 }));
  assert.deepEqual(rest, events.slice(6));
  assert.equal((await client.responses.cancel(id)).status, whole.status);
  const long = { model, input: endless, max_output_tokens: 2000, ignore_eos: true, background: true };
  const stopped = await client.responses.cancel((await client.responses.create(long)).id);
  assert.equal(stopped.status, "cancelled");
});

test("a response calls tools", async () => {
  const asked = {
    model: toolsModel,
    input: content,
    tools: [zodResponsesFunction(described)],
    temperature: 0,
    max_output_tokens: 1000,
    ...force,
  };
  const whole = await client.responses.parse(asked);
  const calls = ({ output }) => output.filter((item) => item.type === "function_call");
  assert.ok(calls(whole).length > 0);
  for (const item of calls(whole)) assert.deepEqual(Weather.parse(item.parsed_arguments), item.parsed_arguments);
  if (can("SCRIPT")) {
    assert.deepEqual(whole.output.map((item) => item.type), ["reasoning", "message", "function_call", "function_call"]);
  }
  const final = await client.responses.stream(asked).finalResponse();
  assert.deepEqual(
    calls(final).map((item) => item.parsed_arguments),
    calls(whole).map((item) => item.parsed_arguments),
  );
});

test("a response is parsed, or refused by its name", async () => {
  const City = z.object({ is_large: z.boolean() });
  const asked = {
    model,
    input: [
      { role: "user", content: "Describe Rome." },
      { role: "assistant", content: '{"is_large": true}' },
      { role: "user", content: "Describe Paris." },
    ],
    temperature: 0,
    max_output_tokens: 40,
    text: { format: zodTextFormat(City, "city") },
  };
  if (!can("CONSTRAINT")) {
    await assert.rejects(client.responses.parse(asked), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError);
      assert.match(error.param, /^text\.format/);
      return true;
    });
    return;
  }
  const { output_parsed } = await client.responses.parse(asked);
  assert.deepEqual(City.parse(output_parsed), output_parsed);
});
