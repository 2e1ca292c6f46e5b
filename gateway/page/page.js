// The page: what belongs together, keys, tabs and colours.

import { find, remember } from "./elements.js";
import * as comparison from "./comparison.js";
import * as conversation from "./conversation.js";
import { isValid, loadModels } from "./settings.js";

const prompt = find("#prompt");

function ask() {
  const question = prompt.value.trim();
  if (conversation.isBusy() || !question || !isValid()) return;
  prompt.value = "";
  conversation.ask(question);
}

find("#composer").addEventListener("submit", (event) => {
  event.preventDefault();
  if (conversation.isBusy()) conversation.stop();
  else ask();
});
prompt.addEventListener("keydown", (event) => {
  // Within an input method Enter ends a word, and sends nothing.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  ask();
});
document.addEventListener("keydown", ({ key }) => {
  if (key !== "Escape") return;
  conversation.stop();
  comparison.stop();
});
find("#new").addEventListener("click", () => {
  conversation.clear();
  choose(tabs[0]);
  prompt.focus();
});
find("#welcome").addEventListener("click", ({ target }) => {
  if (!target.matches("button")) return;
  prompt.value = target.textContent;
  prompt.focus();
  ask();
});

const tabs = [...document.querySelectorAll("[role=tab]")];

function choose(chosen) {
  for (const tab of tabs) {
    tab.ariaSelected = String(tab === chosen);
    tab.tabIndex = tab === chosen ? 0 : -1;
    find(`#${tab.getAttribute("aria-controls")}`).hidden = tab !== chosen;
  }
}

for (const [at, tab] of tabs.entries()) {
  tab.addEventListener("click", () => choose(tab));
  tab.addEventListener("keydown", ({ key }) => {
    if (key !== "ArrowRight" && key !== "ArrowLeft") return;
    choose(tabs[1 - at]); // there are two
    tabs[1 - at].focus();
  });
}

find("#settings-button").addEventListener("click", ({ target }) => {
  target.ariaExpanded = String(document.body.classList.toggle("with-settings"));
});

const root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);

function showTheme() {
  find("#theme").ariaPressed = String(isDark());
  for (const canvas of document.querySelectorAll("canvas")) canvas.redraw();
}

find("#theme").addEventListener("click", () => {
  const theme = isDark() ? "light" : "dark";
  // Who chooses what the system says follows the system again.
  if ((theme === "dark") === dark.matches) delete root.dataset.theme;
  else root.dataset.theme = theme;
  remember("theme", root.dataset.theme);
  showTheme();
});
dark.addEventListener("change", showTheme);
showTheme();

loadModels();
