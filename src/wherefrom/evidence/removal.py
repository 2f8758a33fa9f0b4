"""Passages that may not be read (floor 5): the edges removed from a call, attention without them, and the proof.

A destination outside a passage that is taken away may not read it; inside it reading goes on, so that a passage becomes
an island. In plain causal calls that takes linear memory: rows outside attend over the columns outside, where the
causal rule stays causal among what is gathered, and each island reads its own columns and the columns outside before
it, the two parts merged by their log-sum-exps. Any other call takes the edges as a dense map, T x S.

Every cut is proven, once a call: the weights exp(s - lse) of the edges that are left, from the rerun's own scores and
log-sum-exp, must sum to one, so that nothing is left for a removed edge.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wherefrom.capture.fused import Limits, attend, merge
from wherefrom.errors import InputError, RecordingError
from wherefrom.evidence.prefix import Piece
from wherefrom.evidence.running import Executed, scores_of
from wherefrom.questions.scope import Scope

PROVEN = 1e-2
"""How far from 1 the weights of a proof may sum to, in logarithms: float32 scores of long rows."""
PROOF_ROWS = 16
"""Rows whose weights are summed for a proof, spread over those that changed."""


@dataclass(frozen=True)
class Removal:
    """What is taken away from each text of a batch, and from whom.

    Attributes:
        index: int [T], the passage of each position; -1 where it is in none.
        dropped: bool [B, P], the passages that each text loses.
        first: rows before it read everything: 0, or the first row of what is asked about.
        scope: in which layers and heads.
    """

    index: Tensor
    dropped: Tensor
    first: int = 0
    scope: Scope = Scope()  # noqa: RUF009, it is frozen

    @property
    def gone(self) -> Tensor:
        """Which positions each text loses, bool [B, T]."""
        return self.dropped[:, self.index.clamp(min=0)] & (self.index >= 0)

    def to(self, device: torch.device) -> Removal:
        """Return the same on a device."""
        if self.index.device == device:
            return self
        return replace(self, index=self.index.to(device), dropped=self.dropped.to(device))

    def positions(self, start: int, stop: int) -> Tensor:
        """Return positions start to stop - 1 as a tensor where the arrays are."""
        return torch.arange(start, stop, device=self.index.device)

    def edges(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return which edges between positions are removed, bool [B, R, S]."""
        outside = self.index[columns] != self.index[rows][:, None]  # R S
        return self.gone[:, None, columns] & outside & (rows >= self.first)[:, None]

    def of_heads(self, edges: Tensor, heads: int) -> Tensor:
        """Return edges [B, R, S] for the heads of a call, bool [B, 1 or H, R, S]."""
        if self.scope.heads is None:
            return edges[:, None]
        inside = torch.zeros(heads, dtype=torch.bool, device=edges.device)
        inside[[head for head in self.scope.heads if head < heads]] = True
        return edges[:, None] & inside[:, None, None]


