// Elements, numbers in words, and what the browser keeps. Nothing on this page parses HTML.

export const find = (selector) => document.querySelector(selector);

/** Return an element; strings among `children` become text. */
export function el(tag, className = "", ...children) {
  const element = document.createElement(tag);
  element.className = className;
  element.append(...children);
  return element;
}

export function button(label, act, className = "quiet") {
  const element = el("button", className, label);
  element.type = "button";
  element.addEventListener("click", act);
  return element;
}

/** Return a button that copies what `text()` returns, and says so. */
export function copyButton(label, text) {
  return button(label, async ({ target }) => {
    target.textContent = (await copy(text())) ? "Copied" : "Could not copy";
    setTimeout(() => (target.textContent = label), 1500);
  });
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Pages without TLS have no clipboard but this one.
    const box = el("textarea", "unseen");
    const focused = document.activeElement;
    box.value = text;
    document.body.append(box);
    box.select();
    const worked = document.execCommand("copy");
    box.remove();
    focused?.focus();
    return worked;
  }
}

const isKnown = Number.isFinite;

/** Return milliseconds in words, a dash where they are unknown. */
export function duration(ms) {
  if (!isKnown(ms)) return "–";
  const size = Math.abs(ms);
  if (size < 9.95) return `${ms.toFixed(1)} ms`;
  return size < 999.5 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(size < 9995 ? 2 : 1)} s`;
}

export const count = (value) => (isKnown(value) ? value.toLocaleString("en") : "–");
export const perSecond = (value) => (value ? value.toFixed(value < 99.5 ? 1 : 0) : "–");

/** Return the difference of two numbers with its sign, in the words of `show`. */
export function difference(now, then, show) {
  if (!isKnown(now) || !isKnown(then)) return "–";
  const size = show(Math.abs(now - then));
  return `${Number.parseFloat(size) ? (now < then ? "−" : "+") : "±"}${size}`;
}

/** Return the middle of those that are known, null of none. */
export function median(values) {
  const known = values.filter(isKnown).sort((a, b) => a - b);
  const middle = known.length >> 1;
  if (!known.length) return null;
  return known.length % 2 ? known[middle] : (known[middle - 1] + known[middle]) / 2;
}

// Where storage is off or full, nothing is remembered.
export function remembered(name, store = "localStorage") {
  try {
    return window[store].getItem(`headrace.${name}`);
  } catch {
    return null;
  }
}

export function remember(name, value, store = "localStorage") {
  try {
    if (value === undefined) window[store].removeItem(`headrace.${name}`);
    else window[store].setItem(`headrace.${name}`, value);
  } catch {
    // As above.
  }
}
