// What the Python side tells about the gateway under test, and the one conversation that every backend answers alike.
import process from "node:process";

const told = JSON.parse(process.env.SERVED);

export const { name, url, model, toolsModel, answer, answerTokens, count, prompt, endless, abilities } = told;
export const can = (ability) => abilities.includes(ability);

// Greedy, and cut where `answer` ends.
export const counting = { model, messages: count, temperature: 0, seed: 7, max_tokens: answerTokens };

/** Return a prompt that makes the simulator say these tokens; `script` has further members. */
export const scripted = (tokens, script = {}) =>
  `simulate: ${JSON.stringify({ tokens, output_tokens: tokens.length, ...script })}\n`;

/** Return a prompt that makes the simulator write `text`, as bytes and cut within tags and characters. */
export function written(text, script = {}) {
  const bytes = [...Buffer.from(text)].map((byte) => `\\x${byte.toString(16).padStart(2, "0")}`);
  const tokens = [];
  for (let at = 0; at < bytes.length; at += 3) tokens.push(bytes.slice(at, at + 3).join(""));
  return scripted(tokens, script);
}

/** Return all items of an async iterable. */
export async function all(items) {
  const found = [];
  for await (const item of items) found.push(item);
  return found;
}
