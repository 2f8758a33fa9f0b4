"""Which layers and heads a question is about (floor 4)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from wherefrom.checks import as_index, check_index, check_items
from wherefrom.errors import InputError
from wherefrom.recording import Call, ModelFacts, Recording


@dataclass(frozen=True)
class Scope:
    """Some layers and some heads of each of them; None means all.

    Attributes:
        layers: layer numbers, from 0; any iterable of whole numbers is taken, and kept as a tuple.
        heads: head numbers within a layer, from 0, likewise.
        kind: "self", or "cross" for what a decoder reads of an encoder's text.
        part: "decoder" or "encoder"; the part that predicts unless given.

    Raises:
        InputError: a lone number, or anything else that holds no whole numbers; a kind or part that there is not.
    """

    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    kind: str = "self"
    part: str | None = None

    def __post_init__(self) -> None:
        _require_one_of("the kind of attention", self.kind, ("self", "cross"))
        _require_one_of("the part of the model", self.part, ("decoder", "encoder", None))
        for name in ("layers", "heads"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _whole_numbers(f"the {name}", getattr(self, name)))

    def checked(self, recording: Recording) -> Scope:
        """Return the scope in ascending order without repeats.

        Raises:
            InputError: the model has no such layer or head, or none is chosen.
        """
        return self.within(recording.model)

    def within(self, model: ModelFacts) -> Scope:
        """Return the same as `checked`, for a model of which nothing is recorded.

        Raises:
            InputError: the model has no such layer or head, or none is chosen.
        """
        part = model.part if self.part is None else self.part
        there = part == model.part or (part == "encoder" and model.kind == "encoder-decoder")
        if not there or (self.kind == "cross" and (model.kind != "encoder-decoder" or part == "encoder")):
            raise InputError(
                "the kind of attention",
                expected="one that the model has: self-attention"
                + (
                    " of either part, or cross-attention of the decoder"
                    if model.encoder_layers
                    else f" of its {model.part}"
                ),
                given=f"{self.kind} of the {part}",
                way_out="Only an encoder-decoder has cross-attention.",
                kind=self.kind,
                part=part,
            )
        layers = _chosen("layer", self.layers, model.layers_of(part))
        return Scope(layers, _chosen("head", self.heads, model.heads), self.kind, self.part)

    def calls(self, recording: Recording) -> Iterator[tuple[Call, tuple[int, ...]]]:
        """Yield each call in scope with the heads in scope; where all are, those that the recording keeps.

        Raises:
            InputError: a layer or head that the recording does not keep, or no call of the kind at all.
        """
        part = recording.model.part if self.part is None else self.part
        found = [call for call in recording.calls if (call.kind, call.part) == (self.kind, part)]
        for layer in self.layers or (0,) * (not found):
            recording.call(layer, self.kind, part)  # or it says what is there
        for call in found:
            if self.has_layer(call.layer):
                for head in self.heads or ():
                    call.place_of_head(head)
                yield call, call.head_numbers if self.heads is None else self.heads

    def has_layer(self, layer: int) -> bool:
        """Whether a layer is in scope."""
        return self.layers is None or layer in self.layers

    def describe(self, recording: Recording) -> str:
        """Return the scope in words, such as "mean over 270 heads (30 layers x 9)" or "layer 3, head 1"."""
        model = recording.model
        of, all_layers = self.of(model), model.layers_of(model.part if self.part is None else self.part)
        kept = [len(heads) for _, heads in self.calls(recording)]
        layers_missing = self.layers is None and len(kept) < all_layers
        heads_missing = self.heads is None and any(count < model.heads for count in kept)
        if layers_missing or heads_missing:
            return f"mean over the {_counted(sum(kept), 'head')}{of} that the recording keeps of those asked for"
        layers = all_layers if self.layers is None else len(self.layers)
        heads = model.heads if self.heads is None else len(self.heads)
        if layers == heads == 1:
            layer, head = (0 if some is None else some[0] for some in (self.layers, self.heads))
            return f"layer {layer}, head {head}{of}"
        if self.layers is None and self.heads is None:
            return f"mean over {layers * heads} heads{of} ({_counted(layers, 'layer')} x {heads})"
        in_heads = f"the {layers * heads} heads" if self.heads is None else _listed("head", self.heads)
        in_layers = f"each of the {layers} layers" if self.layers is None else _listed("layer", self.layers)
        return f"mean over {in_heads} of {in_layers}{of}"

    def of(self, model: ModelFacts) -> str:
        """Return which attention it is, in words behind a layer or a head; none for that of the part that predicts."""
        beside = self.part == "encoder" and model.part != "encoder"
        return " of cross-attention" if self.kind == "cross" else " of the encoder" if beside else ""


def _require_one_of(what: str, value: Any, choices: tuple[str | None, ...]) -> None:
    if value not in choices:
        named = " or ".join(repr(choice) for choice in choices if choice is not None)
        raise InputError(
            what, expected=named, given=repr(value), way_out="Leave it out for the usual one.", value=value
        )


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _whole_numbers(what: str, value: Any) -> tuple[int, ...]:
    expected = "whole numbers, as a tuple, a range or an array"
    way_out = "A single one is written (3,); None means all."
    numbers = []
    for item in check_items(what, value, expected=expected, way_out=way_out):
        number = as_index(item)
        if number is None:
            raise InputError(what, expected=expected, given=f"{item!r} among them", way_out=way_out, value=item)
        numbers.append(number)
    return tuple(numbers)


def _chosen(what: str, numbers: tuple[int, ...] | None, size: int) -> tuple[int, ...] | None:
    if numbers is None:
        return None
    if not numbers:
        raise InputError(
            f"the {what}s", expected="at least one", given="none", way_out=f"None, not (), means every {what}."
        )
    return tuple(sorted({check_index(what, number, size) for number in numbers}))


def _listed(what: str, numbers: tuple[int, ...]) -> str:
    if len(numbers) == 1:
        return f"{what} {numbers[0]}"
    return f"{what}s {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
