"""Answers as text: the numbers of a hand-made recording beside a literal, at any width, with any token."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

import wherefrom
from by_hand import MASKS, call_of, random_call, recording_of
from wherefrom.questions import Answer, Column
from wherefrom.spans import Tokens
from wherefrom.views.answers import answer_lines, flowing, print_lines
from wherefrom.views.windows import MOST_SHOWN, outside, window_lines

EVEN, GRADED = np.zeros(4), np.log([1.0, 2.0, 1.0, 4.0])
EXACT = "exact: recomputed from the recorded q, k and lse, within float32 rounding (about\n1e-5)"


def made(*letters: str) -> wherefrom.Recording:
    """Two layers of two heads: one reads evenly, one in proportion to 1, 2, 1, 4."""
    calls = []
    for layer, keys in enumerate(((EVEN, GRADED), (GRADED, EVEN))):
        k = np.array(keys)[:, :, None]
        calls.append(call_of(np.ones_like(k), k, layer=layer))
    return recording_of(*calls, letters="".join(letters) or "abca")


def shown(lines: Any) -> str:
    return "\n".join(line.plain for line in lines)


def table(name: str, values: list[Any], unit: str = "share") -> Answer:
    columns = (Column("layer"), Column("token"), Column(name, unit))
    rows = tuple((at, "x", value) for at, value in enumerate(values))
    return Answer("What?", columns, rows, "exact", "Nothing is left out.", 0.0)


SOURCES = f"""\
Which sources does position 3 ("a") read? mean over 4 heads (2 layers x 2)
source  token          weight                      largest  layer  head
               share of a row               share of a row
     3  "a"            0.3750 ████████████          0.5000      0     1
     1  "b"            0.2500 ████████              0.2500      0     0
     0  "a"            0.1875 ██████                0.2500      0     0
Not listed: 1 more source with 0.1875 of the weight.
{EXACT}"""
READERS = f"""\
Who reads position 1 ("b")? layer 0, head 1
destination  token          weight                      largest  layer  head
                    share of a row               share of a row
          1  "b"            0.6667 ████████████          0.6667      0     1
          2  "c"            0.5000 █████████             0.5000      0     1
          3  "a"            0.2500 ████▌                 0.2500      0     1
Nothing is left out.
{EXACT}"""
RECEIVED = f"""\
How much attention does every source receive? mean over 4 heads (2 layers x 2)
source  token  received             largest  layer  head       readers      last
                   rows                rows               destinations  position
     0  "a"      1.8958 ██████████   2.0833      0     0             4         3
     1  "b"      1.2500 ██████▋      1.4167      0     1             3         3
     2  "c"      0.4792 ██▌          0.5833      0     0             2         3
     3  "a"      0.3750 ██           0.5000      0     1             1         3
Nothing is left out; 4 destinations give 4.0000 in all.
{EXACT}"""
HEADS = """\
What does every head read? every head of layer 0
        entropy       largest          previous   induction       distance
layer head    effective       first  self   duplicate largest_score
           nats sources share share share share share share   score tokens
    0    0 0.79    2.50  0.52  0.36  0.36  0.36  0.25  0.25    0.00   0.75
    0    1 0.72    2.27  0.67  0.24  0.47  0.32  0.12  0.25    1.39   0.58
Means: entropy, effective, largest, distance over destinations; first, self,
previous over destinations from 1 up; duplicate, induction over the 1 of 4
destinations whose token came before.
"""
NARROW = """\
What does every head read? every head of layer 0
layer head entropy effective largest first  self previous
              nats   sources   share share share    share
    0    0    0.79      2.50    0.52  0.36  0.36     0.36
    0    1    0.72      2.27    0.67  0.24  0.47     0.32

layer head duplicate induction largest_score distance
               share     share         score   tokens
    0    0      0.25      0.25          0.00     0.75
    0    1      0.12      0.25          1.39     0.58
