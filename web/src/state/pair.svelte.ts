/** The exact numbers of one edge in one head (floor state), of the cell that the pointer stays on. */

import type { Pair } from "../wire/api";
import { asking, type Asked } from "./asked.svelte";
import type { Cell } from "./common.svelte";
import type { Looked } from "./explorer.svelte";

const PAUSE_MS = 70;

export type ExactPair = Cell & Pair;

/** Call while a component is made. A cell that the recording does not have is not asked for. */
export function askPair(of: () => Looked, cell: () => Cell | null): Asked<ExactPair> {
  const question = $derived.by(() => {
    const [{ call, head, shown }, at] = [of(), cell()];
    if (!call || !shown || !at || head === null || at.row >= call.destinations || at.column >= call.sources) return null;
    return JSON.stringify({ run: shown.key, call: call.index, head, destination: at.row, source: at.column });
  });
  return asking(() => {
    if (question === null) return null;
    const query = JSON.parse(question) as { run: string; call: number; head: number; destination: number; source: number };
    const { api } = of();
    return async (signal) => {
      // The pointer passes over many cells: those it stays on are asked for.
      if (!api.peek("pair", query)) await pause(signal);
      return { row: query.destination, column: query.source, ...(await api.get<Pair>("pair", query, signal)).facts };
    };
  });
}

function pause(signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, PAUSE_MS);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });
}
