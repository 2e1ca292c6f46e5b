/** A real service with the simulator as its engine, as a process of its own. */
import { execFileSync, spawn, type ChildProcess } from "node:child_process";
import { existsSync } from "node:fs";
import type { Socket } from "node:net";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

const ROOT = fileURLToPath(new URL("../../../../../", import.meta.url));
const PYTHON = process.env.HEADRACE_TEST_PYTHON ?? `${ROOT}.venv/bin/python`;
const START_MS = 60_000;

/** Why tests against it cannot run here, for `skip`; in CI they have to. */
export const noService: string | false =
  existsSync(PYTHON) || process.env.CI !== undefined ? false : "needs the service: run `make .venv/.run`, or set HEADRACE_TEST_PYTHON";

export class LiveService implements AsyncDisposable {
  readonly #process: ChildProcess;
  readonly port: number;

  /** Start one on a free port of 127.0.0.1 with these flags, and wait until it serves. */
  static async serving(...flags: string[]): Promise<LiveService> {
    const environment = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("HEADRACE_")));
    const all = ["-m", "service", "--backend", "simulator", "--log-format", "json", "--shutdown-grace-s", "1", ...flags];
    const child = spawn(PYTHON, flags.includes("--grpc-port") ? all : [...all, "--grpc-port", "0"], {
      cwd: ROOT,
      env: environment,
      stdio: ["ignore", "ignore", "pipe"],
    });
    // Whoever ends early, because a test failed or ran out of time, does not leave it behind.
    process.once("exit", () => child.kill("SIGKILL"));
    const lines: string[] = [];
    const port = await new Promise<number>((resolve, reject) => {
      createInterface({ input: child.stderr! })
        .on("line", (line) => {
          lines.push(line);
          const found = /serving on [^ "]*:(\d+)/.exec(line)?.[1];
          if (found !== undefined) resolve(Number(found));
        })
        .on("close", () => reject(new Error(`the service ended:\n${lines.join("\n")}`)));
      setTimeout(() => reject(new Error(`the service does not start:\n${lines.join("\n")}`)), START_MS).unref();
    });
    // A test that fails may forget it, and is not to wait for it then.
    child.unref();
    (child.stderr as Socket).unref();
    return new LiveService(child, port);
  }

  private constructor(child: ChildProcess, port: number) {
    this.#process = child;
    this.port = port;
  }

  get target(): string {
    return `127.0.0.1:${this.port}`;
  }

  /** End it with a signal, and wait until it has ended. */
  async end(signal: NodeJS.Signals): Promise<void> {
    if (this.#process.exitCode !== null || this.#process.signalCode !== null) return;
    const ended = new Promise((resolve) => this.#process.once("exit", resolve));
    this.#process.ref();
    this.#process.kill(signal);
    await ended;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.end("SIGKILL");
  }
}

/** A prompt that plays a script in the simulator. */
export function simulate(script: Record<string, unknown>): string {
  return `simulate: ${JSON.stringify(script)}`;
}

/** Wait until a condition holds; give up after some seconds. */
export async function eventually(condition: () => Promise<boolean> | boolean, timeoutMs = 5000): Promise<void> {
  const endsMs = performance.now() + timeoutMs;
  while (!(await condition())) {
    if (performance.now() > endsMs) throw new Error(`not within ${timeoutMs} ms`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** Make a key in a service's file of keys, and return it. */
export function makeKey(file: string): string {
  const command = "from headrace.cli import main; main()";
  const options = ["keys", "create", "--file", file, "--tenant", "acme", "--json"];
  const made = execFileSync(PYTHON, ["-c", command, ...options], { encoding: "utf8" });
  return (JSON.parse(made) as { key: string }).key;
}
