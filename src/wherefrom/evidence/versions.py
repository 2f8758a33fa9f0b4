"""One position in many versions (floor 5): it is run again, once for each cut, side by side with the others in one
batch.

Cutting only what one position reads leaves every other position as recorded, so a version costs one token, not one
prompt: it reads the recorded keys and values of the others. A version whose cut begins at some layer joins the batch
there. What is run is exactly the definition of a direct knock-out: all other destinations stay as they were recorded.
Where the position is the last of a causal model nothing else could have changed anyway; in an encoder the others would
have read the changed one.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wherefrom.attention import Mask
from wherefrom.capture.fused import Limits, attend, merge
from wherefrom.capture.passes import facts_of
from wherefrom.checks import check_index
from wherefrom.errors import InputError
from wherefrom.evidence.target import Target
from wherefrom.model.attention_function import Site
from wherefrom.model.language import LanguageModel, require_model
from wherefrom.model.transformer import Reading
from wherefrom.questions.scope import Scope
from wherefrom.recording import Array, Call, Recording, check_recording

Places: TypeAlias = slice | NDArray[np.int64]
"""Positions: a slice where they adjoin, so that what is recorded there need not be copied."""


@dataclass(frozen=True)
class RowCut:
    """Which rows of the batch lose which edges in one layer: those to other positions as limits, the own edge apart."""

    rows: slice
    limits: Limits  # bias 1 H|1 R S-1
    own_cut: Tensor  # bool H|1 R, True where the position may not read itself


class Plan(Protocol):
    """The versions of the position that one batch runs; row 0 of the batch is the version without a cut.

    Attributes:
        rows: how many versions there are beside it.
    """

    rows: int

    def removed(self, layer: int, kind: str) -> tuple[slice, Tensor] | None:
        """Return which rows of the batch lose which sources in a call, bool [H or 1, rows, S]; None where none does."""


class Joining(Plan, Protocol):
    """A plan whose versions join the batch where their cuts begin."""

    def joining(self, layer: int) -> int:
        """How many copies of row 0 join the batch before this layer."""

    def cut(self, site: Site) -> RowCut | None:
        """What is cut in this call."""


Way: TypeAlias = Literal["recorded keys", "full reruns"]
ALONE: Way = "recorded keys"


class Position(ABC):
    """A position of a recording, ready to be run again in many versions.

    Attributes:
        recording: whose.
        position: the one that reads.
        way: "recorded keys" where the position alone is run, over the recorded keys of the others; "full reruns" where
            the whole input is run again for each version.
        chosen: whether the way was chosen by what the model permits; else there is one.
    """

    recording: Recording
    position: int
    way: Way = ALONE
    chosen: bool = False

    @abstractmethod
    def values(self, target: Target, plan: Any) -> NDArray[np.float64]:
        """Return the target in nats, [1 + rows]: nothing cut, then each version of a plan."""

    @abstractmethod
    def logits(self) -> Tensor:
        """Return the logits [N] of the position, nothing cut."""

    @abstractmethod
    def sources(self, kind: str = "self") -> int:
        """Return how many positions a call of a kind has as sources, the position itself included."""

    @abstractmethod
    def readable(self, kind: str = "self") -> frozenset[int]:
        """Return the sources that the position may read in some layer, itself included in self-attention."""

    @property
    @abstractmethod
    def vocabulary(self) -> int:
        """How many tokens the model chooses among."""

    @property
    def format(self) -> str:
        """The number format that the model computes in."""
        return "float32"

    @property
    def causal(self) -> bool:
        """Whether a position reads nothing behind it."""
        return self.recording.model.kind != "encoder"

    @property
    def rounded(self) -> str | None:
        """The format that the recorded keys and values were rounded to in a file; None where they were not."""
        return next((call.stored.format for call in self.recording.calls if call.stored is not None), None)


@dataclass(frozen=True)
class _Others:
    """What a position reads of other positions in one call: their numbers, and the recorded keys and values there."""

    sources: Places
    keys: Tensor  # 1 K S-1 D
    values: Tensor


class Destination(Position):
    """A position of a recording, ready to be run again in many versions side by side.

    Args:
        model: that made the recording.
        recording: of any text.
        position: the one that reads; the last unless given.

    Raises:
        InputError: what is given is no model or no recording, another model made it, it does not hold every layer and
            head, the position is out of range, or it reads nothing but itself.
    """

    def __init__(self, model: LanguageModel, recording: Recording, position: int | None = None) -> None:
        require_model(model)
        recording = check_recording(recording)
        if replace(facts_of(model), context=recording.model.context) != recording.model:
            known = {name for name, _ in model.transformer.named_modules()}
            raise another_model(recording, model.name, model.fingerprint, known, "transformers")
        require_whole(recording)
        self.model, self.recording = model, recording
        self.position = len(recording) - 1 if position is None else check_index("position", position, len(recording))
        self._require_others()
        part = recording.model.part
        self._others = {call.layer: self._read(call) for call in recording.calls if _key(call) == ("self", part)}
        self._memory = {
            call.layer: (tensor(call.k)[None], tensor(call.v)[None]) for call in recording.calls if call.kind == "cross"
        }
        self._rotation = model.transformer.rotation(torch.tensor([self.position]))

    @torch.inference_mode()
    def run(self, plan: Joining) -> Tensor:
        """Return the residual streams [R, M] after the last block; row 0 is the version without a cut."""
        transformer = self.model.transformer
        token = self.recording.tokens.ids[self.position]
        x = transformer.embed(torch.tensor([[token]]), torch.tensor([self.position]))  # 1 1 M
        reading = Reading(_CutAttention(self, plan), rotation=self._rotation, memory_keys=self._memory)
        for layer, block in enumerate(transformer.blocks):
            joining = plan.joining(layer)
            if joining:
                x = torch.cat((x, x[:1].expand(joining, -1, -1)))  # R 1 M
            x = block(x, reading)
        return x[:, 0]

    def logits(self) -> Tensor:
        """Return the logits [N] of the position, nothing cut."""
        with torch.inference_mode():
            return self.model.transformer.logits(self.run(Uncut()))[0]

    def read_others(self, q: Tensor, layer: int, limits: Limits, scale: float) -> tuple[Tensor, Tensor]:
        """Return outputs and lse of queries [1, H, R, D] over the recorded keys of the other positions."""
        others = self._others[layer]
        past = attend(q, others.keys, others.values, limits=limits, scale=scale)
        return past.output, past.lse

    def others(self, layer: int) -> Places:
        """Return which other positions the position reads in a layer."""
        return self._others[layer].sources

    def reads_others(self, layer: int) -> bool:
        """Whether the position may read any other position in a layer."""
        return self._others[layer].keys.shape[2] > 0

    @property
    def vocabulary(self) -> int:
        """How many tokens the model chooses among."""
        return self.model.config.vocabulary

    def values(self, target: Target, plan: Joining) -> NDArray[np.float64]:
        """Return the target in nats, [1 + rows]: nothing cut, then each version of a plan."""
        with torch.inference_mode():
            values: NDArray[np.float64] = target.value(self.model.transformer, self.run(plan)).numpy()
        return values

    def sources(self, kind: str = "self") -> int:
        """Return how many positions a call of a kind has as sources, the position itself included.

        Raises:
            InputError: there are no calls of the kind.
        """
        return int(self.recording.call(0, kind).k.shape[1])

    def readable(self, kind: str = "self") -> frozenset[int]:
        """Return the positions that the position may read in some layer, itself included in self-attention.

        Raises:
            InputError: there are no calls of the kind.
        """
        call = self.recording.call(0, kind)
        return frozenset(np.flatnonzero(row_of(call, self.position)).tolist())

    def _read(self, call: Call) -> _Others:
        permitted = row_of(call, self.position)
        permitted[self.position] = False
        found = np.flatnonzero(permitted)
        adjoining = found.size > 0 and found[-1] - found[0] + 1 == found.size
        sources = slice(int(found[0]), int(found[-1]) + 1) if adjoining else found
        return _Others(sources, tensor(call.k[:, sources])[None], tensor(call.v[:, sources])[None])

    def _require_others(self) -> None:
        if self.recording.source is not None or len(self.readable()) > 1:
            return  # an encoder's text can always be read
        alone = len(self.recording) == 1
        raise InputError(
            "the prompt" if alone else "the position",
            expected="at least two tokens" if alone else "one that reads another position",
            given="one" if alone else f"{self.position}, which reads only itself",
            way_out="The first position reads only itself, so there is nothing to cut: "
            + ("give a longer prompt." if alone else "ask about a later position."),
        )


def another_model(recording: Recording, name: str, fingerprint: str, modules: Container[str], other: str) -> InputError:
    """Return how a model is refused that did not make a recording.

    Args:
        recording: of another model.
        name: of the one given.
        fingerprint: likewise.
        modules: what its attention is called where it is recorded.
        other: the library that it is not of: one model has two fingerprints, and its modules two names.
    """
    recorded = recording.model
    alike = name == recorded.name
    of_other = alike and not any(call.name in modules for call in recording.calls)
    given = f"{name} ({fingerprint[:12]})"
    way_out = "Load the model that the recording names."
    if of_other:
        given += ", as the other library computes it"
        way_out = f'It was recorded with the other library: wherefrom.load(..., library="{other}").'
    elif alike:
        way_out = "It has other weights or settings than when it was recorded: record the text again."
    return InputError(
        "the model of a knock-out",
        expected=f"the recorded one, {recorded.name} ({recorded.fingerprint[:12]})",
        given=given,
        way_out=way_out,
    )


def require_whole(recording: Recording) -> None:
    """Refuse a recording that lacks keys and values which the position reads on its way through the model."""
    model = recording.model
    own = [call for call in recording.calls if call.part == model.part]
    layers = {call.layer for call in own} | set(recording.gaps_of())
    if not layers.issuperset(range(model.layers)):
        given = f"{len(layers)} of {model.layers} layers"
    else:
        few = [call for call in own if len(call.head_numbers) < call.all_heads]
        if not few:
            return
        given = f"{len(few[0].head_numbers)} of {few[0].all_heads} heads in layer {few[0].layer}"
    raise InputError(
        "the recording",
        expected="every layer and head, since the position is run again through all of them",
        given=given,
        way_out="Record the text again with all layers and heads; of the positions, the one asked about is enough.",
    )


def row_of(call: Call, position: int, *, per_head: bool = False) -> NDArray[np.bool_]:
    """Return which sources a position may read, bool [S], in any head; or [H or 1, S] per head."""
    permitted = call.mask.permitted([position], range(call.sources))  # [H] 1 S
    rows = permitted.reshape(-1, permitted.shape[-1])
    return np.array(rows if per_head else rows.any(axis=0))


class Uncut:
    """The plan of one version, without a cut."""

    rows = 0

    def removed(self, layer: int, kind: str) -> None:
        """Return None: nothing is cut."""
        return

    def joining(self, layer: int) -> int:
        """Return 0: no other version joins."""
        return 0

    def cut(self, site: Site) -> RowCut | None:
        """Return None: nothing is cut."""
        return None


class _Cuts:
    """Rows that each lose some sources, bool [H or 1, R, S]: as cuts of a layer's other positions and its own edge."""

    def __init__(self, at: Any, removed: Tensor, kind: str) -> None:
        self._at, self._removed, self._kind = at, removed, kind
        self._made: dict[tuple[int, int] | None, tuple[Limits, Tensor]] = {}

    def of(self, site: Site, rows: slice) -> RowCut:
        """Return the cut for a call."""
        if self._kind == "cross":
            made = self._once(None, slice(None), self._removed[..., :0])
        else:
            others = self._at.others(site.layer)
            key = (others.start, others.stop) if isinstance(others, slice) else (-1, site.layer)
            made = self._once(key, others, self._removed[..., [self._at.position]])
        return RowCut(rows, *made)

    def _once(self, key: tuple[int, int] | None, others: Places, own: Tensor) -> tuple[Limits, Tensor]:
        if key not in self._made:
            limits = Limits.of_permitted(~self._removed[..., others], torch.empty(0))
            self._made[key] = limits, own.any(dim=-1)
        return self._made[key]


