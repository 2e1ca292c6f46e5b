/** A gRPC server that plays a script, call by call: what a real service seldom does, and a client has to survive. */
import { create, fromBinary, toBinary, type MessageInitShape } from "@bufbuild/protobuf";
import { BinaryWriter } from "@bufbuild/protobuf/wire";
import { Metadata, Server, ServerCredentials, status, type MethodDefinition, type ServerWritableStream } from "@grpc/grpc-js";
import { GenerateRequestSchema, GenerateResponseSchema, type GenerateRequest } from "@headrace/client/v1";

type EventInit = NonNullable<Extract<MessageInitShape<typeof GenerateResponseSchema>, { $typeName?: never }>["event"]>;

/** What a script does next: send an event with its number, or bytes behind one; end with a status; or wait until the call is cancelled. */
export type Step = { event: EventInit; sequence?: number } | { unknown: Uint8Array } | { fail: Failure } | "hang";

export interface Failure {
  code: status;
  reason?: string;
  pushbackMs?: number;
  retryAfterMs?: number;
}

export const started = (generationId = "gen-1"): Step => ({ event: { case: "started", value: { generationId, model: "m" } } });
export const delta = (text: string, index = 0): Step => ({
  event: { case: "delta", value: { index, content: { case: "text", value: text } } },
});
export const finished = (index = 0): Step => ({ event: { case: "choiceFinished", value: { index, reason: 1 } } });
export const completed = (outputTokenCount = 1): Step => ({ event: { case: "completed", value: { usage: { outputTokenCount } } } });
export const whole = (text: string): Step[] => [started(), delta(text), finished(), completed()];
export const fail = (code: status, more: Omit<Failure, "code"> = {}): Step => ({ fail: { code, ...more } });

/** One call that a server has seen. */
export interface SeenCall {
  readonly request: GenerateRequest;
  readonly metadata: Metadata;
  /** Resolves when the caller, its connection or its deadline ends the call. */
  readonly cancelled: Promise<void>;
  readonly atMs: number;
}

export class ScriptedServer implements AsyncDisposable {
  readonly calls: SeenCall[] = [];
  target = "";
  readonly #server = new Server();
  readonly #scripts: readonly Step[][];
  #waiting: (() => void)[] = [];

  /** Serve scripts on a free port of 127.0.0.1: one per call, the last one for all that follow. */
  static async serving(...scripts: Step[][]): Promise<ScriptedServer> {
    const server = new ScriptedServer(scripts);
    const port = await new Promise<number>((resolve, reject) => {
      server.#server.bindAsync("127.0.0.1:0", ServerCredentials.createInsecure(), (error, bound) =>
        error === null ? resolve(bound) : reject(error),
      );
    });
    server.target = `127.0.0.1:${port}`;
    return server;
  }

  private constructor(scripts: readonly Step[][]) {
    this.#scripts = scripts;
    this.#server.addService(
      {
        generate: {
          path: "/headrace.v1.GenerationService/Generate",
          requestStream: false,
          responseStream: true,
          requestSerialize: Buffer.from,
          requestDeserialize: (bytes: Buffer) => fromBinary(GenerateRequestSchema, bytes),
          responseSerialize: (bytes: Uint8Array) => Buffer.from(bytes),
          responseDeserialize: (bytes: Buffer) => bytes,
        },
      },
      { generate: (call: ServerWritableStream<GenerateRequest, Uint8Array>) => this.#play(call) },
    );
    this.#server.addService(Object.fromEntries(["ListModels", "GetModel"].map((name) => [name, silent(name)])), {
      ListModels: () => undefined,
      GetModel: () => undefined,
    });
  }

  [Symbol.asyncDispose](): Promise<void> {
    this.#server.forceShutdown();
    return Promise.resolve();
  }

  /** Return call number `count`, once it is there. */
  async call(count = 1): Promise<SeenCall> {
    while (this.calls.length < count) await new Promise<void>((resolve) => this.#waiting.push(resolve));
    return this.calls[count - 1]!;
  }

  #play(call: ServerWritableStream<GenerateRequest, Uint8Array>): void {
    const cancelled = new Promise<void>((resolve) => call.once("cancelled", resolve));
    const script = this.#scripts[Math.min(this.calls.length, this.#scripts.length - 1)]!;
    this.calls.push({ request: call.request, metadata: call.metadata, cancelled, atMs: performance.now() });
    this.#waiting.splice(0).forEach((wake) => wake());
    let sequence = 0;
    for (const step of script) {
      if (step === "hang") return;
      if ("fail" in step) {
        call.emit("error", { code: step.fail.code, details: "scripted", metadata: trailers(step.fail) });
        return;
      }
      if (sequence === 0) {
        const headers = new Metadata();
        headers.set("x-request-id", "req-1");
        headers.set("x-generation-id", "gen-1");
        call.sendMetadata(headers);
      }
      sequence += 1;
      if ("unknown" in step) {
        const message = toBinary(GenerateResponseSchema, create(GenerateResponseSchema, { sequence }));
        call.write(Buffer.concat([message, step.unknown]));
      } else {
        const message = create(GenerateResponseSchema, { sequence: step.sequence ?? sequence, event: step.event });
        call.write(toBinary(GenerateResponseSchema, message));
      }
    }
    call.end();
  }
}

/** A method of ModelService that never answers. */
function silent(name: string): MethodDefinition<Buffer, Buffer> {
  const same = (bytes: Buffer): Buffer => bytes;
  return {
    path: `/headrace.v1.ModelService/${name}`,
    requestStream: false,
    responseStream: false,
    requestSerialize: same,
    requestDeserialize: same,
    responseSerialize: same,
    responseDeserialize: same,
  };
}

function trailers({ code, reason, pushbackMs, retryAfterMs }: Failure): Metadata {
  const metadata = new Metadata();
  if (pushbackMs !== undefined) metadata.set("grpc-retry-pushback-ms", String(pushbackMs));
  const status = new BinaryWriter().tag(1, 0).int32(code);
  if (reason !== undefined) {
    status.tag(3, 2).bytes(any("google.rpc.ErrorInfo", new BinaryWriter().tag(1, 2).string(reason).tag(2, 2).string("headrace.v1")));
  }
  if (retryAfterMs !== undefined) {
    const delay = new BinaryWriter().tag(1, 0).int64(Math.floor(retryAfterMs / 1000)).tag(2, 0).int32((retryAfterMs % 1000) * 1e6);
    status.tag(3, 2).bytes(any("google.rpc.RetryInfo", new BinaryWriter().tag(1, 2).bytes(delay.finish())));
  }
  metadata.set("grpc-status-details-bin", Buffer.from(status.finish()));
  return metadata;
}

function any(type: string, value: BinaryWriter): Uint8Array {
  return new BinaryWriter().tag(1, 2).string(`type.googleapis.com/${type}`).tag(2, 2).bytes(value.finish()).finish();
}
