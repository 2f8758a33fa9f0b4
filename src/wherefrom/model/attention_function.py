"""The attention function (floor 2): the one door through which a model's attention is computed, watched or cut.

Every forward pass of the transformer takes it as an argument. `fused` and its twin `plain` stand here; a recorder or a
cut is handed in from above. Shapes use the alphabet of `wherefrom.attention`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from wherefrom.attention import Mask

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


def permitted_tensor(mask: Mask, destinations: int, sources: int, device: torch.device) -> Tensor | None:
    """Return who may read whom as bool [T, S] ([H, T, S] or [B, 1, T, S]), or None where everything is permitted."""
    if mask.all_permitted or (destinations == 1 and mask.only_causal and mask.offset + 1 >= sources):
        return None  # an encoder, or the newest position, which may read all that came before it: no n x n, no mask
    dense: np.ndarray = mask.dense(destinations, sources)
    return None if dense.all() else torch.from_numpy(dense).to(device)
