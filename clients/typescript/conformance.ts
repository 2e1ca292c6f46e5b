/**
 * The conformance program of clients/conformance.yaml: reads scenarios from standard input, one a line, carries each out
 * with the package's public interface, and writes one line about it.
 */
import { createInterface } from "node:readline";

import { fromJson, type JsonValue } from "@bufbuild/protobuf";
import { GenerationState, HeadraceClient, HeadraceError, type Generation, type GenerationTarget } from "@headrace/client";
import { GenerateRequestSchema } from "@headrace/client/v1";

interface Scenario {
  name: string;
  target: string;
  call?: "generate" | "models" | "cancel_generation" | "get_generation";
  request?: { [key: string]: JsonValue };
  timeout_ms?: number;
  api_key?: string;
  retries?: boolean;
  act?: { cancel_after_deltas?: number; stop_after_deltas?: number };
}

type Answer = Record<string, unknown>;

for await (const line of createInterface({ input: process.stdin })) {
  if (line.trim() !== "") console.log(JSON.stringify(await carriedOut(JSON.parse(line) as Scenario)));
}

async function carriedOut(scenario: Scenario): Promise<Answer> {
  const { name, target, api_key: apiKey, retries = true } = scenario;
  const client = new HeadraceClient(target, { retries, ...(apiKey === undefined ? {} : { apiKey }) });
  const beganMs = performance.now();
  const answer: Answer = { name, status: "OK" };
  try {
    await call(client, scenario, answer);
  } catch (error) {
    if (!(error instanceof HeadraceError)) throw error;
    answer["status"] = error.status;
    answer["reason"] = error.kind === "protocol" ? "PROTOCOL" : error.reason;
    answer["violations"] = error.violations.length > 0 ? error.violations.map(({ field }) => field) : undefined;
    answer["retry_after_ms"] = error.retryAfterMs;
    answer["request_id"] ??= error.requestId;
    answer["message"] = error.message;
  } finally {
    await client.close();
  }
  answer["elapsed_ms"] = Math.round(performance.now() - beganMs);
  return answer;
}

async function call(client: HeadraceClient, scenario: Scenario, answer: Answer): Promise<void> {
  const options = scenario.timeout_ms === undefined ? {} : { timeoutMs: scenario.timeout_ms };
  switch (scenario.call ?? "generate") {
    case "models":
      answer["models"] = (await client.listModels(options)).map(({ id }) => id);
      break;
    case "get_generation":
      answer["state"] = GenerationState[(await client.getGeneration(targetOf(scenario), options)).state];
      break;
    case "cancel_generation":
      answer["state"] = GenerationState[(await client.cancelGeneration(targetOf(scenario), options)).state];
      break;
    case "generate":
      await generate(client, scenario, answer);
  }
}

async function generate(client: HeadraceClient, { request = {}, timeout_ms, act = {} }: Scenario, answer: Answer): Promise<void> {
  const caller = new AbortController();
  const generation = client.generate(fromJson(GenerateRequestSchema, request), { signal: caller.signal, timeoutMs: timeout_ms });
  const texts: Record<number, string> = {};
  let [deltas, queued] = [0, 0];
  try {
    for await (const { event } of generation) {
      if (event.case === "queued") queued += 1;
      if (event.case !== "delta" || event.value.content.case !== "text") continue;
      texts[event.value.index] = (texts[event.value.index] ?? "") + event.value.content.value;
      deltas += 1;
      if (deltas === act.cancel_after_deltas) caller.abort();
      if (deltas === act.stop_after_deltas) await client.cancelGeneration({ generationId: generation.generationId! });
    }
  } finally {
    tell(answer, generation, texts);
    answer["deltas"] = deltas;
    answer["queued"] = queued || undefined;
  }
}

function tell(answer: Answer, generation: Generation, texts: Record<number, string>): void {
  const reasons = generation.finishReasons;
  answer["text"] = texts[0] ?? "";
  answer["finish_reason"] = reasons[0];
  if (Object.keys(texts).length > 1) Object.assign(answer, { texts, finish_reasons: reasons });
  answer["prompt_tokens"] = generation.usage?.promptTokenCount;
  answer["output_tokens"] = generation.usage?.outputTokenCount;
  answer["generation_id"] = generation.generationId;
  answer["request_id"] = generation.requestId;
}

function targetOf({ request = {} }: Scenario): GenerationTarget {
  const { generationId, idempotencyKey } = request;
  if (typeof generationId === "string") return { generationId };
  return { idempotencyKey: String(idempotencyKey) };
}
