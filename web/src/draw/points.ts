/** A plot's points and lines (floor draw). */

import type { Tick } from "../lib/plot";

export interface Points {
  readonly xs: Float32Array;
  readonly ys: Float32Array;
  /** A colour for each. */
  readonly colours: readonly string[];
  /** Points that the axis does not reach stand at its edge, as notches. */
  readonly clipped: Uint8Array;
  readonly chosen: number | null;
  /** Lines from points to their names. */
  readonly leaders: readonly (readonly [x0: number, y0: number, x1: number, y1: number])[];
}

export interface Frame {
  readonly across: readonly Tick[];
  readonly up: readonly Tick[];
  readonly zero: number;
  /** Half the height of the band within which numbers are rounding. */
  readonly noise: number;
  readonly line: string;
  readonly strong: string;
}

const RADIUS = 3.5;

/** Draw into a canvas of so many pixels of the page. */
export function drawPoints(canvas: HTMLCanvasElement, width: number, height: number, frame: Frame, points: Points): void {
  const dense = globalThis.devicePixelRatio || 1;
  canvas.width = Math.round(width * dense);
  canvas.height = Math.round(height * dense);
  const pen = canvas.getContext("2d");
  if (!pen) return;
  pen.setTransform(dense, 0, 0, dense, 0, 0);
  pen.fillStyle = frame.line;
  if (frame.noise >= 1) {
    pen.globalAlpha = 0.5;
    pen.fillRect(0, frame.zero - frame.noise, width, 2 * frame.noise);
    pen.globalAlpha = 1;
  }
  for (const { at } of frame.across) pen.fillRect(Math.round(at), 0, 1, height);
  for (const { at } of frame.up) pen.fillRect(0, Math.round(at), width, 1);
  pen.fillStyle = frame.strong;
  pen.fillRect(0, Math.round(frame.zero), width, 1);
  pen.strokeStyle = frame.strong;
  pen.lineWidth = 1;
  for (const [x0, y0, x1, y1] of points.leaders) {
    pen.beginPath();
    pen.moveTo(x0, y0);
    pen.lineTo(x1, y1);
    pen.stroke();
  }
  points.xs.forEach((x, at) => {
    pen.fillStyle = points.colours[at] ?? frame.strong;
    pen.beginPath();
    const y = points.ys[at] ?? 0;
    if (points.clipped[at]) {
      pen.moveTo(x, y);
      pen.lineTo(x + 2 * RADIUS, y - RADIUS);
      pen.lineTo(x + 2 * RADIUS, y + RADIUS);
    } else pen.arc(x, y, RADIUS, 0, 2 * Math.PI);
    pen.fill();
  });
  if (points.chosen === null) return;
  pen.strokeStyle = frame.strong;
  pen.lineWidth = 2;
  pen.beginPath();
  pen.arc(points.xs[points.chosen] ?? 0, points.ys[points.chosen] ?? 0, RADIUS + 3, 0, 2 * Math.PI);
  pen.stroke();
}
