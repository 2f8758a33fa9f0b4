"""A place's reading in one execution of attention (floor 5): changed, and its steps priced to first order.

A place is a run of neighbouring tokens, in which reading goes on as ever; a step A -> B is every edge from A's tokens
to B's. `Rows` are B's rows in one execution, before it is computed: `attend` gives their outputs where some steps read
other keys and values, or are cut. What a step is worth is priced by a `Reading`, without a run. Let g = dL/dy be the
gradient, by B's outputs, of a value L that lies behind B; a = exp(s - lse) the weights, c = g . v, m = sum a c the mean
of a row. Where the step's edges read k~, v~ instead, with a~ = exp(s~ - lse) and c~ = g . v~, the head's output is the
mean over what is then there, and what L loses is

    price = (sum a (c - m) - sum a~ (c~ - m)) / (1 - sum a + sum a~)        sums over the step's edges of a row

with a~ = 0 where the step is cut, added up over B's rows. The change of the head's output is exact, what later layers
make of it first order; of one edge, cut, it is the closed form of `wherefrom.evidence.edges`. What A's own reading is
worth, as it acts through B alone, is priced with the gradient by k and v as B's rows r read them::

    dL/dv_j = sum over r of a_rj g_r        dL/dk_j = sum over r of a_rj (c_rj - m_r) ds_rj/d(q.k) q_r

summed over the heads that share them. Takes an execution's arrays from below; gives all to `wherefrom.evidence.paths`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from wherefrom.errors import InputError
from wherefrom.evidence.running import scores_of

Execution: TypeAlias = tuple[str, int]
"""A module's path, and how often it had run before in the pass."""
Heads: TypeAlias = Mapping[Execution, tuple[int, ...]]
"""Some heads of some executions."""
TINY = 1e-12
"""Of a row that a step leaves less than this share to read there is no price."""


@dataclass(frozen=True, eq=False)
class Keys:
    """What neighbouring tokens give to be read, or a gradient by it.

    Attributes:
        start: the first of them.
        of: k [K, R, D] and v [K, R, V] of each execution.
    """

    start: int
    of: Mapping[Execution, tuple[Tensor, Tensor]] = field(repr=False)

    def at(self, execution: Execution, place: range) -> tuple[Tensor, Tensor]:
        """Return k [K, R, D] and v [K, R, V] of some of the tokens in one execution, no copies."""
        k, v = self.of[execution]
        own = slice(place.start - self.start, place.stop - self.start)
        return k[:, own], v[:, own]


@dataclass(frozen=True, eq=False)
class Change:
    """What a place reads otherwise.

    Attributes:
        place: whose keys and values; those of a version's changes do not overlap within a head.
        keys: what is read there; None: it may not be read.
        heads: where; None: in all.
    """

    place: range
    keys: Keys | None = None
    heads: Heads | None = None


Changes: TypeAlias = Sequence[Change]
"""Of one version of a place: all that it reads otherwise."""


