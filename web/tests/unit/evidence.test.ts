import { describe, expect, it } from "vitest";

import { glowRamp, lensRamp, pick } from "../../src/lib/colour";
import { disagreementOf, ordered, remainderOf, usualOrder, type Lenses } from "../../src/lib/evidence";
import { lossWords, plain } from "../../src/lib/format";
import { glowOf, grouped } from "../../src/lib/glow";
import { after, LOOKING, mayAsk, type Happened, type Stage } from "../../src/lib/measuring";
import { namesOf, nearest, plotOf } from "../../src/lib/plot";
import { rankCorrelation, ranks } from "../../src/lib/rank";
import { shareOf, signedScaleTo, valueAt } from "../../src/lib/scale";
import { afterKey, within } from "../../src/lib/split";
import { powerTicks, roundTicks } from "../../src/lib/ticks";
import { changed, START } from "../../src/state/selection";
import type { Job } from "../../src/wire/api";

const NONE = Number.NaN;
const lenses = (given: Partial<Record<keyof Lenses, readonly number[]>>): Lenses => ({
  weight: given.weight ? Float32Array.from(given.weight) : null,
  moved: given.moved ? Float32Array.from(given.moved) : null,
  attribution: given.attribution ? Float32Array.from(given.attribution) : null,
  knockout: given.knockout ? Float32Array.from(given.knockout) : null,
});

describe("sources in order", () => {
  const all = lenses({ weight: [0.5, 0.125, 0.25, 0.125], knockout: [-0.25, 2, NONE, -3] });
  const sources = [0, 1, 2, 3];

  it("are by knock-out where it was measured, else by weight", () => {
    expect(usualOrder(all)).toBe("knockout");
    expect(usualOrder(lenses({ weight: [1] }))).toBe("weight");
  });

  it("have the largest of either sign first, the first of equals first, and those without a value last", () => {
    expect(ordered(sources, all, "knockout")).toEqual([3, 1, 0, 2]);
    expect(ordered(sources, all, "weight")).toEqual([0, 2, 1, 3]);
    expect(ordered(sources, all, "position")).toEqual(sources);
  });

  it("stay as they are by a lens that is not known", () => expect(ordered([2, 0], all, "moved")).toEqual([2, 0]));

  it("leave a remainder that is added up only where adding has a meaning", () => {
    const rest = remainderOf([1, 2, 3], lenses({ weight: [0.5, 0.125, 0.25, 0.125], moved: [1, 1, 1, 1], attribution: [9, 0.5, NONE, -2], knockout: [1, 1, 1, 1] }));
    expect(rest).toEqual({ count: 3, weight: 0.5, attribution: -1.5 });
    expect(remainderOf([], all)).toEqual({ count: 0, weight: 0, attribution: null });
  });
});

