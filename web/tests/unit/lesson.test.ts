import { readFileSync } from "node:fs";

import { describe, expect, it } from "vitest";

import { at, attend, bidirectional, causal, mask, softmax, toggled } from "../../src/lib/attention";
import { block, changed, normalised, nudged, START } from "../../src/lesson/block";
import { carriedFrom, edited, exampleOf, sinkOf, stops, type Carried } from "../../src/lesson/carried";
import { drawnHead, drawnHeads, ECHO, matrix, normals, SENTENCE, WORKED, type Example } from "../../src/lesson/examples";
import { MARY } from "../../src/lesson/measured";
import {
  aboutBlock,
  aboutHeads,
  aboutMask,
  aboutScale,
  aboutValues,
  aboutWeights,
  isRight,
  quoted,
  shown,
  sideBySide,
  type Question,
} from "../../src/lesson/questions";
import { rankCorrelation, ranks } from "../../src/lib/rank";
import { drawnRow, meanLargest, SIZES, SOURCES } from "../../src/lesson/scaling";

const read = <T>(name: string): T =>
  JSON.parse(readFileSync(new URL(`../../../tests/data/${name}`, import.meta.url), "utf8")) as T;

const near = (value: number, wanted: number, within = 1e-9): void =>
  expect(Math.abs(value - wanted), `${value} beside ${wanted}`).toBeLessThanOrEqual(within);

const rightOf = (question: Question): number => (question.kind === "quantity" ? question.right : at(question.right, 0));

const sixTokens = (permitted = mask(6, causal)): Example => ({
  from: null,
  destinations: SENTENCE,
  sources: SENTENCE,
  head: drawnHead(6, 4, 3),
  permitted,
  rules: {},
  together: null,
});

describe("the worked example of the page", () => {
  it("is the one that is checked elsewhere", () => {
    const file = read<{ tokens: string[]; q: number[][]; k: number[][]; v: number[][] }>("worked_example.json");
    expect(WORKED.sources.map((label) => label.text)).toEqual(file.tokens);
    expect(WORKED.head).toEqual({ q: file.q, k: file.k, v: file.v });
  });

  it("has parts that add up to y", () => {
    const { rows, outputs } = attend(WORKED.head, WORKED.permitted, WORKED.rules);
    rows.forEach((row, i) => {
      const { parts, sums } = stops(row?.weights ?? [], WORKED.head.v);
      expect(parts).toHaveLength(3);
      sums.at(-1)?.forEach((x, d) => near(x, at(at(outputs, i) ?? [], d)));
    });
  });
});

describe("drawn numbers", () => {
  it("are the same for the same seed, with mean 0 and variance 1", () => {
    const [one, other] = [normals(3), normals(3)];
    const many = Array.from({ length: 4000 }, () => one());
    expect(many.slice(0, 50)).toEqual(Array.from({ length: 50 }, () => other()));
    near(many.reduce((sum, x) => sum + x, 0) / many.length, 0, 0.05);
    near(many.reduce((sum, x) => sum + x * x, 0) / many.length, 1, 0.08);
  });

  it("leave the first heads as they are when another is added", () => {
    const [two, three] = [drawnHeads(2, 5), drawnHeads(3, 5)];
    expect(three.matrices.slice(0, 2)).toEqual(two.matrices);
    expect(three.x).toEqual(two.x);
  });
});

