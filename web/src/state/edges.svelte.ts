/** The sources of the chosen destination, or the readers of the chosen source (floor state). */

import { PERMITTED } from "../lib/glow";
import { isMeasured } from "../lib/lens";
import { bytes, floats, integers } from "../wire/message";
import type { RowFacts } from "../wire/api";
import type { Query } from "./api";
import { asking, type Asked } from "./asked.svelte";
import type { Looked } from "./explorer.svelte";

export interface Edges {
  /** The position that they are of, and whether it reads or is read. */
  readonly of: number;
  readonly mode: "sources" | "readers";
  readonly facts: RowFacts;
  readonly values: Float32Array;
  readonly permitted: Uint8Array;
}

/** Which calls and heads are asked about; null until a recording is shown. */
export function scopeOf({ call, head, selection, shown }: Looked): Query | null {
  if (!shown || !call) return null;
  const which: Query = selection.every ? { call: "all", like: call.index } : { call: call.index };
  return { run: shown.key, ...which, head: head ?? "all" };
}

/** Call while a component is made. What is measured is asked for elsewhere. */
export function askEdges(of: () => Looked): Asked<Edges> {
  const question = $derived.by(() => {
    const explorer = of();
    const { selection } = explorer;
    const position = selection.mode === "sources" ? explorer.destination : explorer.source;
    const scope = scopeOf(explorer);
    if (!scope || position === null || isMeasured(selection.lens)) return null;
    const end = selection.mode === "sources" ? { destination: position } : { source: position };
    return JSON.stringify({ ...scope, ...end, lens: selection.lens });
  });
  return asking(() => {
    // As text, so that a choice that changes nothing here asks nothing.
    if (question === null) return null;
    const query = JSON.parse(question) as Query;
    const mode = "destination" in query ? "sources" : "readers";
    return async (signal) => {
      const message = await of().api.get<RowFacts>(mode === "sources" ? "row" : "column", query, signal);
      const position = Number(query[mode === "sources" ? "destination" : "source"]);
      return { of: position, mode, facts: message.facts, values: floats(message, "values"), permitted: bytes(message, "permitted") };
    };
  });
}

/** The unit that each token of a text belongs to; nothing is asked while tokens stand for themselves. */
export function askOwners(of: () => Looked, textNumber: () => number | null): Asked<Int32Array> {
  const question = $derived.by(() => {
    const explorer = of();
    const { group } = explorer.selection;
    const text = textNumber();
    return group === "token" || !explorer.shown || text === null
      ? null
      : JSON.stringify({ run: explorer.shown.key, text, by: group });
  });
  return asking(() => {
    if (question === null) return null;
    const query = JSON.parse(question) as Query;
    return async (signal) => integers(await of().api.get("units", query, signal), "owners");
  });
}

/** The share of each row that rests on no token that was meant: a learned sink, or where there is none the first token. */
export interface Resting {
  readonly learned: boolean;
  /** By destination; NaN where it has none. */
  readonly shares: Float32Array;
}

/** Call while a component is made. */
export function askResting(of: () => Looked): Asked<Resting> {
  const question = $derived.by(() => {
    const { call, head, shown, selection } = of();
    if (!shown || !call || head === null || selection.every) return null;
    return JSON.stringify({ run: shown.key, call: call.index, head, source: 0, lens: "weight" });
  });
  return asking(() => {
    if (question === null) return null;
    const query = JSON.parse(question) as Query;
    return async (signal) => {
      const message = await of().api.get<RowFacts>("column", query, signal);
      if (message.arrays["sinks"]) return { learned: true, shares: floats(message, "sinks") };
      const permitted = bytes(message, "permitted");
      return { learned: false, shares: floats(message, "values").map((value, at) => (permitted[at] === PERMITTED.yes ? value : Number.NaN)) };
    };
  });
}
