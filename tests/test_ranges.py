"""Numbers and ranges as they are typed: "0:3,5" is 0, 1, 2 and 5."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherefrom.cli.ranges import Numbers
from wherefrom.errors import InputError
from wherefrom.views.recorded import ranges


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0", (0,)),
        ("0:3,5", (0, 1, 2, 5)),
        (" 5 , 0 : 3 ", (0, 1, 2, 5)),
        ("7:", (7, 8)),
        (":2", (0, 1)),
        (":", tuple(range(9))),
        ("last", (8,)),
        ("last,0", (0, 8)),
        ("3,3,2:4", (2, 3)),
        ("8", (8,)),
        ("0:9", tuple(range(9))),
    ],
)
def test_numbers_as_they_are_typed(text: str, numbers: tuple[int, ...]) -> None:
    assert Numbers.of("--x", text, last=True).within("head", 9) == numbers


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "1,",
        ",1",
        "x",
        "-1",
        "1:-1",
        "-2:",
        "3:3",
        "5:3",
        "0:0",
        "1:2:3",
        "1 2",
        "1.5",
        "٣",
        "last:",
        "1e3",
        "9" * 13,
    ],
)
def test_what_is_no_number_or_range(text: str) -> None:
    with pytest.raises(InputError, match=r"^--x: expected numbers and ranges"):
        Numbers.of("--x", text, last=True)


@pytest.mark.parametrize("text", ["9", "0:10", "10:", "9:", "0,9", "999999999999", "5:999999999999"])
def test_numbers_beyond_what_there_is(text: str) -> None:
    with pytest.raises(
        InputError, match=r"^--x: expected numbers from 0 to 8, and ranges that end at 9 or before, got"
    ):
        Numbers.of("--x", text).within("head", 9)
    with pytest.raises(InputError, match=r"^--x: expected"):
        Numbers.of("--x", text).window("head", 9)


@given(st.sets(st.integers(0, 40), min_size=1))
def test_what_is_kept_is_said_as_it_is_typed(numbers: set[int]) -> None:
    assert Numbers.of("--x", ",".join(ranges(sorted(numbers)))).within("head", 41) == tuple(sorted(numbers))
