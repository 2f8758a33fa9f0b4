"""A run that does not fit into memory (floor 5): said in a sentence, whichever library ran out of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from wherefrom.errors import TrainingError

# What torch's allocators say: of Linux, of a device, of Windows, and where not even the number of bytes fits.
RAN_OUT = re.compile("can't allocate memory|out of memory|not enough memory|calculation overflowed")
TRIED = re.compile(r"allocate ([\d.]+) ?(\w+)")


@contextmanager
def room_for(what: str, way_out: str) -> Iterator[None]:
    """Say what did not fit, if something does not.

    Raises:
        TrainingError: torch or numpy ran out of memory.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        known = isinstance(error, MemoryError | torch.OutOfMemoryError) or RAN_OUT.search(str(error))
        if not known:
            raise
        tried = TRIED.search(str(error))
        given = f"none for another {tried[1].rstrip('.')} {tried[2]}" if tried else "too little"
        raise TrainingError("the memory", expected=f"room for {what}", given=given, way_out=way_out) from error
