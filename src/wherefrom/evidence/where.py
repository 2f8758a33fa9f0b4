"""In which heads edges are priced or cut (floor 5): some layers, some heads of each, or single heads of single layers.

Takes checks from below; gives a `Where` to the gates, prices, cuts and traces beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wherefrom.checks import as_index, check_chosen, check_index, check_items
from wherefrom.errors import InputError
from wherefrom.evidence.running import Executed, Runner
from wherefrom.recording.call import listed


@dataclass(frozen=True)
class Where:
    """Some heads of some layers; all of them unless something is given.

    Attributes:
        layers: numbers from 0, ascending; None: every layer that has attention.
        heads: of each of these layers, from 0; None: all.
        pairs: (layer, head), instead of layers and heads.
    """

    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    pairs: tuple[tuple[int, int], ...] | None = None

    @classmethod
    def of(cls, layers: Any, heads: Any, sizes: Mapping[int, int]) -> Where:
        """Return what is asked for, where there is such attention.

        Args:
            layers: numbers; None: all.
            heads: numbers of heads, of each of these layers, or pairs (layer, head) instead of layers; None: all.
            sizes: how many heads each layer has.

        Raises:
            InputError: no numbers, none at all, pairs beside layers, a layer or head that is not there: of layers that
                are named each must have the heads, of all of them one.
        """
        if not _are_pairs(heads):
            chosen = check_chosen("layer", layers, max(sizes, default=-1) + 1)
            _require_attention(chosen or (), sizes)
            most = max(sizes.values(), default=0) if chosen is None else min(sizes[layer] for layer in chosen)
            return cls(chosen, check_chosen("head", heads, most))
        if layers is not None:
            raise InputError(
                "the layers",
                expected="none beside pairs (layer, head)",
                given="some",
                way_out="Name the layer in each pair, or give layers=(3,), heads=(0, 1).",
            )
        pairs = {(check_index("layer", layer, max(sizes) + 1), head) for layer, head in map(_pair, heads)}
        _require_attention([layer for layer, _ in pairs], sizes)
        return cls(pairs=tuple(sorted((layer, check_index("head", head, sizes[layer])) for layer, head in pairs)))

    def require(self, sizes: Mapping[int, int]) -> None:
        """Refuse layers and heads that are not there; see `of`."""
        Where.of(self.layers, self.heads if self.pairs is None else self.pairs, sizes)

    @property
    def everywhere(self) -> bool:
        """Whether it is all heads of all layers."""
        return self == Where()

    def has_layer(self, layer: int) -> bool:
        """Whether some head of a layer counts."""
        if self.pairs is not None:
            return any(own == layer for own, _ in self.pairs)
        return self.layers is None or layer in self.layers

    def heads_of(self, layer: int) -> tuple[int, ...] | None:
        """Return the heads that count of a layer that does; None: all."""
        return self.heads if self.pairs is None else tuple(head for own, head in self.pairs if own == layer)

    def mask(self, layer: int, heads: int) -> Tensor:
        """Return which of so many heads of a layer count, bool [H]."""
        own = self.heads_of(layer)
        found = torch.full((heads,), own is None and self.has_layer(layer))
        if own is not None and self.has_layer(layer):
            found[[head for head in own if head < heads]] = True
        return found

    def parts(self) -> list[dict[str, tuple[int, ...] | None]]:
        """Return layers and heads whose products together are these heads: one part, or one a layer of pairs."""
        if self.pairs is None:
            return [{"layers": self.layers, "heads": self.heads}]
        return [{"layers": (own,), "heads": self.heads_of(own)} for own in sorted({layer for layer, _ in self.pairs})]

    def __str__(self) -> str:
        if self.everywhere:
            return "all layers and heads"
        if self.pairs is not None:
            return ", ".join(f"layer {layer} head {head}" for layer, head in self.pairs)
        layers = "all layers" if self.layers is None else _named("layer", self.layers)
        return layers if self.heads is None else f"{_named('head', self.heads)} of {layers}"


EVERYWHERE = Where()
PROBE = 4
"""Tokens of the pass that shows which heads there are."""


@torch.no_grad()
def sizes_of(runner: Runner) -> dict[int, int]:
    """Return how many heads each layer of a model has, by a pass over a few tokens."""
    sizes: dict[int, int] = {}

    def attention(one: Executed) -> Tensor:
        sizes[one.layer] = max(sizes.get(one.layer, 0), one.q.shape[1])
        return one.attend().output

    runner.logits(torch.zeros(1, PROBE, dtype=torch.long), (PROBE - 1,), attention=attention)
    return sizes


def _are_pairs(heads: Any) -> bool:
    """Whether some heads are given with their layers."""
    if heads is None:
        return False
    given = check_items("the heads to keep", heads, expected="whole numbers, or pairs (layer, head)", way_out=WAY_OUT)
    return any(as_index(one) is None for one in given)


WAY_OUT = "A head of each layer is heads=(3,), single ones are heads=[(12, 3), (20, 0)]."


def _pair(one: Any) -> tuple[Any, Any]:
    expected = "whole numbers, or pairs (layer, head)"
    pair = check_items("the heads to keep", one, expected=expected, way_out=WAY_OUT)
    if len(pair) != 2:
        raise InputError("the heads to keep", expected=expected, given=f"{one!r} among them", way_out=WAY_OUT)
    return pair[0], pair[1]


def _require_attention(layers: Sequence[int], sizes: Mapping[int, int]) -> None:
    missing = set(layers) - set(sizes)
    if missing:
        raise InputError(
            "the layers to keep",
            expected="layers with attention that is seen",
            given=str(min(missing)),
            way_out=f"They are {listed(sorted(sizes))}.",
        )


def _named(what: str, numbers: Sequence[int]) -> str:
    return f"{what}{'s' * (len(numbers) > 1)} {listed(numbers)}"
