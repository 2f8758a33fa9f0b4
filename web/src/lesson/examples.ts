/** The lesson's examples: small enough for a pencil, or drawn from a seed so that everybody sees the same numbers. */

import { causal, mask, type Head, type HeadMatrices, type Matrix, type Permitted, type Rules } from "../lib/attention";

/** A token as the lesson names it; a position only where it comes from a recording (counted from 0). */
export interface Label {
  readonly text: string;
  readonly position: number | null;
}

/** All that the first step shows and lets people edit. */
export interface Example {
  readonly from: string | null; // which real head it was carried from
  readonly destinations: readonly Label[];
  readonly sources: readonly Label[];
  readonly head: Head;
  readonly permitted: Permitted;
  readonly rules: Rules;
  /** Index of a source that stands for many others together: its score is given, so it has no key to edit. */
  readonly together: number | null;
}

const labels = (...texts: string[]): Label[] => texts.map((text) => ({ text, position: null }));

const BRIDGE = labels("The", "bridge", "was");

/** Three tokens, d_k = d_v = 2, invented numbers, causal. */
export const WORKED: Example = {
  from: null,
  destinations: BRIDGE,
  sources: BRIDGE,
  head: {
    q: [
      [1, 0],
      [0, 2],
      [2, 1],
    ],
    k: [
      [1, 0],
      [0, 1],
      [1, 1],
    ],
    v: [
      [2, 0],
      [0, 2],
      [1, 1],
    ],
  },
  permitted: mask(3, causal),
  rules: { scale: 1 / Math.sqrt(2) },
  together: null,
};

/** A row whose heaviest source says what the others say together: half of the weight, and y stays the same without it. */
export const ECHO: Example = {
  from: null,
  destinations: labels("it"),
  sources: labels("The", "was", "bridge", "closed"),
  head: {
    q: [[1]],
    k: [0.5, 0.25, 0.15, 0.1].map((weight) => [Math.log(weight)]),
    v: [
      [1, 1],
      [0.2, 1.6],
      [3, -1],
      [0, 2.5],
    ],
  },
  permitted: [[true, true, true, true]],
  rules: { scale: 1 },
  together: null,
};

export const SENTENCE = labels("The", "bridge", "was", "closed", "because", "it");

/** Numbers of a normal distribution, always the same for a seed (mulberry32, then Box and Muller). */
export function normals(seed: number): () => number {
  let state = seed >>> 0;
  const uniform = (): number => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
  return () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
}

export const matrix = (draw: () => number, rows: number, columns: number, size = 1): number[][] =>
  Array.from({ length: rows }, () => Array.from({ length: columns }, () => size * draw()));

/** A head of the step about masks: six tokens whose weights differ enough to be followed by eye. */
export function drawnHead(n: number, width: number, seed: number): Head {
  const draw = normals(seed);
  return { q: matrix(draw, n, width, 1.2), k: matrix(draw, n, width, 1.2), v: matrix(draw, n, width) };
}

export const HEAD_SIZE = 4;
const WIDTH = 8;

/** Several heads over the sentence: matrices drawn at random, so nobody has given any of them a job. */
export function drawnHeads(count: number, seed: number): { x: Matrix; matrices: HeadMatrices[]; wo: Matrix } {
  const x = matrix(normals(77), SENTENCE.length, WIDTH);
  // One stream of numbers a head: adding a head leaves the others as they are.
  const matrices = Array.from({ length: count }, (_, h) => {
    const draw = normals(seed * 1000 + h + 1);
    const one = (size: number): Matrix => matrix(draw, HEAD_SIZE, WIDTH, size / Math.sqrt(WIDTH));
    return { wq: one(1.6), wk: one(1.6), wv: one(1) };
  });
  return { x, matrices, wo: matrix(normals(seed + 7), WIDTH, count * HEAD_SIZE, 1 / Math.sqrt(count * HEAD_SIZE)) };
}
