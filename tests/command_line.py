"""The command line in this process: what a person types in a folder of 80 columns, and what comes back."""

from __future__ import annotations

import io
import json
import math
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from rich.cells import cell_len

from wherefrom import cli


class Ended(NamedTuple):
    """The end of a command."""

    code: int
    out: str
    err: str

    @property
    def widest(self) -> int:
        """Cells of the longest line."""
        return max(map(cell_len, (self.out + self.err).splitlines()))


def typed(folder: Path, *arguments: object) -> Ended:
    """Run a command in a folder."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["wherefrom", *map(str, arguments)])
        patch.setenv("COLUMNS", "80")
        for variable in ("FORCE_COLOR", "TTY_COMPATIBLE"):
            patch.delenv(variable, raising=False)
        with pytest.raises(SystemExit) as ended:
            cli.main()
    return Ended(ended.value.code, out.getvalue(), err.getvalue())


def finite_json(ended: Ended) -> Any:
    """What a command printed for programs, which is all that it printed; every number in it is finite."""
    assert (ended.code, ended.err) == (0, "")
    written = json.loads(ended.out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert all(math.isfinite(number) for number in numbers_in(written))
    return written


def numbers_in(value: Any) -> list[float]:
    if isinstance(value, dict):
        return numbers_in(list(value.values()))
    if isinstance(value, list):
        return [number for part in value for number in numbers_in(part)]
    return [value] if isinstance(value, int | float) else []
