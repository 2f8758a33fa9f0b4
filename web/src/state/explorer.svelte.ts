/** The explorer's state (floor state): the selection, the address that holds it, and the recording that it is of. */

import { absentWords, type Offered, offeredBy, partnerOf } from "../lib/beside";
import type { Share } from "../lib/split";
import type { Call, Run } from "../wire/api";
import { format, misread, parse } from "./address";
import { Api } from "./api";
import { Asked, asking } from "./asked.svelte";
import { Beside } from "./beside.svelte";
import { Colours } from "./colours.svelte";
import type { Held } from "./held";
import { changed, START, type Selection } from "./selection";
import { type Text, Texts } from "./text.svelte";

/** What the heads, and what stands beside the text, have of the width. */
export const HEADS_SHARE: Share = { usual: 24, least: 16, most: 40 };
export const SIDE_SHARE: Share = { usual: 36, least: 26, most: 52 };

/** Browsers refuse more changes of the address than a few a second. */
const PAUSE_MS = 200;

/** A recording as the selection looks at it: the one that is shown, or the one beside it. */
export type Looked = Pick<
  Explorer,
  "api" | "selection" | "theme" | "shown" | "call" | "head" | "destination" | "source" | "offered" | "absent" | "beyond" | "held" | "text" | "choose" | "pick" | "chooseHead"
>;

export class Explorer {
  selection = $state.raw<Selection>(START);
  /** Widths last as long as the visit: a link shows the same in a window of any width. */
  layout = $state.raw({ heads: HEADS_SHARE.usual, side: SIDE_SHARE.usual });
  readonly run: Asked<Run>;
  /** The recording that this one is compared with. */
  readonly beside: Beside;
  readonly colours: Colours;
  /** What of the address that was read last was not understood, as sentences, until they are put away. */
  misread = $state.raw<readonly string[]>([]);
  /** The list was asked for: a single recording does not open by itself. */
  listed = false;
  private timer: ReturnType<typeof setTimeout> | undefined;
  /** The address that was read or written last. */
  private known: string;
  private readonly texts: Texts;

  /** Call while the page's component is made. */
  constructor(
    private readonly place: Window,
    readonly api = new Api(),
    /** What a page that holds its answers holds. */
    readonly held: Held | null = null,
  ) {
    this.texts = new Texts(api);
    this.known = place.location.hash;
    this.understand();
    this.colours = new Colours(place);
    place.addEventListener("hashchange", () => this.read());
    place.addEventListener("pagehide", () => this.write());
    const key = $derived(this.selection.run);
    this.run = asking(() => {
      const run = key;
      return run === null ? null : async (signal) => (await this.api.get<Run>("run", { run }, signal)).facts;
    });
    this.beside = new Beside(this);
  }

  /** The recording that is shown, once its answer is that of the selection. */
  get shown(): Run | null {
    const run = this.run.last;
    return run && run.key === this.selection.run ? run : null;
  }

  get theme(): "light" | "dark" {
    return this.colours.now;
  }

  /** What is shown where nothing is chosen: what a file carries, else the recording's own suggestion. */
  private get usual(): Run["default"] | null {
    return this.shown && (this.held?.about.first ?? this.shown.default);
  }

  get call(): Call | null {
    const wanted = this.selection.call ?? this.usual?.call;
    return this.calls.find((call) => call.index === wanted) ?? this.calls[0] ?? null;
  }

  /** The calls that can be chosen: beside another recording those that it has too. */
  get calls(): readonly Call[] {
    const [own, other] = [this.shown?.calls ?? [], this.beside.shown?.calls];
    return other ? own.filter((call) => partnerOf(call, other)) : own;
  }

  /** What of the chosen call can be chosen. */
  get offered(): Offered | null {
    return this.call && offeredBy(this.call, this.beside.call);
  }

  /** The head's true number; null: all. A head that this call does not have counts as none chosen. */
  get head(): number | null {
    const { head } = this.selection;
    return head !== null && this.offered?.heads.includes(head) ? head : null;
  }

  get destination(): number {
    const wanted = this.selection.destination ?? this.usual?.destination ?? 0;
    return Math.max(0, Math.min(wanted, (this.offered?.destinations ?? 1) - 1));
  }

