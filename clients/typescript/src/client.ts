/**
 * The client: which calls there are on one connection.
 *
 * Knows neither events (`generation`), nor how a status becomes an error (`errors`), nor the wire (`connection`).
 */
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import type { ChannelOptions } from "@grpc/grpc-js";

import type { TlsOptions } from "./channel.js";
import { Connection, UNARY_TIMEOUT_MS, type CallOptions, type StreamCall } from "./connection.js";
import { HeadraceError } from "./errors.js";
import {
  AttachGenerationRequestSchema,
  CancelGenerationRequestSchema,
  GenerationService,
  GetGenerationRequestSchema,
  type CancelGenerationResponse,
  type GenerateRequest,
  type GenerateResponse,
  type GetGenerationResponse,
} from "./gen/headrace/v1/generation_pb.js";
import { GetModelRequestSchema, ListModelsRequestSchema, ModelService, ModelState, type Model } from "./gen/headrace/v1/model_pb.js";
import {
  DetokenizeRequestSchema,
  TokenizeRequestSchema,
  TokenizeService,
  type TokenizeResponse,
} from "./gen/headrace/v1/tokenize_pb.js";
import { Generation, type Reopen } from "./generation.js";
import type { CallMetadata } from "./metadata.js";
import { chatInput, generateRequest, type Chat, type GenerateInput } from "./requests.js";

const DEFAULT_TARGET = "127.0.0.1:50051";
const GENERATE_TIMEOUT_MS = 600_000;
const PAGE_SIZE = 200;

/** How a client reaches its service. */
export interface ClientOptions {
  /** Sent with each call as `authorization: Bearer`. Over an untrusted network it takes `tls` as well. */
  readonly apiKey?: string;
  /** TLS; `true` trusts Node's own roots. Plaintext if left out. */
  readonly tls?: boolean | TlsOptions;
  /** Goes with every call; a function is asked for each, for tokens that change. */
  readonly metadata?: CallMetadata | (() => CallMetadata);
  /** `false`: gRPC repeats nothing by itself. */
  readonly retries?: boolean;
  /** Silence after which a connection with calls on it is pinged; 310,000 if left out, what any gRPC server tolerates. */
  readonly keepaliveMs?: number;
  /** Of grpc-js; they win over everything else here. */
  readonly channelOptions?: ChannelOptions;
}

/** Names a generation, by its id or by the key that it was asked for with. */
export type GenerationTarget = { generationId: string; idempotencyKey?: never } | { idempotencyKey: string; generationId?: never };

/**
 * A client of one Headrace service. `target` is "host:port" or another gRPC target ("dns:///name:port",
 * "ipv4:10.0.0.1:50051,10.0.0.2:50051"). The connection opens with the first call and is shared by all; an idle one does
 * not keep the process alive. Calls reject with HeadraceError, and with TypeError for arguments that make no request.
 */
export class HeadraceClient implements AsyncDisposable {
  readonly target: string;
  readonly #connection: Connection;

