/** The chosen destination of the chosen head, worked through (floor state). */

import type { WorkedArrays } from "../lib/worked";
import { MARK } from "../lib/marks";
import type { NumbersFacts, Pair, RowOfNumbers } from "../wire/api";
import { floats } from "../wire/message";
import type { Query } from "./api";
import { asking, type Asked } from "./asked.svelte";
import type { Explorer } from "./explorer.svelte";

interface Row {
  /** What it is of: an answer to another question is not shown as if it were to this one. */
  readonly question: string;
  readonly call: number;
  readonly head: number;
  readonly destination: number;
}

export type Worked = Row &
  (
    | { readonly kind: "unkept" }
    | { readonly kind: "empty" }
    | { readonly kind: "row"; readonly facts: RowOfNumbers; readonly arrays: WorkedArrays }
  );

/** What is asked, as text: a choice that changes nothing here asks nothing. Null: no one head is chosen. */
export function questionOf(explorer: Explorer): string | null {
  const { call, head, shown, destination, selection } = explorer;
  if (!shown || !call || head === null || selection.every) return null;
  const query: Query = { run: shown.key, call: call.index, head, destination, sources: selection.oneByOne };
  return JSON.stringify(query);
}

/** Call while a component is made. */
export function askWorked(of: () => Explorer): Asked<Worked> {
  const asked = $derived(questionOf(of()));
  const partial = $derived(of().call?.all_rows === false);
  return asking<Worked>(() => {
    const [question, some] = [asked, partial];
    if (question === null) return null;
    const { sources, ...pair } = JSON.parse(question) as Record<"run", string> & Record<"call" | "head" | "destination" | "sources", number>;
    const row: Row = { question, call: pair.call, head: pair.head, destination: pair.destination };
    return async (signal) => {
      // Of a call that keeps some rows it is first asked whether this is one: that it is not is no error.
      if (some) {
        const { facts } = await of().api.get<Pair>("pair", { ...pair, source: 0 }, signal);
        if (facts.mark === MARK.unrecorded) return { ...row, kind: "unkept" };
      }
      const message = await of().api.get<NumbersFacts>("numbers", { ...pair, sources }, signal);
      if (message.facts.empty) return { ...row, kind: "empty" };
      const array = (name: keyof WorkedArrays): Float32Array => floats(message, name);
      const arrays: WorkedArrays = {
        q: array("q"),
        k: array("k"),
        v: array("v"),
        products: array("products"),
        scores: array("scores"),
        weights: array("weights"),
        parts: array("parts"),
        rest: array("rest"),
        output: array("output"),
      };
      return { ...row, kind: "row", facts: message.facts, arrays };
    };
  });
}