class EachCut:
    """One row for each cut, made in every layer and head of the scope; the rows join at the scope's first layer."""

    def __init__(self, at: Position, cuts: Sequence[tuple[int, ...]], scope: Scope) -> None:
        removed = torch.zeros(1, len(cuts), at.sources(scope.kind), dtype=torch.bool)  # 1 R S
        for row, sources in enumerate(cuts):
            removed[0, row, list(sources)] = True
        if scope.heads is not None:
            in_scope = torch.zeros(at.recording.model.heads, 1, 1, dtype=torch.bool)
            in_scope[list(scope.heads)] = True
            removed = removed & in_scope  # H R S
        self.rows, self._removed = len(cuts), removed
        self._count, self._scope = len(cuts), scope
        self._first = min(scope.layers) if scope.layers else 0
        self._cuts = _Cuts(at, removed, scope.kind)

    def removed(self, layer: int, kind: str) -> tuple[slice, Tensor] | None:
        """Return which rows of the batch lose which sources in a call, bool [H or 1, rows, S]."""
        if kind != self._scope.kind or not self._scope.has_layer(layer):
            return None
        return slice(1, 1 + self.rows), self._removed

    def joining(self, layer: int) -> int:
        """Return all rows at the scope's first layer."""
        return self._count if layer == self._first else 0

    def cut(self, site: Site) -> RowCut | None:
        """Return the cut of every row, in a layer of the scope."""
        if site.kind != self._scope.kind or not self._scope.has_layer(site.layer):
            return None
        return self._cuts.of(site, slice(1, 1 + self._count))


