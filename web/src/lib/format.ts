/** Numbers as people read them (floor lib). */

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const MINUS = "\u2212";

/** A count or a position, with thin grouping: 32,768. */
export function whole(value: number): string {
  return WHOLE.format(value);
}

/** A measured value to so many digits that count; never more than it has, never "0" for what is not zero. */
export function digits(value: number | null, count = 3): string {
  if (value === null || Number.isNaN(value)) return "none";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-4 || size >= 1e6) {
    const [mantissa = "", exponent = "0"] = value.toExponential(count - 1).split("e");
    return `${signed(mantissa)}\u00d710${raised(Number(exponent))}`;
  }
  return signed(value.toPrecision(count).includes("e") ? WHOLE.format(value) : value.toPrecision(count));
}

/** Two digits that count, for narrow columns: 0.0031, 3.9e−10. */
export function brief(value: number): string {
  const size = Math.abs(value);
  if (value === 0 || (size >= 1e-4 && size < 1e6)) return digits(value, 2);
  return value.toExponential(1).replace("e+", "e").replaceAll("-", MINUS);
}

/** A share of 1 as a percentage: 54 %, 0.31 %, < 0.01 %. */
export function percent(share: number | null): string {
  if (share === null || Number.isNaN(share)) return "none";
  const value = 100 * share;
  if (value === 0) return "0 %";
  if (value < 0.01) return "< 0.01 %";
  return `${value >= 10 ? value.toFixed(0) : value >= 1 ? value.toFixed(1) : value.toFixed(2)} %`;
}

/** A round number, as an axis has them: 0.15, −0.5, 2×10⁻⁵; without digits that only rounding made. */
export function plain(value: number): string {
  return value !== 0 && Math.abs(value) < 1e-4 ? digits(value, 1) : signed(String(Number(value.toPrecision(6))));
}

/** What a cut does to the target, in words: "loses 1.40 nats". */
export function lossWords(nats: number): string {
  return nats === 0 ? "loses nothing" : `${nats > 0 ? "loses" : "gains"} ${digits(Math.abs(nats))} nats`;
}

/** A size in bytes. */
export function size(bytes: number): string {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let value = bytes;
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? value.toFixed(0) : value.toFixed(1)} ${units[unit]}`;
}

/** A time, no finer than it is known beforehand: "8 s", "3 min", "2 h 10 min". */
export function time(seconds: number): string {
  const full = Math.max(1, Math.ceil(seconds));
  if (full < 90) return `${full} s`;
  const minutes = Math.ceil(full / 60);
  if (minutes < 90) return `${minutes} min`;
  return `${Math.floor(minutes / 60)} h${minutes % 60 ? ` ${minutes % 60} min` : ""}`;
}

/** "1 head", "9 heads". */
export function counted(count: number, one: string, many = `${one}s`): string {
  return `${whole(count)} ${count === 1 ? one : many}`;
}

function signed(text: string): string {
  return text.replace("-", MINUS);
}

function raised(exponent: number): string {
  const signs: Record<string, string> = { "-": "\u207b", "0": "\u2070", "1": "\u00b9", "2": "\u00b2", "3": "\u00b3" };
  return [...String(exponent)].map((sign) => signs[sign] ?? String.fromCodePoint(0x2070 + Number(sign))).join("");
}
