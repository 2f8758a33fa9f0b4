/**
 * What panels have in common that stand side by side (floor state): the scale's top, and where the pointer is. A panel
 * that stands alone has it to itself.
 */

import { untrack } from "svelte";
import { SvelteMap } from "svelte/reactivity";

import type { MapWindow } from "../lib/window";

export interface Cell {
  readonly row: number;
  readonly column: number;
}

export interface Pointed {
  readonly text: "reading" | "read";
  readonly position: number;
}

export class Common {
  /** The cell of a map under the pointer. */
  cell = $state.raw<Cell | null>(null);
  /** The token of a text under the pointer. */
  token = $state.raw<Pointed | null>(null);
  /** Cells along the side of a block that the maps show. */
  block = $state(1);
  /** Where one of the maps was moved to, which one, and whether it stays there. */
  moved = $state.raw<{ readonly by: string; readonly to: MapWindow; readonly ended: boolean } | null>(null);
  private readonly largest = new SvelteMap<string, number>();

  /** Say what a panel's largest value is; null: it shows none. */
  say(who: string, largest: number | null): void {
    // Who says it does not thereby depend on it.
    untrack(() => (largest === null ? this.largest.delete(who) : this.largest.set(who, largest)));
  }

  /** The largest of all of them: what the scale runs to. Null while nothing is shown. */
  get most(): number | null {
    return this.largest.size ? Math.max(...this.largest.values()) : null;
  }
}
