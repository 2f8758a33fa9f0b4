"""Attention forming (floor 6): a figure of every head over the steps of a training run, as small charts."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len

from wherefrom.checks import check_index, whole
from wherefrom.errors import InputError
from wherefrom.readable import readable
from wherefrom.views.cells import count, fitted

if TYPE_CHECKING:  # drawing needs no torch
    from wherefrom.training.watched import Watched

BLOCKS = "▁▂▃▄▅▆▇█"
CELLS = 48
LABEL = 9
"""Cells of a head's name and the blanks behind it."""
NAME = 30
"""Cells of a run's name at most."""
WIDTH = 80
TOP = 24
"""Heads that are drawn unless more are asked for: they fit on a screen."""
SHARES = ("largest", "first", "self", "previous", "duplicate", "induction")
LEVEL = 0.5
MEANINGS = {
    "entropy": "of a row's weights, in nats, mean of the rows",
    "effective": "exp(entropy): how many evenly read sources that would be, mean of the rows",
    "largest": "largest weight of a row, mean of the rows",
    "first": "weight on the first token, mean of the rows",
    "self": "weight on the position itself, mean of the rows",
    "previous": "weight on the token before, mean of the rows",
    "duplicate": "weight on earlier occurrences of the same token, mean of the rows that have one",
    "induction": "weight on what followed the same token before, mean of the rows that have such",
    "largest_score": "largest score of any permitted pair",
}
Place: TypeAlias = tuple[int, int]
"""A layer and a head."""


def forming_lines(
    watched: Watched, figure: str = "induction", *, name: str = "", layer: int | None = None, top: int = TOP
) -> Iterator[str]:
    """Yield lines of at most 80 cells: a chart a head, the first and last value beside it, then the probe's losses.

    Args:
        watched: from `wherefrom.training.watched.read_watched`.
        figure: one of `MEANINGS`.
        name: of the run.
        layer: whose heads are drawn; those of all unless given.
        top: at most so many heads are drawn, those whose figure changes most.

    Raises:
        InputError: there is no such figure or layer, or `top` is below 1.
    """
    values = watched.of(figure)
    heads = _heads(values, layer)
    drawn = _changed_most(values, heads, whole("top", top, least=1, way_out="Say how many heads you want."))
    places = _places(len(watched.steps))
    yield from _title(watched, figure, name, layer)
    yield ""
    low, high = (0.0, 1.0) if figure in SHARES else _range(np.array([values[:, place[0], place[1]] for place in drawn]))
    yield f"{'head':<{LABEL}}{'first':>8}  {'':<{len(places)}}  {'last':>8}"
    for place in drawn:
        yield _line(_label(place), values[:, place[0], place[1]], places, low, high)
    if len(drawn) < len(heads):
        yield f"those {len(drawn)} of {len(heads)} heads whose figure changes most"
    yield ""
    yield from _losses(watched, places)
    yield from _filled(
        f"charts: {low:.3g} (lowest) to {high:.3g} (highest); a cell is one look"
        + ("" if len(places) == len(watched.steps) else f", {len(places)} of {len(watched.steps):,} are drawn")
    )
    yield from _onsets(watched, figure, heads)


def _title(watched: Watched, figure: str, name: str, layer: int | None) -> Iterator[str]:
    first, last = int(watched.steps[0]), int(watched.steps[-1])
    run = f" in {fitted(readable(name), NAME, pad=False)}" if name else ""
    whose = "every head" if layer is None else f"every head of layer {layer}"
    title, steps = f"{figure} of {whose}{run}", f"steps {first:,} to {last:,}"
    yield from [f"{title}, {steps}"] if cell_len(title) + len(steps) + 2 <= WIDTH else [f"{title},", steps]
    yield from _filled(f"({MEANINGS[figure]}; measured on a row of different tokens that comes twice)")


def _filled(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, break_on_hyphens=False)


def _heads(values: NDArray[np.float64], layer: int | None) -> list[Place]:
    layers, heads = values.shape[1:]
    chosen = range(layers) if layer is None else (check_index("layer", layer, layers),)
    return [(number, head) for number in chosen for head in range(heads)]


def _changed_most(values: NDArray[np.float64], heads: list[Place], most: int) -> list[Place]:
    """Return the heads whose largest and smallest value lie furthest apart, in their order."""

    def change(place: Place) -> float:
        known = values[:, place[0], place[1]][np.isfinite(values[:, place[0], place[1]])]
        return float(known.max() - known.min()) if known.size else -1.0

    return sorted(sorted(heads, key=change, reverse=True)[:most])


def _label(place: Place) -> str:
    return f"L{place[0]} H{place[1]}"


def _line(label: str, series: NDArray[np.float64], places: NDArray[np.int64], low: float, high: float) -> str:
    return f"{label:<{LABEL}}{_value(series[0])}  {_chart(series[places], low, high)}  {_value(series[-1])}"


def _losses(watched: Watched, places: NDArray[np.int64]) -> Iterator[str]:
    _, high = _range(np.concatenate((watched.new_nats, watched.again_nats)))
    for label, series in (("new", watched.new_nats), ("again", watched.again_nats)):
        yield _line(label, series, places, 0.0, high)
    yield from _filled(
        f"loss in nats a token: new of the first coming, again of the second; 0 to {high:.3g}. The row is no text: new "
        "rises as the model learns what its own text is like."
    )


def _onsets(watched: Watched, figure: str, heads: list[Place]) -> Iterator[str]:
    if figure not in SHARES:
        return
    found = [(watched.onset(figure, *place, LEVEL), place) for place in heads]
    reached = sorted((step, place) for step, place in found if step is not None)
    if not reached:
        others = "previous" if figure != "previous" else "entropy"
        yield f"no head reaches {LEVEL}; another figure may show more: --figure {others}"
    for step, place in reached[:4]:
        yield f"{_label(place)} reaches {LEVEL} at step {step:,}"
    if more := len(reached[4:]):
        yield f"and {count(more, 'more head')}, no sooner"


def _places(looks: int) -> NDArray[np.int64]:
    """Return which looks are drawn: all, or as many as there is room for, evenly spread, both ends among them."""
    return np.unique(np.linspace(0, looks - 1, min(looks, CELLS)).round().astype(np.int64))


def _range(values: NDArray[np.float64]) -> tuple[float, float]:
    known = values[np.isfinite(values)]
    return (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)


def _chart(series: NDArray[np.float64], low: float, high: float) -> str:
    """Return a cell a value; a value that is none is a dot."""
    span = (high - low) or 1.0
    cells = [
        "·" if not np.isfinite(value) else BLOCKS[min(len(BLOCKS) - 1, max(0, int((value - low) / span * len(BLOCKS))))]
        for value in series.tolist()
    ]
    return "".join(cells)


def _value(value: float) -> str:
    if not np.isfinite(value):
        return f"{'-':>8}"
    text = f"{value:.3f}"
    return f"{text if len(text) <= 8 else f'{value:.1e}':>8}"


def check_figure(figure: str) -> str:
    """Return the name of a figure.

    Raises:
        InputError: there is no such figure.
    """
    if figure not in MEANINGS:
        raise InputError(
            "the figure",
            expected=f"one of {', '.join(MEANINGS)}",
            given=repr(figure),
            way_out="induction is the one that shows heads copying what followed before.",
        )
    return figure
