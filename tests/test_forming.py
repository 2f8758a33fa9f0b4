"""Charts of attention forming: what is drawn of a table of figures, and that it fits a terminal."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from rich.cells import cell_len

from wherefrom import InputError
from wherefrom.training.watched import COLUMNS, OF_STEP, Watched
from wherefrom.views.forming import BLOCKS, CELLS, MEANINGS, SHARES, TOP, check_figure, forming_lines

FIGURES = tuple(name for name in COLUMNS[3:] if name not in OF_STEP)
"""The table's columns, between where they are and what they share."""


def seen(values: ArrayLike, *, steps: ArrayLike | None = None, new: ArrayLike = 5.0, again: ArrayLike = 3.0) -> Watched:
    """A table in which every figure has given values [W, layers, heads]."""
    held = np.asarray(values, float)
    looks = len(held)
    at = np.arange(looks) * 10 if steps is None else np.asarray(steps)
    losses = (np.broadcast_to(np.asarray(loss, float), looks).copy() for loss in (new, again))
    return Watched(at, dict.fromkeys(FIGURES, held), *losses)


def lines(watched: Watched, figure: str = "induction", **how: Any) -> list[str]:
    return list(forming_lines(watched, figure, **how))


def chart(found: list[str], label: str) -> tuple[str, str, str]:
    """A line's first value, its cells and its last value."""
    (line,) = (line for line in found if re.match(f"{label} .*[{BLOCKS}·]", line))
    first, cells, last = line.removeprefix(label).split()
    return first, cells, last


TWO_HEADS = [[[0.1, 0.9]], [[0.4, np.nan]], [[0.6, 0.2]], [[0.5, 0.95]]]
DRAWN = """\
induction of every head in run, steps 1 to 3,000
(weight on what followed the same token before, mean of the rows that have such;
measured on a row of different tokens that comes twice)

head        first            last
L0 H0       0.100  ▁▄▅▅     0.500
L0 H1       0.900  █·▂█     0.950

new         5.000  ████     5.000
again       5.000  █▇▄▂     1.000
loss in nats a token: new of the first coming, again of the second; 0 to 5. The
row is no text: new rises as the model learns what its own text is like.
charts: 0 (lowest) to 1 (highest); a cell is one look
L0 H1 reaches 0.5 at step 1
L0 H0 reaches 0.5 at step 20
"""


NONE = "no head reaches 0.5; another figure may show more: --figure previous"


def test_a_table_by_hand() -> None:
    watched = seen(TWO_HEADS, steps=[1, 10, 20, 3000], again=[5, 4, 2, 1])
    assert "\n".join([*lines(watched, name="run"), ""]) == DRAWN


def test_each_eighth_of_the_range_has_its_block() -> None:
    shares = seen([[[(eighth + 0.5) / 8]] for eighth in range(8)])
    assert chart(lines(shares), "L0 H0") == ("0.062", BLOCKS, "0.938")
    nats = seen([[[20.0 + eighth]] for eighth in range(8)])
    assert chart(lines(nats, "entropy"), "L0 H0") == ("20.000", BLOCKS, "27.000")
    assert any(line.startswith("charts: 20 (lowest) to 27 (highest);") for line in lines(nats, "entropy"))


@pytest.mark.parametrize("figure", FIGURES)
def test_a_share_is_drawn_from_0_to_1_and_any_other_figure_over_its_own_range(figure: str) -> None:
    found = lines(seen([[[0.3]], [[0.6]]]), figure)
    assert chart(found, "L0 H0")[1] == ("▃▅" if figure in SHARES else "▁█")
    assert ("at step 10" in found[-1]) == (figure in SHARES)  # what is no share has no onset
    assert found[0].startswith(f"{figure} of every head, steps 0 to 10")


def test_every_figure_has_a_meaning() -> None:
    assert tuple(MEANINGS) == FIGURES
    assert set(SHARES) <= set(FIGURES)
    for figure in FIGURES:
        found = lines(seen([[[0.5]]]), figure)
        told = " ".join(found[1 : found.index("")])
        assert told == f"({MEANINGS[figure]}; measured on a row of different tokens that comes twice)"


