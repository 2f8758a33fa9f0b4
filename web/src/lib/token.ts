/** How a token looks in running text (floor lib). A token's text is never trusted: it is only ever text. */

import type { Token } from "../wire/api";

/** Running text; a piece of a character or a mark that adds no characters; characters that cannot be seen. */
export type Look = "text" | "boxed";

export interface Fragment {
  /** The token's position. */
  readonly token: number;
  readonly text: string;
  readonly look: Look;
  /** The text begins with this many blanks. */
  readonly blanks: number;
  /** Line ends that the token itself brings, drawn as return signs; the line ends here. */
  readonly ends: boolean;
}

export const RETURN = "\u23ce";
const TAB = "    ";
/** Whatever can be seen: not blank, not a control, not a format character, no lone half of a pair. */
const SEEN = /[^\s\p{Cc}\p{Cf}\p{Cs}\p{Cn}\u115f\u1160\u3164\uffa0]/u;

/** What a token adds to the running text, cut where it ends lines. */
export function fragmentsOf([label, own]: Token, token: number): Fragment[] {
  const parts = own.replaceAll("\r\n", "\n").replaceAll("\t", TAB).split(/[\n\r\u2028\u2029\u0085\v\f]/);
  const blank = /^ *$/;
  if (parts.length === 1 && !SEEN.test(own) && !(blank.test(parts[0] ?? "") && own !== "")) {
    return [{ token, text: label, look: "boxed", blanks: 0, ends: false }];
  }
  return parts.flatMap((part, at) => {
    const ends = at < parts.length - 1;
    if (part === "" && !ends) return [];
    return [{ token, text: ends ? part + RETURN : part, look: "text" as const, blanks: /^ */.exec(part)?.[0].length ?? 0, ends }];
  });
}

/** A token in a sentence or on an axis: its label, short; of nothing but blanks each is a dot. */
export function short(label: string, most = 18): string {
  const signs = [...(label.trim() === "" ? label.replaceAll(" ", "\u00b7") : label)];
  return signs.length <= most ? signs.join("") : `${signs.slice(0, most - 1).join("")}\u2026`;
}

/** A name within a sentence of ours, which it can neither turn round nor break off. */
export function inline(name: string): string {
  return name.replace(/[\p{Cc}\u2028\u2029]/gu, " ").replace(new RegExp(TURNS, "g"), "\ufffd");
}

/** Characters that turn the direction of what follows them: a token with one is kept apart from its neighbours. */
export const TURNS = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/;

const RTL = /[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u;
const STRONG = /\p{L}/u;

export type Direction = "ltr" | "rtl";

/** The direction of a text's first letter; null if it has none. */
export function directionOf(text: string): Direction | null {
  const first = STRONG.exec(text)?.[0];
  return first === undefined ? null : RTL.test(first) ? "rtl" : "ltr";
}
