import { HeadraceClient, type ChatTurn } from "@headrace/client";

const client = new HeadraceClient(process.env.HEADRACE_TARGET);
const model = await client.defaultModel();
const chat: ChatTurn[] = [{ role: "system", content: "Answer in one sentence." }];

for (const question of ["What does a mill do?", "And at night?"]) {
  chat.push({ role: "user", content: question });
  const answer = await client.generate({ model, chat, sampling: { maxOutputTokens: 40 } }).collect();
  chat.push({ role: "assistant", content: answer.text });
  console.log(`${question} ${answer.text} (${answer.finishReason}, ${answer.usage?.promptTokenCount} tokens read)`);
}
await client.close();
