"""Attention forming (floor 6): a figure of every head over the steps of a training run, as small charts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wherefrom.errors import InputError

if TYPE_CHECKING:  # drawing needs no torch
    from wherefrom.training.watched import Watched

BLOCKS = "▁▂▃▄▅▆▇█"
CELLS = 48
SHARES = ("largest", "first", "itself", "previous", "duplicate", "induction")
LEVEL = 0.5
MEANINGS = {
    "entropy": "of a row's weights, in nats, mean of the rows",
    "effective": "exp(entropy): how many evenly read sources that would be, mean of the rows",
    "largest": "largest weight of a row, mean of the rows",
    "first": "weight on the first token, mean of the rows",
    "itself": "weight on the position itself, mean of the rows",
    "previous": "weight on the token before, mean of the rows",
    "duplicate": "weight on earlier occurrences of the same token, mean of the rows that have one",
    "induction": "weight on what followed the same token before, mean of the rows that have such",
    "largest_score": "largest score of any permitted pair",
}


def forming_lines(watched: Watched, figure: str = "induction", *, name: str = "") -> Iterator[str]:
    """Yield lines of at most 80 cells: a chart a head, the first and last value beside it, then the probe's losses.

    Args:
        watched: from `wherefrom.training.watched.read_watched`.
        figure: one of `MEANINGS`.
        name: of the run.

    Raises:
        InputError: there is no such figure.
    """
    values = watched.of(figure)
    places = _places(len(watched.steps))
    first, last = int(watched.steps[0]), int(watched.steps[-1])
    yield f"{figure} of every head{f' in {name}' if name else ''}, steps {first:,} to {last:,}"
    yield f"({MEANINGS[figure]};"
    yield "measured on a row of different tokens that comes twice)"
    yield ""
    low, high = (0.0, 1.0) if figure in SHARES else _range(values)
    yield f"{'head':<9}{'first':>8}  {'':<{len(places)}}  {'last':>8}"
    for layer in range(values.shape[1]):
        for head in range(values.shape[2]):
            series = values[:, layer, head]
            yield f"L{layer} H{head:<5}{_value(series[0])}  {_chart(series[places], low, high)}  {_value(series[-1])}"
    yield ""
    yield from _losses(watched, places)
    yield f"charts: {low:.3g} (lowest) to {high:.3g} (highest); a cell is one look" + (
        "" if len(places) == len(watched.steps) else f", {len(places)} of {len(watched.steps)} are drawn"
    )
    yield from _onsets(watched, figure)


def _losses(watched: Watched, places: NDArray[np.int64]) -> Iterator[str]:
    both = np.concatenate((watched.new_nats, watched.again_nats))
    low, high = min(0.0, float(both.min())), float(both.max())
    for label, series in (("new", watched.new_nats), ("again", watched.again_nats)):
        yield f"{label:<9}{_value(series[0])}  {_chart(series[places], low, high)}  {_value(series[-1])}"
    yield f"loss of the row, in nats a token: new at its first coming, again at its second; 0 to {high:.3g}"


def _onsets(watched: Watched, figure: str) -> Iterator[str]:
    if figure not in SHARES:
        return
    layers, heads = watched.of(figure).shape[1:]
    found = [
        (watched.onset(figure, layer, head, LEVEL), layer, head) for layer in range(layers) for head in range(heads)
    ]
    reached = sorted((step, layer, head) for step, layer, head in found if step is not None)
    if not reached:
        yield f"no head reaches {LEVEL}"
    for step, layer, head in reached[:4]:
        yield f"L{layer} H{head} reaches {LEVEL} at step {step:,}"
    if len(reached) > 4:
        yield f"and {len(reached) - 4} more heads later"


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
    return f"{value:>8.3f}" if np.isfinite(value) else f"{'-':>8}"


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
