"""What a model itself says of inputs that it cannot take (floor 3): its own words, in a sentence of ours."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from wherefrom.capture.huggingface.model import TransformersModel
from wherefrom.errors import InputError, WherefromError
from wherefrom.readable import readable

HERE = str(Path(__file__).parents[2])
WATCHING = frozenset({"__torch_function__", "__torch_dispatch__"})
"""Functions of ours that only hand on what a model calls."""
LIBRARIES = sys.stdlib_module_names | {"torch", "numpy"}
MOST = 300


@contextmanager
def in_its_own_words(model: TransformersModel) -> Iterator[None]:
    """Have what a model says of its inputs quoted in an error of ours; mistakes of ours stay what they are.

    Raises:
        InputError: the model's code refused what it was given; the error that it raised is the cause.
    """
    try:
        yield
    except WherefromError:
        raise
    except (TypeError, ValueError, AttributeError) as error:
        missing = not isinstance(error, AttributeError) or "'NoneType'" in str(error)
        if not missing or _is_ours(error.__traceback__):
            raise
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        said = readable(" ".join(lines) or type(error).__name__)[:MOST].rstrip(".")
        raise InputError(
            "the inputs",
            expected=f"what lets {type(model.module).__name__} run",
            given=f"others: it says, {said}",
            way_out=f"{model.takes}.",
        ) from error


def _is_ours(trace: TracebackType | None) -> bool:
    """Return whether the code that raised an error, or called a library that did, is of this package."""
    ours = False
    while trace is not None:
        code, library = trace.tb_frame.f_code, str(trace.tb_frame.f_globals.get("__name__", "")).split(".")[0]
        if library not in LIBRARIES and code.co_name not in WATCHING:
            ours = code.co_filename.startswith(HERE)
        trace = trace.tb_next
    return ours
