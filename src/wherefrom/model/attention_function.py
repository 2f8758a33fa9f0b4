"""The attention function (floor 2): the one door through which a model's attention is computed, watched or cut.

Every forward pass of the transformer takes it as an argument. `fused` and its twin `plain` stand here; a recorder or a
cut is handed in from above. Shapes use the alphabet of `wherefrom.attention`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from wherefrom.attention import Mask

STRIP = 256
"""Rows of a windowed map that are computed together, at least."""
CallKind: TypeAlias = Literal["self", "cross"]
Part: TypeAlias = Literal["decoder", "encoder"]


@dataclass(frozen=True)
class Site:
    """Where in the model a call of attention happens.

    Attributes:
        layer: its layer within its part, from 0.
        name: its module's name.
        kind: "self", or "cross" where the decoder reads the encoder's output.
        part: "decoder", or "encoder" for bidirectional attention over a whole text.
    """

    layer: int
    name: str
    kind: CallKind = "self"
    part: Part = "decoder"


class AttentionFunction(Protocol):
    """What the model asks for at every call of attention, in the order of computation.

    Given q [B, H, T, D], k [B, K, S, D] and v [B, K, S, D] with positions already rotated in, the rule of who
    may read whom, and the scale of the scores, it returns the outputs y [B, H, T, D]. It must not change its inputs.
    """

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Mask, scale: float, site: Site) -> Tensor:
        """Return y [B, H, T, D]."""


def fused(q: Tensor, k: Tensor, v: Tensor, *, mask: Mask, scale: float, site: Site) -> Tensor:
    """Scaled dot-product attention by torch's fused kernel: the n x n weights are never formed."""
    outputs = [
        _fused(q[:, :, rows], k[:, :, columns], v[:, :, columns], rule, scale)
        for rows, columns, rule in strips(mask, q.shape[2], k.shape[2])
    ]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)


def _fused(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float) -> Tensor:
    destinations, sources = q.shape[2], k.shape[2]
    grouped = q.shape[1] != k.shape[1]
    if mask.only_causal and mask.offset == 0 and destinations == sources:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped)
    permitted = permitted_tensor(mask, destinations, sources, q.device)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=permitted, scale=scale, enable_gqa=grouped)


def plain(q: Tensor, k: Tensor, v: Tensor, *, mask: Mask, scale: float, site: Site) -> Tensor:
    """The same in plain lines, with the weights in full: what `fused` is tested against."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)  # B H S D
    scores = scale * (q @ k.transpose(-1, -2))  # B H T S
    permitted = permitted_tensor(mask, q.shape[2], k.shape[2], q.device)
    if permitted is None:
        return torch.softmax(scores, dim=-1) @ v  # B H T D
    weights = torch.softmax(scores.masked_fill(~permitted, -torch.inf), dim=-1)
    # A row with nothing to read, such as padding whose window holds nothing else, would be NaN: like the kernel, 0.
    return weights.masked_fill(~permitted, 0.0) @ v  # B H T D


def strips(mask: Mask, destinations: int, sources: int) -> Iterator[tuple[slice, slice, Mask]]:
    """Yield (rows, columns, their rule): pieces of the map that hold all pairs that a window permits, else the whole.

    A kernel takes a window as a mask array; in strips of rows that array, and the work, grow with the window and not
    with the length.
    """
    mask = mask.within(sources)
    size = max(mask.window or 0, STRIP)
    if mask.window is None or mask.explicit is not None or sources <= 2 * size:
        yield slice(0, destinations), slice(0, sources), mask
        return
    for start in range(0, destinations, size):
        rows = slice(start, min(start + size, destinations))
        columns = slice(mask.reach(start, sources).start, mask.reach(rows.stop - 1, sources).stop)
        yield rows, columns, mask.piece(rows, columns)


def permitted_tensor(mask: Mask, destinations: int, sources: int, device: torch.device) -> Tensor | None:
    """Return who may read whom as bool [T, S] ([H, T, S] or [B, 1, T, S]), or None where everything is permitted."""
    if mask.all_permitted or (destinations == 1 and mask.only_causal and mask.offset + 1 >= sources):
        return None  # an encoder, or the newest position, which may read all that came before it: no n x n, no mask
    dense: np.ndarray = mask.dense(destinations, sources)
    return None if dense.all() else torch.from_numpy(dense).to(device)
