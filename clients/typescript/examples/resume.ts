import { randomUUID } from "node:crypto";

import { HeadraceClient, type Generation } from "@headrace/client";

const client = new HeadraceClient(process.env.HEADRACE_TARGET);
const model = await client.defaultModel();
const idempotencyKey = randomUUID();
let [text, sequence] = ["", 0];

async function read(generation: Generation, pieces: number): Promise<void> {
  for await (const event of generation) {
    sequence = event.sequence; // of the last event that we have
    if (event.event.case !== "delta" || event.event.value.content.case !== "text") continue;
    text += event.event.value.content.value;
    if ((pieces -= 1) === 0) return; // as if this process ended here
  }
}

// With a key the generation is kept: it runs once, and goes on for a while when nobody reads.
await read(client.generate({ model, prompt: "The mill", sampling: { maxOutputTokens: 24 }, idempotencyKey }), 5);
console.log(`lost behind event ${sequence}: ${text}`);
await read(client.attach({ idempotencyKey }, { afterSequence: sequence }), Infinity);
console.log(`read to the end, event ${sequence}: ${text}`);
await client.close();
