"""Direct knock-outs (floor 5): what a target loses when the last position may not read a source, for every source.

Cutting only what the last position reads leaves every earlier position as recorded (design: a cut is exact and
cheap), so a knock-out costs one token, not one prompt: the last position is run again, once for each cut, all of them
side by side in one batch that reads the recorded keys and values. A head's cut leaves the layers below it alone, so
its row joins the batch at its layer. `wherefrom.evidence.rerun` is the slow twin that runs the whole text with the
cut in a dense mask.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wherefrom.attention import Mask
from wherefrom.capture.fused import Limits, attend, merge
from wherefrom.capture.native import facts_of
from wherefrom.checks import check_index, check_items, check_kind
from wherefrom.errors import InputError, RecordingError
from wherefrom.evidence.target import Target
from wherefrom.model.language import LanguageModel, require_model
from wherefrom.model.transformer import Site
from wherefrom.questions.scope import Scope
from wherefrom.recording import Array, Recording, check_recording

Progress: TypeAlias = Callable[[int, int], None]
"""Called with (rows done, rows in all) after each batch."""

ROWS_AT_ONCE = 512
EXACTNESS = "exact: measured by running the position again without the edge, within float32 rounding (about 1e-5 nats)"


@dataclass(frozen=True, eq=False)
class Knockouts:
    """Measured knock-outs of the last position of a recording.

    Attributes:
        destination: the position that reads.
        target: whose log-probability (or lead) is measured.
        before: the target in nats, nothing cut.
        cuts: the sources removed together in each knock-out.
        nats: float64 [len(cuts)], the target before minus after: positive when the source spoke for it.
        scope: the layers and heads in which the edges were cut.
        rows: how many versions of the position were run.
        seconds: wall clock.
        exactness: how exact the numbers are.
    """

    destination: int
    target: Target
    before: float
    cuts: tuple[tuple[int, ...], ...]
    nats: NDArray[np.float64]
    scope: Scope
    rows: int
    seconds: float
    exactness: str = EXACTNESS

    def __repr__(self) -> str:
        largest = self.nats[np.abs(self.nats).argmax()]
        cuts = f"{len(self.cuts)} cuts, the largest {largest:+.2f} nats"
        return f"Knockouts({self.target}, position {self.destination}, {cuts})"


@dataclass(frozen=True, eq=False)
class HeadKnockouts:
    """Measured knock-outs of single edges: one source in one head of one layer at a time.

    Attributes:
        sources: the sources looked at.
        layers: the layers looked at; heads: the heads of each.
        heads: see layers.
        nats: float64 [sources, layers, heads], the target before minus after.
        rows: how many versions of the position were run.
        seconds: wall clock.
        exactness: how exact the numbers are.
    """

    sources: tuple[int, ...]
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    nats: NDArray[np.float64]
    rows: int
    seconds: float
    exactness: str = EXACTNESS

    def __repr__(self) -> str:
        size = " x ".join(map(str, self.nats.shape))
        return f"HeadKnockouts({size} sources, layers, heads; within ±{np.abs(self.nats).max(initial=0.0):.2f} nats)"


@dataclass(frozen=True)
class _RowCut:
    """Which rows of the batch lose which edges in one layer: those to earlier sources as limits, the own edge apart."""

    rows: slice
    limits: Limits  # bias 1 H|1 R n-1
    own_cut: Tensor  # bool H|1 R, True where the position may not read itself


class _Plan(Protocol):
    """The versions of the position that one batch runs; row 0 of the batch is the version without a cut."""

    def joining(self, layer: int) -> int:
        """How many copies of row 0 join the batch before this layer."""

    def cut(self, layer: int) -> _RowCut | None:
        """What is cut in this layer."""


class LastPosition:
    """The last position of a recording, ready to be run again in many versions side by side.

    Raises:
        InputError: what is given is no model or no recording, the recording has one token, or another model made it.
    """

    def __init__(self, model: LanguageModel, recording: Recording) -> None:
        require_model(model)
        recording = check_recording(recording)
        if len(recording) < 2:
            raise InputError(
                "the prompt",
                expected="at least two tokens",
                given="one",
                way_out="The first position reads only itself, so there is nothing to cut: give a longer prompt.",
            )
        if facts_of(model) != recording.model:
            raise InputError(
                "the model of a knock-out",
                expected=f"the recorded one, {recording.model.name} ({recording.model.fingerprint[:12]})",
                given=f"{model.name} ({model.fingerprint[:12]})",
                way_out="Load the model that the recording names.",
            )
        for call in recording.calls:
            if not call.mask.only_causal:
                raise InputError(
                    f"the mask of layer {call.layer}",
                    expected="the causal one, which lets the last position read every earlier source",
                    given=call.mask.describe(),
                    way_out="Use `wherefrom.rerun`, which cuts under any mask.",
                    layer=call.layer,
                )
        self.model, self.recording = model, recording
        self.position = len(recording) - 1
        earlier = slice(None, self.position)
        self._keys = [_tensor(call.k[:, earlier])[None] for call in recording.calls]  # 1 K n-1 D
        self._values = [_tensor(call.v[:, earlier])[None] for call in recording.calls]
        self._rotation = model.transformer.rotary(torch.tensor([self.position]))

    @torch.inference_mode()
    def run(self, plan: _Plan) -> Tensor:
        """Return the residual streams [R, M] after the last block; row 0 is the version without a cut."""
        transformer = self.model.transformer
        x = transformer.embed(torch.tensor([[self.recording.tokens.ids[-1]]]))  # 1 1 M
        for layer, block in enumerate(transformer.blocks):
            joining = plan.joining(layer)
            if joining:
                x = torch.cat((x, x[:1].expand(joining, -1, -1)))  # R 1 M
            x = block(x, self._rotation, _CutAttention(self, plan.cut(layer)))
        return x[:, 0]

    def logits(self) -> Tensor:
        """Return the next-token logits [N] of the position, nothing cut."""
        with torch.inference_mode():
            return self.model.transformer.logits(self.run(_Uncut()))[0]

    def read_earlier(self, q: Tensor, layer: int, limits: Limits, scale: float) -> tuple[Tensor, Tensor]:
        """Return outputs and lse of queries [1, H, R, D] over the recorded keys before the position."""
        past = attend(q, self._keys[layer], self._values[layer], limits=limits, scale=scale)
        return past.output, past.lse


class _Uncut:
    def joining(self, layer: int) -> int:
        return 0

    def cut(self, layer: int) -> _RowCut | None:
        return None


class _EachCut:
    """One row for each cut, made in every layer and head of the scope; the rows join at the scope's first layer."""

    def __init__(self, last: LastPosition, cuts: Sequence[tuple[int, ...]], scope: Scope) -> None:
        heads = last.recording.model.heads
        permitted = torch.ones(1, len(cuts), last.position + 1, dtype=torch.bool)  # 1 R n
        for row, removed in enumerate(cuts):
            permitted[0, row, list(removed)] = False
        if scope.heads is not None:
            elsewhere = torch.ones(heads, 1, 1, dtype=torch.bool)
            elsewhere[list(scope.heads)] = False
            permitted = permitted | elsewhere  # H R n
        self._count, self._scope = len(cuts), scope
        self._first = min(scope.layers) if scope.layers else 0
        self._cut = _row_cut(permitted, slice(1, 1 + len(cuts)))

    def joining(self, layer: int) -> int:
        return self._count if layer == self._first else 0

    def cut(self, layer: int) -> _RowCut | None:
        return self._cut if self._scope.has_layer(layer) else None


