/** The client against scripted servers over real sockets. */
import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { Readable } from "node:stream";
import { ReadableStream } from "node:stream/web";
import { test } from "node:test";

import { status } from "@grpc/grpc-js";
import { HeadraceClient, HeadraceError, VERSION, type ClientOptions, type ErrorKind, type Generation } from "@headrace/client";

import { completed, delta, fail, finished, ScriptedServer, started, whole, type Step } from "./support/scripted.js";

const LIMIT = { timeout: 20_000 };
const ASK = { model: "m", prompt: "hi" };
const RETRY_MS = 80;

type Body = (client: HeadraceClient, server: ScriptedServer) => Promise<void>;

async function serving(scripts: Step[][], body: Body, options?: ClientOptions): Promise<void> {
  await using server = await ScriptedServer.serving(...scripts);
  await using client = new HeadraceClient(server.target, options);
  await body(client, server);
}

async function failure(work: Promise<unknown>): Promise<HeadraceError> {
  try {
    await work;
  } catch (error) {
    assert.ok(error instanceof HeadraceError, String(error));
    return error;
  }
  return assert.fail("did not fail");
}

function is(kind: ErrorKind): (error: unknown) => boolean {
  return (error) => error instanceof HeadraceError && error.kind === kind;
}

test("events come in order, and what they tell is kept", LIMIT, async () => {
  await serving([[started("gen-7"), delta("a"), delta("b"), finished(), completed(2)]], async (client) => {
    const generation = client.generate(ASK);
    const kinds: (string | undefined)[] = [];
    for await (const { event } of generation) kinds.push(event.case);
    assert.deepEqual(kinds, ["started", "delta", "delta", "choiceFinished", "completed"]);
    assert.equal(generation.generationId, "gen-7");
    assert.equal(generation.requestId, "req-1");
    assert.deepEqual(generation.finishReasons, { 0: "STOP" });
    assert.equal(generation.usage?.outputTokenCount, 2);
    assert.equal(generation.usage?.promptTokenCount, undefined);
    assert.ok(generation.timeToFirstDeltaMs! > 0);
  });
});

test("collect gives the whole, text the text, and deltas the pieces", LIMIT, async () => {
  await serving([[started(), delta("a"), delta("x", 1), delta(""), delta("b"), finished(), finished(1), completed()]], async (client) => {
    const all = await client.generate(ASK).collect();
    assert.equal(all.text, "ab");
    assert.deepEqual(all.choices.map(({ text }) => text), ["ab", "x"]);
    assert.deepEqual([all.finishReason, all.model, all.generationId, all.requestId], ["STOP", "m", "gen-1", "req-1"]);
    assert.equal(await client.generate(ASK).text(), "ab");
    const pieces: string[] = [];
    for await (const piece of client.generate(ASK).deltas()) pieces.push(piece);
    assert.deepEqual(pieces, ["a", "b"]);
  });
});

test("nothing is sent before a generation is read, and it is read once", LIMIT, async () => {
  await serving([whole("x")], async (client, server) => {
    const generation = client.generate(ASK);
    assert.equal(server.calls.length, 0);
    await generation.text();
    await assert.rejects(generation.text(), /read once/);
    assert.equal(server.calls.length, 1);
  });
});

test("a gap, an early end and output before started are errors", LIMIT, async () => {
  const scripts: Step[][] = [
    [started(), delta("a"), { event: { case: "delta", value: {} }, sequence: 4 }],
    [started(), delta("half")],
    [delta("a")],
  ];
  await serving(scripts, async (client, server) => {
    for (const [index] of scripts.entries()) {
      const error = await failure(client.generate(ASK).text());
      assert.deepEqual([error.kind, error.status], ["protocol", "INTERNAL"]);
      await (index === 1 ? undefined : server.call(index + 1));
    }
  });
});

