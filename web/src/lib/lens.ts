/** The lenses in words and colours (floor lib). */

import type { Lens, MeasuredLens } from "../wire/api";

export const LENS_NAMES: Record<Lens, string> = { weight: "weight", moved: "moved", attribution: "attribution", knockout: "knock-out" };
/** The page's own names of their colours. */
export const LENS_COLOURS: Record<Lens, string> = { weight: "var(--weight)", moved: "var(--moved)", attribution: "var(--attribution)", knockout: "var(--knockout)" };

export const LENS_WORDS: Record<Lens, string> = {
  weight: "share of the row that the source has: how values were mixed",
  moved: "length of what the source's value adds to the destination",
  attribution: "estimate: what the target's log-probability would lose without the source, to first order, from one backward pass",
  knockout: "measured: what the target's log-probability loses when the destination may not read the source",
};

/** Known only by running the model, and of the sources of one destination. */
export const isMeasured = (lens: Lens): lens is MeasuredLens => lens === "attribution" || lens === "knockout";

/** Lenses whose values add up over the sources of a row: shares of it, and first-order estimates. */
const ADDS_UP: Record<Lens, boolean> = { weight: true, moved: false, attribution: true, knockout: false };

/** Whether values of tokens add up; those of readers are of as many different rows, and never do. */
export function addsUp(lens: Lens, mode: "sources" | "readers"): boolean {
  return ADDS_UP[lens] && mode === "sources";
}
