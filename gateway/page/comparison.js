// Short against long system prompt: the same message behind both in turns, and one table.

import { copyButton, count, difference, duration, el, find, median, perSecond } from "./elements.js";
import { failureParts, inWords } from "./errors.js";
import { perTokenMs, splitBar } from "./figures.js";
import { Generation } from "./generation.js";
import { apiKey, askForKey, bodyFor, isValid, model, noteEngine } from "./settings.js";

const WORDS = ["river", "stone", "harbour", "window", "letter", "garden", "engine"];
const SIDES = ["short", "long"];
const PHASES = ["queue", "prefill", "decode"];
const phaseOf = (phase) => (run) => run.timing?.[`${phase}_ms`];
// What is shown of the runs: label, value, words, class.
const ROWS = [
  ["prompt tokens", (run) => run.usage?.prompt_tokens, count, ""],
  ["TTFT p50, your clock", (run) => run.ttftMs, duration, "is-main"],
  ["TTFT p50, server", phaseOf("time_to_first_token"), duration, ""],
  ...PHASES.map((phase) => [phase, phaseOf(phase), duration, phase]),
  ["per token", (run) => perTokenMs(run.timing, run.usage), duration, ""],
  ["tokens/s", (run) => run.timing?.output_tokens_per_second, perSecond, ""],
];

const form = find("#comparison");
const progress = find("#progress");
const said = find("#compared");
const problem = find("#comparison-problem");
let runs = null;
let about = "";
let isRunning = false;
let isStopped = false;
let running = null; // a generation

export function stop() {
  if (!isRunning) return;
  isStopped = true;
  running.stop();
}

async function compare() {
  const { times, words, question, short_prompt: short, output } = form.elements;
  const total = 2 * times.value;
  const mark = Date.now().toString(36);
  runs = { short: [], long: [] };
  about = `${model()}, ${times.value} runs each, ${output.value} tokens at most, medians`;
  isStopped = false;
  setRunning(true);
  problem.replaceChildren();
  progress.max = total;
  // In turns, so that what changes meanwhile changes both; the first two warm up.
  for (let at = -2; at < total && !isStopped; at += 1) {
    const side = SIDES[(at + 2) % 2];
    progress.value = Math.max(at, 0);
    said.textContent = at < 0 ? "Warming up …" : `Run ${at + 1} of ${total}: ${side}`;
    const system = side === "short" ? short.value : longPrompt(Number(words.value), `${mark}-${at}`);
    const run = await measure(system, question.value, Number(output.value));
    if (run === null) break;
    if (at >= 0) runs[side].push(run);
    show();
  }
  const isDone = 2 * runs.long.length === total;
  if (isDone) progress.value = total;
  said.textContent = isDone ? "Done." : isStopped ? "Stopped." : "";
  setRunning(false);
}

function setRunning(is) {
  isRunning = is;
  find("#compare").textContent = is ? "Stop" : "Compare";
  find("#compare").classList.toggle("is-stop", is);
}

/** Return so many words; with `mark` before them no cache of prefixes knows them. */
function longPrompt(words, mark) {
  return [mark, ...Array.from({ length: words }, (_, at) => WORDS[(at * at) % WORDS.length])].join(" ");
}

/** Return what one run tells; null if it was stopped or failed. */
async function measure(system, question, tokens) {
  const messages = [{ role: "system", content: system }, { role: "user", content: question }];
  const body = { ...bodyFor(messages), max_tokens: tokens };
  let firstAt = null;
  const on = { state: () => {}, text: ({ at }) => (firstAt ??= at) };
  // Not kept: leaving it stops it, and one that broke is no measurement.
  const generation = (running = new Generation(body, apiKey(), on, false));
  const { end, failure } = await generation.run();
  const { usage, timing, fingerprint, sentAt } = generation;
  noteEngine(body.model, fingerprint);
  if (failure) problem.append(...failureParts(failure));
  if (failure && inWords(failure).action === "key") askForKey();
  return end === "completed" ? { ttftMs: firstAt && firstAt - sentAt, usage, timing } : null;
}

const middle = (side, of) => median(runs[side].map(of));

function cellsOf(of, words) {
  const [short, long] = SIDES.map((side) => middle(side, of));
  return [words(short), words(long), difference(long, short, words)];
}

function show() {
  const rows = ROWS.map(([label, of, words, className]) => {
    const head = el("th", "", label);
    head.scope = "row";
    return el("tr", className, head, ...cellsOf(of, words).map((text) => el("td", "", text)));
  });
  find("tbody").replaceChildren(...rows);
  find("caption").textContent = about;
  const splits = SIDES.map((side) => Object.fromEntries(PHASES.map((phase) => [phase, middle(side, phaseOf(phase))])));
  const widest = Math.max(...splits.map(({ queue, prefill, decode }) => queue + prefill + decode));
  find("#bars").replaceChildren(...SIDES.map((side, at) => el("div", "bar", side, splitBar(splits[at], widest))));
  find("#result").hidden = false;
}

function markdown() {
  const lines = ROWS.map(([label, of, words]) => `| ${label} | ${cellsOf(of, words).join(" | ")} |`);
  return [`| ${about} | short | long | difference |`, "|---|--:|--:|--:|", ...lines, ""].join("\n");
}

find("#result").append(copyButton("Copy as Markdown", markdown));
form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (isRunning) stop();
  else if (isValid()) compare();
});
