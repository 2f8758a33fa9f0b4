/** What lights up in the text (floor lib): a row's or a column's values, grouped and, if asked, without the first token. */

import type { Lens } from "../wire/api";

/** A position's standing: it may be read, it may not, or it was not recorded. As the server numbers them. */
export const PERMITTED = { no: 0, yes: 1, unrecorded: 2 } as const;

export interface Glow {
  /** By position; NaN where there is nothing to show. */
  readonly values: Float32Array;
  /** The largest of them, which the scale runs to; 0 if there is none. */
  readonly largest: number;
}

/** Values with the first token left out and the others as shares of the rest. */
export function withoutFirst(values: Float32Array): Float32Array {
  const rest = 1 - (values[0] ?? 0);
  const shares = values.map((value) => (rest > 0 ? value / rest : Number.NaN));
  if (shares.length) shares[0] = Number.NaN;
  return shares;
}

/**
 * Values of tokens as values of their units. Weights are shares, so a unit has their sum; lengths of what was moved do
 * not add up, so a unit has its largest. A token of no unit keeps its own.
 */
export function grouped(values: Float32Array, owners: Int32Array, lens: Lens): Float32Array {
  const units = new Map<number, number>();
  const join = lens === "weight" ? (a: number, b: number) => a + b : Math.max;
  values.forEach((value, at) => {
    const owner = owners[at] ?? -1;
    if (owner < 0 || Number.isNaN(value)) return;
    units.set(owner, join(units.get(owner) ?? 0, value));
  });
  return values.map((value, at) => (Number.isNaN(value) ? value : (units.get(owners[at] ?? -1) ?? value)));
}

export function glowOf(values: Float32Array): Glow {
  let largest = 0;
  for (const value of values) if (value > largest) largest = value;
  return { values, largest };
}

/** What a glowing value is, in words. */
export function unitOf({ lens, mode, group, rest }: { lens: Lens; mode: string; group: string; rest: boolean }): string {
  if (rest && mode === "sources" && lens === "weight") return "weight as share of the rest";
  if (group === "token") return lens;
  return lens === "weight" ? `sum of weights of the ${group}` : `largest moved of the ${group}`;
}
