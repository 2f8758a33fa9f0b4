/** A head's map at its smallest (floor draw). */

import { type Ramp, step } from "../lib/colour";

/** Draw one head's blocks: the root of the largest weight of each, from 0 to 1; a block with no permitted pair stays clear. */
export function drawThumb(canvas: HTMLCanvasElement, values: Float32Array, rows: number, columns: number, ramp: Ramp): void {
  if (rows === 0 || columns === 0) return;
  canvas.width = columns;
  canvas.height = rows;
  const pen = canvas.getContext("2d");
  if (!pen) return;
  const image = pen.createImageData(columns, rows);
  values.forEach((value, at) => {
    if (Number.isNaN(value)) return;
    const from = 4 * step(Math.sqrt(value));
    image.data.set(ramp.subarray(from, from + 4), 4 * at);
  });
  pen.putImageData(image, 0, 0);
}
