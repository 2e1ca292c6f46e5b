import assert from "node:assert/strict";
import { after, beforeEach, test } from "node:test";

import { status } from "@grpc/grpc-js";
import { HeadraceClient } from "@headrace/client";
import { context, propagation, ROOT_CONTEXT, trace, type Context } from "@opentelemetry/api";
import { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } from "@opentelemetry/sdk-trace-base";

import { hostAndPort } from "#dist/telemetry.js";
import { delta, fail, ScriptedServer, started, whole, type Step } from "./support/scripted.js";

const exporter = new InMemorySpanExporter();
const provider = new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] });
const ASK = { model: "m", prompt: "hi" };

beforeEach(() => {
  exporter.reset();
  trace.setGlobalTracerProvider(provider);
});
after(() => {
  trace.disable();
});

/** Run a generation below a parent; return its headers at the server, its span's attributes and the parent's ids. */
async function traced(script: Step[], parent: Context, read: (client: HeadraceClient) => Promise<unknown>) {
  await using server = await ScriptedServer.serving(script);
  await using client = new HeadraceClient(server.target);
  await context.with(parent, () => read(client)).catch(() => undefined);
  const [span] = exporter.getFinishedSpans();
  return { headers: (await server.call()).metadata.getMap(), span, port: Number(server.target.split(":")[1]) };
}

test("a call is a CLIENT span whose context goes on the wire", async () => {
  const parent = provider.getTracer("test").startSpan("parent");
  const around = trace.setSpan(propagation.setBaggage(ROOT_CONTEXT, propagation.createBaggage({ secret: { value: "x" } })), parent);
  const { headers, span, port } = await traced(whole("hi"), ROOT_CONTEXT, (client) => client.generate(ASK, { context: around }).text());
  const ids = span!.spanContext();
  assert.equal(headers["traceparent"], `00-${ids.traceId}-${ids.spanId}-01`);
  assert.equal(headers["baggage"], undefined);
  assert.equal(ids.traceId, parent.spanContext().traceId);
  assert.equal(span!.parentSpanContext?.spanId, parent.spanContext().spanId);
  const { "headrace.stream.time_to_first_delta_s": firstDelta, ...attributes } = span!.attributes;
  assert.ok(Number(firstDelta) > 0);
  assert.deepEqual([span!.name, span!.kind], ["headrace.v1.GenerationService/Generate", 2]);
  assert.deepEqual(attributes, {
    "rpc.system.name": "grpc",
    "rpc.method": "headrace.v1.GenerationService/Generate",
    "rpc.response.status_code": "OK",
    "server.address": "127.0.0.1",
    "server.port": port,
    "headrace.stream.messages": 4,
  });
});

test("a failure is an error with its reason, and leaving is none", async () => {
  const full = fail(status.RESOURCE_EXHAUSTED, { reason: "QUEUE_FULL" });
  const failed = await traced([full], ROOT_CONTEXT, (client) => client.generate(ASK).text());
  assert.deepEqual(failed.span!.status, { code: 2, message: "QUEUE_FULL" });
  assert.equal(failed.span!.attributes["error.type"], "RESOURCE_EXHAUSTED");
  assert.equal(failed.span!.attributes["headrace.error.reason"], "QUEUE_FULL");
  exporter.reset();
  const left = await traced([started(), delta("a"), "hang"], ROOT_CONTEXT, async (client) => {
    for await (const piece of client.generate(ASK).deltas()) if (piece) break;
  });
  assert.equal(left.span!.status.code, 0);
  assert.equal(left.span!.attributes["rpc.response.status_code"], "CANCELLED");
});

test("without an SDK nothing is sent", async () => {
  trace.disable();
  const { headers, span } = await traced(whole("hi"), ROOT_CONTEXT, (client) => client.generate(ASK).text());
  assert.equal(headers["traceparent"], undefined);
  assert.equal(span, undefined);
});

test("targets are told apart as address and port", () => {
  assert.deepEqual(hostAndPort("127.0.0.1:50051"), { address: "127.0.0.1", port: 50051 });
  assert.deepEqual(hostAndPort("dns:///llm.internal:443"), { address: "llm.internal", port: 443 });
  assert.deepEqual(hostAndPort("ipv4:10.0.0.1:1,10.0.0.2:2"), { address: "10.0.0.1", port: 1 });
  assert.deepEqual(hostAndPort("[::1]:5"), { address: "::1", port: 5 });
  assert.deepEqual(hostAndPort("unix:///run/x.sock"), { address: "/run/x.sock" });
  assert.deepEqual(hostAndPort("llm"), { address: "llm" });
});
