/** The whole of a generation, put together from its events. Pure. */
import { durationMs, type Duration } from "@bufbuild/protobuf/wkt";

import { FinishReason, type ChoiceDelta, type ChoiceFinished, type GenerateResponse } from "./gen/headrace/v1/generation_pb.js";
import type { Timing, Usage } from "./gen/headrace/v1/usage_pb.js";

/** Why a choice ended; a number in text where this version does not know the name. */
export type FinishReasonName = Exclude<keyof typeof FinishReason, "UNSPECIFIED"> | (string & {});

/** One finished choice. */
export interface Choice {
  readonly index: number;
  readonly text: string;
  readonly reasoningText: string;
  readonly toolCalls: readonly { readonly id: string; readonly functionName: string; readonly argumentsJson: string }[];
  readonly finishReason: FinishReasonName;
  /** undefined where the engine does not count. */
  readonly outputTokenCount: number | undefined;
}

/** Where the time went, on the service's clock, in milliseconds; what it did not tell is undefined. */
export interface TimingMs {
  readonly queueMs: number | undefined;
  readonly prefillMs: number | undefined;
  readonly timeToFirstTokenMs: number | undefined;
  readonly decodeMs: number | undefined;
  readonly totalMs: number | undefined;
  /** 0 where it cannot be computed. */
  readonly outputTokensPerSecond: number;
}

/** A whole generation. `text` and `finishReason` are those of the first choice. */
export interface Generated {
  readonly text: string;
  readonly finishReason: FinishReasonName;
  readonly choices: readonly Choice[];
  /** Counts that are unset are unknown. */
  readonly usage: Usage | undefined;
  readonly timing: TimingMs | undefined;
  /** The id of the model that answered, never an alias. */
  readonly model: string | undefined;
  readonly generationId: string | undefined;
  readonly requestId: string | undefined;
}

/** Return durations in milliseconds. */
export function timingMs(timing: Timing): TimingMs {
  return {
    queueMs: ms(timing.queueDuration),
    prefillMs: ms(timing.prefillDuration),
    timeToFirstTokenMs: ms(timing.timeToFirstToken),
    decodeMs: ms(timing.decodeDuration),
    totalMs: ms(timing.totalDuration),
    outputTokensPerSecond: timing.outputTokensPerSecond,
  };
}

/** Return the name of a finish reason, without its prefix. */
export function finishReasonName(reason: FinishReason): FinishReasonName {
  return FinishReason[reason] ?? String(reason);
}

/** Puts the choices of one generation together. */
export class Collector {
  readonly #choices = new Map<number, Pieces>();

  take({ event }: GenerateResponse): void {
    if (event.case === "delta") this.#piecesOf(event.value.index).take(event.value);
    else if (event.case === "choiceFinished") this.#piecesOf(event.value.index).finished = event.value;
  }

  /** The choices so far, by index. */
  get choices(): Choice[] {
    return [...this.#choices.values()].map((pieces) => pieces.choice).sort((a, b) => a.index - b.index);
  }

  #piecesOf(index: number): Pieces {
    const pieces = this.#choices.get(index) ?? new Pieces(index);
    this.#choices.set(index, pieces);
    return pieces;
  }
}

class Pieces {
  finished: ChoiceFinished | undefined;
  readonly #index: number;
  #text = "";
  #reasoningText = "";
  readonly #calls = new Map<number, { id: string; functionName: string; argumentsJson: string }>();

  constructor(index: number) {
    this.#index = index;
  }

  take({ content }: ChoiceDelta): void {
    if (content.case === "text") this.#text += content.value;
    else if (content.case === "reasoningText") this.#reasoningText += content.value;
    else if (content.case === "toolCall") {
      const piece = content.value;
      const call = this.#calls.get(piece.index) ?? { id: "", functionName: "", argumentsJson: "" };
      this.#calls.set(piece.index, call);
      call.id ||= piece.id;
      call.functionName ||= piece.functionName;
      call.argumentsJson += piece.argumentsFragment;
    }
  }

  get choice(): Choice {
    return {
      index: this.#index,
      text: this.#text,
      reasoningText: this.#reasoningText,
      toolCalls: [...this.#calls].sort(([a], [b]) => a - b).map(([, call]) => call),
      finishReason: finishReasonName(this.finished?.reason ?? FinishReason.UNSPECIFIED),
      outputTokenCount: this.finished?.outputTokenCount,
    };
  }
}

function ms(duration: Duration | undefined): number | undefined {
  return duration === undefined ? undefined : durationMs(duration);
}