class _EachHead:
    """One row for each source, layer and head; the rows of a layer join at that layer, ordered by source, then head."""

    def __init__(self, last: LastPosition, sources: Sequence[int], layers: Sequence[int], heads: Sequence[int]) -> None:
        self._layers, self._count = set(layers), len(sources) * len(heads)
        self._joined = 1
        permitted = torch.ones(last.recording.model.heads, self._count, last.position + 1, dtype=torch.bool)
        for row, (source, head) in enumerate((s, h) for s in sources for h in heads):
            permitted[head, row, source] = False
        self._cut = _row_cut(permitted, slice(0, 0))

    def joining(self, layer: int) -> int:
        return self._count if layer in self._layers else 0

    def cut(self, layer: int) -> _RowCut | None:
        if layer not in self._layers:
            return None
        rows = slice(self._joined, self._joined + self._count)
        self._joined += self._count
        return _RowCut(rows, self._cut.limits, self._cut.own_cut)


def _tensor(array: Array) -> Tensor:
    """Return a view of what was recorded, which is read-only; torch warns of that, and nothing here writes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
        return torch.from_numpy(array)


def _row_cut(permitted: Tensor, rows: slice) -> _RowCut:
    """Return the cut of bool [H or 1, R, n], the last column being the position's own edge."""
    like = torch.empty(0)
    return _RowCut(rows, Limits.of_permitted(permitted[..., :-1], like), ~permitted[..., -1])


