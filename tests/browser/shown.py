"""How the page writes numbers, told once more from its description: a slow twin of what is tested."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Decimal

MINUS = "\u2212"
RAISED = str.maketrans("-0123456789", "\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079")


def digits(value: float, count: int = 3) -> str:
    """A number to so many digits that count; very small ones and very large ones by powers of ten."""
    if value == 0:
        return "0"
    power = math.floor(math.log10(abs(value)))
    exact = Decimal(value).quantize(Decimal(1).scaleb(power - count + 1), ROUND_HALF_UP)
    if len(exact.as_tuple().digits) > count:  # rounded up to the next power of ten
        power += 1
        exact = exact.quantize(Decimal(1).scaleb(power - count + 1), ROUND_HALF_UP)
    if 1e-4 <= abs(value) < 1e6:
        whole = f"{Decimal(value).quantize(Decimal(1), ROUND_HALF_UP):,}"  # a whole number is not cut
        return (f"{exact:f}" if power < count else whole).replace("-", MINUS)
    mantissa = exact.scaleb(-power)
    return f"{mantissa:f}".replace("-", MINUS) + "\u00d710" + str(power).translate(RAISED)


def percent(share: float) -> str:
    """A share of 1 as a percentage."""
    value = Decimal(share) * 100
    if value == 0:
        return "0 %"
    if value < Decimal("0.01"):
        return "< 0.01 %"
    step = Decimal(1) if value >= 10 else Decimal("0.1") if value >= 1 else Decimal("0.01")
    return f"{value.quantize(step, ROUND_HALF_UP)} %"
