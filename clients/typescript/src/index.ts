/** The TypeScript client of Headrace. The contract's own messages and enums are in `@headrace/client/v1`. */
export { HeadraceClient, type ClientOptions, type GenerationTarget } from "./client.js";
export type { TlsOptions } from "./channel.js";
export type { Choice, FinishReasonName, Generated, TimingMs } from "./collect.js";
export type { CallOptions } from "./connection.js";
export type { Violation } from "./details.js";
export { HeadraceError, type ErrorKind, type Reason, type StatusName } from "./errors.js";
export { Generation } from "./generation.js";
export type { CallMetadata } from "./metadata.js";
export { chatInput, chatMessages, functionTool, type Chat, type ChatTurn, type GenerateInput } from "./requests.js";
export { FinishReason, GenerationState, Priority, type GenerateResponse } from "./gen/headrace/v1/generation_pb.js";
export { ModelCapability, ModelState, type Model } from "./gen/headrace/v1/model_pb.js";
export type { Usage } from "./gen/headrace/v1/usage_pb.js";
export { VERSION } from "./version.js";
