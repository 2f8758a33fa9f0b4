"""What a pass had that its recording does not hold (floor 2): attention of another kind, and layers without any.

Takes the words for numbers from beside it. Gives `Gap` to the contents, and to every answer the sentence that says what
it is not about.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from wherefrom.recording.call import Call, counted, listed

NO_ATTENTION = "no attention"
KINDS_OF_GAPS = ("softmax", "scaled_dot_product_attention", "multi_head_attention", NO_ATTENTION)
FEW = 3
"""So many modules are named in a sentence, then counted."""


@dataclass(frozen=True)
class Gap:
    """Attention, or a layer, that a recording does not hold.

    Attributes:
        name: the module's path in the model.
        what: how it computes attention: by "softmax" (its own, over scores), "scaled_dot_product_attention" or
            "multi_head_attention" (torch's); or "no attention": a layer of another kind, such as a convolution.
        layer: the layer's true number; None where it is unknown.
        calls: how often it ran in the pass; 0 for "no attention".
    """

    name: str
    what: str
    layer: int | None = None
    calls: int = 0

    @property
    def stack(self) -> str | None:
        """The path of the layers that its own is one of, such as "model.layers"; None where that is unknown."""
        return None if self.layer is None else stack_of(self.name, self.layer)


def stack_of(name: str, layer: int) -> str | None:
    """Return a module's path up to its layer's number; None where the path has no such number."""
    pieces = name.split(".")
    return ".".join(pieces[: pieces.index(str(layer))]) if str(layer) in pieces else None


def gaps_of(gaps: Iterable[Gap], calls: Sequence[Call], *, predicting: bool) -> dict[int, Gap]:
    """Return the gaps in the layers that some calls of one part are of, by layer; not where a call is.

    Args:
        gaps: of the recording.
        calls: all of one part.
        predicting: whether it is the part that predicts, to which a gap of an unknown stack belongs.
    """
    stacks = {stack_of(call.name, call.layer) for call in calls} - {None}
    held = {call.layer for call in calls}
    return {
        gap.layer: gap
        for gap in gaps
        if gap.layer is not None
        and gap.layer not in held
        and (gap.stack in stacks if gap.stack is not None and stacks else predicting)
    }


def gaps_in_words(gaps: Iterable[Gap]) -> str:
    """Return what is not recorded, in a sentence or two; empty where nothing is missing."""
    gaps = tuple(gaps)
    unseen = [gap for gap in gaps if gap.what != NO_ATTENTION]
    without = [gap for gap in gaps if gap.what == NO_ATTENTION]
    said = []
    if unseen:
        named = [f"{gap.name} ({gap.what}, {counted(gap.calls, 'call')})" for gap in unseen]
        said.append(f"Attention of {counted(len(unseen), 'module')} is not recorded: {_few(named)}.")
    if without:
        numbers = [gap.layer for gap in without if gap.layer is not None]
        one_stack = len({gap.stack for gap in without}) == 1 and len(set(numbers)) == len(without)
        which = listed(numbers) if one_stack else _few([gap.name for gap in without])
        have = "has" if len(without) == 1 else "have"
        said.append(f"{counted(len(without), 'layer')} {have} no attention: {which}.")
    return " ".join(said)


def gaps_as_json(gaps: Iterable[Gap]) -> list[dict[str, Any]]:
    """Return gaps as what `json.dumps` takes."""
    return [asdict(gap) for gap in gaps]


def _few(names: Sequence[str]) -> str:
    more = len(names) - FEW
    return ", ".join(names[:FEW]) + (f" and {more} more" if more > 0 else "")
