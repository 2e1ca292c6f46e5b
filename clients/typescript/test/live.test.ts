/** The client against the real service, with the simulator as its engine. */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, suite, test } from "node:test";

import { GenerationState, HeadraceClient, HeadraceError, Priority, type Generation } from "@headrace/client";

import { eventually, LiveService, makeKey, noService, simulate } from "./support/live.js";
import { Relay } from "./support/relay.js";

const model = "simulator";
const endless = { model, prompt: simulate({ tokens: ["t"], token_ms: 10 }), sampling: { maxOutputTokens: 4096 } };

const has = (expected: Partial<HeadraceError>) => (error: unknown) => {
  assert.ok(error instanceof HeadraceError, String(error));
  assert.deepEqual(Object.fromEntries(Object.keys(expected).map((name) => [name, error[name as keyof HeadraceError]])), expected);
  return true;
};

suite("a live service", { skip: noService, timeout: 120_000 }, () => {
  let service: LiveService;
  let client: HeadraceClient;

  before(async () => {
    // One slot: whoever does not give it back is found out by the next test.
    service = await LiveService.serving("--max-running", "1", "--full-reader-timeout-s", "0.5");
    client = new HeadraceClient(service.target);
  });
  after(async () => {
    await client?.close();
    await service?.[Symbol.asyncDispose]();
  });

  test("streams text, and tells what it took", async () => {
    const prompt = simulate({ tokens: ["Grüße ", "👋 "], output_tokens: 4, token_ms: 1, prefill_ms: 20 });
    const all = await client.generate({ model, prompt, sampling: { maxOutputTokens: 10 } }).collect();
    assert.equal(all.text, "Grüße 👋 Grüße 👋 ");
    assert.deepEqual([all.finishReason, all.model, all.usage?.outputTokenCount], ["STOP", model, 4]);
    assert.ok(all.usage!.promptTokenCount! > 0);
    assert.ok(all.timing!.prefillMs! >= 15 && all.timing!.totalMs! >= all.timing!.timeToFirstTokenMs!);
    assert.match(all.generationId!, /^gen_/);
    assert.match(all.requestId!, /^req_/);
  });

  test("takes conversations, token ids, stop strings and priorities", async () => {
    const script = simulate({ tokens: ["one ", "two ", "END", " three"], output_tokens: 9, token_ms: 0 });
    const chat = [{ role: "system", content: "Be brief." }, { role: "user", content: `${script}\n` }] as const;
    const stopped = await client.generate({ model, chat, stop: { sequences: ["END"] }, priority: Priority.BATCH }).collect();
    assert.deepEqual([stopped.text, stopped.finishReason], ["one two ", "STOP"]);
    const { tokenIds, tokenCount } = await client.tokenize({ model, text: "the river" });
    assert.equal(tokenIds.length, tokenCount);
    assert.equal(await client.detokenize({ model, tokenIds, skipSpecialTokens: true }), "the river");
    const limited = await client.generate({ model, tokens: tokenIds, sampling: { maxOutputTokens: 3 } }).collect();
    assert.equal(limited.finishReason, "LENGTH");
  });

  test("an AbortSignal stops the engine in the middle of the output", async () => {
    const caller = new AbortController();
    const generation = client.generate(endless, { signal: caller.signal });
    await assert.rejects(async () => {
      for await (const { event } of generation) if (event.case === "delta") caller.abort();
    }, has({ kind: "cancelled", name: "AbortError" }));
    const target = { generationId: generation.generationId! };
    await eventually(async () => (await client.getGeneration(target)).state === GenerationState.CANCELLED);
  });

  test("an AbortSignal stops the engine during prefill, and frees a place in the line", async () => {
    const slow = { model, prompt: simulate({ prefill_ms: 60_000 }) };
    const [first, second] = [new AbortController(), new AbortController()];
    const running = client.generate(slow, { signal: first.signal }).text();
    const waiting = client.generate({ ...slow, output: { queueEvents: true } }, { signal: second.signal });
    await assert.rejects(async () => {
      for await (const { event } of waiting) if (event.case === "queued") second.abort();
    }, has({ kind: "cancelled" }));
    assert.ok(waiting.queued !== undefined && waiting.started === undefined);
    first.abort();
    await assert.rejects(running, has({ kind: "cancelled" }));
    const free = { model, prompt: simulate({ tokens: ["free"], output_tokens: 1 }) };
    assert.equal(await client.generate(free, { timeoutMs: 5000 }).text(), "free");
  });

  test("break stops the engine", async () => {
    const generation = client.generate(endless);
    for await (const piece of generation.deltas()) if (piece) break;
    const target = { generationId: generation.generationId! };
    await eventually(async () => (await client.getGeneration(target)).state === GenerationState.CANCELLED);
  });

  test("a generation that is stopped by its id ends in order", async () => {
    const generation = client.generate(endless);
    for await (const { event } of generation) {
      if (event.case !== "delta") continue;
      await client.cancelGeneration({ generationId: generation.generationId! });
    }
    assert.deepEqual(generation.finishReasons, { 0: "CANCELLED" });
    assert.ok(generation.usage!.outputTokenCount! >= 1);
  });

  test("a deadline passes on both sides", async () => {
    await assert.rejects(client.generate(endless, { timeoutMs: 400 }).text(), has({ kind: "deadline", status: "DEADLINE_EXCEEDED" }));
    const soft = await client.generate({ ...endless, timeLimitMs: 300 }).collect();
    assert.equal(soft.finishReason, "TIME_LIMIT");
    assert.ok(soft.usage!.outputTokenCount! > 0);
  });

  test("a deadline that is too short is refused, and nothing runs", async () => {
    await assert.rejects(client.generate(endless, { timeoutMs: 5 }).text(), has({ kind: "deadline" }));
  });

  test("all wrong fields are named", async () => {
    const wrong = client.generate({ model, prompt: "hi", sampling: { temperature: 9, topP: 3 } }).text();
    await assert.rejects(wrong, (error) => {
      has({ kind: "invalid_request", reason: "INVALID_FIELD", eventsReceived: 0, isRetriable: false })(error);
      const { violations, requestId } = error as HeadraceError;
      assert.deepEqual(violations.map(({ field }) => field), ["sampling.temperature", "sampling.top_p"]);
      assert.match(requestId!, /^req_/);
      return true;
    });
    await assert.rejects(client.getModel("nobody"), has({ kind: "not_found", reason: "MODEL_NOT_FOUND", resource: "nobody" }));
    await assert.rejects(client.getGeneration({ generationId: "gen_0" }), has({ kind: "not_found", reason: "GENERATION_NOT_FOUND" }));
  });

  test("a message over the limit is told as that", async () => {
    const small = new HeadraceClient(service.target, { channelOptions: { "grpc.max_receive_message_length": 40 } });
    await assert.rejects(small.generate({ model, prompt: "hi" }).text(), has({ kind: "too_large", status: "RESOURCE_EXHAUSTED" }));
    await small.close();
  });

  test("a key runs once, and its generation is joined where it was left", async () => {
    const prompt = simulate({ tokens: ["a", "b", "c", "d"], output_tokens: 8, token_ms: 20 });
    const request = { model, prompt, idempotencyKey: "live-1" };
    const left = client.generate(request);
    let [text, sequence] = ["", 0];
    for await (const event of left) {
      sequence = event.sequence;
      if (event.event.case === "delta" && event.event.value.content.case === "text") text += event.event.value.content.value;
      if (text.length >= 2) break;
    }
    const rest = client.attach({ generationId: left.generationId! }, { afterSequence: sequence });
    assert.equal(text + (await rest.text()), "abcdabcd");
    const again = await client.generate(request).collect();
    assert.deepEqual([again.text, again.generationId], ["abcdabcd", left.generationId]);
    assert.equal((await client.getGeneration({ idempotencyKey: "live-1" })).state, GenerationState.COMPLETED);
    await assert.rejects(
      client.generate({ ...request, prompt: "other" }).text(),
      has({ kind: "idempotency_mismatch", metadata: { generationId: left.generationId! } }),
    );
    await assert.rejects(client.attach({ generationId: "gen_0" }).text(), has({ kind: "not_found" }));
  });

  test("a generation with a key goes on over a new connection, and runs once", async () => {
    await using relay = await Relay.to(service.port);
    await using distant = new HeadraceClient(relay.target);
    const prompt = simulate({ tokens: ["a", "b", "c", "d"], output_tokens: 40, token_ms: 10, prefill_ms: 200 });
    const generation = distant.generate({ model, prompt, idempotencyKey: "cut-1" }, { timeoutMs: 20_000 });
    setTimeout(() => relay.cut(), 100); // before the first event, where nobody knows its id
    let text = "";
    for await (const piece of generation.deltas()) {
      text += piece;
      if (text.length === 8 || text.length === 20) relay.cut();
    }
    assert.equal(text, "abcd".repeat(10));
    assert.ok(generation.resumed >= 2, `${generation.resumed}`);
    assert.deepEqual(generation.finishReasons, { 0: "STOP" });
    assert.equal(generation.generationId, (await client.getGeneration({ idempotencyKey: "cut-1" })).generationId);

    const attached = distant.attach({ idempotencyKey: "cut-1" }, { afterSequence: 2 });
    const pieces: string[] = [];
    for await (const piece of attached.deltas()) {
      pieces.push(piece);
      if (pieces.length === 1) relay.cut();
    }
    assert.equal(`a${pieces.join("")}`, text);
  });

  test("without a key a connection that is lost is an error, and nothing is repeated", async () => {
    await using relay = await Relay.to(service.port);
    await using distant = new HeadraceClient(relay.target);
    await assert.rejects(async () => {
      for await (const piece of distant.generate(endless).deltas()) if (piece) relay.cut();
    }, has({ kind: "unavailable", reason: undefined, isRetriable: false }));
  });

  test("waiting for a lost connection ends with the signal, and with the timeout", async () => {
    await using relay = await Relay.to(service.port);
    await using distant = new HeadraceClient(relay.target);
    const caller = new AbortController();
    const lose = async (generation: Generation): Promise<void> => {
      for await (const piece of generation.deltas()) {
        if (!piece) continue;
        relay.isDown = true;
        relay.cut();
      }
    };
    setTimeout(() => caller.abort(), 1000);
    const left = lose(distant.generate({ ...endless, idempotencyKey: "cut-2" }, { signal: caller.signal }));
    await assert.rejects(left, has({ name: "AbortError" }));
    relay.isDown = false;
    await client.cancelGeneration({ idempotencyKey: "cut-2" });
    const lost = lose(distant.generate({ ...endless, idempotencyKey: "cut-3" }, { timeoutMs: 1500 }));
    await assert.rejects(lost, (error) => ["unavailable", "deadline"].includes((error as HeadraceError).kind));
    await client.cancelGeneration({ idempotencyKey: "cut-3" });
  });

  test("a reader that does not read is held back, and cut by the server", async () => {
    const flood = { model, prompt: simulate({ tokens: ["x".repeat(2000)], token_ms: 0 }), sampling: { maxOutputTokens: 4096 } };
    const generation = client.generate(flood);
    await assert.rejects(async () => {
      for await (const { event } of generation) if (event.case === "started") await new Promise((resolve) => setTimeout(resolve, 2500));
    }, has({ kind: "reader_too_slow", reason: "CONSUMER_TOO_SLOW" }));
  });

  test("models are listed", async () => {
    assert.deepEqual((await client.listModels()).map(({ id }) => id), [model]);
    assert.equal(await client.defaultModel(), model);
    assert.equal((await client.getModel(model)).id, model);
  });
});