test("events and contents that are not known are skipped", LIMIT, async () => {
  const unknown = { unknown: Buffer.from("ca3004", "hex") };
  const more: Step = { unknown: Buffer.concat([unknown.unknown, Buffer.from("more")]) };
  await serving([[started(), delta("before"), more, delta(", behind"), more, finished(), completed()]], async (client) => {
    assert.equal(await client.generate(ASK).text(), "before, behind");
  });
});

test("a call that is pushed back is repeated after that time", LIMIT, async () => {
  const gone = fail(status.UNAVAILABLE, { reason: "DRAINING", pushbackMs: RETRY_MS });
  await serving([[gone], [gone], whole("third")], async (client, server) => {
    assert.equal(await client.generate(ASK).text(), "third");
    const times = server.calls.map(({ atMs }) => atMs);
    assert.equal(times.length, 3);
    assert.ok(times[1]! - times[0]! >= RETRY_MS - 2 && times[2]! - times[1]! >= RETRY_MS - 2, `${times}`);
  });
});

test("a CANCELLED that nobody here asked for is repeated", LIMIT, async () => {
  await serving([[fail(status.CANCELLED)], whole("second")], async (client) => {
    assert.equal(await client.generate(ASK).text(), "second");
  });
});

test("what must not be repeated is not", LIMIT, async () => {
  const cases: [string, Step[], ErrorKind][] = [
    ["pushback of -1", [fail(status.UNAVAILABLE, { reason: "FIRST_TOKEN_TIMEOUT", pushbackMs: -1 })], "unavailable"],
    ["behind output", [started(), delta("half"), fail(status.UNAVAILABLE, { reason: "BACKEND_UNAVAILABLE" })], "unavailable"],
    ["a full line", [fail(status.RESOURCE_EXHAUSTED, { reason: "QUEUE_FULL", pushbackMs: 10, retryAfterMs: 1500 })], "overloaded"],
    ["a wrong request", [fail(status.INVALID_ARGUMENT, { reason: "INVALID_FIELD" })], "invalid_request"],
  ];
  for (const [name, script, kind] of cases) {
    await serving([script, whole("twice")], async (client, server) => {
      const error = await failure(client.generate(ASK).text());
      assert.equal(error.kind, kind, name);
      assert.equal(server.calls.length, 1, name);
      if (kind === "overloaded") assert.equal(error.retryAfterMs, 1500);
    });
  }
});

test("with retries: false nothing is repeated", LIMIT, async () => {
  const script = [fail(status.UNAVAILABLE, { reason: "DRAINING", pushbackMs: 1 })];
  await serving([script, whole("twice")], async (client, server) => {
    const error = await failure(client.generate(ASK).text());
    assert.deepEqual([error.kind, error.reason, error.isRetriable], ["unavailable", "DRAINING", true]);
    assert.equal(server.calls.length, 1);
  }, { retries: false });
});

test("an error behind events says how many, and what the server called the request", LIMIT, async () => {
  await serving([[started(), delta("half"), fail(status.INTERNAL, { reason: "BACKEND_ERROR" })]], async (client) => {
    const error = await failure(client.generate(ASK).text());
    assert.deepEqual([error.kind, error.reason, error.eventsReceived, error.requestId], ["internal", "BACKEND_ERROR", 2, "req-1"]);
    assert.ok(!error.isRetriable);
  });
});

test("an AbortSignal that was aborted before sends nothing", LIMIT, async () => {
  await serving([whole("x")], async (client, server) => {
    const error = await failure(client.generate(ASK, { signal: AbortSignal.abort("never mind") }).text());
    assert.deepEqual([error.name, error.kind, error.cause], ["AbortError", "cancelled", "never mind"]);
    assert.equal(server.calls.length, 0);
    await assert.rejects(client.listModels({ signal: AbortSignal.abort() }), is("cancelled"));
  });
});

