/**
 * What the server sends (floor wire): facts as JSON, arrays as bytes.
 *
 * A message with arrays is a safetensors file whose metadata holds the facts. The arrays are views of the
 * received bytes: nothing is copied, no number was ever text.
 */

export type Numbers = Float32Array | Int32Array | Uint8Array;

export interface Tensor {
  readonly shape: readonly number[];
  readonly data: Numbers;
}

export interface Message<Facts> {
  readonly facts: Facts;
  readonly arrays: Readonly<Record<string, Tensor>>;
  /** What it holds in memory, for a cache that is bounded by bytes. */
  readonly bytes: number;
}

/** The bytes are not what they should be; the sentence says in what. */
export class WireError extends Error {
  override readonly name = "WireError";
}

const SIZES = { F32: 4, I32: 4, U8: 1 } as const;
const PREFIX = 8;

/** Decode a safetensors message. Every offset is checked: a broken answer is an error, never a strange picture. */
export function decode<Facts>(buffer: ArrayBuffer): Message<Facts> {
  if (buffer.byteLength < PREFIX) throw new WireError("The answer is too short to be one.");
  const view = new DataView(buffer);
  const length = view.getUint32(0, true);
  if (view.getUint32(4, true) !== 0 || PREFIX + length > buffer.byteLength) {
    throw new WireError("The answer's header is longer than the answer.");
  }
  const header = record(parse(new TextDecoder().decode(new Uint8Array(buffer, PREFIX, length))));
  const start = PREFIX + length;
  const arrays: Record<string, Tensor> = Object.create(null) as Record<string, Tensor>;
  let facts: unknown = {};
  for (const [name, entry] of Object.entries(header)) {
    if (name === "__metadata__") {
      const text = record(entry)["facts"];
      if (typeof text === "string") facts = parse(text);
    } else {
      arrays[name] = tensor(name, record(entry), buffer, start);
    }
  }
  return { facts: facts as Facts, arrays, bytes: buffer.byteLength };
}

/** An array that must be there, as float32. */
export function floats(message: Message<unknown>, name: string): Float32Array {
  const data = message.arrays[name]?.data;
  if (!(data instanceof Float32Array)) throw new WireError(`The answer lacks the numbers called ${name}.`);
  return data;
}

/** An array that must be there, as bytes. */
export function bytes(message: Message<unknown>, name: string): Uint8Array {
  const data = message.arrays[name]?.data;
  if (!(data instanceof Uint8Array)) throw new WireError(`The answer lacks the marks called ${name}.`);
  return data;
}

/** An array that must be there, as int32. */
export function integers(message: Message<unknown>, name: string): Int32Array {
  const data = message.arrays[name]?.data;
  if (!(data instanceof Int32Array)) throw new WireError(`The answer lacks the numbers called ${name}.`);
  return data;
}

function tensor(name: string, entry: Record<string, unknown>, buffer: ArrayBuffer, start: number): Tensor {
  const { dtype, shape, data_offsets: offsets } = entry;
  if (dtype !== "F32" && dtype !== "I32" && dtype !== "U8") throw new WireError(`The array ${name} has an unknown type.`);
  if (!counts(shape) || !counts(offsets) || offsets.length !== 2) {
    throw new WireError(`The array ${name} has no shape or no place.`);
  }
  const count = shape.reduce((product, size) => product * size, 1);
  const [begin = 0, end = 0] = offsets;
  const from = start + begin;
  if (end - begin !== count * SIZES[dtype] || start + end > buffer.byteLength) {
    throw new WireError(`The array ${name} is not as long as its shape says.`);
  }
  if (from % SIZES[dtype] !== 0) throw new WireError(`The array ${name} is not aligned.`);
  const data =
    dtype === "F32"
      ? new Float32Array(buffer, from, count)
      : dtype === "I32"
        ? new Int32Array(buffer, from, count)
        : new Uint8Array(buffer, from, count);
  return { shape, data };
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw new WireError("The answer's header is not JSON.");
  }
}

function record(value: unknown): Record<string, unknown> {
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new WireError("The answer's header is not a table.");
  }
  return value as Record<string, unknown>;
}

function counts(value: unknown): value is number[] {
  return Array.isArray(value) && value.every((one) => Number.isSafeInteger(one) && (one as number) >= 0);
}
