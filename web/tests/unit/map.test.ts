import { describe, expect, it, vi } from "vitest";

import { CLOSEST } from "../../src/lib/window";

// Leaflet looks at the browser when it is loaded; where tiles lie is arithmetic alone.
vi.mock("leaflet", () => ({ GridLayer: class {} }));

const { strongestOf } = await import("../../src/draw/strip");
const { levelOf, placeOf, SIDE } = await import("../../src/draw/mapLayer");

describe("levelOf", () => {
  it("draws coarser tiles larger, never finer ones smaller, within what there is", () => {
    expect([-1.4, -1, -0.01, 0, 0.99, 3.5].map((zoom) => levelOf(zoom, -5))).toEqual([-2, -1, -1, 0, 0, 3]);
    expect(levelOf(-4.5, -2)).toBe(-2);
    expect(levelOf(CLOSEST + 0.5, -2)).toBe(CLOSEST);
  });
});

describe("the strip", () => {
  it("has the strongest value of each pixel, wherever it begins, and none where there is none", () => {
    const values = Float32Array.of(0.1, 0.5, NaN, 0.3, 0.2, 0.9);
    const on = (height: number, first: number, each: number) => [...strongestOf(values, height, { first, each })].map((value) => (Number.isNaN(value) ? null : Math.round(10 * value) / 10));
    expect(on(3, 0, 0.5)).toEqual([0.5, 0.3, 0.9]);
    // Side by side, the strongest of a pixel; narrow ones have a pixel each, and none hides another.
    expect(on(2, 0, 0.25)).toEqual([0.5, 0.9]);
    expect(on(3, 1.5, 0.6)).toEqual([0.5, 0.2, 0.9]);
    expect(on(6, 1, 2)).toEqual([0.5, 0.5, null, null, 0.3, 0.3]);
    expect(on(4, -2, 1)).toEqual([null, null, 0.1, 0.5]);
    expect(on(2, 5, 1)).toEqual([0.9, null]);
  });
});

describe("placeOf", () => {
  it("is the server's own tile from the whole down to one pixel a cell", () => {
    expect(placeOf({ x: 2, y: 1, z: -3 })).toMatchObject({ level: 3, row: 1, column: 2, cut: { row: 0, column: 0, count: 256, cell: 1 } });
    expect(placeOf({ x: 0, y: 0, z: 0 }).level).toBe(0);
  });

  it("is a part of one when cells are larger, and the parts cover every cell once", () => {
    for (let z = 1; z <= CLOSEST; z += 1) {
      const seen = new Set<number>();
      const across = (2 * SIDE * 2 ** z) / SIDE;
      for (let x = 0; x < across; x += 1) {
        const { column, cut } = placeOf({ x, y: 0, z });
        expect(cut.count * cut.cell).toBe(SIDE);
        expect(cut.column + cut.count).toBeLessThanOrEqual(SIDE);
        for (let at = 0; at < cut.count; at += 1) seen.add(column * SIDE + cut.column + at);
      }
      expect(seen.size).toBe(2 * SIDE);
    }
  });
});
