"""A fault of ours (floor 6): the page gets a sentence, who started the server the whole of it."""

from __future__ import annotations

import sys
import traceback
from contextlib import suppress

SENTENCE = "The explorer failed at this; where it was started stands why."


def tell_fault() -> str:
    """Print the exception that is being handled where the server was started, and return the page's sentence.

    Where nobody can read what is printed any more, such as behind a closed pipe, the page still gets its sentence.
    """
    with suppress(OSError, ValueError, AttributeError):
        traceback.print_exc(file=sys.stderr)
    return SENTENCE
