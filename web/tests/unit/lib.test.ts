import { describe, expect, it } from "vitest";

import { glowRamp, kindRamp, lensRamp, oklch, pick, step, type Ramp } from "../../src/lib/colour";
import { counted, digits, percent, size, time, whole } from "../../src/lib/format";
import { headsOf, ranked } from "../../src/lib/heads";
import { clipped, scaleTo, shareOf, valueAt } from "../../src/lib/scale";
import { ticks } from "../../src/lib/ticks";
import { KINDS } from "../../src/wire/api";

/** Relative luminance, as WCAG has it. */
function luminance([red = 0, green = 0, blue = 0]: readonly number[]): number {
  const part = (value: number): number => (value <= 10.31475 ? value / 3294.6 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * part(red) + 0.7152 * part(green) + 0.0722 * part(blue);
}

function contrast(a: readonly number[], b: readonly number[]): number {
  const [low = 0, high = 0] = [luminance(a), luminance(b)].sort((x, y) => x - y);
  return (high + 0.05) / (low + 0.05);
}

const entry = (ramp: Ramp, at: number): number[] => [...ramp.subarray(4 * at, 4 * at + 3)];

describe("colours", () => {
  it("knows white, black and a colour between", () => {
    expect(oklch(1, 0, 0)).toEqual([255, 255, 255]);
    expect(oklch(0, 0, 0)).toEqual([0, 0, 0]);
    // OKLCH of sRGB red.
    expect(oklch(0.62796, 0.25768, 29.234)).toEqual([255, 0, 0]);
  });

  it.each(["light", "dark"] as const)("goes one way in lightness, so that it is read without hue (%s)", (theme) => {
    for (const ramp of [lensRamp("weight", theme), lensRamp("moved", theme), ...KINDS.map((kind) => kindRamp(kind, theme))]) {
      for (let at = 8; at < 256; at += 8) {
        const [before, now] = [luminance(entry(ramp, at - 8)), luminance(entry(ramp, at))];
        expect(theme === "light" ? now < before : now > before).toBe(true);
      }
    }
  });

  it("leaves text readable on every step of a glow", () => {
    for (const lens of ["weight", "moved"] as const) {
      for (let at = 0; at < 256; at += 1) {
        expect(contrast(entry(glowRamp(lens, "light"), at), [0x1d, 0x21, 0x26])).toBeGreaterThan(4.5);
        expect(contrast(entry(glowRamp(lens, "dark"), at), [0xe6, 0xe8, 0xeb])).toBeGreaterThan(4.5);
      }
    }
  });

  it("picks within its ends", () => {
    expect([step(-1), step(0), step(0.5), step(1), step(9)]).toEqual([0, 0, 128, 255, 255]);
    expect(pick(lensRamp("weight", "light"), 1)).toMatch(/^rgb\(\d+ \d+ \d+\)$/);
  });
});

describe("scales", () => {
  it.each(["linear", "log"] as const)("goes there and back (%s)", (kind) => {
    const scale = scaleTo(0.5, kind);
    for (const share of [0.1, 0.25, 0.5, 1]) expect(shareOf(scale, valueAt(scale, share))).toBeCloseTo(share, 10);
    expect(shareOf(scale, 9)).toBe(1);
    expect(shareOf(scale, 0)).toBe(0);
    expect(shareOf(scale, Number.NaN)).toBeNaN();
  });

  it("says what it clips, and a zero is not clipped", () => {
    const log = scaleTo(1, "log");
    expect([0, 1e-5, 1e-4, 0.5, 1, 1.1].map((value) => clipped(log, value))).toEqual([false, true, false, false, false, true]);
    expect(clipped(scaleTo(1, "linear"), 1e-9)).toBe(false);
  });

  it("has a top where there is no value", () => {
    expect(scaleTo(0, "log")).toEqual({ kind: "log", low: 1e-4, high: 1 });
  });
});

describe("numbers", () => {
  it("shows digits that count, and never zero for what is not", () => {
    expect([0.03125, 1, 12.3456, 0, -2.5].map((value) => digits(value))).toEqual(["0.0313", "1.00", "12.3", "0", "\u22122.50"]);
    expect(digits(0.0000123)).toBe("1.23\u00d710\u207b\u2075");
    expect(digits(1234.5)).toBe("1,235");
    expect([digits(null), digits(Number.NaN)]).toEqual(["none", "none"]);
  });

  it("shows shares, counts and sizes", () => {
    expect([0.54, 0.0531, 0.0031, 0.00001, 0, null].map(percent)).toEqual(["54 %", "5.3 %", "0.31 %", "< 0.01 %", "0 %", "none"]);
    expect([whole(32768), counted(1, "head"), counted(270, "head")]).toEqual(["32,768", "1 head", "270 heads"]);
    expect([time(0.2), time(7.1), time(89), time(90.5), time(3600), time(7800), time(7200)]).toEqual(["1 s", "8 s", "89 s", "2 min", "60 min", "2 h 10 min", "2 h"]);
    expect([size(812), size(66_800_000), size(2.98e9)]).toEqual(["812 B", "66.8 MB", "3.0 GB"]);
  });
});

describe("ticks", () => {
  it("are round and far enough apart", () => {
    expect(ticks(0, 734, 0.5, 56)).toEqual([0, 200, 400, 600]);
    expect(ticks(170, 180, 32, 56)).toEqual([170, 172, 174, 176, 178, 180]);
    for (const pixels of [2 ** -7, 0.1, 1, 7, 64]) {
      const [first = 0, second = 0] = ticks(0, 1e6, pixels, 56);
      expect((second - first) * pixels).toBeGreaterThanOrEqual(56);
    }
  });
});

describe("heads", () => {
  const facts = { heads: [0, 2, 5], figures: ["first", "before"], kinds: ["sink", "local", "broad"] as const, why: ["a", "b", "c"], blocks: 4, whole: true, why_not: null };

  it("have their true numbers and figures", () => {
    const heads = headsOf(3, 7, facts, Float32Array.of(0.5, 0.25, Number.NaN, 0.75, 0.5, 0));
    expect(heads.map(({ head, kind, layer }) => [head, kind, layer])).toEqual([[0, "sink", 7], [2, "local", 7], [5, "broad", 7]]);
    expect(heads[1]?.figures.get("before")).toBe(0.75);
  });

  it("are ranked with unknown ones last and equal ones in order", () => {
    const heads = headsOf(3, 7, facts, Float32Array.of(0.5, 0, Number.NaN, 0, 0.5, 0));
    expect(ranked(heads, "first").map(({ head }) => head)).toEqual([0, 5, 2]);
    expect(ranked(heads, "nothing").map(({ head }) => head)).toEqual([0, 2, 5]);
  });
});