test("aborting ends the call at the server, whatever it is doing", LIMIT, async () => {
  const places: [string, Step[]][] = [
    ["before the first event", ["hang"]],
    ["behind started", [started(), "hang"]],
    ["behind output", [started(), delta("a"), "hang"]],
  ];
  for (const [name, script] of places) {
    await serving([script], async (client, server) => {
      const caller = new AbortController();
      const text = failure(client.generate(ASK, { signal: caller.signal }).text());
      const call = await server.call();
      if (name !== "before the first event") await new Promise((resolve) => setTimeout(resolve, 30));
      caller.abort("enough");
      const error = await text;
      assert.deepEqual([error.name, error.status, error.cause], ["AbortError", "CANCELLED", "enough"], name);
      await call.cancelled;
      assert.equal(getEventListeners(caller.signal, "abort").length, 0, name);
    });
  }
});

test("aborting while a retry waits ends the call, and nothing more is sent", LIMIT, async () => {
  await serving([[fail(status.UNAVAILABLE, { pushbackMs: 300 })], whole("late")], async (client, server) => {
    const caller = new AbortController();
    const text = failure(client.generate(ASK, { signal: caller.signal }).text());
    await server.call();
    await new Promise((resolve) => setTimeout(resolve, 50));
    caller.abort();
    assert.equal((await text).kind, "cancelled");
    await new Promise((resolve) => setTimeout(resolve, 400));
    assert.equal(server.calls.length, 1);
  });
});

test("leaving the loop ends the call at the server", LIMIT, async () => {
  const leave: [string, (generation: Generation) => Promise<void>][] = [
    ["break", async (generation) => {
      for await (const { event } of generation) if (event.case === "delta") break;
    }],
    ["throw", async (generation) => {
      await assert.rejects(async () => {
        for await (const { event } of generation) if (event.case === "delta") throw new Error("mine");
      }, /mine/);
    }],
    ["break of deltas", async (generation) => {
      for await (const piece of generation.deltas()) if (piece) break;
    }],
    ["await using, with an iterator in hand", async (generation) => {
      await using held = generation;
      const events = held[Symbol.asyncIterator]();
      await events.next();
    }],
    ["cancel in the loop", async (generation) => {
      await assert.rejects(async () => {
        for await (const { event } of generation) if (event.case === "delta") generation.cancel("why");
      }, is("cancelled"));
    }],
  ];
  for (const [name, way] of leave) {
    await serving([[started(), delta("a"), "hang"]], async (client, server) => {
      const caller = new AbortController();
      await way(client.generate(ASK, { signal: caller.signal }));
      await (await server.call()).cancelled;
      assert.equal(getEventListeners(caller.signal, "abort").length, 0, name);
    });
  }
});

test("a stream that is made of it and left while it waits ends the call at the server", LIMIT, async () => {
  // Each with the call at the server, where it stays silent.
  const ways: ((generation: Generation, call: Promise<unknown>) => Promise<void>)[] = [
    async (generation, call) => {
      const reader = ReadableStream.from(generation.deltas()).getReader();
      void reader.read().catch(() => undefined);
      await call;
      await reader.cancel();
    },
    async (generation, call) => {
      const stream = Readable.from(generation.deltas()).on("error", () => undefined);
      stream.resume();
      await call;
      stream.destroy(new Error("gone"));
    },
    async (generation, call) => {
      const events = generation[Symbol.asyncIterator]();
      const read = assert.rejects(events.next(), is("cancelled"));
      await call;
      assert.deepEqual(await events.return(), { value: undefined, done: true });
      await read;
    },
  ];
  for (const way of ways) {
    await serving([["hang"]], async (client, server) => {
      const call = server.call();
      await way(client.generate(ASK), call);
      await (await call).cancelled;
    });
  }
});

test("a unary call is cancelled by its signal and by closing the client", LIMIT, async () => {
  await serving([], async (client) => {
    const caller = new AbortController();
    const models = failure(client.listModels({ signal: caller.signal }));
    await new Promise((resolve) => setTimeout(resolve, 50));
    caller.abort("why");
    const error = await models;
    assert.deepEqual([error.name, error.cause], ["AbortError", "why"]);
    assert.equal(getEventListeners(caller.signal, "abort").length, 0);
    const second = failure(client.getModel("m"));
    await client.close();
    assert.equal((await second).kind, "cancelled");
    assert.equal((await failure(new HeadraceClient(client.target).listModels({ timeoutMs: 50 }))).kind, "deadline");
  });
});

