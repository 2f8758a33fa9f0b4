import { describe, expect, it } from "vitest";

import { pick, signedRamp, step } from "../../src/lib/colour";
import { biasOf, checkWords, reachOf, scoreWords, signedShare, sourcesOf, type WorkedArrays } from "../../src/lib/worked";
import type { RowOfNumbers } from "../../src/wire/api";

const facts: RowOfNumbers = {
  scale: 0.5, softcap: null, lse: 2, sink: null, sources: [7, 0], rest: { count: 3, weight: 0.25 }, off: { sum: 1.5e-7, output: 3e-7 },
};
const arrays: WorkedArrays = {
  q: Float32Array.of(1, 2), k: Float32Array.of(1, 0, 0, 1), v: Float32Array.of(1, 2, 3, 4, 5, 6), products: Float32Array.of(1, 2),
  scores: Float32Array.of(0.5, 1), weights: Float32Array.of(0.5, 0.25), parts: Float32Array.of(0.5, 1, 1.5, 1, 1.25, 1.5),
  rest: Float32Array.of(0, 0, 0), output: Float32Array.of(1.5, 2.25, 3),
};

describe("a row worked through", () => {
  it("gives each source its own rows, whatever the widths of keys and values", () => {
    const [first, second] = sourcesOf(facts, arrays);
    expect(first).toMatchObject({ position: 7, product: 1, score: 0.5, weight: 0.5 });
    expect([...(first?.k ?? [])]).toEqual([1, 0]);
    expect([...(second?.part ?? [])]).toEqual([1, 1.25, 1.5]);
    expect(second?.part.buffer).toBe(arrays.parts.buffer);
  });

  it("finds the bias as what the score has beyond query times key", () => {
    expect([...biasOf(facts, arrays)]).toEqual([0, 0]);
    expect([...biasOf(facts, { ...arrays, scores: Float32Array.of(1.5, -1) })]).toEqual([1, -2]);
    const capped = { ...arrays, scores: Float32Array.from([0.5, 1], (x) => 3 * Math.tanh(x / 3) + 0.25) };
    for (const bias of biasOf({ ...facts, softcap: 3 }, capped)) expect(bias).toBeCloseTo(0.25, 6);
  });

  it("says how a score comes about", () => {
    expect(scoreWords(facts, false)).toBe("score = q\u00b7k \u00d7 0.5000");
    expect(scoreWords({ scale: 0.125, softcap: 50 }, true)).toBe("score = 50.0 tanh(q\u00b7k \u00d7 0.1250 / 50.0) + bias");
  });

  it("says what was checked, and what was not", () => {
    expect(checkWords(facts)).toBe(
      "All weights of the row miss 1 by 1.5\u00d710\u207b\u2077. When this was recorded, weights and values rebuilt the kernel's output to within 3.0\u00d710\u207b\u2077 of its largest number, on the rows that were checked.",
    );
    expect(checkWords({ sink: 0.1, off: { sum: 0, output: null } })).toBe(
      "All weights of the row and the sink's share add up to 1 exactly. The kernel's output: not checked when this was recorded.",
    );
    expect(checkWords({ sink: null, off: { sum: 0, output: 0 } })).toContain("rebuilt the kernel's output exactly");
  });
});

describe("strips", () => {
  it("reach as far as their largest number of either sign", () => {
    expect(reachOf(Float32Array.of(1, -3), Float32Array.of(2))).toBe(3);
    expect(reachOf()).toBe(0);
    expect([-3, 0, 1.5, 3, 9].map((value) => signedShare(value, 3))).toEqual([0, 0.5, 0.75, 1, 1]);
    expect(signedShare(0, 0)).toBe(0.5);
  });

  it.each(["light", "dark"] as const)("tell signs apart and agree at zero (%s)", (theme) => {
    const ramp = signedRamp(theme);
    const light = (share: number): number => [...ramp.subarray(4 * step(share), 4 * step(share) + 3)].reduce((sum, part) => sum + part, 0);
    expect(pick(ramp, 127 / 255)).toBe(pick(ramp, 128 / 255));
    expect(pick(ramp, 0)).not.toBe(pick(ramp, 1));
    for (const share of [0.1, 0.25, 0.4]) {
      const [far, near] = [light(0.5 - share), light(0.5 - share / 2)];
      expect(theme === "light" ? far < near : far > near).toBe(true);
    }
  });
});
