"""The lesson's numerical example as text (floor 6): the tables of its section 5, for its numbers or others.

It takes one head's definition from `wherefrom.attention` and gives plain text and plain data to the command
line. The lesson counts positions from 1 and so do these tables, and they say so; everywhere else in this
project, `example_json` included, positions count from 0.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from rich.cells import cell_len

from wherefrom.attention import Attended, Floats, attend
from wherefrom.errors import InputError
from wherefrom.mask import CAUSAL, Mask

MASKED = "—"  # the lesson's own mark for a pair that is not permitted
WIDTH = 80  # columns of a plain terminal; worked lines wrap there
GLUE = "\u00a0"  # keeps a term of a sum on one line while wrapping


@dataclass(frozen=True)
class Example:
    """Numbers for one head: tokens of the S sources, q [T, D], k [S, D], v [S, V]."""

    tokens: tuple[str, ...]
    q: tuple[tuple[float, ...], ...]
    k: tuple[tuple[float, ...], ...]
    v: tuple[tuple[float, ...], ...]


LESSON = Example(
    tokens=("The", "bridge", "was"),
    q=((1, 0), (0, 2), (2, 1)),
    k=((1, 0), (0, 1), (1, 1)),
    v=((2, 0), (0, 2), (1, 1)),
)


def example_tables(
    tokens: Sequence[str],
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    mask: Mask = CAUSAL,
    scale: float | None = None,
) -> str:
    """Return the example as plain text: vectors, scores, weights and outputs, and one destination worked out.

    Args:
        tokens: one a source, S; destination row r is token ``mask.offset + r``.
        q: queries of one head, [T, D].
        k: keys, [S, D].
        v: values, [S, V]; V may differ from D.
        mask: causal unless given.
        scale: factor on the dot products, 1 / sqrt(D) unless given.

    Raises:
        InputError: tokens and vectors of different counts, more than one head, and all that `attend` refuses.
    """
    case = _case(tokens, q, k, v, mask, scale)
    sections = [_heading(case), _vectors(case), _scores(case), _weights(case), _outputs(case), _worked(case)]
    return "\n\n".join(sections) + "\n"


def example_json(
    tokens: Sequence[str],
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    mask: Mask = CAUSAL,
    scale: float | None = None,
) -> dict[str, Any]:
    """Return the example as plain data, unrounded: None where a pair is masked, and for all of an empty row.

    Arguments and errors are those of `example_tables`. The lists count positions from 0; ``lse`` is in nats.
    """
    case = _case(tokens, q, k, v, mask, scale)
    result = case.result
    pairs = np.logical_not(result.permitted[0])  # [T, S]
    return {
        "tokens": list(case.tokens),
        "mask": mask.describe(),
        "scale": case.scale,
        "q": case.q.tolist(),
        "k": case.k.tolist(),
        "v": case.v.tolist(),
        "scores": np.ma.MaskedArray(result.scores[0], mask=pairs).tolist(),
        "weights": np.ma.MaskedArray(result.weights[0].data, mask=pairs).tolist(),
        "lse": result.lse[0].tolist(),
        "outputs": [None if gone else y.tolist() for y, gone in zip(result.output[0], result.empty[0], strict=True)],
    }


@dataclass(frozen=True, eq=False)
class _Case:
    """One head's numbers and what `attend` made of them."""

    tokens: Sequence[str]  # S
    q: Floats  # [T, D]
    k: Floats  # [S, D]
    v: Floats  # [S, V]
    mask: Mask
    scale: float
    divisor: str  # how the lesson writes the scale: "/ 1.414", or "· 0.500" when it was given
    result: Attended

    def names(self, row: int) -> tuple[str, str]:
        """Return a destination's position, counted from 1, and its token."""
        return str(self.mask.offset + row + 1), _shown(self.tokens[self.mask.offset + row])


