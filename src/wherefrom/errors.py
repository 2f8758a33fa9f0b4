"""The errors of the project (floor 0): one small family, at the bottom, so that nobody imports upward to complain.

Every message has the same three parts: what was expected, what was given, and the way out. They are
arguments, not habits: an error cannot be raised without them. The facts a program needs (a path, a layer,
a token) are attributes, so that nobody has to read English to react.
"""

from __future__ import annotations

from typing import Any, Self


class WherefromError(Exception):
    """Base of everything that this package raises on purpose.

    Args:
        what: the thing that is wrong, as the subject of the sentence ("the prompt", "layer 31").
        expected: what would have been right.
        given: what came instead, with its value.
        way_out: one sentence on how to go on.
        facts: anything a program may want to read (``path=...``, ``layer=...``); they become attributes.
    """

    def __init__(self, what: str, *, expected: str, given: str, way_out: str, **facts: Any) -> None:
        self.what, self.expected, self.given, self.way_out = what, expected, given, way_out
        self.facts = facts
        for name, value in facts.items():
            setattr(self, name, value)
        super().__init__(f"{what}: expected {expected}, got {given}. {way_out}")

    def with_way_out(self, way_out: str) -> Self:
        """Return the same error with another way out, for where the first one leads nowhere."""
        return type(self)(self.what, expected=self.expected, given=self.given, way_out=way_out, **self.facts)


class InputError(WherefromError, ValueError):
    """A question that cannot be asked: an empty prompt, a position out of range, a target of two tokens."""


class ModelError(WherefromError):
    """A model that cannot be used: its folder or file is missing, incomplete, damaged or of an unknown kind."""


class RecordingError(WherefromError):
    """A recording that cannot be trusted, written or opened: a self-check failed, a disk is full, a file is damaged."""


class TrainingError(WherefromError):
    """A training run that cannot begin, go on or be resumed: its loss is NaN, its disk is full, its settings differ."""
