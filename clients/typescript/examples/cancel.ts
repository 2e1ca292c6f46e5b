import { HeadraceClient, HeadraceError } from "@headrace/client";

const client = new HeadraceClient(process.env.HEADRACE_TARGET);
const model = await client.defaultModel();
const request = { model, prompt: "Once upon a time", sampling: { maxOutputTokens: 400 } };

// 1. An AbortSignal: the caller is gone. The engine stops, and whoever reads gets an AbortError.
const caller = new AbortController();
process.once("SIGINT", () => caller.abort());
let pieces = 0;
try {
  for await (const piece of client.generate(request, { signal: caller.signal }).deltas()) {
    process.stdout.write(piece);
    if ((pieces += 1) === 5) caller.abort();
  }
} catch (error) {
  if (!(error instanceof HeadraceError) || error.kind !== "cancelled") throw error;
  console.log(`\naborted after ${pieces} pieces`);
}

// 2. Leaving the loop is as good: break, return or an exception.
for await (const piece of client.generate(request).deltas()) {
  console.log("only the first piece:", piece);
  break;
}

// 3. By its id, from anywhere: the stream ends in order, with usage.
const generation = client.generate(request);
for await (const { event } of generation) {
  if (event.case === "started") await client.cancelGeneration({ generationId: event.value.generationId });
}
console.log("stopped by its id:", generation.finishReasons, generation.usage?.outputTokenCount, "tokens");
await client.close();
