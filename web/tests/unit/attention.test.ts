import { readFileSync } from "node:fs";

import { describe, expect, it } from "vitest";

import {
  at,
  attend,
  bidirectional,
  causal,
  changeByCut,
  dot,
  largest,
  manyHeads,
  mask,
  scoresOf,
  softmax,
  spread,
  toggled,
  weightedSum,
  windowed,
  type Head,
  type Permitted,
} from "../../src/lib/attention";
import { matrix, normals } from "../../src/lesson/examples";

interface Worked {
  q: number[][];
  k: number[][];
  v: number[][];
  scores: (number | null)[][];
  weights: (number | null)[][];
  outputs: number[][];
}
const worked = JSON.parse(
  readFileSync(new URL("../../../tests/data/worked_example.json", import.meta.url), "utf8"),
) as Worked;
const HALF_STEP = 0.0005 + 1e-9; // the file's numbers are rounded to three decimals

const near = (value: number, wanted: number, within = HALF_STEP): void =>
  expect(Math.abs(value - wanted), `${value} beside ${wanted}`).toBeLessThanOrEqual(within);

/** Heads and masks of many shapes, empty rows among them, with scores that are sometimes huge. */
function* cases(): Generator<{ head: Head; permitted: Permitted; sink: number | undefined }> {
  for (let seed = 1; seed <= 200; seed++) {
    const draw = normals(seed);
    const [t, s, d, v] = [1 + (seed % 5), 1 + (seed % 7), 1 + (seed % 4), 1 + (seed % 3)];
    const size = seed % 10 === 0 ? 300 : 1;
    yield {
      head: { q: matrix(draw, t, d, size), k: matrix(draw, s, d, size), v: matrix(draw, s, v) },
      permitted: Array.from({ length: t }, () => Array.from({ length: s }, () => draw() > 0)),
      sink: seed % 3 === 0 ? draw() : undefined,
    };
  }
}

describe("the worked example", () => {
  const found = attend(worked, mask(3, causal));

  it("has the file's scores, weights and outputs", () => {
    worked.scores.forEach((row, i) =>
      row.forEach((wanted, j) => {
        if (wanted === null) {
          expect(at(found.permitted, i)[j]).toBe(false);
          expect(at(found.rows, i)?.weights[j]).toBe(0);
          return;
        }
        near(at(at(found.scores, i), j), wanted);
        near(at(at(found.rows, i)?.weights ?? [], j), worked.weights[i]?.[j] ?? NaN);
      }),
    );
    worked.outputs.forEach((row, i) => row.forEach((wanted, d) => near(at(at(found.outputs, i) ?? [], d), wanted)));
  });
});

describe("rows of weights", () => {
  it("sum to one with the sink's share, are never negative, and are exactly 0 where not permitted", () => {
    for (const { head, permitted, sink } of cases()) {
      const { rows } = attend(head, permitted, { sink });
      rows.forEach((row, i) => {
        const may = at(permitted, i);
        if (row === null) {
          expect(may.some(Boolean)).toBe(false);
          return;
        }
        expect(may.some(Boolean)).toBe(true);
        near(
          row.weights.reduce((sum, a) => sum + a, row.sinkShare),
          1,
          1e-12,
        );
        row.weights.forEach((a, j) => {
          expect(a).toBeGreaterThanOrEqual(0);
          if (!may[j]) expect(a).toBe(0);
        });
      });
    }
  });

  it("are exp(s - lse)", () => {
    for (const { head, permitted, sink } of cases()) {
      const { rows, scores } = attend(head, permitted, { sink });
      rows.forEach((row, i) =>
        row?.weights.forEach((a, j) => {
          if (at(at(permitted, i), j)) near(Math.exp(at(at(scores, i), j) - row.lse), a, 1e-9);
        }),
      );
    }
  });

  it("are marked where empty, with a sink or without, and nothing anywhere is NaN", () => {
    expect(softmax([1, 2], [false, false])).toBeNull();
    expect(softmax([1, 2], [false, false], 3)).toBeNull();
    const none = attend({ q: [[1]], k: [[1]], v: [[1]] }, [[false]]);
    expect(none.rows).toEqual([null]);
    expect(none.outputs).toEqual([null]);
    for (const { head, permitted, sink } of cases()) {
      const found = attend(head, permitted, { sink });
      const numbers = [found.products, found.scores, found.rows.map((row) => row?.weights ?? []), found.outputs.map((y) => y ?? [])];
      expect(numbers.flat(2).every(Number.isFinite)).toBe(true);
    }
  });

  it("stand any size of score", () => {
    const row = softmax([1e300, -1e300, 1e300], [true, true, true]);
    expect(row?.weights).toEqual([0.5, 0, 0.5]);
    expect(softmax([-800, -801], [true, true])?.weights[0]).toBeCloseTo(1 / (1 + Math.exp(-1)), 12);
  });

  it("do not change when all scores of a row grow alike", () => {
    const one = softmax([0.1, 2, -3], [true, true, true])?.weights ?? [];
    const other = softmax([10.1, 12, 7], [true, true, true])?.weights ?? [];
    one.forEach((a, j) => near(at(other, j), a, 1e-12));
  });
});

