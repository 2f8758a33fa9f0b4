"""The slow twin of every knock-out (floor 5): the whole text run again, with the cut in a dense mask.

It forms the n x n weights, and it is easy to believe. What `wherefrom.evidence.knockout` prints is tested against it,
and users can check a number that matters to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wherefrom.attention import Mask
from wherefrom.model.transformer import Site, Transformer, plain
from wherefrom.questions.scope import Scope

EVERYWHERE = Scope()


@dataclass(frozen=True)
class Cut:
    """Edges removed before softmax: the destinations may not read the sources, in the layers and heads of the scope."""

    destinations: tuple[int, ...]
    sources: tuple[int, ...]
    scope: Scope = EVERYWHERE


class CutAttention:
    """An `AttentionFunction` of plain lines that leaves out the edges of a cut."""

    def __init__(self, cut: Cut) -> None:
        self.cut = cut

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Mask, scale: float, site: Site) -> Tensor:
        """Return y [B, H, T, V] with the cut made, if this layer is in its scope."""
        if not self.cut.scope.has_layer(site.layer):
            return plain(q, k, v, mask=mask, scale=scale, site=site)
        heads, destinations, sources = q.shape[1], q.shape[2], k.shape[2]
        permitted = torch.from_numpy(mask.dense(destinations, sources)).expand(heads, -1, -1).clone()  # H T S
        own_heads = self.cut.scope.heads if self.cut.scope.heads is not None else tuple(range(heads))
        for head in own_heads:
            for destination in self.cut.destinations:
                permitted[head, destination, list(self.cut.sources)] = False
        explicit = Mask(causal=False, explicit=permitted.numpy())
        return plain(q, k, v, mask=explicit, scale=scale, site=site)


@torch.inference_mode()
def rerun(transformer: Transformer, ids: Sequence[int], cut: Cut) -> Tensor:
    """Return the logits [T, N] of every position of a text, run afresh with a cut."""
    logits: Tensor = transformer(torch.tensor([list(ids)]), attention=CutAttention(cut))
    return logits[0]
