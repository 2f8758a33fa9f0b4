/**
 * Asking the server (floor state): at most four requests in flight, what was answered kept up to a bound of bytes,
 * what nobody waits for any more given up.
 */

import { decode, type Message } from "../wire/message";

export type Query = Readonly<Record<string, string | number>>;

/** A sentence for people: the server's own, or ours where it could not answer. */
export class ApiError extends Error {
  override readonly name = "ApiError";
}

/** No answer came. */
export class LostError extends ApiError {}

interface Flight {
  readonly promise: Promise<Message<unknown>>;
  readonly stop: AbortController;
  waiting: number;
}

const MOST_AT_ONCE = 4;
const MOST_BYTES = 48 * 1024 * 1024;
/** What a kept answer costs besides its bytes. */
const OVERHEAD = 512;
const ARRAYS = "application/octet-stream";
/** Where it is asked what there is in a recording. */
const OPENING = "api/run?";

export class Api {
  private readonly kept = new Map<string, Message<unknown>>();
  private readonly flights = new Map<string, Flight>();
  private readonly queue: (() => void)[] = [];
  /** Of each recording that was opened, which writing of its file this page shows. */
  private readonly versions = new Map<string, string>();
  private running = 0;
  private held = 0;

  constructor(
    private readonly ask: typeof fetch = (input, init) => fetch(input, init),
    private readonly most = MOST_BYTES,
  ) {}

  /** Bytes that are kept; never above the bound. */
  get size(): number {
    return this.held;
  }

  /** Ask, or take what was answered before. Aborting the signal gives up; the request ends when nobody waits for it. */
  async get<Facts>(path: string, query: Query, signal: AbortSignal): Promise<Message<Facts>> {
    signal.throwIfAborted();
    const address = addressOf(path, query);
    const kept = this.kept.get(address);
    if (kept) {
      // Asked for last, dropped last.
      this.kept.delete(address);
      this.kept.set(address, kept);
      return kept as Message<Facts>;
    }
    return (await this.join(address, signal)) as Message<Facts>;
  }

  /** What is kept of an answer, without asking. */
  peek<Facts>(path: string, query: Query): Message<Facts> | undefined {
    return this.kept.get(addressOf(path, query)) as Message<Facts> | undefined;
  }

  /** Ask for what changes while one looks, or for something to be done: nothing of it is kept. */
  send<Facts>(method: "GET" | "POST" | "DELETE", path: string, query: Query, signal: AbortSignal, body?: Readonly<Record<string, unknown>>): Promise<Message<Facts>> {
    const asked = body === undefined ? { method } : { method, body: JSON.stringify({ ...body, version: this.versions.get(String(body["run"])) }) };
    return this.inTurn(signal, () => this.fetched(addressOf(path, query), signal, asked)) as Promise<Message<Facts>>;
  }

  private join(address: string, signal: AbortSignal): Promise<Message<unknown>> {
    const flight = this.flights.get(address) ?? this.start(address);
    flight.waiting += 1;
    return new Promise((resolve, reject) => {
      const leave = (): void => {
        reject(signal.reason);
        flight.waiting -= 1;
        if (flight.waiting === 0) {
          if (this.flights.get(address) === flight) this.flights.delete(address);
          flight.stop.abort();
        }
      };
      signal.addEventListener("abort", leave, { once: true });
      flight.promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", leave));
    });
  }

  private start(address: string): Flight {
    const stop = new AbortController();
    const promise = this.inTurn(stop.signal, async () => {
      const message = await this.fetched(address, stop.signal);
      this.keep(address, message);
      return message;
    });
    const flight: Flight = { promise, stop, waiting: 0 };
    this.flights.set(address, flight);
    const forget = (): void => {
      if (this.flights.get(address) === flight) this.flights.delete(address);
    };
    promise.then(forget, forget);
    return flight;
  }

  private async inTurn<Answer>(signal: AbortSignal, work: () => Promise<Answer>): Promise<Answer> {
    await this.turn(signal);
    try {
      return await work();
    } finally {
      this.running -= 1;
      this.queue.shift()?.();
    }
  }

  /** Wait for one of the four places. */
  private turn(signal: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      const go = (): void => {
        signal.removeEventListener("abort", leave);
        this.running += 1;
        resolve();
      };
      const leave = (): void => {
        const place = this.queue.indexOf(go);
        if (place >= 0) this.queue.splice(place, 1);
        reject(signal.reason);
      };
      if (this.running < MOST_AT_ONCE) go();
      else {
        signal.addEventListener("abort", leave, { once: true });
        this.queue.push(go);
      }
    });
  }

  private async fetched(address: string, signal: AbortSignal, asked: RequestInit = {}): Promise<Message<unknown>> {
    let answer: Response;
    try {
      answer = await this.ask(this.versioned(address), { ...asked, signal, headers: { accept: `application/json, ${ARRAYS}`, ...(asked.body ? { "content-type": "application/json" } : {}) } });
    } catch (error) {
      if (signal.aborted) throw error;
      throw new LostError("The server does not answer. Is `wherefrom explore` still running?");
    }
    if (!answer.ok) throw new ApiError(await sentence(answer));
    if (answer.headers.get("content-type")?.startsWith(ARRAYS)) return decode(await answer.arrayBuffer());
    const text = await answer.text();
    const facts = JSON.parse(text) as unknown;
    if (address.startsWith(OPENING)) this.opened(facts as { key?: string; version?: string });
    // Parsed text takes more memory than its characters; a factor is near enough for a bound.
    return { facts, arrays: {}, bytes: 4 * text.length };
  }

  /** The address, with which writing of the recording it is about: of another one nothing is mixed into the page. */
  private versioned(address: string): string {
    const run = new URLSearchParams(address.slice(address.indexOf("?") + 1)).get("run");
    const version = run === null || address.startsWith(OPENING) ? undefined : this.versions.get(run);
    return version === undefined ? address : `${address}&version=${version}`;
  }

  private opened({ key, version }: { key?: string; version?: string }): void {
    if (key === undefined || version === undefined) return;
    if ((this.versions.get(key) ?? version) !== version) throw new ApiError("The recording was written anew since this page opened it. Load the page again.");
    this.versions.set(key, version);
  }

  private keep(address: string, message: Message<unknown>): void {
    const cost = message.bytes + OVERHEAD;
    if (cost > this.most) return;
    this.kept.set(address, message);
    this.held += cost;
    for (const [oldest, dropped] of this.kept) {
      if (this.held <= this.most) break;
      this.kept.delete(oldest);
      this.held -= dropped.bytes + OVERHEAD;
    }
  }
}

/** The sentence to show for whatever went wrong; null when it was merely given up. */
export function said(error: unknown): string | null {
  if (error instanceof DOMException && error.name === "AbortError") return null;
  return error instanceof Error ? error.message : "Something went wrong that has no words.";
}

function addressOf(path: string, query: Query): string {
  const words = Object.entries(query).map(([name, value]) => [name, String(value)]);
  return words.length ? `api/${path}?${new URLSearchParams(words).toString()}` : `api/${path}`;
}

async function sentence(answer: Response): Promise<string> {
  try {
    // What is turned away at the door has its sentence in plain words.
    if (answer.headers.get("content-type")?.startsWith("text/plain")) return await answer.text();
    const { error } = (await answer.json()) as { error?: unknown };
    if (typeof error === "string") return error;
  } catch {
    // Neither: say what is known.
  }
  return `The server answered with ${answer.status} and gave no reason.`;
}