test("a cancel behind the end does nothing", LIMIT, async () => {
  await serving([whole("all")], async (client) => {
    const caller = new AbortController();
    const generation = client.generate(ASK, { signal: caller.signal });
    assert.equal(await generation.text(), "all");
    generation.cancel();
    caller.abort();
    assert.deepEqual(generation.finishReasons, { 0: "STOP" });
  });
});

test("a deadline ends the call on both sides, and keeps what came", LIMIT, async () => {
  await serving([[started(), delta("half"), "hang"]], async (client, server) => {
    const generation = client.generate(ASK, { timeoutMs: 1000 });
    let text = "";
    const beganMs = performance.now();
    const error = await failure((async () => {
      for await (const piece of generation.deltas()) text += piece;
    })());
    assert.deepEqual([error.kind, error.status, text], ["deadline", "DEADLINE_EXCEEDED", "half"]);
    assert.ok(performance.now() - beganMs >= 990);
    await (await server.call()).cancelled;
  });
});

test("closing the client ends what runs, and refuses what comes", LIMIT, async () => {
  await serving([[started(), "hang"]], async (client, server) => {
    const text = failure(client.generate(ASK).text());
    const call = await server.call();
    await client.close();
    await client.close();
    assert.equal((await text).kind, "cancelled");
    await call.cancelled;
    await assert.rejects(client.generate(ASK).text(), /closed/);
  });
});

test("credentials, metadata and the agent go with each call", LIMIT, async () => {
  let turn = 0;
  await serving([whole("x")], async (client, server) => {
    await client.generate(ASK, { metadata: { "x-request-id": "mine" } }).text();
    await client.generate(ASK).text();
    const [first, second] = server.calls.map(({ metadata }) => metadata.getMap());
    assert.equal(first!["authorization"], "Bearer hr_secret");
    assert.deepEqual([first!["x-turn"], second!["x-turn"]], ["1", "2"]);
    assert.equal(first!["x-request-id"], "mine");
    assert.equal(second!["x-request-id"], undefined);
    assert.match(String(first!["user-agent"]), new RegExp(`^headrace-typescript/${VERSION}`));
  }, { apiKey: "hr_secret", metadata: () => ({ "x-turn": String((turn += 1)) }) });
});

test("a server that is not there is told as unavailable, in time", LIMIT, async () => {
  const gone = await ScriptedServer.serving(whole("x"));
  await gone[Symbol.asyncDispose]();
  await using client = new HeadraceClient(gone.target);
  const error = await failure(client.generate(ASK, { timeoutMs: 5000 }).text());
  assert.deepEqual([error.kind, error.reason, error.isRetriable], ["unavailable", undefined, true]);
});

test("several addresses are all used", LIMIT, async () => {
  await using one = await ScriptedServer.serving(whole("x"));
  await using two = await ScriptedServer.serving(whole("x"));
  await using client = new HeadraceClient(`ipv4:${one.target},${two.target}`);
  for (let turn = 0; turn < 20 && (one.calls.length === 0 || two.calls.length === 0); turn += 1) {
    await client.generate(ASK).text();
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  assert.ok(one.calls.length > 0 && two.calls.length > 0);
});

test("options that make no call are refused before it", LIMIT, async () => {
  await serving([whole("x")], async (client, server) => {
    await assert.rejects(client.generate(ASK, { timeoutMs: Number.NaN }).text(), TypeError);
    await assert.rejects(client.generate(ASK, { metadata: { authorization: "a\nb" } }).text(), TypeError);
    await assert.rejects(client.listModels({ timeoutMs: Number.POSITIVE_INFINITY }), TypeError);
    await assert.rejects(client.getGeneration({} as { generationId: string }), TypeError);
    assert.throws(() => new HeadraceClient(client.target, { tls: { cert: "x" } }), TypeError);
    assert.equal(server.calls.length, 0);
  });
});
