"""Direct knock-outs (floor 5): what a target loses when a position may not read a source, for every source.

All others stay as they were recorded, so a knock-out costs one token, not one prompt: `wherefrom.evidence.versions`
runs the position again, once for each cut, side by side. `wherefrom.evidence.rerun` is the slow twin that runs the
whole text with the cut in a dense mask.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wherefrom.checks import check_index, check_items, check_kind, whole
from wherefrom.errors import InputError, RecordingError
from wherefrom.evidence.target import Target
from wherefrom.evidence.versions import ALONE, Destination, EachCut, EachHead, Position, Way
from wherefrom.questions.scope import Scope
from wherefrom.recording import Recording
from wherefrom.recording.call import counted

Progress: TypeAlias = Callable[[int, int], None]
"""Called with (rows done, rows in all) after each batch."""

ROWS_AT_ONCE = 512
EXACTNESS = "exact: measured by running the position again without the edge, within float32 rounding (about 1e-5 nats)"
EXACTNESS_OF_RERUNS = (
    "exact: measured by running the whole input again without the edge, within float32 rounding (about 1e-5 nats)"
)


@dataclass(frozen=True, eq=False)
class Knockouts:
    """Measured knock-outs of a position of a recording.

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
        way: "recorded keys" or "full reruns", which way the model permitted; None where there is one way only.
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
    way: Way | None = None

    def __repr__(self) -> str:
        largest = self.nats[np.abs(self.nats).argmax()]
        cuts = f"{len(self.cuts)} cut{'s' * (len(self.cuts) != 1)}, the largest {largest:+.2f} nats"
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


