/**
 * The explorer's state against a slow and obvious twin: random commands, answers that come late, out of order or not at
 * all. The twin knows what is chosen, what each entry of the history holds, what was answered and what is kept; it asks
 * nothing and caches nothing.
 */

import { flushSync } from "svelte";
import { afterAll, beforeAll, expect, it, vi } from "vitest";

import { Api, type Query } from "../../src/state/api";
import type { Asked } from "../../src/state/asked.svelte";
import { askUnlike } from "../../src/state/beside.svelte";
import { askEdges, askOwners, askResting } from "../../src/state/edges.svelte";
import { Explorer } from "../../src/state/explorer.svelte";
import { askPair } from "../../src/state/pair.svelte";
import { format, parse } from "../../src/state/address";
import { GROUPS, LENSES, SCALES, type Selection, SIDES, START } from "../../src/state/selection";
import { windowOf } from "../../src/lib/window";
import { askWorked } from "../../src/state/worked.svelte";
import type { Call, Run } from "../../src/wire/api";
import type { Message } from "../../src/wire/message";
import { type Dice, dice } from "./dice";

/** A thousand sequences, in parts. */
const PARTS = 10;
const SEQUENCES = 100;
const COMMANDS = 24;
/** Room for some ten answers: enough to be useful, too little for all. */
const BOUND = 14_000;
const TICK_MS = 250;

// ---- what there is ------------------------------------------------------------------------------------------------

function call(index: number, layer: number, heads: readonly number[], tokens: number): Call {
  return {
    index, layer, heads, name: `${layer}`, kind: "self", part: "decoder", repeat: 0, all_heads: 3, destinations: tokens, sources: tokens, of: [0, 0],
    all_rows: true, rows: tokens, mask: "", window: null, softcap: null, sinks: false, bias: false, output: true, kernel: "", levels: 1, checked: true,
  };
}

function recording(key: string, tokens: number, calls: readonly Call[]): Run {
  return {
    key, calls, model: { name: "m", fingerprint: "m", layers: 3, heads: 3, kv_heads: 1, head_size: 2, context: 9, kind: "decoder" }, texts: [{ tokens, numbered: false }],
    layers: [], gaps: [], written_from: null, seconds: 1, predictions: 0, checks: "", stored: null, default: { call: 1, destination: tokens - 1 },
  };
}

const RUNS: Readonly<Record<string, Run>> = {
  a: recording("a", 9, [call(0, 0, [0, 1, 2], 9), call(1, 1, [0, 1, 2], 9), call(2, 2, [0, 1, 2], 9)]),
  b: recording("b", 12, [call(0, 0, [0, 2], 12), call(1, 2, [1, 2], 12)]),
  apart: recording("apart", 4, [call(0, 7, [0], 4)]),
};
const KEYS = [...Object.keys(RUNS), "torn"];
const TORN = "The recording torn: expected all of its bytes, given half.";
const FAILED = "The explorer failed at this.";

/** A number that an address has to itself, for arrays that have no words. */
function numberOf(address: string): number {
  return [...address].reduce((sum, sign) => (Math.imul(sum, 31) + sign.charCodeAt(0)) & 0xffff, 7);
}

/** The right answer to an address; it says itself what it answers. */
function answerTo(address: string): { readonly facts: object; readonly arrays: Record<string, Float32Array | Int32Array | Uint8Array> } {
  const { pathname, searchParams: words } = new URL(address, "http://local/");
  const at = { at: address };
  const run = RUNS[words.get("run") ?? ""];
  const tokens = run?.texts[0]?.tokens ?? 0;
  switch (pathname) {
    case "/api/run":
      return { facts: { ...run, ...at }, arrays: {} };
    case "/api/tokens":
      return { facts: { ...at, start: 0, tokens: Array.from({ length: tokens }, (_, position) => [`${run?.key} ${position}`, "x"]), predicted: [] }, arrays: {} };
    case "/api/units":
      return { facts: at, arrays: { owners: new Int32Array(tokens).fill(numberOf(address)) } };
    case "/api/pair":
      return { facts: { ...at, weight: 0.5, score: 0, permitted: true, mark: 0, moved: null }, arrays: {} };
    case "/api/numbers":
      return { facts: { ...at, empty: true }, arrays: {} };
    default:
      return { facts: { ...at, empty: false }, arrays: { values: new Float32Array(tokens).fill(numberOf(address)), permitted: new Uint8Array(tokens).fill(1) } };
  }
}

