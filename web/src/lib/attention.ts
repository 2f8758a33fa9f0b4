/**
 * The equations of attention, dense and in double precision: what the lesson computes and the tests hold to.
 *
 * For destination i, its permitted sources j and one head (Vaswani et al. 2017, section 3.2.1):
 *
 *     s_ij  = q_i . k_j * scale                 scale = 1 / sqrt(D) unless given
 *     s_ij <- softcap * tanh(s_ij / softcap)    only with a softcap
 *     s_ij <- s_ij + bias_ij                    only with a position bias
 *     lse_i = log(sum_j exp(s_ij) + exp(sink))  exp(sink) only with a sink logit
 *     a_ij  = exp(s_ij - lse_i)                 the sink's share is exp(sink - lse_i): row + share = 1
 *     y_i   = sum_j a_ij v_j                    the sink has no value: it takes weight and moves nothing
 *
 * A source that is not permitted has weight exactly 0. A destination without any permitted source has no row: its
 * weights, its lse and its output are null, never NaN and never zeros that look like data.
 *
 * T destinations, S sources, D head size of q and k, V head size of v, M width of a representation.
 */

export type Vector = readonly number[];
export type Matrix = readonly Vector[];
/** [T][S], true where the destination may read the source. */
export type Permitted = readonly (readonly boolean[])[];

/** One head before attention: q [T][D], k [S][D], v [S][V]. */
export interface Head {
  readonly q: Matrix;
  readonly k: Matrix;
  readonly v: Matrix;
}

export interface Rules {
  /** Factor on the dot product; 1 / sqrt(D) unless given. */
  readonly scale?: number | undefined;
  readonly softcap?: number | undefined;
  readonly bias?: Matrix | undefined;
  /** One logit: a learned place for weight that no source gets. */
  readonly sink?: number | undefined;
}

/** One row of weights; none where no source is permitted. */
export interface Row {
  readonly weights: Vector; // [S]
  readonly sinkShare: number; // 0 without a sink
  readonly lse: number; // nats
}

export interface Attended {
  readonly products: Matrix; // [T][S], q . k before the scale
  readonly scores: Matrix; // [T][S], every pair, permitted or not
  readonly permitted: Permitted;
  readonly rows: readonly (Row | null)[]; // [T], null: an empty row
  readonly outputs: readonly (Vector | null)[]; // [T][V], null: an empty row
}

// ------------------------------------------------------------------------------------------------------ vectors

export function dot(a: Vector, b: Vector): number {
  if (a.length !== b.length) throw new RangeError(`vectors of one length expected: ${a.length} and ${b.length} given`);
  return a.reduce((sum, x, d) => sum + x * at(b, d), 0);
}

export const add = (a: Vector, b: Vector): number[] => a.map((x, d) => x + at(b, d));
export const times = (factor: number, a: Vector): number[] => a.map((x) => factor * x);
export const norm = (a: Vector): number => Math.hypot(...a);

/** W x of every position: x [T][M] and w [N][M], stored (out, in), give [T][N]. */
export const project = (x: Matrix, w: Matrix): number[][] => x.map((row) => w.map((out) => dot(out, row)));

/** The entry at an index that is known to exist; a hole is a mistake of the caller and is said, not read as 0. */
export function at<T>(list: readonly T[], index: number): T {
  const found = list[index];
  if (found === undefined) throw new RangeError(`no entry ${index} among ${list.length}`);
  return found;
}

// -------------------------------------------------------------------------------------------------------- masks

/** Every source up to the destination itself. */
export const causal = (destination: number, source: number): boolean => source <= destination;
/** Every source. */
export const bidirectional = (): boolean => true;
/** The last `keys` sources up to the destination; its own key is counted. */
export const windowed =
  (keys: number) =>
  (destination: number, source: number): boolean =>
    source <= destination && destination - source < keys;

export const mask = (n: number, rule: (destination: number, source: number) => boolean): boolean[][] =>
  Array.from({ length: n }, (_, i) => Array.from({ length: n }, (_, j) => rule(i, j)));

/** Return the mask with one pair turned over. */
export const toggled = (permitted: Permitted, destination: number, source: number): boolean[][] =>
  permitted.map((row, i) => row.map((may, j) => (i === destination && j === source ? !may : may)));

// ---------------------------------------------------------------------------------------------------- attention

