/** Cells of a map on a canvas (floor draw): weights as colours, marks that never look like data. */

import { type Ramp, step } from "../lib/colour";
import { MARK } from "../lib/marks";
import { clipped, type Scale, shareOf } from "../lib/scale";

/** A part of the map at one level, as the server sent it. */
export interface Cells {
  readonly values: Float32Array;
  readonly marks: Uint8Array;
  readonly rows: number;
  readonly columns: number;
}

/** Which of them a canvas shows, and how large. */
export interface Cut {
  readonly row: number;
  readonly column: number;
  /** Cells along each side of the canvas. */
  readonly count: number;
  /** Pixels of the page along a cell's side. */
  readonly cell: number;
}

export interface Look {
  readonly scale: Scale;
  readonly ramp: Ramp;
  readonly theme: "light" | "dark";
}

/** Cells must be this large to have a corner that can be notched, or lines between them. */
const NOTCH_FROM = 8;
const LINES_FROM = 16;
const HATCH = 16;
const INK = { light: "rgb(90 98 107 / 45%)", dark: "rgb(163 171 181 / 45%)" } as const;
const BETWEEN = { light: "rgb(90 98 107 / 14%)", dark: "rgb(163 171 181 / 16%)" } as const;
const ABOVE = { light: "#b3312c", dark: "#f08079" } as const;

export function drawCells(canvas: HTMLCanvasElement, cells: Cells, cut: Cut, look: Look, ratio: number): void {
  const side = cut.count * cut.cell * ratio;
  canvas.width = side;
  canvas.height = side;
  const pen = canvas.getContext("2d");
  if (!pen) return;
  const rows = Math.max(0, Math.min(cut.count, cells.rows - cut.row));
  const columns = Math.max(0, Math.min(cut.count, cells.columns - cut.column));
  if (rows === 0 || columns === 0) return;
  const each = cut.cell * ratio;
  pen.imageSmoothingEnabled = false;
  const present = new Set<number>();
  const weights = picture(rows, columns, (row, column, pixel) => {
    const at = (cut.row + row) * cells.columns + cut.column + column;
    const mark = cells.marks[at] ?? MARK.unrecorded;
    present.add(mark);
    if (mark !== MARK.weight) return;
    const from = 4 * step(shareOf(look.scale, cells.values[at] ?? 0));
    pixel.set(look.ramp.subarray(from, from + 4));
  });
  pen.drawImage(weights, 0, 0, columns * each, rows * each);
  for (const mark of present) {
    if (mark === MARK.weight) continue;
    const pattern = hatch(pen, mark, look.theme, ratio);
    if (!pattern) continue;
    const where = picture(rows, columns, (row, column, pixel) => {
      const at = (cut.row + row) * cells.columns + cut.column + column;
      if ((cells.marks[at] ?? MARK.unrecorded) === mark) pixel[3] = 255;
    });
    const layer = blank(columns * each, rows * each);
    const brush = layer.getContext("2d");
    if (!brush) continue;
    brush.imageSmoothingEnabled = false;
    brush.drawImage(where, 0, 0, layer.width, layer.height);
    brush.globalCompositeOperation = "source-in";
    brush.fillStyle = pattern;
    brush.fillRect(0, 0, layer.width, layer.height);
    pen.drawImage(layer, 0, 0);
  }
  if (cut.cell >= LINES_FROM) between(pen, rows, columns, each, look.theme);
  if (cut.cell >= NOTCH_FROM) notches(pen, cells, cut, rows, columns, each, look);
}

function blank(width: number, height: number): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  return canvas;
}

/** One pixel a cell. */
function picture(rows: number, columns: number, fill: (row: number, column: number, pixel: Uint8ClampedArray) => void): HTMLCanvasElement {
  const canvas = blank(columns, rows);
  const pen = canvas.getContext("2d");
  if (!pen) return canvas;
  const image = pen.createImageData(columns, rows);
  for (let row = 0; row < rows; row += 1) {
    for (let column = 0; column < columns; column += 1) {
      const from = 4 * (row * columns + column);
      fill(row, column, image.data.subarray(from, from + 4));
    }
  }
  pen.putImageData(image, 0, 0);
  return canvas;
}

/** Not permitted: hairline diagonals. Empty row: hatched both ways. Not recorded: dots. */
function hatch(pen: CanvasRenderingContext2D, mark: number, theme: Look["theme"], ratio: number): CanvasPattern | null {
  const size = HATCH * ratio;
  const canvas = blank(size, size);
  const brush = canvas.getContext("2d");
  if (!brush) return null;
  brush.strokeStyle = brush.fillStyle = INK[theme];
  brush.lineWidth = mark === MARK.empty ? ratio : 0.75 * ratio;
  const diagonal = (from: number, way: 1 | -1): void => {
    // Drawn past the edges, so that the pattern goes on without a seam.
    brush.beginPath();
    brush.moveTo(from - size, way === 1 ? 2 * size : -size);
    brush.lineTo(from + 2 * size, way === 1 ? -size : 2 * size);
    brush.stroke();
  };
  if (mark === MARK.unrecorded) {
    for (const [x, y] of [[0.25, 0.25], [0.75, 0.75]] as const) {
      brush.beginPath();
      brush.arc(x * size, y * size, ratio, 0, 2 * Math.PI);
      brush.fill();
    }
  } else if (mark === MARK.empty) {
    for (const from of [-size / 2, 0, size / 2]) {
      diagonal(from, 1);
      diagonal(from, -1);
    }
  } else {
    diagonal(0, 1);
  }
  return pen.createPattern(canvas, "repeat");
}

function between(pen: CanvasRenderingContext2D, rows: number, columns: number, each: number, theme: Look["theme"]): void {
  pen.strokeStyle = BETWEEN[theme];
  pen.lineWidth = 1;
  pen.beginPath();
  for (let row = 0; row < rows; row += 1) {
    pen.moveTo(0, row * each + 0.5);
    pen.lineTo(columns * each, row * each + 0.5);
  }
  for (let column = 0; column < columns; column += 1) {
    pen.moveTo(column * each + 0.5, 0);
    pen.lineTo(column * each + 0.5, rows * each);
  }
  pen.stroke();
}

/** Above the scale: a notch in the upper corner; below it: in the lower. */
function notches(pen: CanvasRenderingContext2D, cells: Cells, cut: Cut, rows: number, columns: number, each: number, look: Look): void {
  const size = Math.max(4, each / 4);
  for (let row = 0; row < rows; row += 1) {
    for (let column = 0; column < columns; column += 1) {
      const at = (cut.row + row) * cells.columns + cut.column + column;
      const value = cells.values[at] ?? 0;
      if (cells.marks[at] !== MARK.weight || !clipped(look.scale, value)) continue;
      const above = value > look.scale.high;
      const [x, y] = [(column + 1) * each, above ? row * each : (row + 1) * each];
      pen.fillStyle = above ? ABOVE[look.theme] : INK[look.theme];
      pen.beginPath();
      pen.moveTo(x, y);
      pen.lineTo(x - size, y);
      pen.lineTo(x, above ? y + size : y - size);
      pen.fill();
    }
  }
}
