"""What every source receives (floor 4): the attention that all destinations together give it, without n x n.

It is what policies for a key/value cache rank sources by: a source that has received little may be dropped from the
cache ("heavy hitters", Zhang et al. 2023, H2O, arXiv:2306.14048). It is a sum of shares of different rows, so the first
positions, which more destinations may read, can receive more.
"""

from __future__ import annotations

import numpy as np

from wherefrom.checks import whole
from wherefrom.questions.answer import Answer, Column
from wherefrom.questions.asked import REPEAT, Tally, calls_over_the_same, checked_scope, exactness_of
from wherefrom.questions.scanned import THRESHOLD, Progress, scans_of
from wherefrom.recording import Recording, check_recording

ASKED = ("received", "readers", "last_reader")


def received(
    recording: Recording,
    *,
    layer: int | None = None,
    head: int | None = None,
    kind: str = "self",
    part: str | None = None,
    repeat: int | None = None,
    threshold: float = THRESHOLD,
    top: int = 10,
    progress: Progress | None = None,
) -> Answer:
    """How much attention does every source receive from all destinations together? The most first.

    Args:
        recording: of any model.
        layer: one layer only; all unless given.
        head: one head of each layer only; all unless given.
        kind: "self", or "cross" for what the decoder reads of the encoder's text.
        part: "decoder", "encoder" or another tower's name; the part that predicts unless given.
        repeat: which execution of each layer's module; all unless given.
        threshold: the weight from which a destination counts as a reader.
        top: how many sources to return; the rest is the remainder.
        progress: told after each layer.

    Raises:
        InputError: a layer or head out of range or not kept, a recording without all destinations, top below 1.
    """
    recording = check_recording(recording)
    scope = checked_scope(recording, layer, head, kind, part, repeat)
    most = whole("top", top, least=1, way_out="Say how many rows you want.")
    calls = calls_over_the_same(recording, scope)
    readers, read = recording.texts_of(calls[0][0])
    tally, number, last = Tally.empty(len(read)), np.zeros(len(read), np.int64), np.full(len(read), -1, np.int64)
    scans = scans_of(recording, [call for call, _ in calls], ASKED, threshold=threshold)
    for done, ((call, heads), scan) in enumerate(zip(calls, scans, strict=True)):
        places = [call.place_of_head(chosen) for chosen in heads]
        tally.add(call, np.asarray(heads), scan["received"][places])
        number = np.maximum(number, scan["readers"][places].filled(0).max(axis=0))
        last = np.maximum(last, scan["last_reader"][places].filled(-1).max(axis=0))
        if progress is not None:
            progress(done + 1, len(calls))
    mean, largest, where = tally.mean, tally.largest, tally.where
    order = np.argsort(-mean, kind="stable")[:most]
    remainder = max(0.0, float(mean.sum() - mean[order].sum()))
    others = len(read) - len(order)
    rows = [
        (j, read[j].label, float(mean[j]), float(largest[j]), *map(int, where[j, :2]), int(number[j]), _last(last[j]))
        for j in order.tolist()
    ]
    columns = _columns(threshold)
    if any(call.repeat for call, _ in calls):
        columns = (*columns, REPEAT)
        rows = [(*row, int(where[j, 2])) for j, row in zip(order.tolist(), rows, strict=True)]
    given = f"{len(readers):,} destinations give {float(mean.sum()):.4f} in all"
    return Answer(
        question=f"How much attention does every source receive? {scope.describe(recording)}",
        columns=columns,
        rows=tuple(rows),
        exactness=exactness_of([call for call, _ in calls]),
        left_out=f"{_not_listed(others, remainder)}; {given}.",
        remainder=remainder,
        gaps=recording.gaps,
    )


def _not_listed(others: int, remainder: float) -> str:
    if not others:
        return "Nothing is left out"
    return f"Not listed: {others:,} more source{'s' * (others != 1)} with {remainder:.4f} rows"


def _last(position: np.int64) -> int | None:
    return None if position < 0 else int(position)


def _columns(threshold: float) -> tuple[Column, ...]:
    over = "mean over the heads asked for"
    return (
        Column("source", "", "position of the source, from 0"),
        Column("token", "", "the source's token"),
        Column("received", "rows", f"the weights that all destinations give it, added up, {over}"),
        Column("largest", "rows", "the same in the one head where it is largest"),
        Column("layer", "", "that head's layer"),
        Column("head", "", "that head"),
        Column(
            "readers",
            "destinations",
            f"how many give it at least {threshold:g}, in the head where most do",
        ),
        Column("last", "position", f"the last destination that gives it at least {threshold:g}, in any head"),
    )
