"""What every head reads, in figures (floor 4): how many sources, and which kinds: itself, the one before, repeats.

It takes a recording and gives an answer with a row for every head; `figures_of` gives the same of one call as arrays,
for who computes with them. Everything comes from one exact scan of all weights, in memory that grows with the length,
never with its square. A figure says what kind of source a head's weights lie on in this text; it does not say what the
head is for.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wherefrom.checks import check_index, check_items, check_kind, whole
from wherefrom.errors import InputError
from wherefrom.questions.answer import Answer, Cell, Column
from wherefrom.questions.asked import exactness_of
from wherefrom.questions.exact import Masked
from wherefrom.questions.scanned import Progress, attention_of, require_all_rows, scans_of
from wherefrom.questions.scope import Scope
from wherefrom.recording import Call, Recording, check_recording
from wherefrom.scans import Scan, means
from wherefrom.scans import scan as scan_attention

Bools: TypeAlias = NDArray[np.bool_]
Ints: TypeAlias = NDArray[np.int64]

NONE_LEFT_OUT = "No head is left out."
WAY_OUT = "Ask about the call of a text that reads itself, with the ids of that text."
SINKS = 'The weight on the first token, where sinks show, is "first".'
CONDITION = re.compile(r"\s*([a-z_]+)\s*(>=|<=|>|<)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*")
COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


@dataclass(frozen=True, eq=False)
class HeadFigures:
    """The figures of every head of one call, each an array [H]; masked, with NaN beneath, where no destination counts.

    All but the last are means over destinations i that may read something. A source that the mask keeps out has
    weight 0 and counts as that.

    Attributes:
        entropy: of the weights, in nats; over all i.
        effective: exp(entropy), how many evenly read sources that would be; over all i.
        largest: the largest weight; over all i.
        first: the weight on position 0; over i >= 1, since position 0 has nothing else to read in a decoder.
        itself: the weight on i; over i >= 1.
        previous: the weight on i - 1; over i >= 1.
        duplicate: the weight on all earlier positions of the same token as i; over the i whose token came before.
        induction: the weight on all positions right after an earlier one of the same token as i: what followed it
            then. Over the same i. The prefix matching score of Olsson et al. 2022, "In-context Learning and Induction
            Heads", arXiv:2209.11895, here of any text, theirs of a repeated random sequence.
        largest_score: the largest score of any permitted pair.
        empty: how many destinations may read nothing.
    """

    entropy: Masked
    effective: Masked
    largest: Masked
    first: Masked
    itself: Masked
    previous: Masked
    duplicate: Masked
    induction: Masked
    largest_score: Masked
    empty: Ints


FIGURES = tuple(field.name for field in fields(HeadFigures) if field.name != "empty")
SCANNED = tuple(name for name in FIGURES if name != "effective")
"""The same as a scan names them; what comes of the entropy is not asked for."""


def figures_of(call: Call, ids: ArrayLike, *, strip: int | None = None) -> HeadFigures:
    """Return the figures of every head of one call of self-attention.

    Args:
        call: of kind "self", with as many destinations as sources.
        ids: the token ids [T] of the text; only whether they are equal matters.
        strip: how many destinations are computed at once; the figures do not depend on it.

    Raises:
        InputError: another kind of call, or one of which not all destinations were kept; ids of another length or no
            whole numbers; a strip below 1.
    """
    _check_call(call)
    codes, _ = _codes(ids, call.sources)
    require_all_rows(call)
    scan = scan_attention(attention_of(call, codes), SCANNED, strip=strip)
    return _figures(scan, means(scan))


def _figures(scan: Scan, found: Mapping[str, Masked]) -> HeadFigures:
    """Return the figures of a scan and its means."""
    return HeadFigures(**{name: found[name] for name in FIGURES}, empty=scan.empty.sum(axis=1))


def heads(
    recording: Recording,
    *,
    layer: int | None = None,
    head: int | None = None,
    part: str | None = None,
    sort: str | None = None,
    where: Iterable[str] = (),
    top: int | None = None,
    progress: Progress | None = None,
) -> Answer:
    """What does every head read? A row for each layer and head, in their order or by a figure.

    Args:
        recording: of any model.
        layer: one layer only; all that the recording holds unless given.
        head: one head of each layer only; all unless given.
        part: "decoder" or "encoder"; the one that predicts unless given.
        sort: a column to sort by, the largest first; with a "-" before its name the smallest first.
        where: conditions that a head must meet, such as ("induction>0.3", "first<0.5").
        top: how many rows to return at most, after sorting.
        progress: told after each layer.

    Raises:
        InputError: a layer or head out of range or not kept, a part that the model has not, no call of self-attention
            over the whole text, or one of which not every destination was kept; an unknown column; a condition that is
            none.
    """
    recording = check_recording(recording)
    part = Scope(part=part).within(recording.model).part or recording.model.part
    only_layer = None if layer is None else check_index("layer", layer, recording.model.layers_of(part))
    only_head = None if head is None else check_index("head", head, recording.model.heads)
    if only_layer is not None and any((call.kind, call.part) == ("self", part) for call in recording.calls):
        recording.call(only_layer, "self", part)  # or it says which layers there are
    asked = [call for call in recording.calls if call.part == part and only_layer in (None, call.layer)]
    ids = (recording.tokens if part == recording.model.part or recording.source is None else recording.source).ids
    calls = [call for call in asked if _reads_itself(call) and call.destinations == len(ids)]
    if not calls:
        raise InputError(
            "the recording",
            expected="a call of self-attention in which all of the text reads itself",
            given=f"{len(asked)} call{'s' * (len(asked) != 1)} of which none does",
            way_out="Record the pass of a decoder or an encoder over a text.",
        )
    columns = _columns(len(ids), int(_codes(ids, len(ids))[1].sum()))
    chosen = _Choice.of(columns, sort, where, top)
    rows, empty = [], 0
    for done, (call, scan) in enumerate(zip(calls, scans_of(recording, calls, (*SCANNED, "distance")), strict=True)):
        mean = means(scan)
        found = _figures(scan, mean), mean["distance"]
        places = range(call.heads) if only_head is None else (call.place_of_head(only_head),)
        rows += [(call.layer, call.head_numbers[at], *_cells(*found, at)) for at in places]
        empty += int(found[0].empty[list(places)].sum())
        if progress is not None:
            progress(done + 1, len(calls))
    missing = recording.model.heads * recording.model.layers_of(part) - sum(call.heads for call in asked)
    unkept = missing if only_layer is only_head is None else 0
    left_out = _left_out(empty, len(asked) - len(calls), any(None in row for row in rows), unkept)
    answer = Answer(
        question=f"What does every head read? {_asked(calls, only_layer, only_head, recording, part)}",
        columns=columns,
        rows=tuple(rows),
        exactness=exactness_of(calls),
        left_out=left_out,
        remainder=0.0,
    )
    return chosen.of_answer(answer)


@dataclass(frozen=True)
class _Choice:
    """Which heads of a table are wanted, and in what order."""

    sort: int | None
    largest_first: bool
    where: tuple[tuple[int, str, float], ...]
    words: tuple[str, ...]
    top: int | None

    @classmethod
    def of(cls, columns: Sequence[Column], sort: Any, where: Any, top: Any) -> _Choice:
        """Return what was asked for, checked.

        Raises:
            InputError: an unknown column, a condition that is none, a top below 1.
        """
        given = check_items(
            "the conditions", where, expected='texts such as "induction>0.3"', way_out="A single one is (text,)."
        )
        found = [_condition(columns, text) for text in given]
        most = None if top is None else whole("top", top, least=1, way_out="Say how many rows you want.")
        name = None if sort is None else str(sort).removeprefix("-")
        place = None if name is None else _place(columns, name)
        return cls(place, sort == name, tuple(found), tuple(str(text).strip() for text in given), most)

    def of_answer(self, answer: Answer) -> Answer:
        """Return the answer with the rows that are wanted."""
        rows = [row for row in answer.rows if all(_holds(row[at], sign, value) for at, sign, value in self.where)]
        if self.sort is not None:
            at, sign = self.sort, -1 if self.largest_first else 1
            rows.sort(key=lambda row: (row[at] is None, sign * (row[at] or 0)))
        met = len(rows)
        rows = rows[: self.top]
        said = []
        if len(rows) < met:
            more = "1 more head" if met - len(rows) == 1 else f"{met - len(rows)} more heads"
            said.append(f"Not listed: {more}.")
        if self.where:
            said.append(f"{met} of {len(answer)} heads meet {' and '.join(self.words)}.")
        said.append(answer.left_out.removeprefix(NONE_LEFT_OUT).strip() if said else answer.left_out)
        return replace(answer, rows=tuple(rows), left_out=" ".join(said).strip())


def _holds(value: Cell, sign: str, other: float) -> bool:
    return isinstance(value, int | float) and COMPARED[sign](value, other)


def _condition(columns: Sequence[Column], text: Any) -> tuple[int, str, float]:
    found = CONDITION.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise InputError(
            "a condition",
            expected='a column, one of > >= < <=, and a number, such as "induction>0.3"',
            given=repr(text),
            way_out="Give several conditions one by one; all must hold.",
        )
    return _place(columns, found[1]), found[2], float(found[3])


def _place(columns: Sequence[Column], name: str) -> int:
    names = [column.name for column in columns]
    if name not in names:
        raise InputError(
            "a column of the heads",
            expected=f"one of {', '.join(names)}",
            given=repr(name),
            way_out=SINKS if re.search("sink|bos", name) else "Give a name as it stands above its column.",
            name=name,
        )
    return names.index(name)


def _codes(ids: ArrayLike, length: int) -> tuple[Ints, Bools]:
    """Return the ids as small numbers from 0, equal where they are equal, and which of them came before, both [T]."""
    try:
        given = np.asarray(ids)
    except ValueError:  # rows of different lengths
        given = np.asarray(None)
    if given.shape != (length,) or given.dtype.kind not in "iu":
        raise InputError(
            "the token ids",
            expected=f"whole numbers, one a position, {length}",
            given="no array of numbers" if given.dtype == object else f"{given.dtype} of shape {given.shape}",
            way_out=WAY_OUT,
            shape=given.shape,
        )
    _, first, codes = np.unique(given, return_index=True, return_inverse=True)
    return codes, first[codes] < np.arange(length)


def _check_call(call: Any) -> None:
    call = check_kind("the call", call, Call, way_out="Give one of recording.calls.")
    if not _reads_itself(call):
        raise InputError(
            "the call",
            expected="self-attention with as many destinations as sources",
            given=f"{call.kind}-attention of {call.destinations} destinations over {call.sources} sources"
            + f" from position {call.mask.offset}" * (call.mask.offset > 0),
            way_out=WAY_OUT,
        )


def _reads_itself(call: Call) -> bool:
    """Whether row r of the call and column r are one position, so that "itself" and "the one before" mean something."""
    return call.kind == "self" and call.destinations == call.sources and call.mask.offset == 0


def _cells(figures: HeadFigures, distance: Masked, head: int) -> Sequence[Cell]:
    """Return one head's figures as an answer holds them: None where no destination counts."""
    columns = [*(getattr(figures, name) for name in FIGURES), distance]
    return [column[head : head + 1].tolist()[0] for column in columns]