"""


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (lambda rec: wherefrom.sources(rec, top=3), SOURCES),
        (lambda rec: wherefrom.readers(rec, 1, layer=0, head=1), READERS),
        (lambda rec: wherefrom.received(rec), RECEIVED),
    ],
    ids=["sources", "readers", "received"],
)
def test_an_answer_as_text(answer: Any, text: str) -> None:
    assert shown(answer_lines(answer(made()))) == text


@pytest.mark.parametrize(("width", "text"), [(80, HEADS), (60, NARROW)])
def test_the_figures_of_heads_fit(width: int, text: str) -> None:
    assert shown(answer_lines(wherefrom.heads(made(), layer=0), width=width)).startswith(text)


def test_with_room_names_are_whole_and_numbers_have_four_decimals() -> None:
    lines = shown(answer_lines(wherefrom.heads(made(), layer=0), width=120)).splitlines()
    assert lines[1].split() == [column.name for column in wherefrom.heads(made()).columns]
    assert lines[4].split()[2:5] == ["0.7223", "2.2705", "0.6667"]


LONG = (29, 8, 3.25, 312.75, 0.5, 0.25, 0.125, 0.5, 0.25, None, -123.5, 4012.5)
"""A head of a long recording."""


@pytest.mark.parametrize("width", [40, 60, 72, 80, 99, 120])
def test_no_name_is_broken_and_each_stands_above_its_numbers(width: int) -> None:
    few = wherefrom.heads(made(), layer=0)
    for answer in (few, replace(few, rows=(LONG,) * 2), wherefrom.received(made()), wherefrom.sources(made())):
        lines = shown(answer_lines(answer, width=width)).splitlines()
        heading = [line for line in lines if len(answer.columns) == 8 or "0." not in line]
        for column in answer.columns:
            ends = {match.end() for line in heading for match in re.finditer(rf"(?<!\S){column.name}(?!\S)", line)}
            assert ends, (column.name, lines)
        assert not re.search(r"[a-z]-( |$)", "\n".join(lines))


@pytest.mark.parametrize("rows", [None, (LONG,) * 3], ids=["short", "long"])
def test_a_head_has_one_row_on_eighty_columns(rows: Any) -> None:
    few = wherefrom.heads(made(), layer=0)
    answer = few if rows is None else replace(few, rows=rows)
    upper, lower, units, *cells = shown(answer_lines(answer)).splitlines()[1 : 4 + len(answer)]
    ends = [match.end() for match in re.finditer(r"\S+", cells[0])]
    assert len(ends) == len(answer.columns) == 12
    named = {match.end(): match[0] for line in (upper, lower) for match in re.finditer(r"\S+", line)}
    assert [named[end] for end in ends] == [column.name for column in answer.columns]
    counted = {match.end(): match[0] for match in re.finditer(r"\S+", units)}
    assert [counted.get(end, "") for end in ends] == [column.unit for column in answer.columns]


def test_what_means_are_over_is_said_where_it_differs() -> None:
    said = " ".join(shown(answer_lines(wherefrom.heads(made()))).split())
    assert "Means: entropy, effective, largest, distance over destinations; first, self, previous over" in said
    assert "duplicate, induction over the 1 of 4 destinations whose token came before. No head is" in said
    assert "Means:" not in shown(answer_lines(wherefrom.sources(made())))
    assert "Means:" not in shown(answer_lines(replace(wherefrom.heads(made()), rows=())))


def test_columns_that_repeat_the_question_can_be_left_out() -> None:
    answer = wherefrom.readers(made(), 1, layer=0, head=1)
    text = shown(answer_lines(answer, without=("largest", "layer", "head")))
    assert text.splitlines()[1:4] == [
        "destination  token          weight",
        "                    share of a row",
        '          1  "b"            0.6667 ████████████',
    ]
    assert answer == wherefrom.readers(made(), 1, layer=0, head=1)


def everything(recording: wherefrom.Recording) -> list[Answer]:
    return [
        wherefrom.heads(recording),
        wherefrom.received(recording),
        wherefrom.sources(recording),
        wherefrom.readers(recording, 0),
        wherefrom.diff(recording, recording),
    ]


@pytest.mark.parametrize("width", [60, 70, 80, 100, 120, 200])
@pytest.mark.parametrize("letters", ["abca", "模型模型", "a\u0301ü🙂", "שלום"], ids=["latin", "wide", "marks", "rtl"])
def test_no_line_is_wider_than_the_terminal(width: int, letters: str) -> None:
    recording = made(letters)
    long = [replace(token, label=token.label * 30) for token in recording.tokens]
    for rec in (recording, replace(recording, tokens=Tokens(recording.tokens.text, tuple(long)))):
        for answer in everything(rec):
            lines = shown(answer_lines(answer, width=width)).splitlines()
            assert max(map(cell_len, lines)) <= width
            assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize("width", [1, 5, 20, 39])
def test_a_narrow_terminal_is_no_error(width: int) -> None:
    for answer in everything(made()):
        assert shown(answer_lines(answer, width=width))


def test_columns_of_wide_characters_are_aligned() -> None:
    lines = shown(answer_lines(wherefrom.sources(made("模b型a")))).splitlines()[3:7]
    assert {line.split()[1] for line in lines} == {'"模"', '"b"', '"型"', '"a"'}
    assert len({cell_len(line[: line.index("0.")]) for line in lines}) == 1


def test_what_does_not_print_becomes_an_escape() -> None:
    recording = made()
    items = tuple(replace(token, label="\x1b[31m\n") for token in recording.tokens)
    named = replace(recording, tokens=Tokens("abca", items), model=replace(recording.model, name="\x1b]0;x\x07"))
    for answer in everything(named):
        text = shown(answer_lines(answer))
        assert all(letter.isprintable() for line in text.splitlines() for letter in line)
        assert "\\x1b" in text or "heads" in text or "head " in text
    window = wherefrom.weights(named, layer=0, head=0)
    assert "\x1b" not in shown(window_lines(window, named.tokens, named.tokens))


def test_a_hole_is_a_dash_and_no_rows_are_said() -> None:
    lines = shown(answer_lines(table("first", [0.5, None]))).splitlines()
    assert [line.split() for line in lines[3:5]] == [["0", '"x"', "0.5000", "█" * 12], ["1", '"x"', "-"]]
    empty = table("first", [])
    assert shown(answer_lines(empty)) == "What?\n  none\nNothing is left out.\nexact"


def test_bars_stand_for_shares_alone() -> None:
    assert "█" in shown(answer_lines(table("moved", [0.5])))
    assert "█" in shown(answer_lines(table("received", [0.5], "rows")))
    assert "█" not in shown(answer_lines(table("entropy", [0.5], "nats")))
    assert "█" not in shown(answer_lines(table("moved", [0.0])))


@pytest.mark.parametrize(
    ("values", "shown_as"),
    [
        ([12345.678, 0.25], ["12345.7", "0.2"]),
        ([12.345, 0.25], ["12.35", "0.25"]),
        ([9.12345, None], ["9.1235", "-"]),
    ],
)
def test_a_column_has_fewer_decimals_the_larger_it_is(values: list[Any], shown_as: list[str]) -> None:
    lines = shown(answer_lines(table("effective", values, "sources"))).splitlines()[3:5]
    assert [line.split()[2] for line in lines] == shown_as
    assert len({len(line) for line in lines}) == 1


def test_sentences_are_broken_at_blanks_and_long_words_inside() -> None:
    assert shown(flowing("one two three", 7)) == "one two\nthree"
    assert shown(flowing("abcdefghij k", 4)) == "abcd\nefgh\nij k"
    assert shown(flowing("模型模型", 4)) == "模型\n模型"
    assert shown(flowing("two  blanks", 20, first="a  ", indent="   ")) == "a  two  blanks"
    assert shown(flowing("one two", 6, first="a  ", indent="   ")) == "a  one\n   two"
    assert shown(flowing("", 5)) == ""


WINDOW = f"""\
How does head 1 of layer 0 weight sources 0 to 2 for destinations 1 to 3?
              0       1       2 outside
            "a"     "b"     "c"
  1 "b"  0.3333  0.6667       0  0.0000
  2 "c"  0.2500  0.5000  0.2500  0.0000
  3 "a"  0.1250  0.2500  0.1250  0.5000
