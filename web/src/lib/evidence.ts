/** The sources of one destination by every lens (floor lib): which come first, what the others come to, who disagrees. */

import type { Lens } from "../wire/api";
import { rankCorrelation } from "./rank";

/** Values by position of the source, NaN where a source has none; null: a lens that is not known. */
export type Lenses = Readonly<Record<Lens, Float32Array | null>>;

export type Order = "position" | Lens;

/** What the sources were worth where that was measured, else how much each was read. */
export function usualOrder(lenses: Lenses): Order {
  return lenses.knockout ? "knockout" : "weight";
}

/** The sources in order: by position, or the largest of either sign first; those without a value last. */
export function ordered(sources: readonly number[], lenses: Lenses, order: Order): readonly number[] {
  const values = order === "position" ? null : lenses[order];
  if (!values) return sources;
  const size = (source: number): number => {
    const value = Math.abs(values[source] ?? Number.NaN);
    return Number.isNaN(value) ? -1 : value;
  };
  return [...sources].sort((a, b) => size(b) - size(a) || a - b);
}

export interface Remainder {
  readonly count: number;
  /** Their sums, of the lenses that add up; null: not known. */
  readonly weight: number | null;
  readonly attribution: number | null;
}

/** What the sources come to that are not listed. Weights and estimates add up; lengths and knock-outs do not. */
export function remainderOf(others: readonly number[], lenses: Lenses): Remainder {
  const sum = (values: Float32Array | null): number | null => {
    if (!values) return null;
    let total = 0;
    for (const source of others) if (!Number.isNaN(values[source])) total += values[source] ?? 0;
    return total;
  };
  return { count: others.length, weight: sum(lenses.weight), attribution: sum(lenses.attribution) };
}

export interface Disagreement {
  /** Sources with both a weight and a knock-out. */
  readonly sources: readonly number[];
  readonly weights: Float32Array;
  readonly nats: Float32Array;
  readonly heaviest: number;
  readonly costliest: number;
  /** Spearman's; null where it has no meaning: fewer than three sources, or all the same. */
  readonly correlation: number | null;
  /** The sources furthest from agreement, the furthest first. */
  readonly furthest: readonly number[];
  /** How the estimate did; null: there is none. */
  readonly estimate: Estimated | null;
}

export interface Estimated {
  /** Spearman's of attribution and knock-out, as above. */
  readonly correlation: number | null;
  /** The attribution of the costliest source, where it is no estimate of its knock-out: of the other sign, or less than half. */
  readonly missed: number | null;
}

const FEWEST_RANKED = 3;

/**
 * How weight and knock-out agree over the sources; null where nothing has both. Furthest from agreement: where the share of
 * the largest weight and the share of the largest knock-out differ most.
 */
export function disagreementOf(sources: readonly number[], { weight, knockout, attribution }: Lenses, most: number): Disagreement | null {
  if (!weight || !knockout) return null;
  const both = sources.filter((source) => !Number.isNaN(weight[source] ?? NaN) && !Number.isNaN(knockout[source] ?? NaN));
  if (!both.length) return null;
  const weights = Float32Array.from(both, (source) => weight[source] ?? 0);
  const nats = Float32Array.from(both, (source) => knockout[source] ?? 0);
  const sizeOf = (value: number | undefined): number => Math.abs(value ?? 0);
  const largest = (values: Float32Array): number => values.reduce((best, value, at) => (sizeOf(value) > sizeOf(values[best]) ? at : best), 0);
  const [heaviest, costliest] = [largest(weights), largest(nats)];
  const apart = (at: number): number =>
    Math.abs(sizeOf(weights[at]) / (sizeOf(weights[heaviest]) || 1) - sizeOf(nats[at]) / (sizeOf(nats[costliest]) || 1));
  const correlationOf = (values: Float32Array): number | null => {
    const found = both.length < FEWEST_RANKED ? NaN : rankCorrelation(values, nats);
    return Number.isNaN(found) ? null : found;
  };
  const estimates = attribution && Float32Array.from(both, (source) => attribution[source] ?? NaN);
  const [estimated, cost] = [estimates?.[costliest] ?? NaN, nats[costliest] ?? 0];
  return {
    sources: both,
    weights,
    nats,
    heaviest: both[heaviest] ?? 0,
    costliest: both[costliest] ?? 0,
    correlation: correlationOf(weights),
    estimate: estimates && !estimates.some(Number.isNaN) ? { correlation: correlationOf(estimates), missed: estimated * Math.sign(cost) < Math.abs(cost) / 2 ? estimated : null } : null,
    furthest: both
      .map((source, at) => [source, apart(at)] as const)
      .sort(([, a], [, b]) => b - a)
      .slice(0, most)
      .map(([source]) => source),
  };
}
