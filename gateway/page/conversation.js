// The conversation: questions, answers while they come, and what went wrong in words.

import { AnswerText } from "./answer_text.js";
import { button, copyButton, el, find } from "./elements.js";
import { failureParts, inWords } from "./errors.js";
import { Figures } from "./figures.js";
import { Generation } from "./generation.js";
import { apiKey, askForKey, bodyFor, isDelayed, noteEngine } from "./settings.js";
import { tell, tellSome } from "./teller.js";

const WAITING = "Waiting for the first token …";
const RECONNECTING = "Reconnecting …";
const NOTES = {
  length: "Ended at the limit of tokens.",
  time_limit: "Ended at the limit of time.",
  context_length: "Ended because the model’s context is full.",
};
// Who is further away from the end reads something else.
const NEAR_PX = 160;

const send = find("#send");
const room = find("#chat");
let turns = [];
let running = null; // a generation
let frame = null;
let isAtEnd = true;
let scrolledTo = 0;

export const isBusy = () => running !== null;

/** Ask, and show the answer as it comes. */
export function ask(question) {
  const before = turns.at(-1);
  const turn = addTurn(question);
  const body = bodyFor(messages());
  turn.model.textContent = body.model;
  turn.isDelayed = isDelayed();
  // Changes are told where somebody plays with the delays.
  turn.before = turn.isDelayed || before?.isDelayed ? before?.figures.final : null;
  const on = { text: (text) => show(turn, text), state: (word) => showState(turn, word) };
  run(turn, new Generation(body, apiKey(), on));
}

/** Stop the answer that comes; its text stays. */
export const stop = () => running?.stop();

/** Begin anew. */
export function clear() {
  stop();
  turns = [];
  find("#turns").replaceChildren();
  document.body.classList.add("is-new");
}

async function run(turn, generation) {
  setRunning(generation);
  turn.problem.replaceChildren();
  turn.deeds.replaceChildren();
  turn.state.textContent = WAITING;
  tell("Waiting for the answer.");
  const outcome = generation.run();
  turn.figures.begin(generation.sentAt);
  const { end, failure } = await outcome;
  setRunning(null);
  turn.text.end();
  turn.element.classList.remove("is-running");
  turn.state.textContent = end === "stopped" ? "Stopped" : "";
  turn.note.textContent = (end === "completed" && NOTES[generation.finishReason]) || "";
  tell(turn.state.textContent || turn.note.textContent);
  addDeeds(turn);
  if (failure) showFailure(turn, failure, () => run(turn, generation));
  noteEngine(turn.model.textContent, generation.fingerprint);
  const showFigures = () => turn.figures.end(generation.timing, generation.usage, turn.before);
  showFigures();
  follow();
  if (end === "completed" || generation.id === null) return;
  await generation.told;
  await generation.lookUp();
  showFigures();
}

function setRunning(generation) {
  running = generation;
  send.textContent = running ? "Stop" : "Send";
  send.classList.toggle("is-stop", running !== null);
}

function show(turn, { content, reasoning, deltas, at }) {
  if (content) turn.text.append(content);
  if (reasoning) turn.thoughts.append(reasoning);
  turn.figures.arrive(at, deltas);
  const word = content ? "Answering …" : "Thinking …";
  if (turn.state.textContent !== word) {
    turn.state.textContent = word;
    turn.thinking.hidden = !turn.thoughts.text;
    turn.element.classList.add("is-running");
  }
  tellSome(content);
  follow();
}

function showState({ state }, word) {
  if (word === "reconnecting") {
    if (state.textContent !== RECONNECTING) tell("The connection was lost. Reconnecting.");
    state.textContent = RECONNECTING;
  } else if (state.textContent === RECONNECTING) state.textContent = WAITING;
}

function showFailure(turn, failure, resume) {
  const deeds = {
    retry: ["Try again", () => again(turn)],
    key: ["Enter a key", askForKey],
    new: ["New chat", () => find("#new").click()],
    resume: ["Go on", resume],
  };
  const deed = deeds[inWords(failure).action];
  const shown = deed ? [button(...deed, "again")] : [];
  if (failure.retryAfterMs) shown.push(countdown(failure.retryAfterMs));
  turn.problem.append(...failureParts(failure, ...shown));
}

/** Return words that count `ms` down, silent for those who listen. */
function countdown(ms) {
  const words = el("span", "countdown");
  const readyAt = performance.now() + ms;
  const tick = () => {
    const left = Math.ceil((readyAt - performance.now()) / 1000);
    words.textContent = left > 0 ? `Worth trying in ${left} s` : "Worth trying now";
    if (left > 0) setTimeout(tick, 250);
  };
  words.ariaLive = "off";
  tick();
  return words;
}

/** Ask the newest question once more, in the place of its answer. */
function again(turn) {
  if (isBusy()) return;
  turns.pop();
  turn.element.remove();
  ask(turn.question);
  find("#prompt").focus();
}

/** Return what the model is to know: the turns that have an answer, and the newest question. */
function messages() {
  return turns.flatMap(({ question, text }, at) => {
    const pair = [{ role: "user", content: question }, { role: "assistant", content: text.text }];
    return at === turns.length - 1 ? pair.slice(0, 1) : text.text.trim() ? pair : [];
  });
}

function addTurn(question) {
  for (const old of document.querySelectorAll(".again")) old.remove(); // of the newest one alone
  const said = el("div", "text");
  const thoughts = el("div", "thoughts");
  const turn = {
    question,
    text: new AnswerText(said),
    figures: new Figures(),
    model: el("span", "model"),
    state: el("span", "state"),
    thoughts: new AnswerText(thoughts),
    thinking: el("details", "", el("summary", "", "Reasoning"), thoughts),
    note: el("p", "note"),
    problem: el("div", "problem"),
    deeds: el("p", "deeds"),
  };
  turn.thinking.hidden = true;
  turn.problem.role = "alert";
  const who = el("p", "who", turn.model, turn.state);
  const answer = el("div", "answer", who, turn.thinking, said, turn.note, turn.problem, turn.deeds);
  const { element, strip } = turn.figures;
  turn.element = el("article", "turn", el("p", "question", question), answer, element, strip);
  turns.push(turn);
  find("#turns").append(turn.element);
  document.body.classList.remove("is-new");
  isAtEnd = true;
  follow();
  return turn;
}

function addDeeds(turn) {
  if (turn.text.text) turn.deeds.append(copyButton("Copy", () => turn.text.text));
  turn.deeds.append(button("Ask again", () => again(turn), "quiet again"));
}

/** Keep the end in sight; once a frame, since the browser has to measure what was written. */
function follow() {
  frame ??= requestAnimationFrame(() => {
    if (isAtEnd) room.scrollTop = room.scrollHeight;
    frame = null;
  });
}

room.addEventListener("scroll", () => {
  const isNear = room.scrollHeight - room.scrollTop - room.clientHeight < NEAR_PX;
  isAtEnd = isNear || (isAtEnd && room.scrollTop >= scrolledTo); // new text is no scrolling
  scrolledTo = room.scrollTop;
});
window.addEventListener("pagehide", () => running?.abandon());
