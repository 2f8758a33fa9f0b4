/**
 * What the sources of the chosen destination were worth (floor state): what the recording tells, what was measured, and
 * the measurement while it goes on. One for the page; nothing is asked while nothing shows it.
 */

import { untrack } from "svelte";

import type { Lenses } from "../lib/evidence";
import { PERMITTED } from "../lib/glow";
import { isMeasured } from "../lib/lens";
import { after, LOOKING, mayAsk, type Happened, type Stage } from "../lib/measuring";
import type { Busy, Job, Measured, MeasuredFacts, MeasuredLens, RowFacts, RowLens } from "../wire/api";
import { bytes, floats, type Message } from "../wire/message";
import { LostError, said, type Query } from "./api";
import { asking, type Asked } from "./asked.svelte";
import { scopeOf, type Edges } from "./edges.svelte";
import type { Explorer } from "./explorer.svelte";

const POLL_MS = 250;
/** Other work is looked at less often. */
const BUSY_MS = 1000;
/** So many answers in a row may be lost before the work is given up as lost too. */
const LOST = 10;
/** Being cancelled is told to the server whatever is looked at meanwhile, but not for ever. */
const PATIENCE_MS = 10_000;

export interface Row {
  readonly question: string;
  readonly facts: RowFacts;
  readonly values: Float32Array;
  readonly permitted: Uint8Array;
}

interface Found {
  readonly question: string;
  readonly facts: Measured;
  readonly knockout: Float32Array;
  readonly attribution: Float32Array;
}

export class Evidence {
  stage = $state.raw<Stage>(LOOKING);
  /** Other work that is under way. */
  busy = $state.raw<Busy | null>(null);
  /** By position of the source. */
  readonly lenses: Lenses = $derived.by(() => this.byLens());
  private found = $state.raw<Found | null>(null);
  private readonly rows: Record<RowLens, Asked<Row>>;
  private readonly rowQuestion: string | null = $derived.by(() => this.askedOfRow());
  private readonly question: string | null = $derived.by(() => this.askedOfModel());
  /** The work that is followed: what is told of one before it is not taken for it. */
  private followed: string | null = null;
  /** Whether "measure" was asked for while it was not known yet if it has to be. */
  private eager = false;
  /** Whether what was refused last had no answer at all. */
  private lost = $state(false);
  /** How often the same was looked for again. */
  private turn = $state(0);
  private ended = new AbortController().signal;

  /** Call while a component is made: it lives as long as the component. */
  constructor(private readonly of: () => Explorer) {
    this.rows = { weight: this.askRow("weight"), moved: this.askRow("moved") };
    const asked = $derived(this.question);
    $effect(() => {
      const question = asked;
      void this.turn;
      const stop = new AbortController();
      untrack(() => {
        this.stage = LOOKING;
        this.busy = null;
        this.eager = false;
        this.ended = stop.signal;
        if (question !== null) this.look(question, stop.signal).catch((error: unknown) => this.refused(error, stop.signal));
      });
      return () => stop.abort();
    });
  }

  /** Whether anything shows it. */
  get wanted(): boolean {
    const { side, lens } = this.of().selection;
    return side === "evidence" || isMeasured(lens);
  }

  /** What was found for what is chosen now. */
  get measured(): Measured | null {
    return this.now?.facts ?? null;
  }

  /** A row of the recording, if it is of what is chosen now. */
  row(lens: RowLens): Row | null {
    const { last } = this.rows[lens];
    return last && last.question === this.rowQuestion ? last : null;
  }

  /** Whether the destination may read nothing but itself: there is no source to leave out. */
  get alone(): boolean {
    const { call, destination } = this.of();
    const itself = call && call.of[0] === call.of[1] ? destination : null;
    return this.row("weight")?.permitted.every((may, at) => may !== PERMITTED.yes || at === itself) ?? false;
  }

  error(lens: RowLens): string | null {
    return this.rows[lens].error;
  }

  private byLens(): Lenses {
    const now = this.now;
    const any = (values: Float32Array | undefined): Float32Array | null => (values?.some((value) => !Number.isNaN(value)) ? values : null);
    return {
      weight: this.row("weight")?.values ?? null,
      moved: this.row("moved")?.values ?? null,
      attribution: any(now?.attribution),
      knockout: any(now?.knockout),
    };
  }

  /** What was measured, as what glows in the text. */
  edges(lens: MeasuredLens): Edges | null {
    const [row, now] = [this.row("weight"), this.now];
    const values = this.lenses[lens];
    if (!row || !now || !values) return null;
    const verb = lens === "knockout" ? "loses" : "would lose, to first order,";
    const facts: RowFacts = {
      unit: "nats",
      meaning: `nats that the target ${verb} without the source, ${now.facts.scope}`,
      exact: now.facts.exact[lens],
      sink: null,
      empty: row.facts.empty,
      heads: row.facts.heads,
      largest: null,
    };
    return { of: now.facts.destination, mode: "sources", facts, values, permitted: row.permitted };
  }

  /** Measure what is chosen, or go on with it where it was begun. */
  async measure(): Promise<void> {
    const question = this.question;
    this.eager = question !== null && this.stage.at === "looking";
    if (question === null || !mayAsk(this.stage) || this.alone) return;
    const signal = this.ended;
    this.followed = null;
    this.happen({ is: "asked" }, signal);
    try {
      // The likeliest target is null there; an address leaves it out.
      const wish = { target: null, ...(JSON.parse(question) as Query) };
      const { facts } = await this.of().api.send<{ job: string }>("POST", "jobs", {}, signal, wish);
      await this.follow(question, facts.job, signal);
    } catch (error) {
      this.refused(error, signal);
    }
  }

