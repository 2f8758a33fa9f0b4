"""Strict reading of a manifest's JSON (floor 2): every key expected, of the right kind, and nothing beside.

Takes errors from below. Gives `wherefrom.recording.layout` plain values, or one sentence that names the key. What
JSON permits and a manifest does not: a key twice, NaN and infinities, numbers beyond 64 bits, a key nobody reads.
"""

from __future__ import annotations

import errno
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from wherefrom.errors import RecordingError

COPY_AGAIN = "Copy the recording again from where it is whole, or record the text again."
TOO_MANY = "Let go of other recordings that are open, or raise the limit on open files: ulimit -n."
MOST = 2**63 - 1  # the largest whole number of a file's arrays


def broken(path: Path, what: str, *, expected: str, given: str, way_out: str = COPY_AGAIN, **facts: Any) -> NoReturn:
    """Say that a recording's file is broken.

    Raises:
        RecordingError: always.
    """
    raise RecordingError(
        f"{path}: {what}", expected=expected, given=given, way_out=way_out, path=path, **facts
    ) from None


def way_out_of(error: OSError, otherwise: str) -> str:
    """Return the way out of what the system refused: of too many open files their own."""
    return TOO_MANY if error.errno == errno.EMFILE else otherwise


def strict_json(path: Path, what: str, data: bytes) -> dict[str, Any]:
    """Return the object that JSON text is.

    Raises:
        RecordingError: it is none, has a key twice, a NaN, or is nested too deeply.
    """
    try:
        value = json.loads(data.decode(), object_pairs_hook=_once, parse_constant=_no_constant)
    except RecursionError:
        broken(path, what, expected="JSON of a few levels", given="deep nesting")
    except ValueError as error:  # undecodable bytes and numbers of too many digits among them
        broken(path, what, expected="JSON", given=f"text that is none ({_short(error)})")
    if not isinstance(value, dict):
        broken(path, what, expected="an object", given=_named(value))
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {max(names, key=names.count)[:40]!r} stands there twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


@dataclass(frozen=True)
class Fields:
    """An object of a manifest, read key by key; `close` refuses what was not asked for."""

    path: Path
    where: str
    values: Mapping[str, Any]

    @classmethod
    def of(cls, path: Path, where: str, value: Any, *names: str) -> Fields:
        """Return the fields of an object that has these keys and no others.

        Raises:
            RecordingError: it is no object, or its keys are others.
        """
        if not isinstance(value, dict):
            broken(path, where, expected="an object", given=_named(value), key=where)
        for name in names:
            if name not in value:
                broken(path, where, expected=f"the key {name!r}", given="none", key=f"{where}.{name}")
        for name in value:
            if name not in names:
                given = f"a key {name[:40]!r}"
                broken(path, where, expected="no key beyond those of the format", given=given, key=f"{where}.{name}")
        return cls(path, where, value)

    def at(self, name: str) -> str:
        """Return how an error names a key."""
        return f"{self.where}.{name}"

    def wrong(self, name: str, expected: str, given: str | None = None) -> NoReturn:
        """Say what is wrong with a value.

        Raises:
            RecordingError: always.
        """
        given = _named(self.values[name]) if given is None else given
        broken(self.path, self.at(name), expected=expected, given=given, key=self.at(name))

    def whole(self, name: str, least: int = 0, most: int = MOST) -> int:
        """Return a whole number within bounds."""
        value = self.values[name]
        if type(value) is not int or not least <= value <= most:
            self.wrong(name, f"a whole number from {least}{'' if most == MOST else f' to {most}'}")
        return value

    def number(self, name: str) -> float:
        """Return a finite number."""
        value = self.values[name]
        if type(value) is float and math.isfinite(value):
            return value
        if type(value) is not int or not -MOST <= value <= MOST:
            self.wrong(name, "a finite number")
        return float(value)

    def text(self, name: str, *choices: str) -> str:
        """Return a text, one of some if they are given."""
        value = self.values[name]
        if not isinstance(value, str) or (choices and value not in choices):
            self.wrong(name, " or ".join(f'"{choice}"' for choice in choices) or "a text")
        return value

    def flag(self, name: str) -> bool:
        """Return true or false."""
        value = self.values[name]
        if type(value) is not bool:
            self.wrong(name, "true or false")
        return value

    def items(self, name: str) -> Sequence[Any]:
        """Return a list."""
        value = self.values[name]
        if not isinstance(value, list):
            self.wrong(name, "a list")
        return value

    def wholes(self, name: str) -> tuple[int, ...]:
        """Return a list of whole numbers from 0."""
        values = self.items(name)
        for value in values:
            if type(value) is not int or not 0 <= value <= MOST:
                self.wrong(name, "a list of whole numbers from 0", f"{_named(value)} in it")
        return tuple(values)

    def absent(self, name: str) -> bool:
        """Whether the value is null."""
        return self.values[name] is None


def _named(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and not -MOST <= value <= MOST:
        return "a number beyond 64 bits"
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    shown = repr(value)
    return shown if len(shown) <= 60 else "a long text"


def _short(error: Exception) -> str:
    text = " ".join(str(error).split()).rstrip(".")
    return text if len(text) <= 120 else text[:117] + "..."