function packed({ facts, arrays }: ReturnType<typeof answerTo>): ArrayBuffer {
  const header: Record<string, unknown> = { __metadata__: { facts: JSON.stringify(facts) } };
  let place = 0;
  for (const [name, data] of Object.entries(arrays)) {
    header[name] = { dtype: data instanceof Float32Array ? "F32" : data instanceof Int32Array ? "I32" : "U8", shape: [data.length], data_offsets: [place, place + data.byteLength] };
    place += data.byteLength;
  }
  let text = JSON.stringify(header);
  text += " ".repeat((8 - (text.length % 8)) % 8);
  const out = new Uint8Array(8 + text.length + place);
  new DataView(out.buffer).setUint32(0, text.length, true);
  out.set(new TextEncoder().encode(text), 8);
  let from = 8 + text.length;
  for (const data of Object.values(arrays)) {
    out.set(new Uint8Array(data.buffer), from);
    from += data.byteLength;
  }
  return out.buffer;
}

const costs = new Map<string, number>();

/** What an answer costs that is kept. */
function costOf(address: string): number {
  let cost = costs.get(address);
  if (cost === undefined) {
    const answer = answerTo(address);
    cost = 512 + (Object.keys(answer.arrays).length ? packed(answer).byteLength : 4 * JSON.stringify(answer.facts).length);
    costs.set(address, cost);
  }
  return cost;
}

// ---- the world around the page ------------------------------------------------------------------------------------

/** A server whose answers are given by hand, in any order. */
class Server {
  readonly open: { readonly address: string; readonly give: (what: "right" | "failed" | "nothing") => void }[] = [];

  readonly ask: typeof fetch = (input, init) =>
    new Promise((resolve, reject) => {
      const address = String(input);
      const close = (): void => void this.open.splice(this.open.indexOf(one), 1);
      const one = {
        address,
        give: (what: "right" | "failed" | "nothing"): void => {
          close();
          if (what === "nothing") reject(new TypeError("fetch failed"));
          else if (what === "failed" || address === "api/run?run=torn") resolve(reply(address === "api/run?run=torn" ? 422 : 500, { error: address === "api/run?run=torn" ? TORN : FAILED }));
          else {
            const answer = answerTo(address);
            resolve(Object.keys(answer.arrays).length ? reply(200, packed(answer)) : reply(200, answer.facts));
          }
        },
      };
      this.open.push(one);
      init?.signal?.addEventListener("abort", () => {
        if (this.open.includes(one)) close();
        reject(init.signal?.reason);
      });
    });
}

/** As much of a response as is looked at; it takes no turn of the clock to read. */
function reply(status: number, body: object): Response {
  const kind = body instanceof ArrayBuffer ? "application/octet-stream" : "application/json";
  return {
    ok: status === 200, status, headers: { get: () => kind }, json: () => Promise.resolve(body),
    text: () => Promise.resolve(JSON.stringify(body)), arrayBuffer: () => Promise.resolve(body),
  } as unknown as Response;
}

/** A window with a history: entries are addresses. */
class Place {
  entries = ["#/"];
  at = 0;
  private heard = new Map<string, () => void>();
  readonly history = {
    pushState: (_: unknown, __: string, address: string): void => {
      this.entries = [...this.entries.slice(0, this.at + 1), address];
      this.at += 1;
    },
    replaceState: (_: unknown, __: string, address: string): void => {
      this.entries[this.at] = address;
    },
  };

  get location(): { hash: string } {
    return { hash: this.entries[this.at] ?? "" };
  }

  matchMedia(): object {
    return { matches: false, addEventListener: () => undefined };
  }

  addEventListener(name: string, hear: () => void): void {
    this.heard.set(name, hear);
  }

  go(by: number): void {
    const before = this.location.hash;
    this.at = Math.max(0, Math.min(this.entries.length - 1, this.at + by));
    if (this.location.hash !== before) this.heard.get("hashchange")?.();
  }

