"""From numbers to colours, in words too (floor 6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wherefrom.errors import InputError
from wherefrom.views.cells import count

SCALES = ("linear", "log")
DECADES = 4
"""Powers of ten below its top that a logarithmic scale shows, as the explorer's does."""


@dataclass(frozen=True)
class Scale:
    """From values to shares of a ramp of colours.

    Attributes:
        low: what is drawn as the least: 0 of a linear scale, below it of a signed one.
        high: what is drawn as the most.
        known: whether there is a value that is not 0.
    """

    low: float
    high: float
    known: bool

    @classmethod
    def to(cls, most: float, kind: str) -> Scale:
        """Return a scale up to a value; a logarithmic one shows some powers of ten below it."""
        if kind not in SCALES:
            raise InputError("the scale", expected=" or ".join(SCALES), given=f"{kind!r}", way_out="Choose one.")
        high = most if most > 0 else 1.0
        return cls(high / 10**DECADES if kind == "log" else 0.0, high, most > 0)

    @classmethod
    def signed(cls, values: NDArray[Any]) -> Scale:
        """Return a linear scale of values of either sign, up to the largest size among them, with 0 in the middle."""
        most = float(np.abs(np.nan_to_num(values)).max(initial=0.0))
        high = most if most > 0 else 1.0
        return cls(-high, high, most > 0)

    def shares(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Return what share of the ramp each value has; what is no number counts as 0."""
        found: NDArray[np.float64] = np.nan_to_num(values).astype(np.float64) / self.high
        if self.low < 0:
            found = (1 + found) / 2
        if self.low > 0:
            found = 1 + np.log10(np.maximum(found, 10.0**-DECADES)) / DECADES
        return found

    def unit(self, what: str) -> str:
        """Return what a legend says of it."""
        return f"{what}, log scale" if self.low > 0 else what

    def said(self, values: NDArray[Any], one: str) -> str:
        """Return what it is in words, and how many of the values it does not tell apart."""
        largest = f"{self.high:.3g}, {'the largest here' if self.known else 'though all are 0'}"
        if self.low <= 0.0:
            return f"linear, {self.low:.3g} to {largest}; nothing is clipped"
        under = int(((values > 0) & (values < self.low)).sum())
        below = f"{count(under, one)} with less, above 0, {'is' if under == 1 else 'are'} drawn as the least"
        return f"logarithmic, {self.low:.3g} to {largest}; {below if under else 'nothing is clipped'}"
