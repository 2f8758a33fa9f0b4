"""Heads knocked out together (floor 5): attention of versions of one text, each without some heads.

A set of heads is any pairs of layer and head. What is knocked out is one of three things:

"zero": the head's output y is 0 at every position.
"mean": y is, at every position, one vector: the head's mean over the positions of other texts.
"reads": every later destination is kept from reading a place in these heads; the weights that are left are
renormalised. Inside the place reading goes on, and the head reads all else as ever.

Each cut of "reads" is proven in every layer and version (`wherefrom.evidence.removal`): under the rerun's own
log-sum-exp the edges that are left have all the weight, so that those that were cut have weight 0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from wherefrom.evidence.removal import Cuts, Lost, Without
from wherefrom.evidence.running import Attend, Executed
from wherefrom.evidence.where import Where

Head: TypeAlias = tuple[int, int]
"""A layer and a head in it, both from 0."""
Knockout: TypeAlias = Literal["zero", "mean", "reads"]
WHAT: dict[Knockout, str] = {
    "zero": "their output is replaced by zero, at every position",
    "mean": "their output is replaced by its mean over the positions of the texts that they were found on",
    "reads": "no later position may read the place in them, and what is left of a row is renormalised",
}


def without_heads(
    versions: Sequence[Collection[Head]], how: Knockout, *, length: int, place: range, means: Mapping[Head, Tensor]
) -> Attend:
    """Return the attention of a batch of versions of one text, each without some heads.

    Args:
        versions: the heads that each text of the batch loses.
        how: what of them is knocked out.
        length: tokens of the text.
        place: neighbouring positions, which "reads" keeps later ones from.
        means: the vectors [V] of "mean".
    """
    if how == "reads":
        positions = torch.arange(length)
        later, within = positions >= place.stop, (positions >= place.start) & (positions < place.stop)
        lost = (Lost(later, within, Where(pairs=tuple(sorted(heads)))) for heads in versions)
        return Without(Cuts(tuple((one,) for one in lost)), set())
    return _Replaced(versions, means if how == "mean" else None)


@dataclass(frozen=True)
class _Replaced:
    """Attention in which the outputs of some heads are replaced; that of another kind than self-attention is as ever.

    Attributes:
        versions: the heads of each text of the batch.
        means: what stands in their place, [V] each; None: zero.
    """

    versions: Sequence[Collection[Head]]
    means: Mapping[Head, Tensor] | None

    def __call__(self, one: Executed) -> Tensor:
        """Return the outputs [B, H, T, V] of an execution."""
        output = one.attend().output
        if one.kind != "self":
            return output
        output = output.clone()
        for text, heads in enumerate(self.versions):
            for layer, head in heads:
                if layer == one.layer:
                    output[text, head] = 0.0 if self.means is None else self.means[layer, head].to(output)
        return output
