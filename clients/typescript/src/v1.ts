/**
 * The contract's own messages, enums and services, generated from protos/headrace/v1: `@headrace/client/v1`.
 *
 * AdminService is among them and has no method in the client: it is for operators, on a port of its own.
 */
export * from "./gen/headrace/v1/admin_pb.js";
export * from "./gen/headrace/v1/chat_pb.js";
export * from "./gen/headrace/v1/error_reason_pb.js";
export * from "./gen/headrace/v1/generation_pb.js";
export * from "./gen/headrace/v1/model_pb.js";
export * from "./gen/headrace/v1/sampling_pb.js";
export * from "./gen/headrace/v1/tokenize_pb.js";
export * from "./gen/headrace/v1/usage_pb.js";
