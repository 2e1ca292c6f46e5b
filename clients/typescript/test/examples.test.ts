/** Every example as its reader runs it, against the real service with the simulator as its engine. */
import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { readdirSync } from "node:fs";
import { get } from "node:http";
import { createInterface } from "node:readline";
import { after, before, suite, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import { LiveService, noService } from "./support/live.js";

const FOLDER = fileURLToPath(new URL("../examples/", import.meta.url));
const SLOTS = 2; // as many as events.ts needs for its choices

// What each has to print.
const PRINTED: Record<string, RegExp> = {
  "first.js": /^( [a-z]+){32}\n\{ '0': 'LENGTH' \} 32 tokens\nfirst one after [\d.]+ ms\n$/,
  "chat.js": /^What does a mill do\? .*\(LENGTH, \d+ tokens read\)\nAnd at night\? .*\(LENGTH, \d+ tokens read\)\n$/,
  "events.js": /^1 gen_\w+ runs on simulator\n[^]*choice 1: [^]*choice 1 ended: LENGTH\n[^]*16 tokens in all\n$/,
  "cancel.js": /\naborted after 5 pieces\nonly the first piece: .*\nstopped by its id: \{ '0': 'CANCELLED' \} \d+ tokens\n$/,
  "deadline.js": /^TIME_LIMIT \d+ tokens\nDEADLINE_EXCEEDED after \d+ characters\n$/,
  "errors.js": /^sampling.temperature: .*\nsampling.top_p: .*\n$/,
  "retry.js": /^( [a-z]+){16}\n$/,
  "resume.js": /^lost behind event \d+: .*\nread to the end, event \d+: .*\n$/,
  "tokens.js": /^simulator READY 8192 tokens of context\n\d+ tokens, room for \d+ more: \[[^]*\]\nriver runs down\n$/,
};

suite("examples", { skip: noService, timeout: 120_000 }, () => {
  let service: LiveService;

  before(async () => {
    service = await LiveService.serving("--simulator-token-ms", "5", "--max-running", String(SLOTS));
  });
  after(async () => {
    await service?.[Symbol.asyncDispose]();
  });

  test("each one is run", () => {
    const all = readdirSync(FOLDER).filter((name) => name.endsWith(".js"));
    assert.deepEqual(all.sort(), [...Object.keys(PRINTED), "server.js"].sort());
  });

  for (const [name, printed] of Object.entries(PRINTED)) {
    test(name, { timeout: 30_000 }, async () => {
      const env = { ...process.env, HEADRACE_TARGET: service.target };
      const { stdout, stderr } = await promisify(execFile)(process.execPath, [FOLDER + name], { env });
      assert.match(stdout, printed);
      assert.equal(stderr, "");
    });
  }

  test("server.js streams, and stops the engine when its caller leaves", { timeout: 30_000 }, async () => {
    const child = spawn(process.execPath, [`${FOLDER}server.js`], {
      env: { ...process.env, HEADRACE_TARGET: service.target, PORT: "0" },
      stdio: ["ignore", "pipe", "inherit"],
    });
    try {
      const port = await new Promise<number>((resolve) => {
        let printed = "";
        createInterface({ input: child.stdout }).on("line", (line) => {
          printed += line;
          const found = /port: (\d+)/.exec(printed)?.[1];
          if (found !== undefined) resolve(Number(found));
        });
      });
      const url = `http://127.0.0.1:${port}/?prompt=`;
      assert.match(await (await fetch(`${url}hi`)).text(), /the river runs/);
      const refused = await fetch(url);
      assert.deepEqual([refused.status, /prompt/.test(await refused.text())], [400, true]);

      // Both slots are taken for a minute, unless leaving gives them back.
      const slow = `${url}${encodeURIComponent('simulate: {"tokens": ["t"], "token_ms": 300}')}`;
      for (let slot = 0; slot < SLOTS; slot += 1) {
        await new Promise((resolve) => {
          const asked = get(slow, (response) => response.once("data", () => resolve(asked.destroy()))).on("error", () => undefined);
        });
      }
      assert.match(await (await fetch(`${url}hi`, { signal: AbortSignal.timeout(15_000) })).text(), /the river runs/);
    } finally {
      child.kill("SIGKILL");
    }
  });
});