  /** A browser has another address a moment before it tells of it. */
  type(address: string, meanwhile?: () => void): void {
    const before = this.location.hash;
    if (address === before) return;
    this.history.pushState(null, "", address);
    meanwhile?.();
    this.heard.get("hashchange")?.();
  }

  leave(): void {
    this.heard.get("pagehide")?.();
    this.heard.clear();
  }
}

/** An Api that tells what it was asked for. */
class Watched extends Api {
  readonly asked: string[] = [];

  override get<Facts>(path: string, query: Query, signal: AbortSignal): Promise<Message<Facts>> {
    if (!signal.aborted) this.asked.push(addressOf(path, query));
    return super.get(path, query, signal);
  }
}

function addressOf(path: string, query: Query): string {
  return `api/${path}?${new URLSearchParams(Object.entries(query).map(([name, value]) => [name, String(value)])).toString()}`;
}

/** The page: the explorer, and what its panels ask. */
function open(place: Place, api: Api) {
  let page!: ReturnType<typeof parts>;
  const parts = () => {
    const explorer = new Explorer(place as unknown as Window, api);
    const cell = (): { row: number; column: number } | null => (explorer.source === null ? null : { row: explorer.destination, column: explorer.source });
    $effect(() => explorer.text("destinations")?.want("panel", explorer.destination, explorer.destination));
    $effect(() => explorer.beside.text("destinations")?.want("panel", explorer.destination, explorer.destination));
    return {
      explorer,
      edges: askEdges(() => explorer),
      others: askEdges(() => explorer.beside),
      resting: askResting(() => explorer),
      owners: askOwners(() => explorer, () => explorer.text("destinations")?.number ?? null),
      pair: askPair(() => explorer, cell),
      worked: askWorked(() => explorer),
      unlike: askUnlike(() => [explorer.text("destinations"), explorer.beside.text("destinations")]),
    };
  };
  const close = $effect.root(() => {
    page = parts();
  });
  return { ...page, close };
}

// ---- the twin -----------------------------------------------------------------------------------------------------

/** What is asked, and what came of it. */
interface Question {
  address: string | null;
  state: "none" | "waiting" | "right" | string;
}

class Twin {
  selection: Selection = START;
  entries: Selection[] = [START];
  at = 0;
  /** The address does not yet say what was chosen last. */
  unsaid = false;
  /** Addresses whose answers are kept, asked for longest ago first. */
  kept: string[] = [];
  questions: Record<"run" | "beside" | "edges" | "others" | "resting", Question> = {
    run: { address: null, state: "none" },
    beside: { address: null, state: "none" },
    edges: { address: null, state: "none" },
    others: { address: null, state: "none" },
    resting: { address: null, state: "none" },
  };

  choose(change: Partial<Selection>, byItself = false): void {
    let after = { ...this.selection, ...change };
    // Only one recording is measured, and what a target was asked for is left with its destination.
    if (after.page === "compare" && (after.lens === "attribution" || after.lens === "knockout")) after = { ...after, lens: "weight" };
    if (after.destination !== this.selection.destination && !("target" in change)) after = { ...after, target: null };
    if (byItself) {
      this.entries[this.at] = after;
      this.unsaid = false;
    } else if (after.run !== this.selection.run || after.beside !== this.selection.beside || after.page !== this.selection.page) {
      this.entries[this.at] = this.selection;
      this.entries = [...this.entries.slice(0, this.at + 1), after];
      this.at += 1;
      this.unsaid = false;
    } else this.unsaid = true;
    this.selection = after;
  }

  tick(): void {
    if (this.unsaid) this.entries[this.at] = this.selection;
    this.unsaid = false;
  }

  go(by: number): void {
    const before = this.entries[this.at] as Selection;
    this.at = Math.max(0, Math.min(this.entries.length - 1, this.at + by));
    const after = this.entries[this.at] as Selection;
    if (format(before) === format(after)) return;
    this.selection = after;
    this.unsaid = false;
  }