export function scoresOf(q: Matrix, k: Matrix, rules: Rules = {}): { products: number[][]; scores: number[][] } {
  const products = q.map((query) => k.map((key) => dot(query, key)));
  const scale = rules.scale ?? 1 / Math.sqrt(at(q, 0).length);
  const { softcap, bias } = rules;
  const scores = products.map((row, i) =>
    row.map((product, j) => {
      const scaled = product * scale;
      const capped = softcap === undefined ? scaled : softcap * Math.tanh(scaled / softcap);
      return bias === undefined ? capped : capped + at(at(bias, i), j);
    }),
  );
  return { products, scores };
}

/**
 * The softmax of one destination's scores over its permitted sources, or null where there is none.
 *
 * The largest logit is taken off first: every exp is then at most 1 and one of them is 1, so nothing overflows and
 * the sum is never 0.
 */
export function softmax(scores: Vector, permitted: readonly boolean[], sink?: number): Row | null {
  const read = scores.filter((_, j) => at(permitted, j));
  if (read.length === 0) return null;
  const pivot = read.reduce((most, s) => Math.max(most, s), sink ?? -Infinity);
  const exps = scores.map((s, j) => (at(permitted, j) ? Math.exp(s - pivot) : 0));
  const toSink = sink === undefined ? 0 : Math.exp(sink - pivot);
  const total = exps.reduce((sum, e) => sum + e, toSink);
  return { weights: exps.map((e) => e / total), sinkShare: toSink / total, lse: pivot + Math.log(total) };
}

/** sum_j weight_j v_j. */
export const weightedSum = (weights: Vector, v: Matrix): number[] =>
  v.reduce<number[]>((sum, value, j) => add(sum, times(at(weights, j), value)), at(v, 0).map(() => 0));

export function attend(head: Head, permitted: Permitted, rules: Rules = {}): Attended {
  const { products, scores } = scoresOf(head.q, head.k, rules);
  const rows = scores.map((row, i) => softmax(row, at(permitted, i), rules.sink));
  const outputs = rows.map((row) => row && weightedSum(row.weights, head.v));
  return { products, scores, permitted, rows, outputs };
}

/**
 * How an output changes when one source is cut and the rest renormalised:
 *
 *     dy_i = -a_ij / (1 - a_ij) * (v_j - y_i) = sum over the rest of a_ij' / (1 - a_ij) v_j'  -  y_i
 *
 * Computed in the second form: where a_ij is next to 1, v_j - y_i has no digits left. Null where the source is all
 * that the row reads: without it there would be no row.
 */
export function changeByCut(row: Row, v: Matrix, source: number): number[] | null {
  const others = row.weights.map((a, j) => (j === source ? 0 : a));
  const rest = others.reduce((sum, a) => sum + a, row.sinkShare);
  if (rest <= 0) return null;
  const [before, after] = [weightedSum(row.weights, v), weightedSum(times(1 / rest, others), v)];
  return after.map((y, d) => y - at(before, d));
}

// -------------------------------------------------------------------------------------------------------- heads

export interface HeadMatrices {
  readonly wq: Matrix; // [D][M]
  readonly wk: Matrix; // [D][M]
  readonly wv: Matrix; // [V][M]
}

export interface ManyHeads {
  readonly heads: readonly Attended[];
  readonly joined: readonly (Vector | null)[]; // [T][H * V], head after head; null where a head's row is empty
  readonly output: readonly (Vector | null)[]; // [T][M], joined through w_o
}

/** Several heads over the same representations x [T][M], joined by w_o [M][H * V] (section 3.2.2 of the paper). */
export function manyHeads(
  x: Matrix,
  matrices: readonly HeadMatrices[],
  wo: Matrix,
  permitted: Permitted,
  rules: Rules = {},
): ManyHeads {
  const heads = matrices.map(({ wq, wk, wv }) =>
    attend({ q: project(x, wq), k: project(x, wk), v: project(x, wv) }, permitted, rules),
  );
  const joined = x.map((_, i) => {
    const parts = heads.map((head) => at(head.outputs, i));
    return parts.some((part) => part === null) ? null : parts.flatMap((part) => part ?? []);
  });
  const output = joined.map((row) => row && wo.map((out) => dot(out, row)));
  return { heads, joined, output };
}

// ------------------------------------------------------------------------------------------- words about a row

/** How many sources a row spreads over: exp of its entropy, 1 for a single source, n for n equal ones. */
export function spread(weights: Vector): number {
  const total = weights.reduce((sum, a) => sum + a, 0);
  const shares = weights.map((a) => a / total).filter((a) => a > 0);
  return Math.exp(-shares.reduce((sum, a) => sum + a * Math.log(a), 0));
}

/** Index of the largest entry, the first of equals. */
export const largest = (values: Vector): number => values.reduce((best, x, j) => (x > at(values, best) ? j : best), 0);
