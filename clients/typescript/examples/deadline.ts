import { HeadraceClient, HeadraceError } from "@headrace/client";

const client = new HeadraceClient(process.env.HEADRACE_TARGET);
const model = await client.defaultModel();
const request = { model, prompt: "A long story:", sampling: { maxOutputTokens: 2000 } };

// A soft limit: what there is by then is an answer.
const answer = await client.generate({ ...request, timeLimitMs: 1000 }).collect();
console.log(answer.finishReason, answer.usage?.outputTokenCount, "tokens");

// The deadline of the call, which the engine keeps too. Without it: 10 minutes.
let text = "";
try {
  for await (const piece of client.generate(request, { timeoutMs: 1000 }).deltas()) text += piece;
} catch (error) {
  if (!(error instanceof HeadraceError) || error.kind !== "deadline") throw error;
  console.log(error.status, `after ${text.length} characters`);
}
await client.close();