class _CutAttention:
    """The attention of a batch whose rows are versions of the last position, [R, H, 1, D], with a cut in some rows."""

    def __init__(self, last: LastPosition, cut: _RowCut | None) -> None:
        self._last, self._cut = last, cut

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Mask, scale: float, site: Site) -> Tensor:
        group = q.shape[1] // k.shape[1]
        q, k, v = (x.transpose(0, 2) for x in (q, k, v))  # 1 H|K R D: the versions stand side by side as rows
        k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))  # 1 H R D, own key and value
        own = scale * (q * k).sum(dim=-1)  # 1 H R, the score of the position's own edge
        if self._cut is not None:
            own[:, :, self._cut.rows] = own[:, :, self._cut.rows].masked_fill(self._cut.own_cut, -torch.inf)
        y, _ = merge(self._earlier(q, scale, site.layer), (v, own))  # 1 H R V
        return y.transpose(0, 2)  # R H 1 V

    def _earlier(self, q: Tensor, scale: float, layer: int) -> tuple[Tensor, Tensor]:
        """Return what the rows read before the position: rows with a cut through its mask, the others without one."""
        if self._cut is None:
            return self._last.read_earlier(q, layer, Limits(), scale)
        start, stop = self._cut.rows.start, self._cut.rows.stop
        parts = []
        before, behind = (slice(0, start), Limits()), (slice(stop, q.shape[2]), Limits())
        for rows, limits in (before, (self._cut.rows, self._cut.limits), behind):
            if rows.stop > rows.start:
                parts.append(self._last.read_earlier(q[:, :, rows], layer, limits, scale))
        outputs, sums = zip(*parts, strict=True)
        return torch.cat(outputs, dim=2), torch.cat(sums, dim=2)


