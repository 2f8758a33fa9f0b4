"""Edges that may not be read (floor 5): those of passages, or any; attention without them, and the proof.

A destination outside a passage that is taken away may not read it; inside it reading goes on, so that a passage becomes
an island. In plain causal calls that takes linear memory: rows outside attend over the columns outside, where the
causal rule stays causal among what is gathered, and each island reads its own columns and the columns outside before
it, the two parts merged by their log-sum-exps. Any other edges of plain causal calls are left out in strips of the rows
that lose some. Any other call takes them as a dense map, T x S.

Every cut is proven: the weights exp(s - lse) of the edges that are left, from the rerun's own scores and log-sum-exp,
must sum to one, so that nothing is left for a removed edge. Passages, which are the same for all texts but for which of
them are gone, are proven once a call; edges that are named one by one, in every text.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from wherefrom.capture.fused import STRIP, Limits, attend, merge
from wherefrom.errors import InputError, RecordingError
from wherefrom.evidence.prefix import Piece
from wherefrom.evidence.running import Executed, scores_of
from wherefrom.evidence.where import EVERYWHERE, Where

PROVEN = 1e-2
"""How far from 1 the weights of a proof may sum to, in logarithms: float32 scores of long rows."""
PROOF_ROWS = 16
"""Rows whose weights are summed for a proof, spread over those that changed."""
PROOF_AT_ONCE = 2**22
"""Scores that a proof forms at a time."""


class Edges(Protocol):
    """What is removed from each text of a batch."""

    @property
    def apart(self) -> bool:
        """Whether each text loses edges of its own, so that each has to be proven."""

    def to(self, device: torch.device) -> Edges:
        """Return the same on a device."""

    def has_layer(self, layer: int) -> bool:
        """Whether some text loses edges in a layer."""

    def changed(self, rows: Tensor) -> Tensor:
        """Return which of some positions may lose edges, bool [R]."""

    def removed(self, layer: int, heads: int, rows: Tensor, columns: Tensor) -> Tensor:
        """Return which edges between positions are removed in a layer, bool [B, 1 or H, R, S]."""


@dataclass(frozen=True)
class Removal:
    """Passages that are taken away from each text of a batch, and from whom.

    Attributes:
        index: int [T], the passage of each position; -1 where it is in none.
        dropped: bool [B, P], the passages that each text loses.
        first: rows before it read everything: 0, or the first row of what is asked about.
        where: in which layers and heads.
    """

    index: Tensor
    dropped: Tensor
    first: int = 0
    where: Where = EVERYWHERE
    apart = False

    @property
    def gone(self) -> Tensor:
        """Which positions each text loses, bool [B, T]."""
        return self.dropped[:, self.index.clamp(min=0)] & (self.index >= 0)

    def to(self, device: torch.device) -> Removal:
        """Return the same on a device."""
        if self.index.device == device:
            return self
        return replace(self, index=self.index.to(device), dropped=self.dropped.to(device))

    def has_layer(self, layer: int) -> bool:
        """Whether edges are removed in a layer."""
        return self.where.has_layer(layer)

    def changed(self, rows: Tensor) -> Tensor:
        """Return which of some positions may lose edges, bool [R]."""
        return rows >= self.first

    def edges(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return which edges between positions are removed, bool [B, R, S]."""
        outside = self.index[columns] != self.index[rows][:, None]  # R S
        return self.gone[:, None, columns] & outside & (rows >= self.first)[:, None]

    def removed(self, layer: int, heads: int, rows: Tensor, columns: Tensor) -> Tensor:
        """Return which edges between positions are removed in a layer, bool [B, 1 or H, R, S]."""
        edges = self.edges(rows, columns)[:, None]
        if self.where.heads_of(layer) is None:
            return edges
        return edges & self.where.mask(layer, heads).to(edges.device)[:, None, None]


@dataclass(frozen=True)
class Lost:
    """Edges that are removed together: of every destination that is named, to every source that is.

    Attributes:
        destinations: bool [T].
        sources: bool [T].
        where: in which layers and heads.
    """

    destinations: Tensor
    sources: Tensor
    where: Where = EVERYWHERE

    @property
    def first(self) -> int | None:
        """The first position that loses something it could read in a causal model; None: there is none."""
        found = torch.nonzero(self.destinations & (self.sources.cumsum(0) > 0))
        return int(found[0]) if len(found) else None


