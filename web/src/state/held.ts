/**
 * Answers that a page holds itself (floor state): what the server would have sent, out of the file, in its own bytes.
 *
 * They lie in blocks of base64 and gzip, unpacked when one is first asked of them. What is not held is refused with
 * what it was and how to have it: a panel is never just empty.
 */

import { placesOf, type Span } from "../lib/find";
import { MARK } from "../lib/marks";
import type { NumbersFacts, Pair, TileFacts, Tokens } from "../wire/api";
import { bytes, decode, floats, type Message } from "../wire/message";

/** What the file says of itself. */
export interface About {
  readonly run: string;
  readonly carries: string;
  readonly leavesOut: string;
  /** For each call the first of its kind: all of a kind together are asked by it. */
  readonly alike: readonly number[];
  readonly layers: readonly number[];
  /** Of each text every token's characters, in code points. */
  readonly spans: readonly (readonly Span[])[];
  /** What is shown where nothing is chosen. */
  readonly first: { readonly call: number; readonly head: number | null; readonly destination: number };
  readonly noModel: string;
}

type Kind = "json" | "arrays" | "refused";
interface Entry {
  readonly kind: Kind;
  readonly from: number;
  readonly to: number;
}
interface Block {
  readonly index: ReadonlyMap<string, Entry>;
  readonly body: Uint8Array<ArrayBuffer>;
}

const TYPES: Record<Kind, string> = { json: "application/json", arrays: "application/octet-stream", refused: "application/json" };
/** Blocks that stay unpacked. */
const MOST = 16;
const TILE = 256;
/** Tokens that are asked for at once, as the text does. */
const CHUNK = 256;

export class Held {
  private readonly blocks = new Map<string, Promise<Block>>();

  /** @param packed a block's base64; null where there is no such block. */
  constructor(
    readonly about: About,
    private readonly packed: (block: string) => string | null,
  ) {}

  /** In the place of the network. */
  readonly ask: typeof fetch = async (input) => {
    try {
      return await this.answer(String(input));
    } catch (error) {
      return refused(`What this page carries could not be read (${error instanceof Error ? error.message : "no reason given"}).`);
    }
  };

  /** Whether a head's map, rows, columns and numbers are here. */
  carries(call: number, head: number): boolean {
    return this.packed(`tile ${call} ${head}`) !== null;
  }

