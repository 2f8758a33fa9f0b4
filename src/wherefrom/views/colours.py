"""Colours of figures (floor 6): the explorer's own, on a light ground.

Ramps run in OKLCH (Ottosson 2020), where equal steps look equal, at one hue: they are read by lightness alone.
"""

from __future__ import annotations

import math
from functools import cache

STEPS = 256
GROUND_HUE = 260.0
LENSES = {"weight": (0.15, 253.0), "moved": (0.11, 190.0), "attribution": (0.14, 68.0), "knockout": (0.18, 27.0)}
"""Chroma and hue of each lens."""
MEASURED = ("attribution", "knockout")
"""Lenses that run the model, whose values have either sign."""
AGAINST = (0.16, 297.0)
"""What speaks against the target is violet."""
KINDS = {
    "sink": (0.0, 260.0),
    "previous": (0.15, 55.0),
    "induction": (0.19, 355.0),
    "duplicate": (0.17, 305.0),
    "itself": (0.14, 100.0),
    "local": (0.14, 150.0),
    "broad": (0.12, 225.0),
    "unknown": (0.0, 260.0),
}
PICTURE, BEHIND_TEXT = (0.985, 0.36), (1.0, 0.7)
"""Lightness from nothing to the most: of a picture; behind text that stays readable."""
INK, QUIET, HAIRLINE, GROUND = "#1c2127", "#5a626b", "#c9ced4", "#ffffff"


@cache
def ramp(lightness: tuple[float, float] = PICTURE, lens: str = "weight") -> tuple[str, ...]:
    """Return the 256 colours of a lens, from nothing to the most; of one with signs, nothing is in the middle."""
    above = _ramp(lightness, LENSES[lens])
    if lens not in MEASURED:
        return above
    below = _ramp(lightness, AGAINST)
    # Of the 256 steps the two in the middle are both zero.
    sizes = [max(0, abs(2 * step - (STEPS - 1)) - 1) for step in range(STEPS)]
    return tuple((below if step < STEPS / 2 else above)[size] for step, size in enumerate(sizes))


def _ramp(lightness: tuple[float, float], of: tuple[float, float]) -> tuple[str, ...]:
    (chroma, hue), (low, high) = of, lightness
    shares = [step / (STEPS - 1) for step in range(STEPS)]
    return tuple(
        oklch(
            low + (high - low) * share,
            0.01 * (1 - share) * (low < 0.5) + chroma * math.sqrt(share),
            hue if share else GROUND_HUE,
        )
        for share in shares
    )


def step_of(share: float) -> int:
    """Return the place of a share of 0 to 1 in a ramp."""
    return max(0, min(STEPS - 1, math.floor(share * (STEPS - 1) + 0.5)))


def kind_colours(kind: str) -> tuple[str, str]:
    """Return the colour of a kind of head, and a pale one that its sign is read on."""
    chroma, hue = KINDS[kind]
    return oklch(0.5, chroma, hue), oklch(0.93, chroma / 4, hue)


def oklch(lightness: float, chroma: float, hue: float) -> str:
    """Return a colour as #rrggbb; chroma is taken back until the colour exists on a screen."""
    for twentieths in range(20, -1, -1):
        found = _linear(lightness, chroma * twentieths / 20, math.radians(hue))
        if all(-0.001 < part < 1.001 for part in found):
            break
    return "#" + "".join(f"{_encoded(part):02x}" for part in found)


def _linear(lightness: float, chroma: float, angle: float) -> tuple[float, float, float]:
    a, b = chroma * math.cos(angle), chroma * math.sin(angle)
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    middle = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3
    return (
        4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * middle + 1.707614701 * short,
    )


def _encoded(value: float) -> int:
    held = max(0.0, min(1.0, value))
    return round(255 * (12.92 * held if held <= 0.0031308 else 1.055 * held ** (1 / 2.4) - 0.055))
