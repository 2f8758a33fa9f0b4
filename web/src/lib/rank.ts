/** Ranks, and whether two lists rank alike (floor lib). */

/** Ranks from 1 for the largest; equal values share the mean of their ranks. */
export function ranks(values: ArrayLike<number>): number[] {
  const order = Array.from({ length: values.length }, (_, at) => at).sort((a, b) => (values[b] ?? 0) - (values[a] ?? 0));
  const found = new Array<number>(values.length);
  for (let from = 0; from < order.length; ) {
    let to = from + 1;
    while (to < order.length && values[order[to]!] === values[order[from]!]) to += 1;
    for (let place = from; place < to; place += 1) found[order[place]!] = (from + to + 1) / 2;
    from = to;
  }
  return found;
}

/** Spearman's rank correlation: 1 the same order, 0 none, -1 the opposite; NaN where one of them is constant. */
export function rankCorrelation(a: ArrayLike<number>, b: ArrayLike<number>): number {
  const [ra, rb] = [ranks(a), ranks(b)];
  const middle = (a.length + 1) / 2;
  const both = ra.reduce((sum, x, i) => sum + (x - middle) * ((rb[i] ?? middle) - middle), 0);
  const size = (r: number[]): number => Math.sqrt(r.reduce((sum, x) => sum + (x - middle) ** 2, 0));
  return both / (size(ra) * size(rb));
}
