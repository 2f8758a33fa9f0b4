/**
 * The second of two recordings that are compared (floor state): looked at exactly as the first is, at the same call,
 * head and positions.
 */

import { type Offered, partnerOf, unlike, type Unlike } from "../lib/beside";
import type { Call, Run, Tokens } from "../wire/api";
import { asking, type Asked } from "./asked.svelte";
import type { Explorer, Looked } from "./explorer.svelte";
import { type Text, CHUNK, Texts } from "./text.svelte";

export class Beside implements Looked {
  readonly run: Asked<Run>;
  private readonly texts: Texts;

  /** Call while the page's component is made. */
  constructor(private readonly first: Explorer) {
    this.texts = new Texts(first.api);
    const key = $derived(first.selection.page === "compare" ? first.selection.beside : null);
    this.run = asking(() => {
      const run = key;
      return run === null ? null : async (signal) => (await first.api.get<Run>("run", { run }, signal)).facts;
    });
  }

  /** The second recording, once its answer is that of the selection. */
  get shown(): Run | null {
    const { page, beside } = this.first.selection;
    const run = this.run.last;
    return run && page === "compare" && run.key === beside ? run : null;
  }

  get call(): Call | null {
    const [own, run] = [this.first.call, this.shown];
    return own && run && partnerOf(own, run.calls);
  }

  text(of: "destinations" | "sources"): Text | null {
    return this.texts.of(this.shown, this.call, of);
  }

  get api(): Looked["api"] {
    return this.first.api;
  }

  get selection(): Looked["selection"] {
    return this.first.selection;
  }

  get held(): Looked["held"] {
    return this.first.held;
  }

  get theme(): Looked["theme"] {
    return this.first.theme;
  }

  get head(): number | null {
    return this.first.head;
  }

  get destination(): number {
    return this.first.destination;
  }

  get source(): number | null {
    return this.first.source;
  }

  get offered(): Offered | null {
    return this.first.offered;
  }

  get absent(): Looked["absent"] {
    return this.first.absent;
  }

  get beyond(): Looked["beyond"] {
    return this.first.beyond;
  }

  choose(change: Parameters<Looked["choose"]>[0]): void {
    this.first.choose(change);
  }

  pick(position: number, other?: boolean): void {
    this.first.pick(position, other);
  }

  chooseHead(_call: number, head: number | null): void {
    this.first.choose({ head, every: false });
  }
}

/** Positions whose tokens are compared before anybody looks at them. */
export const COMPARED = 16 * CHUNK;

/** Call while a component is made: where the tokens of the two texts differ. */
export function askUnlike(texts: () => readonly [Text | null, Text | null]): Asked<Unlike> {
  return asking(() => {
    const [a, b] = texts();
    if (!a || !b) return null;
    const most = Math.min(a.length, b.length, COMPARED);
    return async (signal) => {
      let found: Unlike = { first: null, count: 0, compared: 0 };
      for (let start = 0; start < most; start += CHUNK) {
        const labels = async (text: Text): Promise<string[]> => {
          const { facts } = await text.api.get<Tokens>("tokens", text.query(start), signal);
          return facts.tokens.map(([label]) => label);
        };
        const [one, two] = await Promise.all([labels(a), labels(b)]);
        found = unlike(found, one, two);
      }
      return found;
    };
  });
}
