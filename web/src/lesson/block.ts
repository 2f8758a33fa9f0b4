/**
 * One block of a transformer on three tokens, every stage kept: attention, residual, normalisation, feed-forward.
 *
 *     before each part:  u = x + Attention(Norm(x)),   y = u + FeedForward(Norm(u))
 *     after each sum:    u = Norm(x + Attention(x)),   y = Norm(u + FeedForward(u))
 *
 * The matrices are drawn from a seed: the numbers mean nothing, the wiring is that of a real block.
 */

import { add, at, attend, causal, mask, project, type Matrix, type Permitted, type Vector } from "../lib/attention";
import { matrix, normals } from "./examples";

export type Order = "before" | "after";
export type Part = "stream" | "norm" | "attention" | "sum" | "forward";

export interface Stage {
  readonly id: string;
  readonly part: Part;
  readonly name: string;
  /** Whether it lies on the stream itself or on the branch that is added to it. */
  readonly lane: "stream" | "branch";
  readonly rows: Matrix; // [T][M]
}

const WIDTH = 4;
const INNER = 8;
export const CAUSAL_THREE: Permitted = mask(3, causal);

const draw = normals(5);
const some = (rows: number, columns: number): Matrix => matrix(draw, rows, columns, 1.2 / Math.sqrt(columns));
const WEIGHTS = {
  q: some(WIDTH, WIDTH),
  k: some(WIDTH, WIDTH),
  v: some(WIDTH, WIDTH),
  o: some(WIDTH, WIDTH),
  up: some(INNER, WIDTH),
  down: some(WIDTH, INNER),
};

export const START: Matrix = matrix(normals(11), 3, WIDTH);

/** LayerNorm without learned factors: mean 0, mean square 1. */
export function normalised(x: Vector): number[] {
  const mean = x.reduce((sum, value) => sum + value, 0) / x.length;
  const away = x.map((value) => value - mean);
  const size = Math.sqrt(away.reduce((sum, value) => sum + value * value, 0) / x.length + 1e-5);
  return away.map((value) => value / size);
}

/** Two linear maps with max(0, .) between them, for each position by itself. */
const fedForward = (x: Matrix): number[][] =>
  project(
    project(x, WEIGHTS.up).map((row) => row.map((value) => Math.max(0, value))),
    WEIGHTS.down,
  );

function attention(x: Matrix): number[][] {
  const head = { q: project(x, WEIGHTS.q), k: project(x, WEIGHTS.k), v: project(x, WEIGHTS.v) };
  const { outputs } = attend(head, CAUSAL_THREE);
  return project(
    outputs.map((y) => y ?? []),
    WEIGHTS.o,
  );
}

const sums = (a: Matrix, b: Matrix): number[][] => a.map((row, i) => add(row, at(b, i)));
const norms = (x: Matrix): number[][] => x.map(normalised);

/** Run the block on x [3][4] and return its seven stages in the order of computation. */
export function block(x: Matrix, order: Order): Stage[] {
  const stage = (id: string, part: Part, name: string, lane: Stage["lane"], rows: Matrix): Stage => ({
    id,
    part,
    name,
    lane,
    rows,
  });
  const first = stage("in", "stream", "What arrives, x", "stream", x);
  if (order === "before") {
    const n1 = stage("norm1", "norm", "Normalisation", "branch", norms(x));
    const a = stage("attention", "attention", "Attention", "branch", attention(n1.rows));
    const u = stage("sum1", "sum", "Residual sum", "stream", sums(x, a.rows));
    const n2 = stage("norm2", "norm", "Normalisation", "branch", norms(u.rows));
    const f = stage("forward", "forward", "Feed-forward", "branch", fedForward(n2.rows));
    return [first, n1, a, u, n2, f, stage("sum2", "sum", "Residual sum", "stream", sums(u.rows, f.rows))];
  }
  const a = stage("attention", "attention", "Attention", "branch", attention(x));
  const u = stage("sum1", "sum", "Residual sum", "stream", sums(x, a.rows));
  const n1 = stage("norm1", "norm", "Normalisation", "stream", norms(u.rows));
  const f = stage("forward", "forward", "Feed-forward", "branch", fedForward(n1.rows));
  const s = stage("sum2", "sum", "Residual sum", "stream", sums(n1.rows, f.rows));
  return [first, a, u, n1, f, s, stage("norm2", "norm", "Normalisation", "stream", norms(s.rows))];
}

/** For every stage, the positions whose numbers differ between two runs. */
export const changed = (one: readonly Stage[], other: readonly Stage[]): number[][] =>
  one.map((stage, s) =>
    stage.rows.flatMap((row, i) =>
      row.some((value, d) => Math.abs(value - at(at(at(other, s).rows, i), d)) > 1e-9) ? [i] : [],
    ),
  );

/** The block's input with one number of one position changed. */
export const nudged = (x: Matrix, position: number, by: number): number[][] =>
  x.map((row, i) => row.map((value, d) => (i === position && d === 0 ? value + by : value)));
