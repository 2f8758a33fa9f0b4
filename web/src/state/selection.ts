/**
 * The selection is the whole state (floor state): what is looked at and how. The address holds all of it, so that a
 * link shows the same again, exactly. What is as usual is left out of the address.
 */

import type { Order } from "../lib/evidence";
import { isMeasured } from "../lib/lens";
import { type MapWindow, windowOf } from "../lib/window";
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
function comparable(selection: Selection): Selection {
  return selection.page === "compare" && isMeasured(selection.lens) ? { ...selection, lens: START.lens } : selection;
}

/** Kinds in the order of their list, each once; others are none. */
export function kindsOf(words: readonly string[]): readonly Kind[] {
  return KINDS.filter((kind) => words.includes(kind));
}

/** Write a selection as an address, beginning with "#/". */
export function format(selection: Selection): string {
  const words = new URLSearchParams();
  const put = (name: string, value: string | number | null): void => {
    if (value !== null) words.set(name, String(value));
  };
  const chosen = <Name extends keyof Selection>(name: Name): (Selection[Name] & (string | number)) | null =>
    selection[name] === START[name] ? null : (selection[name] as Selection[Name] & (string | number));
  put("step", chosen("step"));
  put("run", selection.run);
  put("beside", selection.beside);
  put("call", selection.call);
  if (selection.every) put("every", "yes");
  put("head", selection.head);
  put("to", selection.destination);
  put("from", selection.source);
  put("lens", chosen("lens"));
  put("show", chosen("mode"));
  put("by", chosen("group"));
  if (selection.rest) put("first", "without");
  put("block", chosen("block"));
  put("scale", chosen("scale"));
  if (selection.window) put("window", [selection.window.row, selection.window.column, selection.window.zoom].join("_"));
  put("side", chosen("side"));
  put("each", chosen("oneByOne"));
  put("for", selection.target);
  put("sort", chosen("sorting"));
  put("plot", chosen("plot"));
  put("rank", selection.rank);
  if (selection.kinds.length) put("kinds", selection.kinds.join("_"));
  const page = selection.page === "explore" ? "" : selection.page;
  const query = words.toString();
  return query ? `#/${page}?${query}` : `#/${page}`;
}

/** Read an address. What is not understood is as usual: a link that was cut off still opens. */
export function parse(address: string): Selection {
  const [page = "", query = ""] = split(address.replace(/^#\/?/, ""));
  const words = new URLSearchParams(query);
  const one = <Word extends string>(name: string, of: readonly Word[], usual: Word): Word =>
    of.find((word) => word === words.get(name)) ?? usual;
  return comparable({
    page: PAGES.find((name) => name === page) ?? START.page,
    step: count(words.get("step")) ?? START.step,
    run: words.get("run"),
    beside: words.get("beside"),
    call: count(words.get("call")),
    every: words.get("every") === "yes",
    head: count(words.get("head")),
    destination: count(words.get("to")),
    source: count(words.get("from")),
    lens: one("lens", LENSES, START.lens),
    mode: one("show", MODES, START.mode),
    group: one("by", GROUPS, START.group),
    rest: words.get("first") === "without",
    block: one("block", BLOCKS, START.block),
    scale: one("scale", SCALES, START.scale),
    window: mapWindow(words.get("window")),
    side: one("side", SIDES, START.side),
    oneByOne: ONE_BY_ONE.find((many) => many === count(words.get("each"))) ?? START.oneByOne,
    target: words.get("for") || null,
    sorting: one("sort", SORTINGS, START.sorting),
    plot: one("plot", SCALES, START.plot),
    rank: words.get("rank"),
    kinds: kindsOf(words.get("kinds")?.split("_") ?? []),
  });
}

function split(text: string): [string, string] {
  const at = text.indexOf("?");
  return at < 0 ? [text, ""] : [text.slice(0, at), text.slice(at + 1)];
}

function count(text: string | null): number | null {
  return text !== null && /^\d{1,9}$/.test(text) ? Number(text) : null;
}

function mapWindow(text: string | null): MapWindow | null {
  const parts = text?.split("_") ?? [];
  if (parts.length !== 3 || !parts.every((part) => /^-?\d{1,9}(\.\d{1,9})?$/.test(part))) return null;
  const [row = 0, column = 0, zoom = 0] = parts.map(Number);
  return Math.abs(zoom) > 30 ? null : windowOf(row, column, zoom);
}