suite("a service that goes and comes back", { skip: noService, timeout: 120_000 }, () => {
  test("running work is told, and the next call finds the new process", async () => {
    await using first = await LiveService.serving("--shutdown-grace-s", "0.3");
    await using client = new HeadraceClient(first.target);
    const generation = client.generate(endless);
    let ended: Promise<void> | undefined;
    await assert.rejects(async () => {
      for await (const { event } of generation) if (event.case === "delta") ended ??= first.end("SIGTERM");
    }, has({ kind: "unavailable", reason: "DRAINING" }));
    await ended;
    await using second = await LiveService.serving("--grpc-port", String(first.port));
    const began = performance.now();
    const prompt = simulate({ tokens: ["back"], output_tokens: 1 });
    await eventually(async () => {
      try {
        return (await client.generate({ model, prompt }).text()) === "back";
      } catch (error) {
        return !has({ kind: "unavailable" })(error);
      }
    }, 10_000);
    assert.ok(performance.now() - began < 5000);
    await second.end("SIGKILL");
  });

  test("a process that dies is told as unavailable, without a reason", async () => {
    await using service = await LiveService.serving();
    await using client = new HeadraceClient(service.target);
    const generation = client.generate(endless);
    await assert.rejects(async () => {
      for await (const { event } of generation) if (event.case === "delta") await service.end("SIGKILL");
    }, has({ status: "UNAVAILABLE", reason: undefined, isRetriable: false }));
  });
});

