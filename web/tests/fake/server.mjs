/**
 * A small server with made-up data, for trying the page without a model: the built page, and the interface's answers
 * computed from a few formulas. The same every time. `node tests/fake/server.mjs [port]`
 */

import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";

const STATIC = fileURLToPath(new URL("../../../src/wherefrom/views/web/static/", import.meta.url));
const TYPES = { ".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".png": "image/png" };
const POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const LAYERS = 12;
const HEADS = 9;
const GAP = 5;
const KINDS = ["sink", "previous", "induction", "duplicate", "itself", "local", "broad", "unknown"];
const WAIT = Number(process.env.FAKE_WAIT ?? 0);

// ---- text -------------------------------------------------------------------------------------------------------

const STORY = `Minutes of the council, the third of May. Mary gave the ledger to John, and John put it in the grey cabinet. The harbour fund stood at 4,120 crowns, of which 800 were promised to the mill. Anna asked who had signed for the mill; nobody knew.

The bridge was discussed next. Tom said that the old bridge would last two winters more, and that the stone for a new one lay ready at the quarry. When Mary and John went to the quarry, they found the stone gone.`;
const STRANGE = [" </", "script", "><", "img", " src", "=x", " onerror", "=", "alert", "(1)", ">", "\n", " مرحبا", " بالعالم", " و", " سلام", "\n", " שלום", " עולם", "\n", "zero", "\u200b", "width", "\u200d", "\u202e", " right", "\n", "中", "文", "字", "符", "的", "注意", "力", "。", "\n", "</script><img src=x onerror=alert(1)>", "\n\n"];

function split(text) {
  return text.match(/\n+| ?[A-Za-z]{1,6}|[0-9]| ?[^\sA-Za-z0-9]|\s/gu) ?? [];
}

function words(most) {
  const own = ["", ...split(STORY), "\n\n"];
  const labels = ["<|start|>", ...own.slice(1)];
  const emoji = ["👩‍👩‍👧", "", "", "🎉", ""];
  const codes = ["👩‍👩‍👧", "0xf0 0x9f", "0x8e", "🎉", "0x89"];
  own.push(...STRANGE, ...emoji, "\n\n");
  labels.push(...STRANGE, ...codes, "\n\n");
  let turn = 0;
  while (own.length < most) {
    const more = split(STORY.replaceAll("Mary", ["Ruth", "Vera", "Nora"][turn % 3]).replaceAll("John", ["Paul", "Emil"][turn % 2]));
    own.push(...more, "\n\n");
    labels.push(...more, "\n\n");
    turn += 1;
  }
  const shown = (label) => label.replaceAll("\n", "\\n").replaceAll("\u200b", "\\u200b").replaceAll("\u200d", "\\u200d").replaceAll("\u202e", "\\u202e");
  return own.slice(0, most).map((text, at) => [shown(labels[at]), text]);
}

// ---- numbers ----------------------------------------------------------------------------------------------------

/** The same number between 0 and 1 for the same integers. */
function chance(...seeds) {
  let state = 2166136261;
  for (const seed of seeds) {
    state = Math.imul(state ^ (seed + 0x9e3779b9), 16777619);
    state ^= state >>> 13;
  }
  return (Math.imul(state, 2246822519) >>> 0) / 4294967296;
}

function recording(key, n, options = {}) {
  const tokens = words(n);
  const last = new Map();
  const before = tokens.map(([label], at) => {
    const found = last.get(label) ?? -1;
    last.set(label, at);
    return found;
  });
  const kind = (call, head) => (head === 8 && call % 3 === 0 ? "unknown" : KINDS[Math.floor(chance(call, head, 7) * 7)]);
  const window = (call) => (call === 3 ? 128 : null);
  const score = (call, head, i, j) => {
    const noise = 1.6 * chance(call, head, i, j);
    const far = i - j;
    switch (kind(call, head)) {
      case "sink": return noise + (j === 0 ? 9 : 0);
      case "previous": return noise + (far === 1 ? 9 : 0) + (j === 0 ? 4 : 0);
      case "induction": return noise + (before[i] >= 0 && j === before[i] + 1 ? 9 : 0) + (j === 0 ? 6.5 : 0);
      case "duplicate": return noise + (before[i] === j ? 9 : 0) + (j === 0 ? 5 : 0);
      case "itself": return noise + (far === 0 ? 9 : 0);
      case "local": return noise + 7 * Math.exp(-far / 6) + (j === 0 ? 3 : 0);
      default: return 2.5 * chance(call, head, j) + noise + (j === 0 ? 2 : 0);
    }
  };
  const allowed = (call, i, j) => j <= i && (window(call) === null || i - j < window(call)) && i !== options.empty;
  /** One call has a sink, which takes a tenth of every row. */
  const sink = (call) => (call === 7 ? 0.1 : 0);
  const rows = new Map();
  const row = (call, head, i) => {
    const name = (call * 64 + head) * n + i;
    let values = rows.get(name);
    if (!values) {
      if (rows.size * n > 4e7) rows.clear();
      values = new Float32Array(n);
      let sum = 0;
      for (let j = 0; j <= i; j += 1) if (allowed(call, i, j)) sum += values[j] = Math.exp(score(call, head, i, j));
      if (sum) for (let j = 0; j <= i; j += 1) values[j] *= (1 - sink(call)) / sum;
      rows.set(name, values);
    }
    return values;
  };
  const moved = (weight, head, j) => weight * (j === 0 ? 0.12 : 0.6 + 2.4 * chance(head, j, 99));
  const calls = Array.from({ length: LAYERS }, (_, layer) => layer).filter((layer) => layer !== GAP).map((layer, index) => ({
    index, layer, name: `model.layers.${layer}.self_attn`, kind: "self", part: "decoder", repeat: 0,
    heads: Array.from({ length: HEADS }, (_, head) => head), all_heads: HEADS, destinations: n, sources: n, of: [0, 0],
    all_rows: true, rows: n, mask: window(index) ? "each reads the last 128 tokens, itself included" : "each reads itself and what came before",
    window: window(index), softcap: null, sinks: sink(index) > 0, bias: false, output: true, kernel: "fused",
    levels: Math.max(1, Math.ceil(Math.log2(n / 256)) + 1), checked: true,
  }));
  return { key, n, tokens, calls, kind, row, sink, allowed, moved, empty: options.empty ?? -1 };
}

/** An encoder and a decoder: the decoder's cross-attention reads another text. */
function translation() {
  const own = recording("translation", 60);
  const encoder = words(210).slice(100);
  const calls = [
    ...own.calls.slice(0, 2).map((call) => ({ ...call, part: "encoder", name: `encoder.layer.${call.layer}.attention`, of: [1, 1], destinations: 110, sources: 110, mask: "each reads all" })),
    ...own.calls.slice(2, 6).map((call, at) => (at % 2 ? { ...call, kind: "cross", name: `decoder.block.${at >> 1}.cross_attention`, of: [0, 1], sources: 110, layer: at >> 1, mask: "each reads all" } : { ...call, name: `decoder.block.${at >> 1}.self_attention`, layer: at >> 1 })),
  ];
  const row = (call, head, i) => {
    const values = Float32Array.from({ length: calls[call].sources }, (_, j) => (calls[call].mask === "each reads all" || j <= i ? Math.exp(6 * chance(call, head, i, j) ** 4) : 0));
    const sum = values.reduce((total, value) => total + value, 0);
    return values.map((value) => value / sum);
  };
  const allowed = (call, i, j) => calls[call].mask === "each reads all" || j <= i;
  return { ...own, n: 110, texts: [own.tokens, encoder], calls, row, allowed };
}

const RUNS = new Map([
  ["translation", translation()],
  ["council-minutes", recording("council-minutes", 734, { empty: 640 })],
  ["a few words", recording("a few words", 42)],
  ["long", recording("long", 6000)],
  ["very long", recording("very long", 32768)],
]);

// ---- answers ----------------------------------------------------------------------------------------------------

class Refused extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

function arrays(facts, named) {
  const header = { __metadata__: { facts: JSON.stringify(facts) } };
  let place = 0;
  const sorted = Object.entries(named).sort(([, a], [, b]) => b.data.BYTES_PER_ELEMENT - a.data.BYTES_PER_ELEMENT);
  for (const [name, { data, shape }] of sorted) {
    const dtype = data instanceof Float32Array ? "F32" : data instanceof Int32Array ? "I32" : "U8";
    header[name] = { dtype, shape, data_offsets: [place, place + data.byteLength] };
    place += data.byteLength;
  }
  let text = Buffer.from(JSON.stringify(header));
  text = Buffer.concat([text, Buffer.alloc((8 - (text.length % 8)) % 8, 32)]);
  const prefix = Buffer.alloc(8);
  prefix.writeUInt32LE(text.length);
  return Buffer.concat([prefix, text, ...sorted.map(([, { data }]) => Buffer.from(data.buffer, data.byteOffset, data.byteLength))]);
}

function run(query) {
  const found = RUNS.get(query.get("run"));
  if (!found) throw new Refused(404, "The recording: expected one that is shown here, given another. Go back to the list of recordings.");
  return found;
}

function number(query, name, below) {
  const value = Number(query.get(name));
  if (!/^\d+$/.test(query.get(name) ?? "") || value >= below) throw new Refused(400, `${name}: expected a number from 0 to ${below - 1}, given ${query.get(name)}.`);
  return value;
}

function someHeads(own, query) {
  const calls = query.get("call") === "all" ? own.calls.map((call) => call.index) : [number(query, "call", own.calls.length)];
  const heads = query.get("head") === "all" ? own.calls[0].heads : [number(query, "head", HEADS)];
  return calls.flatMap((call) => heads.map((head) => [call, head]));
}

function line(own, query, valueAt, permittedAt, name) {
  const chosen = someHeads(own, query);
  const lens = query.get("lens");
  if (lens === "moved" && own.key === "a few words") throw new Refused(400, "What is moved: expected a recording with its output projections, given one without. Record it again with them.");
  const size = own.calls[chosen[0][0]][`${name}s`];
  const values = new Float32Array(size);
  for (let at = 0; at < size; at += 1) {
    let sum = 0;
    for (const [call, head] of chosen) sum += lens === "moved" ? own.moved(valueAt(call, head, at), head, name === "source" ? at : Number(query.get("source"))) : valueAt(call, head, at);
    values[at] = sum / chosen.length;
  }
  const permitted = Uint8Array.from({ length: size }, (_, at) => Number(chosen.some(([call]) => permittedAt(call, at))));
  let best = -1;
  values.forEach((value, at) => { if (permitted[at] && (best < 0 || value > values[best])) best = at; });
  const facts = {
    unit: lens === "moved" ? "length" : "share of 1",
    meaning: lens === "moved" ? `how far the source's value moved the destination's stream, the mean of ${chosen.length} heads` : chosen.length > 1 ? `the weight, the mean of ${chosen.length} heads` : "the weight of this head",
    exact: "exact", sink: name === "source" && own.calls[chosen[0][0]].sinks ? own.sink(chosen[0][0]) : null, empty: best < 0, heads: chosen.length, largest: best < 0 ? null : { at: best, value: values[best] },
  };
  const sinks = name === "destination" && chosen.length === 1 && own.calls[chosen[0][0]].sinks ? { sinks: { data: new Float32Array(size).fill(own.sink(chosen[0][0])), shape: [size] } } : {};
  return arrays(facts, { values: { data: values, shape: [size] }, permitted: { data: permitted, shape: [size] }, ...sinks });
}

function thumbs(own, call) {
  const { destinations, sources } = own.calls[call];
  const b = Math.min(24, own.n);
  const data = new Float32Array(HEADS * b * b).fill(Number.NaN);
  const figures = new Float32Array(HEADS * 4);
  for (let head = 0; head < HEADS; head += 1) {
    // A few rows of each block are enough for made-up thumbnails.
    for (let r = 0; r < b; r += 1) {
      const [from, to] = [Math.floor((r * destinations) / b), Math.floor(((r + 1) * destinations) / b)];
      for (let i = from; i < to; i += Math.max(1, own.n > 8192 ? to - from : (to - from) >> 2)) {
        const values = own.row(call, head, i);
        for (let j = 0; j < sources; j += 1) {
          if (!own.allowed(call, i, j)) continue;
          const at = (head * b + r) * b + Math.min(b - 1, Math.floor((j * b) / sources));
          if (!(data[at] >= values[j])) data[at] = values[j];
        }
      }
    }
    const kind = own.kind(call, head);
    figures.set(kind === "unknown" ? [NaN, NaN, NaN, NaN] : [kind === "sink" ? 0.8 : 0.3 * chance(call, head, 1), kind === "previous" ? 0.9 : 0.1 * chance(call, head, 2), kind === "induction" ? 0.7 : 0.1 * chance(call, head, 3), 1 + 60 * chance(call, head, 4)], head * 4);
  }
  const kinds = own.calls[call].heads.map((head) => own.kind(call, head));
  const facts = {
    heads: own.calls[call].heads, figures: ["first token", "token before", "induction", "mean distance"], kinds,
    why: kinds.map((kind) => (kind === "unknown" ? "none of the named kinds fits" : `its ${kind} share is the largest of its figures`)), blocks: b, whole: true, why_not: null,
  };
  return arrays(facts, { figures: { data: figures, shape: [HEADS, 4] }, thumbs: { data, shape: [HEADS, b, b] } });
}

function tile(own, query) {
  const call = number(query, "call", own.calls.length);
  const head = number(query, "head", HEADS);
  const level = number(query, "level", own.calls[call].levels);
  const block = 2 ** level;
  const { destinations, sources } = own.calls[call];
  const [down, across] = [Math.ceil(destinations / block), Math.ceil(sources / block)];
  const [r0, c0] = [256 * number(query, "row", Math.ceil(down / 256)), 256 * number(query, "column", Math.ceil(across / 256))];
  const [high, wide] = [Math.min(256, down - r0), Math.min(256, across - c0)];
  const values = new Float32Array(high * wide);
  const marks = new Uint8Array(high * wide).fill(1);
  const mean = query.get("of") === "mean";
  for (let r = 0; r < high; r += 1) {
    // Of very long rows a few stand for the block: made-up data may be inexact.
    const every = own.n > 8192 ? block : 1;
    for (let i = (r0 + r) * block; i < Math.min(destinations, (r0 + r + 1) * block); i += every) {
      const row = own.row(call, head, i);
      for (let c = 0; c < wide; c += 1) {
        const at = r * wide + c;
        if (i === own.empty) { if (block === 1) marks[at] = 2; continue; }
        for (let j = (c0 + c) * block; j < Math.min(sources, (c0 + c + 1) * block); j += 1) {
          if (!own.allowed(call, i, j)) continue;
          marks[at] = 0;
          values[at] = mean ? values[at] + row[j] / (block * block) : Math.max(values[at], row[j]);
        }
      }
    }
  }
  const facts = { block, destinations: [r0 * block, Math.min(destinations, (r0 + high) * block)], sources: [c0 * block, Math.min(sources, (c0 + wide) * block)], exact: "exact" };
  return arrays(facts, { values: { data: values, shape: [high, wide] }, marks: { data: marks, shape: [high, wide] } });
}

/**
 * A row worked through. The made-up scores are given, so a key is noise plus as much of the query as makes q . k what
 * the score asks for.
 */
function numbers(own, query) {
  const call = number(query, "call", own.calls.length);
  const head = number(query, "head", HEADS);
  const i = number(query, "destination", own.calls[call].destinations);
  const count = number(query, "sources", 65);
  if (i === own.empty) return { empty: true };
  const [size, scale, lse] = [64, 0.125, 4];
  const share = own.calls[call].sinks ? own.sink(call) : null;
  const weights = own.row(call, head, i);
  const allowed = [...weights.keys()].filter((j) => own.allowed(call, i, j)).sort((a, b) => weights[b] - weights[a]);
  const sources = allowed.slice(0, count);
  const signed = (...seeds) => 2 * chance(...seeds) - 1;
  const q = Float32Array.from({ length: size }, (_, d) => 3 * signed(call, head, i, d));
  const square = q.reduce((sum, x) => sum + x * x, 0);
  const valueOf = (j, d) => signed(call, head, j, d, 5);
  const flat = (at) => Float32Array.from({ length: sources.length * size }, (_, cell) => at(sources[Math.floor(cell / size)], cell % size));
  const scores = Float32Array.from(sources, (j) => Math.log(weights[j]) + lse);
  const k = flat((j, d) => 2 * signed(call, head, j, d, 3));
  const products = scores.map((score, row) => {
    let product = 0;
    for (let d = 0; d < size; d += 1) product += q[d] * k[row * size + d];
    for (let d = 0; d < size; d += 1) k[row * size + d] += ((score / scale - product) * q[d]) / square;
    return score / scale;
  });
  const output = new Float32Array(size);
  for (const j of allowed) for (let d = 0; d < size; d += 1) output[d] += weights[j] * valueOf(j, d);
  const parts = flat((j, d) => weights[j] * valueOf(j, d));
  const rest = output.map((sum, d) => sources.reduce((left, _, row) => left - parts[row * size + d], sum));
  const shown = sources.reduce((sum, j) => sum + weights[j], 0);
  const facts = {
    empty: false, scale, softcap: null, lse, sink: share, sources, rest: { count: allowed.length - sources.length, weight: Math.max(0, 1 - (share ?? 0) - shown) },
    off: { sum: 1.2e-7, output: call % 2 ? 2.4e-7 : null }, exact: "exact",
  };
  const one = (data) => ({ data, shape: [data.length] });
  const many = (data) => ({ data, shape: [sources.length, size] });
  return arrays(facts, { q: one(q), k: many(k), v: many(flat(valueOf)), products: one(products), scores: one(scores), weights: one(Float32Array.from(sources, (j) => weights[j])), parts: many(parts), rest: one(rest), output: one(output) });
}

// ---- measuring --------------------------------------------------------------------------------------------------

/** Made-up work that takes a while: the state follows from the clock. */
const JOBS = new Map();
const STEP_MS = Number(process.env.FAKE_STEP ?? 12);

function question(given) {
  const own = run(given);
  const call = number(given, given.get("call") === "all" ? "like" : "call", own.calls.length);
  const { kind, part, destinations } = own.calls[call];
  if (kind === "cross") throw new Refused(400, "What is measured: expected self-attention, given cross-attention. Choose a call of self-attention.");
  if (part === "encoder") throw new Refused(400, "What is measured: expected a text that predicts, given an encoder's. Choose a call of the decoder.");
  const i = number(given, "destination", destinations);
  const target = given.get("target");
  if (target !== null && split(target).length !== 1) throw new Refused(400, `The target: expected one token, given ${split(target).length}: ${JSON.stringify(target)}. Give one token as it stands in the text, with its leading blank.`);
  const heads = someHeads(own, given);
  return { own, i, target, heads, name: JSON.stringify([own.key, i, target, heads]) };
}

function job(query) {
  const found = JOBS.get(query.get("job"));
  if (!found) throw new Refused(400, "The work: expected some of this server, given none of it. Measure it again.");
  return found;
}

function progress(found) {
  const passed = Date.now() - found.start;
  const sources = found.asked.i + 1;
  const [first, second] = [500, 500 + sources * STEP_MS];
  const of = (state, what = "", done = 0, total = 0, error = null) => ({ job: found.key, state, what, done, total, error, left: passed > first + 1000 && done ? ((passed - first) / 1000 / done) * (total - done) : null });
  if (found.cancelled !== null && passed > found.cancelled + 300) return of("cancelled");
  if (passed < first) return of("waiting");
  if (found.asked.target === " fail" && passed > first + 1000) return of("failed", "", 0, 0, "The model: expected 4.2 GB of free memory, given 1.1 GB. Close something, or choose a shorter text.");
  if (passed < second) return of("running", "cutting each source", Math.floor((passed - first) / STEP_MS), sources);
  if (passed < second + 800) return of("running", "cutting each head alone", Math.floor((3 * LAYERS * HEADS * (passed - second)) / 800), 3 * LAYERS * HEADS);
  return of("done", "", sources, sources);
}

const over = (found) => ["cancelled", "failed"].includes(progress(found).state);

function targetOf(own, i, target) {
  const [label, probability] = ANSWERS.tokens(new URLSearchParams({ run: own.key, text: "0", start: String(i), count: "1" })).predicted[0]?.[1][0] ?? [" it", 0.4231];
  const share = target === null ? probability : 0.0123;
  return { label: target ?? label, probability: share, nats: Math.log(share) };
}

function measured(query) {
  const asked = question(query);
  const last = [...JOBS.values()].findLast((one) => one.asked.name === asked.name && one.cancelled === null);
  const going = last ? progress(last) : null;
  const found = going?.state === "done";
  const why = asked.own.key === "very long" ? "measuring: expected the model that made the recording, Made-up 12-layer, with the same weights, given Another. Start the explorer with --model and that model's folder." : null;
  if (!found) return { measured: false, possible: why === null, why, job: going };
  const { own, i, heads } = asked;
  const seed = [...(asked.target ?? "")].reduce((sum, sign) => sum + sign.codePointAt(0), 0);
  const sources = own.calls[heads[0][0]].sources;
  const [knockout, attribution] = [new Float32Array(sources).fill(NaN), new Float32Array(sources).fill(NaN)];
  const share = heads.length / (LAYERS * HEADS);
  for (let j = 0; j <= i; j += 1) {
    if (!own.allowed(heads[0][0], i, j)) continue;
    const worth = chance(i, j, 31, seed);
    knockout[j] = j === 0 ? -0.06 : (worth > 0.98 ? 3.1 * chance(j, 2, seed) : worth < 0.03 ? -0.5 * chance(j, 3, seed) : 0.02 * (worth - 0.5) ** 3) * Math.min(1, 4 * share + 0.1);
    attribution[j] = knockout[j] * (0.4 + 0.9 * chance(j, 4)) + 0.03 * (chance(j, 5) - 0.5);
  }
  const unpriced = own.key === "a few words" ? "The estimate needs a backward pass, which a model of whole numbers does not have." : null;
  if (unpriced) attribution.fill(NaN);
  const strongest = [...knockout.keys()].filter((j) => Math.abs(knockout[j]) >= 0.05).sort((a, b) => Math.abs(knockout[b]) - Math.abs(knockout[a])).slice(0, 3);
  const carried = strongest.map((source) => {
    const each = heads.slice(0, 60).map(([call, head]) => ({ layer: own.calls[call].layer, head, nats: knockout[source] * 0.4 * chance(call, head, source, 8) ** 3, weight: own.row(call, head, i)[source] })).sort((a, b) => Math.abs(b.nats) - Math.abs(a.nats));
    const others = each.slice(4);
    return { source, heads: each.slice(0, 4), others: heads.length - Math.min(4, each.length), others_nats: others.reduce((sum, { nats }) => sum + nats, 0) };
  });
  const facts = {
    measured: true, destination: i, target: { id: 4 + seed, ...targetOf(own, i, asked.target) },
    scope: heads.length > 1 ? `${heads.length} heads` : `layer ${own.calls[heads[0][0]].layer}, head ${heads[0][1]}`, noise: 0.0004,
    exact: { knockout: "measured: the model was run again for each source, this position alone", attribution: "estimate: first order, from one backward pass" },
    why_no_attribution: unpriced, seconds: { attribution: unpriced ? 0 : 0.81, knockout: (sources * STEP_MS) / 1000, heads: 0.8 }, carried,
  };
  return arrays(facts, { knockout: { data: knockout, shape: [sources] }, attribution: { data: attribution, shape: [sources] } });
}

const CHANGES = {
  "POST jobs": (_, body) => {
    const given = new URLSearchParams(Object.entries(body).filter(([, value]) => value !== null).map(([name, value]) => [name, String(value)]));
    const asked = question(given);
    const known = [...JOBS.values()].find((one) => one.asked.name === asked.name && !over(one) && one.cancelled === null);
    if (known) return { job: known.key };
    const key = `work${JOBS.size + 1}`;
    JOBS.set(key, { key, asked, start: Date.now(), cancelled: null });
    return { job: key };
  },
  "DELETE job": (query) => {
    const found = job(query);
    if (progress(found).state !== "done") found.cancelled ??= Date.now() - found.start;
    return progress(found);
  },
};

async function bodyOf(request) {
  let text = "";
  for await (const piece of request) text += piece;
  return text ? JSON.parse(text) : {};
}

const ANSWERS = {
  job: (query) => progress(job(query)),
  measured: (query) => measured(query),
  runs: () => ({ runs: [...[...RUNS.values()].map((own) => ({ key: own.key, model: "Made-up 12-layer", tokens: own.n, calls: own.calls.length, bytes: own.n * 91000 })), { key: "torn", error: "The recording torn: expected a manifest that names every array, given one cut off at byte 812. Record it again." }] }),
  run: (query) => {
    const own = run(query);
    return {
      key: own.key,
      model: { name: "Made-up 12-layer", fingerprint: "c0ffee", layers: LAYERS, heads: HEADS, kv_heads: 3, head_size: 64, context: 8192, kind: "decoder" },
      texts: (own.texts ?? [own.tokens]).map((tokens) => ({ tokens: tokens.length, numbered: false })), calls: own.calls,
      layers: own.texts ? ["encoder", "decoder"].flatMap((part) => [0, 1].map((layer) => ({ part, layer, call: own.calls.filter((call) => call.layer === layer && call.part === part).map((call) => call.index), gap: null }))) : Array.from({ length: LAYERS }, (_, layer) => ({ part: "decoder", layer, call: own.calls.filter((call) => call.layer === layer).map((call) => call.index), gap: layer === GAP ? "This layer mixes tokens by a convolution; it has no attention." : null })),
      gaps: ["Layer 5 mixes tokens by a convolution; it has no attention."], written_from: own.texts ? null : own.n - 20, seconds: 3.2, predictions: own.n, checks: `${own.calls.length} of ${own.calls.length} calls`,
      stored: null, default: own.texts ? { call: 3, destination: 40 } : { call: 8, destination: own.n - 1 },
    };
  },
  tokens: (query) => {
    const own = run(query);
    const tokens = (own.texts ?? [own.tokens])[Number(query.get("text"))];
    const start = number(query, "start", tokens.length);
    const stop = Math.min(tokens.length, start + number(query, "count", 4097));
    const predicted = [];
    for (let at = start; at < stop; at += 1) {
      if (at % 97 === 13 || query.get("text") !== "0") continue;
      const next = tokens[at + 1]?.[0];
      const sure = 0.2 + 0.7 * chance(at, 5);
      const others = [" the", " a", " of", ".", " and"].filter((label) => label !== next).slice(0, 4);
      const best = next !== undefined && chance(at, 6) < 0.6 ? [[next, sure], ...others.map((label, place) => [label, (1 - sure) / (2 << place)])] : [" it", ...others].map((label, place) => [label, sure / (1 << place) / 2]);
      predicted.push([at, best, next === undefined ? null : (best.find(([label]) => label === next)?.[1] ?? 0.0042 * chance(at, 8))]);
    }
    return { start, tokens: tokens.slice(start, stop), predicted };
  },
  find: (query) => {
    const own = run(query);
    const places = [];
    const sought = (query.get("query") ?? "").toLowerCase();
    let text = "";
    const from = own.tokens.map(([, part]) => { const at = text.length; text += part.toLowerCase(); return at; });
    for (let at = text.indexOf(sought); sought && at >= 0 && places.length < 1000; at = text.indexOf(sought, at + 1)) {
      const first = from.findLastIndex((place) => place <= at);
      places.push([first, from.findLastIndex((place) => place < at + sought.length) + 1]);
    }
    return { places, more: false };
  },
  units: (query) => {
    const own = run(query);
    const by = query.get("by");
    let unit = 0;
    const owners = Int32Array.from(own.tokens.map(([, text], at) => {
      if (at && (by === "word" ? /^\s|^[^A-Za-z]/.test(text) : by === "sentence" ? /[.!?\n]$/.test(own.tokens[at - 1][1]) : /\n/.test(own.tokens[at - 1][1]))) unit += 1;
      return text.trim() ? unit : -1;
    }));
    return arrays({}, { owners: { data: owners, shape: [own.n] } });
  },
  heads: (query) => { const own = run(query); return thumbs(own, number(query, "call", own.calls.length)); },
  row: (query) => { const own = run(query); const i = number(query, "destination", own.n); return line(own, query, (call, head, j) => own.row(call, head, i)[j], (call, j) => own.allowed(call, i, j), "source"); },
  column: (query) => { const own = run(query); const j = number(query, "source", own.n); return line(own, query, (call, head, i) => own.row(call, head, i)[j], (call, i) => own.allowed(call, i, j), "destination"); },
  tile: (query) => tile(run(query), query),
  numbers: (query) => numbers(run(query), query),
  pair: (query) => {
    const own = run(query);
    const [call, head, i, j] = [number(query, "call", own.calls.length), number(query, "head", HEADS), number(query, "destination", own.n), number(query, "source", own.n)];
    const permitted = own.allowed(call, i, j);
    const weight = permitted ? own.row(call, head, i)[j] : null;
    return { weight, score: permitted ? Math.log(weight) + 4 : null, permitted, mark: i === own.empty ? 2 : permitted ? 0 : 1, moved: permitted ? own.moved(weight, head, j) : null };
  },
};

createServer(async (request, response) => {
  const address = new URL(request.url ?? "/", "http://localhost");
  const send = (status, type, body) => response.writeHead(status, { "content-type": type, "content-security-policy": POLICY, "x-content-type-options": "nosniff" }).end(body);
  try {
    if (address.pathname.startsWith("/api/")) {
      if (WAIT) await new Promise((resolve) => setTimeout(resolve, WAIT));
      const name = address.pathname.slice(5);
      const answer = request.method === "GET" ? ANSWERS[name] : CHANGES[`${request.method} ${name}`];
      if (!answer) throw new Refused(404, "There is nothing at this address.");
      const found = answer(address.searchParams, request.method === "POST" ? await bodyOf(request) : null);
      if (Buffer.isBuffer(found)) send(200, "application/octet-stream", found);
      else send(200, "application/json", JSON.stringify(found));
      return;
    }
    const path = address.pathname === "/" ? "index.html" : normalize(decodeURIComponent(address.pathname)).replace(/^(\.\.[/\\])+/, "");
    send(200, TYPES[extname(path)] ?? "application/octet-stream", await readFile(join(STATIC, path)));
  } catch (error) {
    const [status, sentence] = error instanceof Refused ? [error.status, error.message] : [error?.code === "ENOENT" ? 404 : 500, "There is nothing at this address."];
    if (status === 500) console.error(error);
    send(status, "application/json", JSON.stringify({ error: sentence }));
  }
}).listen(Number(process.argv[2] ?? 8931), "127.0.0.1");
