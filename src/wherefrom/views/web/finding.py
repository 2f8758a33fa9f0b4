"""Finding a text in the tokens of another (floor 6); the page that carries its answers has the same rule.

Small and capital letters are the same: each character is its capital's small letters, so that "ß" is found by "SS",
every sigma is one, and "İ" and "ı" are "i".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

DOTTED = "\u0130"
"""The capital whose small letter would be two characters, "i" and a dot above it."""
SEPARATORS = "\x1c\x1d\x1e\x1f"


def places(text: str, spans: Sequence[tuple[int, int]], query: str, most: int) -> tuple[list[tuple[int, int]], bool]:
    """Return where a text stands in another, as ranges of tokens, and whether there are more.

    Args:
        text: in which is looked.
        spans: each token's characters in it, from and up to.
        query: what is looked for.
        most: places that are returned.
    """
    (small, owners), (wanted, _) = folded(text), folded(query)
    starts, ends = (np.array([span[side] for span in spans]) for side in (0, 1))
    found: list[tuple[int, int]] = []
    at = small.find(wanted) if wanted else -1
    while at >= 0 and len(found) <= most:
        first, last = owners[at], owners[at + len(wanted) - 1]
        inside = np.flatnonzero((starts <= last) & (ends > first))
        if len(inside):
            found.append((int(inside[0]), int(inside[-1]) + 1))
        at = small.find(wanted, at + 1)
    return found[:most], len(found) > most


def is_blank(query: str) -> bool:
    """Return whether there is nothing in it but what Unicode calls white space (`str.isspace` takes four more)."""
    return all(letter.isspace() and letter not in SEPARATORS for letter in query)


def folded(text: str) -> tuple[str, NDArray[np.int64]]:
    """Return a text by which small and capital letters are the same, and of each of its characters whose it is."""
    own = {letter: "i" if letter == DOTTED else letter.upper().lower() for letter in set(text)}
    sizes = [len(own[letter]) for letter in text]
    return text.translate({ord(letter): small for letter, small in own.items()}), np.repeat(np.arange(len(text)), sizes)