  type(selection: Selection): void {
    if (format(selection) === format(this.entries[this.at] as Selection)) return;
    this.entries = [...this.entries.slice(0, this.at + 1), selection];
    this.at += 1;
    this.selection = selection;
    this.unsaid = false;
  }

  get run(): Run | null {
    const { run } = this.selection;
    return run !== null && this.questions.run.state === "right" ? (RUNS[run] ?? null) : null;
  }

  get second(): Run | null {
    const { page, beside } = this.selection;
    return page === "compare" && beside !== null && this.questions.beside.state === "right" ? (RUNS[beside] ?? null) : null;
  }

  get calls(): readonly Call[] {
    const second = this.second;
    return (this.run?.calls ?? []).filter((one) => !second || second.calls.some((other) => other.layer === one.layer));
  }

  get call(): Call | null {
    const wanted = this.selection.call ?? this.run?.default.call;
    return this.calls.find((one) => one.index === wanted) ?? this.calls[0] ?? null;
  }

  get secondCall(): Call | null {
    return this.second?.calls.find((other) => other.layer === this.call?.layer) ?? null;
  }

  get heads(): readonly number[] {
    const second = this.secondCall;
    return (this.call?.heads ?? []).filter((head) => !second || second.heads.includes(head));
  }

  get head(): number | null {
    return this.heads.find((head) => head === this.selection.head) ?? null;
  }

  /** The number of positions that can be chosen. */
  get length(): number {
    return Math.min(this.call?.destinations ?? 1, this.secondCall?.destinations ?? Infinity);
  }

  get destination(): number {
    return Math.min(this.selection.destination ?? this.run?.default.destination ?? 0, this.length - 1);
  }

  get source(): number | null {
    const { source, mode } = this.selection;
    if (!this.call || (source === null && mode === "sources")) return null;
    return Math.min(source ?? this.destination, this.length - 1);
  }

  /** What was asked for and is not there, each once. */
  get beyond(): unknown[] {
    if (!this.call) return [];
    const { destination, source } = this.selection;
    const over = [destination, source].filter((wanted) => wanted !== null && wanted >= this.length);
    return [...new Set(over)].map((wanted) => ({ wanted, chosen: this.length - 1 }));
  }

  edgesOf(run: Run | null, of: Call | null): string | null {
    const { mode, every, lens } = this.selection;
    const position = mode === "sources" ? this.destination : this.source;
    if (!run || !of || position === null || lens === "attribution" || lens === "knockout") return null;
    const which: Query = every ? { call: "all", like: of.index } : { call: of.index };
    const end: Query = mode === "sources" ? { destination: position } : { source: position };
    return addressOf(mode === "sources" ? "row" : "column", { run: run.key, ...which, head: this.head ?? "all", ...end, lens });
  }

  /** Ask what is to be asked now; what changed is waited for, or was answered before. */
  follow(): void {
    const { run, beside, page, every } = this.selection;
    this.ask("run", run === null ? null : addressOf("run", { run }));
    this.ask("beside", page !== "compare" || beside === null ? null : addressOf("run", { run: beside }));
    this.ask("edges", this.edgesOf(this.run, this.call));
    this.ask("others", this.edgesOf(this.second, this.secondCall));
    const one = this.run && this.call && this.head !== null && !every;
    this.ask("resting", one ? addressOf("column", { run: this.run?.key ?? "", call: this.call?.index ?? 0, head: this.head ?? 0, source: 0, lens: "weight" }) : null);
  }

  private ask(name: keyof Twin["questions"], address: string | null): void {
    if (this.questions[name].address === address) return;
    this.questions[name] = { address, state: address === null ? "none" : this.kept.includes(address) ? "right" : "waiting" };
  }

  /** An answer came. */
  take(address: string, what: "right" | "failed" | "nothing"): void {
    const state = what === "nothing" ? "The server does not answer. Is `wherefrom explore` still running?" : address === "api/run?run=torn" ? TORN : what === "failed" ? FAILED : "right";
    if (state === "right" && costOf(address) <= BOUND) {
      this.kept.push(address);
      while (this.kept.reduce((sum, one) => sum + costOf(one), 0) > BOUND) this.kept.shift();
    }
    for (const question of Object.values(this.questions)) if (question.address === address && question.state === "waiting") question.state = state;
  }

