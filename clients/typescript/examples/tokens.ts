import { HeadraceClient, ModelState } from "@headrace/client";

const client = new HeadraceClient(process.env.HEADRACE_TARGET);

for (const { id, state, maxContextTokens } of await client.listModels()) {
  console.log(id, ModelState[state], `${maxContextTokens} tokens of context`);
}
const model = await client.defaultModel();
const { tokenIds, tokenCount, remainingContextTokens } = await client.tokenize({ model, text: "The river runs down" });
console.log(`${tokenCount} tokens, room for ${remainingContextTokens} more:`, tokenIds);
console.log(await client.detokenize({ model, tokenIds, skipSpecialTokens: true }));
await client.close();