describe("a carried head", () => {
  const draw = normals(9);
  const many = { q: matrix(draw, 1, 8), k: matrix(draw, 20, 8), v: matrix(draw, 20, 3) };
  const whole = attend(many, [many.k.map(() => true)], { scale: 0.3, sink: 0.5 });
  const row = at(whole.rows, 0);
  const listed = [0, 4, 7, 19];
  const others = many.k.map((_, j) => j).filter((j) => !listed.includes(j));
  const weights = row?.weights ?? [];
  const carried: Carried = {
    from: "a model, layer 3, head 1",
    destinations: [{ text: " it", position: 19 }],
    sources: listed.map((position) => ({ text: ` t${position}`, position })),
    q: many.q,
    k: listed.map((j) => at(many.k, j)),
    v: listed.map((j) => at(many.v, j)),
    scale: 0.3,
    sink: sinkOf(row?.sinkShare ?? 0, row?.lse ?? 0),
    rest: {
      count: others.length,
      weight: others.reduce((sum, j) => sum + at(weights, j), 0),
      part: at(many.v, 0).map((_, d) => others.reduce((sum, j) => sum + at(weights, j) * at(at(many.v, j), d), 0)),
      lse: row?.lse ?? 0,
    },
  };

  it("gives the real weights, sink and output, the others standing together", () => {
    const example = exampleOf(carried);
    const found = attend(example.head, example.permitted, example.rules);
    listed.forEach((j, n) => near(at(at(found.rows, 0)?.weights ?? [], n), at(weights, j)));
    near(at(found.rows, 0)?.sinkShare ?? NaN, row?.sinkShare ?? NaN);
    at(found.outputs, 0)?.forEach((y, d) => near(y, at(at(whole.outputs, 0) ?? [], d)));
    expect(example.together).toBe(4);
    expect(at(example.sources, 4).text).toBe("16 others");
  });

  it("gives the real output of a cut too", () => {
    const example = exampleOf(carried);
    const cut = attend(example.head, toggled(example.permitted, 0, 1), example.rules);
    const real = attend(many, toggled([many.k.map(() => true)], 0, 4), { scale: 0.3, sink: 0.5 });
    at(cut.outputs, 0)?.forEach((y, d) => near(y, at(at(real.outputs, 0) ?? [], d)));
  });

  it("is made of the server's numbers, arrays row after row", () => {
    const arrays = {
      q: Float64Array.from(carried.q.flat()),
      k: Float64Array.from(carried.k.flat()),
      v: Float64Array.from(carried.v.flat()),
      rest: carried.rest?.part ?? [],
    };
    const { count, weight, lse } = carried.rest ?? { count: 0, weight: 0, lse: 0 };
    const numbers = { scale: 0.3, softcap: null, lse, sink: row?.sinkShare ?? null, rest: { count, weight }, arrays };
    const again = carriedFrom(carried.from, at(carried.destinations, 0), carried.sources, numbers);
    expect(exampleOf(again)).toEqual(exampleOf(carried));
    expect(carriedFrom("", at(carried.destinations, 0), carried.sources, { ...numbers, sink: null }).sink).toBeUndefined();
  });

  it("without a rest runs over the given sources alone", () => {
    const example = exampleOf({ ...carried, rest: undefined, sink: undefined });
    expect(example.together).toBeNull();
    const found = attend(example.head, example.permitted, example.rules);
    near(
      at(found.rows, 0)?.weights.reduce((sum, a) => sum + a, 0) ?? 0,
      1,
    );
  });

  it("is edited one number at a time, the start left as it is", () => {
    const next = edited(WORKED, "k", 1, 0, 5);
    expect(at(next.head.k, 1)).toEqual([5, 1]);
    expect(at(WORKED.head.k, 1)).toEqual([0, 1]);
    expect(next.head.v).toBe(WORKED.head.v);
  });
});

