"""Standard output and error (floor 6): what is printed arrives, or the command ends with a word and an exit code.

Gives `output`, inside which everything is printed, and `say`, for sentences beside it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

MAKE_ROOM = "Make room there, or send the output elsewhere."


@contextmanager
def output() -> Iterator[None]:
    """Catch what goes wrong in writing standard output.

    Raises:
        SystemExit: 0 when the reader, such as head, has seen enough; 1, with a sentence, when nothing can be written.
    """
    try:
        yield
        sys.stdout.flush()  # here, where the error is still caught
    except OSError as error:
        _silence(sys.stdout)
        if isinstance(error, BrokenPipeError):
            sys.exit(0)
        say(f"wherefrom: standard output: expected a place that can be written, got {error.strerror}. {MAKE_ROOM}")
        sys.exit(1)


def say(sentence: str) -> None:
    """Print a sentence on standard error, if anything can be printed there."""
    try:
        print(sentence, file=sys.stderr, flush=True)
    except OSError:
        _silence(sys.stderr)


def prepare_streams() -> None:
    """Have tokens of any script printed, whatever the locale says, and nothing printed into a wrong file.

    Raises:
        SystemExit: 1 when standard output is closed.
    """
    no_output = sys.stdout is None
    for name, flags, mode in (("stdin", os.O_RDONLY, "r"), ("stdout", os.O_WRONLY, "w"), ("stderr", os.O_WRONLY, "w")):
        if getattr(sys, name) is None:  # closed: a file opened later would take its number, and be written into
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), mode))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    if no_output:
        say("wherefrom: standard output: expected an open stream, got a closed one. Send the output somewhere.")
        sys.exit(1)


def _silence(stream: TextIO) -> None:
    """Turn a stream that cannot be written to nowhere, so that what it still holds does no harm at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