describe("weight against knock-out", () => {
  it("names the heaviest, the costliest, and who is furthest from agreement", () => {
    const found = disagreementOf([0, 1, 2, 3, 4], lenses({ weight: [0.5, 0.1, 0.2, 0.2, 0.3], knockout: [0, -4, 1, NONE, 1] }), 2);
    expect(found?.sources).toEqual([0, 1, 2, 4]);
    expect([found?.heaviest, found?.costliest]).toEqual([0, 1]);
    expect(found?.furthest).toEqual([0, 1]);
    // Ranks of weight 1 4 3 2; of nats 3 4 1.5 1.5.
    expect(found?.correlation).toBeCloseTo(rankCorrelation([0.5, 0.1, 0.2, 0.3], [0, -4, 1, 1]), 12);
  });

  it("says how the estimate did, and where it missed the costliest source", () => {
    const estimated = (attribution: readonly number[] | undefined, knockout: readonly number[]) =>
      disagreementOf([0, 1, 2], lenses({ weight: [0.5, 0.25, 0.25], knockout, ...(attribution ? { attribution } : {}) }), 1)?.estimate;
    expect(estimated(undefined, [1, 2, 0])).toBeNull();
    expect(estimated([0.5, 1, 0], [1, 2, 0])?.missed).toBeNull();
    expect(estimated([0.5, 0.75, 0], [1, 2, 0])?.missed).toBe(0.75);
    expect(estimated([0.5, -0.25, 0], [1, 2, 0])?.missed).toBe(-0.25);
    // Of either sign; more than all of it is no miss.
    expect(estimated([0.5, -3, 0], [1, -2, 0])?.missed).toBeNull();
    expect(estimated([0.5, 3, 0], [1, -2, 0])?.missed).toBe(3);
    expect(estimated([0, 2, 1], [1, 2, 0])?.correlation).toBeCloseTo(rankCorrelation([0, 2, 1], [1, 2, 0]), 12);
    expect(estimated([0.5, NONE, 0], [1, 2, 0])).toBeNull();
  });

  it("has nothing to say of what was not measured, and no correlation of two sources or of equal ones", () => {
    expect(disagreementOf([0], lenses({ weight: [1] }), 3)).toBeNull();
    expect(disagreementOf([0], lenses({ weight: [1], knockout: [NONE] }), 3)).toBeNull();
    expect(disagreementOf([0, 1], lenses({ weight: [0.5, 0.25], knockout: [1, 2] }), 3)?.correlation).toBeNull();
    expect(disagreementOf([0, 1, 2], lenses({ weight: [0.25, 0.25, 0.25], knockout: [1, 2, 3] }), 3)?.correlation).toBeNull();
  });

  it("ranks as the slow obvious twin does", () => {
    const twin = (values: readonly number[]): number[] =>
      values.map((x) => values.filter((y) => y > x).length + (values.filter((y) => y === x).length + 1) / 2);
    for (let turn = 0; turn < 200; turn += 1) {
      const values = Array.from({ length: turn % 23 }, (_, at) => ((turn * 31 + at * at * 7) % 11) - 5);
      expect(ranks(values)).toEqual(twin(values));
    }
    expect(ranks([-0, 0])).toEqual([1.5, 1.5]);
  });

  it("puts points where the axes say, in the frame", () => {
    const [weights, nats] = [Float32Array.of(0.5, 0.05, 0.0000001, 0), Float32Array.of(-1, 3, 0, 0.5)];
    for (const kind of ["linear", "log"] as const) {
      const plot = plotOf(weights, nats, kind, 400, 200);
      const [xs, ys] = [weights.map(plot.x), nats.map(plot.y)];
      for (const x of xs) expect(x >= 0 && x < 400).toBe(true);
      for (const y of ys) expect(y > 0 && y < 200).toBe(true);
      expect(ys[1]).toBeLessThan(ys[0] ?? 0);
      expect(xs[0]).toBeGreaterThan(xs[1] ?? 0);
      for (const { value, at } of plot.across) expect(at).toBe(plot.x(value));
      expect(plot.up.map(({ value }) => value)).toContain(0);
      expect(plot.least > 0).toBe(kind === "log");
      expect(weights[2]! < plot.least).toBe(kind === "log");
    }
    // All the same, and nothing at all: still a frame.
    for (const one of [Float32Array.of(0), new Float32Array()]) expect(Number.isFinite(plotOf(one, one, "log", 400, 200).y(0))).toBe(true);
  });

  it("begins a log axis where the weights do, if that is not too far", () => {
    const least = (...weights: number[]): number => plotOf(Float32Array.from(weights), Float32Array.from(weights), "log", 400, 200).least;
    expect(least(0.5, 0.02)).toBeCloseTo(0.008, 9);
    expect(least(0.5, 0.02, 0)).toBeCloseTo(0.008, 9);
    expect(least(0.5, 1e-9)).toBeCloseTo(0.00005, 9);
  });

  it("names no two on one another, and none out of the frame", () => {
    const points = Array.from({ length: 6 }, (_, at) => ({ x: 390 - at, y: 4 + at, width: 60 }));
    const names = namesOf(points, { xs: [], ys: [] }, 20, 400, 200);
    expect(names.length).toBeGreaterThan(0);
    expect(names.length).toBeLessThan(points.length);
    expect(names[0]?.at).toBe(0);
    for (const { left, middle } of names) expect(left >= 0 && left + 60 <= 400 && middle >= 10 && middle <= 190).toBe(true);
    names.forEach((a, at) => names.slice(at + 1).forEach((b) => expect(Math.abs(a.middle - b.middle) >= 20 || Math.abs(a.left - b.left) > 60).toBe(true)));
  });

  it("puts a name where it lies on the fewest points", () => {
    const [name] = namesOf([{ x: 100, y: 100, width: 60 }], { xs: [100, 130, 130, 70], ys: [100, 100, 80, 100] }, 20, 400, 200);
    expect(name).toEqual({ at: 0, left: 33, middle: 84, leader: [100, 100, 93, 84] });
  });

  it("finds the point under the pointer", () => {
    expect(nearest({ xs: [0, 10, 50], ys: [0, 10, 50] }, 12, 10, 16)).toBe(1);
    expect(nearest({ xs: [0, 10, 50], ys: [0, 10, 50] }, 30, 30, 16)).toBeNull();
  });
});

