"""Explicit masks read back as rules (floor 3): a causal map is kept as causal, and not as n x n numbers.

The test is exact, over every pair: a rule is taken only where it gives the very map.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from wherefrom.attention import Mask
from wherefrom.capture.huggingface.lazy import interned, unreached

Bools = NDArray[np.bool_]


def recognised(allowed: Bools, offset: int | None = None, tokens: Bools | None = None) -> Mask:
    """Return a map of who may read whom as a rule where it is one, else as an explicit mask.

    Rules that are found: bidirectional, causal at any offset, causal with a window, each with padding or without. One
    row that may read nothing behind it is causal where its place is known to be a later one, bidirectional otherwise.

    Args:
        allowed: bool [T, S], or [H, T, S] when heads differ.
        offset: position of the first row, counted from the first column, where it is known.
        tokens: bool [S], False where a column may be padding; any column that nobody reads may be, unless given.
    """
    if allowed.ndim == 3 and (allowed == allowed[:1]).all():
        allowed = allowed[0]
    rules = _rules(allowed, offset) if allowed.ndim == 2 else ()
    for rule in rules:
        if rule.padding is None or tokens is None or not (tokens & ~rule.padding).any():
            return interned(rule)
    return interned(_explicit(allowed, offset))


def _rules(allowed: Bools, offset: int | None) -> Iterator[Mask]:
    """Yield the rules of a map [T, S] that give the very map, the plainest first."""
    row, known = np.arange(len(allowed)), offset is not None and offset >= 0
    if len(row) == 1 and known and offset:
        yield from _with_padding(Mask(offset=offset), allowed)
    if (allowed == allowed[:1]).all():
        everything = allowed[0].all()
        yield Mask(False, offset=offset if offset and known else 0, padding=None if everything else allowed[0])
        return
    least = _least_offset(allowed)
    for place in (offset, least) if known else (least,):
        if place is None or place < 0:
            continue
        yield from _with_padding(Mask(offset=place), allowed)
        first = np.argmax(allowed, axis=1)  # of a row that reads anything
        window = int((place + row - first)[allowed.any(axis=1)].max()) + 1
        if 1 <= window < place + len(row):  # some pair is outside of it
            yield from _with_padding(Mask(offset=place, window=window), allowed)


def _least_offset(allowed: Bools) -> int:
    """Return the least offset at which a map with a permitted pair, [.., T, S], hides all that come later."""
    rows, columns = allowed.shape[-2:]
    last = columns - 1 - np.argmax(allowed[..., ::-1], axis=-1)  # of a row that reads anything
    return int((last - np.arange(rows))[allowed.any(axis=-1)].max())


def _with_padding(rule: Mask, allowed: Bools) -> Iterator[Mask]:
    """Yield the rule, with padding where no row reads a column that it may, if that is the map."""
    rows, columns = allowed.shape
    tokens = allowed.any(axis=0) | unreached(rule, rows, columns)
    if not tokens.all():
        rule = Mask(rule.causal, rule.window, rule.offset, tokens)
    if np.array_equal(rule.dense(rows, columns), allowed):
        yield rule


def _explicit(allowed: Bools, offset: int | None) -> Mask:
    """Return a map as an explicit mask, causal where no destination reads a later source."""
    rows, columns = allowed.shape[-2:]
    place = max(0, columns - rows) if offset is None else offset
    placed = rows > 1 or offset is not None  # of one row alone nobody knows what is later
    causal = placed and place >= 0 and bool(allowed.any()) and _least_offset(allowed) <= place
    return Mask(causal, offset=place if causal else 0, explicit=allowed)
