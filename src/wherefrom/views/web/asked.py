"""What the page asked for, read out of an address or a body (floor 6): whole numbers and names, within bounds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from wherefrom.errors import InputError
from wherefrom.readable import readable

ALL = "all"
MOST_TEXT = 1000
"""Characters of a word or of what is looked for."""
MOST_NAME = 4096
"""Bytes of a recording's name: a path may have as many. An address has three for each."""
DIGITS = 9
TYPED = {"query": "what is looked for", "target": "the target"}
"""What people type into the page, and what it is called there."""


@dataclass(frozen=True)
class Asked:
    """The parameters of a request.

    Args:
        given: as they stand in the address; of one that stands there twice the last.
    """

    given: Mapping[str, str]

    @classmethod
    def of_body(cls, body: bytes) -> Asked:
        """Return the parameters in the body of a request: an object of JSON with texts and whole numbers.

        Raises:
            InputError: it is none.
        """
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            way_out = "Load the page again."
            raise InputError("the request", expected="an object of JSON", given="something else", way_out=way_out)
        own = {name: value for name, value in found.items() if value is not None}
        for name, value in own.items():
            if not isinstance(value, str | int) or isinstance(value, bool):
                raise cls._refused(name, "a text or a whole number", type(value).__name__)
            if isinstance(value, str) and _is_cut(value):
                raise cls._refused(name, "whole characters", "half of one")
        return cls({name: str(value) for name, value in own.items()})

    @property
    def run(self) -> str:
        """The name of the recording that is asked about.

        Raises:
            InputError: it is not there, or too long.
        """
        return self.text("run", MOST_NAME)

    def text(self, name: str, most: int = MOST_TEXT) -> str:
        """Return a parameter as it stands.

        Args:
            name: its own.
            most: characters that it may have.

        Raises:
            InputError: it is not there, or too long.
        """
        if name not in self.given:
            raise self._refused(name, "a value", "none")
        value = self.given[name]
        if len(value) > most:
            raise self._refused(name, f"at most {most:,} characters", f"{len(value):,}")
        return value

    def number(self, name: str, default: int | None = None) -> int:
        """Return a whole number from 0.

        Raises:
            InputError: it is none, or not there and has no default.
        """
        if default is not None and name not in self.given:
            return default
        value = self.text(name)
        if not (value.isascii() and value.isdigit() and len(value) <= DIGITS):
            raise self._refused(name, "a whole number from 0", readable(value)[:40])
        return int(value)

    def number_or_all(self, name: str) -> int | None:
        """Return a whole number, or None for "all".

        Raises:
            InputError: it is neither.
        """
        return None if self.given.get(name) == ALL else self.number(name)

    @staticmethod
    def _refused(name: str, expected: str, given: str) -> InputError:
        typed = TYPED.get(name)
        if typed is not None:
            return InputError(typed, expected=expected, given=given, way_out="Type less.")
        return InputError(
            f'"{readable(name)[:40]}" in the address',
            expected=expected,
            given=given,
            way_out="Go back to the list of recordings.",
        )


def _is_cut(text: str) -> bool:
    """Whether a text holds half of a pair of surrogates, which stands for no character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