describe("axes", () => {
  it("are labelled at round numbers", () => {
    expect(roundTicks(-0.6, 3.2, 6)).toEqual([0, 1, 2, 3]);
    expect(roundTicks(0, 0.41, 5).map((value) => Number(value.toPrecision(12)))).toEqual([0, 0.1, 0.2, 0.3, 0.4]);
    expect(Object.is(roundTicks(-1, 1, 4)[2], 0)).toBe(true);
    expect(roundTicks(1, 1, 5)).toEqual([]);
    expect([0, 3 * 0.05, -0.5, 0.0001, 2e-5, 100].map(plain)).toEqual(["0", "0.15", "\u22120.5", "0.0001", "2\u00d710\u207b\u2075", "100"]);
    expect(powerTicks(0.00002, 0.2).map(Math.log10).map(Math.round)).toEqual([-4, -3, -2, -1]);
    expect(powerTicks(0.001, 1)).toHaveLength(4);
  });
});

describe("either sign", () => {
  it.each(["linear", "log"] as const)("has zero in the middle, and goes both ways alike (%s)", (kind) => {
    const scale = signedScaleTo(2, kind, 0.01);
    expect([0, 0.01, -0.005].map((value) => shareOf(scale, value))).toEqual([0.5, 0.5, 0.5]);
    expect([shareOf(scale, 2), shareOf(scale, -2), shareOf(scale, 9)]).toEqual([1, 0, 1]);
    expect(shareOf(scale, NONE)).toBeNaN();
    for (const value of [0.02, 0.3, 1.5]) {
      expect(shareOf(scale, value) + shareOf(scale, -value)).toBeCloseTo(1, 12);
      expect(valueAt(scale, shareOf(scale, -value))).toBeCloseTo(-value, 10);
    }
    expect(valueAt(scale, 0.5)).toBeCloseTo(0, 12);
  });

  it.each(["light", "dark"] as const)("has a colour of its own, and the ground at zero (%s)", (theme) => {
    for (const lens of ["attribution", "knockout"] as const) {
      for (const ramp of [lensRamp(lens, theme), glowRamp(lens, theme)]) {
        expect(pick(ramp, 127 / 255)).toBe(pick(ramp, 128 / 255));
        expect(new Set([0, 0.5, 1].map((share) => pick(ramp, share))).size).toBe(3);
      }
    }
    expect(pick(lensRamp("attribution", theme), 0)).toBe(pick(lensRamp("knockout", theme), 0));
    expect(pick(lensRamp("attribution", theme), 1)).not.toBe(pick(lensRamp("knockout", theme), 1));
  });

  it("adds up estimates of a unit, and takes the largest knock-out of either sign", () => {
    const values = Float32Array.of(0.5, -2, NONE, 1);
    const owners = Int32Array.of(0, 0, 0, -1);
    expect([...grouped(values, owners, "attribution", "sources")]).toEqual([-1.5, -1.5, NONE, 1]);
    expect([...grouped(values, owners, "knockout", "sources")]).toEqual([-2, -2, NONE, 1]);
    expect(glowOf(values).largest).toBe(2);
  });

  it("says what is lost and what is gained", () => {
    expect([1.4, -0.06, 0].map(lossWords)).toEqual(["loses 1.40 nats", "gains 0.0600 nats", "loses nothing"]);
  });
});

