"""The checks at every door (floor 0): is it a whole number, an index, a row of things, the right kind of thing.

Each returns what it was given, in its plain form, or raises an `InputError` with the three parts that every error has.
They know nothing of models or recordings, so every floor can ask them, and import nothing that takes time.
"""

from __future__ import annotations

import math
import operator
from numbers import Number, Real
from typing import Any, TypeVar

from wherefrom.errors import InputError

Kind = TypeVar("Kind")


def as_index(value: Any) -> int | None:
    """Return a whole number of any kind, Python's or numpy's, as an int; None for anything else, True included."""
    if isinstance(value, bool):  # numpy's is refused by operator.index itself
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def whole(what: str, value: Any, *, least: int, way_out: str) -> int:
    """Return `value` as an int of at least `least`.

    Raises:
        InputError: anything else; True is no number here.
    """
    number = as_index(value)
    if number is None or number < least:
        raise InputError(
            what, expected=f"a whole number from {least} up", given=f"{value!r}", way_out=way_out, value=value
        )
    return number


def as_number(value: Any) -> float | None:
    """Return a finite number of any kind, Python's or numpy's, as a float; None for anything else, True included."""
    if isinstance(value, bool) or not isinstance(value, Real):  # numpy's bool is no Real
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _is_infinite(value: Any) -> bool:
    """Whether a value is an infinity, or the NaN of some number format."""
    try:
        return not math.isfinite(value)
    except (TypeError, ValueError, OverflowError):
        return False


def check_number(
    what: str, value: Any, *, expected: str, way_out: str, least: float = -math.inf, **facts: Any
) -> float:
    """Return `value` as a float if it is a finite number of at least `least`.

    Raises:
        InputError: anything else; True is no number here.
    """
    number = as_number(value)
    if number is None or number < least:
        given = f"{number:g}" if number is not None else _named(value)
        if _is_infinite(value):
            expected = f"a finite number, {expected}"
        raise InputError(what, expected=expected, given=given, way_out=way_out, least=least, **facts)
    return number


def check_index(what: str, value: Any, size: int) -> int:
    """Return `value` as a plain int if it is an index below `size`; negative indices are refused, not wrapped.

    Raises:
        InputError: anything but 0 <= value < size.
    """
    number = as_index(value)
    if number is None or not 0 <= number < size:
        raise InputError(
            f"the {what}",
            expected=f"a whole number from 0 to {size - 1}",
            given=repr(value),
            way_out=f"{what.capitalize()}s are numbered from 0; there are {size}.",
            value=value,
            size=size,
        )
    return number


def check_items(what: str, value: Any, *, expected: str, way_out: str) -> tuple[Any, ...]:
    """Return what an iterable holds (a tuple, a range, a numpy array); a lone number or a text is none.

    Raises:
        InputError: anything else.
    """
    try:
        if not isinstance(value, str | bytes):
            return tuple(value)
    except TypeError:
        pass
    raise InputError(what, expected=expected, given=_named(value), way_out=way_out, value=value)


def check_chosen(what: str, value: Any, size: int) -> tuple[int, ...] | None:
    """Return indices below `size` that are to be kept, ascending, each once; None, which is all of them, stays None.

    Raises:
        InputError: no indices, none at all, or one out of range.
    """
    if value is None:
        return None
    way_out = f"A single one is (3,); None keeps every {what}."
    given = check_items(f"the {what}s to keep", value, expected="whole numbers, such as (0, 1)", way_out=way_out)
    if not given:
        raise InputError(f"the {what}s to keep", expected="at least one", given="none", way_out=way_out)
    return tuple(sorted({check_index(what, number, size) for number in given}))


def check_kind(what: str, value: Any, kind: type[Kind], *, way_out: str) -> Kind:
    """Return `value` if it is of a kind.

    Raises:
        InputError: it is not.
    """
    if not isinstance(value, kind):
        raise InputError(what, expected=f"a {kind.__name__}", given=_named(value), way_out=way_out, value=value)
    return value


def _named(value: Any) -> str:
    """Return a wrong value as an error shows it: whole if it is short, else what it is."""
    if isinstance(value, int) and abs(value) >= 10**40:
        return "a whole number of more than 40 digits"
    plain = value is None or isinstance(value, Number | str | bytes)
    return repr(value) if plain and len(repr(value)) <= 40 else f"a value of type {type(value).__name__}"
