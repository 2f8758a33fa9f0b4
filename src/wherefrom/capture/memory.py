"""Memory for recordings (floor 3): what the last one took is used again by the next.

Gives the recorders beside it arrays to copy into.
"""

from __future__ import annotations

import os
from typing import Any
from weakref import finalize

import numpy as np

from wherefrom.recording import Array


def _share_of_memory(part: int) -> int:
    """Return a share of the machine's memory in bytes, at least 256 MB; that where it is not told."""
    try:
        return max(2**28, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // part)
    except (AttributeError, OSError, ValueError):
        return 2**28


class Spare:
    """The memory of the last recording, used again once nobody holds any part of it.

    Pages fresh from the system cost as much as writing to them does; a model's own temporaries are reused in the same
    way, by the allocator. What is handed out looks into the memory without owning it, and every view of it holds that
    one: when it goes, nobody has any of it left, and the memory comes back here. No count of references is asked for,
    which would be another in another Python. Of each name one piece is kept, and no more than `MOST` bytes of all.
    """

    MOST = _share_of_memory(16)

    def __init__(self) -> None:
        self._free: dict[str, Array] = {}

    def take(self, name: str, shape: tuple[int, ...], kind: np.dtype[Any]) -> Array:
        """Return an array that nobody else holds; what it contains is left over."""
        own = self._free.pop(name, None)  # in one step: two threads never get the same
        if own is None or own.shape != shape or own.dtype != kind:
            own = np.empty(shape, kind)
        # through a memoryview, since numpy lets a view of a view hold the owner instead
        lent: Array = np.asarray(own.data)
        finalize(lent, self._keep, name, own).atexit = False
        return lent

    def _keep(self, name: str, own: Array) -> None:
        """Take memory back that nobody holds any more."""
        others = sum(array.nbytes for other, array in list(self._free.items()) if other != name)
        if others + own.nbytes <= self.MOST:
            self._free[name] = own


SPARE = Spare()
