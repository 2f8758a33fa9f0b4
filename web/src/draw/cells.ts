/** A vector as a row of cells (floor draw): one pixel a number, stretched by the page. */

import { type Ramp, step } from "../lib/colour";
import { signedShare } from "../lib/worked";

export function drawCells(canvas: HTMLCanvasElement, vector: Float32Array, reach: number, ramp: Ramp): void {
  canvas.width = vector.length;
  canvas.height = 1;
  const pen = canvas.getContext("2d");
  if (!pen || vector.length < 1) return;
  const image = pen.createImageData(vector.length, 1);
  vector.forEach((value, at) => {
    const from = 4 * step(signedShare(value, reach));
    image.data.set(ramp.subarray(from, from + 4), 4 * at);
  });
  pen.putImageData(image, 0, 0);
}
