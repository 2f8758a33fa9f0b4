/** Where the points and names of a plot stand (floor lib), in pixels. */

import { shareOf, scaleTo, type Scale } from "./scale";
import { powerTicks, roundTicks } from "./ticks";

export interface Tick {
  readonly value: number;
  readonly at: number;
}

/** A plot of weight (across) and nats (up) in a frame of so many pixels. */
export interface Plot {
  readonly x: (weight: number) => number;
  readonly y: (nats: number) => number;
  readonly across: readonly Tick[];
  readonly up: readonly Tick[];
  /** Of a log axis: weights below it stand at the left edge. */
  readonly least: number;
}

/** Room above the largest and below the least number. */
const ROOM = 0.06;
const TICKS = 6;

export function plotOf(weights: Float32Array, nats: Float32Array, kind: Scale["kind"], width: number, height: number): Plot {
  const most = (values: Float32Array, sign: 1 | -1): number => values.reduce((best, value) => Math.max(best, sign * value), 0);
  const scale = axisOf(weights, scaleTo(most(weights, 1), kind));
  const [high, low] = [most(nats, 1), -most(nats, -1)];
  const room = ROOM * (high - low || 1);
  const [top, bottom] = [high + room, low - room];
  const x = (weight: number): number => width * (1 - ROOM / 2) * shareOf(scale, weight);
  const y = (value: number): number => (height * (top - value)) / (top - bottom);
  const values = kind === "log" ? powerTicks(scale.low, scale.high) : roundTicks(0, scale.high, TICKS);
  return {
    x,
    y,
    across: values.map((value) => ({ value, at: x(value) })),
    up: roundTicks(bottom, top, TICKS).map((value) => ({ value, at: y(value) })),
    least: scale.low,
  };
}

/** A log axis begins at the power of ten below the least weight, where that is within what the scale tells apart. */
function axisOf(weights: Float32Array, scale: Scale): Scale {
  if (scale.kind === "linear") return scale;
  const least = weights.reduce((best, weight) => (weight > 0 ? Math.min(best, weight) : best), scale.high);
  // A little lower: what stands at the power itself is not at the edge.
  return { ...scale, low: Math.max(scale.low, 0.8 * 10 ** Math.floor(Math.log10(least))) };
}

export interface Named {
  readonly x: number;
  readonly y: number;
  readonly width: number;
}

/** Where points are. */
export interface Places {
  readonly xs: ArrayLike<number>;
  readonly ys: ArrayLike<number>;
}

export interface Name {
  /** Which of the points. */
  readonly at: number;
  readonly left: number;
  /** The middle of its line. */
  readonly middle: number;
  /** A line from the point to the name; null: the name stands right beside it. */
  readonly leader: readonly [x0: number, y0: number, x1: number, y1: number] | null;
}

const BESIDE = 7;

type Place = Omit<Name, "leader"> & { readonly width: number };

/** Where a name may stand, in lines above or below its point. */
const LINES = [0, -0.8, 0.8, -1.6, 1.6];

/**
 * Names beside their points, the first first, where they lie on the fewest of all points; one that would lie on another
 * name, or out of the frame, is left out.
 */
export function namesOf(points: readonly Named[], all: Places, line: number, width: number, height: number): Name[] {
  const found: Place[] = [];
  const covered = (left: number, wide: number, middle: number): number => {
    let count = 0;
    for (let at = 0; at < all.xs.length; at += 1) {
      const [x, y] = [all.xs[at] ?? NaN, all.ys[at] ?? NaN];
      if (x > left && x < left + wide && Math.abs(y - middle) < line / 2) count += 1;
    }
    return count;
  };
  points.forEach((point, at) => {
    const apart = (left: number, middle: number): boolean =>
      found.every((other) => Math.abs(other.middle - middle) >= line || left > other.left + other.width + 3 || other.left > left + point.width + 3);
    let best: Place | null = null;
    let least = Infinity;
    for (const lines of LINES) {
      const middle = Math.max(line / 2, Math.min(height - line / 2, point.y + lines * line));
      for (const left of [point.x + BESIDE, point.x - BESIDE - point.width]) {
        if (left < 0 || left + point.width > width || !apart(left, middle)) continue;
        const count = covered(left, point.width, middle);
        if (count < least) [best, least] = [{ at, left, middle, width: point.width }, count];
      }
    }
    if (best) found.push(best);
  });
  return found.map(({ at, left, middle, width: wide }) => {
    const { x, y } = points[at] ?? { x: left, y: middle };
    return { at, left, middle, leader: Math.abs(middle - y) < line / 2 ? null : [x, y, left > x ? left : left + wide, middle] };
  });
}

/** The point nearest to a place, no further than `reach`; null: none. */
export function nearest({ xs, ys }: Places, x: number, y: number, reach: number): number | null {
  let [best, least] = [-1, reach * reach];
  for (let at = 0; at < xs.length; at += 1) {
    const far = ((xs[at] ?? NaN) - x) ** 2 + ((ys[at] ?? NaN) - y) ** 2;
    if (far <= least) [best, least] = [at, far];
  }
  return best < 0 ? null : best;
}