describe("the questions' answers come from the numbers", () => {
  it("a doubled value, in the worked example and after any edit", () => {
    const asked = aboutValues(WORKED, 2);
    near(rightOf(asked), 0.284 * 4 + 0.576 * 1, 0.002); // The (2, 0), at 0.284, is doubled; was (1, 1) stays
    for (const [q, v] of [
      [3, 1],
      [-2, 0.5],
    ] as const) {
      const other = edited(edited(WORKED, "q", 2, 0, q), "v", 0, 0, v);
      expect(rightOf(aboutValues(other, 2))).not.toBe(rightOf(asked));
    }
  });

  it("a doubled value for each destination, by a run with that value", () => {
    for (let i = 0; i < 6; i++) {
      const example = sixTokens();
      const asked = aboutValues(example, i);
      const candidates = example.head.v.map((_, j) => {
        const v = example.head.v.map((value, s) => value.map((x) => (s === j ? 2 * x : x)));
        return at(at(attend({ ...example.head, v }, example.permitted).outputs, i) ?? [], 0);
      });
      expect(candidates.some((y) => Math.abs(y - rightOf(asked)) < 1e-9)).toBe(true);
    }
  });

  it("an empty row asks what it gives", () => {
    const empty = { ...WORKED, permitted: mask(3, (i, j) => j < i) };
    const asked = aboutValues(empty, 0);
    expect(asked.kind).toBe("choice");
    expect(isRight(asked, 2)).toBe(true);
    expect(isRight(asked, 0)).toBe(false);
  });

  it("a forbidden edge", () => {
    const example = sixTokens();
    const asked = aboutMask(example, 5);
    const weights = at(attend(example.head, example.permitted).rows, 5)?.weights ?? [];
    const [first, second] = [...weights].sort((a, b) => b - a);
    near(rightOf(asked), (second ?? 0) / (1 - (first ?? 0)));
    expect(isRight(asked, Number(rightOf(asked).toFixed(2)))).toBe(true);
    expect(isRight(asked, rightOf(asked) + 0.03)).toBe(false);
  });

  it("a forbidden edge elsewhere, where the chosen row has none to spare", () => {
    const permitted = mask(6, (i, j) => (i === 5 ? j === 5 : j <= i));
    expect(aboutMask(sixTokens(permitted), 5).ask).toContain("Forbid “because”");
  });

  it("empty rows are counted where no row has two sources", () => {
    expect(rightOf(aboutMask(sixTokens(mask(6, (i, j) => i === j && i > 1)), 5))).toBe(2);
    expect(rightOf(aboutMask(sixTokens(mask(6, () => false)), 5))).toBe(6);
  });

  it("half the scale, at every scale", () => {
    for (const scale of [0.002, 0.1, 0.3, 1, 2]) {
      for (const size of [1, 16, 64, 512]) {
        const head = drawnRow(size, 2);
        const permitted = [at(mask(SOURCES, bidirectional), 0)];
        const asked = aboutScale({ ...sixTokens(), head, permitted, rules: { scale } });
        expect(asked.right.length, asked.ask).toBeGreaterThan(0);
        expect(new Set(asked.options).size).toBe(asked.options.length);
      }
    }
  });

  it("the count of comparisons", () => {
    expect(rightOf(aboutHeads(3, mask(6, causal)))).toBe(63);
    expect(rightOf(aboutHeads(1, mask(6, causal)))).toBe(21);
  });

  it("where a change passes to others: at attention, unless nobody reads it", () => {
    for (const order of ["before", "after"] as const) {
      const names = block(START, order).map((stage) => stage.name);
      for (const position of [0, 1]) {
        const asked = aboutBlock(START, order, position, 1.5, ["The", "bridge", "was"]);
        expect(asked.options[rightOf(asked)]).toBe(`${names.indexOf("Attention") + 1}. Attention`);
      }
      const last = aboutBlock(START, order, 2, 1.5, ["The", "bridge", "was"]);
      expect(last.options[rightOf(last)]).toBe("At none of them");
    }
  });

  it("the costliest edge is not the heaviest here, and would be with other numbers", () => {
    const offered = [0, 6, 12, 9, 1];
    const asked = aboutWeights(MARY.sources, offered, MARY.target);
    expect(asked.right).toEqual([4]);
    const turned = MARY.sources.map((source) => ({ ...source, nats: source.weight }));
    expect(aboutWeights(turned, offered, MARY.target).right).toEqual([0]);
    expect(asked.options.join()).not.toContain("nats"); // the answer is not given away
  });
});

