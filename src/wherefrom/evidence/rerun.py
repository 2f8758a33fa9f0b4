"""The slow twin of every knock-out (floor 5): the whole text run again, with the cut in a dense mask.

It forms the n x n weights, and it is easy to believe. What `wherefrom.evidence.knockout` prints is tested against it,
and users can check a number that matters to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from wherefrom.attention import Mask
from wherefrom.capture.native import facts_of
from wherefrom.checks import check_index, check_items, check_kind
from wherefrom.errors import InputError
from wherefrom.model.language import LanguageModel, require_model
from wherefrom.model.transformer import Site, plain
from wherefrom.questions.scope import Scope
from wherefrom.recording import ModelFacts

EVERYWHERE = Scope()


@dataclass(frozen=True)
class Cut:
    """Edges removed before softmax: the destinations may not read the sources, in the layers and heads of the scope.

    Attributes:
        destinations: positions; any iterable is taken, and kept as a tuple.
        sources: positions, likewise.
        scope: the layers and heads; all unless given.

    Raises:
        InputError: a lone number instead of an iterable, or a scope that is none.
    """

    destinations: tuple[int, ...]
    sources: tuple[int, ...]
    scope: Scope = EVERYWHERE

    def __post_init__(self) -> None:
        for name in ("destinations", "sources"):
            object.__setattr__(self, name, _positions(f"the {name} of a cut", getattr(self, name)))
        check_kind("the scope of a cut", self.scope, Scope, way_out="Write wherefrom.Scope((3,)); all unless given.")

    def within(self, length: int, model: ModelFacts) -> Cut:
        """Return the cut for a text of that many tokens, if it can be made.

        Raises:
            InputError: a position, layer or head out of range, or a destination that would have nothing to read.
        """
        destinations = tuple(check_index("position", position, length) for position in self.destinations)
        sources = tuple(check_index("position", position, length) for position in self.sources)
        for destination in destinations:
            if set(sources).issuperset(range(destination + 1)):
                raise InputError(
                    "a cut",
                    expected=f"something left to read for destination {destination}, which reads 0 to {destination}",
                    given="all of it cut",
                    way_out="Remove fewer sources, or leave that destination out.",
                    destination=destination,
                )
        return replace(self, destinations=destinations, sources=sources, scope=self.scope.within(model))


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
def rerun(model: LanguageModel, ids: Sequence[int], cut: Cut) -> Tensor:
    """Return the logits [T, N] of every position of a text, run afresh with a cut.

    Args:
        model: from `wherefrom.load`.
        ids: the text's token ids, such as `recording.tokens.ids`.
        cut: what may not be read.

    Raises:
        InputError: an id that the model does not have, no token or more than its context, a position, layer or head of
            the cut out of range, or a cut that leaves a destination nothing to read.
    """
    require_model(model)
    check_kind("the cut", cut, Cut, way_out="Write wherefrom.Cut(destinations=(13,), sources=(1,)).")
    checked = [check_index("token id", number, model.config.vocabulary) for number in _positions("the token ids", ids)]
    attention = CutAttention(cut.within(len(checked), facts_of(model)))
    logits: Tensor = model.transformer(torch.tensor([checked]), attention=attention)
    return logits[0]


def _positions(what: str, value: Any) -> tuple[int, ...]:
    return check_items(what, value, expected="whole numbers in a row, such as (0, 1)", way_out="A single one is (3,).")