def knock_out(
    at: Position,
    target: Target,
    cuts: Sequence[Sequence[int]] | None = None,
    *,
    scope: Scope | None = None,
    rows_at_once: int | None = None,
    progress: Progress | None = None,
) -> Knockouts:
    """Return the measured knock-out of each cut of a position.

    Args:
        at: the position that reads: `wherefrom.Destination(model, recording)`.
        target: whose log-probability, or lead, is measured.
        cuts: the sources to remove together, one group a knock-out; every source that the position may read, by
            itself, unless given.
        scope: the layers and heads in which they are removed, and whether in self- or in cross-attention; all of
            self-attention unless given.
        rows_at_once: versions of the position that are run side by side, 512 unless given: of fewer one is told sooner,
            and they take longer.
        progress: told after each batch.

    Raises:
        InputError: no target, or one that the model has no token for; a source out of range, sources that are not in
            groups, an empty group, or a group that leaves nothing to read; no rows at once.
    """
    start = time.perf_counter()
    scope = _checked(at, target, scope)
    groups = _groups(at, scope.kind, cuts)
    rows_at_once = ROWS_AT_ONCE if rows_at_once is None else rows_at_once
    rows_at_once = whole("rows_at_once", rows_at_once, least=1, way_out=f"{ROWS_AT_ONCE} are quick.")
    batches = np.array_split(np.arange(len(groups)), -(-len(groups) // rows_at_once))
    values, before = [], 0.0
    for batch in batches:
        value = _values(at, target, EachCut(at, [groups[index] for index in batch], scope))
        before = float(value[0])
        values.append(before - value[1:])
        if progress is not None:
            progress(int(batch[-1]) + 1, len(groups))
    rows, nats = len(groups) + len(batches), np.concatenate(values)
    return Knockouts(
        at.position,
        target,
        before,
        tuple(groups),
        nats,
        scope,
        rows,
        time.perf_counter() - start,
        exactness_of(at),
        at.way if at.chosen else None,
    )


def knock_out_heads(
    at: Position,
    target: Target,
    sources: Sequence[int],
    *,
    scope: Scope | None = None,
    progress: Progress | None = None,
) -> HeadKnockouts:
    """Return the measured knock-out of each of some sources in each single head of the scope.

    Args:
        at: the position that reads: `wherefrom.Destination(model, recording)`.
        target: whose log-probability, or lead, is measured.
        sources: positions.
        scope: the layers and heads looked at; all unless given.
        progress: told after each source.

    Raises:
        InputError: no target, or one that the model has no token for; a source, layer or head out of range.
    """
    start = time.perf_counter()
    scope = _checked(at, target, scope)
    model = at.recording.model
    held = tuple(dict.fromkeys(call.layer for call in at.recording.calls_of(scope.kind)))
    layers = scope.layers if scope.layers is not None else held
    heads = scope.heads if scope.heads is not None else tuple(range(model.heads))
    given = check_items("the sources", sources, expected="positions, such as (0, 1)", way_out="A single one is (3,).")
    checked = tuple(check_index("position", source, at.sources(scope.kind)) for source in given)
    at_once = max(1, 3 * ROWS_AT_ONCE // (len(layers) * len(heads)))
    parts = []
    for first in range(0, len(checked), at_once):
        some = checked[first : first + at_once]
        value = _values(at, target, EachHead(at, some, layers, heads, scope.kind))
        parts.append((value[0] - value[1:]).reshape(len(layers), len(some), len(heads)).swapaxes(0, 1))
        if progress is not None:
            progress(first + len(some), len(checked))
    nats = np.concatenate(parts) if parts else np.zeros((0, len(layers), len(heads)))
    rows = nats.size + len(parts)
    return HeadKnockouts(checked, layers, heads, nats, rows, time.perf_counter() - start, exactness_of(at))


def exactness_of(at: Position) -> str:
    """Return how exact knock-outs of a position are, in a sentence."""
    unseen = sum(gap.calls > 0 for gap in at.recording.gaps)
    beside = f"; {counted(unseen, 'module')} with attention that is not recorded read on" if unseen else ""
    if at.rounded is not None:
        return (
            "measured by running the position again without the edge, over keys and values rounded to "
            f"{at.rounded}{beside}"
        )
    how = EXACTNESS if at.way == ALONE else EXACTNESS_OF_RERUNS
    if at.format not in ("float32", "float64"):
        how = how.split(", within")[0].removeprefix("exact: ") + f", in the model's own {at.format}, and no more exact"
    return how + beside


def _checked(at: Any, target: Any, scope: Any) -> Scope:
    """Return the scope, if what is asked for can be measured."""
    way_out = "Make it: wherefrom.Destination(model, recording)."
    if not isinstance(at, Position):
        check_kind("the destination", at, Destination, way_out=way_out)
    found = check_kind("the target", target, Target, way_out="Give a token id as one: wherefrom.Target(id).")
    found.require_in(at.vocabulary)
    asked = Scope() if scope is None else check_kind("the scope", scope, Scope, way_out="Write wherefrom.Scope((3,)).")
    require_predicting(at.recording, asked)
    return asked.checked(at.recording)


def require_predicting(recording: Recording, scope: Scope) -> None:
    """Refuse the attention of another part than the one that predicts.

    Raises:
        InputError: the scope is of another part.
    """
    if scope.part not in (None, recording.model.part):
        raise InputError(
            "the scope",
            expected=f"the part that predicts, the {recording.model.part}",
            given=f"the {scope.part}",
            way_out="What the encoder reads changes all that the decoder reads of it: `wherefrom.rerun` cuts there.",
            part=scope.part,
        )


def _values(at: Position, target: Target, plan: EachCut | EachHead) -> NDArray[np.float64]:
    values = at.values(target, plan)
    if not np.isfinite(values).all():
        raise RecordingError(
            "a knock-out",
            expected="a finite log-probability",
            given="NaN or an infinity",
            way_out="The model's numbers overflow on this text; nothing was measured.",
        )
    return values


def _groups(at: Position, kind: str, cuts: Sequence[Sequence[int]] | None) -> list[tuple[int, ...]]:
    readable = at.readable(kind)
    size = at.position + 1 if kind == "self" and at.causal else at.sources(kind)
    if len(readable) < 2:
        only = f"position {min(readable)}" + (" of the source" if kind == "cross" else "")
        raise InputError(
            "a knock-out",
            expected="a position that reads at least two sources, so that one can be cut",
            given=f"position {at.position}, which reads only {only}",
            way_out="Ask about a later position, or give a longer text.",
            position=at.position,
        )
    if cuts is None:
        groups: list[tuple[int, ...]] = [(source,) for source in sorted(readable)]
    else:
        how = {
            "expected": "groups of sources",
            "way_out": "Each cut is a group: [(0,), (1,)] cuts two sources one by one.",
        }
        given = [check_items("the cuts", group, **how) for group in check_items("the cuts", cuts, **how)]
        groups = [tuple(sorted({check_index("position", source, size) for source in group})) for group in given]
    for group in groups:
        if not group or readable.issubset(group):
            raise InputError(
                "a cut",
                expected=f"at least one source and at most {len(readable) - 1}, so that something is left to read",
                given=f"{len(group)} of {len(readable)}",
                way_out="Remove fewer sources at a time.",
            )
    if not groups:
        raise InputError(
            "the cuts", expected="at least one", given="none", way_out="Leave them out to cut every source."
        )
    return groups
