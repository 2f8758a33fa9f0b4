"""Calls for the tests of scans: random arrays of any shape with all their weights, and the bounds of float32."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from wherefrom.attention import Mask, scores, weights
from wherefrom.scans import Attention

UNIT = 2.0**-24
"""The relative error of rounding to float32."""


@dataclass
class Made:
    """An attention and its dense double-precision weights a [H, T, S], 0 where not permitted."""

    attention: Attention
    a: np.ndarray
    s: np.ndarray  # scores with the bias
    permitted: np.ndarray  # bool, nothing in an empty row
    share: np.ndarray | None  # of the sinks

    def error(self) -> float:
        """How far, as a share of it, a weight may lie from the dense one that is computed in float32, log2 and all.

        The score in units of log 2 is a sum of D products: q is rounded once with the scale in it, and each partial sum
        once, so that it is off by (D + 2) u of the sum of the products' sizes, with u = 2^-24. The softcap's tanh is
        off by 4 u, and its two roundings and the bias's by another 3 u, of the score or the cap. lse is rounded twice
        (as it is given, and with log2 e in it), the difference once, and 2^x is off by 5 u. What an exponent is off by,
        its power is off by as a share. Reference and dense page have no such errors but for that of lse as given.
        """
        at = self.attention
        q, k = np.abs(at.q.astype(float)), np.abs(at.k.astype(float))
        sizes = np.einsum("htd,hsd->hts", q, k[list(at.key_heads)]).max() * abs(at.scale)
        lse = np.abs(np.where(at.empty, 0.0, at.lse)).max()
        other = (at.softcap or 0.0) + (0.0 if at.bias is None else np.abs(at.bias[np.isfinite(at.bias)]).max(initial=0))
        return UNIT * ((at.q.shape[2] + 4) * sizes + 4 * lse + 8 * other + 5)

    def sum_error(self) -> float:
        """The same of a sum of weights: those of a tile, 512 columns or 128 rows at most, are added in float32."""
        return self.error() + UNIT * (min(512, self.attention.sources) + min(128, self.attention.destinations))


def made(
    mask=None, *, heads=2, kv_heads=None, rows=5, columns=None, size=3, softcap=None, sinks=False, bias=None, seed=1,
    spread=1.5, key_heads=(), tokens=3, dtype=np.float32,
):  # fmt: skip
    """Return a `Made`: random q and k whose scores spread about as far; `bias` is a number of heads, or None."""
    draw = np.random.default_rng(seed)
    columns = rows if columns is None else columns
    kv_heads = heads if kv_heads is None else kv_heads
    mask = Mask() if mask is None else mask
    q = (spread * draw.standard_normal((heads, rows, size))).astype(dtype)
    k = draw.standard_normal((kv_heads, columns, size)).astype(dtype)
    groups = tuple(h // (heads // kv_heads) for h in range(heads)) if not len(key_heads) else key_heads
    scale = size**-0.5
    s = scores(q, k[list(groups)], scale=scale, softcap=softcap)
    added = None
    if bias is not None:
        added = draw.standard_normal((bias, rows, columns)).astype(np.float32)
        added[draw.random(added.shape) < 0.1] = -np.inf
    allowed = np.broadcast_to(mask.dense(rows, columns), s.shape)
    finite = s if added is None else s + np.where(np.isneginf(added), 0.0, added)
    allowed = allowed if added is None else allowed & ~np.isneginf(added)
    logits = draw.standard_normal(heads).astype(np.float32) if sinks else None
    dense = weights(finite, allowed, sinks=logits)
    codes = draw.integers(0, tokens, columns) if rows == columns and mask.offset == 0 else None
    attention = Attention(
        q, k, dense.lse.filled(-np.inf).astype(np.float32), mask, scale, softcap, logits, added, tuple(key_heads), codes
    )
    share = None if dense.sink_share is None else dense.sink_share.filled(np.nan)
    return Made(attention, dense.weights.filled(0.0), finite, allowed & ~dense.empty[..., None], share)


@st.composite
def anything(draw):
    """Any call: odd, prime and lone sizes, any mask, groups, softcap, sinks, biases, an offset."""
    rows, columns = draw(st.sampled_from([1, 2, 5, 13, 31, 40])), draw(st.sampled_from([1, 2, 7, 13, 37, 41]))
    columns = draw(st.sampled_from([rows, rows, columns]))
    kv_heads = draw(st.sampled_from([1, 2]))
    heads, seed = kv_heads * draw(st.sampled_from([1, 3])), draw(st.integers(0, 999))
    rng = np.random.default_rng(seed)
    padding = draw(st.sampled_from([None, None, rng.random(columns) < 0.7]))
    maps = [None, None, rng.random((rows, columns)) < 0.5, rng.random((heads, rows, columns)) < 0.5]
    mask = Mask(
        draw(st.booleans()), draw(st.sampled_from([None, None, 1, 3, 50])), draw(st.sampled_from([0, 0, 0, 4])),
        padding, draw(st.sampled_from(maps)),
    )  # fmt: skip
    key_heads = draw(st.sampled_from([(), tuple(int(g) for g in rng.integers(0, kv_heads, heads))]))
    return made(
        mask, heads=heads, kv_heads=kv_heads, rows=rows, columns=columns, size=draw(st.sampled_from([1, 5, 8])),
        softcap=draw(st.sampled_from([None, None, 2.5])), sinks=draw(st.booleans()),
        bias=draw(st.sampled_from([None, None, 1, heads])), seed=seed, spread=draw(st.sampled_from([0.0, 1.5, 12.0])),
        key_heads=key_heads, tokens=draw(st.sampled_from([1, 2, 9])),
        dtype=draw(st.sampled_from([np.float32, np.float16, np.float64])),
    )  # fmt: skip
