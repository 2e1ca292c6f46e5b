// The strip under an answer: what was waited for, and a tick for each delta. It does not grow with the answer.

const BINS = 1024;
const FIRST_BIN_MS = 2;

/** All times are milliseconds behind the sending of the request. */
export class Timeline {
  firstMs = null;
  lastMs = null;
  deltas = 0;
  longestGapMs = null;
  #canvas;
  #probe;
  #bins = new Uint32Array(BINS);
  #binMs = FIRST_BIN_MS;
  #timing = null;
  #nowMs = 1;
  #frame = null;

  constructor(canvas, probe) {
    this.#canvas = canvas;
    this.#probe = probe;
    canvas.redraw = () => this.#later();
    new ResizeObserver(canvas.redraw).observe(canvas);
  }

  /** Note deltas that arrived together. */
  arrive(ms, deltas) {
    if (this.firstMs === null) this.firstMs = ms;
    else this.longestGapMs = Math.max(this.longestGapMs, ms - this.lastMs);
    this.lastMs = ms;
    this.deltas += deltas;
    while (ms >= BINS * this.#binMs) this.#coarsen();
    this.#bins[Math.floor(ms / this.#binMs)] += deltas;
    this.pass(ms);
  }

  /** Let time pass. */
  pass(ms) {
    this.#nowMs = Math.max(ms, this.#nowMs);
    this.#later();
  }

  /** Show the end, with the server's `timing` if it is known. */
  end(timing) {
    this.#nowMs = this.lastMs ?? this.#nowMs;
    this.#timing = timing;
    this.#later();
  }

  #coarsen() {
    const fine = this.#bins;
    this.#bins = Uint32Array.from(fine, (_, bin) => (fine[2 * bin] ?? 0) + (fine[2 * bin + 1] ?? 0));
    this.#binMs *= 2;
  }

  #later() {
    this.#frame ??= requestAnimationFrame(() => {
      this.#frame = null;
      this.#draw();
    });
  }

  /** Return a colour of the style sheet, in which a canvas has no say. */
  #colour(name) {
    this.#probe.className = name;
    return getComputedStyle(this.#probe).color;
  }

  #draw() {
    const canvas = this.#canvas;
    const { clientWidth: width, clientHeight: height } = canvas;
    const scale = window.devicePixelRatio;
    canvas.width = width * scale;
    canvas.height = height * scale;
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    const fill = (name, left, right, top) => {
      context.fillStyle = this.#colour(name);
      context.fillRect(left, top * height, Math.max(right - left, 1), (1 - top) * height);
    };
    const at = (ms) => (ms / this.#nowMs) * (width - 1);
    const firstMs = this.firstMs ?? this.#nowMs;
    fill("way", 0, at(firstMs), 0.7);
    if (this.#timing) {
      const queueMs = Math.min(this.#timing.queue_ms, firstMs);
      const prefillMs = Math.min(queueMs + this.#timing.prefill_ms, firstMs);
      if (prefillMs > 0) fill("prefill", 0, at(prefillMs), 0);
      if (queueMs > 0) fill("queue", 0, at(queueMs), 0);
    }
    context.fillStyle = this.#colour("decode");
    for (const [bin, deltas] of this.#bins.entries()) {
      const top = height * Math.max(0.5 - 0.12 * Math.log2(deltas), 0.08);
      if (deltas) context.fillRect(at(Math.max(bin * this.#binMs, this.firstMs)), top, 1, height);
    }
  }
}
