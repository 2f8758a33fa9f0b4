/** How panels share the width (floor lib). */

/** A panel's share of the width, in percent, and what it may be. */
export interface Share {
  readonly usual: number;
  readonly least: number;
  readonly most: number;
}

const STEP = 2;
const LEAP = 10;

export function within({ least, most }: Share, value: number): number {
  return Math.max(least, Math.min(most, value));
}

/**
 * The share after a key; null: not a key of the divider. `side` is where the panel lies whose share it is: to the left of
 * the divider it grows to the right.
 */
export function afterKey(share: Share, value: number, side: "left" | "right", key: string): number | null {
  const way = side === "left" ? 1 : -1;
  const steps: Readonly<Record<string, number>> = { ArrowRight: STEP * way, ArrowLeft: -STEP * way, PageUp: LEAP, PageDown: -LEAP };
  if (key === "Home") return share.least;
  if (key === "End") return share.most;
  if (key === "Enter") return share.usual;
  const by = steps[key];
  return by === undefined ? null : within(share, value + by);
}
