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

from wherefrom.checks import check_items, check_kind, whole
from wherefrom.errors import InputError
from wherefrom.questions.answer import Answer, Cell, Column
from wherefrom.questions.asked import REPEAT, checked_scope, exactness_of
from wherefrom.questions.exact import Masked
from wherefrom.questions.scanned import Progress, attention_of, require_all_rows, scans_of
from wherefrom.recording import Call, Recording, check_recording, is_numbered, part_named
from wherefrom.recording.gaps import NO_ATTENTION
from wherefrom.scans import Scan, means
from wherefrom.scans import scan as scan_attention
from wherefrom.scans.contract import OF_SAME_TOKEN

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
SINK = Column("sink", "share", "share of a destination's row: the head's sink's, mean over destinations")


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
    """Return the figures of a scan and its means; those that it was not asked for are masked."""
    heads = len(scan.empty)
    none = np.ma.MaskedArray(np.full(heads, np.nan), mask=np.ones(heads, bool))
    return HeadFigures(**{name: found.get(name, none) for name in FIGURES}, empty=scan.empty.sum(axis=1))


def _wanted(recording: Recording, call: Call) -> tuple[str, ...]:
    """Return what a call is scanned for: of positions without a text no two hold the same token."""
    left_out = OF_SAME_TOKEN if is_numbered(recording.texts_of(call)[1]) else ()
    sink = ("sink",) if call.sinks is not None else ()
    return (*(name for name in SCANNED if name not in left_out), "distance", *sink)


def heads(
    recording: Recording,
    *,
    layer: int | None = None,
    head: int | None = None,
    part: str | None = None,
    repeat: int | None = None,
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
        part: "decoder", "encoder" or another tower's name; the part that predicts unless given.
        repeat: which execution of each layer's module; all, each in rows of its own, unless given.
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
    scope = checked_scope(recording, layer, head, "self", part, repeat)
    asked = list(scope.calls(recording))
    pairs = [(call, own) for call, own in asked if _reads_itself(call) and _is_whole(recording, call)]
    calls = [call for call, _ in pairs]
    if not calls:
        raise InputError(
            "the recording",
            expected="a call of self-attention in which all of the text reads itself",
            given=f"{len(asked)} call{'s' * (len(asked) != 1)} of which none does",
            way_out="Record the pass of a decoder or an encoder over a text.",
        )
    repeats = repeats_of(recording, calls[0])
    again, sinks = any(call.repeat for call in calls), any(call.sinks is not None for call in calls)
    columns = (*_columns(calls[0].sources, repeats), *([SINK] if sinks else []), *([REPEAT] if again else []))
    chosen = _Choice.of(columns, sort, where, top)
    rows, empty = [], 0
    for done, (call, own) in enumerate(pairs):
        scan = next(scans_of(recording, [call], _wanted(recording, call)))
        mean = means(scan)
        found = _figures(scan, mean)
        places = [call.place_of_head(number) for number in own]
        beside = [mean["distance"], *([mean.get("sink")] if sinks else [])]
        more = (call.repeat,) if again else ()
        rows += [
            (call.layer, number, *_cells(found, beside, at), *more) for number, at in zip(own, places, strict=True)
        ]
        empty += int(found.empty[places].sum())
        if progress is not None:
            progress(done + 1, len(calls))
    answer = Answer(
        question=f"What does every head read? {_asked(calls, layer, head, recording, part)}",
        columns=columns,
        rows=tuple(rows),
        exactness=exactness_of(calls),
        left_out=_left_out(
            empty,
            len(asked) - len(calls) + sum(scope.has_layer(call.layer) for call in recording.calls_of("cross", part)),
            any(None in row for row in rows),
            _unkept(recording, [call for call, _ in asked], part) if layer is head is repeat is None else (0, 0),
        ),
        remainder=0.0,
        gaps=recording.gaps,
    )
    return chosen.of_answer(answer)


def _is_whole(recording: Recording, call: Call) -> bool:
    """Whether a call goes over all of its text, where its positions are those of one."""
    text = recording.known_texts(call)[1]
    return text is None or call.sources >= len(text)


def _unkept(recording: Recording, calls: Sequence[Call], part: str | None) -> tuple[int, int]:
    """Return how many heads of layers that are kept the recording lacks, and of how many layers it has none."""
    heads = sum(call.all_heads - call.heads for call in calls)
    part = recording.model.part if part is None else part
    known = {call.layer for call in recording.calls if call.part == part}
    known |= {layer for layer, gap in recording.gaps_of(part).items() if gap.what == NO_ATTENTION}
    return heads, max(0, recording.layers_of(part) - max(len(known), len(calls)))


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


def repeats_of(recording: Recording, call: Call) -> int:
    """Return how many destinations of a call hold a token that came before: duplicate and induction are about them.

    Of positions without a text none does.
    """
    text = recording.texts_of(call)[1]
    return 0 if is_numbered(text) else int(_codes(text.ids, len(text.ids))[1].sum())


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


def _cells(figures: HeadFigures, beside: Sequence[Masked | None], head: int) -> Sequence[Cell]:
    """Return one head's figures, and some beside them, as an answer holds them: None where no destination counts."""
    columns = [*(getattr(figures, name) for name in FIGURES), *beside]
    return [None if column is None else column[head : head + 1].tolist()[0] for column in columns]


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


def _beside(recording: Recording, part: str | None) -> str:
    return "" if part in (None, recording.model.part) else f" of {part_named(str(part))}"


def _asked(calls: Sequence[Call], layer: int | None, head: int | None, recording: Recording, part: str | None) -> str:
    """Return which heads there are rows of, in words."""
    if head is None and any(call.heads < call.all_heads for call in calls):
        kept = sum(call.heads for call in calls)
        of = f" of layer {layer}" if layer is not None else ""
        return f"the {kept} head{'s' * (kept != 1)}{of} that the recording keeps{_beside(recording, part)}"
    layers = len({call.layer for call in calls})
    again = f", in {len(calls)} executions" if len(calls) > layers else ""
    return _scope(layers, layer, head) + _beside(recording, part) + again


def _scope(calls: int, layer: int | None, head: int | None) -> str:
    heads = "every head" if head is None else f"head {head}"
    if layer is not None:
        return f"{heads} of layer {layer}"
    return f"{heads} of {'1 layer' if calls == 1 else f'each of {calls} layers'}"


def _left_out(empty: int, calls: int, blank: bool, unkept: tuple[int, int]) -> str:
    counted = zip(unkept, ("head", "layer"), strict=True)
    heads, layers = (f"{count} {what}{'s' * (count != 1)}" if count else "" for count, what in counted)
    without = [heads] * bool(heads) + [f"all heads of {layers}"] * bool(layers)
    missing = [f"{' and '.join(without)} that the recording does not keep"] * bool(without)
    if calls:
        missing.append(f"{calls} call{'s' * (calls != 1)} in which not all of the text reads itself")
    said = [f"Left out: {'; '.join(missing)}." if missing else NONE_LEFT_OUT]
    if empty:
        rows = "1 row of a destination" if empty == 1 else f"{empty} rows of destinations"
        said.append(f"In no mean: {rows} that may read nothing.")
    if blank:
        said.append("Where no destination counts for a figure there is none.")
    return " ".join(said)
