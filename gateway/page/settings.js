// What is asked for: model, system prompt, limits, key, and on the simulator its delays.

import { failureOf, failureOfResponse, inWords } from "./errors.js";
import { button, duration, el, find, remember, remembered } from "./elements.js";
import { call } from "./generation.js";

const LIMITS = ["temperature", "max_tokens"];
const DELAYS = ["queue_ms", "prefill_ms", "prefill_ms_per_token", "token_ms"];
const SIMULATOR = "simulator"; // its id where there is no models file, and what its answers call the engine
const SCRIPT = "simulate:";

const form = find("#settings");
const fields = form.elements;
const modelField = find("#model");
const keyField = find("#key");
const simulators = new Set([SIMULATOR]);

export const apiKey = () => keyField.value.trim();
export const model = () => modelField.value;
export const isDelayed = () => simulators.has(model()) && find("#delayed").checked;

/** Return whether everything in the form can be sent; shows what cannot. */
export function isValid() {
  if (!model()) loadModels(); // which says why there is none
  if (!form.checkValidity()) open();
  return form.reportValidity();
}

/** Return the body of a request for `messages`. What was left empty is the model's own. */
export function bodyFor(messages) {
  const body = { model: model(), messages: [...messages] };
  for (const name of LIMITS) if (fields[name].value) body[name] = Number(fields[name].value);
  const system = fields.system.value.trim();
  if (system && messages[0].role !== "system") body.messages.unshift({ role: "system", content: system });
  const { role, content } = body.messages.pop();
  const script = Object.fromEntries(DELAYS.map((name) => [name, Number(fields[name].value)]));
  // The simulator plays the last script in a prompt; one that somebody typed is theirs.
  const isScripted = isDelayed() && !content.includes(SCRIPT);
  body.messages.push({ role, content: isScripted ? `${content}\n\n${SCRIPT} ${JSON.stringify(script)}` : content });
  return body;
}

/** Take what an answer told about its engine. */
export function noteEngine(of, fingerprint) {
  if (fingerprint === SIMULATOR) simulators.add(of);
  showDelays();
}

export function askForKey() {
  showKey();
  open();
  keyField.select();
}

export async function loadModels() {
  const response = await call("models", apiKey()).catch(() => null);
  const note = find("#model-note");
  note.replaceChildren();
  if (response?.ok) {
    const { data } = await response.json();
    modelField.replaceChildren(...data.map(({ id }) => el("option", "", id)));
    const wanted = remembered("model");
    if (data.some(({ id }) => id === wanted)) modelField.value = wanted;
    showDelays();
    return;
  }
  const failure = response ? await failureOfResponse(response) : failureOf({ code: "unreachable" });
  const { title, advice, action } = inWords(failure);
  note.append(`${title} ${advice} `, button("Load again", loadModels));
  open();
  if (action === "key") askForKey();
}

/** Open the settings where the window is too narrow to show them always. */
function open() {
  document.body.classList.add("with-settings");
  find("#settings-button").ariaExpanded = "true";
}

function showKey() {
  find("#key-field").hidden = false;
  find("#show-key").hidden = true;
}

function showDelays() {
  find("#delays").hidden = !simulators.has(model());
  find("#delay-fields").disabled = !find("#delayed").checked;
  for (const name of DELAYS) {
    const words = duration(Number(fields[name].value));
    fields[name].previousElementSibling.textContent = words;
    fields[name].setAttribute("aria-valuetext", words);
  }
}

for (const name of ["system", ...LIMITS]) {
  fields[name].value = remembered(name) ?? fields[name].defaultValue;
  fields[name].addEventListener("change", ({ target }) => remember(name, target.value));
}
keyField.value = remembered("key", "sessionStorage") ?? "";
keyField.addEventListener("change", () => {
  remember("key", apiKey(), "sessionStorage");
  loadModels();
});
if (apiKey()) showKey();
find("#show-key").addEventListener("click", askForKey);
modelField.addEventListener("change", () => remember("model", model()));
form.addEventListener("input", showDelays);
form.addEventListener("submit", (event) => event.preventDefault());
