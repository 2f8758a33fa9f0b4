import { describe, expect, it } from "vitest";

import { bytes, decode, floats, integers, WireError } from "../../src/wire/message";

/** A safetensors file, as the server makes it. */
function packed(header: unknown, body: Uint8Array, cut = 0): ArrayBuffer {
  let text = JSON.stringify(header);
  text += " ".repeat((8 - (text.length % 8)) % 8);
  const out = new Uint8Array(8 + text.length + body.length);
  new DataView(out.buffer).setUint32(0, text.length, true);
  out.set(new TextEncoder().encode(text), 8);
  out.set(body, 8 + text.length);
  return out.buffer.slice(0, out.length - cut);
}

const values = new Uint8Array(new Float32Array([0.5, Number.NaN, 2]).buffer);

describe("decode", () => {
  it("gives the facts and the arrays, as views of what was received", () => {
    const body = new Uint8Array(20);
    body.set(values);
    body.set(new Uint8Array(new Int32Array([-1]).buffer), 12);
    body.set([7, 0, 1, 2], 16);
    const header = {
      __metadata__: { facts: JSON.stringify({ unit: "share of 1", name: "</script>" }) },
      values: { dtype: "F32", shape: [3], data_offsets: [0, 12] },
      owners: { dtype: "I32", shape: [1], data_offsets: [12, 16] },
      marks: { dtype: "U8", shape: [2, 2], data_offsets: [16, 20] },
    };
    const buffer = packed(header, body);
    const message = decode<{ unit: string; name: string }>(buffer);
    expect(message.facts).toEqual({ unit: "share of 1", name: "</script>" });
    expect([...floats(message, "values")]).toEqual([0.5, Number.NaN, 2]);
    expect([...integers(message, "owners")]).toEqual([-1]);
    expect([...bytes(message, "marks")]).toEqual([7, 0, 1, 2]);
    expect(message.arrays["marks"]?.shape).toEqual([2, 2]);
    expect(floats(message, "values").buffer).toBe(buffer);
    expect(message.bytes).toBe(buffer.byteLength);
  });

  it("takes an array of nothing", () => {
    const message = decode(packed({ values: { dtype: "F32", shape: [0, 4], data_offsets: [0, 0] } }, new Uint8Array()));
    expect(floats(message, "values")).toHaveLength(0);
  });

  const good = { dtype: "F32", shape: [3], data_offsets: [0, 12] };
  it.each([
    ["cut off", { values: good }, 4],
    ["an unknown type", { values: { ...good, dtype: "F64" } }, 0],
    ["a shape that is longer", { values: { ...good, shape: [4] } }, 0],
    ["a shape that is none", { values: { ...good, shape: [-3] } }, 0],
    ["offsets outside", { values: { ...good, data_offsets: [4, 16] } }, 0],
    ["not aligned", { values: { dtype: "F32", shape: [1], data_offsets: [2, 6] } }, 0],
    ["no table", [], 0],
  ])("refuses %s", (_name, header, cut) => {
    expect(() => decode(packed(header, values, cut))).toThrow(WireError);
  });

  it("refuses what is too short, and a header longer than the file", () => {
    expect(() => decode(new ArrayBuffer(4))).toThrow(WireError);
    const long = new ArrayBuffer(16);
    new DataView(long).setUint32(0, 1e6, true);
    expect(() => decode(long)).toThrow(WireError);
  });

  it("says which array is missing", () => {
    const message = decode(packed({ values: good }, values));
    expect(() => bytes(message, "marks")).toThrow("marks");
    expect(() => floats(message, "toString")).toThrow(WireError);
  });
});
