"""Figures of a text (floor 6), each token on a ground as strong as what one position reads of it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wherefrom.checks import check_index
from wherefrom.errors import InputError
from wherefrom.questions import sources
from wherefrom.questions.asked import NOTHING_LEFT, checked_scope
from wherefrom.questions.exact import permitted_pairs
from wherefrom.questions.moved import moved_in_all
from wherefrom.readable import readable
from wherefrom.recording import Call, Recording
from wherefrom.spans import Tokens
from wherefrom.views.cells import own_texts, shortened
from wherefrom.views.colours import BEHIND_TEXT, INK, QUIET, ramp, step_of
from wherefrom.views.picture import ADVANCE, MONO, Area, Box, Frame, Picture, Words, cells_of
from wherefrom.views.scale import Scale
from wherefrom.views.sheet import MARGIN, Sheet, alone

if TYPE_CHECKING:
    from wherefrom.evidence.at import Evidence

TEXT_CELLS, TEXT_SIZE, TEXT_LINE = 84, 14.0, 25.0
MOST_TOKENS = 1200
"""Of a longer text the part before the destination is shown."""


@dataclass(frozen=True)
class _Lens:
    """By what a text's sources are coloured, in words.

    Attributes:
        title: of the figure; the reading token goes in, and of what is measured its target.
        unit: below the colours.
        meaning: what a source's colour is.
        whole: what all sources have together; None: their values do not add up.
    """

    title: str
    unit: str
    meaning: str
    whole: str | None


WORTH = 'What sources are worth to "{target}" at position {at}, {reader}'
RECORDED = {
    "weight": _Lens(
        "What position {at}, {reader}, reads",
        "weight",
        "its weight, the share of the destination's row",
        "the weight",
    ),
    "moved": _Lens(
        "What moves to position {at}, {reader}",
        "moved, length",
        "what it moves, the length |a W_O v|",
        "what they move",
    ),
}
"""Lenses that a recording answers."""
EVIDENCE = {
    "knockout": _Lens(
        WORTH,
        "nats, knock-out",
        "what the target's log-probability loses when the position may not read it, measured; violet where it gains",
        None,
    ),
    "attribution": _Lens(
        WORTH,
        "nats, estimate",
        "what the target's log-probability would lose without it, to first order, not measured; violet where it would "
        "gain",
        None,
    ),
}
"""Lenses that take the model."""


def figure_of_text(
    recording: Recording,
    destination: int | None = None,
    *,
    layer: int | None = None,
    head: int | None = None,
    kind: str = "self",
    part: str | None = None,
    repeat: int | None = None,
    lens: str = "weight",
    scale: str = "linear",
) -> Picture:
    """Return a text as a picture, each token on a ground as strong as what one position reads of it.

    By weight it is the mean over heads; what is moved, the length of the a W_O v that each adds to the residual stream,
    is added up over them.

    Args:
        recording: of any model.
        destination: the position that reads; the last of the text unless given.
        layer: one layer only; all unless given.
        head: one head of each layer only; all unless given.
        kind: "self" or "cross".
        part: "decoder", "encoder" or another tower's name; the part that predicts unless given.
        repeat: which execution of each layer's module.
        lens: "weight", or "moved" of a recording that keeps the layers' output projections.
        scale: of the colours, "linear" or "log".

    Raises:
        InputError: as `wherefrom.sources`; another `lens` or `scale`; what was moved is not known.
    """
    by = _lens(lens, RECORDED, "figure_of_evidence draws what a model measured.")
    scope = {"layer": layer, "head": head, "kind": kind, "part": part, "repeat": repeat}
    answer = sources(recording, destination, top=sys.maxsize, **scope)  # type: ignore[arg-type]
    heads_asked = checked_scope(recording, **scope)  # type: ignore[arg-type]
    chosen = list(heads_asked.calls(recording))
    first = chosen[0][0]
    readers, tokens = recording.texts_of(first)
    last = min(recording.last_position(first.part), first.destinations - 1)
    at = last if destination is None else check_index("position", destination, len(readers))
    values = moved_in_all(chosen, at) if lens == "moved" else np.zeros(len(tokens))
    for row in answer if lens == "weight" else ():
        source: Any = row["source"]
        values[source] = row["weight"]
    moving = f'How much does each source move to position {at} ("{readers[at].label}")?'
    sheet = Sheet(by.title.format(at=at, reader=shortened(readers[at].label)))
    glowing = _Glowing(recording, chosen, at, values)
    colours = Scale.to(float(glowing.drawn.max(initial=0.0)), scale)
    said = answer.question if lens == "weight" else f"{moving} {heads_asked.describe(recording, 'sum')}"
    glowing.draw(sheet, lens, by, colours, said)
    return sheet.done(recording, answer.exactness, glowing.left_out(answer.left_out))


def figure_of_evidence(found: Evidence, *, lens: str = "knockout") -> Picture:
    """Return a text as a picture, each source on a ground as strong as what it was worth to a token.

    What speaks for the token and what speaks against it have a colour each, on one linear scale.

    Args:
        found: from `wherefrom.evidence.at.evidence_at`.
        lens: "knockout", measured, or "attribution", its estimate of first order.

    Raises:
        InputError: another `lens`; the position was not priced.
    """
    by = _lens(lens, EVIDENCE, "figure_of_text draws what a recording holds.")
    values = found.nats if lens == "knockout" else found.prices
    if values is None:
        raise InputError(
            "the estimate", expected="one", given="none", way_out=f"{found.why_not_priced} Draw the knock-outs."
        )
    recording, at, aim = found.recording, found.position, found.aim
    chosen = list(found.scope.calls(recording))
    reader = recording.texts_of(chosen[0][0])[0][at].label
    sheet = Sheet(by.title.format(target=aim.label, at=at, reader=shortened(reader)))
    glowing = _Glowing(recording, chosen, at, values)
    said = (
        f'How much of the log-probability of "{aim.label}" ({found.knockouts.before:.3g} nats, probability '
        f'{aim.probability:.3g}) at position {at} ("{reader}") is owed to each source? {found.scope_in_words}'
    )
    glowing.draw(sheet, lens, by, Scale.signed(glowing.drawn), said)
    if lens == "knockout":
        sheet.note(f"Within {found.noise:.1g} nats a knock-out is rounding.")
    exact = found.knockouts.exactness if lens == "knockout" else found.exactness_of_prices
    return sheet.done(recording, exact, glowing.left_out(NOTHING_LEFT))


def _lens(lens: str, among: dict[str, _Lens], elsewhere: str) -> _Lens:
    if lens not in among:
        raise InputError("the lens", expected=" or ".join(among), given=f"{lens!r}", way_out=f"Choose one; {elsewhere}")
    return among[lens]


class _Glowing:
    """A text whose sources glow.

    Args:
        recording: of the text.
        chosen: calls over the same positions, each with heads.
        at: the position that reads.
        values: of each source [S]; NaN where there is none.

    Attributes:
        drawn: the values of those that are shown.
    """

    def __init__(
        self, recording: Recording, chosen: Sequence[tuple[Call, Sequence[int]]], at: int, values: NDArray[np.float64]
    ) -> None:
        first = chosen[0][0]
        self._tokens = recording.texts_of(first)[1]
        self._own, self._at = first.kind == "self", at
        self._values = np.nan_to_num(values)
        self._allowed = np.any([_may_read(call, head, at) for call, heads in chosen for head in heads], axis=0)
        length = len(self._tokens)
        stop = min(length, max(MOST_TOKENS, at + 1)) if self._own else min(length, MOST_TOKENS)
        self._shown = range(max(0, stop - MOST_TOKENS), stop)
        self.drawn: NDArray[np.float64] = self._values[self._shown.start : self._shown.stop]

    def draw(self, sheet: Sheet, lens: str, by: _Lens, colours: Scale, question: str) -> None:
        """Draw the text, what its colours mean, and what is not shown."""
        behind, steps, pieces = ramp(BEHIND_TEXT, lens), colours.shares(self._values), 0
        for position, whole, piece, box in _flow(self._tokens, self._shown, sheet):
            if self._values[position]:
                sheet.add(Area((box,), behind[step_of(float(steps[position]))]))
            x, y, wide, high = box
            reads, colour = self._own and position == self._at, INK if self._allowed[position] else QUIET
            sheet.add(Words(x, y + 15.5, piece, TEXT_SIZE, colour, font=MONO, bold=reads, cells=cells_of(piece)))
            if reads:
                sheet.add(Frame((x - 1, y, wide + 2, high), INK, 1.6))
            elif not whole:
                sheet.add(Frame(box, QUIET, 0.6))
                pieces += 1
        sheet.take(sheet.x, sheet.y + 8)
        sheet.legend(colours.high, colours.unit(by.unit), low=colours.low, colours=behind)
        sheet.note(question)
        all_allowed = self._allowed[self._shown.start : self._shown.stop].all()
        sheet.note(
            f"Colour behind a source: {by.meaning}, {colours.said(self.drawn, 'source')}. "
            f"{'Framed: the position that reads. ' if self._own else ''}"
            f"{'Boxed: a later piece of the character before, or a mark without characters. ' if pieces else ''}"
            f"{'' if all_allowed else 'Grey: it may not read this.'}"
        )
        if len(self._shown) < len(self._tokens):
            beside = 1.0 - float(self.drawn.sum()) / (float(self._values.sum()) or 1.0)
            share = "" if by.whole is None else f", with {beside:.3g} of {by.whole}"
            sheet.note(f"Not shown: {_others(self._shown, len(self._tokens))} of {len(self._tokens):,} tokens{share}.")

    def left_out(self, said: str) -> str:
        """Return what of an answer is left out, without the word that nothing is where tokens are not shown."""
        return said if len(self._shown) == len(self._tokens) else said.removeprefix(NOTHING_LEFT).strip()


def _others(shown: range, length: int) -> str:
    """Return which positions of a text are not among those shown, in words."""
    parts = [f"the first {shown.start:,}"] if shown.start else []
    parts += [f"the last {length - shown.stop:,}"] if shown.stop < length else []
    return " and ".join(parts)


def _may_read(call: Call, head: int, at: int) -> NDArray[np.bool_]:
    """Return which sources [S] a destination may read."""
    permitted: NDArray[np.bool_] = permitted_pairs(call, head, range(at, at + 1), range(call.sources))[0]
    return permitted


def _flow(tokens: Tokens, shown: range, sheet: Sheet) -> Iterator[tuple[int, bool, str, Box]]:
    """Yield the tokens of a text in lines: whether it begins a character, what is seen of it, and its box."""
    wide = ADVANCE * TEXT_SIZE
    cells, y = 0, sheet.y
    for run in _unbroken(zip(shown, own_texts(tokens, shown.start), strict=False)):
        pieces = [alone(readable(own) if own else tokens[position].label) for position, own in run]
        room = sum(map(cells_of, pieces))
        if cells and TEXT_CELLS - cells < room <= TEXT_CELLS:
            cells, y = 0, y + TEXT_LINE
        for (position, own), piece in zip(run, pieces, strict=True):
            size = cells_of(piece)
            if cells and cells + size > TEXT_CELLS:
                cells, y = 0, y + TEXT_LINE
            box = MARGIN + cells * wide, y, size * wide, TEXT_LINE - 4
            cells += size
            sheet.take(box[0] + box[2], y + TEXT_LINE)
            yield position, bool(own), piece, box
            if "\n" in own:
                cells, y = 0, y + TEXT_LINE


def _unbroken(tokens: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """Yield runs of tokens between which a line may be broken: at blanks."""
    run: list[tuple[int, str]] = []
    for position, own in tokens:
        if run and (own[:1].isspace() or run[-1][1][-1:].isspace()):
            yield run
            run = []
        run.append((position, own))
    if run:
        yield run