def _case(tokens: Sequence[str], q: ArrayLike, k: ArrayLike, v: ArrayLike, mask: Mask, scale: float | None) -> _Case:
    result = _attended(q, k, v, mask, scale)
    one_q, one_k, one_v = (np.asarray(given, dtype=np.float64) for given in (q, k, v))
    heads, destinations, sources = result.scores.shape
    if len(tokens) != sources:
        raise InputError(
            "the token names",
            expected=f"{sources}, one for each key",
            given=f"{len(tokens)}",
            way_out="Name each key's token, the names apart by blanks, or leave --tokens out.",
            tokens=len(tokens),
            sources=sources,
        )
    fits = mask.offset + destinations <= sources
    if not fits or {one_q.ndim, one_k.ndim, one_v.ndim} != {2}:
        raise InputError(
            "the example",
            expected="q, k and v of one head, and no query beyond the last key",
            given=f"keys: {sources}, queries: {destinations} from position {mask.offset + 1} on, heads: {heads}",
            way_out="Give q, k and v as rows of numbers, no more queries than keys.",
            tokens=len(tokens),
            sources=sources,
        )
    root = float(np.sqrt(one_q.shape[1]))
    divisor = f"/ {_number(root)}" if scale is None else f"· {_factor(scale)}"
    return _Case(tokens, one_q, one_k, one_v, mask, 1 / root if scale is None else scale, divisor, result)


def _attended(q: ArrayLike, k: ArrayLike, v: ArrayLike, mask: Mask, scale: float | None) -> Attended:
    try:
        return attend(q, k, v, mask, scale=scale)
    except InputError as error:
        if "where" not in error.facts:
            raise
        *_, row, column = (place + 1 for place in error.facts["where"])
        raise InputError(
            f"{error.what} of the example",
            expected=error.expected,
            given=f"{error.given.split(' at ')[0]} in row {row}, column {column}, counted from 1",
            way_out="Numbers this large overflow: make q, k, v or --scale smaller.",
            row=row,
            column=column,
        ) from error


def _heading(case: _Case) -> str:
    width = case.q.shape[1]
    how = f"1 / √{width} = " if case.divisor.startswith("/") else ""
    lines = [
        "Positions count from 1 here, as in the lesson; elsewhere they count from 0.",
        f"Mask: {replace(case.mask, offset=0).describe()}.",  # the offset is in the tables, counted from 1
        f"d_k = {width}, d_v = {case.v.shape[1]}.  Scale: {how}{_number(case.scale)}.",
        f"Pairs that the mask does not permit are shown as {MASKED}.",
        "Numbers are rounded to three decimals.",
    ]
    return "\n".join(lines)


def _vectors(case: _Case) -> str:
    first = case.mask.offset
    queries = {first + row: vector for row, vector in enumerate(_vector_column(case.q))}
    columns = zip(case.tokens, _vector_column(case.k), _vector_column(case.v), strict=True)
    rows = [[str(j + 1), _shown(token), queries.get(j, ""), k, v] for j, (token, k, v) in enumerate(columns)]
    return "Queries, keys and values\n" + _table(["position", "token", "q", "k", "v"], rows, right={0})


def _scores(case: _Case) -> str:
    title = f"Scores  s_ij = q_i · k_j {case.divisor}"
    return f"{title}\n{_map(case, 's', case.result.scores[0])}"


def _weights(case: _Case) -> str:
    title = "Weights  a_ij = exp(s_ij) / sum of exp(s_ij') over the permitted sources j'"
    return f"{title}\n{_map(case, 'a', case.result.weights[0].data)}"


def _map(case: _Case, letter: str, values: Floats) -> str:
    """Return a table of [T, S] with a row a destination and a column a source."""
    permitted = case.result.permitted[0]
    sources = range(len(case.tokens))
    rows = [
        [*case.names(row), *(_number(values[row, j]) if permitted[row, j] else MASKED for j in sources)]
        for row in range(len(case.q))
    ]
    header = ["destination", "token", *(_indexed(letter, "i", str(j + 1)) for j in sources)]
    return _table(header, rows, right={0, *range(2, len(header))})


def _outputs(case: _Case) -> str:
    rows = []
    for row, gone in enumerate(case.result.empty[0]):
        output = f"{MASKED} (no permitted source)" if gone else _vector(case.result.output[0, row].data, whole=False)
        rows.append([*case.names(row), output])
    return "Outputs  y_i = sum of a_ij v_j\n" + _table(["destination", "token", "y_i"], rows, right={0})


