import assert from "node:assert/strict";
import { test } from "node:test";

import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { HeadraceError, type GenerateResponse } from "@headrace/client";
import { GenerateResponseSchema } from "@headrace/client/v1";

import { EventOrder } from "#dist/order.js";

type Kind = NonNullable<GenerateResponse["event"]["case"]>;

function event(sequence: number, kind?: Kind): GenerateResponse {
  const init = kind === undefined ? { sequence } : { sequence, event: { case: kind, value: {} } };
  return create(GenerateResponseSchema, init as MessageInitShape<typeof GenerateResponseSchema>);
}

function taken(order: EventOrder, ...kinds: (Kind | undefined)[]): void {
  kinds.forEach((kind) => order.take(event(order.sequence + 1, kind)));
}

const isProtocol = (message: RegExp) => (error: unknown) =>
  error instanceof HeadraceError && error.kind === "protocol" && message.test(error.message);

test("a whole stream is taken", () => {
  const order = new EventOrder();
  taken(order, "queued", "queued", "started", "delta", "choiceFinished", "delta", "choiceFinished", "completed");
  order.end();
  assert.equal(order.sequence, 8);
});

test("an unknown event is counted, wherever it is", () => {
  const order = new EventOrder();
  taken(order, "started");
  order.take(event(2));
  taken(order, "delta", "completed");
  order.end();
});

test("gaps, repetitions and a late begin are refused", () => {
  for (const sequence of [-1, 0, 1, 3, 4]) {
    const order = new EventOrder();
    taken(order, "started");
    assert.throws(() => order.take(event(sequence, "delta")), isProtocol(/in place of event 2/), `${sequence}`);
  }
});

test("an end without completed is refused", () => {
  const order = new EventOrder();
  taken(order, "started", "delta");
  assert.throws(() => order.end(), isProtocol(/without `completed`/));
  assert.throws(() => new EventOrder().end(), isProtocol(/without `completed`/));
});

test("events in the wrong place are refused", () => {
  const wrong: Kind[][] = [
    ["delta"],
    ["completed"],
    ["queued", "delta"],
    ["started", "started"],
    ["started", "queued"],
    ["started", "completed", "delta"],
    ["started", "completed", "completed"],
  ];
  for (const kinds of wrong) assert.throws(() => taken(new EventOrder(), ...kinds), isProtocol(/came/), kinds.join());
});

test("a generation joined in its middle begins with any event, and behind its last one there is nothing", () => {
  const order = new EventOrder(3);
  taken(order, "delta", "choiceFinished", "completed");
  order.end();
  new EventOrder(6).end();
  const cut = new EventOrder(3);
  taken(cut, "delta");
  assert.throws(() => cut.end(), isProtocol(/without `completed`/));
});
