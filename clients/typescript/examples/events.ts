import { FinishReason, HeadraceClient } from "@headrace/client";

const client = new HeadraceClient(process.env.HEADRACE_TARGET);
const model = await client.defaultModel();
const request = { model, prompt: "The lake", sampling: { maxOutputTokens: 8 }, choiceCount: 2, output: { queueEvents: true } };

for await (const { sequence, event } of client.generate(request)) {
  switch (event.case) {
    case "queued":
      console.log(sequence, `${event.value.aheadCount} in front of us`);
      break;
    case "started":
      console.log(sequence, `${event.value.generationId} runs on ${event.value.model}`);
      break;
    case "delta":
      if (event.value.content.case === "text") console.log(sequence, `choice ${event.value.index}:`, event.value.content.value);
      break;
    case "choiceFinished":
      console.log(sequence, `choice ${event.value.index} ended:`, FinishReason[event.value.reason]);
      break;
    case "completed":
      console.log(sequence, `${event.value.usage?.outputTokenCount} tokens in all`);
      break;
  }
}
await client.close();