def _worked(case: _Case) -> str:
    """Return the sums of one destination, the last that reads anything, as the lesson writes its third's."""
    full = [row for row, gone in enumerate(case.result.empty[0]) if not gone]
    if not full:
        return "No destination has a permitted source: there is no sum to write out."
    row = full[-1]
    i, token = case.names(row)
    sources = [j for j, allowed in enumerate(case.result.permitted[0, row]) if allowed]
    lines = [f"Destination {i} ({token}) written out"]
    lines += [_wrapped(_score_sum(case, row, i, j)) for j in sources]
    exps = {j: f"exp({_number(case.result.scores[0, row, j])})" for j in sources}
    lines.append(_wrapped(f"sum{GLUE}= {_plus(exps.values())} = {_exponential(case.result.lse[0, row])}"))
    a = {j: _number(case.result.weights[0, row, j]) for j in sources}
    lines += [_wrapped(f"{_indexed('a', i, str(j + 1))} = {exps[j]} / sum = {a[j]}") for j in sources]
    values = _vector_column(case.v)
    total = _plus(f"{a[j]}{GLUE}·{GLUE}{values[j].replace(' ', GLUE)}" for j in sources)
    output = _vector(case.result.output[0, row].data, whole=False).replace(" ", GLUE)
    lines.append(_wrapped(f"y_{i}{GLUE}= {total} ={GLUE}{output}"))
    return "\n".join(lines)


def _score_sum(case: _Case, row: int, i: str, j: int) -> str:
    whole = _all_whole(case.q) and _all_whole(case.k)
    pairs = zip(case.q[row], case.k[j], strict=True)
    products = (f"{_factor(a, whole)}{GLUE}·{GLUE}{_factor(b, whole)}" for a, b in pairs)
    name = _indexed("s", i, str(j + 1))
    return f"{name} = ({_plus(products)}) {case.divisor} = {_number(case.result.scores[0, row, j])}"


def _indexed(letter: str, i: str, j: str) -> str:
    """Return s_31 for single digits and s_3,12 otherwise, so that no index can be read in two ways."""
    return f"{letter}_{i}{j}" if len(i + j) == 2 else f"{letter}_{i},{j}"


def _plus(terms: Iterable[str]) -> str:
    return " + ".join(terms)


def _wrapped(line: str) -> str:
    lines = textwrap.wrap(
        line,
        WIDTH,
        initial_indent="  ",
        subsequent_indent="      ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace(GLUE, " ")


def _number(value: float, whole: bool = False) -> str:
    """Return three decimals, or a whole number as it is; never a negative zero."""
    text = f"{value:.0f}" if whole else f"{value:.3f}"
    return text.lstrip("-") if float(text) == 0 else text


def _exponential(value: float) -> str:
    """Return exp(value) as a number where three decimals can show it, else as a power."""
    return _number(math.exp(value)) if -3 < value < 20 else f"exp({_number(value)})"


def _factor(value: float, whole: bool = False) -> str:
    """Return a number that can stand in a product."""
    text = _number(value, whole)
    return f"({text})" if text.startswith("-") else text


def _all_whole(vectors: Floats) -> bool:
    return bool((vectors == np.round(vectors)).all())


def _vector(vector: Floats, *, whole: bool) -> str:
    return f"({', '.join(_number(x, whole) for x in vector)})"


def _vector_column(vectors: Floats) -> list[str]:
    whole = _all_whole(vectors)
    return [_vector(vector, whole=whole) for vector in vectors]


def _shown(token: str) -> str:
    """Return a token as it can stand in a table: quoted where blanks or control characters would hide."""
    plain = token.isprintable() and token == token.strip() and token
    return token if plain else repr(token)


def _table(header: list[str], rows: list[list[str]], *, right: set[int]) -> str:
    """Return lines with columns two blanks apart, measured in terminal cells, since a CJK sign takes two."""
    widths = [max(map(cell_len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for cells in (header, *rows):
        padded = []
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True)):
            blanks = " " * (width - cell_len(cell))
            padded.append(blanks + cell if column in right else cell + blanks)
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)
