"""What is recorded of a small model, beside its eager attention: weights built again from q, k, lse and the mask.

This is the same formula as on the page `wherefrom.attention`, in double precision, on what the watch was given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from wherefrom.capture.huggingface.interface import watched
from wherefrom.capture.huggingface.seen import Given, Seen
from wherefrom.recording import Gap

from .reference import Reference, eager, run


@dataclass(frozen=True)
class Recorded:
    """One watched pass: its executions in order, the floating-point tensors of the output, and what passed by."""

    calls: tuple[Seen, ...]
    output: tuple[Tensor, ...]
    gaps: tuple[Gap, ...]


def record(model: PreTrainedModel, inputs: dict[str, Any]) -> Recorded:
    """Return a watched pass of a model."""
    calls: list[Seen] = []

    def attention(given: Given) -> Tensor:
        attended = given.attend()
        calls.append(Seen.of(given, attended))
        return attended.output

    with watched(model, attention) as watch:
        output = run(model, inputs)
    return Recorded(tuple(calls), output, watch.gaps)


def weights(seen: Seen) -> tuple[Tensor, Tensor]:
    """Return the weights of an execution [B, H, T, S], float64, and which sources are permitted, bool of that shape."""
    texts, heads, rows, columns = len(seen.q), seen.q.shape[1], seen.q.shape[2], seen.k.shape[2]
    texts = max(texts, len(seen.k))
    maps = [np.broadcast_to(mask.dense(rows, columns), (heads, rows, columns)) for mask in seen.masks]
    permitted = torch.from_numpy(np.stack(maps)).expand(texts, heads, rows, columns)
    keys = seen.k.double().repeat_interleave(heads // seen.k.shape[1], dim=1)
    scores = seen.q.double() @ keys.transpose(-1, -2) * seen.scale
    if seen.softcap is not None:
        scores = seen.softcap * torch.tanh(scores / seen.softcap)
    if seen.bias is not None:
        scores = scores + seen.bias.double()
    lse = torch.where(seen.lse == -torch.inf, 0.0, seen.lse.double())
    return torch.where(permitted, torch.exp(scores - lse[..., None]), 0.0), permitted


def difference(recorded: Recorded, reference: Reference, padding: Tensor | None = None) -> float:
    """Return the largest difference of a weight between a recording and eager attention, call by call.

    Args:
        recorded: the recording.
        reference: the eager pass.
        padding: attention_mask [B, T]: rows of its pads are left out.

    Raises:
        AssertionError: other executions, or a row is marked as empty and is not, or the other way round.
    """
    found = {(seen.name, seen.turn): seen for seen in recorded.calls}
    assert len(found) == len(recorded.calls), "two executions have one name and turn"
    expected = {(call.name, call.turn) for call in reference.calls}
    past = {gap.name for gap in recorded.gaps}  # eager functions that a model calls whatever it is told
    missed = {place for place in expected - set(found) if place[0] not in past}
    assert set(found) <= expected, f"recorded what eager attention did not do: {sorted(set(found) - expected)[:3]}"
    assert not missed, f"not recorded, and not told: {sorted(missed)[:3]}"
    worst = 0.0
    for call in reference.calls:
        if (call.name, call.turn) not in found:
            continue
        seen = found[call.name, call.turn]
        rebuilt, permitted = weights(seen)
        empty = ~permitted.any(-1)  # B H T
        where = f"{call.name}, turn {call.turn}"
        assert torch.equal(empty, (seen.lse == -torch.inf).expand_as(empty)), f"{where}: rows wrongly marked as empty"
        assert rebuilt.shape == call.weights.shape, (
            f"{where}: {tuple(rebuilt.shape)} against {tuple(call.weights.shape)}"
        )
        counted = ~empty
        if padding is not None and padding.shape == (len(rebuilt), rebuilt.shape[2]):
            counted = counted & padding.bool()[:, None, :]
        if bool(counted.any()):
            apart = (rebuilt - call.weights.double()).abs().amax(-1)[counted]
            worst = max(worst, float(apart.max()) if bool(apart.isfinite().all()) else float("inf"))
    return worst


def apart(one: tuple[Tensor, ...], other: tuple[Tensor, ...], padding: Tensor | None = None) -> float:
    """Return how far two outputs lie apart, relative to the largest number of a tensor; rows of pads are left out."""
    assert [tuple(a.shape) for a in one] == [tuple(b.shape) for b in other], "outputs of other shapes"
    worst = 0.0
    for a, b in zip(one, other, strict=True):
        if (
            padding is not None
            and a.shape[0] == len(padding)
            and a.ndim > 1
            and a.shape[1] - padding.shape[1] in (0, 1)
        ):
            own = F.pad(padding, (0, a.shape[1] - padding.shape[1]), value=1).bool()  # of a token that the model adds
            a, b = a[own], b[own]
        if a.numel():
            size = b.double().masked_fill(~b.isfinite(), 0.0).abs().max().clamp_min(1e-3)
            far = float(torch.where(a == b, 0.0, a.double() - b.double()).abs().max() / size)  # -inf may be equal too
            worst = max(worst, far if far == far else float("inf"))
    return worst


__all__ = ["Recorded", "apart", "difference", "eager", "record", "weights"]
