// One answer of the API: a POST whose stream goes on where it broke, and a stop that reaches the engine.

import { failureOf, failureOfResponse } from "./errors.js";
import { EventReader } from "./sse.js";

// The service keeps an answer without a reader for 15 s, and its end for minutes.
const GIVE_UP_MS = 30_000;
const GIVE_UP_UNHEARD_MS = 5_000;
const PAUSES_MS = [200, 400, 800, 1600, 2000];
// An open stream says something every 15 s; one that does not has died.
const SILENCE_MS = 35_000;

const LOST = { end: "lost" };

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

/** Call the API; `more` are options of fetch. */
export const call = (path, apiKey, { headers, ...more } = {}) =>
  fetch(`v1/${path}`, {
    cache: "no-store",
    headers: { ...headers, ...(apiKey && { authorization: `Bearer ${apiKey}` }) },
    ...more,
  });

/** Return a key of 128 random bits; randomUUID is for pages with TLS. */
const newKey = () => crypto.getRandomValues(new Uint32Array(4)).reduce((key, part) => `${key}-${part}`, "page");

/**
 * Tells `on.text` what arrived together, and `on.state` "open" and "reconnecting". With `isKept` it survives a lost
 * connection; else leaving it stops it.
 */
export class Generation {
  id = null;
  usage = null;
  timing = null;
  fingerprint = null;
  finishReason = null;
  sentAt = 0; // of performance.now(), like all times here
  #told;
  told = new Promise((done) => (this.#told = done)); // the engine was told to stop
  #body;
  #on;
  #key;
  #apiKey;
  #lastId = null;
  #requestId = null;
  #controller = null;
  #heardAt = 0;
  #isHeard = false;
  #isStopped = false;
  #isCancelled = false;
  #resolve = null;

  constructor(body, apiKey, on, isKept = true) {
    this.#body = JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } });
    this.#apiKey = apiKey;
    this.#on = on;
    this.#key = isKept ? newKey() : null;
  }

  /** Read to the end: "completed", "stopped" or "failed". After a lost connection it may run again. */
  run() {
    this.sentAt ||= performance.now();
    return new Promise((resolve) => {
      this.#resolve = resolve;
      this.#follow().then((outcome) => {
        resolve(outcome);
        if (!this.#isCancelled) this.#told();
      });
    });
  }

  /**
   * Stop. A kept answer goes on for a while without its reader, and has a name only with its first event: until then
   * the connection stays open unseen, and the answer is cancelled as soon as it can be.
   */
  stop() {
    this.#isStopped = true;
    this.#resolve({ end: "stopped" });
    if (this.#key === null) this.#controller.abort();
    else if (this.id !== null) this.#cancel();
  }

  /** Tell the engine on the way out of the page. */
  abandon() {
    if (this.id !== null) this.#postCancel().catch(() => {});
  }

  /** Ask for the figures that a stream without its end did not tell. */
  async lookUp() {
    try {
      const known = await (await call(`generations/${this.id}`, this.#apiKey)).json();
      this.usage ??= known.usage;
      this.timing ??= known.timing;
    } catch {
      // They stay unknown.
    }
  }

  async #follow() {
    let lostAt = null;
    let tries = 0;
    for (;;) {
      if (this.#isStopped && this.id !== null) return { end: "stopped" };
      const before = this.#lastId;
      const outcome = await this.#attempt();
      if (outcome !== null) return outcome;
      if (this.#lastId !== before) [lostAt, tries] = [null, 0];
      lostAt ??= performance.now();
      const limitMs = this.#isHeard ? GIVE_UP_MS : GIVE_UP_UNHEARD_MS;
      if (this.#key === null || performance.now() - lostAt > limitMs)
        return { end: "failed", failure: failureOf({ code: this.#isHeard ? "connection_lost" : "unreachable" }) };
      if (!this.#isStopped) this.#on.state("reconnecting");
      await pause((PAUSES_MS[tries] ?? PAUSES_MS.at(-1)) * (0.75 + Math.random() / 2));
      tries += 1;
    }
  }

  /** Send the request, or ask for the rest of its stream. Null if the connection broke. */
  async #attempt() {
    const { signal } = (this.#controller = new AbortController());
    this.#heardAt = performance.now();
    const watch = setInterval(() => {
      if (performance.now() - this.#heardAt > SILENCE_MS) this.#controller.abort();
    }, 5000);
    const headers = { "content-type": "application/json" };
    if (this.#key) headers["idempotency-key"] = this.#key;
    if (this.#lastId) headers["last-event-id"] = this.#lastId;
    try {
      const options = { method: "POST", body: this.#body, headers, signal };
      const response = await call("chat/completions", this.#apiKey, options);
      if (!response.ok) {
        const failure = await failureOfResponse(response);
        // A gateway or service that comes back, or a proxy that finds none: what was begun is there still.
        const isPassing = failure.isOurs ? this.#isHeard && failure.shouldRetry : failure.status >= 502;
        return isPassing ? null : { end: "failed", failure };
      }
      this.#isHeard = true;
      this.#requestId = response.headers.get("x-request-id");
      if (!this.#isStopped) this.#on.state("open");
      return await this.#read(response.body.getReader());
    } catch {
      return null; // fetch has no other word for a connection that broke
    } finally {
      clearInterval(watch);
    }
  }

  async #read(reader) {
    const events = new EventReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return null; // an end has an event of its own
      this.#heardAt = performance.now();
      const outcome = this.#take(events.feed(value));
      if (outcome !== null) return outcome === LOST ? null : outcome;
      if (this.#isStopped && this.id !== null) {
        this.#cancel();
        return { end: "stopped" };
      }
    }
  }

  /** Take events that came together; returns the outcome if they hold the end. */
  #take(events) {
    const text = { content: "", reasoning: "", deltas: 0, at: this.#heardAt };
    let outcome = null;
    let lastId = this.#lastId;
    for (const { id, data } of events) {
      const chunk = data === "[DONE]" ? null : JSON.parse(data);
      if (chunk === null) outcome = { end: "completed" };
      // A gateway that shuts down leaves what the service keeps.
      else if (chunk.error?.code === "draining" && this.#key) outcome = LOST;
      else if (chunk.error) outcome = { end: "failed", failure: failureOf(chunk.error, this.#requestId) };
      if (outcome !== null) break;
      const [choice] = chunk.choices;
      const { content, reasoning_content: reasoning } = choice?.delta ?? {};
      text.content += content ?? "";
      text.reasoning += reasoning ?? "";
      if (content || reasoning) text.deltas += 1;
      this.finishReason = choice?.native_finish_reason ?? choice?.finish_reason ?? this.finishReason;
      this.fingerprint = chunk.system_fingerprint ?? this.fingerprint;
      this.usage = chunk.usage ?? this.usage;
      this.timing = chunk.timing ?? this.timing;
      this.id ??= chunk.id.replace("chatcmpl-", "");
      lastId = id || lastId;
    }
    this.#lastId = lastId;
    if (text.deltas && !this.#isStopped) this.#on.text(text);
    return outcome;
  }

  async #cancel() {
    if (this.#isCancelled) return;
    this.#isCancelled = true;
    for (const waitMs of [0, 400, 1600, 4000, 8000]) {
      await pause(waitMs);
      try {
        if ((await this.#postCancel()).status < 500) break;
      } catch {
        // Without a reader the service stops it by itself, if later.
      }
    }
    this.#controller.abort();
    this.#told();
  }

  #postCancel() {
    return call(`generations/${this.id}/cancel`, this.#apiKey, { method: "POST", keepalive: true });
  }
}