def test_missing_values_are_dots_and_dashes() -> None:
    found = lines(seen([[[np.nan, 0.5]], [[0.9, np.inf]], [[np.nan, -np.inf]]]), "entropy")
    assert chart(found, "L0 H0") == ("-", "·█·", "-")
    assert chart(found, "L0 H1") == ("0.500", "▁··", "-")
    nothing = lines(seen(np.full((3, 1, 1), np.nan), new=np.nan, again=np.nan), "entropy")
    assert chart(nothing, "L0 H0") == ("-", "···", "-")
    assert chart(nothing, "new") == ("-", "···", "-")
    assert lines(seen(np.full((3, 1, 1), np.nan)))[-1] == NONE
    lost = lines(seen([[[0.5]], [[0.5]]], new=[4.0, np.nan], again=[np.nan, 2.0]))
    assert (chart(lost, "new")[1], chart(lost, "again")[1]) == ("█·", "·▅")


@pytest.mark.parametrize("value", [0.0, 0.25, 1.0])
def test_a_constant_figure_is_level(value: float) -> None:
    first, cells, last = chart(lines(seen(np.full((5, 1, 1), value))), "L0 H0")
    assert (first, last) == (f"{value:.3f}", f"{value:.3f}")
    assert cells == 5 * BLOCKS[min(7, int(8 * value))]
    assert chart(lines(seen(np.full((5, 1, 1), value)), "entropy"), "L0 H0")[1] == 5 * BLOCKS[0]


def test_a_single_look() -> None:
    found = lines(seen([[[0.7, 0.1]]], steps=[1]), name="run")
    assert found[0] == "induction of every head in run, steps 1 to 1"
    assert chart(found, "L0 H0") == ("0.700", "▆", "0.700")
    assert chart(found, "again") == ("3.000", "▅", "3.000")
    assert found[-2:] == ["charts: 0 (lowest) to 1 (highest); a cell is one look", "L0 H0 reaches 0.5 at step 1"]


def test_of_many_looks_as_many_are_drawn_as_there_is_room_for() -> None:
    rising = np.linspace(0, 0.999, 1000)[:, None, None]
    found = lines(seen(rising))
    first, cells, last = chart(found, "L0 H0")
    assert (first, last) == ("0.000", "0.999")
    assert len(cells) == CELLS == 48
    assert cells == "".join(sorted(cells, key=BLOCKS.index))
    assert {cells.count(block) for block in BLOCKS} == {6}  # evenly spread
    assert "a cell is one look, 48 of 1,000 are drawn" in " ".join(found)
    whole = lines(seen(rising[:48]))
    assert len(chart(whole, "L0 H0")[1]) == 48
    assert "are drawn" not in " ".join(whole)
    spike = np.zeros((200, 1, 1))
    spike[[0, -1]] = 1.0
    cells = chart(lines(seen(spike)), "L0 H0")[1]
    assert cells == "█" + 46 * "▁" + "█"  # both ends are among them


def many(looks: int = 5) -> np.ndarray[Any, Any]:
    """Thirty layers of nine heads, of which some change by a known amount."""
    values = np.full((looks, 30, 9), 0.3)
    for number in range(40):
        values[-1, number % 30, number % 7] += 0.01 * (number + 1)
    return values


def drawn(found: list[str]) -> list[tuple[int, int]]:
    at = next(number for number, line in enumerate(found) if line.startswith("head "))
    return [
        (int(match[1]), int(match[2])) for line in found[at:] if (match := re.match(r"L(\d+) H(\d+) .*[▁-█]", line))
    ]


def test_of_many_heads_those_are_drawn_that_change_most() -> None:
    values = many()
    change = {(layer, head): values[-1, layer, head] - 0.3 for layer in range(30) for head in range(9)}
    most = sorted(change, key=lambda place: -change[place])
    found = lines(seen(values))
    assert len(drawn(found)) == TOP == 24
    assert drawn(found) == sorted(most[:24])  # in the order of the model
    assert "those 24 of 270 heads whose figure changes most" in found
    assert drawn(lines(seen(values), top=3)) == sorted(most[:3])
    whole = lines(seen(values), top=270)
    assert drawn(whole) == sorted(change)
    assert not any("changes most" in line for line in whole)
    assert len(found) <= 42  # a screen or so