def knock_out(
    last: LastPosition,
    target: Target,
    cuts: Sequence[Sequence[int]] | None = None,
    *,
    scope: Scope | None = None,
    progress: Progress | None = None,
) -> Knockouts:
    """Return the measured knock-out of each cut of the last position.

    Args:
        last: of the recording.
        target: whose log-probability, or lead, is measured.
        cuts: the sources to remove together, one group a knock-out; every source by itself unless given.
        scope: the layers and heads in which they are removed; all unless given.
        progress: told after each batch.

    Raises:
        InputError: no target, or one that the model has no token for; a source out of range, sources that are not in
            groups, an empty group, or a group that leaves nothing to read.
    """
    start = time.perf_counter()
    scope = _checked(last, target, scope)
    groups = _groups(last.position + 1, cuts)
    batches = np.array_split(np.arange(len(groups)), -(-len(groups) // ROWS_AT_ONCE))
    values, before = [], 0.0
    for batch in batches:
        x = last.run(_EachCut(last, [groups[index] for index in batch], scope))  # 1+R M
        value = _values(last, target, x)
        before = float(value[0])
        values.append(before - value[1:])
        if progress is not None:
            progress(int(batch[-1]) + 1, len(groups))
    rows = len(groups) + len(batches)
    nats = np.concatenate(values)
    return Knockouts(last.position, target, before, tuple(groups), nats, scope, rows, time.perf_counter() - start)


def knock_out_heads(
    last: LastPosition,
    target: Target,
    sources: Sequence[int],
    *,
    scope: Scope | None = None,
    progress: Progress | None = None,
) -> HeadKnockouts:
    """Return the measured knock-out of each of some sources in each single head of the scope.

    Args:
        last: of the recording.
        target: whose log-probability, or lead, is measured.
        sources: positions.
        scope: the layers and heads looked at; all unless given.
        progress: told after each source.

    Raises:
        InputError: no target, or one that the model has no token for; a source, layer or head out of range.
    """
    start = time.perf_counter()
    scope = _checked(last, target, scope)
    model = last.recording.model
    layers = scope.layers if scope.layers is not None else tuple(range(model.layers))
    heads = scope.heads if scope.heads is not None else tuple(range(model.heads))
    given = check_items("the sources", sources, expected="positions, such as (0, 1)", way_out="A single one is (3,).")
    checked = tuple(check_index("position", source, last.position + 1) for source in given)
    at_once = max(1, 3 * ROWS_AT_ONCE // (len(layers) * len(heads)))
    parts = []
    for first in range(0, len(checked), at_once):
        some = checked[first : first + at_once]
        value = _values(last, target, last.run(_EachHead(last, some, layers, heads)))
        parts.append((value[0] - value[1:]).reshape(len(layers), len(some), len(heads)).swapaxes(0, 1))
        if progress is not None:
            progress(first + len(some), len(checked))
    nats = np.concatenate(parts) if parts else np.zeros((0, len(layers), len(heads)))
    rows = nats.size + len(parts)
    return HeadKnockouts(checked, layers, heads, nats, rows, time.perf_counter() - start)


def _checked(last: Any, target: Any, scope: Any) -> Scope:
    """Return the scope, if what is asked for can be measured."""
    check_kind("the last position", last, LastPosition, way_out="Make it: wherefrom.LastPosition(model, recording).")
    found = check_kind("the target", target, Target, way_out="Give a token id as one: wherefrom.Target(id).")
    found.require_in(last.model.config.vocabulary)
    asked = Scope() if scope is None else check_kind("the scope", scope, Scope, way_out="Write wherefrom.Scope((3,)).")
    return asked.checked(last.recording)


def _values(last: LastPosition, target: Target, x: Tensor) -> NDArray[np.float64]:
    with torch.inference_mode():
        values: NDArray[np.float64] = target.value(last.model.transformer, x).numpy()
    if not np.isfinite(values).all():
        raise RecordingError(
            "a knock-out",
            expected="a finite log-probability",
            given="NaN or an infinity",
            way_out="The model's numbers overflow on this text; nothing was measured.",
        )
    return values


def _groups(size: int, cuts: Sequence[Sequence[int]] | None) -> list[tuple[int, ...]]:
    if cuts is None:
        return [(source,) for source in range(size)]
    how = {"expected": "groups of sources", "way_out": "Each cut is a group: [(0,), (1,)] cuts two sources one by one."}
    given = [check_items("the cuts", group, **how) for group in check_items("the cuts", cuts, **how)]
    groups = [tuple(sorted({check_index("position", source, size) for source in group})) for group in given]
    for group in groups:
        if not 0 < len(group) < size:
            raise InputError(
                "a cut",
                expected=f"at least one source and at most {size - 1}, so that something is left to read",
                given=f"{len(group)} of {size}",
                way_out="Remove fewer sources at a time.",
            )
    if not groups:
        raise InputError(
            "the cuts", expected="at least one", given="none", way_out="Leave them out to cut every source."
        )
    return groups
