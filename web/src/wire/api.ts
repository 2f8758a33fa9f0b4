/** The shapes of the server's answers (floor wire), as its interface states them. */

/** What a recording alone tells, and what it takes a run of the model to know. */
export type RowLens = "weight" | "moved";
export type MeasuredLens = "attribution" | "knockout";
export type Lens = RowLens | MeasuredLens;

/** What lies on the shelf. */
export interface RunsFacts {
  readonly runs: readonly RunEntry[];
  /** Whether the folder holds more than are listed, and how many are listed at most. */
  readonly more?: boolean;
  readonly most?: number;
  /** Whether there is a folder, so that others may come. */
  readonly folder?: boolean;
}

/** A recording on the shelf: with what is known of it, or with the sentence why it cannot be opened. */
export interface RunEntry {
  readonly key: string;
  readonly model?: string;
  readonly tokens?: number;
  readonly calls?: number;
  readonly bytes?: number | null;
  readonly error?: string;
}

export interface Call {
  readonly index: number;
  readonly layer: number;
  readonly name: string;
  readonly kind: string;
  readonly part: string;
  readonly repeat: number;
  /** The heads' true numbers. */
  readonly heads: readonly number[];
  readonly all_heads: number;
  readonly destinations: number;
  readonly sources: number;
  /** The texts that destinations and sources are of. */
  readonly of: readonly [number, number];
  readonly all_rows: boolean;
  readonly rows: number;
  readonly mask: string;
  readonly window: number | null;
  readonly softcap: number | null;
  readonly sinks: boolean;
  readonly bias: boolean;
  readonly output: boolean;
  readonly kernel: string;
  readonly levels: number;
  readonly checked: boolean;
}

export interface Layer {
  readonly part: string;
  readonly layer: number;
  readonly call: readonly number[];
  readonly gap: string | null;
}

export interface Run {
  readonly key: string;
  readonly model: {
    readonly name: string;
    readonly fingerprint: string;
    readonly layers: number;
    readonly heads: number;
    readonly kv_heads: number;
    readonly head_size: number;
    readonly context: number;
    readonly kind: string;
  };
  readonly texts: readonly { readonly tokens: number; readonly numbered: boolean }[];
  readonly calls: readonly Call[];
  readonly layers: readonly Layer[];
  readonly gaps: readonly string[];
  readonly written_from: number | null;
  readonly seconds: number;
  readonly predictions: number;
  readonly checks: string;
  readonly stored: string | null;
  readonly default: { readonly call: number; readonly destination: number };
}

/** What a person sees of a token, and the characters that it adds to the running text. */
export type Token = readonly [label: string, own: string];
export type Guess = readonly [label: string, share: number];
/** At a position: the best guesses for the next token, and the share that the token got which really came. */
export type Prediction = readonly [position: number, best: readonly Guess[], came: number | null];

export interface Tokens {
  readonly start: number;
  readonly tokens: readonly Token[];
  readonly predicted: readonly Prediction[];
}

export interface Places {
  readonly places: readonly (readonly [first: number, after: number])[];
  readonly more: boolean;
}

export const KINDS = ["sink", "previous", "induction", "duplicate", "itself", "local", "broad", "unknown"] as const;
export type Kind = (typeof KINDS)[number];

/** Where a call could not be scanned as a whole, `why_not` says why and the rest is not there. */
export interface HeadsFacts {
  readonly heads: readonly number[];
  readonly figures?: readonly string[];
  readonly kinds?: readonly Kind[];
  readonly why?: readonly string[];
  readonly blocks?: number;
  readonly whole: boolean;
  readonly why_not: string | null;
}

export interface RowFacts {
  readonly unit: string;
  readonly meaning: string;
  readonly exact?: string;
  readonly sink: number | null;
  readonly empty: boolean;
  readonly heads: number;
  readonly largest: { readonly at: number; readonly value: number } | null;
}

export interface TileFacts {
  readonly block: number;
  readonly destinations: readonly [first: number, stop: number];
  readonly sources: readonly [first: number, stop: number];
  readonly exact?: string;
}

/** A destination of one head worked through; an empty row has nothing else. */
export type NumbersFacts = { readonly empty: true } | ({ readonly empty: false } & RowOfNumbers);

export interface RowOfNumbers {
  readonly scale: number;
  readonly softcap: number | null;
  readonly lse: number;
  /** The share of the row that the sink takes. */
  readonly sink: number | null;
  /** The positions of the strongest, in the order of the arrays. */
  readonly sources: readonly number[];
  readonly rest: { readonly count: number; readonly weight: number };
  /** By how much the row's weights miss 1; the recording's own check of the kernel's output, where it was made. */
  readonly off: { readonly sum: number; readonly output: number | null };
  readonly exact?: string;
}

export interface Pair {
  readonly weight: number | null;
  readonly score: number | null;
  readonly permitted: boolean;
  readonly mark: number;
  readonly moved: number | null;
}

/** Long work of the server, and how far it is. */
export interface Job {
  readonly job: string;
  readonly state: "waiting" | "running" | "done" | "cancelled" | "failed";
  readonly what: string;
  readonly done: number;
  readonly total: number;
  readonly error: string | null;
  /** Seconds that what is being done will take yet, if its steps go on as they did; null: nothing to judge by. */
  readonly left: number | null;
  /** What it waits for; null: it does not wait. */
  readonly busy: Busy | null;
}

/** A head that was cut alone: what the target lost, and the head's weight. */
export interface Carrier {
  readonly layer: number;
  readonly head: number;
  readonly nats: number;
  readonly weight: number;
}

export interface CarriedSource {
  readonly source: number;
  readonly heads: readonly Carrier[];
  /** The head that goes furthest the other way, one of the others; null: none does. */
  readonly opposing: Carrier | null;
  readonly others: number;
  readonly others_nats: number;
}

export interface MeasuredTarget {
  readonly id: number;
  readonly label: string;
  readonly probability: number;
  readonly nats: number;
}

/** What the sources of one destination were worth to a target; nats by source stand in the arrays beside it. */
export interface Measured {
  readonly measured: true;
  readonly destination: number;
  readonly target: MeasuredTarget;
  readonly scope: string;
  /** Nats below which a knock-out is rounding. */
  readonly noise: number;
  readonly exact: { readonly knockout: string; readonly attribution: string };
  readonly why_no_attribution: string | null;
  readonly seconds: { readonly attribution: number; readonly knockout: number; readonly heads: number };
  readonly carried: readonly CarriedSource[];
}

/** What was found; or that nothing was, and whether it can be: the sentence why not; the work that is under way, or failed. */
/** What else is being measured. */
export interface Busy {
  readonly job: string;
  readonly destination: number;
  /** Whether it is of the same recording. */
  readonly here: boolean;
}
export type MeasuredFacts =
  | { readonly measured: false; readonly possible: boolean; readonly why: string | null; readonly job: Job | null; readonly busy: Busy | null }
  | Measured;
