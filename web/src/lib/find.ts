/** Finding a text in the tokens of another (floor lib), by the rule of the server: small and capital letters are the same. */

export type Span = readonly [start: number, end: number];
const MOST = 1000;

/**
 * Places as ranges of tokens.
 *
 * @param text the running text.
 * @param spans each token's characters in it, counted in code points.
 */
export function placesOf(text: string, spans: readonly Span[], query: string): { places: [number, number][]; more: boolean } {
  const letters = [...text];
  const small = text.toLowerCase();
  // A few letters are two when they are small: then as it is typed.
  const same = [...small].length === letters.length;
  const [within, wanted] = same ? [small, query.toLowerCase()] : [text, query];
  const size = [...wanted].length;
  const places: [number, number][] = [];
  if (!wanted.trim()) return { places, more: false };
  // Where a string's index stands in code points: both go on together.
  let [at, point] = [0, 0];
  for (let found = within.indexOf(wanted); found >= 0 && places.length <= MOST; found = within.indexOf(wanted, found + 1)) {
    while (at < found) {
      at += (within.codePointAt(at) ?? 0) > 0xffff ? 2 : 1;
      point += 1;
    }
    const first = spans.findIndex(([start, end]) => start < point + size && end > point);
    let last = first;
    for (let next = first; next >= 0 && next < spans.length; next += 1) {
      const [start = 0, end = 0] = spans[next] ?? [];
      if (start >= point + size) break;
      if (end > point) last = next;
    }
    if (first >= 0) places.push([first, last + 1]);
  }
  return { places: places.slice(0, MOST), more: places.length > MOST };
}
