import { describe, expect, it } from "vitest";

import { CLOSEST, fitting, NAMES, namesAt, same, settled, shows, type Size, STEPS, windowOf } from "../../src/lib/window";
import { dice } from "./dice";

const square = (size: number): Size => ({ destinations: size, sources: size });

describe("fitting", () => {
  it("shows all of a map in the middle of its pane, in cells as large as a step of the address allows", () => {
    const roll = dice(7);
    for (let trial = 0; trial < 500; trial += 1) {
      const [wide, high] = [60 + roll(1500), 60 + roll(1500)];
      const size = { destinations: 1 + roll(trial % 2 ? 40_000 : 60), sources: 1 + roll(trial % 3 ? 40_000 : 60) };
      const { row, column, zoom } = fitting(wide, high, size, -99);
      expect([row, column]).toEqual([size.destinations / 2, size.sources / 2]);
      const names = namesAt(zoom);
      const fits = (at: number): boolean => size.sources * 2 ** at <= wide - names + 1e-6 && size.destinations * 2 ** at <= high - names + 1e-6;
      expect(fits(zoom) || 2 ** zoom <= 1 / STEPS).toBe(true);
      // A step closer it does not fit, or has names, for which there is no room.
      const closer = zoom + 1 / STEPS;
      expect(zoom === CLOSEST || !fits(closer) || namesAt(closer) !== names).toBe(true);
    }
  });

  it("has room for the names of cells that are large enough with it", () => {
    expect(namesAt(fitting(NAMES + 160, NAMES + 160, square(10), -9).zoom)).toBe(NAMES);
    expect(fitting(NAMES + 160, NAMES + 160, square(10), -9).zoom).toBe(4);
    expect(fitting(NAMES + 159, NAMES + 160, square(10), -9).zoom).toBe(4 - 1 / STEPS);
    expect(namesAt(4 - 1 / STEPS)).toBe(0);
  });

  it("goes no further out than there are levels and no closer than there are pixels", () => {
    expect(fitting(100, 100, square(32_768), -3).zoom).toBe(-3);
    expect(fitting(5000, 5000, square(1), -3).zoom).toBe(CLOSEST);
    expect(fitting(0, 0, square(9), -3).zoom).toBe(-3); // a pane that has no size yet
  });
});

describe("shows", () => {
  it("takes for the same what differs by no pixel", () => {
    const wanted = windowOf(100, 50, 2);
    expect(shows({ row: 100.12, column: 50, zoom: 2 }, 0, wanted)).toBe(true);
    expect(shows({ row: 100.13, column: 50, zoom: 2 }, 0, wanted)).toBe(false);
    expect(shows({ row: 100, column: 49.87, zoom: 2 }, 0, wanted)).toBe(false);
    expect(shows({ row: 100, column: 50, zoom: 2.5 }, 0, wanted)).toBe(false);
    expect(shows(wanted, NAMES, wanted)).toBe(false);
    expect(same(wanted, windowOf(100, 50, 2))).toBe(true);
    expect([windowOf(101, 50, 2), windowOf(100, 51, 2), windowOf(100, 50, 3)].some((other) => same(wanted, other))).toBe(false);
  });
});

describe("settled", () => {
  const whole = windowOf(150, 150, -0.4);

  it("brings the middle of the view back onto the map", () => {
    expect(settled({ row: -20, column: 400, zoom: 1 }, 0, false, whole, square(300))).toEqual({ row: 0, column: 300, zoom: 1 });
    expect(settled({ row: 20.001, column: 40, zoom: 1 }, 0, false, whole, square(300))).toEqual({ row: 20, column: 40, zoom: 1 });
  });

  it("is all of the map where that is as far out as a wheel went", () => {
    expect(settled({ row: 9, column: 9, zoom: 0 }, 0, true, whole, square(300))).toBe(whole);
    expect(settled({ row: 9, column: 9, zoom: 0 }, 0, false, whole, square(300))).toEqual({ row: 9, column: 9, zoom: 0 });
    expect(settled({ row: 9, column: 9, zoom: 1 }, 0, true, whole, square(300))).toEqual({ row: 9, column: 9, zoom: 1 });
  });

  it("leaves cells where they were when names come and go", () => {
    const half = NAMES / 2 / 2 ** 4;
    expect(settled({ row: 50, column: 60, zoom: 4 }, 0, true, whole, square(300))).toEqual(windowOf(50 + half, 60 + half, 4));
    expect(settled({ row: 50, column: 60, zoom: 3 }, NAMES, true, whole, square(300))).toEqual(windowOf(50 - 2 * half, 60 - 2 * half, 3));
    expect(settled({ row: 50, column: 60, zoom: 4 }, NAMES, true, whole, square(300))).toEqual({ row: 50, column: 60, zoom: 4 });
  });
});
