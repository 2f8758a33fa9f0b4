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
  const scale = scaleTo(most(weights, 1), kind);
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

export interface Named {
  readonly x: number;
  readonly y: number;
  readonly width: number;
}

export interface Name {
  /** Which of the points. */
  readonly at: number;
  readonly left: number;
  /** The middle of its line. */
  readonly middle: number;
}

const BESIDE = 7;

/** Names beside their points, the first first; one that would lie on another, or out of the frame, is left out. */
export function namesOf(points: readonly Named[], line: number, width: number, height: number): Name[] {
  const found: (Name & { readonly width: number })[] = [];
  points.forEach((point, at) => {
    const sides = [point.x + BESIDE, point.x - BESIDE - point.width];
    const lines = [point.y, point.y - line * 0.8, point.y + line * 0.8].map((middle) => Math.max(line / 2, Math.min(height - line / 2, middle)));
    const free = (left: number, middle: number): boolean =>
      left >= 0 && left + point.width <= width && found.every((other) => Math.abs(other.middle - middle) >= line || left > other.left + other.width + 3 || other.left > left + point.width + 3);
    for (const middle of lines) {
      const left = sides.find((side) => free(side, middle));
      if (left === undefined) continue;
      found.push({ at, left, middle, width: point.width });
      return;
    }
  });
  return found.map(({ at, left, middle }) => ({ at, left, middle }));
}

/** The point nearest to a place, no further than `reach`; null: none. */
export function nearest(xs: ArrayLike<number>, ys: ArrayLike<number>, x: number, y: number, reach: number): number | null {
  let [best, least] = [-1, reach * reach];
  for (let at = 0; at < xs.length; at += 1) {
    const far = ((xs[at] ?? NaN) - x) ** 2 + ((ys[at] ?? NaN) - y) ** 2;
    if (far <= least) [best, least] = [at, far];
  }
  return best < 0 ? null : best;
}