suite("a service that asks who calls", { skip: noService, timeout: 120_000 }, () => {
  test("keys over TLS, with a client certificate", async () => {
    const folder = mkdtempSync(join(tmpdir(), "headrace-"));
    const openssl = (...given: string[]): void => void execFileSync("openssl", given, { cwd: folder, stdio: "pipe" });
    const curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    openssl("req", "-x509", ...curve, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=authority");
    for (const name of ["server", "client"]) {
      const [key, wish, certificate] = [`${name}.key`, `${name}.csr`, `${name}.pem`];
      const named = ["-subj", `/CN=${name}`, "-addext", "subjectAltName=DNS:llm.test"];
      const authority = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-copy_extensions", "copy"];
      openssl("req", ...curve, "-keyout", key, "-out", wish, ...named);
      openssl("x509", "-req", "-in", wish, ...authority, "-out", certificate, "-days", "2");
    }
    const path = (name: string): string => join(folder, name);
    const pem = (name: string): Buffer => readFileSync(path(name));
    const apiKey = makeKey(path("keys.toml"));
    await using service = await LiveService.serving(
      ...["--keys-file", path("keys.toml"), "--tls-cert-file", path("server.pem"), "--tls-key-file", path("server.key")],
      ...["--tls-client-ca-file", path("ca.pem")],
    );
    const tls = { ca: pem("ca.pem"), cert: pem("client.pem"), key: pem("client.key"), serverName: "llm.test" };
    const request = { model, prompt: simulate({ tokens: ["in"], output_tokens: 1 }) };
    const ask = async (options: ConstructorParameters<typeof HeadraceClient>[1]): Promise<string> => {
      await using client = new HeadraceClient(service.target, options);
      return await client.generate(request, { timeoutMs: 5000 }).text();
    };
    assert.equal(await ask({ tls, apiKey }), "in");
    const denied = has({ kind: "access_denied", status: "UNAUTHENTICATED", reason: "UNAUTHENTICATED" });
    await assert.rejects(ask({ tls, apiKey: "hr_wrong" }), denied);
    await assert.rejects(ask({ tls: { ...tls, serverName: "other.test" }, apiKey }), has({ kind: "unavailable" }));
    await assert.rejects(ask({ tls: { ca: pem("ca.pem"), serverName: "llm.test" }, apiKey }), has({ kind: "unavailable" }));
    await assert.rejects(ask({ apiKey }), has({ kind: "unavailable" }));
  });
});
