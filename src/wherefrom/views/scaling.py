"""Why the scores are divided by sqrt(d_k), as a table of numbers (floor 6): computed here, from random vectors alone.

It takes the definitions of scores and weights from `wherefrom.attention` and gives plain text and plain data to the
command line. The reason that is tested is the one of Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1
and its footnote 4 (https://arxiv.org/abs/1706.03762): if the coordinates of q and k are independent with mean 0 and
variance 1, q . k has mean 0 and variance d_k; large scores push softmax to where its gradients are very small.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wherefrom.attention import scores, weights
from wherefrom.checks import check_items, check_kind, whole
from wherefrom.errors import InputError

Floats: TypeAlias = NDArray[np.float64]

SIZES = (1, 4, 16, 64, 256, 1024)
WIDTH = 80  # columns of a plain terminal
MOST_SIZE = 2**16
"""Heads of today have some hundred dimensions; more digits than these would not fit beside the other columns."""
MOST_NUMBERS = 2**26
MOST_ROWS = 2**14
"""Coordinates of keys, and rows, drawn for one size: some seconds. More would not sharpen what the table shows."""
FEWER = "Each row is one random query with its own keys; 256 rows of 64 sources are enough to see."
HEADER = ("d_k", "spread", "theory", "largest", "entropy", "mean", "median", "mean", "median")
UNITS = {
    "spread": "standard deviation of the scores, in units of the score",
    "theory": "what the spread is for independent coordinates of variance 1, in units of the score",
    "largest": "largest weight of a row, a share of the row; the mean over the rows",
    "entropy": "entropy of a row's weights, in nats; the mean over the rows",
    "even_entropy": "log of the number of sources: the entropy of even weights, in nats",
    "score_gradient": "Frobenius norm of da/ds, weight a unit of score; the mean over the rows",
    "score_gradient_median": "the same, the median row",
    "query_gradient": "Frobenius norm of da/dq, weight a unit of every query coordinate; the mean over the rows",
    "query_gradient_median": "the same, the median row",
}


LESSON = (
    "Not divided, the scores spread like √d_k. As they do, a row narrows to a few sources and its gradients grow; then "
    "to one, and the gradients of the typical (median) row die away. The mean of |da/dq| need not fall: the few rows "
    "with two nearly tied sources move √d_k times as fast. Divided, a row hardly depends on d_k."
)


@dataclass(frozen=True)
class ScalingRow:
    """What softmax makes of random queries and keys of one size, with or without the division by sqrt(d_k).

    Attributes:
        size: d_k, the length of a query and of a key.
        divided: whether the scores are q . k / sqrt(d_k), or q . k.
        spread: standard deviation of all scores.
        theory: what it is in theory: 1 where divided, sqrt(d_k) where not.
        largest: mean over the rows of the largest weight, a share of the row.
        entropy: mean over the rows of the weights' entropy, in nats.
        even_entropy: log of the number of sources, in nats: the entropy of even weights, the largest there is.
        score_gradient: mean over the rows of `score_gradient`.
        score_gradient_median: its median.
        query_gradient: mean over the rows of `query_gradient`.
        query_gradient_median: its median.
        sources: how many keys each query was compared with.
        rows: how many queries were drawn, each with keys of its own.
        seed: of the random numbers.
    """

    size: int
    divided: bool
    spread: float
    theory: float
    largest: float
    entropy: float
    even_entropy: float
    score_gradient: float
    score_gradient_median: float
    query_gradient: float
    query_gradient_median: float
    sources: int
    rows: int
    seed: int


def scaling(
    sizes: Iterable[int] = SIZES, *, sources: int = 64, rows: int = 256, seed: int = 0
) -> tuple[ScalingRow, ...]:
    """Return two rows a size, in the order of the sizes: the scores q . k as they are, then divided by sqrt(d_k).

    Both are of the same random q and k, and the numbers of a size do not depend on which others are asked for.

    Args:
        sizes: values of d_k, whole numbers from 1 to 65,536.
        sources: keys a query, 2 or more.
        rows: queries a size, each with its own keys, so that the rows are independent draws.
        seed: 0 or more.

    Raises:
        InputError: no size, a number out of its range, or so many that it would take minutes.
    """
    asked = _sizes(sizes)
    way_out = "Softmax over one source is 1 whatever its score."
    sources = whole("the number of sources", sources, least=2, way_out=way_out)
    rows = whole("the number of rows", rows, least=1, way_out=FEWER)
    seed = whole("the seed", seed, least=0, way_out="The same seed gives the same numbers.")
    numbers = max(asked) * sources * rows
    if rows > MOST_ROWS or numbers > MOST_NUMBERS:
        raise InputError(
            "the sizes",
            expected=f"at most {MOST_ROWS:,} rows and {MOST_NUMBERS:,} random numbers (size x sources x rows) for one",
            given=f"{max(asked):,} x {sources:,} x {rows:,}",
            way_out=FEWER,
            numbers=numbers,
        )
    return tuple(row for size in asked for row in _both(size, sources, rows, seed))


def score_gradient(row: Floats) -> float:
    """Return how much a row of weights [S] moves with its scores: the Frobenius norm of da/ds.

    da/ds is the Jacobian of softmax, J = diag(a) - a a^T. If every score is moved by a small step, each independent
    and of one size, the weights move by this many such steps, in root mean square. It is 0 where one source has all
    the weight, and at most 1/2, where two sources have half each.

    The closed form is the sum of a_i^2 ((1 - a_i)^2 + the sum of the other a_j^2). For the largest weight both are
    summed over the others: in a row that is nearly one source, 1 - a_i would be nothing but rounding.
    """
    top = int(row.argmax())
    others = np.delete(row, top)
    rest = 1.0 - row  # S, what the other sources weigh
    rest[top] = others.sum()
    squares = (row**2).sum() - row**2  # S, the sum of the others' squares
    squares[top] = (others**2).sum()
    return math.sqrt(float((row**2 * (rest**2 + squares)).sum()))


def query_gradient(row: Floats, keys: Floats, scale: float) -> float:
    """Return how much a row of weights [S] moves with its query: the Frobenius norm of da/dq = scale J K, [S, D].

    J is the Jacobian of `score_gradient` and K are the keys [S, D]. If every coordinate of the query is moved by a
    small step, each independent and of one size, the weights move by this many such steps, in root mean square.

    What it shows: for random keys it is near scale * sqrt(D) * |J|. Divided, that is |J|. Not divided, it is
    sqrt(D) * |J|, and its mean over the rows does not fall with D: the few rows whose best two sources are nearly
    tied move sqrt(D) times as fast, and their share falls only as 1 / sqrt(D). Its median falls, since all the other
    rows stand nearly still. So what the division saves is the gradient of the typical row, not the mean one.
    """
    top = int(row.argmax())
    # J takes (1, .., 1) to 0, so keys may be counted from any point: from the strongest source's, nothing cancels
    apart = keys - keys[top]  # S D
    gradient = row[:, None] * (apart - row @ apart)  # S D, this is J K
    return abs(scale) * float(np.sqrt((gradient**2).sum()))


def scaling_table(rows: Iterable[ScalingRow]) -> str:
    """Return the rows of `scaling` as plain text of at most 80 columns: a table without the division, one with it.

    Raises:
        InputError: no rows, or rows of different numbers of sources, rows or seeds.
    """
    held = _rows(rows)
    first = held[0]
    opening = (
        f"{_counted(first.rows, 'random query', 'random queries')} for each d_k, each compared with {first.sources} "
        "random keys of its own; all coordinates independent, of mean 0 and variance 1. Softmax over the "
        f"{first.sources} sources gives each query its row of weights."
    )
    sections = ["Why scores are divided by √d_k", _filled(opening)]
    for divided, title in ((False, "Not divided: s = q · k"), (True, "Divided: s = q · k / √d_k")):
        lines = [row for row in held if row.divided is divided]
        if lines:
            sections.append(f"{title}\n{_block(lines)}")
    return "\n\n".join([*sections, _meanings(first), _to_see(held)]) + "\n"


def scaling_json(rows: Iterable[ScalingRow]) -> dict[str, Any]:
    """Return the rows of `scaling` as what `json.dumps` takes, unrounded, with the units of every number.

    Raises:
        InputError: as `scaling_table`.
    """
    held = _rows(rows)
    common = ("sources", "rows", "seed")
    table = [{name: value for name, value in asdict(row).items() if name not in common} for row in held]
    return {**{name: getattr(held[0], name) for name in common}, "units": dict(UNITS), "table": table}


def _both(size: int, sources: int, rows: int, seed: int) -> tuple[ScalingRow, ScalingRow]:
    """Return the row of one size without the division and the one with it, of the same random numbers."""
    scales = (1.0, 1 / math.sqrt(size))
    draw = np.random.default_rng((seed, size))  # of its own, whatever other sizes are asked for
    products = np.empty((rows, sources))
    figures = np.empty((2, rows, 4))
    everyone = np.ones((1, sources), dtype=np.bool_)
    for row in range(rows):
        q, k = draw.standard_normal((1, size)), draw.standard_normal((sources, size))
        products[row] = scores(q, k, scale=1.0)[0, 0]
        for case, scale in enumerate(scales):
            a = weights(scale * products[row, None], everyone).weights.data[0, 0]
            figures[case, row] = a.max(), _entropy(a), score_gradient(a), query_gradient(a, k, scale)
    undivided, divided = (
        _row(size, case == 1, scale * products, figures[case], seed) for case, scale in enumerate(scales)
    )
    return undivided, divided


def _row(size: int, divided: bool, all_scores: Floats, figures: Floats, seed: int) -> ScalingRow:
    """Return what scores [rows, sources] and figures [rows, 4] come to."""
    rows, sources = all_scores.shape
    largest, entropy, by_score, by_query = figures.mean(axis=0).tolist()
    *_, score_median, query_median = np.median(figures, axis=0).tolist()
    return ScalingRow(
        size=size,
        divided=divided,
        spread=float(all_scores.std()),
        theory=1.0 if divided else math.sqrt(size),
        largest=largest,
        entropy=entropy,
        even_entropy=math.log(sources),
        score_gradient=by_score,
        score_gradient_median=score_median,
        query_gradient=by_query,
        query_gradient_median=query_median,
        sources=sources,
        rows=rows,
        seed=seed,
    )


def _entropy(weights: Floats) -> float:
    held = weights[weights > 0]  # a weight too small for a float64 adds nothing, as its limit says
    return float((held * -np.log(held)).sum())


def _block(rows: Sequence[ScalingRow]) -> str:
    """Return one table: a line of group names, a line of names, a line a size."""
    cells = [HEADER, *(_cells(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    widths = [max(width, 7) if at else width for at, width in enumerate(widths)]  # the two tables stand alike
    lines = ["  ".join(map(str.rjust, row, widths)) for row in cells]
    before = sum(widths[:5]) + 2 * 5
    groups = (f"{name:-^{widths[at] + 2 + widths[at + 1]}}" for name, at in ((" |da/ds| ", 5), (" |da/dq| ", 7)))
    return "\n".join([" " * before + "  ".join(groups), *lines])


def _cells(row: ScalingRow) -> tuple[str, ...]:
    gradients = (row.score_gradient, row.score_gradient_median, row.query_gradient, row.query_gradient_median)
    return (str(row.size), *map(_number, (row.spread, row.theory, row.largest, row.entropy, *gradients)))


def _meanings(row: ScalingRow) -> str:
    even = f"{_number(row.even_entropy)} (log {row.sources})"
    meanings = {
        "spread": "standard deviation of the scores; theory is what it should be, √d_k or 1.",
        "largest": f"largest weight of a row, mean; {_number(1 / row.sources)} if all are even, 1 if one has all.",
        "entropy": f"of a row's weights, in nats, mean; {even} if all are even, 0 if one has all.",
        "|da/ds|": "size (Frobenius norm) of the derivative of a row's weights by its scores, at most 0.5: the mean "
        "of the rows, and the median row.",
        "|da/dq|": "the same by the query's coordinates, through the scores (and through the division, where there "
        "is one): what is left of a gradient on its way to the query.",
    }
    return "\n".join(_filled(f"{name:<7}  {meaning}", indent=9) for name, meaning in meanings.items())


def _to_see(rows: Sequence[ScalingRow]) -> str:
    """Return what the table shows: the lesson, and one of its own numbers from the smallest size to the largest."""
    sizes = sorted({row.size for row in rows})
    ends = sizes[:1] if len(sizes) == 1 else [sizes[0], sizes[-1]]
    spoken = []
    for divided, how in ((False, "without the division"), (True, "with it")):
        medians = {row.size: _number(row.score_gradient_median) for row in rows if row.divided is divided}
        if medians.keys() >= set(ends):
            spoken.append(f"{' to '.join(medians[size] for size in ends)} {how}")
    place = f"{'at' if len(ends) == 1 else 'from'} d_k = {' to '.join(map(str, ends))}"
    verb = "is" if len(ends) == 1 else "goes from"
    numbers = f" Here, {place}, the median |da/ds| {verb} {', '.join(spoken)}." if spoken else ""
    return _filled(f"What to see: {LESSON}{numbers}")


def _number(value: float) -> str:
    """Return a number below 1,000 in at most seven signs."""
    if value == 0:
        return "0"
    if value < 1e-99:
        return "<1e-99"
    return f"{value:.3f}" if value >= 0.01 else f"{value:.4f}" if value >= 0.001 else f"{value:.1e}"


def _filled(text: str, indent: int = 0) -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False)


def _counted(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def _sizes(sizes: Any) -> tuple[int, ...]:
    expected = f"whole numbers from 1 to {MOST_SIZE:,}"
    way_out = "Give values of d_k, such as (1, 64, 1024)."
    items = check_items("the sizes", sizes, expected=expected, way_out=way_out)
    if not items:
        raise InputError("the sizes", expected="at least one", given="none", way_out=way_out)
    asked = tuple(whole("a size", item, least=1, way_out=way_out) for item in items)
    if max(asked) > MOST_SIZE:
        raise InputError("a size", expected=expected, given=f"{max(asked):,}", way_out=way_out, value=max(asked))
    return asked


def _rows(rows: Any) -> tuple[ScalingRow, ...]:
    way_out = "Give what `scaling` returned."
    items = check_items("the table", rows, expected="rows of `scaling`", way_out=way_out)
    held = tuple(check_kind("a row of the table", item, ScalingRow, way_out=way_out) for item in items)
    facts = {(row.sources, row.rows, row.seed) for row in held}
    if len(facts) != 1:
        raise InputError(
            "the table",
            expected="rows of one call of `scaling`",
            given=f"rows of {len(facts)} kinds" if facts else "none",
            way_out=way_out,
        )
    return held
