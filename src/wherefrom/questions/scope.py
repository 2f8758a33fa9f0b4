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

    Raises:
        InputError: a lone number, or anything else that holds no whole numbers.
    """

    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
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
        return Scope(_chosen("layer", self.layers, model.layers), _chosen("head", self.heads, model.heads))

    def calls(self, recording: Recording) -> Iterator[tuple[Call, tuple[int, ...]]]:
        """Yield each call in scope with the heads in scope."""
        for call in recording.calls:
            if self.has_layer(call.layer):
                yield call, self.heads if self.heads is not None else tuple(range(call.heads))

    def has_layer(self, layer: int) -> bool:
        """Whether a layer is in scope."""
        return self.layers is None or layer in self.layers

    def describe(self, recording: Recording) -> str:
        """Return the scope in words, such as "mean over 270 heads (30 layers x 9)" or "layer 3, head 1"."""
        model = recording.model
        if self.layers is None and self.heads is None:
            return f"mean over {model.layers * model.heads} heads ({model.layers} layers x {model.heads})"
        if self.layers is not None and self.heads is not None and len(self.layers) == len(self.heads) == 1:
            return f"layer {self.layers[0]}, head {self.heads[0]}"
        count = model.heads * len(self.layers or ())
        heads = f"the {count} heads" if self.heads is None else _listed("head", self.heads)
        layers = f"each of the {model.layers} layers" if self.layers is None else _listed("layer", self.layers)
        return f"mean over {heads} of {layers}"


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
