/**
 * The address holds the selection (floor state), so that a link shows the same again, exactly. What is as usual is left
 * out of it; what of it is not understood is as usual too, and told.
 */

import { inline, short } from "../lib/token";
import { type MapWindow, windowOf } from "../lib/window";
import { type Kind, KINDS } from "../wire/api";
import { BLOCKS, comparable, GROUPS, kindsOf, LENSES, MODES, ONE_BY_ONE, PAGES, SCALES, type Selection, SIDES, SORTINGS, START } from "./selection";

type Key = Exclude<keyof Selection, "page">;

/** A word of the address, and the part of the selection that it holds. */
interface Word<Name extends Key = Key> {
  readonly word: string;
  readonly of: Name;
  /** What it may be, in words. */
  readonly expected: string;
  /** Undefined: it is not understood. */
  readonly read: (text: string) => Selection[Name] | undefined;
  /** Empty: it needs no word. */
  readonly write: (value: Selection[Name]) => string;
}

/** In the order in which an address says them. */
const WORDS: readonly Word[] = [
  number("step", "step"),
  text("run", "run"),
  text("beside", "beside"),
  number("call", "call"),
  flag("every", "every", "yes"),
  number("head", "head"),
  number("to", "destination"),
  number("from", "source"),
  one("lens", "lens", LENSES),
  one("show", "mode", MODES),
  one("by", "group", GROUPS),
  flag("first", "rest", "without"),
  one("block", "block", BLOCKS),
  one("scale", "scale", SCALES),
  word("window", "window", "a row, a column and a zoom, such as 120_80_-2", mapWindow, (at) => (at ? [at.row, at.column, at.zoom].join("_") : "")),
  one("side", "side", SIDES),
  one("each", "oneByOne", ONE_BY_ONE),
  text("for", "target"),
  one("sort", "sorting", SORTINGS),
  one("plot", "plot", SCALES),
  text("rank", "rank"),
  word("kinds", "kinds", `kinds of heads, such as ${KINDS.slice(0, 2).join("_")}`, kinds, (all) => all.join("_")),
];

/** Write a selection as an address, beginning with "#/". */
export function format(selection: Selection): string {
  const words = new URLSearchParams();
  for (const { word, of, write } of WORDS) {
    const said = write(selection[of]);
    if (said !== write(START[of])) words.set(word, said);
  }
  const page = selection.page === START.page ? "" : selection.page;
  const query = words.toString();
  return query ? `#/${page}?${query}` : `#/${page}`;
}

/** Read an address. What is not understood is as usual: a link that was cut off still opens. */
export function parse(address: string): Selection {
  const { page, words } = cut(address);
  const said = WORDS.map(({ word, of, read }) => {
    const text = words.get(word);
    return [of, (text === null ? undefined : read(text)) ?? START[of]];
  });
  return comparable({ ...START, ...(Object.fromEntries(said) as Partial<Selection>), page: PAGES.find((name) => name === page) ?? START.page });
}

/** At most so many words that are not understood are told one by one, and so many signs of each. */
const TOLD = 4;
const SIGNS = 32;

/** What of an address is not understood, as sentences. */
export function misread(address: string): string[] {
  const { page, words } = cut(address);
  const found = [...words].flatMap(([name, text]) => {
    const known = WORDS.find(({ word }) => word === name);
    const said = `The address says ${told(name)}=${told(text)}`;
    if (!known) return [`${said}, a word that this page does not know: it is left out.`];
    return known.read(text) === undefined ? [`${said}; expected was ${known.expected}: it is left out.`] : [];
  });
  if (page !== "" && !PAGES.some((name) => name === page)) {
    found.unshift(`The address names a page \u201c${told(page)}\u201d; expected was ${listed(PAGES)}: it opens the first of them.`);
  }
  const more = found.length - TOLD;
  return more > 0 ? [...found.slice(0, TOLD), `And ${more} more of its words ${more === 1 ? "is" : "are"} left out.`] : found;
}

function cut(address: string): { readonly page: string; readonly words: URLSearchParams } {
  const [page = "", ...query] = address.replace(/^#\/?/, "").split("?");
  return { page, words: new URLSearchParams(query.join("?")) };
}

/** What an address says is never trusted: it is short, and turns nothing round. */
function told(said: string): string {
  return short(inline(said), SIGNS);
}

function word<Name extends Key>(word: string, of: Name, expected: string, read: Word<Name>["read"], write: Word<Name>["write"]): Word {
  return { word, of, expected, read, write } as Word<Key>;
}

function number(name: string, of: { [K in Key]: number extends Selection[K] ? K : never }[Key]): Word {
  return word(name, of, "a whole number", count, (value) => String(value ?? ""));
}

/** Any text, of which none is as usual. */
function text(name: string, of: { [K in Key]: string extends Selection[K] ? K : never }[Key]): Word {
  return word(name, of, "a text", (said) => said || null, (value) => value ?? "");
}

function flag(name: string, of: { [K in Key]: Selection[K] extends boolean ? K : never }[Key], set: string): Word {
  return word(name, of, `\u201c${set}\u201d`, (said) => (said === set ? true : undefined), (value) => (value ? set : ""));
}

function one<Name extends Key>(name: string, of: Name, choices: readonly (Selection[Name] & (string | number))[]): Word {
  return word(name, of, listed(choices), (said) => choices.find((choice) => String(choice) === said), String);
}

function listed(choices: readonly (string | number)[]): string {
  return `${choices.slice(0, -1).join(", ")} or ${choices.at(-1)}`;
}

function count(said: string): number | undefined {
  return /^\d{1,9}$/.test(said) ? Number(said) : undefined;
}

function kinds(said: string): readonly Kind[] | undefined {
  const words = said.split("_");
  const known = kindsOf(words);
  return words.every((kind) => known.some((one) => one === kind)) ? known : undefined;
}

function mapWindow(said: string): MapWindow | undefined {
  const parts = said.split("_");
  if (parts.length !== 3 || !parts.every((part) => /^-?\d{1,9}(\.\d{1,9})?$/.test(part))) return undefined;
  const [row = 0, column = 0, zoom = 0] = parts.map(Number);
  return Math.abs(zoom) > 30 ? undefined : windowOf(row, column, zoom);
}