  constructor(target: string = DEFAULT_TARGET, options: ClientOptions = {}) {
    const { apiKey, metadata = {}, ...settings } = options;
    const credentials: CallMetadata = apiKey === undefined ? {} : { authorization: `Bearer ${apiKey}` };
    this.target = target;
    this.#connection = new Connection(target, settings, () => ({
      ...credentials,
      ...(typeof metadata === "function" ? metadata() : metadata),
    }));
  }

  /** Close the connection; calls that still run end as `cancelled`. Closing again does nothing. */
  close(): Promise<void> {
    this.#connection.close();
    return Promise.resolve();
  }

  /** For `await using`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /**
   * Return a generation to read; nothing is sent before. Takes the fields of GenerateRequest, with `prompt`, `chat` or
   * `tokens` for its input; or a whole GenerateRequest. Its timeout is 10 minutes if left out.
   */
  generate(input: GenerateInput | GenerateRequest, options: CallOptions = {}): Generation {
    const request = generateRequest(input);
    const { signal, timeoutMs = GENERATE_TIMEOUT_MS, ...rest } = options;
    const open = (own: CallOptions): StreamCall<GenerateResponse> =>
      this.#connection.stream(GenerationService.method.generate, request, { ...rest, ...own });
    const reopen: Reopen = (generationId, afterSequence, own) => {
      if (generationId !== undefined) return this.#attach({ generationId }, afterSequence, { ...rest, ...own });
      // It may run, and nobody knows its id: with a key the repetition joins it.
      return request.idempotencyKey === "" ? undefined : open(own);
    };
    const isRetained = request.idempotencyKey !== "" || request.retention !== undefined;
    return new Generation({
      open: (own) => open({ signal: own, timeoutMs }),
      reopen: isRetained ? reopen : undefined,
      after: 0,
      signal,
      timeoutMs,
    });
  }

  /**
   * Return a retained generation to read, from the event behind `afterSequence` on: what is kept at once, the rest as it
   * comes. Leaving it does not stop the generation. Reading rejects with `not_found` if nothing is kept (any more).
   */
  attach(target: GenerationTarget, options: CallOptions & { afterSequence?: number } = {}): Generation {
    const { afterSequence = 0, signal, timeoutMs = GENERATE_TIMEOUT_MS, ...rest } = options;
    targetOf(target);
    return new Generation({
      open: (own) => this.#attach(target, afterSequence, { ...rest, signal: own, timeoutMs }),
      reopen: (_, after, own) => this.#attach(target, after, { ...rest, ...own }),
      after: afterSequence,
      signal,
      timeoutMs,
    });
  }

  #attach(target: GenerationTarget, afterSequence: number, options: CallOptions): StreamCall<GenerateResponse> {
    const request = create(AttachGenerationRequestSchema, { target: targetOf(target), afterSequence });
    return this.#connection.stream(GenerationService.method.attachGeneration, request, options);
  }

  /** Return where a generation is: one that waits or runs, or ended within the last minutes. */
  async getGeneration(target: GenerationTarget, options: CallOptions = {}): Promise<GetGenerationResponse> {
    const request = create(GetGenerationRequestSchema, { target: targetOf(target) });
    return this.#connection.unary(GenerationService.method.getGeneration, request, options);
  }

  /**
   * Stop a generation, from whichever client it was begun. Its reader gets what was generated until then, finish reason
   * CANCELLED, usage, and no error. May be repeated: one that has ended stays as it ended.
   */
  async cancelGeneration(target: GenerationTarget, options: CallOptions = {}): Promise<CancelGenerationResponse> {
    const request = create(CancelGenerationRequestSchema, { target: targetOf(target) });
    return this.#connection.unary(GenerationService.method.cancelGeneration, request, options);
  }

  /** Return every model, ordered by id. The timeout covers all pages. */
  async listModels(options: CallOptions = {}): Promise<Model[]> {
    const endsMs = performance.now() + (options.timeoutMs ?? UNARY_TIMEOUT_MS);
    const models: Model[] = [];
    let pageToken = "";
    do {
      const request = create(ListModelsRequestSchema, { pageSize: PAGE_SIZE, pageToken });
      const left = { ...options, timeoutMs: endsMs - performance.now() };
      const page = await this.#connection.unary(ModelService.method.listModels, request, left);
      models.push(...page.models);
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
    return models;
  }

  /** Return one model by id or alias. */
  async getModel(model: string, options: CallOptions = {}): Promise<Model> {
    const request = create(GetModelRequestSchema, { model });
    const answer = await this.#connection.unary(ModelService.method.getModel, request, options);
    if (answer.model === undefined) throw new HeadraceError("the server sent no model", { kind: "protocol", status: "INTERNAL" });
    return answer.model;
  }

  /** Return the id of the first model that is ready, else of the first one. */
  async defaultModel(options: CallOptions = {}): Promise<string> {
    const models = await this.listModels(options);
    const model = models.find(({ state }) => state === ModelState.READY) ?? models[0];
    if (model === undefined) throw new HeadraceError("the service lists no models", { kind: "not_found", status: "NOT_FOUND" });
    return model.id;
  }

  /** Return the token ids of a text, or of a conversation as the model sees it, and the room that they leave. */
  async tokenize(
    given: Omit<Extract<MessageInitShape<typeof TokenizeRequestSchema>, { $typeName?: never }>, "input"> &
      ({ text: string; chat?: never } | { chat: Chat; text?: never }),
    options: CallOptions = {},
  ): Promise<TokenizeResponse> {
    const { text, chat, ...fields } = given;
    const request = create(TokenizeRequestSchema, fields);
    request.input = chat === undefined ? { case: "text", value: text } : { case: "chat", value: chatInput(chat) };
    return this.#connection.unary(TokenizeService.method.tokenize, request, options);
  }

  /** Return the text of token ids. */
  async detokenize(given: MessageInitShape<typeof DetokenizeRequestSchema>, options: CallOptions = {}): Promise<string> {
    const request = create(DetokenizeRequestSchema, given);
    const answer = await this.#connection.unary(TokenizeService.method.detokenize, request, options);
    return answer.text;
  }
}

type Target = { case: "generationId"; value: string } | { case: "idempotencyKey"; value: string };

function targetOf({ generationId, idempotencyKey }: GenerationTarget): Target {
  if ((generationId === undefined) === (idempotencyKey === undefined)) {
    throw new TypeError("give a generationId or an idempotencyKey");
  }
  if (generationId !== undefined) return { case: "generationId", value: generationId };
  return { case: "idempotencyKey", value: idempotencyKey! };
}
