// The text of an answer while it grows: always text, never markup; only fences of code get a box of their own.

const FENCE = /^ {0,3}`{3,}/;
// Above it the next line begins a new block, so that no browser lays a book out anew for each token.
const BLOCK_CHARS = 2000;

export class AnswerText {
  text = ""; // as the model wrote it, fences included
  #box;
  #node = null; // where text goes now
  #line = ""; // the line so far
  #isCode = false;

  constructor(box) {
    this.#box = box;
  }

  /** Show `piece` behind what there is. */
  append(piece) {
    const isBegin = !this.text.trim();
    this.text += piece;
    const [first, ...others] = (isBegin ? piece.trimStart() : piece).split("\n");
    this.#put(first);
    for (const part of others) {
      this.#endLine();
      this.#put(part);
    }
  }

  /** Take what has come for all there is. */
  end() {
    this.#endFence();
  }

  #put(part) {
    if (!part) return;
    this.#open().appendData(part);
    this.#line += part;
  }

  #open() {
    if (this.#node === null) {
      const block = document.createElement(this.#isCode ? "pre" : "div");
      block.append((this.#node = document.createTextNode("")));
      this.#box.append(block);
    }
    return this.#node;
  }

  #endLine() {
    if (!this.#endFence()) {
      this.#open().appendData("\n");
      if (this.#node.length > BLOCK_CHARS && !this.#isCode) this.#node = null;
    }
    this.#line = "";
  }

  /** Take a line that is a fence away again; returns whether it was one. */
  #endFence() {
    const line = this.#line;
    if (!FENCE.test(line) || (this.#isCode && line.replaceAll("`", "").trim())) return false;
    this.#node.deleteData(this.#node.length - line.length, line.length);
    if (!this.#node.data.trim()) this.#node.parentNode.remove();
    this.#isCode = !this.#isCode;
    this.#node = null;
    this.#line = "";
    return true;
  }
}