Rows are destinations, columns sources; share of the destination's row; 0 is
exactly 0, as where the mask keeps a source out.
{EXACT}"""


def test_a_window_as_text() -> None:
    recording = made()
    window = wherefrom.weights(recording, layer=0, head=1, destinations=range(1, 4), sources=range(3))
    text = shown(window_lines(window, recording.tokens, recording.tokens))
    rounded = WINDOW.splitlines()
    for line, wanted in zip(text.splitlines(), rounded, strict=True):  # what is outside a full row rounds to 0
        assert line == wanted or line == wanted.removesuffix("0.0000") + "     0"


def test_what_lies_outside_a_window_is_said_in_a_sentence() -> None:
    recording = made()
    part = wherefrom.weights(recording, layer=0, head=1, destinations=range(1, 4), sources=range(3))
    assert outside(part, recording.tokens) == "Left out: 1 of 4 sources, with at most 0.5000 of a destination's row."
    assert outside(wherefrom.weights(recording, layer=0, head=1), recording.tokens) == "No source is left out."
    padded = recording_of(random_call(MASKS["padding before"]))
    empty = wherefrom.weights(padded, layer=0, head=0, destinations=range(2), sources=range(2))
    assert outside(empty, padded.tokens) == "No destination of the window may read anything."


def test_a_window_of_all_sources_has_nothing_outside() -> None:
    recording = made()
    text = shown(window_lines(wherefrom.weights(recording, layer=0, head=1), recording.tokens, recording.tokens))
    assert "outside" not in text
    assert "Not shown" not in text


def test_a_destination_without_a_row_is_a_dash() -> None:
    recording = recording_of(random_call(MASKS["padding before"]))
    text = shown(window_lines(wherefrom.weights(recording, layer=0, head=0), recording.tokens, recording.tokens))
    rows = text.splitlines()[3:10]
    assert rows[0].split() == ["0", '"a"', *["-"] * 7]
    assert rows[2].split() == ["2", '"c"', "0", "0", "1.0000", *["0"] * 4]
    assert "- stands where a destination may read" in " ".join(text.split())
    whole = shown(window_lines(wherefrom.weights(made(), layer=0, head=0), made().tokens, made().tokens))
    assert "- stands" not in whole


def long_recording(length: int) -> wherefrom.Recording:
    k = np.zeros((1, length, 1))
    letters = "".join(chr(ord("a") + at % 26) for at in range(length))
    return recording_of(call_of(np.ones_like(k), k), letters=letters)


def test_of_a_large_window_the_corners() -> None:
    recording = long_recording(40)  # 1,600 cells
    text = shown(window_lines(wherefrom.weights(recording, layer=0, head=0), recording.tokens, recording.tokens))
    assert text.splitlines()[1:10] == [
        "              0       1       2       3     ...      36      37      38      39",
        '            "a"     "b"     "c"     "d"             "k"     "l"     "m"     "n"',
        '  0 "a"  1.0000       0       0       0     ...       0       0       0       0',
        '  1 "b"  0.5000  0.5000       0       0     ...       0       0       0       0',
        '  2 "c"  0.3333  0.3333  0.3333       0     ...       0       0       0       0',
        "...         ...     ...     ...     ...     ...     ...     ...     ...     ...",
        ' 37 "l"  0.0263  0.0263  0.0263  0.0263     ...  0.0263  0.0263       0       0',
        ' 38 "m"  0.0256  0.0256  0.0256  0.0256     ...  0.0256  0.0256  0.0256       0',
        ' 39 "n"  0.0250  0.0250  0.0250  0.0250     ...  0.0250  0.0250  0.0250  0.0250',
    ]
    assert "Not shown: 34 of 40 destinations and 32 of 40 sources, between the corners." in " ".join(text.split())


@pytest.mark.parametrize("width", [20, 60, 80, 120])
def test_windows_fit(width: int) -> None:
    recording = long_recording(40)
    for rows, columns in ((range(40), range(40)), (range(3), range(40)), (range(32), range(32)), (range(40), range(1))):
        window = wherefrom.weights(recording, layer=0, head=0, destinations=rows, sources=columns)
        text = shown(window_lines(window, recording.tokens, recording.tokens, width=width))
        assert max(map(cell_len, text.splitlines())) <= width
        cells = len(rows) * len(columns)
        assert ("Not shown" in text) == (cells > MOST_SHOWN)
        if cells <= MOST_SHOWN:  # every cell is there, and what is outside
            wanted = cells + (len(rows) if len(columns) < 40 else 0)
            cut = text[: text.index("Rows are")]
            assert len([word for word in cut.split() if word == "0" or word[:2] in ("0.", "1.")]) >= wanted


def test_colour_is_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("FORCE_COLOR", "TTY_COMPATIBLE", "NO_COLOR"):
        monkeypatch.delenv(variable, raising=False)
    answer = wherefrom.sources(made())
    plain, coloured = io.StringIO(), io.StringIO()
    print_lines(lambda width: answer_lines(answer, width=width), console=Console(file=plain, width=80))
    assert plain.getvalue() == shown(answer_lines(answer)) + "\n"
    terminal = Console(file=coloured, width=60, force_terminal=True, color_system="standard")
    print_lines(lambda width: answer_lines(answer, width=width), console=terminal)
    assert "\x1b[34m█" in coloured.getvalue()
    bare = Text.from_ansi(coloured.getvalue()).plain
    assert bare.rstrip("\n") == shown(answer_lines(answer, width=60))


def test_a_terminal_of_no_columns_has_eighty() -> None:
    out = io.StringIO()
    console = Console(file=out)
    console.width = 0
    print_lines(lambda width: [Text(str(width))], console=console)
    assert out.getvalue() == "80\n"
