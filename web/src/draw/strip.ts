/** The whole text as a narrow strip (floor draw): where it glows, also out of sight. */

import { type Ramp, step } from "../lib/colour";
import { type Scale, shareOf } from "../lib/scale";

/** Draw the strongest value, of either sign, of each pixel's share of the positions. */
export function drawStrip(canvas: HTMLCanvasElement, height: number, values: Float32Array, scale: Scale, ramp: Ramp): void {
  canvas.width = 1;
  canvas.height = height;
  const pen = canvas.getContext("2d");
  if (!pen || height < 1) return;
  const image = pen.createImageData(1, height);
  const strongest = new Float32Array(height);
  values.forEach((value, at) => {
    const y = Math.min(height - 1, Math.floor((at * height) / values.length));
    if (Math.abs(value) > Math.abs(strongest[y] ?? 0)) strongest[y] = value;
  });
  strongest.forEach((value, y) => {
    const from = 4 * step(shareOf(scale, value));
    image.data.set(ramp.subarray(from, from + 4), 4 * y);
  });
  pen.putImageData(image, 0, 0);
}