class Without:
    """Attention of whole texts without what is removed, proven at the first execution of each module.

    Args:
        removal: for each text of the batch.
        proven: the modules whose cuts are proven; it grows.
    """

    def __init__(self, removal: Removal, proven: set[str]) -> None:
        self._removal, self._proven = removal, proven

    def __call__(self, one: Executed) -> Tensor:
        """Return the outputs [B, H, T, V] of an execution."""
        removal = self._removal = self._removal.to(one.q.device)
        if one.kind != "self" or not removal.scope.has_layer(one.layer):
            return one.attend().output
        if not one.is_causal_alone:
            return self._dense(one)
        y, lse = _rows_without(one, removal) if removal.first else _islands(one, removal)
        if one.name not in self._proven:
            rows = _spread(removal.first, one.q.shape[2]).to(one.q.device)
            columns = removal.positions(0, one.k.shape[2])
            left = (columns <= rows[:, None]) & ~removal.edges(rows, columns)  # B R S
            _prove(one.name, scores_of(one.q[:, :, rows], one.k, one.scale), left[:, None], lse[:, :, rows])
            self._proven.add(one.name)
        if removal.scope.heads is None:
            return y
        changed = removal.of_heads(torch.ones(1, 1, 1, dtype=torch.bool, device=y.device), y.shape[1])  # 1 H 1 1
        return torch.where(changed, y, one.attend().output)

    def _dense(self, one: Executed) -> Tensor:
        removal = self._removal
        heads, destinations, sources = one.q.shape[1], one.q.shape[2], one.k.shape[2]
        edges = removal.edges(removal.positions(0, destinations), removal.positions(0, sources))
        removed = removal.of_heads(edges, heads)
        permitted = one.permitted()
        left = permitted & ~removed  # B H|1 T S
        _require_sources(permitted, left)
        attended = one.attend(removed=removed)
        if one.name not in self._proven:
            rows = _spread(removal.first, destinations)
            scores = scores_of(one.q[:, :, rows], one.k, one.scale, one.softcap)
            if one.bias is not None:
                scores = scores + (one.bias[:, :, rows] if one.bias.shape[2] > 1 else one.bias)
            _prove(one.name, scores, left[:, :, rows], attended.lse[:, :, rows], one.sinks)
            self._proven.add(one.name)
        return attended.output


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
        removal: Removal | None,
        rows: Tensor,
        before: int,
        proven: set[str] | None = None,
        absent: Removal | None = None,
    ) -> None:
        self._removal, self._rows, self._before, self._proven = removal, rows, before, proven
        self._claim = removal if absent is None else absent
        self._limits: dict[int, tuple[Limits, Limits | None]] = {}

    def __call__(self, piece: Piece) -> Tensor:
        """Return the outputs [B, H, R, V] of an execution."""
        self._move(piece.q.device)
        cut = self._claim is None or self._claim.scope.has_layer(piece.layer)
        past, own = self._limits_of(piece.q.shape[1]) if cut else (Limits(), None)
        y, lse = _read(piece, self._before, past, own)
        if cut and self._proven is not None and piece.name not in self._proven:
            self._prove(piece, lse)
            self._proven.add(piece.name)
        return y

    def _move(self, device: torch.device) -> None:
        self._rows = self._rows.to(device)
        self._removal = None if self._removal is None else self._removal.to(device)
        self._claim = None if self._claim is None else self._claim.to(device)

    def _limits_of(self, heads: int) -> tuple[Limits, Limits | None]:
        """Return the limits of the recorded columns, for rows of all versions in a row, and of the own ones."""
        if self._removal is None:
            return Limits(), None
        if heads not in self._limits:
            columns = self._removal.positions(0, self._before)
            removed = self._removal.of_heads(self._removal.edges(self._rows, columns), heads)
            like = torch.empty(0, device=self._rows.device)
            past = Limits.of_permitted(~_stacked(removed), like) if self._before else Limits()
            own = self._removal.of_heads(self._removal.edges(self._rows, self._rows), heads)  # B H|1 R R
            causal = self._rows <= self._rows[:, None]
            self._limits[heads] = past, Limits.of_permitted(causal & ~own, like) if bool(own.any()) else None
        return self._limits[heads]

    def _prove(self, piece: Piece, lse: Tensor) -> None:
        """Prove the cut of the first version: over all columns of the text, its own rows' keys in their places."""
        assert self._claim is not None, "a cut is one of something"
        some = _spread(0, len(self._rows))
        rows, columns = self._rows[some], self._claim.positions(0, piece.past_k.shape[2])
        keys = piece.past_k.clone()
        keys[:, :, self._rows] = piece.k[:1]
        edges = self._claim.of_heads(self._claim.edges(rows, columns)[:1], piece.q.shape[1])
        left = (columns <= rows[:, None]) & ~edges
        _prove(piece.name, scores_of(piece.q[:1, :, some], keys, piece.scale), left, lse[:1, :, some])


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
    return y, lse


def _rows_without(one: Executed, removal: Removal) -> tuple[Tensor, Tensor]:
    """Return outputs and lse of plain causal texts whose rows from `first` on lose edges: a map of those rows alone."""
    before = one.attend()
    rows, columns = removal.positions(removal.first, one.q.shape[2]), removal.positions(0, one.k.shape[2])
    left = (columns <= rows[:, None]) & ~removal.edges(rows, columns)  # B R S
    limits = Limits.of_permitted(left[:, None], one.q)
    after = attend(one.q[:, :, removal.first :], one.k, one.v, limits=limits, scale=one.scale)
    y, lse = before.output.clone(), before.lse.clone()
    y[:, :, removal.first :], lse[:, :, removal.first :] = after.output, after.lse
    return y, lse


def _causal(rows: int) -> Limits:
    return Limits(causal=rows > 1)


def _spread(first: int, stop: int) -> Tensor:
    """Return some of the rows from `first` on, the last among them."""
    return torch.linspace(first, stop - 1, min(PROOF_ROWS, stop - first)).round().long()


def _prove(name: str, scores: Tensor, left: Tensor, lse: Tensor, sinks: Tensor | None = None) -> None:
    """Require that the weights of the edges that are left, [B, H or 1, R, S], sum to one under the kernel's lse.

    Raises:
        RecordingError: they do not.
    """
    sums = torch.logsumexp(scores.masked_fill(~left.to(scores.device), -torch.inf), dim=-1)  # B H R
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


def _require_sources(permitted: Tensor, left: Tensor) -> None:
    """Refuse a cut that leaves a destination nothing to read which read something before."""
    empty = (permitted.any(dim=-1) & ~left.any(dim=-1)).flatten(0, 1).any(dim=0)  # T
    if bool(empty.any()):
        destination = int(torch.nonzero(empty)[0])
        raise InputError(
            "a cut",
            expected=f"something left to read for destination {destination}",
            given="all of it cut",
            way_out="Take fewer passages away at a time.",
            destination=destination,
        )
