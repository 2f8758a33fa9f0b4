/** The selection is the whole state (floor state): what is looked at and how. The address holds all of it. */

import type { Order } from "../lib/evidence";
import { isMeasured } from "../lib/lens";
import type { MapWindow } from "../lib/window";
import { type Kind, KINDS, type Lens } from "../wire/api";

export const LENSES = ["weight", "moved", "attribution", "knockout"] as const satisfies readonly Lens[];
/** Those that a recording's file answers. */
export const COMPARED_LENSES = ["weight", "moved"] as const satisfies readonly Lens[];
export const MODES = ["sources", "readers"] as const;
export const GROUPS = ["token", "word", "sentence", "line"] as const;
export const BLOCKS = ["largest", "mean"] as const;
export const SCALES = ["linear", "log"] as const;
export const SIDES = ["map", "numbers", "evidence"] as const;
/** How the evidence is sorted; as usual: by knock-out where it was measured, else by weight. */
export const SORTINGS = ["usual", "position", ...LENSES] as const satisfies readonly ("usual" | Order)[];
/** How many sources the numbers show one by one. */
export const ONE_BY_ONE = [4, 8, 16] as const;
export const PAGES = ["explore", "lesson", "compare"] as const;

export interface Selection {
  readonly page: (typeof PAGES)[number];
  /** The lesson's step, from 1. */
  readonly step: number;
  readonly run: string | null;
  /** The recording that it is compared with. */
  readonly beside: string | null;
  /** The call's index; null until one is chosen: then the recording's own suggestion holds. */
  readonly call: number | null;
  /** One call, or all of the same kind together. */
  readonly every: boolean;
  /** The head's true number; null: all heads together. */
  readonly head: number | null;
  readonly destination: number | null;
  readonly source: number | null;
  readonly lens: Lens;
  readonly mode: (typeof MODES)[number];
  readonly group: (typeof GROUPS)[number];
  /** Show weights as shares of the rest, without the first token. */
  readonly rest: boolean;
  readonly block: (typeof BLOCKS)[number];
  readonly scale: (typeof SCALES)[number];
  /** Null: the whole map. */
  readonly window: MapWindow | null;
  /** What is shown beside the text: the head's map, one destination worked through, or what its sources were worth. */
  readonly side: (typeof SIDES)[number];
  readonly oneByOne: (typeof ONE_BY_ONE)[number];
  /** The token whose probability the evidence is about, as text; null: the likeliest at the destination. */
  readonly target: string | null;
  readonly sorting: (typeof SORTINGS)[number];
  /** The plot's axis of weights. */
  readonly plot: (typeof SCALES)[number];
  /** The figure that heads are ranked by; null: in the model's order. */
  readonly rank: string | null;
  /** The kinds of heads that are shown, in the order of their list; none: all. */
  readonly kinds: readonly Kind[];
}

export const START: Selection = {
  page: "explore",
  step: 1,
  run: null,
  beside: null,
  call: null,
  every: false,
  head: null,
  destination: null,
  source: null,
  lens: "weight",
  mode: "sources",
  group: "token",
  rest: false,
  block: "largest",
  scale: "linear",
  window: null,
  side: "map",
  oneByOne: 8,
  target: null,
  sorting: "usual",
  plot: "log",
  rank: null,
  kinds: [],
};

/** The selection after a change. A target was asked for at one destination: another has its own likeliest. */
export function changed(before: Selection, change: Partial<Selection>): Selection {
  const elsewhere = "destination" in change && change.destination !== before.destination;
  return comparable({ ...before, ...(elsewhere ? { target: null } : {}), ...change });
}

/** Two recordings are compared by what their files hold: a lens that has to be measured is of one. */
export function comparable(selection: Selection): Selection {
  return selection.page === "compare" && isMeasured(selection.lens) ? { ...selection, lens: START.lens } : selection;
}

/** Kinds in the order of their list, each once; others are none. */
export function kindsOf(words: readonly string[]): readonly Kind[] {
  return KINDS.filter((kind) => words.includes(kind));
}
