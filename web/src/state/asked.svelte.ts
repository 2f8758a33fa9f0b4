/** An answer that follows its question (floor state): asked anew when the question changes, given up when it is gone. */

import { said } from "./api";

export class Asked<Answer> {
  /** The last answer; the one before stays while a new one is waited for. */
  value = $state.raw<Answer | null>(null);
  waiting = $state(false);
  /** A sentence, where there is no answer. */
  error = $state<string | null>(null);

  /** The answer to what is asked now; null while it is waited for. */
  get current(): Answer | null {
    return this.waiting ? null : this.value;
  }
}

/** Call while a component is made. `question` reads what it depends on and returns what asks, or null for nothing. */
export function asking<Answer>(question: () => ((signal: AbortSignal) => Promise<Answer>) | null): Asked<Answer> {
  const asked = new Asked<Answer>();
  $effect(() => {
    const ask = question();
    asked.error = null;
    asked.waiting = ask !== null;
    if (!ask) {
      asked.value = null;
      return undefined;
    }
    const stop = new AbortController();
    ask(stop.signal).then(
      (answer) => {
        if (stop.signal.aborted) return;
        asked.value = answer;
        asked.waiting = false;
      },
      (error: unknown) => {
        if (stop.signal.aborted) return;
        asked.value = null;
        asked.error = said(error);
        asked.waiting = false;
      },
    );
    return () => stop.abort();
  });
  return asked;
}