describe("a measurement", () => {
  const job = (state: Job["state"], done = 0, error: string | null = null): Happened => ({ is: "job", job: { job: "a", state, what: "cutting each source", done, total: 9, error, left: null, busy: null } });
  const asked: Happened = { is: "asked" };
  const through = (...happened: readonly Happened[]): Stage => happened.reduce(after, LOOKING);
  const unmeasured: Happened = { is: "answer", measured: false };

  it("goes from unmeasured through its work to what was found", () => {
    expect(through(unmeasured)).toEqual({ at: "unmeasured" });
    expect(through(unmeasured, asked)).toEqual({ at: "asked" });
    expect(through(unmeasured, asked, job("waiting"))).toMatchObject({ at: "working", ending: false });
    expect(through(unmeasured, asked, job("running", 4))).toMatchObject({ job: { done: 4 } });
    expect(through(unmeasured, asked, job("running"), job("done"))).toEqual(LOOKING);
    expect(through(unmeasured, asked, job("done"), { is: "answer", measured: true })).toEqual({ at: "measured" });
    // Coming back to work that goes on.
    expect(through(job("running", 2))).toMatchObject({ at: "working", job: { done: 2 } });
  });

  it("says why nothing can be measured, unless it was", () => {
    expect(through({ is: "answer", measured: false, why: "Another model." })).toEqual({ at: "impossible", why: "Another model." });
    expect(through({ is: "answer", measured: true, why: null })).toEqual({ at: "measured" });
  });

  it("is cancelled, and may be asked for again", () => {
    const ending = through(unmeasured, asked, job("running"), { is: "cancel" });
    expect(ending).toMatchObject({ at: "working", ending: true });
    expect(after(ending, job("running", 5))).toMatchObject({ ending: true, job: { done: 5 } });
    expect(after(after(ending, job("cancelled")), asked)).toEqual({ at: "asked" });
  });

  it("says why it failed, why it could not be begun, or why it cannot be asked", () => {
    expect(through(unmeasured, asked, job("failed", 0, "Too little memory."))).toEqual({ at: "failed", why: "Too little memory." });
    expect(through(unmeasured, asked, job("failed"))).toMatchObject({ why: expect.stringContaining("no reason") as string });
    const refusal: Happened = { is: "refusal", why: "No." };
    expect(through(unmeasured, asked, refusal)).toEqual({ at: "failed", why: "No." });
    expect(through(unmeasured, asked, job("running"), refusal)).toEqual({ at: "failed", why: "No." });
    expect(through(refusal)).toEqual({ at: "refused", why: "No." });
  });

  it("is not begun twice, nor where it cannot be", () => {
    const stages: readonly Stage[] = [LOOKING, { at: "asked" }, { at: "measured" }, { at: "impossible", why: "" }, { at: "refused", why: "" }, through(unmeasured, asked, job("running"))];
    for (const stage of stages) {
      expect(mayAsk(stage)).toBe(false);
      expect(after(stage, asked)).toBe(stage);
    }
    for (const at of ["unmeasured", "cancelled"] as const) expect(mayAsk({ at })).toBe(true);
  });

  it("is not changed by what comes too late", () => {
    const working = through(unmeasured, asked, job("running"));
    expect(after(working, { is: "answer", measured: true })).toBe(working);
    for (const at of ["measured", "cancelled", "unmeasured"] as const) {
      for (const late of [job("running"), { is: "cancel" }, { is: "refusal", why: "" }] as const) expect(after({ at }, late)).toEqual({ at });
    }
  });
});

describe("what was chosen", () => {
  it("keeps a target for its destination alone", () => {
    const chosen = { ...START, destination: 7, target: " Mary" };
    expect(changed(chosen, { destination: 8 }).target).toBeNull();
    expect(changed(chosen, { destination: 7 }).target).toBe(" Mary");
    expect(changed(chosen, { source: 3 }).target).toBe(" Mary");
    expect(changed(chosen, { destination: 8, target: " John" }).target).toBe(" John");
  });
});

describe("widths", () => {
  const share = { usual: 24, least: 16, most: 40 };
  it("follow the keys of their divider within their bounds", () => {
    expect([afterKey(share, 24, "left", "ArrowRight"), afterKey(share, 24, "right", "ArrowRight")]).toEqual([26, 22]);
    expect([afterKey(share, 17, "left", "ArrowLeft"), afterKey(share, 38, "left", "PageUp")]).toEqual([16, 40]);
    expect(["Home", "End", "Enter", "x"].map((key) => afterKey(share, 30, "left", key))).toEqual([16, 40, 24, null]);
    expect([within(share, 3), within(share, 99), within(share, 30)]).toEqual([16, 40, 30]);
  });
});