  /** Asks again for what no answer came to; null: there is nothing. */
  get again(): (() => void) | null {
    const rows = Object.values(this.rows).flatMap(({ again }) => again ?? []);
    if (!rows.length && !(this.stage.at === "refused" && this.lost)) return null;
    return () => {
      rows.forEach((again) => again());
      if (this.stage.at === "refused") this.turn += 1;
    };
  }

  cancel(): void {
    if (this.stage.at !== "working") return;
    const [signal, { job }] = [this.ended, this.stage.job];
    this.happen({ is: "cancel" }, signal);
    this.end(job).then(({ facts }) => this.told(facts, signal), (error: unknown) => this.refused(error, signal));
  }

  /** Cancel the other work that is under way. */
  cancelOther(): void {
    const [signal, job] = [this.ended, this.busy?.job];
    if (job !== undefined) this.end(job).catch((error: unknown) => this.refused(error, signal));
  }

  private end(job: string): Promise<Message<Job>> {
    return this.of().api.send<Job>("DELETE", "job", { job }, AbortSignal.timeout(PATIENCE_MS));
  }

  private get now(): Found | null {
    return this.stage.at === "measured" && this.found?.question === this.question ? this.found : null;
  }

  private askedOfRow(): string | null {
    const explorer = this.of();
    const scope = this.wanted ? scopeOf(explorer) : null;
    return scope && JSON.stringify({ ...scope, destination: explorer.destination });
  }

  private askedOfModel(): string | null {
    const explorer = this.of();
    const scope = this.wanted ? scopeOf(explorer) : null;
    if (!scope || !explorer.call) return null;
    const { target } = explorer.selection;
    const query: Query = { ...scope, like: explorer.call.index, destination: explorer.destination, ...(target === null ? {} : { target }) };
    return JSON.stringify(query);
  }

  private askRow(lens: RowLens): Asked<Row> {
    // What moved is of use beside the weights; in the text alone it is not asked for.
    const asked = $derived(lens === "weight" || this.of().selection.side === "evidence" ? this.rowQuestion : null);
    return asking(() => {
      const question = asked;
      if (question === null) return null;
      return async (signal) => {
        const message = await this.of().api.get<RowFacts>("row", { ...(JSON.parse(question) as Query), lens }, signal);
        return { question, facts: message.facts, values: floats(message, "values"), permitted: bytes(message, "permitted") };
      };
    });
  }

  /** Ask for what was found; work on it that is under way, whoever asked for it, is followed. */
  private async look(question: string, signal: AbortSignal): Promise<void> {
    const message = await this.of().api.send<MeasuredFacts>("GET", "measured", JSON.parse(question) as Query, signal);
    const { facts } = message;
    if (signal.aborted) return;
    const eager = this.eager;
    this.eager = false;
    this.busy = facts.measured ? null : facts.busy;
    if (!facts.measured && facts.job) return this.follow(question, facts.job.job, signal);
    if (facts.measured) this.found = { question, facts, knockout: floats(message, "knockout"), attribution: floats(message, "attribution") };
    this.happen({ is: "answer", measured: facts.measured, why: facts.measured ? null : facts.why }, signal);
    if (eager) await this.measure();
    while (this.busy && this.stage.at !== "measured") {
      await pause(BUSY_MS, signal);
      const other = (await this.of().api.send<MeasuredFacts>("GET", "measured", JSON.parse(question) as Query, signal)).facts;
      this.busy = other.measured ? null : other.busy;
    }
  }

  /** Ask how far the work is until it is over, then for what it found. */
  private async follow(question: string, job: string, signal: AbortSignal): Promise<void> {
    this.followed = job;
    while (this.followed === job) {
      const { facts } = await this.patiently(() => this.of().api.send<Job>("GET", "job", { job }, signal), signal);
      this.told(facts, signal);
      if (!signal.aborted) this.busy = facts.busy;
      if (facts.state === "waiting" || facts.state === "running") await pause(POLL_MS, signal);
      else {
        if (facts.state === "done") await this.look(question, signal);
        return;
      }
    }
  }

  /** Ask again for what did not come: the work goes on though an answer was lost. */
  private async patiently<Answer>(ask: () => Promise<Answer>, signal: AbortSignal): Promise<Answer> {
    for (let left = LOST; left > 0; left -= 1) {
      try {
        return await ask();
      } catch (error) {
        if (!(error instanceof LostError)) throw error;
        await pause(BUSY_MS, signal);
      }
    }
    return ask();
  }

  private told(job: Job, signal: AbortSignal): void {
    if (job.job === this.followed) this.happen({ is: "job", job }, signal);
  }

  private happen(happened: Happened, signal: AbortSignal): void {
    if (!signal.aborted) this.stage = after(this.stage, happened);
  }

  private refused(error: unknown, signal: AbortSignal): void {
    const why = said(error);
    if (!signal.aborted) this.lost = error instanceof LostError;
    if (why !== null) this.happen({ is: "refusal", why }, signal);
  }
}

function pause(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const leave = (): void => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal.removeEventListener("abort", leave);
      resolve();
    }, milliseconds);
    signal.addEventListener("abort", leave, { once: true });
  });
}