describe("the block", () => {
  it("has seven stages in both orders, all finite, and mixes positions at attention alone", () => {
    for (const order of ["before", "after"] as const) {
      const one = block(START, order);
      expect(one).toHaveLength(7);
      expect(one.flatMap((stage) => stage.rows.flat()).every(Number.isFinite)).toBe(true);
      const places = changed(one, block(nudged(START, 0, 1), order));
      const mixed = places.findIndex((positions) => positions.length > 1);
      expect(at(one, mixed).part).toBe("attention");
      for (const stage of places.slice(0, mixed)) expect(stage).toEqual([0]);
    }
  });

  it("normalises to mean 0 and mean square 1", () => {
    const x = normalised([3, -1, 7, 2]);
    near(x.reduce((sum, value) => sum + value, 0), 0);
    near(x.reduce((sum, value) => sum + value * value, 0) / 4, 1, 1e-4);
  });
});

describe("the scale", () => {
  it("of 1 / sqrt(D) keeps the largest weight level, 1 drives it to 1, 1 / D to an even share", () => {
    const level = SIZES.filter((size) => size >= 4).map((size) => meanLargest(size, 1 / Math.sqrt(size)));
    expect(Math.max(...level) - Math.min(...level)).toBeLessThan(0.12);
    expect(meanLargest(512, 1)).toBeGreaterThan(0.9);
    expect(meanLargest(512, 1 / 512)).toBeLessThan(1 / SOURCES + 0.03);
  });
});

describe("the measured prompt", () => {
  interface Known {
    prompt: string;
    target: string;
    top5: [string, number][];
    mean_weight_last_row: number[];
    direct_knockout_nats: number[];
  }
  const known = read<{ prompts: Known[] }>("smollm2_knockouts.json").prompts.find((one) => one.prompt === MARY.text);

  it("has the numbers of the independent implementation", () => {
    expect(known?.target).toBe(MARY.target);
    near(known?.top5[0]?.[1] ?? 0, MARY.probability, 1e-3);
    expect(known?.mean_weight_last_row).toHaveLength(MARY.sources.length);
    MARY.sources.forEach((source, j) => {
      near(source.weight, known?.mean_weight_last_row[j] ?? NaN, 1e-4);
      near(source.nats, known?.direct_knockout_nats[j] ?? NaN, 1e-4);
    });
    near(MARY.sources.reduce((sum, source) => sum + source.weight, 0), 1, 1e-5);
    expect(MARY.sources.map((source) => source.token).join("")).toBe(MARY.text);
  });

  it("is ordered differently by its two columns", () => {
    const weights = MARY.sources.map((source) => source.weight);
    const nats = MARY.sources.map((source) => source.nats);
    near(rankCorrelation(weights, nats), 0.112, 0.001);
    near(rankCorrelation(weights, weights), 1);
    expect(ranks([5, 1, 5])).toEqual([1.5, 3, 1.5]);
  });
});

describe("one row beside itself", () => {
  it("lists weight, moved and the change without each source", () => {
    const v = [[0, 0], [3, 4], [3, 4]];
    const attended = attend({ q: [[1]], k: [[2], [1], [1]], v }, [[true, true, true]]);
    const lines = sideBySide(attended, v, 0);
    const weights = softmax([2, 1, 1], [true, true, true])?.weights ?? [];
    expect(lines.map((line) => line.weight)).toEqual(weights);
    expect(at(lines, 0).moved).toBe(0);
    near(at(lines, 1).moved, 5 * at(weights, 1));
    expect(sideBySide(attend({ q: [[1]], k: [[1]], v: [[1]] }, [[false]]), [[1]], 0)).toEqual([]);
  });
});

describe("the row of the last step", () => {
  it("loses nothing without its heaviest source, and most without a light one", () => {
    const lines = sideBySide(attend(ECHO.head, ECHO.permitted, ECHO.rules), ECHO.head.v, 0);
    const weights = lines.map((line) => line.weight);
    const changes = lines.map((line) => line.change ?? NaN);
    [0.5, 0.25, 0.15, 0.1].forEach((wanted, j) => near(at(weights, j), wanted));
    near(at(changes, 0), 0);
    expect(Math.max(...changes)).toBe(changes[2]);
  });
});

describe("words", () => {
  it("show a true minus and no minus zero", () => {
    expect(shown(-1.5, 1)).toBe("−1.5");
    expect(shown(-0.0001)).toBe("0.000");
    expect(quoted(" Mary")).toBe("“Mary”");
  });
});
