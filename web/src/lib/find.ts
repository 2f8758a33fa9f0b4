/**
 * Finding a text in the tokens of another (floor lib), by the rule of the server: small and capital letters are the same.
 */

export type Span = readonly [start: number, end: number];
const MOST = 1000;
/** As the server has it: `trim` takes other characters for blank than Python's `strip`. */
const BLANK = /^\p{White_Space}*$/u;
/** The capital whose small letter would be two characters, "i" and a dot above it. */
const DOTTED = "\u0130";

/**
 * Places as ranges of tokens.
 *
 * @param text the running text.
 * @param spans each token's characters in it, counted in code points.
 */
export function placesOf(text: string, spans: readonly Span[], query: string): { places: [number, number][]; more: boolean } {
  const places: [number, number][] = [];
  if (BLANK.test(query)) return { places, more: false };
  const [within, owners] = folded(text);
  const [wanted] = folded(query);
  for (let at = within.indexOf(wanted); at >= 0 && places.length <= MOST; at = within.indexOf(wanted, at + 1)) {
    const [from = 0, to = 0] = [owners[at], owners[at + wanted.length - 1]];
    const first = spans.findIndex(([start, end]) => start <= to && end > from);
    let last = first;
    for (let next = first; next >= 0 && next < spans.length; next += 1) {
      const [start = 0, end = 0] = spans[next] ?? [];
      if (start > to) break;
      if (end > from) last = next;
    }
    if (first >= 0) places.push([first, last + 1]);
  }
  return { places: places.slice(0, MOST), more: places.length > MOST };
}

/** A text by which small and capital letters are the same, and the code point that each of its parts is of. */
function folded(text: string): [small: string, owners: readonly number[]] {
  const owners: number[] = [];
  let small = "";
  for (const [at, letter] of [...text].entries()) {
    const own = letter === DOTTED ? "i" : letter.toUpperCase().toLowerCase();
    small += own;
    for (let part = 0; part < own.length; part += 1) owners.push(at);
  }
  return [small, owners];
}