  /** Asked for last, dropped last. */
  touch(address: string): void {
    if (this.kept.includes(address)) this.kept = [...this.kept.filter((other) => other !== address), address];
  }
}

// ---- commands -----------------------------------------------------------------------------------------------------

class World {
  readonly server = new Server();
  readonly place = new Place();
  readonly twin = new Twin();
  /** Every address that this page asked for. */
  readonly seen = new Set<string>();
  api = new Watched(this.server.ask, BOUND);
  page = open(this.place, this.api);

  /** A reload: the address is all that stays. */
  reload(): void {
    this.place.leave();
    this.page.close();
    this.server.open.length = 0;
    this.seen.clear();
    this.api = new Watched(this.server.ask, BOUND);
    this.page = open(this.place, this.api);
    const { twin } = this;
    twin.tick();
    twin.selection = twin.entries[twin.at] as Selection;
    twin.kept = [];
    for (const question of Object.values(twin.questions)) Object.assign(question, { address: null, state: "none" });
  }

  answer(at: number, what: "right" | "failed" | "nothing"): void {
    const one = this.server.open[at];
    if (!one) return;
    this.twin.take(one.address, what);
    one.give(what);
  }

  tick(): void {
    vi.advanceTimersByTime(TICK_MS);
    this.twin.tick();
  }

  async settle(): Promise<void> {
    for (let turn = 0; turn < 4; turn += 1) {
      flushSync();
      for (let step = 0; step < 24; step += 1) await Promise.resolve();
    }
    this.twin.follow();
    for (const address of this.api.asked.splice(0)) {
      this.twin.touch(address);
      this.seen.add(address);
    }
  }
}

type Command = (world: World, roll: Dice) => void;

const one = <Word>(roll: Dice, of: readonly Word[]): Word => of[roll(of.length)] as Word;

function both(world: World, change: Partial<Selection>): void {
  world.page.explorer.choose(change);
  world.twin.choose(change);
}

const ALONE = { call: null, every: false, head: null, destination: null, source: null, window: null, target: null } as const;

const COMMANDS_OF: readonly (readonly [weight: number, command: Command])[] = [
  [4, (world, roll) => {
    const run = roll(8) ? one(roll, KEYS) : null;
    world.page.explorer.open(run);
    world.twin.choose({ run, beside: null, page: "explore", ...ALONE });
  }],
  [1, (world, roll) => {
    // Where there is but one recording, the list opens it by itself.
    if (world.twin.selection.run !== null || world.twin.selection.page !== "explore") return;
    const run = one(roll, KEYS);
    world.page.explorer.open(run, false, true);
    world.twin.choose({ run, beside: null, page: "explore", ...ALONE }, true);
  }],
  [1, (world) => {
    world.page.explorer.list();
    world.twin.choose({ run: null, beside: null, page: "explore", ...ALONE });
  }],
  [4, (world, roll) => {
    const [index, head] = [roll(3), roll(4) ? roll(3) : null];
    world.page.explorer.chooseHead(index, head);
    world.twin.choose({ call: index, head, every: false });
  }],
  [2, (world, roll) => {
    const { twin } = world;
    const by = roll(2) ? 1 : -1;
    const now = twin.calls.findIndex((call) => call === twin.call);
    const next = twin.calls[Math.max(0, Math.min(twin.calls.length - 1, now + by))];
    world.page.explorer.stepCall(by);
    if (next) twin.choose({ call: next.index, every: false });
  }],
  [2, (world, roll) => {
    const { twin } = world;
    const by = roll(2) ? 1 : -1;
    const order = [null, ...twin.heads];
    const next = order[(order.indexOf(twin.head) + by + order.length) % order.length] ?? null;
    world.page.explorer.stepHead(by);
    twin.choose({ head: next });
  }],
  [4, (world, roll) => {
    const [position, other] = [roll(12), roll(3) === 0];
    world.page.explorer.pick(position, other);
    const destination = (world.twin.selection.mode === "sources") !== other;
    world.twin.choose(destination ? { destination: position } : { source: position });
  }],
  [2, (world, roll) => both(world, { lens: one(roll, LENSES) })],
  [2, (world, roll) => both(world, { mode: roll(2) ? "sources" : "readers" })],
  [1, (world, roll) => both(world, { group: one(roll, GROUPS), scale: one(roll, SCALES), side: one(roll, SIDES) })],
  [1, (world, roll) => both(world, { target: roll(2) ? " Mary" : null })],
  [1, (world, roll) => both(world, { every: roll(2) === 1 })],
  [1, (world, roll) => both(world, { window: roll(3) ? windowOf(roll(900) / 97, roll(900) / 89, roll(900) / 83 - 5) : null })],
  [1, (world, roll) => both(world, { page: roll(2) ? "lesson" : "explore" })],
  [3, (world, roll) => {
    const beside = roll(6) ? one(roll, KEYS) : null;
    world.page.explorer.compare(beside);
    world.twin.choose({ page: "compare", beside });
  }],
  [1, (world) => {
    world.page.explorer.alone();
    world.twin.choose({ page: "explore", beside: null });
  }],
  [1, (world) => {
    const { twin } = world;
    const second = twin.secondCall?.index ?? null;
    world.page.explorer.swap();
    twin.choose({ run: twin.selection.beside, beside: twin.selection.run, call: second });
  }],
  [3, (world, roll) => {
    const by = roll(3) ? -1 : 1;
    world.place.go(by);
    world.twin.go(by);
  }],
  [1, (world, roll) => {
    const typed = { ...START, run: one(roll, KEYS), head: roll(3), destination: roll(12) };
    world.place.type(format(typed));
    world.twin.type(typed);
  }],
  [1, (world) => world.reload()],
  [3, (world) => world.tick()],
  [14, (world, roll) => world.answer(roll(world.server.open.length), "right")],
  [1, (world, roll) => world.answer(roll(world.server.open.length), one(roll, ["failed", "nothing"] as const))],
];
const WEIGHTED = COMMANDS_OF.flatMap(([weight, command]) => Array.from({ length: weight }, () => command));

