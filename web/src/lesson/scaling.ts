/** Random rows for the step about the scale: what the size of a head does to the softmax. */

import { bidirectional, dot, mask, softmax, type Head } from "../lib/attention";
import { matrix, normals } from "./examples";

export const SOURCES = 6;
export const SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512] as const;

/** One query and six keys whose numbers have mean 0 and variance 1. */
export function drawnRow(size: number, seed: number): Head {
  const draw = normals(7919 * seed + size);
  return { q: matrix(draw, 1, size), k: matrix(draw, SOURCES, size), v: matrix(draw, SOURCES, 1) };
}

const ALL = mask(SOURCES, bidirectional)[0] ?? [];
const ROWS = 60;

/** q . k of sixty drawn rows, for each size; drawn once. */
let drawn: Map<number, number[][]> | null = null;
function products(size: number): number[][] {
  drawn ??= new Map();
  const kept = drawn.get(size);
  if (kept) return kept;
  const rows = Array.from({ length: ROWS }, (_, seed) => {
    const { q, k } = drawnRow(size, seed + 1);
    return k.map((key) => dot(q[0] ?? [], key));
  });
  drawn.set(size, rows);
  return rows;
}

/** The largest weight of a row, the mean over sixty rows drawn at random. */
export function meanLargest(size: number, scale: number): number {
  const rows = products(size);
  const sum = rows.reduce((total, row) => {
    const weights = softmax(
      row.map((product) => product * scale),
      ALL,
    )?.weights;
    return total + Math.max(...(weights ?? [0]));
  }, 0);
  return sum / rows.length;
}