describe("scores", () => {
  it("have 1 / sqrt(D) as their scale unless another is given", () => {
    const [q, k] = [[[3, 4, 0, 0]], [[1, 1, 1, 1]]];
    expect(scoresOf(q, k).scores).toEqual([[3.5]]);
    expect(scoresOf(q, k, { scale: 1 }).scores).toEqual([[7]]);
  });

  it("are capped first and biased after", () => {
    const { scores } = scoresOf([[100]], [[100]], { scale: 1, softcap: 5, bias: [[2]] });
    near(at(at(scores, 0), 0), 7, 1e-9);
  });

  it("refuse vectors of two lengths", () => expect(() => dot([1], [1, 2])).toThrow(RangeError));
});

describe("masks", () => {
  it("permit what they say; a window counts its own key", () => {
    expect(mask(3, causal)).toEqual([
      [true, false, false],
      [true, true, false],
      [true, true, true],
    ]);
    expect(mask(3, windowed(1))).toEqual([
      [true, false, false],
      [false, true, false],
      [false, false, true],
    ]);
    expect(at(mask(4, windowed(2)), 3)).toEqual([false, false, true, true]);
    expect(mask(2, bidirectional).flat().every(Boolean)).toBe(true);
  });

  it("turn over one pair and leave the rest", () => {
    const before = mask(3, causal);
    const after = toggled(before, 2, 1);
    expect(at(after, 2)).toEqual([true, false, true]);
    expect(toggled(after, 2, 1)).toEqual(before);
  });
});

describe("a cut", () => {
  it("changes the output as the closed form says", () => {
    for (const { head, permitted, sink } of cases()) {
      const before = attend(head, permitted, { sink });
      before.rows.forEach((row, i) => {
        if (row === null) return;
        const source = largest(row.weights);
        const change = changeByCut(row, head.v, source);
        const after = at(attend(head, toggled(permitted, i, source), { sink }).outputs, i);
        if (after === null || change === null) return;
        after.forEach((y, d) => near(y - at(at(before.outputs, i) ?? [], d), at(change, d), 1e-9));
      });
    }
  });

  it("has no answer where nothing else is read", () => {
    const row = softmax([1], [true]);
    expect(row && changeByCut(row, [[1]], 0)).toBeNull();
  });
});

describe("several heads", () => {
  it("are joined head after head and mixed by one matrix", () => {
    const draw = normals(4);
    const x = matrix(draw, 3, 5);
    const one = () => ({ wq: matrix(draw, 2, 5), wk: matrix(draw, 2, 5), wv: matrix(draw, 2, 5) });
    const wo = matrix(draw, 5, 4);
    const found = manyHeads(x, [one(), one()], wo, mask(3, causal));
    found.joined.forEach((row, i) => {
      expect(row).toEqual(found.heads.flatMap((head) => at(head.outputs, i) ?? []));
      wo.forEach((out, m) => near(at(at(found.output, i) ?? [], m), dot(out, row ?? []), 1e-12));
    });
  });

  it("have no joint row where a head's row is empty", () => {
    const draw = normals(4);
    const x = matrix(draw, 2, 2);
    const head = { wq: matrix(draw, 1, 2), wk: matrix(draw, 1, 2), wv: matrix(draw, 1, 2) };
    const found = manyHeads(x, [head], [[1]], [[false, false], [true, true]]);
    expect(found.joined[0]).toBeNull();
    expect(found.output[0]).toBeNull();
    expect(found.output[1]).not.toBeNull();
  });
});

describe("spread and sum", () => {
  it("counts equal sources", () => {
    expect(spread([0.25, 0.25, 0.25, 0.25])).toBeCloseTo(4, 12);
    expect(spread([1, 0, 0])).toBe(1);
  });
  it("adds weighted values", () => expect(weightedSum([0.5, 0.25], [[2, 0], [0, 4]])).toEqual([1, 1]));
});
