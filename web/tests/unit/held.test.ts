import { gzipSync } from "node:zlib";

import { describe, expect, it } from "vitest";

import { placesOf } from "../../src/lib/find";
import { Api, ApiError } from "../../src/state/api";
import { type About, Held } from "../../src/state/held";
import type { Pair } from "../../src/wire/api";
import { floats } from "../../src/wire/message";

const ABOUT: About = {
  run: "a <b> & 中文",
  carries: "",
  leavesOut: "",
  alike: [0, 0, 2],
  layers: [0, 7, 7],
  spans: [[[0, 2], [2, 3], [2, 3], [3, 5]]],
  first: { call: 1, head: 3, destination: 1 },
  noModel: "A file cannot run a model.",
};
const never = new AbortController().signal;

/** A message with arrays, as the server packs one. */
function arrays(facts: unknown, of: Record<string, Float32Array | Uint8Array>): Buffer {
  let end = 0;
  const header: Record<string, unknown> = { __metadata__: { facts: JSON.stringify(facts) } };
  for (const [name, data] of Object.entries(of)) {
    const dtype = data instanceof Float32Array ? "F32" : "U8";
    header[name] = { dtype, shape: name === "row" ? [data.length] : [2, data.length / 2], data_offsets: [end, end + data.byteLength] };
    end += data.byteLength;
  }
  let head = Buffer.from(JSON.stringify(header));
  head = Buffer.concat([head, Buffer.alloc((8 - (head.length % 8)) % 8, " ")]);
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(head.length));
  return Buffer.concat([length, head, ...Object.values(of).map((data) => Buffer.from(data.buffer))]);
}

type Given = readonly [key: string, kind: "json" | "arrays" | "refused", body: Buffer | object];

function packed(answers: readonly Given[]): string {
  let end = 0;
  const bodies = answers.map(([, , body]) => (Buffer.isBuffer(body) ? body : Buffer.from(JSON.stringify(body))));
  const index = Buffer.from(JSON.stringify(answers.map(([key, kind], at) => [key, kind, end, (end += bodies[at]?.length ?? 0)])));
  const length = Buffer.alloc(4);
  length.writeUInt32LE(index.length);
  return gzipSync(Buffer.concat([length, index, ...bodies])).toString("base64");
}

const tile = arrays({ block: 1 }, { values: new Float32Array([1, Number.NaN, 0.25, 0.75]), marks: new Uint8Array([0, 1, 0, 0]) });
const exact = 0.1;
const BLOCKS: Record<string, string> = {
  runs: packed([["runs?", "json", { runs: [{ key: ABOUT.run }] }]]),
  tokens: packed([["tokens?count=256&start=0&text=0", "json", { start: 0, tokens: [["Aé", "Aé"], ["1/2", "🙂"], ["2/2", ""], ["aé", "aé"]], predicted: [] }]]),
  "row all all 0 weight": packed([["row?call=all&destination=1&head=all&lens=weight&like=0", "json", { heads: 9 }]]),
  "row 1 all weight": packed([["row?call=1&destination=1&head=all&lens=weight", "refused", { error: "Not kept." }]]),
  "row 1 3 weight": packed([["row?call=1&destination=1&head=3&lens=weight", "json", { heads: 1 }]]),
  "tile 1 3": packed([["tile?call=1&column=0&head=3&level=0&of=largest&row=0", "arrays", tile]]),
  "row 2 3 weight": packed([["row?call=2&destination=1&head=3&lens=weight", "arrays", arrays({}, { values: new Float32Array([exact, 0.9]) })]]),
  "behind 2 3": packed([["behind?call=2&destination=1&head=3", "arrays", arrays({}, { values: new Float32Array([exact - Math.fround(exact), 0]) })]]),
  "tile 2 3": packed([["tile?call=2&column=0&head=3&level=0&of=largest&row=0", "arrays", tile]]),
  "numbers 1 3": packed([["numbers?call=1&destination=1&head=3&sources=8", "arrays", arrays({ empty: false, lse: 2 }, {})]]),
};

const held = new Held(ABOUT, (name) => BLOCKS[name] ?? null);
const api = new Api(held.ask);
const run = ABOUT.run;
const refusal = async (name: string, query: Record<string, string | number>): Promise<string> => {
  const error: unknown = await api.get(name, { run, ...query }, never).catch((thrown: unknown) => thrown);
  expect(error).toBeInstanceOf(ApiError);
  return (error as ApiError).message;
};