  private async answer(address: string): Promise<Response> {
    const [path = "", words = ""] = address.split("?");
    const name = path.replace(/^api\//, "");
    const query = new URLSearchParams(words);
    const { run, alike, noModel } = this.about;
    if ((query.get("run") ?? run) !== run) return refused(`This page carries one recording, ${run}.`);
    query.delete("run");
    query.delete("at");
    if (query.get("call") === "all") query.set("like", String(alike[Number(query.get("like"))] ?? 0));
    if (name === "find") return answered(await this.found(query));
    if (name === "pair") return this.pair(query);
    if (name === "measured") return answered({ measured: false, possible: false, why: noModel, job: null, busy: null });
    if (name === "job" || name === "jobs") return refused(noModel);
    const found = await this.look(name, query);
    if (!found) return refused(this.missing(name, query));
    return new Response(found.body, { status: found.kind === "refused" ? 400 : 200, headers: { "content-type": TYPES[found.kind] } });
  }

  private async look(name: string, query: URLSearchParams): Promise<{ kind: Kind; body: Uint8Array<ArrayBuffer> } | null> {
    const block = await this.block(blockOf(name, query));
    const words = [...query].map(([word, value]) => `${word}=${value}`).sort();
    const entry = block?.index.get(`${name}?${words.join("&")}`);
    return block && entry ? { kind: entry.kind, body: block.body.slice(entry.from, entry.to) } : null;
  }

  private async message<Facts>(name: string, query: Record<string, string | number>): Promise<Message<Facts> | null> {
    const words = Object.entries(query).map(([word, value]) => [word, String(value)]);
    const found = await this.look(name, new URLSearchParams(words));
    if (found?.kind === "arrays") return decode<Facts>(found.body.buffer);
    if (found?.kind !== "json") return null;
    return { facts: JSON.parse(new TextDecoder().decode(found.body)) as Facts, arrays: {}, bytes: found.body.length };
  }

  private block(name: string): Promise<Block | null> {
    const kept = this.blocks.get(name);
    const packed = kept ? null : this.packed(name);
    if (!kept && packed === null) return Promise.resolve(null);
    const block = kept ?? unpacked(packed ?? "");
    this.blocks.delete(name);
    this.blocks.set(name, block);
    const [oldest] = this.blocks.keys();
    if (this.blocks.size > MOST && oldest !== undefined) this.blocks.delete(oldest);
    return block;
  }

  private async found(query: URLSearchParams): Promise<unknown> {
    const text = Number(query.get("text") ?? 0);
    const spans = this.about.spans[text] ?? [];
    const running: string[] = [];
    for (let start = 0; start < spans.length; start += CHUNK) {
      const message = await this.message<Tokens>("tokens", { text, start, count: CHUNK });
      running.push(...(message?.facts.tokens ?? []).map(([, own]) => own));
    }
    return placesOf(running.join(""), spans, query.get("query") ?? "");
  }

  /**
   * One weight: of the row, with what is behind its 24 bits, or off the finest tile where the row is not held; its score
   * by the row's log-sum-exp; what it moves where that is held.
   */
  private async pair(query: URLSearchParams): Promise<Response> {
    const number = (word: string): number => Number(query.get(word));
    const [call, head, destination, source] = [number("call"), number("head"), number("destination"), number("source")];
    const [row, column] = [Math.floor(destination / TILE), Math.floor(source / TILE)];
    const tile = await this.message<TileFacts>("tile", { call, head, level: 0, row, column, of: "largest" });
    if (!tile) return refused(this.missing("tile", query));
    const at = (destination % TILE) * (tile.arrays["values"]?.shape[1] ?? 0) + (source % TILE);
    const mark = bytes(tile, "marks")[at] ?? MARK.unrecorded;
    if (mark === MARK.forbidden) return answered({ weight: 0, score: null, moved: 0, mark });
    if (mark !== MARK.weight) return answered({ weight: null, score: null, moved: null, mark });
    const row_ = { call, head, destination };
    const [first, behind] = [await this.message("row", { ...row_, lens: "weight" }), await this.message("behind", row_)];
    const weight = first && behind ? (floats(first, "values")[source] ?? 0) + (floats(behind, "values")[source] ?? 0) : (floats(tile, "values")[at] ?? 0);
    const worked = await this.message<NumbersFacts>("numbers", { ...row_, sources: 8 });
    const lse = worked && !worked.facts.empty ? worked.facts.lse : null;
    const moves = await this.message("row", { ...row_, lens: "moved" });
    const found: Omit<Pair, "permitted"> = {
      weight,
      score: lse !== null && weight > 0 ? Math.log(weight) + lse : null,
      moved: moves ? (floats(moves, "values")[source] ?? null) : null,
      mark,
    };
    return answered(found);
  }

  /** What is not held, and how to have it. */
  private missing(name: string, query: URLSearchParams): string {
    const [call, head] = [query.get("call"), query.get("head")];
    const layer = this.about.layers[Number(call)];
    const again = (option: string): string => `Ask whoever made this file for one with it (wherefrom export ... ${option}), or open the recording with wherefrom explore.`;
    if (this.packed(blockOf(name, query)) !== null) {
      const position = query.get("destination") ?? query.get("source");
      if (name === "numbers" && query.get("sources") !== "8") return "This page carries the numbers with 8 sources one by one; wherefrom explore shows more of them.";
      return `This page does not carry position ${position ?? "that was asked for"}. ${again("--positions ...")}`;
    }
    if (query.get("lens") === "moved") {
      query.set("lens", "weight");
      if (this.packed(blockOf(name, query)) !== null) return `This page does not carry what is moved. ${again("--moved")}`;
    }
    if (call === "all" && head !== null && head !== "all") return `This page does not carry head ${head} of all layers together, but of each layer that has its map here; wherefrom explore does.`;
    if (head === "all") return `This page does not carry the rows of layer ${layer ?? "?"}. ${again(`--layers ${layer ?? "..."}`)}`;
    if (head === null || layer === undefined) return "This page does not carry what was asked for; wherefrom explore does.";
    return `This page does not carry head ${head} of layer ${layer}. ${again(`--head ${layer}.${head}`)}`;
  }
}

function blockOf(name: string, query: URLSearchParams): string {
  return [name, ...["call", "head", "like", "lens"].map((word) => query.get(word)).filter((word) => word !== null)].join(" ");
}

/** The bytes that base64 stands for. */
export function bytesOf(packed: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
}

async function unpacked(packed: string): Promise<Block> {
  const stream = new Blob([bytesOf(packed)]).stream().pipeThrough(new DecompressionStream("gzip"));
  const whole = new Uint8Array(await new Response(stream).arrayBuffer());
  const start = 4 + new DataView(whole.buffer).getUint32(0, true);
  const entries = JSON.parse(new TextDecoder().decode(whole.subarray(4, start))) as readonly (readonly [string, Kind, number, number])[];
  return { index: new Map(entries.map(([key, kind, from, to]) => [key, { kind, from, to }])), body: whole.subarray(start) };
}

function answered(value: unknown): Response {
  return new Response(JSON.stringify(value), { headers: { "content-type": TYPES.json } });
}

function refused(sentence: string): Response {
  return new Response(JSON.stringify({ error: sentence }), { status: 400, headers: { "content-type": TYPES.refused } });
}