class EachHead:
    """One row for each source, layer and head; the rows of a layer join at that layer, ordered by source, then head."""

    def __init__(
        self, at: Position, sources: Sequence[int], layers: Sequence[int], heads: Sequence[int], kind: str
    ) -> None:
        self._layers, self._count, self._kind = set(layers), len(sources) * len(heads), kind
        self._joined, self._order = 1, tuple(layers)
        self.rows = self._count * len(self._order)
        removed = torch.zeros(at.recording.model.heads, self._count, at.sources(kind), dtype=torch.bool)
        for row, (source, head) in enumerate((s, h) for s in sources for h in heads):
            removed[head, row, source] = True
        self._removed = removed
        self._cuts = _Cuts(at, removed, kind)

    def removed(self, layer: int, kind: str) -> tuple[slice, Tensor] | None:
        """Return which rows of the batch lose which sources in a call, bool [H, rows, S]."""
        if kind != self._kind or layer not in self._layers:
            return None
        start = 1 + self._count * self._order.index(layer)
        return slice(start, start + self._count), self._removed

    def joining(self, layer: int) -> int:
        """Return the rows of this layer."""
        return self._count if layer in self._layers else 0

    def cut(self, site: Site) -> RowCut | None:
        """Return the cut of this layer's rows alone."""
        if site.kind != self._kind or site.layer not in self._layers:
            return None
        rows = slice(self._joined, self._joined + self._count)
        self._joined += self._count
        return self._cuts.of(site, rows)


