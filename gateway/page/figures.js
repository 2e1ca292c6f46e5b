// The figures beside an answer: live by the browser's clock, at the end with the server's own split.

import { count, difference, duration, el, perSecond } from "./elements.js";
import { Timeline } from "./timeline.js";

const REFRESH_MS = 100;
const PHASES = ["queue", "prefill", "decode"];
// What is shown under the time to the first text: its name, and its label if that is another one.
const ROWS = {
  server: "TTFT, server",
  queue: "",
  prefill: "",
  way: "on the way",
  decode: "",
  rate: "tokens/s",
  gap: "per token",
  longest: "longest gap",
  out: "tokens out",
  in: "tokens in",
};

/** Return a bar of `parts` (milliseconds by name), as wide as they are of `totalMs`. */
export function splitBar(parts, totalMs) {
  const bar = el("div", "split");
  for (const [name, ms] of Object.entries(parts)) {
    const part = el("i", name);
    part.style.width = `${ms > 0 ? (100 * ms) / totalMs : 0}%`;
    bar.append(part);
  }
  return bar;
}

/** Return the server's time for each token behind the first, null if it is unknown. */
export function perTokenMs(timing, usage) {
  return usage?.completion_tokens > 1 && timing?.decode_ms ? timing.decode_ms / (usage.completion_tokens - 1) : null;
}

export class Figures {
  element = el("aside", "figures");
  strip = el("figure", "strip");
  final = null; // what the next answer is compared with
  #values = new Map();
  #sentAt = 0;
  #timer = null;
  #bar = splitBar({});
  #canvas = el("canvas");
  #probe = el("i");
  #timeline = new Timeline(this.#canvas, this.#probe);
  #end = el("span");

  constructor() {
    this.#canvas.role = "img";
    this.#canvas.ariaLabel = "Timeline";
    this.element.ariaLabel = "Figures of this answer";
    this.strip.append(this.#probe, this.#canvas, el("figcaption", "", el("span", "", "0"), this.#end));
    const rows = Object.entries(ROWS).map(([name, label]) =>
      el("div", name, el("dt", "", label || name), el("dd", "", this.#value(name))),
    );
    const big = el("p", "ttft", this.#value("ttft"), el("small", "", "to the first text"));
    this.element.append(big, this.#bar, el("dl", "", ...rows));
  }

  begin(sentAt) {
    this.#sentAt = sentAt;
    this.#hide(false);
    this.#timer = setInterval(() => this.#live(), REFRESH_MS);
    this.#live();
  }

  /** Take deltas that arrived together. */
  arrive(at, deltas) {
    const isFirst = this.#timeline.firstMs === null;
    this.#timeline.arrive(at - this.#sentAt, deltas);
    if (isFirst) this.#set("ttft", duration(this.#timeline.firstMs));
  }

  /** Show what is known at the end; `before` is the `final` of an answer to compare with. */
  end(timing, usage, before) {
    clearInterval(this.#timer);
    const { firstMs, lastMs, deltas, longestGapMs } = this.#timeline;
    this.#timeline.end(timing);
    this.#hide(firstMs === null && !timing);
    const serverMs = timing?.time_to_first_token_ms;
    const gap = perTokenMs(timing, usage) ?? (deltas > 1 ? (lastMs - firstMs) / (deltas - 1) : null);
    this.final = { ttft: firstMs, server: serverMs, way: firstMs && serverMs && firstMs - serverMs, gap };
    for (const phase of PHASES) this.final[phase] = timing?.[`${phase}_ms`];
    for (const [name, ms] of Object.entries(this.final))
      this.#set(name, duration(ms), before ? difference(ms, before[name], duration) : "");
    this.#set("longest", duration(longestGapMs));
    this.#set("rate", perSecond(timing?.output_tokens_per_second || (gap && 1000 / gap)));
    this.#set("out", count(usage?.completion_tokens ?? deltas));
    this.#set("in", count(usage?.prompt_tokens));
    const { queue, prefill, way } = this.final;
    const bar = splitBar({ queue, prefill, way }, firstMs);
    this.#bar.replaceWith(bar);
    this.#bar = bar;
    this.#end.textContent = duration(lastMs);
    this.#canvas.ariaLabel = `First text after ${duration(firstMs)}, last after ${duration(lastMs)}`;
  }

  #live() {
    const nowMs = performance.now() - this.#sentAt;
    const { firstMs, lastMs, deltas, longestGapMs } = this.#timeline;
    this.#timeline.pass(nowMs);
    this.#end.textContent = duration(nowMs);
    if (firstMs === null) this.#set("ttft", `${(nowMs / 1000).toFixed(1)} s`);
    else this.#set("out", count(deltas));
    if (longestGapMs === null) return;
    const gap = (lastMs - firstMs) / (deltas - 1);
    this.#set("longest", duration(longestGapMs));
    this.#set("rate", perSecond(1000 / gap));
    this.#set("gap", duration(gap));
  }

  #hide(is) {
    this.element.hidden = this.strip.hidden = is;
  }

  #value(name) {
    const value = el("b", "", "–");
    value.dataset.figure = name;
    this.#values.set(name, value);
    return value;
  }

  #set(name, text, change = "") {
    this.#values.get(name).replaceChildren(text, change ? el("small", "change", change) : "");
  }
}
