"""Printed text compared as a reader would: word by word, numbers within one step of the last digit that is shown."""

import re
from decimal import Decimal

NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")

BAR = frozenset("█▏▎▍▌▋▊▉")


def differences(shown: str, expected: str) -> list[str]:
    """What differs between two texts in more than blanks and the rounding of a last decimal.

    Knock-outs are measured in float32, whose last bits differ from one processor to another.
    """
    words, wanted = shown.split(), expected.split()
    if len(words) != len(wanted):
        first = next((i for i, pair in enumerate(zip(words, wanted, strict=False)) if not alike(*pair)), 0)
        return [f"{len(words)} words, expected {len(wanted)}, from {words[first : first + 5]} on"]
    return [f"{a} for {b}" for a, b in zip(words, wanted, strict=True) if not alike(a, b)]


def alike(word: str, expected: str) -> bool:
    if set(word) | set(expected) <= BAR:
        return abs(len(word) - len(expected)) <= 1
    if NUMBER.sub("#", word) != NUMBER.sub("#", expected):
        return False
    pairs = zip(NUMBER.findall(word), NUMBER.findall(expected), strict=True)
    return all(abs(Decimal(a) - Decimal(b)) <= _step(b) for a, b in pairs)


def _step(number: str) -> Decimal:
    """One step of the last decimal; whole numbers (positions, counts) must be the same."""
    decimals = len(number.partition(".")[2])
    return Decimal(1).scaleb(-decimals) if decimals else Decimal(0)
