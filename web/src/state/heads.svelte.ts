/** What the scan says of heads and their thumbnails (floor state), fetched call by call where they are in sight. */

import { SvelteMap } from "svelte/reactivity";

import { headsOf, type Head } from "../lib/heads";
import type { HeadsFacts, Run } from "../wire/api";
import { floats, WireError } from "../wire/message";
import { LostError, said, type Api } from "./api";

/** Fewer at once than may be in flight: what was chosen meanwhile is not kept waiting. */
const AT_ONCE = 2;

export interface Thumbs {
  readonly values: Float32Array;
  readonly rows: number;
  readonly columns: number;
}

export interface CallHeads {
  readonly heads: readonly Head[];
  readonly facts: HeadsFacts;
  readonly thumbs: Thumbs;
}

export class Heads {
  private readonly known = new SvelteMap<number, CallHeads | { readonly error: string; readonly lost: boolean }>();
  private readonly queue: number[] = [];
  private readonly stop = new AbortController();
  private running = 0;

  constructor(
    private readonly api: Api,
    private readonly run: Run,
  ) {}

  /** Ask for a call's heads, after those that are waited for, or before them all. */
  want(call: number, first = false): void {
    if (this.known.has(call)) return;
    this.unwant(call);
    if (first) this.queue.unshift(call);
    else this.queue.push(call);
    this.next();
  }

  /** Asks again for those that no answer came for; null: there are none. */
  get again(): (() => void) | null {
    const lost = [...this.known].flatMap(([call, found]) => ("lost" in found && found.lost ? [call] : []));
    if (!lost.length) return null;
    return () => {
      for (const call of lost) {
        this.known.delete(call);
        this.want(call);
      }
    };
  }

  /** Out of sight before its turn came. */
  unwant(call: number): void {
    const at = this.queue.indexOf(call);
    if (at >= 0) this.queue.splice(at, 1);
  }

  of(call: number): CallHeads | null {
    const found = this.known.get(call);
    return found && "heads" in found ? found : null;
  }

  error(call: number): string | null {
    const found = this.known.get(call);
    return found && "error" in found ? found.error : null;
  }

  /** Every head that is known by now. */
  get all(): Head[] {
    return this.run.calls.flatMap((call) => this.of(call.index)?.heads ?? []);
  }

  get complete(): boolean {
    return this.run.calls.every((call) => this.known.has(call.index));
  }

  close(): void {
    this.queue.length = 0;
    this.stop.abort();
  }

  private next(): void {
    while (this.running < AT_ONCE && this.queue.length) {
      const call = this.queue.shift();
      if (call === undefined) return;
      this.running += 1;
      void this.load(call).finally(() => {
        this.running -= 1;
        this.next();
      });
    }
  }

  private async load(call: number): Promise<void> {
    try {
      const message = await this.api.get<HeadsFacts>("heads", { run: this.run.key, call }, this.stop.signal);
      const scanned = message.facts.why_not === null;
      const [, rows = 0, columns = 0] = message.arrays["thumbs"]?.shape ?? [];
      const layer = this.run.calls.find((one) => one.index === call)?.layer ?? call;
      const array = (name: string): Float32Array => (scanned ? floats(message, name) : new Float32Array());
      const thumbs = { values: array("thumbs"), rows, columns };
      if (thumbs.values.length !== message.facts.heads.length * rows * columns) {
        throw new WireError("There are not as many thumbnails as heads.");
      }
      const heads = headsOf(call, layer, message.facts, array("figures"));
      this.known.set(call, { heads, facts: message.facts, thumbs });
    } catch (error) {
      const sentence = said(error);
      if (sentence !== null) this.known.set(call, { error: sentence, lost: error instanceof LostError });
    }
  }
}
