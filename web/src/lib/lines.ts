/**
 * Running text cut into lines (floor lib). Lines have one height each, so that a text of any length can be scrolled
 * with only the lines in sight on the page.
 */

import type { Token } from "../wire/api";
import { type Direction, directionOf, fragmentsOf, type Fragment } from "./token";

/** Neighbours that are read in one direction. */
export interface Run {
  readonly direction: Direction;
  readonly fragments: readonly Fragment[];
}

export interface Line {
  readonly fragments: readonly Fragment[];
  /** The same fragments, by direction. */
  readonly runs: readonly Run[];
  readonly direction: Direction;
  /** It goes on what the line before began: the blank at its beginning is that of the break. */
  readonly soft: boolean;
}

export type Measure = (fragment: Fragment) => number;

/** Scripts that are written without blanks: a line may be broken between any two of their signs. */
const UNSPACED = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}]/u;
const ENDS_BLANK = /\s$/;

/** Cut the tokens from position `start` on into lines no wider than `width`. Every line has at least one fragment. */
export function linesOf(tokens: readonly Token[], start: number, width: number, measure: Measure): Line[] {
  const fragments = tokens.flatMap((token, at) => fragmentsOf(token, start + at));
  const lines: Line[] = [];
  let paragraph: Fragment[] = [];
  for (const fragment of fragments) {
    paragraph.push(fragment);
    if (fragment.ends) {
      lines.push(...wrapped(paragraph, width, measure));
      paragraph = [];
    }
  }
  if (paragraph.length) lines.push(...wrapped(paragraph, width, measure));
  return lines;
}

function wrapped(paragraph: readonly Fragment[], width: number, measure: Measure): Line[] {
  const way = directionOf(paragraph.map((fragment) => fragment.text).join("")) ?? "ltr";
  const lines: Line[] = [];
  let line: Fragment[] = [];
  let used = 0;
  const end = (): void => {
    if (line.length) lines.push({ fragments: line, runs: runsOf(line, way), direction: way, soft: lines.length > 0 });
    line = [];
    used = 0;
  };
  for (const word of words(paragraph)) {
    const size = word.reduce((sum, fragment) => sum + measure(fragment), 0);
    if (used > 0 && used + size > width) end();
    if (size <= width) {
      line.push(...word);
      used += size;
      continue;
    }
    // A word wider than the text is broken anywhere, a token too if it must be.
    for (const fragment of word.flatMap((one) => narrow(one, width, measure))) {
      const part = measure(fragment);
      if (used > 0 && used + part > width) end();
      line.push(fragment);
      used += part;
    }
  }
  end();
  return lines;
}

/** Cut a line by direction. What has no letters goes with its neighbours if they agree, else with the line. */
function runsOf(line: readonly Fragment[], usual: Direction): Run[] {
  const own = line.map(({ text, look }) => (look === "boxed" ? null : directionOf(text)));
  const after = [...own];
  for (let at = own.length - 2; at >= 0; at -= 1) after[at] = own[at] ?? after[at + 1] ?? null;
  const runs: { direction: Direction; fragments: Fragment[] }[] = [];
  let before: Direction | null = null;
  line.forEach((fragment, at) => {
    const next = after[at] ?? usual;
    const way: Direction = own[at] ?? ((before ?? usual) === next ? next : usual);
    before = own[at] ?? before;
    const run = runs.at(-1);
    if (run?.direction === way) run.fragments.push(fragment);
    else runs.push({ direction: way, fragments: [fragment] });
  });
  return runs;
}

/** Fragments that stay together: a line is broken only before a blank, or beside a sign of an unspaced script. */
function words(paragraph: readonly Fragment[]): Fragment[][] {
  const found: Fragment[][] = [];
  let last = "";
  for (const fragment of paragraph) {
    const loose =
      fragment.blanks > 0 ||
      fragment.look === "boxed" ||
      ENDS_BLANK.test(last) ||
      UNSPACED.test(last) ||
      UNSPACED.test([...fragment.text][0] ?? "");
    if (loose || !found.length) found.push([fragment]);
    else found.at(-1)?.push(fragment);
    last = [...fragment.text].at(-1) ?? "";
  }
  return found;
}

function narrow(fragment: Fragment, width: number, measure: Measure): Fragment[] {
  if (measure(fragment) <= width) return [fragment];
  const signs = [...fragment.text];
  if (signs.length < 2) return [fragment];
  const half = signs.length >> 1;
  const cut = (text: string, last: boolean): Fragment => ({ ...fragment, text, blanks: 0, ends: last && fragment.ends });
  const [head, tail] = [cut(signs.slice(0, half).join(""), false), cut(signs.slice(half).join(""), true)];
  return [...narrow({ ...head, blanks: fragment.blanks }, width, measure), ...narrow(tail, width, measure)];
}
