"""Which layers and heads a question is about (floor 4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from wherefrom.checks import as_index, check_index, check_items, whole
from wherefrom.errors import InputError
from wherefrom.recording import Call, ModelFacts, Recording, is_part, listed, part_named
from wherefrom.recording.gaps import NO_ATTENTION

TEXT_PARTS = ("decoder", "encoder")


@dataclass(frozen=True)
class Scope:
    """Some layers and some heads of each of them; None means all.

    Attributes:
        layers: layer numbers, from 0; any iterable of whole numbers is taken, and kept as a tuple.
        heads: head numbers within a layer, from 0, likewise.
        kind: "self", or "cross" for what a part reads of another's output, such as a decoder of an encoder's text.
        part: "decoder", "encoder" or another tower's name; the part that predicts unless given.
        repeat: which execution of each layer's module, from 0; all of them unless given.

    Raises:
        InputError: a lone number, or anything else that holds no whole numbers; a kind or part that there is not.
    """

    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    kind: str = "self"
    part: str | None = None
    repeat: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("self", "cross"):
            _refuse_name("the kind of attention", "'self' or 'cross'", self.kind)
        if self.part is not None and not is_part(self.part):
            _refuse_name("the part of the model", "'decoder', 'encoder' or the name of another, 'vision'", self.part)
        if self.repeat is not None:
            way_out = "Executions of a module in one pass are numbered from 0; None means all."
            object.__setattr__(self, "repeat", whole("the repeat", self.repeat, least=0, way_out=way_out))
        for name in ("layers", "heads"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _whole_numbers(f"the {name}", getattr(self, name)))

    def checked(self, recording: Recording) -> Scope:
        """Return the scope in ascending order without repeats.

        Raises:
            InputError: there is no such attention, layer or head, or none is chosen.
        """
        alike = self._alike(recording)
        layers = _chosen("layer", self.layers, recording.layers_of(self.part))
        calls = [call for call in alike if layers is None or call.layer in layers]
        heads = _chosen("head", self.heads, max(call.all_heads for call in calls or alike))
        found = Scope(layers, heads, self.kind, self.part, self.repeat)
        found._require_heads(calls)
        return found

    def within(self, model: ModelFacts) -> Scope:
        """Return the same as `checked`, for a model of which nothing is recorded, one whose layers are all alike.

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
                given=f"{self.kind} of {part_named(part)}",
                way_out="Only an encoder-decoder has cross-attention.",
                kind=self.kind,
                part=part,
            )
        if self.repeat:
            way_out = "Leave it out: only recordings have modules that run several times in a pass."
            raise InputError("the repeat", expected="0, or none", given=str(self.repeat), way_out=way_out)
        layers = _chosen("layer", self.layers, model.layers_of(part))
        return Scope(layers, _chosen("head", self.heads, model.heads), self.kind, self.part, self.repeat)

    def calls(self, recording: Recording) -> Iterator[tuple[Call, tuple[int, ...]]]:
        """Yield each call in scope with the heads in scope; where all are, those that the recording keeps.

        Raises:
            InputError: a layer, head or repeat that the recording does not keep, or no call of the kind at all; a head
                that one of the layers does not have.
        """
        alike = self._alike(recording)
        for layer in self.layers or ():
            if not any(call.layer == layer for call in alike):
                recording.call(layer, self.kind, self.part)  # which says what is there
        found = [call for call in alike if self.has_layer(call.layer) and self.repeat in (None, call.repeat)]
        if not found and self.repeat is not None:
            layer = alike[0].layer if self.layers is None else self.layers[0]
            recording.call(layer, self.kind, self.part, self.repeat)
        self._require_heads(found)
        for call in found:
            for head in self.heads or ():
                call.place_of_head(head)
            yield call, call.head_numbers if self.heads is None else self.heads

    def has_layer(self, layer: int) -> bool:
        """Whether a layer is in scope."""
        return self.layers is None or layer in self.layers

    def describe(self, recording: Recording, how: str = "mean") -> str:
        """Return the scope in words, such as "mean over 270 heads (30 layers x 9)" or "layer 3, head 1".

        Args:
            recording: that is asked.
            how: heads are taken together, "mean" or "sum".
        """
        of, pairs = self.of(recording.model), list(self.calls(recording))
        calls, total = [call for call, _ in pairs], sum(len(heads) for _, heads in pairs)
        held = sorted({call.layer for call in calls})
        if self._missing(recording, calls):
            return f"{how} over the {_counted(total, 'head')}{of} that the recording keeps of those asked for"
        executions, times = self._executions(recording, calls), _times(calls)
        if times > 1:
            total, executions = total // times, f", run {times} times{' each' * (total > times)}"
        if total == 1:
            return f"layer {held[0]}, head {pairs[0][1][0]}{of}{executions}"
        sizes = {call.all_heads for call in calls}
        if self.layers is None and self.heads is None:
            layers = _counted(len(held), "layer")
            each = f" x {sizes.pop()}" if len(sizes) == 1 and len(held) * times == len(calls) else ""
            return f"{how} over {total} heads{of} ({layers}{each}){executions}"
        in_heads = f"the {total} heads" if self.heads is None else named_list("head", self.heads)
        if self.layers is not None:
            in_layers = named_list("layer", self.layers)
        else:
            in_layers = f"each of the {len(held)} layers" if len(held) > 1 else f"layer {held[0]}"
        return f"{how} over {in_heads} of {in_layers}{of}{executions}"

    def of(self, model: ModelFacts) -> str:
        """Return which attention it is, in words behind a layer or a head; none for that of the part that predicts."""
        part = model.part if self.part is None else self.part
        usual = part == "decoder" if self.kind == "cross" else part == model.part
        beside = "" if usual else f" of {part_named(part)}"
        return (" of cross-attention" if self.kind == "cross" else "") + beside

    def _alike(self, recording: Recording) -> list[Call]:
        """Return the calls of the kind and part, whatever their layers.

        Raises:
            InputError: there are none.
        """
        alike = recording.calls_of(self.kind, self.part)
        if not alike:
            if self.part in (None, *TEXT_PARTS):
                self.within(recording.model)  # which says what the model has
            recording.call(0, self.kind, self.part)  # which says what was recorded
        return alike

    def _require_heads(self, calls: Sequence[Call]) -> None:
        """Refuse a head that one of some calls does not have, while another has."""
        most = max(self.heads or (0,))
        lacking = next((call for call in calls if most >= call.all_heads), None)
        if lacking is None:
            return
        if len({call.all_heads for call in calls}) == 1:
            check_index("head", most, lacking.all_heads)
        own = listed(range(lacking.all_heads))
        raise InputError(
            "the head",
            expected=f"one that every layer asked for has: layer {lacking.layer} has {own}",
            given=str(most),
            way_out="Name the layers too, since those of this model differ in their heads.",
            layer=lacking.layer,
        )

    def _missing(self, recording: Recording, calls: Sequence[Call]) -> bool:
        """Whether the recording lacks layers or heads that are asked for, and that the model has."""
        if self.heads is None and any(call.heads < call.all_heads for call in calls):
            return True
        if self.layers is not None:
            return False
        part = recording.model.part if self.part is None else self.part
        known = {call.layer for call in recording.calls if call.part == part}  # with attention of the other kind alone
        known |= {layer for layer, gap in recording.gaps_of(part).items() if gap.what == NO_ATTENTION}
        return max(len(known), len(calls)) < recording.layers_of(part)  # one module may be run as every layer

    def _executions(self, recording: Recording, calls: Sequence[Call]) -> str:
        """Return which executions of their modules some calls are, in words; none where each module ran once."""
        if self.repeat is not None:
            ran = any(call.repeat for call in self._alike(recording))
            return f", execution {self.repeat}" if ran else ""
        most = max(call.repeat for call in calls)
        return f", over all executions (up to {most + 1} of a layer)" if most else ""


def _times(calls: Sequence[Call]) -> int:
    """Return how often the module of each layer ran, by some calls; 1 where layers differ in it."""
    ran = Counter(call.layer for call in calls)
    return max(ran.values()) if len(set(ran.values())) == 1 else 1


def _refuse_name(what: str, expected: str, value: Any) -> None:
    raise InputError(what, expected=expected, given=repr(value), way_out="Leave it out for the usual one.", value=value)


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


def named_list(what: str, numbers: tuple[int, ...]) -> str:
    """Return layers or heads in words, such as "heads 1, 2 and 5"."""
    if len(numbers) == 1:
        return f"{what} {numbers[0]}"
    return f"{what}s {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
