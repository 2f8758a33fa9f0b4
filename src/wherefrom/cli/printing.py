"""What a command prints (floor 7): text, JSON, and a progress bar for whoever waits at a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from wherefrom.views.streams import output


def print_json(value: dict[str, Any]) -> None:
    """Print a value for programs."""
    print_text(json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2))


def print_text(text: str, end: str = "\n") -> None:
    """Print a text; a reader that has gone ends the command quietly."""
    with output():
        print(text, end=end)


@contextmanager
def progress_bar(*, quiet: bool) -> Iterator[Any]:
    """Yield a progress callback that draws a bar on a terminal, and nothing anywhere else."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("starting", total=None)

        def progress(what: str, done: int, total: int) -> None:
            bars.update(task, description=what, completed=done, total=total)

        yield progress
