/** One destination worked through (floor lib): the strips of its vectors, and the sums that have to hold, in words. */

import type { RowOfNumbers } from "../wire/api";
import { digits } from "./format";

export interface WorkedArrays {
  readonly q: Float32Array;
  readonly k: Float32Array;
  readonly v: Float32Array;
  readonly products: Float32Array;
  readonly scores: Float32Array;
  readonly weights: Float32Array;
  readonly parts: Float32Array;
  readonly rest: Float32Array;
  readonly output: Float32Array;
}

export interface Source {
  readonly position: number;
  readonly product: number;
  readonly score: number;
  readonly weight: number;
  readonly k: Float32Array;
  readonly part: Float32Array;
}

/** The sources that are shown one by one: views of the arrays, nothing copied. */
export function sourcesOf(facts: RowOfNumbers, arrays: WorkedArrays): Source[] {
  const of = (flat: Float32Array, row: number): Float32Array => {
    const width = flat.length / facts.sources.length;
    return flat.subarray(row * width, (row + 1) * width);
  };
  return facts.sources.map((position, row) => ({
    position,
    product: arrays.products[row] ?? Number.NaN,
    score: arrays.scores[row] ?? Number.NaN,
    weight: arrays.weights[row] ?? Number.NaN,
    k: of(arrays.k, row),
    part: of(arrays.parts, row),
  }));
}

/** What the scores have beyond query times key: the bias that was added to each. */
export function biasOf({ scale, softcap }: RowOfNumbers, { products, scores }: WorkedArrays): Float32Array {
  return scores.map((score, row) => {
    const scaled = scale * (products[row] ?? Number.NaN);
    return score - (softcap === null ? scaled : softcap * Math.tanh(scaled / softcap));
  });
}

/** The largest size among numbers of either sign: what the ends of their scale stand for. */
export function reachOf(...vectors: readonly Float32Array[]): number {
  let most = 0;
  for (const vector of vectors) for (const value of vector) if (Math.abs(value) > most) most = Math.abs(value);
  return most;
}

/** The share of a signed ramp: 0.5 is zero, 0 and 1 are minus and plus the reach. */
export function signedShare(value: number, reach: number): number {
  return reach > 0 ? 0.5 + Math.max(-0.5, Math.min(0.5, value / reach / 2)) : 0.5;
}

/** How a score comes about, for this call: scaled, then capped, then biased. */
export function scoreWords({ scale, softcap }: Pick<RowOfNumbers, "scale" | "softcap">, bias: boolean): string {
  const scaled = `q\u00b7k \u00d7 ${digits(scale, 4)}`;
  const capped = softcap === null ? scaled : `${digits(softcap)} tanh(${scaled} / ${digits(softcap)})`;
  return `score = ${capped}${bias ? " + bias" : ""}`;
}

/** Whether the shares add up, and whether the recording was checked against its kernel: in words. */
export function checkWords({ off, sink }: Pick<RowOfNumbers, "off" | "sink">): string {
  const what = sink === null ? "All weights of the row" : "All weights of the row and the sink's share";
  const sum = off.sum === 0 ? `${what} add up to 1 exactly.` : `${what} miss 1 by ${digits(off.sum, 2)}.`;
  if (off.output === null) return `${sum} The kernel's output: not checked when this was recorded.`;
  const kernel = off.output === 0 ? "exactly" : `to within ${digits(off.output, 2)} of its largest number`;
  return `${sum} When this was recorded, weights and values rebuilt the kernel's output ${kernel}, on the rows that were checked.`;
}