// ---- what has to hold ---------------------------------------------------------------------------------------------

function check({ page, twin, place, api, server, seen }: World): void {
  const { explorer } = page;
  const { selection } = explorer;
  expect(selection).toEqual(twin.selection);
  expect(parse(format(selection))).toEqual(selection);
  expect(place.entries).toEqual(twin.entries.map(format));
  expect(place.at).toBe(twin.at);

  const now = { run: explorer.shown?.key ?? null, beside: explorer.beside.shown?.key ?? null, call: explorer.call?.index ?? null, other: explorer.beside.call?.index ?? null, head: explorer.head, destination: explorer.destination, source: explorer.source, beyond: explorer.beyond };
  expect(now).toEqual({ run: twin.run?.key ?? null, beside: twin.second?.key ?? null, call: twin.call?.index ?? null, other: twin.secondCall?.index ?? null, head: twin.head, destination: twin.destination, source: twin.source, beyond: twin.beyond });

  const asked: Record<keyof Twin["questions"], Asked<unknown>> = { run: explorer.run, beside: explorer.beside.run, edges: page.edges, others: page.others, resting: page.resting };
  for (const [name, { address, state }] of Object.entries(twin.questions)) {
    const { waiting, error, current } = asked[name as keyof Twin["questions"]];
    const what = [name, address, waiting ? "waiting" : (error ?? (current === null ? "none" : "right"))];
    expect(what.join()).toBe([name, address, state].join());
    if (current !== null) expect(addressIn(current, address)).toBe(address);
  }

  // Whatever else is shown is of what is chosen now.
  const { pair, worked, owners, unlike } = page;
  if (pair.current) expect(addressIn(pair.current, "")).toBe(pairOf(twin));
  if (worked.current) expect(worked.current.question).toBe(JSON.stringify({ run: twin.run?.key, call: twin.call?.index, head: twin.head, destination: twin.destination, sources: selection.oneByOne }));
  if (owners.current) expect(owners.current[0]).toBe(numberOf(addressOf("units", { run: twin.run?.key ?? "", text: 0, by: selection.group })));
  if (unlike.current) expect([unlike.current.first?.a, unlike.current.first?.b]).toEqual(twin.run === twin.second ? [undefined, undefined] : [`${twin.run?.key} 0`, `${twin.second?.key} 0`]);
  for (const [looked, run] of [[explorer, twin.run], [explorer.beside, twin.second]] as const) {
    const label = looked.text("destinations")?.token(twin.destination)?.[0];
    if (label !== undefined) expect(label).toBe(`${run?.key} ${twin.destination}`);
  }

  expect(server.open.length).toBeLessThanOrEqual(4);
  expect(api.size).toBeLessThanOrEqual(BOUND);
  expect(api.size).toBe(twin.kept.reduce((sum, address) => sum + costOf(address), 0));
  const wrong = [...seen].flatMap((address) => {
    const [, path = "", query = ""] = /^api\/(\w+)\?(.*)$/.exec(address) ?? [];
    const at = api.peek<{ at: string }>(path, Object.fromEntries(new URLSearchParams(query)))?.facts.at;
    return at === (twin.kept.includes(address) ? address : undefined) ? [] : [{ address, at }];
  });
  expect(wrong).toEqual([]);
}

