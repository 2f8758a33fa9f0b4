import { describe, expect, it, vi } from "vitest";

// Leaflet looks at the browser when it is loaded; where tiles lie is arithmetic alone.
vi.mock("leaflet", () => ({ GridLayer: class {} }));

const { CLOSEST, placeOf, SIDE } = await import("../../src/draw/mapLayer");

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
