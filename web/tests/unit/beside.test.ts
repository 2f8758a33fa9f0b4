import { describe, expect, it } from "vitest";

import { absentWords, beyondWords, differences, nameOf, offeredBy, partnerOf, unlike } from "../../src/lib/beside";
import type { Call, Run } from "../../src/wire/api";

function call(index: number, layer: number, more: Partial<Call> = {}): Call {
  return {
    index, layer, name: `layers.${layer}`, kind: "self", part: "decoder", repeat: 0, heads: [0, 1, 2], all_heads: 3,
    destinations: 14, sources: 14, of: [0, 0], all_rows: true, rows: 14, mask: "causal", window: null, softcap: null,
    sinks: false, bias: false, output: true, kernel: "fused", levels: 1, checked: true, ...more,
  };
}

function run(key: string, calls: readonly Call[], fingerprint = "f"): Run {
  return {
    key, calls, model: { name: "small", fingerprint, layers: 3, heads: 3, kv_heads: 1, head_size: 4, context: 64, kind: "decoder" },
    texts: [{ tokens: 14, numbered: false }], layers: [], gaps: [], written_from: null, seconds: 1, predictions: 0,
    checks: "", stored: null, default: { call: 0, destination: 0 },
  };
}

describe("the call of the other recording", () => {
  it("is the same execution wherever it stands, and no other", () => {
    const calls = [call(0, 1, { part: "encoder" }), call(1, 1, { kind: "cross" }), call(2, 1, { repeat: 1 }), call(3, 2), call(4, 1)];
    expect(partnerOf(call(9, 1), calls)?.index).toBe(4);
    expect(partnerOf(call(9, 1, { repeat: 1 }), calls)?.index).toBe(2);
    expect(partnerOf(call(9, 1, { kind: "cross" }), calls)?.index).toBe(1);
    expect(partnerOf(call(9, 1, { part: "encoder" }), calls)?.index).toBe(0);
    expect(partnerOf(call(9, 3), calls)).toBeNull();
  });

  it("offers with the first what both have", () => {
    const [one, two] = [call(0, 0, { heads: [0, 2, 5], destinations: 9 }), call(3, 0, { heads: [2, 5, 7], sources: 8 })];
    expect(offeredBy(one, two)).toEqual({ heads: [2, 5], destinations: 9, sources: 8 });
    expect(offeredBy(one, null)).toBe(one);
  });

  it("is named by its layer, and by what tells it from others of that layer", () => {
    const calls = [call(0, 0), call(1, 1), call(2, 1, { kind: "cross" }), call(3, 2, { repeat: 0 }), call(4, 2, { repeat: 1 }), call(5, 3, { part: "encoder" }), call(6, 3)];
    expect(calls.map((one) => nameOf(one, calls))).toEqual(["0", "1 self", "1 cross", "2 pass 1", "2 pass 2", "encoder 3", "decoder 3"]);
  });
});

describe("what differs", () => {
  it("says which position stands in the place of one that is not there", () => {
    expect(beyondWords({ wanted: 9000, chosen: 733 }, false)).toBe("There is no position 9,000 here: 733, the last, is chosen instead.");
    expect(beyondWords({ wanted: 720, chosen: 699 }, true)).toBe("There is no position 720 in both: 699, the last that both have, is chosen instead.");
  });

  it("is told where an address asks for a call or a head that is not there", () => {
    const calls = [call(0, 0), call(1, 3, { part: "decoder", kind: "self" }), call(2, 3, { kind: "cross" })];
    const words = (missing: { call: number | null; head: number | null }, both = false): string[] => absentWords(missing, calls[1] ?? call(0, 0), calls, both);
    expect(words({ call: null, head: null })).toEqual([]);
    expect(words({ call: 1200, head: null })).toEqual(["There is no call 1,200 here: layer 3 self is chosen instead."]);
    expect(words({ call: null, head: 9 }, true)).toEqual(["There is no head 9 of layer 3 self in both: all its heads are chosen instead."]);
  });

  it("is nothing where nothing does", () => {
    expect(differences(run("a", [call(0, 0)]), run("b", [call(0, 0)]), call(0, 0), call(0, 0))).toEqual([]);
  });

  it("is said in sentences: models, lengths, layers, heads", () => {
    const [one, two] = [call(0, 0), call(0, 0, { destinations: 1200, sources: 1200, heads: [0, 2] })];
    const said = differences(run("a", [one, call(1, 1)]), run("b", [two, call(1, 2)], "g"), one, two);
    expect(said).toEqual([
      "The models differ (both are called small): heads of the same number need not do the same.",
      "14 tokens in A, 1,200 in B: the first 14 can be compared.",
      "A alone has layer 1; B alone has layer 2: only the layers that both have are offered.",
      "This layer has 3 heads in A and 2 in B: the 2 that both have can be chosen.",
    ]);
    const [reads, others] = [call(0, 0, { of: [0, 1], sources: 30 }), call(0, 0, { of: [0, 1], sources: 20 })];
    expect(differences(run("a", [reads]), run("b", [others]), reads, others)).toEqual(["30 tokens that are read in A, 20 in B: the first 20 can be compared."]);
  });

  it("names the first token that differs, over pieces of any size", () => {
    const none = { first: null, count: 0, compared: 0 };
    const [a, b] = [[..."the cat sat on it"], [..."the cot sat in it, too"]];
    const whole = unlike(none, a, b);
    expect(whole).toEqual({ first: { position: 5, a: "a", b: "o" }, count: 2, compared: 17 });
    let parts = unlike(none, [], []);
    for (let at = 0; at < a.length; at += 4) parts = unlike(parts, a.slice(at, at + 4), b.slice(at, at + 4));
    expect(parts).toEqual(whole);
    expect(unlike(none, a, a)).toEqual({ first: null, count: 0, compared: 17 });
  });
});
