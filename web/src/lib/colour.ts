/**
 * Colours (floor lib). Ramps are even to the eye: they run in OKLCH, where equal steps look equal, at one hue a lens,
 * so that they are read by lightness alone whoever looks.
 */

import type { Kind, Lens } from "../wire/api";
import { isMeasured } from "./lens";

export type Theme = "light" | "dark";

/** A lookup table of 256 colours, four bytes each (red, green, blue, alpha). */
export type Ramp = Uint8ClampedArray;

interface Hue {
  readonly chroma: number;
  readonly hue: number;
}

const LENS_HUES: Record<Lens, Hue> = {
  weight: { chroma: 0.15, hue: 253 },
  moved: { chroma: 0.11, hue: 190 },
  attribution: { chroma: 0.14, hue: 68 },
  knockout: { chroma: 0.18, hue: 27 },
};

/** What is measured has either sign: what speaks against the target is violet. */
const AGAINST: Hue = { chroma: 0.16, hue: 297 };

const KIND_HUES: Record<Kind, Hue> = {
  sink: { chroma: 0, hue: 260 },
  previous: { chroma: 0.15, hue: 55 },
  induction: { chroma: 0.19, hue: 355 },
  duplicate: { chroma: 0.17, hue: 305 },
  itself: { chroma: 0.14, hue: 100 },
  local: { chroma: 0.14, hue: 150 },
  broad: { chroma: 0.12, hue: 225 },
  unknown: { chroma: 0, hue: 260 },
};

/** Numbers of either sign: rust below zero, sea green above, apart for every kind of colour vision. */
const SIGNED = { below: { chroma: 0.14, hue: 48 }, above: { chroma: 0.11, hue: 195 } } as const;

/** From nothing to the most, for pictures: the lightness of the ground to that of the strongest colour. */
const PICTURE = { light: [0.985, 0.36], dark: [0.235, 0.9] } as const;
/** The same behind running text, only so far that the text stays readable. */
const BEHIND_TEXT = { light: [1.0, 0.7], dark: [0.24, 0.5] } as const;
const GROUND_HUE = 260;
const STEPS = 256;

const made = new Map<string, Ramp>();

/** The ramp of a lens, for maps. */
export function lensRamp(lens: Lens, theme: Theme): Ramp {
  return kept(`lens ${lens} ${theme}`, () => ofLens(lens, PICTURE[theme]));
}

/** The ramp of a lens behind text. */
export function glowRamp(lens: Lens, theme: Theme): Ramp {
  return kept(`glow ${lens} ${theme}`, () => ofLens(lens, BEHIND_TEXT[theme]));
}

function ofLens(lens: Lens, way: readonly [number, number]): Ramp {
  const above = ramp(LENS_HUES[lens], way);
  return isMeasured(lens) ? joined(ramp(AGAINST, way), above) : above;
}

/** The ramp of a kind of head, for thumbnails. */
export function kindRamp(kind: Kind, theme: Theme): Ramp {
  return kept(`kind ${kind} ${theme}`, () => ramp(KIND_HUES[kind], PICTURE[theme]));
}

/** The ramp of signed numbers: 0 is minus the most, the middle is zero, 1 is the most. */
export function signedRamp(theme: Theme): Ramp {
  return kept(`signed ${theme}`, () => joined(ramp(SIGNED.below, PICTURE[theme]), ramp(SIGNED.above, PICTURE[theme])));
}

/** Two ramps from one zero in the middle. */
function joined(below: Ramp, above: Ramp): Ramp {
  const table = new Uint8ClampedArray(4 * STEPS);
  for (let at = 0; at < STEPS; at += 1) {
    // Of the 256 steps the two in the middle are both zero.
    const size = Math.max(0, Math.round(Math.abs(2 * at - (STEPS - 1))) - 1);
    const from = 4 * Math.min(STEPS - 1, size);
    table.set((at < STEPS / 2 ? below : above).subarray(from, from + 4), 4 * at);
  }
  return table;
}

/** The one colour of a kind of head: that of its frame and of its sign. */
export function kindColour(kind: Kind, theme: Theme): string {
  return css(oklch(theme === "light" ? 0.5 : 0.78, KIND_HUES[kind].chroma, KIND_HUES[kind].hue));
}

/** A colour of a ramp as CSS; the share is 0 to 1. */
export function pick(ramp: Ramp, share: number): string {
  const at = 4 * step(share);
  return css([ramp[at] ?? 0, ramp[at + 1] ?? 0, ramp[at + 2] ?? 0]);
}

/** The ramp's entry for a share of 0 to 1. */
export function step(share: number): number {
  return Math.max(0, Math.min(STEPS - 1, Math.round(share * (STEPS - 1))));
}

type Rgb = readonly [red: number, green: number, blue: number];

function kept(key: string, make: () => Ramp): Ramp {
  const found = made.get(key) ?? make();
  made.set(key, found);
  return found;
}

function ramp({ chroma, hue }: Hue, [from, to]: readonly [number, number]): Ramp {
  const table = new Uint8ClampedArray(4 * STEPS);
  for (let at = 0; at < STEPS; at += 1) {
    const share = at / (STEPS - 1);
    // Colour comes in early and stays: chroma rises with the root of the way. A dark ground is a little blue.
    const ground = from < 0.5 ? 0.01 * (1 - share) : 0;
    table.set([...oklch(from + (to - from) * share, ground + chroma * Math.sqrt(share), at ? hue : GROUND_HUE), 255], 4 * at);
  }
  return table;
}

function css([red, green, blue]: Rgb): string {
  return `rgb(${red} ${green} ${blue})`;
}

/** OKLCH to sRGB (Ottosson 2020); chroma is taken back until the colour exists on a screen. */
export function oklch(lightness: number, chroma: number, hue: number): Rgb {
  for (let share = 1; share >= 0; share -= 0.05) {
    const colour = linear(lightness, chroma * share, (hue * Math.PI) / 180);
    if (colour.every((part) => part > -0.001 && part < 1.001)) return encoded(colour);
  }
  return encoded(linear(lightness, 0, 0));
}

function linear(lightness: number, chroma: number, angle: number): Rgb {
  const a = chroma * Math.cos(angle);
  const b = chroma * Math.sin(angle);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
}

function encoded(colour: Rgb): Rgb {
  const part = (value: number): number => {
    const held = Math.max(0, Math.min(1, value));
    return Math.round(255 * (held <= 0.0031308 ? 12.92 * held : 1.055 * held ** (1 / 2.4) - 0.055));
  };
  return [part(colour[0]), part(colour[1]), part(colour[2])];
}
