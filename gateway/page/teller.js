// Tells those who listen what those who look see: in pieces of about a sentence, and not each token.

import { el, find } from "./elements.js";

const LEAST_MS = 2500;
const KEPT = 4;
const SENTENCES = /^[^]*[.!?\n]\s/;
const WORDS = /^[^]{200,}\s/;
const region = find("#told");
let waiting = "";
let toldAt = 0;

/** Take text that arrived. */
export function tellSome(text) {
  waiting += text;
  if (performance.now() - toldAt < LEAST_MS) return;
  const [some] = SENTENCES.exec(waiting) ?? WORDS.exec(waiting) ?? [""];
  if (some) tell("", some.length);
}

/** Tell what waits, `length` characters of it, and `word` behind it. */
export function tell(word, length = waiting.length) {
  const text = `${waiting.slice(0, length)} ${word}`.trim();
  waiting = waiting.slice(length);
  toldAt = performance.now();
  if (text) region.append(el("p", "", text));
  while (region.children.length > KEPT) region.firstChild.remove();
}