def tensor(array: Array) -> Tensor:
    """Return a view of what was recorded, which is read-only; torch warns of that, and nothing here writes.

    What a file holds in half precision is copied into single.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
        return torch.from_numpy(array).float()  # the same where it is that already


class _CutAttention:
    """The attention of a batch whose rows are versions of one position, [R, H, 1, D], with a cut in some rows."""

    def __init__(self, at: Destination, plan: Joining) -> None:
        self._at, self._plan = at, plan

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Mask, scale: float, site: Site) -> Tensor:
        cut = self._plan.cut(site)
        if site.kind == "cross":
            keys, values = k, v  # 1 K S D, recorded
            y, _ = _in_parts(
                q.transpose(0, 2), cut, lambda rows, limits: attend(rows, keys, values, limits=limits, scale=scale)[:2]
            )
            return y.transpose(0, 2)  # R H 1 V
        group = q.shape[1] // k.shape[1]
        q, k, v = (x.transpose(0, 2) for x in (q, k, v))  # 1 H|K R D: the versions stand side by side as rows
        k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))  # 1 H R D, own key and value
        own = scale * (q * k).sum(dim=-1)  # 1 H R, the score of the position's own edge
        if cut is not None:
            own[:, :, cut.rows] = own[:, :, cut.rows].masked_fill(cut.own_cut, -torch.inf)
        if self._at.reads_others(site.layer):
            others = _in_parts(q, cut, lambda rows, limits: self._at.read_others(rows, site.layer, limits, scale))
            y, _ = merge(others, (v, own))  # 1 H R V
        else:
            y = v
        return y.transpose(0, 2)  # R H 1 V


def _in_parts(
    q: Tensor, cut: RowCut | None, read: Callable[[Tensor, Limits], tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Return outputs and lse of the rows of q [1, H, R, D]: those with a cut through its mask, others without."""
    if cut is None:
        return read(q, Limits())
    start, stop = cut.rows.start, cut.rows.stop
    parts = []
    before, behind = (slice(0, start), Limits()), (slice(stop, q.shape[2]), Limits())
    for rows, limits in (before, (cut.rows, cut.limits), behind):
        if rows.stop > rows.start:
            parts.append(read(q[:, :, rows], limits))
    outputs, sums = zip(*parts, strict=True)
    return torch.cat(outputs, dim=2), torch.cat(sums, dim=2)


def _key(call: Call) -> tuple[str, str]:
    return call.kind, call.part
