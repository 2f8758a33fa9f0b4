/** Where an axis is labelled (floor lib). */

/** Positions from first to last that are multiples of 1, 2 or 5 times a power of ten, at least `room` pixels apart. */
export function ticks(first: number, last: number, pixels: number, room: number): number[] {
  let step = 1;
  for (let turn = 0; step * pixels < room; turn += 1) step = [2, 5, 10][turn % 3]! * 10 ** Math.floor(turn / 3);
  const found: number[] = [];
  for (let at = Math.ceil(first / step) * step; at <= last; at += step) found.push(at);
  return found;
}
