/** From values to shares of a ramp (floor lib), and back for the legend. */

export interface Scale {
  readonly kind: "linear" | "log";
  /** Below it: drawn as nothing and marked as clipped. 0 for a linear scale. */
  readonly low: number;
  /** Above it: drawn as the most and marked as clipped. */
  readonly high: number;
}

/** A log scale shows this many powers of ten below its top. */
export const DECADES = 4;

export function scaleTo(high: number, kind: Scale["kind"]): Scale {
  const top = high > 0 && Number.isFinite(high) ? high : 1;
  return { kind, low: kind === "log" ? top / 10 ** DECADES : 0, high: top };
}

/** The share of the ramp, 0 to 1; NaN for what is no number. */
export function shareOf(scale: Scale, value: number): number {
  if (Number.isNaN(value)) return Number.NaN;
  if (scale.kind === "linear") return clamp(value / scale.high);
  if (value <= scale.low) return 0;
  return clamp(Math.log10(value / scale.low) / Math.log10(scale.high / scale.low));
}

/** The value at a share of the ramp. */
export function valueAt(scale: Scale, share: number): number {
  if (scale.kind === "linear") return share * scale.high;
  return scale.low * (scale.high / scale.low) ** share;
}

/** Whether a value lies outside what the scale tells apart. An exact zero is not clipped: it is drawn as what it is. */
export function clipped(scale: Scale, value: number): boolean {
  return value > scale.high * (1 + 1e-6) || (value > 0 && value < scale.low);
}

function clamp(share: number): number {
  return Math.max(0, Math.min(1, share));
}