/** The address that an answer says it is of; of one that has numbers alone, whether they are that address's. */
function addressIn(answer: unknown, expected: string | null): string | null {
  const { at, facts, shares } = answer as { at?: string; facts?: { at?: string }; shares?: Float32Array };
  if (shares) return shares[0] === numberOf(expected ?? "") ? expected : "another";
  return at ?? facts?.at ?? null;
}

function pairOf(twin: Twin): string | null {
  if (!twin.run || !twin.call || twin.head === null || twin.source === null) return null;
  return addressOf("pair", { run: twin.run.key, call: twin.call.index, head: twin.head, destination: twin.destination, source: twin.source });
}

beforeAll(() => void vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] }));
afterAll(() => void vi.useRealTimers());

it("reads an address that is entered while a choice waits to be written, and does not write over it", () => {
  const place = new Place();
  const page = open(place, new Api(() => new Promise(() => undefined)));
  page.explorer.choose({ run: "a", destination: 3 });
  page.explorer.choose({ destination: 4 });
  const entered = format({ ...START, run: "b", destination: 7 });
  place.type(entered, () => vi.advanceTimersByTime(10_000));
  expect(place.location.hash).toBe(entered);
  expect(page.explorer.selection).toEqual({ ...START, run: "b", destination: 7 });
  page.explorer.choose({ destination: 8 });
  vi.advanceTimersByTime(10_000);
  expect(place.location.hash).toBe(format({ ...START, run: "b", destination: 8 }));
  page.close();
});

it.each(Array.from({ length: PARTS }, (_, part) => part))(`agrees with a slow obvious twin over ${SEQUENCES} sequences of commands (part %i)`, { timeout: 60_000 }, async (part) => {
  for (let turn = part * SEQUENCES; turn < (part + 1) * SEQUENCES; turn += 1) {
    // Everything below waits for promises alone: the runner gets a turn too.
    await new Promise(setImmediate);
    const roll = dice(turn + 1);
    const world = new World();
    const done: number[] = [];
    try {
      await world.settle();
      for (let step = 0; step < COMMANDS; step += 1) {
        const at = roll(WEIGHTED.length);
        done.push(COMMANDS_OF.findIndex(([, command]) => command === WEIGHTED[at]));
        WEIGHTED[at]?.(world, roll);
        await world.settle();
        check(world);
      }
      // Once all is answered, all that was asked is shown.
      for (let idle = 0; idle < 3; ) {
        idle = world.server.open.length ? 0 : idle + 1;
        if (idle) world.tick();
        else world.answer(roll(world.server.open.length), "right");
        await world.settle();
      }
      check(world);
      const { pair, worked, owners, unlike, edges } = world.page;
      for (const asked of [pair, worked, owners, unlike, edges]) expect(asked.waiting).toBe(false);
      if (!pair.error) expect(pair.current === null).toBe(pairOf(world.twin) === null);
    } catch (error) {
      throw new Error(`sequence ${turn + 1}, commands ${done.join(" ")}`, { cause: error });
    } finally {
      world.page.close();
      vi.clearAllTimers();
    }
  }
});
