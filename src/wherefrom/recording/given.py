"""A call that is given to the writer (floor 2): its facts, its arrays by their names in a file, and what is refused.

Takes the layout from beside it. The numbers are looked at piece by piece as they pass on their way to the disk, which
costs a tenth of writing them; only where a piece is wrong is the whole array searched for the place.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from wherefrom.errors import InputError
from wherefrom.recording.call import ARRAYS, PART_IN_WORDS, Array, Call, Stored, call_named, is_part
from wherefrom.recording.layout import FORMATS, KINDS, CallFacts, KeptFacts
from wherefrom.recording.rounding import rounded
from wherefrom.recording.strict import broken
from wherefrom.recording.tensors import Tensor, as_read, is_finite

MEND = "Mend the call that was given, or record the text again."
ROUNDED = ("q", "k", "v")
BELOW_ALL = ("lse", "bias", "sinks")
"""Arrays in which minus infinity has a meaning: a row, a source or a sink of no weight."""
DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16"}
LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38}


def check_store(store: Any) -> str | None:
    """Return the number format that q, k and v are to be rounded to; None leaves them as they are.

    Raises:
        InputError: another format.
    """
    if store in (None, *LARGEST):
        return store  # type: ignore[no-any-return]  # it is one of these
    raise InputError(
        "the number format to store",
        expected='"float16", "bfloat16" or None',
        given=repr(store),
        way_out="None leaves q, k and v as the kernel was given them.",
        value=store,
    )


def facts_of(path: Path, call: Call, store: str | None) -> CallFacts:
    """Return what the manifest will say of a call; where it is rounded now, without the errors, yet to be measured.

    Raises:
        RecordingError: it is of an unknown kind or a part without a name, or was rounded to another format before.
    """
    kept, stored = call.kept, call.stored
    for what, fine, expected in (
        ("kind", call.kind in KINDS, " or ".join(KINDS)),
        ("part", is_part(call.part), PART_IN_WORDS),
    ):
        if not fine:
            given = repr(getattr(call, what))[:60]
            what = f"the {what} of layer {call.layer}"
            broken(path, what, expected=expected, given=given, way_out=MEND, layer=call.layer)
    if store is not None and stored is not None and stored.format != store:
        given, way_out = f"numbers in {stored.format} already", "Leave them so, with store=None."
        what = call_named(call)
        broken(path, what, expected=f"numbers to round to {store}", given=given, way_out=way_out, layer=call.layer)
    if store is not None and stored is None:
        stored = Stored(store, (), 0.0, 0.0)
    return CallFacts(
        layer=call.layer,
        name=call.name,
        kind=call.kind,
        part=call.part,
        repeat=call.repeat,
        kernel=call.kernel,
        scale=float(call.scale),
        softcap=None if call.softcap is None else float(call.softcap),
        causal=call.mask.causal,
        window=call.mask.window,
        offset=call.mask.offset,
        kept=None if kept is None else KeptFacts(kept.heads, kept.key_heads, kept.of_heads, kept.of_rows),
        stored=stored,
    )


def tensors_of(path: Path, call: Call, facts: CallFacts) -> dict[str, Tensor]:
    """Return the arrays of a call by their names in its file.

    Raises:
        RecordingError: an array of numbers that the format does not hold.
    """
    found = {}
    for name in ARRAYS:
        array = getattr(call, name)
        if array is not None:
            found[name] = Tensor(array, _dtype(path, call, name, array, facts))
    checks = call.checks
    found["checks.rows"] = _whole([row for check in checks for row in check.rows])
    found["checks.ends"] = _whole(np.cumsum([len(check.rows) for check in checks], dtype=np.int64))
    errors = [(check.sum_error, check.output_error, check.tolerance) for check in checks]
    found["checks.found"] = Tensor(np.array(errors, dtype=np.float64).reshape(-1, 3), "F64")
    for name, flags in (("padding", call.mask.padding), ("explicit", call.mask.explicit)):
        if flags is not None:
            found[name] = Tensor(flags, "BOOL")
    if call.kept is not None:
        found["rows"] = _whole(call.kept.rows)
    return found


def _dtype(path: Path, call: Call, name: str, array: Any, facts: CallFacts) -> str:
    kind = array.dtype.name if isinstance(array, np.ndarray) else type(array).__name__
    wide = {"float32": "F32"} if name == "lse" else DTYPES
    if kind not in wide:
        what = f"{name} of layer {call.layer}"
        expected = f"a numpy array of {' or '.join(wide)}"
        broken(path, what, expected=expected, given=kind, way_out=MEND, layer=call.layer, array=name)
    return FORMATS[facts.stored.format] if facts.stored is not None and name in ROUNDED else wide[kind]


def _whole(numbers: Any) -> Tensor:
    return Tensor(np.asarray(numbers, dtype=np.int64), "I64")


class Look:
    """What looks at each piece of a call's arrays before it is written.

    Args:
        path: the recording's, for what errors say.
        call: the call that is being written.
    """

    def __init__(self, path: Path, call: Call) -> None:
        self.path, self.call = path, call

    def __call__(self, name: str, given: Array, stored: Array) -> None:
        """Refuse a piece with a number that is not finite, or that its format cannot hold.

        Raises:
            RecordingError: layer, head and position are named.
        """
        if given.dtype.kind != "f":
            return
        if name in BELOW_ALL:
            if not (given < np.inf).all():  # a NaN is not below anything
                self._refuse(name, "numbers, or minus infinity", lambda array: ~(array < np.inf))
        elif not is_finite(given, DTYPES[given.dtype.name]):
            self._refuse(name, "finite numbers", lambda array: ~np.isfinite(array))
        elif name in ROUNDED and (stored.itemsize, stored.dtype.kind) != (given.itemsize, given.dtype.kind):
            self._rounded(name, given, stored)

    def _rounded(self, name: str, given: Array, stored: Array) -> None:
        known = self.call.stored
        dtype = "BF16" if stored.dtype.kind == "u" else "F16"
        form = {"BF16": "bfloat16", "F16": "float16"}[dtype]
        if not is_finite(stored, dtype):
            way_out = "Store them as they are, with store=None" + (', or as "bfloat16"' if dtype == "F16" else "") + "."
            expected = f"numbers that {form} holds, at most {LARGEST[form]:,.6g}"
            self._refuse(name, expected, lambda array: ~np.isfinite(rounded(array, form)), way_out)
        if known is not None and not (as_read(stored, dtype) == given).all():
            expected = f"numbers of {form}, as the call says that it was rounded"
            self._refuse(name, expected, lambda array: rounded(array, form) != array, MEND)

    def _refuse(self, name: str, expected: str, wrong: Any, way_out: str | None = None) -> None:
        """Say where the first wrong number of an array is."""
        call, array = self.call, getattr(self.call, name, np.zeros(0))
        places = np.argwhere(wrong(array)) if array.size else np.zeros((0, 1), np.int64)
        at = tuple(int(index) for index in places[0]) if len(places) else ()
        where, facts = self._place(name, at)
        broken(
            self.path,
            f"{name} of {call_named(call)}",
            expected=expected,
            given=f"{array[at]:.6g} at {where}" if at else "others",
            way_out=way_out or "Run the model in float32, or find where its numbers overflow.",
            layer=call.layer,
            array=name,
            **facts,
        )

    def _place(self, name: str, at: tuple[int, ...]) -> tuple[str, dict[str, int]]:
        """Return where a number is, in words and as facts; heads and positions are true numbers."""
        if not at:
            return "", {}
        head = at[0] if name in ("k", "v") else self.call.head_numbers[at[0]]
        words, facts = f"{'key ' if name in ('k', 'v') else ''}head {head}", {"head": head}
        if len(at) > 1 and name != "output":
            position = at[1] if name in ("k", "v") else int(self.call.rows[at[1]])
            words, facts = f"{words}, position {position}", facts | {"position": position}
        return words, facts
