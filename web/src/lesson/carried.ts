/** A real head's rows, carried from a recording into the first step of the lesson. */

import { add, times, type Matrix, type Permitted, type Vector } from "../lib/attention";
import type { Example, Label } from "./examples";

/** What the explorer hands over: rows as the kernel saw them (after any rotation), and the call's own rules. */
export interface Carried {
  readonly from: string; // "SmolLM2-135M-Instruct, layer 13, head 8"
  readonly destinations: readonly Label[]; // one a row of q
  readonly sources: readonly Label[]; // one a row of k and v
  readonly q: Matrix;
  readonly k: Matrix;
  readonly v: Matrix;
  readonly scale: number;
  readonly softcap?: number | undefined;
  readonly bias?: Matrix | undefined;
  readonly sink?: number | undefined; // a logit
  readonly permitted?: Permitted | undefined; // all pairs, unless given
  /** All other sources of a single destination, together; without it the softmax runs over the given sources alone. */
  readonly rest?: Rest | undefined;
}

export interface Rest {
  readonly count: number;
  readonly weight: number; // share of the row
  readonly part: Vector; // sum of a v over them
  readonly lse: number; // of the whole row: puts the share beside the scores
}

/** A sink's logit from its share of a row: share = exp(sink - lse). */
export const sinkOf = (share: number, lse: number): number => Math.log(share) + lse;

/** One destination's numbers as the server gives them (/api/numbers), arrays row after row. */
export interface RowNumbers {
  readonly scale: number;
  readonly softcap: number | null;
  readonly lse: number;
  readonly sink: number | null; // share of the row
  readonly rest: { readonly count: number; readonly weight: number };
  readonly arrays: {
    readonly q: ArrayLike<number>; // [D]
    readonly k: ArrayLike<number>; // [n, D]
    readonly v: ArrayLike<number>; // [n, V]
    readonly bias?: ArrayLike<number> | undefined; // [n]
    readonly rest: ArrayLike<number>; // [V]
  };
}

/** Return what the first step needs of one destination's numbers; labels of the sources in the order of the rows of k. */
export function carriedFrom(from: string, destination: Label, sources: readonly Label[], numbers: RowNumbers): Carried {
  const { q, k, v, bias, rest } = numbers.arrays;
  const rows = (flat: ArrayLike<number>): number[][] => {
    const width = flat.length / Math.max(1, sources.length);
    return sources.map((_, j) => Array.from(flat).slice(j * width, (j + 1) * width));
  };
  return {
    from,
    destinations: [destination],
    sources,
    q: [Array.from(q)],
    k: rows(k),
    v: rows(v),
    scale: numbers.scale,
    softcap: numbers.softcap ?? undefined,
    bias: bias && [Array.from(bias)],
    sink: numbers.sink === null || numbers.sink <= 0 ? undefined : sinkOf(numbers.sink, numbers.lse),
    rest: { ...numbers.rest, part: Array.from(rest), lse: numbers.lse },
  };
}

/**
 * Return the example of a carried head.
 *
 * The rest becomes one more source: a key of zeros, the score log(weight) + lse as its bias, and the mean value that
 * its sources moved. Beside other keys, values and masks it answers as its sources would together; it cannot follow
 * another query or scale, which would change each of their scores in its own way.
 */
export function exampleOf(carried: Carried): Example {
  const { from, destinations, sources, scale, softcap, sink, bias, rest } = carried;
  const zeros = (row: Vector | undefined): number[] => (row ?? []).map(() => 0);
  const asked = carried.permitted ?? destinations.map(() => sources.map(() => true));
  if (rest === undefined || rest.count === 0 || rest.weight <= 0) {
    return {
      from,
      destinations,
      sources,
      head: { q: carried.q, k: carried.k, v: carried.v },
      permitted: asked,
      rules: { scale, softcap, sink, bias },
      together: null,
    };
  }
  if (destinations.length !== 1) throw new RangeError("the rest of a row belongs to one destination");
  const score = Math.log(rest.weight) + rest.lse;
  const name = rest.count === 1 ? "1 other" : `${rest.count} others`;
  return {
    from,
    destinations,
    sources: [...sources, { text: name, position: null }],
    head: {
      q: carried.q,
      k: [...carried.k, zeros(carried.k[0])],
      v: [...carried.v, times(1 / rest.weight, rest.part)],
    },
    permitted: asked.map((row) => [...row, true]),
    rules: { scale, softcap, sink, bias: [[...(bias?.[0] ?? sources.map(() => 0)), score]] },
    together: sources.length,
  };
}

/** Return the example with other vectors in place of one of its rows. */
export function edited(example: Example, which: "q" | "k" | "v", row: number, entry: number, value: number): Example {
  const rows = example.head[which].map((vector, r) =>
    r === row ? vector.map((x, d) => (d === entry ? value : x)) : vector,
  );
  return { ...example, head: { ...example.head, [which]: rows } };
}

/** Parts a_ij v_j of one destination's output, and their running sums: the stops on the way from 0 to y. */
export function stops(weights: Vector, v: Matrix): { parts: number[][]; sums: number[][] } {
  const parts = v.map((value, j) => times(weights[j] ?? 0, value));
  const sums: number[][] = [];
  for (const part of parts) sums.push(add(part, sums.at(-1) ?? part.map(() => 0)));
  return { parts, sums };
}
