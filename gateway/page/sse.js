// Server-sent events after the rules of the HTML standard; any split of the bytes gives the same events.

/** Reads one connection; a new connection needs a new reader, which forgets what was cut off. */
export class EventReader {
  #decoder = new TextDecoder(); // keeps half a character for the next piece, and drops a byte order mark
  #rest = ""; // the begin of a line
  #isBehindCr = false; // a line feed that comes now belongs to the carriage return before it
  #data = [];
  #id = "";

  /** Return the events that `bytes` complete: `{data, id}`, with the id that holds from there on. */
  feed(bytes) {
    let text = this.#decoder.decode(bytes, { stream: true });
    if (!text) return [];
    if (this.#isBehindCr && text[0] === "\n") text = text.slice(1);
    this.#isBehindCr = text.endsWith("\r");
    const lines = (this.#rest + text).split(/\r\n|\n|\r/);
    this.#rest = lines.pop();
    const events = [];
    for (const line of lines) {
      if (line) this.#field(line);
      else if (this.#data.length) {
        events.push({ data: this.#data.join("\n"), id: this.#id });
        this.#data = [];
      }
    }
    return events;
  }

  #field(line) {
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon); // an empty name is a comment
    const value = colon < 0 ? "" : line.slice(colon + (line[colon + 1] === " " ? 2 : 1));
    if (name === "data") this.#data.push(value);
    else if (name === "id" && !value.includes("\0")) this.#id = value;
  }
}
