/** The explorer's state (floor state): the selection, the address that holds it, and the recording that it is of. */

import type { Call, Run } from "../wire/api";
import { Api } from "./api";
import { Asked, asking } from "./asked.svelte";
import { format, parse, START, type Selection } from "./selection";
import { Text } from "./text.svelte";

/** Browsers refuse more changes of the address than a few a second. */
const PAUSE_MS = 200;

export class Explorer {
  readonly api: Api;
  selection = $state.raw<Selection>(START);
  readonly run: Asked<Run>;
  readonly theme: "light" | "dark" = $derived.by(() => this.themeNow());
  private systemDark = $state(false);
  private timer: ReturnType<typeof setTimeout> | undefined;
  private texts = new Map<string, Text>();

  /** Call while the page's component is made. `ask` stands in the place of the network. */
  constructor(
    private readonly place: Window,
    ask?: typeof fetch,
  ) {
    this.api = new Api(ask);
    this.selection = parse(place.location.hash);
    const dark = place.matchMedia("(prefers-color-scheme: dark)");
    this.systemDark = dark.matches;
    dark.addEventListener("change", (event) => (this.systemDark = event.matches));
    place.addEventListener("hashchange", () => this.read());
    place.addEventListener("pagehide", () => this.write());
    const key = $derived(this.selection.run);
    this.run = asking(() => {
      const run = key;
      return run === null ? null : async (signal) => (await this.api.get<Run>("run", { run }, signal)).facts;
    });
  }

  /** The recording that is shown, once its answer is that of the selection. */
  get shown(): Run | null {
    const run = this.run.value;
    return run && run.key === this.selection.run ? run : null;
  }

  get call(): Call | null {
    const run = this.shown;
    if (!run) return null;
    const wanted = this.selection.call ?? run.default.call;
    return run.calls.find((call) => call.index === wanted) ?? run.calls[0] ?? null;
  }

  /** The head's true number; null: all. A head that this call does not have counts as none chosen. */
  get head(): number | null {
    const { head } = this.selection;
    return head !== null && this.call?.heads.includes(head) ? head : null;
  }

  get destination(): number {
    const call = this.call;
    const wanted = this.selection.destination ?? this.shown?.default.destination ?? 0;
    return Math.max(0, Math.min(wanted, (call?.destinations ?? 1) - 1));
  }

  get source(): number | null {
    const { source } = this.selection;
    return source === null || !this.call ? null : Math.min(source, this.call.sources - 1);
  }

  /** The text that destinations or sources of the chosen call are of. */
  text(of: "destinations" | "sources"): Text | null {
    const run = this.shown;
    const number = this.call?.of[of === "destinations" ? 0 : 1];
    const length = number === undefined ? undefined : run?.texts[number]?.tokens;
    if (!run || number === undefined || length === undefined) return null;
    const name = JSON.stringify([run.key, number]);
    let found = this.texts.get(name);
    if (!found) {
      // Texts of another recording are not held.
      for (const [other, text] of this.texts) {
        if (text.run === run.key) continue;
        text.close();
        this.texts.delete(other);
      }
      found = new Text(this.api, run.key, number, length);
      this.texts.set(name, found);
    }
    return found;
  }

  /** Change the selection. The address follows; another recording or page is a step that "back" undoes. */
  choose(change: Partial<Selection>): void {
    const before = this.selection;
    this.selection = { ...before, ...change };
    if (this.selection.run !== before.run || this.selection.page !== before.page) {
      clearTimeout(this.timer);
      this.timer = undefined;
      this.place.history.pushState(null, "", format(this.selection));
    } else {
      this.timer ??= setTimeout(() => this.write(), PAUSE_MS);
    }
  }

  /** Open another recording: positions, heads and the map's window are of the one before, how to look is kept. */
  open(run: string | null): void {
    this.choose({ run, page: "explore", call: null, every: false, head: null, destination: null, source: null, window: null });
  }

  /** Choose a destination or a source, by what the mode is about. */
  pick(position: number, other = false): void {
    const sources = (this.selection.mode === "sources") !== other;
    this.choose(sources ? { destination: position } : { source: position });
  }

  /** Another head or call: the map's window is kept, so that heads can be compared at one place. */
  chooseHead(call: number, head: number | null): void {
    this.choose({ call, head, every: false });
  }

  stepCall(by: number): void {
    const calls = this.shown?.calls ?? [];
    const now = calls.findIndex((call) => call.index === this.call?.index);
    const next = calls[Math.max(0, Math.min(calls.length - 1, now + by))];
    if (next) this.choose({ call: next.index, every: false });
  }

  /** Through all heads, then each in turn. */
  stepHead(by: number): void {
    const heads: (number | null)[] = [null, ...(this.call?.heads ?? [])];
    const now = heads.indexOf(this.head);
    this.choose({ head: heads[(now + by + heads.length) % heads.length] ?? null });
  }

  private write(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    const address = format(this.selection);
    if (address !== this.place.location.hash) this.place.history.replaceState(null, "", address);
  }

  private read(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.selection = parse(this.place.location.hash);
  }

  private themeNow(): "light" | "dark" {
    const { theme } = this.selection;
    return theme === "system" ? (this.systemDark ? "dark" : "light") : theme;
  }
}
