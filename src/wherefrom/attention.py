r"""What attention means (floor 1): the lesson's equations, dense and in double precision.

This is the page that every fast path is tested against, and it is public so that users can check us. It takes
the errors from below and the mask's rule from `wherefrom.mask` beside it, and gives the definitions to every
room above. It needs numpy alone.

For destination i, its permitted sources j and one head (Vaswani et al. 2017, "Attention Is All You Need",
section 3.2.1, https://arxiv.org/abs/1706.03762)::

    s_ij  = q_i . k_j * scale                 scale = 1 / sqrt(D) unless given
    s_ij <- softcap * tanh(s_ij / softcap)    only with a softcap: Gemma 2 report, arXiv:2408.00118
    s_ij <- s_ij + bias_ij                    only with a position bias: T5, arXiv:1910.10683; ALiBi, 2108.12409
    lse_i = log(sum_j exp(s_ij) + exp(sink))  exp(sink) only with a sink logit, one number a head: gpt-oss
                                              model card, arXiv:2508.10925; StreamingLLM, arXiv:2309.17453
    a_ij  = exp(s_ij - lse_i)                 the sink's share is exp(sink - lse_i): row + share = 1
    y_i   = sum_j a_ij v_j                    the sink has no value: it takes weight and moves nothing

The shape alphabet of the whole project, one letter a size:

    B batch    H query heads    K key/value heads    T destinations    S sources
    D head size of q and k      V head size of v (mostly D)            M width of the representations x

Heads may be grouped (Ainslie et al. 2023, arXiv:2305.13245): H is a multiple of K, and query head h reads
key/value head h // (H // K). A two-dimensional q, k or v means one head. Positions and heads count from 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wherefrom.checks import whole
from wherefrom.errors import InputError
from wherefrom.mask import CAUSAL, Bools, Mask

__all__ = ["Attended", "Mask", "MultiHead", "Weights", "attend", "multi_head", "project", "scores", "weights"]

Floats: TypeAlias = NDArray[np.float64]
Masked: TypeAlias = np.ma.MaskedArray[tuple[Any, ...], np.dtype[np.float64]]


def scores(
    q: ArrayLike,
    k: ArrayLike,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    bias: ArrayLike | None = None,
) -> Floats:
    """Return the scores s [H, T, S] of every pair, permitted or not: q [H, T, D], k [K, S, D].

    Args:
        q: queries; [T, D] means one head.
        k: keys; [S, D] means one head.
        scale: factor on the dot product, 1 / sqrt(D) unless given.
        softcap: bound c on a score's size, s <- c * tanh(s / c), after the scale.
        bias: [H, T, S], or [1, T, S] for all heads, added after that.

    Raises:
        InputError: shapes that do not fit, numbers that are not finite, a softcap of 0 or less.
    """
    q, k = _numbers("q", q, "[H, T, D]"), _numbers("k", k, "[K, S, D]")
    _require_fit(q, k)
    factor = 1 / np.sqrt(q.shape[-1]) if scale is None else _number("the scale", scale)
    keys = np.repeat(k, len(q) // len(k), axis=0)  # [H, S, D]
    with np.errstate(over="ignore", invalid="ignore"):  # an overflow is refused in the next line
        s = q @ keys.transpose(0, 2, 1) * factor  # [H, T, S]
    _require_finite("a score", s)
    if softcap is not None:
        cap = _number("the softcap", softcap, positive=True)
        with np.errstate(over="ignore"):  # far beyond the cap tanh is 1 all the same
            s = cap * np.tanh(s / cap)
    if bias is None:
        return s
    added = _numbers("the bias", bias, "[H, T, S]")
    if added.shape not in {s.shape, (1, *s.shape[1:])}:
        raise _misfit("the bias", f"one number a pair, {s.shape} or {(1, *s.shape[1:])}", bias=added)
    return s + added


@dataclass(frozen=True, eq=False)
class Weights:
    """Rows of weights, with every *empty* row (a destination with no permitted source) masked in every field.

    A source that is not permitted, in a row that has others, has weight exactly 0. Under the masks lies NaN:
    whoever drops a mask does not read a number.
    """

    weights: Masked  # [H, T, S]; a row and its sink_share sum to one
    sink_share: Masked | None  # [H, T], the sink's column; None without sinks
    lse: Masked  # [H, T], log-sum-exp in nats, the sink included
    empty: Bools  # [H, T]


def weights(scores: ArrayLike, permitted: ArrayLike, *, sinks: ArrayLike | None = None) -> Weights:
    """Return the softmax of scores [H, T, S] over the permitted sources, bool [T, S] or [H, T, S].

    Args:
        scores: finite everywhere; a -inf is not needed, since ``permitted`` says what counts.
        permitted: True where the destination may read the source.
        sinks: one logit a head, [H].

    Raises:
        InputError: shapes that do not fit, numbers that are not finite.
    """
    s = _numbers("scores", scores, "[H, T, S]")
    allowed = _per_head(permitted, s.shape)  # [H, T, S]
    empty = np.logical_not(allowed.any(axis=-1))  # [H, T]
    s = np.where(allowed, s, -np.inf)
    sink = np.full((len(s), 1, 1), -np.inf) if sinks is None else _sinks(sinks, len(s))  # [H, 1, 1]
    # The largest permitted logit leaves the exponent: every exp is then at most 1, and one of them is 1. An
    # empty row has no largest, and -inf - -inf would be NaN; any finite pivot serves, as the row is masked.
    pivot = np.maximum(s.max(axis=-1, keepdims=True, initial=-np.inf), sink)  # [H, T, 1]
    pivot = np.where(np.isfinite(pivot), pivot, 0.0)
    with np.errstate(over="ignore"):  # 1e308 below the pivot is -inf, and its exp is 0 as it should be
        exps, exp_sink = np.exp(s - pivot), np.exp(sink - pivot)
    total = np.where(empty[..., None], 1.0, exps.sum(axis=-1, keepdims=True) + exp_sink)  # [H, T, 1]
    return Weights(
        weights=_marked(exps / total, empty[..., None]),
        sink_share=None if sinks is None else _marked((exp_sink / total)[..., 0], empty),
        lse=_marked((pivot + np.log(total))[..., 0], empty),
        empty=empty,
    )


@dataclass(frozen=True, eq=False)
class Attended:
    """All that one call of attention computes; masked arrays mask the empty rows, as in `Weights`."""

    scores: Floats  # [H, T, S], every pair, after scale and softcap
    permitted: Bools  # [H, T, S]
    weights: Masked  # [H, T, S]
    sink_share: Masked | None  # [H, T]
    lse: Masked  # [H, T], nats
    output: Masked  # [H, T, V]
    empty: Bools  # [H, T]


def attend(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    mask: Mask = CAUSAL,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: ArrayLike | None = None,
    bias: ArrayLike | None = None,
) -> Attended:
    """Return scores, weights and outputs of q [H, T, D], k [K, S, D] and v [K, S, V]; 2-D means one head.

    Raises:
        InputError: shapes that do not fit one another or the mask, numbers that are not finite.
    """
    k, v = _numbers("k", k, "[K, S, D]"), _numbers("v", v, "[K, S, V]")
    if k.shape[:2] != v.shape[:2]:
        raise _misfit("k and v", "as many heads and sources in v as in k", k=k, v=v)
    s = scores(q, k, scale=scale, softcap=softcap, bias=bias)  # [H, T, S]
    allowed = _per_head(mask.dense(*s.shape[1:]), s.shape)  # [H, T, S]
    rows = weights(s, allowed, sinks=sinks)
    values = np.repeat(v, len(s) // len(v), axis=0)  # [H, S, V]
    y = rows.weights.filled(0.0) @ values  # [H, T, V]; these zeros of the empty rows are masked again below
    output = _marked(y, rows.empty[..., None])
    return Attended(s, allowed, rows.weights, rows.sink_share, rows.lse, output, rows.empty)


def project(x: ArrayLike, w: ArrayLike) -> Floats:
    """Return the lesson's W x for every position: x [T, M] and w [N, M] give [T, N].

    Positions are rows and w is stored (out, in), as ``torch.nn.Linear`` stores it, so this is x @ w.T.

    Raises:
        InputError: widths that differ, numbers that are not finite.
    """
    x, w = _numbers("x", x, "[T, M]"), _numbers("w", w, "[N, M]")
    if x.shape[-1] != w.shape[-1]:
        raise _misfit("x and w", "as many columns in w (out, in) as x is wide", x=x, w=w)
    with np.errstate(over="ignore", invalid="ignore"):  # an overflow is refused in the next line but one
        projected = x @ w.T  # [T, N]
    _require_finite("a projected number", projected)
    return projected


@dataclass(frozen=True, eq=False)
class MultiHead:
    """Several heads and their joint output; a row is masked where any of its heads is empty."""

    heads: Attended
    concatenated: Masked  # [T, H * V], head 0 first
    output: Masked  # [T, M]


def multi_head(
    x_destination: ArrayLike,
    x_source: ArrayLike,
    w_q: ArrayLike,
    w_k: ArrayLike,
    w_v: ArrayLike,
    w_o: ArrayLike,
    *,
    heads: int,
    kv_heads: int | None = None,
    mask: Mask = CAUSAL,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: ArrayLike | None = None,
) -> MultiHead:
    """Return multi-head attention (Vaswani et al. 2017, section 3.2.2) without biases and position encoding.

    For x_destination [T, M] and x_source [S, M] (the same array in self-attention), with w_q [H*D, M],
    w_k [K*D, M], w_v [K*V, M] and w_o [M, H*V], each stored (out, in) as `project` says; ``heads`` is H and
    ``kv_heads`` is K, as many as ``heads`` unless given.

    Raises:
        InputError: shapes that do not fit, numbers that are not finite.
    """
    groups = heads if kv_heads is None else kv_heads
    q = _split("w_q", project(x_destination, w_q), heads)  # [H, T, D]
    k = _split("w_k", project(x_source, w_k), groups)  # [K, S, D]
    v = _split("w_v", project(x_source, w_v), groups)  # [K, S, V]
    each = attend(q, k, v, mask, scale=scale, softcap=softcap, sinks=sinks)
    joined = each.output.filled(0.0).transpose(1, 0, 2).reshape(q.shape[1], -1)  # [T, H*V]
    empty = np.asarray(each.empty.any(axis=0))[:, None]  # [T, 1]
    return MultiHead(each, _marked(joined, empty), _marked(project(joined, w_o), empty))


def _numbers(what: str, value: ArrayLike, form: str) -> Floats:
    """Return finite float64 of the shape ``form``; a head axis that is left out is added, of size 1."""
    dims = form.count(",") + 1
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):  # rows of different lengths; a torch.bfloat16
        array = np.asarray(None)
    fits = array.ndim == dims or (dims == 3 and array.ndim == 2)
    if array.dtype.kind not in "biuf" or not fits or (dims == 3 and array.ndim == 3 and not len(array)):
        raise InputError(
            what,
            expected=f"numbers of shape {form}" + f", or [{form[4:]} for one head" * (dims == 3),
            given="no array of numbers" if array.dtype == object else f"{array.dtype} of shape {array.shape}",
            way_out="Positions are rows, and all rows are of one length.",
            shape=array.shape,
        )
    array = array.astype(np.float64)
    _require_finite(f"a number in {what}", array)
    return array if array.ndim == dims else array[None]


def _number(what: str, value: float, *, positive: bool = False) -> float:
    number = float(value) if isinstance(value, int | float | np.number) else np.nan
    if not np.isfinite(number) or (positive and number <= 0):
        wanted = "a finite number" + " above 0" * positive
        raise InputError(what, expected=wanted, given=f"{value!r}", way_out="Leave it out for the default.")
    return number


def _require_finite(what: str, array: Floats) -> None:
    if not np.isfinite(array).all():
        where = tuple(int(n) for n in np.argwhere(~np.isfinite(array))[0])
        way_out = "Attention over NaN or infinities means nothing: find where it came from."
        raise InputError(
            what, expected="a finite number", given=f"{array[where]} at {where}", way_out=way_out, where=where
        )


def _misfit(what: str, expected: str, **arrays: NDArray[Any]) -> InputError:
    given = ", ".join(f"{name} of shape {array.shape}" for name, array in arrays.items())
    way_out = "The shapes are listed at the top of `wherefrom.attention`."
    return InputError(what, expected=expected, given=given, way_out=way_out)


def _require_fit(q: Floats, k: Floats) -> None:
    if q.shape[-1] != k.shape[-1] or not q.shape[-1]:
        raise _misfit("q and k", "vectors of one length, at least 1, in both", q=q, k=k)
    if len(q) % len(k):
        raise _misfit("q and k", "a number of query heads that is a multiple of the key heads", q=q, k=k)


def _per_head(permitted: ArrayLike, shape: tuple[int, ...]) -> Bools:
    """Return the map as bool [H, T, S], a read-only view when it came without heads."""
    allowed = np.asarray(permitted)
    if allowed.dtype != np.bool_ or allowed.shape not in {shape, shape[1:]}:
        wanted = f"bool of shape {shape[1:]}, or {shape} when heads differ"
        raise _misfit("the mask", wanted, **{f"a {allowed.dtype} mask": allowed})
    return np.broadcast_to(allowed, shape)


def _sinks(value: ArrayLike, heads: int) -> Floats:
    sinks = _numbers("the sinks", value, "[H]")
    if len(sinks) != heads:
        raise _misfit("the sinks", f"one logit a query head, {heads}", sinks=sinks)
    return sinks[:, None, None]  # [H, 1, 1]


def _marked(values: Floats, empty: Bools) -> Masked:
    """Return the values with the empty rows masked, and NaN under the mask."""
    mask = np.array(np.broadcast_to(empty, values.shape))
    return np.ma.MaskedArray(np.where(mask, np.nan, values), mask=mask, fill_value=np.nan)


def _split(what: str, projected: Floats, heads: int) -> Floats:
    """Return [T, heads * D] as [heads, T, D]: head 0 owns the first D rows of the matrix."""
    width = projected.shape[1]
    if width % whole("the number of heads", heads, least=1, way_out="Count the heads of this matrix."):
        raise InputError(
            what,
            expected=f"a number of rows that {heads} heads can share evenly",
            given=f"{width}",
            way_out="Each head owns D rows of w_q and w_k, and V rows of w_v.",
            rows=width,
            heads=heads,
        )
    return projected.reshape(-1, heads, width // heads).transpose(1, 0, 2)
