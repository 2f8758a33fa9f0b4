"""Random choices of passages to keep (floor 5), as many as there are runs for. Takes only checks from below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wherefrom.checks import as_number, whole
from wherefrom.errors import InputError

Bools: TypeAlias = NDArray[np.bool_]


def subsets(passages: Sequence[Any] | int, n: int, *, share: float = 0.5, seed: int = 0) -> Bools:
    """Return n random choices of passages to keep, bool [n, P]: never all of them, and none only of a single passage.

    Each passage is kept with probability `share`, by itself, as in Cohen-Wang et al. 2024 (ContextCite). No choice
    comes twice before every other has come once. The first choices of a larger n are those of a smaller one.

    Args:
        passages: or how many there are.
        n: how many choices.
        share: of the passages that are kept, on the mean.
        seed: of the choices.

    Raises:
        InputError: no passages, a number or a seed below 0, a share that is not between 0 and 1.
    """
    count = len(passages) if isinstance(passages, Sequence) else passages
    whole("the number of passages", count, least=1, way_out="Give the passages of a prompt.")
    whole("the number of choices", n, least=0, way_out="Each is one run.")
    whole("the seed", seed, least=0, way_out="Any number draws other choices.")
    if not 0 < (as_number(share) or 0) < 1:
        raise InputError(
            "the share of passages to keep",
            expected="a number between 0 and 1",
            given=repr(share),
            way_out="A half is usual.",
        )
    generator = np.random.default_rng(seed)
    drawn = _Choices(count, share, generator)
    return np.array([drawn.next() for _ in range(n)], dtype=np.bool_).reshape(n, count)


class _Choices:
    """Draws choices one after another; each that is possible comes once before any comes twice."""

    TRIES = 100
    FEW = 12  # passages, whose 4,094 choices can be listed

    def __init__(self, count: int, share: float, generator: np.random.Generator) -> None:
        self._count, self._share, self._generator = count, share, generator
        self._seen: set[bytes] = set()

    def next(self) -> Bools:
        if self._count == 1:
            return np.zeros(1, dtype=np.bool_)
        if self._count <= self.FEW and len(self._seen) == 2**self._count - 2:
            self._seen.clear()
        choice = self._draw()
        for _ in range(self.TRIES):
            if choice.tobytes() not in self._seen:
                break
            choice = self._draw()
        else:
            choice = self._unseen(choice)
        self._seen.add(choice.tobytes())
        return choice

    def _draw(self) -> Bools:
        """Draw one that keeps some and not all; after many tries one passage is turned, drawn with the rest."""
        for _ in range(self.TRIES):
            choice = self._generator.random(self._count) < self._share
            if 0 < choice.sum() < self._count:
                return choice
        place = self._generator.integers(self._count)
        choice[place] = not choice[place]
        return choice

    def _unseen(self, drawn: Bools) -> Bools:
        if self._count > self.FEW:
            return drawn
        bits = (np.arange(1, 2**self._count - 1)[:, None] >> np.arange(self._count)) & 1
        unseen = [choice for choice in bits.astype(np.bool_) if choice.tobytes() not in self._seen]
        found: Bools = unseen[self._generator.integers(len(unseen))]
        return found
