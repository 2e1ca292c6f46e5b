import { setTimeout as pause } from "node:timers/promises";

import { HeadraceClient, HeadraceError } from "@headrace/client";

const client = new HeadraceClient(process.env.HEADRACE_TARGET);
const model = await client.defaultModel();

// What gRPC leaves to the caller: a line that is full, a limit that is reached. Nothing ran, and the server says when to come back.
async function patiently<T>(ask: () => Promise<T>, signal: AbortSignal): Promise<T> {
  for (let tries = 1; ; tries += 1) {
    try {
      return await ask();
    } catch (error) {
      if (!(error instanceof HeadraceError) || !error.isRetriable || tries === 5) throw error;
      await pause(error.retryAfterMs ?? 200 * 2 ** tries, undefined, { signal });
    }
  }
}

const signal = AbortSignal.timeout(60_000); // all tries together
const ask = () => client.generate({ model, prompt: "The stone", sampling: { maxOutputTokens: 16 } }, { signal }).text();
console.log(await patiently(ask, signal));
await client.close();
