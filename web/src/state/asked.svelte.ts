/** An answer that follows its question (floor state): asked anew when the question changes, given up when it is gone. */

import { LostError, said } from "./api";

export class Asked<Answer> {
  /** The last answer, which may be to another question: it stays while a new one is waited for. */
  last = $state.raw<Answer | null>(null);
  waiting = $state(false);
  /** A sentence, where there is no answer. */
  error = $state<string | null>(null);
  /** Whether no answer came at all. */
  lost = $state(false);
  /** How often the same was asked again. */
  turn = $state(0);

  /** The answer to what is asked now; null while it is waited for. */
  get current(): Answer | null {
    return this.waiting ? null : this.last;
  }

  /** Asks the same again; null: there is no use in that. */
  get again(): (() => void) | null {
    return this.lost ? () => void (this.turn += 1) : null;
  }
}

/** Call while a component is made. `question` reads what it depends on and returns what asks, or null for nothing. */
export function asking<Answer>(question: () => ((signal: AbortSignal) => Promise<Answer>) | null): Asked<Answer> {
  const asked = new Asked<Answer>();
  $effect(() => {
    const ask = question();
    void asked.turn;
    asked.error = null;
    asked.lost = false;
    asked.waiting = ask !== null;
    if (!ask) {
      asked.last = null;
      return undefined;
    }
    const stop = new AbortController();
    ask(stop.signal).then(
      (answer) => {
        if (stop.signal.aborted) return;
        asked.last = answer;
        asked.waiting = false;
      },
      (error: unknown) => {
        if (stop.signal.aborted) return;
        asked.last = null;
        asked.error = said(error);
        asked.lost = error instanceof LostError;
        asked.waiting = false;
      },
    );
    return () => stop.abort();
  });
  return asked;
}
