/** Sorting and filtering heads (floor lib). */

import type { HeadsFacts, Kind } from "../wire/api";

/** A sign for each kind, so that colour is never all there is. */
export const KIND_SIGNS: Record<Kind, string> = {
  sink: "S",
  previous: "P",
  induction: "I",
  duplicate: "D",
  itself: "=",
  local: "L",
  broad: "B",
  unknown: "?",
};

export const KIND_WORDS: Record<Kind, string> = {
  sink: "most of the weight goes to the first token or a sink",
  previous: "reads the token before",
  induction: "reads what followed the same token earlier",
  duplicate: "reads earlier copies of the same token",
  itself: "reads its own position",
  local: "reads the last few tokens",
  broad: "spreads over many tokens",
  unknown: "not scanned, or none of the named kinds",
};

/** What heads are ordered by, in words; another figure is called by its name. */
export const FIGURE_WORDS: Readonly<Record<string, string>> = {
  entropy: "entropy of the weights",
  effective: "sources read, if evenly",
  largest: "largest weight",
  first: "weight on the first token",
  self: "weight on itself",
  previous: "weight on the token before",
  duplicate: "weight on the same token before",
  induction: "weight on what followed before",
  largest_score: "largest score",
  distance: "tokens back",
  sink: "the sink's share",
};

export interface Head {
  readonly call: number;
  readonly layer: number;
  readonly head: number;
  readonly kind: Kind;
  readonly why: string;
  readonly figures: ReadonlyMap<string, number>;
}

/** The heads of one call's answer. */
export function headsOf(call: number, layer: number, facts: HeadsFacts, figures: Float32Array): Head[] {
  const names = facts.figures ?? [];
  return facts.heads.map((head, at) => ({
    call,
    layer,
    head,
    kind: facts.kinds?.[at] ?? "unknown",
    why: facts.why?.[at] ?? "not scanned",
    figures: new Map(names.map((name, column) => [name, figures[at * names.length + column] ?? Number.NaN])),
  }));
}

/** Largest first by a figure; heads without it come last; equal ones stay in the order of the model. */
export function ranked(heads: readonly Head[], figure: string): Head[] {
  const key = (head: Head): number => {
    const value = head.figures.get(figure) ?? Number.NaN;
    return Number.isNaN(value) ? Number.NEGATIVE_INFINITY : value;
  };
  return [...heads].sort((a, b) => {
    const [left, right] = [key(a), key(b)];
    return left === right ? a.layer - b.layer || a.head - b.head : right - left;
  });
}