@dataclass(frozen=True)
class Cuts:
    """Edges that each text of a batch loses, whatever they are: those of all its `Lost` together."""

    lost: tuple[tuple[Lost, ...], ...]
    apart = True

    def to(self, device: torch.device) -> Cuts:
        """Return the same on a device."""
        moved = [
            tuple(replace(one, destinations=one.destinations.to(device), sources=one.sources.to(device)) for one in own)
            for own in self.lost
        ]
        return Cuts(tuple(moved))

    def has_layer(self, layer: int) -> bool:
        """Whether some text loses edges in a layer."""
        return any(one.where.has_layer(layer) for own in self.lost for one in own)

    def changed(self, rows: Tensor) -> Tensor:
        """Return which of some positions may lose edges, bool [R]."""
        found = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
        for one in (one for own in self.lost for one in own):
            found |= one.destinations[rows]
        return found

    def removed(self, layer: int, heads: int, rows: Tensor, columns: Tensor) -> Tensor:
        """Return which edges between positions are removed in a layer, bool [B, H, R, S]."""
        size = len(self.lost), heads, len(rows), len(columns)
        found = torch.zeros(size, dtype=torch.bool, device=rows.device)
        for text, own in enumerate(self.lost):
            for one in own:
                if one.where.has_layer(layer):
                    edges = one.destinations[rows][:, None] & one.sources[columns]  # R S
                    found[text, one.where.mask(layer, heads).to(rows.device)] |= edges
        return found


class Without:
    """Attention of whole texts without what is removed, proven at the first execution of each module.

    Args:
        removal: for each text of the batch.
        proven: the modules whose cuts are proven; it grows.
    """

    def __init__(self, removal: Edges, proven: set[str]) -> None:
        self._removal, self._proven = removal, proven

    def __call__(self, one: Executed) -> Tensor:
        """Return the outputs [B, H, T, V] of an execution."""
        removal = self._removal = self._removal.to(one.q.device)
        if one.kind != "self" or not removal.has_layer(one.layer):
            return one.attend().output
        if not one.is_causal_alone:
            y, lse = self._dense(one)
        elif isinstance(removal, Removal) and not removal.first:
            y, lse = _islands(one, removal)
        else:
            y, lse = _rows_without(one, removal)
        if one.name not in self._proven:
            self._prove(one, lse)
            self._proven.add(one.name)
        return y

    def _dense(self, one: Executed) -> tuple[Tensor, Tensor]:
        rows, columns = _positions(one.q), _positions(one.k)
        removed = self._removal.removed(one.layer, one.q.shape[1], rows, columns)
        permitted = one.permitted()
        _require_sources((permitted & ~removed).any(dim=-1) | ~permitted.any(dim=-1), rows, one.layer)
        attended = one.attend(removed=removed)
        return attended.output, attended.lse

    def _prove(self, one: Executed, lse: Tensor) -> None:
        rows, columns = _positions(one.q), _positions(one.k)
        rows = _spread(rows[self._removal.changed(rows)])
        left = ~self._removal.removed(one.layer, one.q.shape[1], rows, columns)  # B H|1 R S
        scores = scores_of(one.q[:, :, rows], one.k, one.scale, one.softcap)
        if one.is_causal_alone:
            left = left & (columns <= rows[:, None])
        else:
            left = left & one.permitted()[:, :, rows]
            if one.bias is not None:
                scores = scores + (one.bias[:, :, rows] if one.bias.shape[2] > 1 else one.bias)
        _prove(one.name, _summed(scores, left), lse[:, :, rows], one.sinks)