  /** Null: none is chosen. Whose readers are asked for is then the token that reads, if it is of the text that is read. */
  get source(): number | null {
    if (!this.call || !this.offered) return null;
    const { source, mode } = this.selection;
    const [reading, read] = this.call.of;
    const wanted = source ?? (mode === "sources" ? null : reading === read ? this.destination : 0);
    return wanted === null ? null : Math.min(wanted, this.offered.sources - 1);
  }

  /** The positions that an address asks for and that are not there: the last ones are chosen in their place. */
  get beyond(): readonly { readonly wanted: number; readonly chosen: number }[] {
    if (!this.offered) return [];
    const { destination, source } = this.selection;
    const asked = [[destination, this.destination], [source, this.source]] as const;
    const found = asked.flatMap(([wanted, chosen]) => (wanted === null || chosen === null || wanted === chosen ? [] : [{ wanted, chosen }]));
    const [one, two] = found;
    return one && two && one.wanted === two.wanted && one.chosen === two.chosen ? [one] : found;
  }

  /** The call and the head that an address asks for and that are not there, in words. */
  get absent(): readonly string[] {
    if (!this.call) return [];
    const { call, head } = this.selection;
    const missing = { call: call === this.call.index ? null : call, head: head === this.head ? null : head };
    return absentWords(missing, this.call, this.calls, this.beside.call !== null);
  }

  /** The text that destinations or sources of the chosen call are of. */
  text(of: "destinations" | "sources"): Text | null {
    return this.texts.of(this.shown, this.call, of);
  }

  /** Change the selection. The address follows; another recording or page is a step that "back" undoes, if it was chosen. */
  choose(change: Partial<Selection>, byItself = false): void {
    const before = this.selection;
    const after = changed(before, change);
    const step = after.run !== before.run || after.beside !== before.beside || after.page !== before.page;
    // "Back" leads to what was chosen last before the step, also if the address does not say so yet.
    if (step && !byItself) this.write();
    this.selection = after;
    if (step && byItself) this.write();
    else if (step) {
      this.place.history.pushState(null, "", format(after));
      this.known = this.place.location.hash;
    }
    else this.timer ??= setTimeout(() => this.write(), PAUSE_MS);
  }

  /** Open another recording: positions, heads and the map's window are of the one before, how to look is kept. */
  open(run: string | null, every = false, byItself = false): void {
    this.choose({ run, beside: null, page: "explore", call: null, every, head: null, destination: null, source: null, window: null, target: null }, byItself);
  }

  /** The list of recordings, also where there is but one. */
  list(): void {
    this.listed = true;
    this.open(null);
  }

  /** Look at the recording beside another; null: which one is still to be chosen. */
  compare(beside: string | null): void {
    this.choose({ page: "compare", beside });
  }

  /** Look at the first recording by itself again. */
  alone(): void {
    this.choose({ page: "explore", beside: null });
  }

  /** The second recording first. */
  swap(): void {
    const { run, beside } = this.selection;
    // A call's index is one of its own recording.
    this.choose({ run: beside, beside: run, call: this.beside.call?.index ?? null });
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
    const { calls } = this;
    const now = calls.findIndex((call) => call.index === this.call?.index);
    const next = calls[Math.max(0, Math.min(calls.length - 1, now + by))];
    if (next) this.choose({ call: next.index, every: false });
  }

  /** Through all heads, then each in turn. */
  stepHead(by: number): void {
    const heads: (number | null)[] = [null, ...(this.offered?.heads ?? [])];
    const now = heads.indexOf(this.head);
    this.choose({ head: heads[(now + by + heads.length) % heads.length] ?? null });
  }

  private write(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    // Another address may have been entered a moment ago: it is about to be read.
    if (this.place.location.hash !== this.known) return;
    const address = format(this.selection);
    if (address !== this.known) this.place.history.replaceState(null, "", address);
    this.known = this.place.location.hash;
  }

  private read(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.known = this.place.location.hash;
    this.understand();
  }

  private understand(): void {
    this.selection = parse(this.known);
    this.misread = misread(this.known);
  }
}
