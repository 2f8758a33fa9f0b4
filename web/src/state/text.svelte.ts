/** A recording's text (floor state), fetched in chunks where something looks at it and dropped where nothing does. */

import { SvelteMap } from "svelte/reactivity";

import type { Call, Prediction, Run, Token, Tokens } from "../wire/api";
import { said, type Api, type Query } from "./api";

export const CHUNK = 256;
/** Chunks that are held at most, besides those being looked at. */
const MOST = 48;

export interface Chunk {
  readonly start: number;
  readonly tokens: readonly Token[];
  readonly predicted: ReadonlyMap<number, Prediction>;
  /** So many of its first tokens go on with the line that the chunk before left unfinished. */
  readonly rest: number;
}

export class Text {
  error = $state<string | null>(null);
  private readonly chunks = new SvelteMap<number, Chunk>();
  private readonly pending = new Map<number, AbortController>();
  private readonly wants = new Map<string, readonly [first: number, last: number]>();

  constructor(
    readonly api: Api,
    readonly run: string,
    readonly number: number,
    readonly length: number,
  ) {}

  get count(): number {
    return Math.ceil(this.length / CHUNK);
  }

  /** Say that somebody looks at the tokens from first to last; what nobody looks at any more is given up. */
  want(who: string, first: number, last: number): void {
    const chunkOf = (position: number): number =>
      Math.max(0, Math.min(this.count - 1, Math.floor(position / CHUNK)));
    this.wants.set(who, [chunkOf(first), chunkOf(last)]);
    for (const [at, stop] of this.pending) {
      if (this.wanted(at)) continue;
      this.pending.delete(at);
      stop.abort();
    }
    for (const [from, to] of this.wants.values()) {
      for (let at = from; at <= to; at += 1) if (!this.chunks.has(at) && !this.pending.has(at)) void this.load(at);
    }
  }

  /** Ask again for what could not be had. */
  retry(): void {
    this.error = null;
    for (const [who, [from, to]] of this.wants) this.want(who, from * CHUNK, to * CHUNK);
  }

  unwant(who: string): void {
    this.wants.delete(who);
  }

  chunk(at: number): Chunk | undefined {
    return this.chunks.get(at);
  }

  /** The token at a position, if it is here. */
  token(position: number): Token | undefined {
    return this.chunks.get(Math.floor(position / CHUNK))?.tokens[position % CHUNK];
  }

  prediction(position: number): Prediction | undefined {
    return this.chunks.get(Math.floor(position / CHUNK))?.predicted.get(position);
  }

  /** Give up whatever is asked for. */
  close(): void {
    this.wants.clear();
    for (const stop of this.pending.values()) stop.abort();
    this.pending.clear();
  }

  private wanted(at: number): boolean {
    return [...this.wants.values()].some(([from, to]) => at >= from && at <= to);
  }

  /** What is asked for the chunk that begins at a position. */
  query(start: number): Query {
    return { run: this.run, text: this.number, start, count: CHUNK };
  }

  private async load(at: number): Promise<void> {
    const stop = new AbortController();
    this.pending.set(at, stop);
    try {
      const { facts } = await this.api.get<Tokens>("tokens", this.query(at * CHUNK), stop.signal);
      if (stop.signal.aborted) return;
      const predicted = new Map(facts.predicted.map((one) => [one[0], one]));
      this.error = null;
      const ended = facts.tokens.findIndex(([, own]) => own.includes("\n")) + 1;
      const rest = at > 0 && ended < facts.tokens.length ? ended : 0;
      this.chunks.set(at, { start: facts.start, tokens: facts.tokens, predicted, rest });
      this.drop();
    } catch (error) {
      if (!stop.signal.aborted) this.error = said(error);
    } finally {
      if (this.pending.get(at) === stop) this.pending.delete(at);
    }
  }

  private drop(): void {
    for (const at of this.chunks.keys()) {
      if (this.chunks.size <= MOST) return;
      if (!this.wanted(at)) this.chunks.delete(at);
    }
  }
}

/** The texts of the recording that is shown; those of another are not held. */
export class Texts {
  private readonly held = new Map<string, Text>();

  constructor(private readonly api: Api) {}

  /** The text that destinations or sources of a call are of. */
  of(run: Run | null, call: Call | null, which: "destinations" | "sources"): Text | null {
    const number = call?.of[which === "destinations" ? 0 : 1];
    const length = number === undefined ? undefined : run?.texts[number]?.tokens;
    if (!run || number === undefined || length === undefined) return null;
    const name = JSON.stringify([run.key, number]);
    let found = this.held.get(name);
    if (!found) {
      for (const [other, text] of this.held) {
        if (text.run === run.key) continue;
        text.close();
        this.held.delete(other);
      }
      found = new Text(this.api, run.key, number, length);
      this.held.set(name, found);
    }
    return found;
  }
}