def _columns(length: int, repeats: int) -> tuple[Column, ...]:
    share, of, over = "share", "share of a destination's row:", "mean over destinations"
    later = f"{over} from 1 up"
    again = f"mean over the {repeats} of {length} destinations whose token came before"
    return (
        Column("layer", "", "the layer, from 0"),
        Column("head", "", "the head, from 0"),
        Column("entropy", "nats", f"entropy of a destination's weights, {over}"),
        Column("effective", "sources", f"exp of the entropy: as many sources read evenly have it, {over}"),
        Column("largest", share, f"{of} the largest weight, {over}"),
        Column("first", share, f"{of} weight on position 0, {later}"),
        Column("self", share, f"{of} weight on the destination itself, {later}"),
        Column("previous", share, f"{of} weight on the position before, {later}"),
        Column("duplicate", share, f"{of} weight on all earlier positions of the destination's own token, {again}"),
        Column("induction", share, f"{of} weight on all positions right after one of those, {again}"),
        Column("largest_score", "score", "the largest score of any permitted pair, before softmax"),
        Column("distance", "tokens", f"how far away the sources are that it reads, by their weights, {over}"),
    )


def _beside(recording: Recording, part: str) -> str:
    return f" of the {part}" if part != recording.model.part else ""


def _asked(calls: Sequence[Call], layer: int | None, head: int | None, recording: Recording, part: str) -> str:
    """Return which heads there are rows of, in words."""
    if head is None and any(call.heads < recording.model.heads for call in calls):
        kept = sum(call.heads for call in calls)
        of = f" of layer {layer}" if layer is not None else ""
        return f"the {kept} head{'s' * (kept != 1)}{of} that the recording keeps{_beside(recording, part)}"
    return _scope(len(calls), layer, head) + _beside(recording, part)


def _scope(calls: int, layer: int | None, head: int | None) -> str:
    heads = "every head" if head is None else f"head {head}"
    if layer is not None:
        return f"{heads} of layer {layer}"
    return f"{heads} of {'1 layer' if calls == 1 else f'each of {calls} layers'}"


def _left_out(empty: int, calls: int, blank: bool, unkept: int) -> str:
    said = [NONE_LEFT_OUT]
    if unkept > 0:
        said = [f"Left out: {unkept} head{'s' * (unkept != 1)} of the model that the recording does not keep."]
    if calls:
        said = [f"Left out: {calls} call{'s' * (calls != 1)} in which not all of the text reads itself."]
    if empty:
        rows = "1 row of a destination" if empty == 1 else f"{empty} rows of destinations"
        said.append(f"In no mean: {rows} that may read nothing.")
    if blank:
        said.append("Where no destination counts for a figure there is none.")
    return " ".join(said)
