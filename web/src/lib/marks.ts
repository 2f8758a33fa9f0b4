/** Marks of a map's cells (floor lib), as the server numbers them, and what each says. */

export const MARK = { weight: 0, forbidden: 1, empty: 2, unrecorded: 3 } as const;

export const MARK_WORDS: Record<number, string> = {
  [MARK.weight]: "a weight",
  [MARK.forbidden]: "not permitted: the mask keeps this destination from reading this source",
  [MARK.empty]: "empty row: this destination may read nothing, so it has no weights",
  [MARK.unrecorded]: "not recorded",
};

export const MARK_NAMES = ["weight", "not permitted", "empty row", "not recorded"] as const;
