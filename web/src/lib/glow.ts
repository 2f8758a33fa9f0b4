/** What lights up in the text (floor lib): a row's or a column's values, grouped and, if asked, without the first token. */

import type { Lens } from "../wire/api";
import { addsUp } from "./lens";

/** A position's standing: it may be read, it may not, or it was not recorded. As the server numbers them. */
export const PERMITTED = { no: 0, yes: 1, unrecorded: 2 } as const;

export interface Glow {
  /** By position; NaN where there is nothing to show. */
  readonly values: Float32Array;
  /** The largest size among them, which the scale runs to; 0 if there is none. */
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
 * Values of tokens as values of their units. A unit has the sum of what adds up; lengths of what was moved, knock-outs and
 * what readers have of one source do not, so a unit has its largest. A token of no unit keeps its own.
 */
export function grouped(values: Float32Array, owners: Int32Array, lens: Lens, mode: "sources" | "readers"): Float32Array {
  const units = new Map<number, number>();
  const join = addsUp(lens, mode) ? (a: number, b: number) => a + b : (a: number, b: number) => (Math.abs(b) > Math.abs(a) ? b : a);
  values.forEach((value, at) => {
    const owner = owners[at] ?? -1;
    if (owner < 0 || Number.isNaN(value)) return;
    units.set(owner, join(units.get(owner) ?? 0, value));
  });
  return values.map((value, at) => (Number.isNaN(value) ? value : (units.get(owners[at] ?? -1) ?? value)));
}

export function glowOf(values: Float32Array): Glow {
  let largest = 0;
  for (const value of values) if (Math.abs(value) > largest) largest = Math.abs(value);
  return { values, largest };
}

/** The positions whose values are largest, by size; of a unit its first alone. */
export function strongestOf({ values }: Glow, owners: Int32Array | null, most: number): number[] {
  const unit = (at: number): number => (owners && (owners[at] ?? -1) >= 0 ? (owners[at] ?? 0) : -1 - at);
  const size = (at: number): number => Math.abs(values[at] ?? 0);
  const found: number[] = [];
  for (let at = 0; at < values.length; at += 1) {
    if (!(size(at) > 0) || found.some((one) => unit(one) === unit(at))) continue;
    const place = found.findIndex((one) => size(one) < size(at));
    if (place >= 0) found.splice(place, 0, at);
    else if (found.length < most) found.push(at);
    if (found.length > most) found.pop();
  }
  return found;
}

/** What a glowing value is, in words. */
export function unitOf({ lens, mode, group, rest }: { lens: Lens; mode: "sources" | "readers"; group: string; rest: boolean }): string {
  if (rest && mode === "sources" && lens === "weight") return "weight as share of the rest";
  const plain = { weight: "weight", moved: "moved", attribution: "nats, estimate", knockout: "nats, knock-out" }[lens];
  if (group === "token") return plain;
  return addsUp(lens, mode) ? `${plain}, sum of the ${group}` : `${plain}, largest of the ${group}`;
}

/** How a destination stands to a source where no value is shown. */
export type Standing = "loading" | "forbidden" | "unrecorded" | "left out" | "unmeasured";

export function standingOf(permitted: number | undefined, { without, measured }: { readonly without: boolean; readonly measured: boolean }): Standing {
  if (permitted === PERMITTED.unrecorded) return "unrecorded";
  if (permitted !== PERMITTED.yes) return "forbidden";
  return without ? "left out" : measured ? "unmeasured" : "loading";
}
