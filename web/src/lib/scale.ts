/** From values to shares of a ramp (floor lib), and back for the legend. */

export interface Scale {
  readonly kind: "linear" | "log";
  /** Below it: drawn as nothing and marked as clipped. 0 for a linear scale. */
  readonly low: number;
  /** Above it: drawn as the most and marked as clipped. */
  readonly high: number;
  /** Values of either sign around zero, by their size: the middle of the ramp is zero. */
  readonly signed?: true;
}

/** A log scale shows this many powers of ten below its top. */
export const DECADES = 4;

export function scaleTo(high: number, kind: Scale["kind"]): Scale {
  const top = high > 0 && Number.isFinite(high) ? high : 1;
  return { kind, low: kind === "log" ? top / 10 ** DECADES : 0, high: top };
}

/** A scale of either sign; sizes up to the noise are drawn as nothing. */
export function signedScaleTo(high: number, kind: Scale["kind"], noise = 0): Scale {
  const { low, high: top } = scaleTo(high, kind);
  return { kind, low: Math.min(top, Math.max(low, noise)), high: top, signed: true };
}

/** The share of the ramp, 0 to 1; NaN for what is no number. */
export function shareOf(scale: Scale, value: number): number {
  if (Number.isNaN(value)) return Number.NaN;
  return scale.signed ? 0.5 + (Math.sign(value) * sizeShare(scale, Math.abs(value))) / 2 : sizeShare(scale, value);
}

function sizeShare({ kind, low, high }: Scale, size: number): number {
  if (size <= low) return 0;
  return clamp(kind === "linear" ? size / high : Math.log10(size / low) / Math.log10(high / low));
}

/** The value at a share of the ramp. */
export function valueAt({ kind, low, high, signed }: Scale, share: number): number {
  const size = signed ? Math.abs(2 * share - 1) : share;
  const sign = signed ? Math.sign(2 * share - 1) : 1;
  return sign * (kind === "linear" ? size * high : low * (high / low) ** size);
}

/** Whether a value lies outside what the scale tells apart. An exact zero is not clipped: it is drawn as what it is. */
export function clipped(scale: Scale, value: number): boolean {
  return value > scale.high * (1 + 1e-6) || (value > 0 && value < scale.low);
}

function clamp(share: number): number {
  return Math.max(0, Math.min(1, share));
}
