"""Ctrl-C during a run (floor 5): it waits for the end of a step, so that what was learnt can be kept. No torch."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def held_back() -> Iterator[Callable[[], bool]]:
    """Hold Ctrl-C back, and yield whether it was pressed; pressed a second time, it ends what is running at once.

    An update that is cut short leaves weights of which no step is right, so nothing could be kept of it. Only Python's
    own answer to Ctrl-C is replaced, and only for as long as this lasts: whoever has set another keeps theirs, and
    threads beside the main one never get the signal.
    """
    pressed: list[int] = []

    def press(number: int, _: object) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)

    ours = threading.current_thread() is threading.main_thread()
    ours = ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, press)
    try:
        yield lambda: bool(pressed)
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
