/** The whole text as a narrow strip (floor draw): where it glows, also out of sight. */

import { type Ramp, step } from "../lib/colour";
import { type Scale, shareOf } from "../lib/scale";

/** Where the positions lie along the strip: the one at its beginning, and pixels from one to the next. */
export interface Along {
  readonly first: number;
  readonly each: number;
}

/** Draw the strongest value of each pixel's share of the positions; where there is none it stays clear. */
export function drawStrip(
  canvas: HTMLCanvasElement,
  height: number,
  values: Float32Array,
  scale: Scale,
  ramp: Ramp,
  { first, each }: Along = { first: 0, each: height / values.length },
): void {
  canvas.width = 1;
  canvas.height = height;
  const pen = canvas.getContext("2d");
  if (!pen || height < 1) return;
  const image = pen.createImageData(1, height);
  strongestOf(values, height, { first, each }).forEach((value, y) => {
    if (Number.isNaN(value)) return;
    const from = 4 * step(shareOf(scale, value));
    image.data.set(ramp.subarray(from, from + 4), 4 * y);
  });
  pen.putImageData(image, 0, 0);
}

/** The strongest value, of either sign, on each pixel; NaN where no position with a value lies. */
export function strongestOf(values: Float32Array, height: number, { first, each }: Along): Float32Array {
  const strongest = new Float32Array(height).fill(Number.NaN);
  const last = Math.min(values.length - 1, Math.ceil(first + height / each));
  for (let at = Math.max(0, Math.floor(first)); at <= last; at += 1) {
    const value = values[at] ?? Number.NaN;
    if (Number.isNaN(value)) continue;
    const from = Math.max(0, Math.floor((at - first) * each));
    // One that is narrower than a pixel still has one.
    const to = Math.min(height, Math.max(from + 1, Math.floor((at + 1 - first) * each)));
    for (let y = from; y < to; y += 1) if (!(Math.abs(strongest[y] ?? Number.NaN) >= Math.abs(value))) strongest[y] = value;
  }
  return strongest;
}
