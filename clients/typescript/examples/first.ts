import { HeadraceClient } from "@headrace/client";

const client = new HeadraceClient(process.env.HEADRACE_TARGET); // 127.0.0.1:50051 where that is not set
const model = await client.defaultModel();
const generation = client.generate({ model, prompt: "The river", sampling: { maxOutputTokens: 32 } });
for await (const piece of generation.deltas()) process.stdout.write(piece);
console.log();
console.log(generation.finishReasons, generation.usage?.outputTokenCount, "tokens");
console.log("first one after", generation.timing?.timeToFirstTokenMs, "ms");
await client.close();
