"""Answers that were given before (floor 6): the bytes of the last ones, in bounded memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

Value = TypeVar("Value")
MOST_BYTES = 64 * 2**20


class Kept(Generic[Value]):
    """Values by key, those asked for least recently forgotten first.

    Args:
        most: what their sizes may add up to; a value larger than that is not kept.
    """

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most, self._held = most, 0
        self._values: OrderedDict[Hashable, tuple[int, Value]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable, make: Callable[[], Value], size: Callable[[Value], int]) -> Value:
        """Return a value, made if it is not there. Two that ask for one at once may both make it."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key][1]
        value = make()
        room = size(value)
        if room <= self._most:
            with self._lock:
                self._held += room - self._values.pop(key, (0, None))[0]
                self._values[key] = room, value
                while self._held > self._most:
                    _, (gone, _) = self._values.popitem(last=False)
                    self._held -= gone
        return value

    @property
    def held(self) -> int:
        """The size of all that is kept."""
        return self._held
