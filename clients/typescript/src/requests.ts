/**
 * From what a caller writes to messages of the contract.
 *
 * Checks shapes only: ranges are the service's business, which names all violations at once.
 */
import { create, isMessage, type MessageInitShape } from "@bufbuild/protobuf";
import { durationFromMs } from "@bufbuild/protobuf/wkt";

import {
  ChatInputSchema,
  ChatMessageSchema,
  FunctionToolSchema,
  Role,
  ToolSchema,
  type ChatInput,
  type ChatMessage,
  type Tool,
} from "./gen/headrace/v1/chat_pb.js";
import { GenerateRequestSchema, type GenerateRequest } from "./gen/headrace/v1/generation_pb.js";

type Fields = Exclude<MessageInitShape<typeof GenerateRequestSchema>, GenerateRequest>;
type ChatFields = Exclude<MessageInitShape<typeof ChatInputSchema>, ChatInput>;

/** One turn of a conversation. */
export interface ChatTurn {
  readonly role: "system" | "developer" | "user" | "assistant" | "tool";
  readonly content: string;
  readonly name?: string;
  /** Calls that the assistant made in this turn. */
  readonly toolCalls?: readonly { id: string; functionName: string; argumentsJson: string }[];
  /** The call that this turn, of role tool, answers. */
  readonly toolCallId?: string;
  readonly reasoningText?: string;
}

/** A conversation: its turns, or these with tools and template arguments. */
export type Chat =
  | readonly (ChatTurn | ChatMessage)[]
  | (Omit<ChatFields, "messages"> & { readonly messages: readonly (ChatTurn | ChatMessage)[] });

type Input =
  | { prompt: string; chat?: never; tokens?: never; input?: never }
  | { chat: Chat; prompt?: never; tokens?: never; input?: never }
  | { tokens: readonly number[]; prompt?: never; chat?: never; input?: never }
  | { input: Fields["input"]; prompt?: never; chat?: never; tokens?: never };

/**
 * What `generate` takes: the fields of GenerateRequest, with shorter forms of its input (`prompt`, `chat` or `tokens`)
 * and of its soft limit of time.
 */
export type GenerateInput = Omit<Fields, "input"> & Input & { timeLimitMs?: number };

/** Return the message for what a caller wrote; a message that is ready is taken as it is. */
export function generateRequest(given: GenerateInput | GenerateRequest): GenerateRequest {
  if (isMessage(given, GenerateRequestSchema)) return given;
  const { prompt, chat, tokens, input, timeLimitMs, ...fields } = given;
  const inputs = [prompt, chat, tokens, input].filter((one) => one !== undefined);
  if (inputs.length !== 1) throw new TypeError("give exactly one of prompt, chat, tokens and input");
  const request = create(GenerateRequestSchema, fields);
  if (prompt !== undefined) request.input = { case: "prompt", value: prompt };
  else if (chat !== undefined) request.input = { case: "chat", value: chatInput(chat) };
  else if (input !== undefined) request.input = create(GenerateRequestSchema, { input }).input;
  else if (tokens !== undefined) {
    request.input = create(GenerateRequestSchema, { input: { case: "tokens", value: { ids: [...tokens] } } }).input;
  }
  if (timeLimitMs !== undefined) request.timeLimit = durationFromMs(timeLimitMs);
  return request;
}

/** Return the message for a conversation. */
export function chatInput(chat: Chat): ChatInput {
  if (isTurns(chat)) return create(ChatInputSchema, { messages: chatMessages(chat) });
  const { messages, ...fields } = chat;
  return create(ChatInputSchema, { ...fields, messages: chatMessages(messages) });
}

/** Return the messages for turns; those that are messages already are taken as they are. Throws TypeError for an unknown role. */
export function chatMessages(turns: readonly (ChatTurn | ChatMessage)[]): ChatMessage[] {
  return turns.map((turn) => {
    if (isMessage(turn, ChatMessageSchema)) return turn;
    const { role, content, name, toolCalls, toolCallId, reasoningText } = turn;
    if (!Object.hasOwn(ROLES, role)) {
      throw new TypeError(`unknown role ${JSON.stringify(role)}: use ${Object.keys(ROLES).join(", ")}`);
    }
    return create(ChatMessageSchema, {
      role: ROLES[role],
      content: content === "" ? [] : [{ part: { case: "text", value: content } }],
      name: name ?? "",
      toolCalls: [...(toolCalls ?? [])],
      toolCallId: toolCallId ?? "",
      reasoningText: reasoningText ?? "",
    });
  });
}

/** Return a tool that is a function; `parameters` is the JSON Schema of its arguments. */
export function functionTool(
  name: string,
  { description = "", parameters, strict = false }: { description?: string; parameters?: object; strict?: boolean } = {},
): Tool {
  const value = create(FunctionToolSchema, {
    name,
    description,
    parametersJsonSchema: parameters === undefined ? "" : JSON.stringify(parameters),
    strict,
  });
  return create(ToolSchema, { kind: { case: "function", value } });
}

const ROLES: Readonly<Record<ChatTurn["role"], Role>> = {
  system: Role.SYSTEM,
  developer: Role.DEVELOPER,
  user: Role.USER,
  assistant: Role.ASSISTANT,
  tool: Role.TOOL,
};

function isTurns(chat: Chat): chat is readonly (ChatTurn | ChatMessage)[] {
  return Array.isArray(chat);
}
