/** Where an axis is labelled (floor lib). */

/** Positions from first to last that are multiples of 1, 2 or 5 times a power of ten, at least `room` pixels apart. */
export function ticks(first: number, last: number, pixels: number, room: number): number[] {
  let step = 1;
  for (let turn = 0; step * pixels < room; turn += 1) step = [2, 5, 10][turn % 3]! * 10 ** Math.floor(turn / 3);
  const found: number[] = [];
  for (let at = Math.ceil(first / step) * step; at <= last; at += step) found.push(at);
  return found;
}

/** Round numbers from low to high for an axis of measured values, at most so many. */
export function roundTicks(low: number, high: number, most: number): number[] {
  const least = (high - low) / most;
  if (!(least > 0)) return [];
  const ten = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].map((of) => of * ten).find((of) => of >= least * (1 - 1e-9)) ?? 10 * ten;
  const [from, to] = [Math.ceil(low / step - 1e-9), Math.floor(high / step + 1e-9)];
  return Array.from({ length: Math.max(0, to - from + 1) }, (_, at) => (from + at) * step);
}

/** The powers of ten from low to high. */
export function powerTicks(low: number, high: number): number[] {
  const [from, to] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
  return Array.from({ length: Math.max(0, to - from + 1) }, (_, at) => 10 ** (from + at));
}
