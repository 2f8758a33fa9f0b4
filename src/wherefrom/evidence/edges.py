"""The edges of one execution of attention (floor 5): what each is worth to a goal, to first order.

A `PricedCall` holds what the kernel was given, what it returned, and g = d goal / d y: linear in the length. With
a = exp(s - lse) and c_ij = g_i . v_j, the prices of reading source j at destination i in one head are::

    weight            a_ij                                   how values were mixed
    moved             |a_ij W_O v_j|                         how much was added to the stream
    closed form       a_ij / (1 - a_ij) (c_ij - g_i . y_i)   what the goal loses, to first order, when the edge is cut
    score gradient    a_ij (c_ij - g_i . y_i)                d goal / d s_ij, s the score as softmax takes it
    direct            a_ij d_i . v_j                         what goes to the goal past all later layers

Cutting edge (i, j) leaves the head (y_i - a_ij v_j) / (1 - a_ij), a change of -a_ij / (1 - a_ij) (v_j - y_i), exactly,
with a sink too, whose share of y is 0; the closed form is minus its product with g. All are positive where reading
helped, but for weight and moved, which have no direction. d is the gradient of the goal by y along the residual stream
alone, the statistics of the final norm held: see `wherefrom.evidence.direct`.

The closed form of the only edge of a row is not defined, since a cut that leaves nothing is refused: NaN in an edge, a
row and a window, left out of sums. With a sink it is defined: the sink is left. A pair that the mask does not permit
has price 0.

Prices are computed in strips of rows, in the call's own format. Where an edge has more than
half of its row, 1 - a and v - y would lose their digits; its price is then a_ij (c_ij - what c is on average over the
rest of the row), the same number, from the rest itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from wherefrom.attention import Mask
from wherefrom.errors import InputError

How: TypeAlias = Literal["closed form", "score gradient", "direct", "weight", "moved"]

NUMBERS_AT_ONCE = 2**19
"""Prices of a strip, for all heads together: 2 MB in float32, of which a few are held at a time."""
MOST_ROWS = 512
KEYS_AT_ONCE = 1024
HALF = 0.5
"""At most one edge of a row has more than this share; what it leaves is computed from the rest of the row."""


@dataclass(frozen=True, eq=False)
class PricedCall:
    """One execution of attention with its gradient; tensors in CPU memory, float32 (float64 of a float64 model).

    Attributes:
        layer: its layer, from 0.
        name: its module's path.
        kind: "self" or "cross".
        part: "decoder", or the name of another stack.
        repeat: how often the module had run before.
        q: [H, T, D], as the kernel was given it.
        k: [K, S, D].
        v: [K, S, V].
        lse: [H, T], -inf for a row that may read nothing.
        y: [H, T, V], what the kernel returned.
        g: [H, T, V], d goal / d y.
        mask: who may read whom.
        scale: of the scores.
        softcap: bound on a score's size, before the bias; None without.
        bias: [H or 1, T, S], added to the scores; None without.
        sinks: [H] logits; None without.
        projection: [M, H * V], the model's own output projection; None where no single matrix is.
    """

    layer: int
    name: str
    q: Tensor
    k: Tensor
    v: Tensor
    lse: Tensor
    y: Tensor
    g: Tensor
    mask: Mask
    scale: float
    softcap: float | None = None
    bias: Tensor | None = None
    sinks: Tensor | None = None
    projection: Tensor | None = field(default=None, repr=False)
    kind: str = "self"
    part: str = "decoder"
    repeat: int = 0

    @property
    def heads(self) -> int:
        """H."""
        return self.q.shape[0]

    @property
    def sources(self) -> int:
        """S."""
        return self.k.shape[1]

    @property
    def is_causal_alone(self) -> bool:
        """Whether a row reads every column up to its own, and nothing else is done to the scores."""
        plain = self.bias is None and self.sinks is None and self.softcap is None
        return plain and self.q.shape[1] == self.sources and self.mask.only_causal and self.mask.offset == 0

    def __repr__(self) -> str:
        return f"PricedCall(layer {self.layer}, {self.name}, {self.heads} heads, {self.q.shape[1]} x {self.sources})"

    def lengths(self, heads: Sequence[int]) -> Tensor:
        """Return |W_O v_j| for each head's own slice W_O of the output projection, [len(heads), S].

        Raises:
            InputError: no single matrix projects the outputs.
        """
        if self.projection is None:
            raise InputError(
                "moved",
                expected="an attention whose outputs a single matrix projects",
                given=f"{self.name}, of which no such matrix was found",
                way_out='Ask for another price, such as how="closed form".',
                layer=self.layer,
            )
        size, group = self.v.shape[-1], self.heads // len(self.v)
        found = torch.empty(len(heads), self.sources, dtype=self.v.dtype)
        for place, head in enumerate(heads):
            own = self.projection[:, head * size : (head + 1) * size].to(self.v).T  # V M
            for start in range(0, self.sources, KEYS_AT_ONCE):
                at = slice(start, start + KEYS_AT_ONCE)
                found[place, at] = torch.linalg.vector_norm(self.v[head // group, at] @ own, dim=-1)
        return found

    def reach(self, rows: Sequence[int]) -> range:
        """Return the columns that some ascending rows may read: both ends of a row's reach grow with the row."""
        first, last = (self.mask.reach(int(row), self.sources) for row in (rows[0], rows[-1]))
        return range(first.start, last.stop)

    def strips(self, rows: Sequence[int], heads: int) -> Iterator[Sequence[int]]:
        """Yield the rows that are priced together, of ascending ones."""
        width = min(self.sources, 2 * (self.mask.window or self.sources))
        size = max(1, min(MOST_ROWS, NUMBERS_AT_ONCE // (heads * max(1, width))))
        for start in range(0, len(rows), size):
            yield rows[start : start + size]

    def prices(
        self,
        how: How,
        rows: Sequence[int],
        heads: Sequence[int],
        lengths: Tensor | None,
        direct: Tensor | None,
        alone: float = torch.nan,
    ) -> Tensor:
        """Return the prices [len(heads), R, C] of ascending rows, for the columns that they reach.

        Args:
            how: which price.
            rows: R destinations, ascending.
            heads: h numbers.
            lengths: [h, S], of `lengths`, for "moved".
            direct: [h, R, V], the gradient along the residual stream, for "direct".
            alone: the closed form of a row's only edge.
        """
        columns = self.reach(rows)
        logits = self._logits(rows, heads, columns)  # h R C
        weights = _exp(logits)
        if how == "weight":
            return weights
        if how == "moved":
            assert lengths is not None, "lengths are made for all strips of a call at once"
            return weights.mul_(lengths[:, None, columns.start : columns.stop])
        g = self._of(self.g, rows, heads) if direct is None else direct
        worth = self._products(g, self.v[:, columns.start : columns.stop], heads)  # h R C, c of the module's text
        if how == "direct":
            return worth.mul_(weights)
        mean = (g * self._of(self.y, rows, heads)).sum(dim=-1)  # h R
        sink = None if self.sinks is None else self.sinks[list(heads), None] - self._of(self.lse, rows, heads)  # h R
        where, large = _of_large(logits, weights, worth, sink, alone if how == "closed form" else None)
        found = worth.sub_(mean.unsqueeze(-1)).mul_(weights)
        if how == "closed form":
            found.div_(weights.neg_().add_(1.0))
        found[where] = large
        return found

    def _logits(self, rows: Sequence[int], heads: Sequence[int], columns: range) -> Tensor:
        """Return s - lse [h, R, C], -inf where the mask does not permit."""
        own, across = list(heads), slice(columns.start, columns.stop)
        scores = self._products(self._of(self.q, rows, heads) * self.scale, self.k[:, across], heads)
        if self.softcap is not None:
            scores.div_(self.softcap).tanh_().mul_(self.softcap)
        if self.bias is not None:
            bias = self.bias[..., across]
            scores.add_(bias[:, _index(rows)] if len(bias) == 1 else self._of(bias, rows, heads))
        lse = self._of(self.lse, rows, heads)
        scores.sub_(lse.masked_fill(lse == -torch.inf, 0.0).unsqueeze(-1))  # such a row permits nothing
        if self.mask.all_permitted:
            return scores
        permitted = torch.from_numpy(self.mask.permitted(rows, columns))  # [H|1 1] R C
        unread = ~permitted.reshape(-1, *permitted.shape[-2:])
        unread = unread[own] if len(unread) > 1 else unread
        some = torch.nonzero(unread.any(dim=0).any(dim=0))  # of a causal strip the last columns alone
        if len(some):
            first = int(some[0])
            scores[..., first:].masked_fill_(unread[..., first:], -torch.inf)
        return scores

    def _of(self, x: Tensor, rows: Sequence[int], heads: Sequence[int]) -> Tensor:
        """Return [h, R, ..] of [H, T, ..]; of all heads and neighbouring rows no copy."""
        own = x[:, _index(rows)]
        return own if len(heads) == self.heads else own[list(heads)]

    def _products(self, x: Tensor, of: Tensor, heads: Sequence[int]) -> Tensor:
        """Return the products of rows [h, R, N] and what the heads read, of [K, C, N]: [h, R, C]."""
        if len(heads) == self.heads:  # a group of heads is one product
            grouped = x.reshape(len(of), -1, x.shape[-1]) @ of.transpose(1, 2)
            return grouped.view(len(x), -1, of.shape[1])
        group = self.heads // len(of)
        return x @ of[[head // group for head in heads]].transpose(1, 2)


def _exp(logits: Tensor) -> Tensor:
    """Return exp of logits up to 0, without the denormal numbers that would take the processor longer than the rest."""
    exps = torch.exp(logits)
    smallest = 1e3 * torch.finfo(logits.dtype).tiny
    return torch.threshold_(exps, smallest, 0.0)


def _of_large(
    logits: Tensor, weights: Tensor, worth: Tensor, sink: Tensor | None, alone: float | None
) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    """Return where an edge has more than half of its row, and its price from the rest of the row.

    Args:
        logits: s - lse [h, R, C].
        weights: their exp.
        worth: g . v [h, R, C].
        sink: the sink's logit less lse [h, R], which is worth 0; None without.
        alone: the closed form of a row's only edge; None: the score gradient is wanted.
    """
    largest, place = weights.max(dim=-1)  # h R
    head, row = torch.nonzero(largest > HALF, as_tuple=True)  # n
    where = head, row, place[head, row]
    share, own = weights[where], worth[where]
    rest = logits[head, row]  # n C
    rest[torch.arange(len(head)), where[2]] = -torch.inf
    of_sink = torch.full_like(share, -torch.inf) if sink is None else sink[head, row]
    pivot = torch.maximum(rest.amax(dim=-1), of_sink)  # the rest may be too small for its exps
    only = pivot == -torch.inf
    pivot = pivot.masked_fill(only, 0.0)
    exps = _exp(rest.sub_(pivot.unsqueeze(-1)))
    total = exps.sum(dim=-1) + torch.exp(of_sink - pivot)
    mean = (exps * worth[head, row]).sum(dim=-1) / total.masked_fill(only, 1.0)
    price = share * (own - mean)
    if alone is not None:
        return where, price.masked_fill(only, alone)
    return where, price * torch.exp(pivot) * total  # 1 - a; of an edge that is alone 0


def _index(rows: Sequence[int]) -> slice | list[int]:
    """Return rows as an index: a slice, whose piece is no copy, where they are neighbours."""
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last + 1 - first == len(rows) else [int(row) for row in rows]