@dataclass(frozen=True, eq=False)
class Rows:
    """One execution of attention by the rows of a place, in B versions; P columns stand before them.

    Attributes:
        execution: which one.
        layer: its layer.
        q: [B, H, R, D].
        k: [B, K, R, D], their own.
        v: [B, K, R, V].
        past_k: [1, K, P, D], of the whole text.
        past_v: [1, K, P, V].
        permitted: bool [1, H or 1, R, P + R].
        scale: of the scores.
        softcap: bound on a score's size; None without.
        bias: [1, H or 1, R, P + R], added to the scores; None without.
        sinks: [H] logits; None without.
    """

    execution: Execution
    layer: int
    q: Tensor
    k: Tensor
    v: Tensor
    past_k: Tensor
    past_v: Tensor
    permitted: Tensor
    scale: float
    softcap: float | None = None
    bias: Tensor | None = None
    sinks: Tensor | None = None

    @property
    def before(self) -> int:
        """P."""
        return self.past_k.shape[2]

    def scores(self) -> Tensor:
        """Return the scores [B, H, R, P + R], -inf where a row may not read; in float32 at least."""
        parts = [self.over(self.past_k, slice(0, self.before)), self.over(self.k, slice(self.before, None))]
        return torch.cat(parts, dim=-1)

    def over(self, k: Tensor, columns: slice) -> Tensor:
        """Return the scores [B, H, R, S] over keys k [1 or B, K, S, D] that stand at some columns."""
        apart = len(k) > 1 or len(self.q) == 1
        scores = scores_of(self.q if apart else _joined(self.q), k, self.scale, self.softcap)
        scores = scores if apart else _parted(scores, len(self.q))
        if self.bias is not None:
            scores = scores + self.bias[..., columns]
        return scores.masked_fill(~self.permitted[..., columns], -torch.inf)

    def version(self, number: int) -> Rows:
        """Return one version, without its graph."""
        own = {name: getattr(self, name)[[number]].detach() for name in ("q", "k", "v")}
        return replace(self, **own)

    def wide(self) -> Rows:
        """Return the same in double precision."""
        names = ("q", "k", "v", "past_k", "past_v")
        return replace(self, **{name: getattr(self, name).double() for name in names})

    def attend(self, versions: Sequence[Changes] = ()) -> Tensor:
        """Return the outputs [B, H, R, V]; each version with its changes.

        Raises:
            InputError: a cut that leaves a row nothing to read.
        """
        scores = self.scores()
        changed = list(self._changed(versions))
        for version, heads, columns, keys in changed:
            if keys is None:
                scores[version, heads, :, columns] = -torch.inf
            else:
                one = replace(self, q=self.q[[version]])
                scores[version, heads, :, columns] = one.over(keys[0][None], columns)[0, heads]
        weights = self._softmax(scores)
        past, own = weights[..., : self.before], weights[..., self.before :]
        kept = past.clone() if changed else past
        for version, heads, columns, _ in changed:
            kept[version, heads, :, columns] = 0.0
        y = _mixed(kept, self.past_v) + _mixed(own, self.v)
        for version, heads, columns, keys in changed:
            if keys is not None:
                y[version, heads] += _mixed(past[[version], ..., columns], keys[1][None])[0, heads]
        return y.to(self.q.dtype)

    def _changed(
        self, versions: Sequence[Changes]
    ) -> Iterator[tuple[int, slice | list[int], slice, tuple[Tensor, Tensor] | None]]:
        """Yield the changes of this execution: whose, in which heads, of which columns, and their k and v."""
        for version, changes in enumerate(versions):
            for change in changes:
                heads = slice(None) if change.heads is None else list(change.heads.get(self.execution, ()))
                keys = None if change.keys is None else change.keys.at(self.execution, change.place)
                if heads != [] and len(change.place):
                    yield version, heads, slice(change.place.start, change.place.stop), keys

    def _softmax(self, scores: Tensor) -> Tensor:
        if self.sinks is not None:
            sink = self.sinks.to(scores)[:, None, None].expand(*scores.shape[:3], 1)
            return torch.softmax(torch.cat((scores, sink), dim=-1), dim=-1)[..., :-1]
        if bool((scores.amax(dim=-1) == -torch.inf).any()):
            raise InputError(
                "a path knock-out",
                expected="something left to read for every token of a route",
                given=f"all of it cut in layer {self.layer}",
                way_out="Ask about a passage that leaves each later token something else to read.",
                layer=self.layer,
            )
        return torch.softmax(scores, dim=-1)


class _Terms(NamedTuple):
    """The letters of the module's text for one execution: a, c [H, R, P + R], and m, lse [H, R, 1]; float64."""

    a: Tensor
    c: Tensor
    m: Tensor
    lse: Tensor