class AloneWithout:
    """Attention of some rows of a text that are run alone, in versions that each lose something.

    Args:
        removal: for each version of the batch; None: nothing is removed among what is there.
        rows: int [R], the positions that are run.
        before: how many recorded columns they read; those between it and the rows are not there.
        proven: the modules whose cuts are proven; it grows. None: it is no cut, and nothing to prove.
        absent: what a proof is told was removed, where it is not there at all.
    """

    def __init__(
        self,
        removal: Edges | None,
        rows: Tensor,
        before: int,
        proven: set[str] | None = None,
        absent: Edges | None = None,
    ) -> None:
        self._removal, self._rows, self._before, self._proven = removal, rows, before, proven
        self._claim: Edges | None = removal if absent is None else absent
        self._limits: dict[tuple[tuple[int, ...] | None, int], tuple[Limits, Limits | None]] = {}

    def __call__(self, piece: Piece) -> Tensor:
        """Return the outputs [B, H, R, V] of an execution."""
        self._move(piece.q.device)
        cut = self._claim is None or self._claim.has_layer(piece.layer)
        past, own = self._limits_of(piece.layer, piece.q.shape[1]) if cut else (Limits(), None)
        y, lse = _read(piece, self._before, past, own)
        if cut and self._proven is not None and piece.name not in self._proven:
            self._prove(piece, lse)
            self._proven.add(piece.name)
        return y

    def _move(self, device: torch.device) -> None:
        self._rows = self._rows.to(device)
        self._removal = None if self._removal is None else self._removal.to(device)
        self._claim = None if self._claim is None else self._claim.to(device)

    def _limits_of(self, layer: int, heads: int) -> tuple[Limits, Limits | None]:
        """Return the limits of the recorded columns, for rows of all versions in a row, and of the own ones."""
        if not isinstance(self._removal, Removal):
            return (Limits(), None) if self._removal is None else self._made(self._removal, layer, heads)
        key = self._removal.where.heads_of(layer), heads
        if key not in self._limits:
            self._limits[key] = self._made(self._removal, layer, heads)
        return self._limits[key]

    def _made(self, removal: Edges, layer: int, heads: int) -> tuple[Limits, Limits | None]:
        rows, before = self._rows, torch.arange(self._before, device=self._rows.device)
        past = ~removal.removed(layer, heads, rows, before)  # B H|1 R S
        own = (rows <= rows[:, None]) & ~removal.removed(layer, heads, rows, rows)  # B H|1 R R
        _require_sources(past.any(dim=-1) | own.any(dim=-1), rows, layer)
        like, whole = torch.empty(0, device=rows.device), bool((own == (rows <= rows[:, None])).all())
        limits = Limits.of_permitted(_stacked(past), like) if self._before else Limits()
        return limits, None if whole else Limits.of_permitted(own, like)

    def _prove(self, piece: Piece, lse: Tensor) -> None:
        """Prove the cut of the first version, or of each: over what was read, recorded columns and its own."""
        assert self._claim is not None, "a cut is one of something"
        some = _spread(torch.nonzero(self._claim.changed(self._rows))[:, 0])
        rows, before = self._rows[some], torch.arange(self._before, device=self._rows.device)
        past_k = piece.past_k[:, :, : self._before]
        heads, versions = piece.q.shape[1], len(piece.q) if self._claim.apart else 1
        at_once = max(1, PROOF_AT_ONCE // max(1, heads * len(rows) * (self._before + len(self._rows))))
        past_left, own_left = (~self._claim.removed(piece.layer, heads, rows, own) for own in (before, self._rows))
        own_left = own_left & (self._rows <= rows[:, None])
        for start in range(0, versions, at_once):
            each = slice(start, min(start + at_once, versions))
            q = piece.q[each][:, :, some]
            past = scores_of(_stacked(q), past_k, piece.scale)[0]  # H B*R S
            past = past.reshape(heads, len(q), len(rows), -1).transpose(0, 1)  # B H R S
            sums = _summed(scores_of(q, piece.k[each], piece.scale), own_left[each])
            sums = torch.logaddexp(sums, _summed(past, past_left[each])) if self._before else sums
            _prove(piece.name, sums, lse[each][:, :, some])


def _read(piece: Piece, before: int, past: Limits, own: Limits | None) -> tuple[Tensor, Tensor]:
    """Return outputs [B, H, R, V] and lse of rows over `before` recorded columns, and their own."""
    q, rows = piece.q, piece.q.shape[2]
    limits = Limits(causal=rows > 1) if own is None else own
    y, lse, _ = attend(q, piece.k, piece.v, limits=limits, scale=piece.scale)
    if not before:
        return y, lse
    keys, values = piece.past_k[:, :, :before], piece.past_v[:, :, :before]
    first, first_lse, _ = attend(_stacked(q), keys, values, limits=past, scale=piece.scale)  # 1 H B*R V
    first, first_lse = (x[0].reshape(-1, len(q), rows, *x.shape[3:]).transpose(0, 1) for x in (first, first_lse))
    joined, sums = merge((first, first_lse), (y, lse))
    return joined.to(q), sums


def _stacked(x: Tensor) -> Tensor:
    """Return [B, H, R, ...] as one text of B * R rows, [1, H, B * R, ...]: keys that all share are then read once."""
    return x.transpose(0, 1).flatten(1, 2)[None]


def _islands(one: Executed, removal: Removal) -> tuple[Tensor, Tensor]:
    """Return outputs and lse of plain causal texts whose dropped passages are islands, in linear memory."""
    v = one.v
    y = one.q.new_empty(*one.q.shape[:3], v.shape[-1])
    lse = torch.empty(one.q.shape[:3], dtype=torch.float32, device=y.device)
    for text, gone in enumerate(removal.gone):
        q, k, v = (x[text : text + 1] for x in (one.q, one.k, one.v))
        outside = torch.nonzero(~gone)[:, 0]
        if len(outside):
            part = attend(*(x[:, :, outside] for x in (q, k, v)), limits=_causal(len(outside)), scale=one.scale)
            y[text, :, outside], lse[text, :, outside] = part.output[0], part.lse[0]
        for number in torch.nonzero(removal.dropped[text])[:, 0]:
            rows = torch.nonzero(removal.index == number)[:, 0]
            own = attend(*(x[:, :, rows] for x in (q, k, v)), limits=_causal(len(rows)), scale=one.scale)
            earlier = outside[outside < rows[0]]
            found = own.output, own.lse
            if len(earlier):
                past = attend(q[:, :, rows], k[:, :, earlier], v[:, :, earlier], limits=Limits(), scale=one.scale)
                found = merge(found, (past.output, past.lse))
            y[text, :, rows], lse[text, :, rows] = found[0][0].to(y), found[1][0]
    if removal.where.heads_of(one.layer) is None:
        return y, lse
    whole, changed = one.attend(), removal.where.mask(one.layer, y.shape[1]).to(y.device)[:, None]  # H 1
    return torch.where(changed[..., None], y, whole.output), torch.where(changed, lse, whole.lse)


def _rows_without(one: Executed, removal: Edges) -> tuple[Tensor, Tensor]:
    """Return outputs and lse of plain causal texts some rows of which lose edges, in strips of those rows."""
    before, columns = one.attend(), _positions(one.k)
    y, lse = before.output.clone(), before.lse.clone()
    for rows in torch.split(columns[removal.changed(columns)], STRIP):
        left = (columns <= rows[:, None]) & ~removal.removed(one.layer, one.q.shape[1], rows, columns)  # B H|1 R S
        _require_sources(left.any(dim=-1), rows, one.layer)
        limits = Limits.of_permitted(left, one.q)
        after = attend(one.q[:, :, rows], one.k, one.v, limits=limits, scale=one.scale)
        y[:, :, rows], lse[:, :, rows] = after.output, after.lse
    return y, lse


def _positions(x: Tensor) -> Tensor:
    """Return the positions of queries or keys [B, H, T, D], [T]."""
    return torch.arange(x.shape[2], device=x.device)


def _causal(rows: int) -> Limits:
    return Limits(causal=rows > 1)


def _spread(rows: Tensor) -> Tensor:
    """Return some of the rows, the first and the last among them."""
    return rows[torch.linspace(0, len(rows) - 1, min(PROOF_ROWS, len(rows))).round().long()]


def _summed(scores: Tensor, left: Tensor) -> Tensor:
    """Return log sum exp [B, H, R] of the scores of the edges that are left, [B, H or 1, R, S]."""
    return torch.logsumexp(scores.masked_fill(~left.to(scores.device), -torch.inf), dim=-1)


def _prove(name: str, sums: Tensor, lse: Tensor, sinks: Tensor | None = None) -> None:
    """Require that the weights of what is left, whose scores' log-sum-exps [B, H, R] are given, sum to one under lse.

    Raises:
        RecordingError: they do not.
    """
    if sinks is not None:
        sums = torch.logaddexp(sums, sinks.to(sums)[:, None].expand_as(sums))
    both = torch.isfinite(sums) & torch.isfinite(lse)
    largest = float((sums - lse)[both].abs().max()) if bool(both.any()) else 0.0
    if not largest < PROVEN or not bool((torch.isfinite(sums) == torch.isfinite(lse)).all()):
        raise RecordingError(
            f"the proof of a cut in {name}",
            expected=f"weights that sum to one over what is left, within {PROVEN} in logarithms",
            given=f"a difference of {largest:.3g}",
            way_out="Nothing was measured; report the model.",
            name=name,
        )


def _require_sources(readable: Tensor, rows: Tensor, layer: int) -> None:
    """Refuse a cut that leaves a destination nothing to read, where `readable` [B, H, R] says which may read."""
    empty = torch.nonzero(~readable)
    if len(empty):
        _, head, place = empty[0].tolist()
        destination = int(rows[place])
        of_head = f" and head {head}" if readable.shape[1] > 1 else ""
        raise InputError(
            "a cut",
            expected=f"something left to read for destination {destination}, in layer {layer}{of_head} too",
            given="all of it cut",
            way_out="Take less away at a time, or leave that destination out.",
            destination=destination,
            layer=layer,
        )
