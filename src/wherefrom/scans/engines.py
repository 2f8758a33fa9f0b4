"""The one verb of the room (floor 2): scan all weights of a call, by the engine that suits its size."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np

from wherefrom.checks import check_kind, whole
from wherefrom.errors import InputError
from wherefrom.scans.contract import Attention, check_wanted
from wherefrom.scans.reference import scan_reference
from wherefrom.scans.result import Scan, finest_block

Engine = Literal["auto", "reference", "cpu"]
ENGINES = ("auto", "reference", "cpu")
SMALL = 1 << 20
"""Up to as many weights the reference takes a tenth of a second or so, less than loading a compiler does."""


def scan(
    attention: Attention,
    wanted: Iterable[str],
    *,
    threshold: float = 0.05,
    top: int = 8,
    strip: int | None = None,
    threads: int | None = None,
    engine: Engine = "auto",
    block: int | None = None,
) -> Scan:
    """Return statistics over all weights of a call, in one pass and in memory that grows with T + S.

    Args:
        attention: the arrays of the call.
        wanted: the names of the statistics, as `Scan` and `NAMES` list them; only those are paid for.
        threshold: the weight from which a destination counts as a reader of a source.
        top: how many of the strongest sources of each destination "top" keeps.
        strip: how many destinations are computed at once; what is found does not depend on it, beyond rounding.
        threads: how many threads compute; as many as this process has processors unless given.
        engine: "reference", plain and in float64; "cpu", compiled and in float32 with sums in float64; "auto" takes
            the reference for small maps.
        block: how many destinations, and sources, the finest blocks of the zoom hold; such that the zoom takes no more
            than eight numbers a token unless given.

    Raises:
        InputError: a name that is unknown or that the call does not have, a threshold that is not above 0, a number
            below 1, an unknown engine, a block that is no power of two.
    """
    attention = check_kind("the attention", attention, Attention, way_out="Make one of the arrays of a call.")
    names = check_wanted(attention, wanted)
    threshold, top = check_threshold(threshold), check_top(top)
    if strip is not None:
        strip = whole("the strip", strip, least=1, way_out="It is a number of destinations; None chooses one.")
    if threads is not None:
        threads = whole("the number of threads", threads, least=1, way_out="None takes one a processor.")
    if engine not in ENGINES:
        raise InputError(
            "the engine", expected=f"one of {', '.join(ENGINES)}", given=repr(engine), way_out="Leave it out for auto."
        )
    if block is None:
        block = finest_block(attention.destinations, attention.sources)
    block = whole("the block", block, least=1, way_out="Leave it out: then the zoom takes little room.")
    if block & (block - 1):
        way_out = "Leave it out: then the zoom takes little room."
        raise InputError("the block", expected="a power of two", given=str(block), way_out=way_out, block=block)
    small = attention.heads * attention.destinations * attention.sources <= SMALL
    if engine == "reference" or (engine == "auto" and small):
        arrays = scan_reference(attention, names, threshold=threshold, top=top, strip=strip, block=block)
    else:
        from wherefrom.scans.cpu import scan_cpu  # brings a compiler, which takes most of a second to load

        arrays = scan_cpu(attention, names, threshold=threshold, top=top, strip=strip, threads=threads, block=block)
    return scan_of(attention, arrays, threshold=threshold, top=top)


def scan_of(attention: Attention, arrays: dict[str, np.ndarray], *, threshold: float, top: int) -> Scan:
    """Return the arrays of an engine as a `Scan`."""
    repeated, offset = attention.repeated(), attention.mask.offset
    return Scan(arrays, attention.empty, repeated, attention.sources, offset, threshold, top)


def check_threshold(value: float) -> float:
    """Return a weight above 0, at most 1.

    Raises:
        InputError: anything else.
    """
    if not isinstance(value, int | float | np.number) or not 0 < value <= 1:
        way_out = "It is the weight from which a destination counts as a reader, such as 0.05."
        raise InputError("the threshold", expected="a number above 0 and at most 1", given=repr(value), way_out=way_out)
    return float(value)


def check_top(value: int) -> int:
    """Return a number of sources from 1 up.

    Raises:
        InputError: anything else.
    """
    return whole("the number of strongest sources", value, least=1, way_out="8 is a good one.")