def test_a_fall_is_a_change_and_a_head_without_values_comes_last() -> None:
    values = np.full((3, 1, 4), 0.5)
    values[:, 0, 0] = np.nan
    values[1, 0, 1] = 0.6
    values[2, 0, 3] = 0.1
    assert drawn(lines(seen(values), top=1)) == [(0, 3)]
    assert drawn(lines(seen(values), top=2)) == [(0, 1), (0, 3)]
    assert drawn(lines(seen(values), top=3)) == [(0, 1), (0, 2), (0, 3)]


def test_one_layer_alone() -> None:
    values = many()
    values[-1, 12, 0] = 0.9
    found = lines(seen(values), layer=12, name="run")
    assert found[0] == "induction of every head of layer 12 in run, steps 0 to 40"
    assert drawn(found) == [(12, head) for head in range(9)]
    assert found[-1] == "L12 H0 reaches 0.5 at step 40"
    assert lines(seen(values), layer=11)[-1] == NONE
    nats = lines(seen(values), "entropy", layer=12)
    assert any(line.startswith("charts: 0.3 (lowest) to 0.9") for line in nats)  # the range is the layer's


def test_onsets_are_told_in_their_order() -> None:
    values = np.zeros((9, 2, 4))
    for look, place in enumerate([(1, 3), (0, 1), (1, 0), (0, 0), (1, 1), (0, 2)]):
        values[look + 1 :, place[0], place[1]] = 0.5
    found = lines(seen(values))
    assert found[-5:] == [
        "L1 H3 reaches 0.5 at step 10",
        "L0 H1 reaches 0.5 at step 20",
        "L1 H0 reaches 0.5 at step 30",
        "L0 H0 reaches 0.5 at step 40",
        "and 2 more heads, no sooner",
    ]
    assert lines(seen(values[:6]))[-1] == "and 1 more head, no sooner"
    assert lines(seen(values[:5]))[-1] == "L0 H0 reaches 0.5 at step 40"
    assert lines(seen(values[:1]))[-1] == NONE


@settings(max_examples=150)
@given(
    looks=st.integers(1, 120),
    shape=st.sampled_from([(1, 1), (2, 3), (120, 2), (2, 130)]),
    figure=st.sampled_from(FIGURES),
    size=st.sampled_from([1e-9, 1.0, 12.0, 1e5, 1e30]),
    name=st.sampled_from(["", "run", "n" * 200, "走" * 90, "a\nb\x1b[31m", "שלום" * 20, "two words " * 12]),
    last=st.sampled_from([1, 2_000, 99_999_999]),
    seed=st.integers(0, 99),
)
def test_no_line_is_wider_than_a_terminal(
    looks: int, shape: tuple[int, int], figure: str, size: float, name: str, last: int, seed: int
) -> None:
    chance = np.random.default_rng(seed)
    values = size * chance.uniform(-1, 1, (looks, *shape))
    values[chance.random(values.shape) < 0.1] = np.nan
    steps = np.linspace(1, last + looks, looks).astype(int)
    losses = {which: size * chance.random(looks) for which in ("new", "again")}
    for layer in (None, shape[0] - 1):
        found = lines(seen(values, steps=steps, **losses), figure, name=name, layer=layer)
        assert max(map(cell_len, found)) <= 80
        assert all(line.isprintable() or "\u200e" in line for line in found)
        assert len([line for line in found if line.startswith("L")]) >= min(24, shape[1])


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"figure": "luck"}, "the figure: expected one of entropy, effective, .*, got 'luck'. induction is the one"),
        ({"layer": 1}, "the layer: expected a whole number from 0 to 0, got 1"),
        ({"layer": -1}, "the layer: expected a whole number from 0 to 0, got -1"),
        ({"top": 0}, "top: expected a whole number from 1 up, got 0. Say how many heads"),
    ],
    ids=str,
)
def test_what_cannot_be_drawn(how: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        list(forming_lines(seen(TWO_HEADS), **how))


def test_the_name_of_a_figure_is_checked() -> None:
    assert [check_figure(figure) for figure in FIGURES] == list(FIGURES)
    for wrong in ("", "Induction", "empty", "new_nats"):
        with pytest.raises(InputError, match=f"the figure: expected one of entropy, .*, got '{wrong}'"):
            check_figure(wrong)