describe("Held", () => {
  it("gives what the file carries, whatever else stands in the address", async () => {
    expect((await api.get("runs", { at: 17 }, never)).facts).toEqual({ runs: [{ key: run }] });
    expect((await api.get("row", { run, call: 1, head: 3, destination: 1, lens: "weight" }, never)).facts).toEqual({ heads: 1 });
  });

  it("takes all of a kind together for one question, whichever of them it is asked by", async () => {
    const whole = { run, head: "all", destination: 1, lens: "weight", call: "all" };
    expect((await api.get("row", { ...whole, like: 1 }, never)).facts).toEqual({ heads: 9 });
    await expect(api.get("row", { ...whole, like: 2 }, never)).rejects.toThrow(ApiError);
    // One head of all layers is another question, and is not answered by all heads.
    expect(await refusal("row", { ...whole, head: 3, like: 1 })).toContain("does not carry head 3 of all layers together");
  });

  it("gives arrays as the server packed them", async () => {
    const message = await api.get("tile", { run, call: 1, head: 3, level: 0, row: 0, column: 0, of: "largest" }, never);
    expect([...floats(message, "values")]).toEqual([1, Number.NaN, 0.25, 0.75]);
  });

  it("says a refusal as the server would", async () => {
    expect(await refusal("row", { call: 1, head: "all", destination: 1, lens: "weight" })).toBe("Not kept.");
  });

  it("says what it does not carry and how to have it", async () => {
    const way = (option: string): string => `Ask whoever made this file for one with it (wherefrom export ... ${option}), or open the recording with wherefrom explore.`;
    const row = { destination: 1, lens: "weight" };
    expect(await refusal("row", { ...row, call: 2, head: 4 })).toBe(`This page does not carry head 4 of layer 7. ${way("--head 7.4")}`);
    expect(await refusal("tile", { call: 1, head: 5, level: 0, row: 0, column: 0, of: "mean" })).toContain("head 5 of layer 7");
    expect(await refusal("pair", { call: 1, head: 5, destination: 0, source: 0 })).toContain("head 5 of layer 7");
    expect(await refusal("numbers", { call: 1, head: 5, destination: 1, sources: 8 })).toContain("head 5 of layer 7");
    expect(await refusal("row", { ...row, call: 1, head: 3, lens: "moved" })).toBe(`This page does not carry what is moved. ${way("--moved")}`);
    expect(await refusal("row", { ...row, call: 1, head: 3, destination: 2 })).toBe(`This page does not carry position 2. ${way("--positions ...")}`);
    expect(await refusal("row", { ...row, call: 2, head: "all" })).toBe(`This page does not carry the rows of layer 7. ${way("--layers 7")}`);
    expect(await refusal("numbers", { call: 1, head: 3, destination: 1, sources: 16 })).toContain("with 8 sources one by one");
    expect(await refusal("run", { run: "another" })).toBe(`This page carries one recording, ${run}.`);
    expect(await refusal("jobs", {})).toBe(ABOUT.noModel);
    expect((await api.get("measured", { run }, never)).facts).toEqual({ measured: false, possible: false, why: ABOUT.noModel, job: null, busy: null });
  });

  it("knows the heads that it carries", () => expect([[1, 3], [2, 3], [1, 5], [0, 3]].map(([call = 0, head = 0]) => held.carries(call, head))).toEqual([true, true, false, false]));

  it("works one weight out of the finest tile and the row's log-sum-exp", async () => {
    const pair = async (destination: number, source: number): Promise<unknown> =>
      (await api.get("pair", { run, call: 1, head: 3, destination, source }, never)).facts;
    expect(await pair(1, 0)).toEqual({ weight: 0.25, score: Math.log(0.25) + 2, moved: null, mark: 0 });
    expect(await pair(0, 1)).toEqual({ weight: 0, score: null, moved: 0, mark: 1 });
    expect(await pair(0, 0)).toEqual({ weight: 1, score: null, moved: null, mark: 0 });
  });

  it("has more of a weight than its 24 bits where the row is held", async () => {
    const { facts } = await api.get<Pair>("pair", { run, call: 2, head: 3, destination: 1, source: 0 }, never);
    expect(facts.weight).not.toBe(Math.fround(exact));
    expect(facts.weight).toBeCloseTo(exact, 14);
  });

  it("says that it is broken where it is", async () => {
    const broken = new Api(new Held(ABOUT, () => "AAAA").ask);
    await expect(broken.get("runs", {}, never)).rejects.toThrow("What this page carries could not be read");
  });

  it("finds text in its tokens", async () => {
    const find = async (query: string): Promise<unknown> => (await api.get("find", { run, text: 0, query }, never)).facts;
    expect(await find("aÉ")).toEqual({ places: [[0, 1], [3, 4]], more: false });
    expect(await find("🙂")).toEqual({ places: [[1, 3]], more: false });
    expect(await find("é🙂a")).toEqual({ places: [[0, 4]], more: false });
    expect(await find("b")).toEqual({ places: [], more: false });
  });
});

describe("placesOf", () => {
  it("stops at a thousand", () => {
    const spans = Array.from({ length: 1500 }, (_, at) => [at, at + 1] as const);
    const found = placesOf("a".repeat(1500), spans, "A");
    expect([found.places.length, found.more, found.places[999]]).toEqual([1000, true, [999, 1000]]);
  });

  it("looks for nothing where there is only what Unicode calls white space, as the server has it", () => {
    const found = (query: string): number => placesOf(query, [...query].map((_, at) => [at, at + 1]), query).places.length;
    expect(["", " \n", "\u0085", "\u3000"].map(found)).toEqual([0, 0, 0, 0]);
    expect(["\x1c", "\x1f ", "\ufeff", "\u200b"].map(found)).toEqual([1, 1, 1, 1]);
  });

  it("takes small and capital letters for the same, whatever many they are", () => {
    const found = (text: string, query: string): [number, number][] => placesOf(text, [...text].map((_, at) => [at, at + 1]), query).places;
    expect(found("İı", "I")).toEqual([[0, 1], [1, 2]]);
    expect(found("x İSTANBUL", "istanbul")).toEqual([[2, 10]]);
    expect(found("die Straße", "STRASSE")).toEqual([[4, 10]]);
    expect(found("Ὀδυσσεύς", "ΕΎΣ")).toEqual([[5, 8]]);
    expect(found("\u{1F642} a", "A")).toEqual([[2, 3]]);
  });
});