@dataclass(frozen=True, eq=False)
class Reading:
    """A place's reading as it is, with the gradient of a value L that lies behind it.

    Attributes:
        place: whose rows.
        calls: each execution, one version, and g = dL/dy [H, R, V] of its outputs.
    """

    place: range
    calls: tuple[tuple[Rows, Tensor], ...] = field(repr=False)

    def prices(self, passage: range, places: Sequence[range], without: Keys) -> Tensor:
        """Return what L loses, to first order, by each step into the place, float64 [calls, H, 1 + P].

        Heads that a call does not have are 0.

        Args:
            passage: the first step, which is cut.
            places: the others, behind it and without overlap, read as they are without the passage.
            without: their keys under its total knock-out.
        """
        steps = 2 + len(places)  # the last: columns of no step
        owner = torch.full((self.place.start,), steps - 1)
        for number, one in enumerate((passage, *places)):
            owner[one.start : one.stop] = number
        heads = max(len(g) for _, g in self.calls)
        found = torch.zeros(len(self.calls), heads, steps, dtype=torch.float64)
        behind = range(passage.stop, self.place.start)
        for call, (rows, g) in enumerate(self.calls):
            found[call, : len(g)] = _prices(rows, g, owner, behind, without, steps)
        return found[..., :-1]

    def toward(self, place: range) -> Keys:
        """Return dL/d(k, v) of a place before this one, as its rows read them: k and v in float64."""
        found = {}
        for rows, g in self.calls:
            rows, terms = _terms(rows, g)
            columns = slice(place.start, place.stop)
            a, c, k = terms.a[..., columns], terms.c[..., columns], rows.past_k[:, :, columns]
            slope = torch.full_like(a, rows.scale)
            if rows.softcap is not None:
                slope *= 1 - (scores_of(rows.q, k, rows.scale, rows.softcap)[0] / rows.softcap) ** 2
            of_k = (a * (c - terms.m) * slope).transpose(1, 2) @ rows.q[0]  # H S D
            of_v = a.transpose(1, 2) @ g.double()
            shared = [x.reshape(k.shape[1], -1, *x.shape[1:]).sum(dim=1) for x in (of_k, of_v)]
            found[rows.execution] = shared[0], shared[1]
        return Keys(place.start, found)


@torch.no_grad()
def _terms(rows: Rows, g: Tensor) -> tuple[Rows, _Terms]:
    """Return an execution in double precision, and its terms."""
    rows = rows.wide()
    scores = rows.scores()[0]  # H R P+R
    lse = torch.logsumexp(scores, dim=-1, keepdim=True)
    if rows.sinks is not None:
        lse = torch.logaddexp(lse, rows.sinks.double()[:, None, None].expand_as(lse))
    a, c = torch.exp(scores - lse), _worth(g, torch.cat((rows.past_v, rows.v), dim=2))
    return rows, _Terms(a, c, (a * c).sum(dim=-1, keepdim=True), lse)


@torch.no_grad()
def _prices(rows: Rows, g: Tensor, owner: Tensor, behind: range, without: Keys, steps: int) -> Tensor:
    """Return the prices [H, steps] of one execution.

    `owner` [P] is each column's step; the columns `behind` the passage read as without it, those before are cut.
    """
    rows, (a, c, m, lse) = _terms(rows, g)
    k, v = (x.double()[None] for x in without.at(rows.execution, behind))
    columns = slice(behind.start, behind.stop)
    a_other = torch.exp(rows.over(k, columns)[0] - lse)  # H R behind
    own = owner.to(a.device)
    before, nothing = slice(0, rows.before), a.new_zeros(*a.shape[:2], steps)
    lost = nothing.index_add(2, own, (a * (c - m))[..., before])
    won = nothing.index_add(2, own[columns], a_other * (_worth(g, v) - m))
    left = 1 - nothing.index_add(2, own, a[..., before]) + nothing.index_add(2, own[columns], a_other)
    return torch.where(left > TINY, (lost - won) / left, 0.0).sum(dim=1).cpu()


def _mixed(weights: Tensor, v: Tensor) -> Tensor:
    """Return the means [B, H, R, V] of v [B or 1, K, S, V] under weights [B, H, R, S]."""
    if len(v) == 1 < len(weights):
        return _parted(_mixed(_joined(weights), v), len(weights))
    grouped = weights.reshape(len(weights), v.shape[1], -1, weights.shape[3])  # B K G*R S
    return (grouped @ v.to(weights)).reshape(*weights.shape[:3], v.shape[3])


def _joined(x: Tensor) -> Tensor:
    """Return [B, H, R, N] as one text of B * R rows: what all of them read is then read once."""
    return x.transpose(0, 1).flatten(1, 2)[None]


def _parted(x: Tensor, versions: int) -> Tensor:
    """Return [1, H, B * R, N] as [B, H, R, N]."""
    return x[0].reshape(x.shape[1], versions, -1, x.shape[3]).transpose(0, 1)


def _worth(g: Tensor, v: Tensor) -> Tensor:
    """Return g . v [H, R, S] of gradients g [H, R, V] and values v [1, K, S, V], float64."""
    grouped = g.double().reshape(v.shape[1], -1, *g.shape[1:])  # K G R V
    return (grouped @ v[0].unsqueeze(1).transpose(-1, -2)).flatten(0, 1)
