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
from wherefrom.capture.passes import facts_of
from wherefrom.checks import check_index, check_items, check_kind
from wherefrom.errors import InputError
from wherefrom.model.attention_function import Site, plain
from wherefrom.model.language import LanguageModel, require_model
from wherefrom.model.transformer import Reading, Transformer
from wherefrom.questions.scope import Scope
from wherefrom.recording import ModelFacts

EVERYWHERE = Scope()


@dataclass(frozen=True)
class Cut:
    """Edges removed before softmax: the destinations may not read the sources, in the layers and heads of the scope.

    Attributes:
        destinations: positions; any iterable is taken, and kept as a tuple; None: all.
        sources: positions, likewise; of the encoder's text where the scope is cross-attention.
        scope: the layers and heads, and the kind of attention; all layers and heads of self-attention unless given.

    Raises:
        InputError: a lone number instead of an iterable, or a scope that is none.
    """

    destinations: tuple[int, ...] | None
    sources: tuple[int, ...] | None
    scope: Scope = EVERYWHERE

    def __post_init__(self) -> None:
        for name in ("destinations", "sources"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _positions(f"the {name} of a cut", getattr(self, name)))
        check_kind("the scope of a cut", self.scope, Scope, way_out="Write wherefrom.Scope((3,)); all unless given.")

    def within(self, length: int, model: ModelFacts, source_length: int = 0) -> Cut:
        """Return the cut for a text of that many tokens, if it can be made.

        Args:
            length: tokens of the text.
            model: that reads it.
            source_length: tokens of the encoder's text, where there is one beside the decoder.

        Raises:
            InputError: a position, layer or head out of range, or a destination that would have nothing to read.
        """
        scope = self.scope.within(model)
        of_encoder = scope.part == "encoder" and model.encoder_layers > 0
        rows = source_length if of_encoder else length
        columns = source_length if of_encoder or scope.kind == "cross" else length
        destinations, sources = (
            tuple(check_index("position", position, size) for position in _all(own, size))
            for own, size in ((self.destinations, rows), (self.sources, columns))
        )
        own = scope.kind == "self"
        rule = Mask(own and (scope.part or model.part) == "decoder", model.window if own else None)
        for destination in destinations:
            read = rule.reach(destination, columns)
            if set(sources).issuperset(read):
                raise InputError(
                    "a cut",
                    expected=f"something left to read for destination {destination}, which reads {read.start} to "
                    f"{read.stop - 1}",
                    given="all of it cut",
                    way_out="Remove fewer sources, or leave that destination out.",
                    destination=destination,
                )
        return replace(self, destinations=destinations, sources=sources, scope=scope)


class CutAttention:
    """An `AttentionFunction` of plain lines that leaves out the edges of a cut, of a model whose own part is `part`."""

    def __init__(self, cut: Cut, part: str = "decoder") -> None:
        self.cut, self.part = cut, cut.scope.part or part

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Mask, scale: float, site: Site) -> Tensor:
        """Return y [B, H, T, V] with the cut made, if this layer is in its scope."""
        if (site.kind, site.part) != (self.cut.scope.kind, self.part) or not self.cut.scope.has_layer(site.layer):
            return plain(q, k, v, mask=mask, scale=scale, site=site)
        heads, destinations, sources = q.shape[1], q.shape[2], k.shape[2]
        permitted = torch.from_numpy(mask.dense(destinations, sources)).expand(heads, -1, -1).clone()  # H T S
        own_heads = self.cut.scope.heads if self.cut.scope.heads is not None else tuple(range(heads))
        for head in own_heads:
            for destination in _all(self.cut.destinations, destinations):
                permitted[head, destination, _all(self.cut.sources, sources)] = False
        explicit = Mask(causal=False, explicit=permitted.numpy())
        return plain(q, k, v, mask=explicit, scale=scale, site=site)


@torch.inference_mode()
def rerun(
    model: LanguageModel,
    ids: Sequence[int],
    cut: Cut,
    *,
    source_ids: Sequence[int] | None = None,
    hold_others: bool = False,
) -> Tensor:
    """Return the logits [T, N] of every position of a text, run afresh with a cut.

    Args:
        model: from `wherefrom.load`.
        ids: the text's token ids, such as `recording.tokens.ids`; those of the decoder where there is an encoder beside
            it.
        cut: what may not be read.
        source_ids: what such an encoder reads, such as `recording.source.ids`.
        hold_others: leave all positions but the cut's destinations as they are without the cut, layer by layer: the
            definition of a direct knock-out. Without it they read what the destinations have become: a total one. In a
            causal model the two differ only behind the destinations.

    Raises:
        InputError: an id that the model does not have, no token or more than its context, a position, layer or head of
            the cut out of range, a cut that leaves a destination nothing to read, or source ids where no encoder reads
            them.
    """
    transformer = require_model(model).transformer
    check_kind("the cut", cut, Cut, way_out="Write wherefrom.Cut(destinations=(13,), sources=(1,)).")
    checked = _checked_ids(model, ids)
    beside = model.config.kind == "encoder-decoder"
    if beside != (source_ids is not None):
        raise InputError(
            "the source ids",
            expected="those that the encoder reads" if beside else f"none, for a {model.config.kind}",
            given="none" if beside else "some",
            way_out="Give source_ids=recording.source.ids." if beside else "Leave them out.",
        )
    source = None if source_ids is None else _checked_ids(model, source_ids)
    cut = cut.within(len(checked), facts_of(model), 0 if source is None else len(source))
    if hold_others and cut.scope.part not in (None, facts_of(model).part):
        raise InputError(
            "hold_others",
            expected="False for a cut in the encoder, whose output every position of the decoder reads",
            given="True",
            way_out="Leave it out, or cut in the decoder.",
        )
    attention = CutAttention(cut, facts_of(model).part)
    memory = None if source is None else transformer.encode(torch.tensor([source]), attention=attention)
    given = torch.tensor([checked])
    if not hold_others:
        logits: Tensor = transformer(given, attention=attention, memory=memory)
        return logits[0]
    return transformer.logits(_held(transformer, given, memory, attention))[0]


def _held(transformer: Transformer, ids: Tensor, memory: Tensor | None, cut: CutAttention) -> Tensor:
    """Return the residual stream [1, T, M] of a pass in which only the cut's destinations are changed by it."""
    positions = torch.arange(ids.shape[1])
    causal = transformer.config.causal
    common = Reading(
        attention=plain,
        mask=Mask(causal=causal, window=transformer.config.window),
        rotation=transformer.rotation(positions),
        memory=memory,
    )
    changed = torch.zeros(ids.shape[1], 1, dtype=torch.bool)
    changed[_all(cut.cut.destinations, ids.shape[1])] = True  # T 1
    x = y = transformer.embed(ids, positions)  # 1 T M: without the cut, and with it
    for block in transformer.blocks:
        y = block(torch.where(changed, y, x), replace(common, attention=cut, memory_keys={}))
        x = block(x, replace(common, memory_keys={}))
    return torch.where(changed, y, x)


def _checked_ids(model: LanguageModel, ids: Any) -> list[int]:
    return [check_index("token id", number, model.config.vocabulary) for number in _positions("the token ids", ids)]


def _all(positions: tuple[int, ...] | None, size: int) -> list[int]:
    """Return the positions that are named; where none are, all."""
    return list(range(size) if positions is None else positions)


def _positions(what: str, value: Any) -> tuple[int, ...]:
    return check_items(what, value, expected="whole numbers in a row, such as (0, 1)", way_out="A single one is (3,).")
