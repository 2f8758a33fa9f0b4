"""Tokens and predictions as arrays, and back one at a time when they are asked for (floor 2).

Takes `Token` and `Tokens` from below. A text of 100,000 tokens is opened without making 100,000 objects: what is
checked when it is opened is checked on whole arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wherefrom.recording.call import Array
from wherefrom.recording.contents import Prediction
from wherefrom.recording.layout import PREDICTIONS, TOKENS
from wherefrom.recording.lazy import Lazy
from wherefrom.recording.strict import broken
from wherefrom.spans import Token, Tokens, whole_text

Ints = NDArray[np.int64]
TAKE_APART = "Make the tokens with a tokenizer's own `Tokenizer.tokens_of`, and predictions with `record`."


class StoredTokens(Lazy[Token]):
    """The tokens of a file.

    Args:
        ids: [T]; spans: [T, 2]; data and labels: uint8, of all tokens behind one another; their ends: [T].
    """

    def __init__(self, ids: Ints, spans: Ints, data: Array, data_ends: Ints, labels: Array, label_ends: Ints) -> None:
        self._ids, self._spans = ids, spans
        self._data, self._data_ends, self._labels, self._label_ends = data, data_ends, labels, label_ends

    @cached_property
    def ids(self) -> tuple[int, ...]:
        """The vocabulary numbers, one a token."""
        return tuple(self._ids.tolist())

    def __len__(self) -> int:
        return len(self._ids)

    def item(self, place: int) -> Token:
        """Return the token at a place from 0."""
        data = _part(self._data, self._data_ends, place)
        start, end = self._spans[place].tolist()
        label = _part(self._labels, self._label_ends, place).decode()
        return Token(place, int(self._ids[place]), whole_text(data) or "", data, (start, end), label)


class StoredPredictions(Lazy[Prediction]):
    """The predictions of a file, from its arrays by name."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays = arrays

    @property
    def positions(self) -> Ints:
        """The positions that predict, [P]."""
        return self._arrays["positions"]

    @cached_property
    def _labels(self) -> dict[int, str]:
        of = self._arrays
        ids, labels, ends = of["label.ids"].tolist(), of["labels"], of["labels.ends"]
        return {number: _part(labels, ends, place).decode() for place, number in enumerate(ids)}

    def __len__(self) -> int:
        return len(self.positions)

    def item(self, place: int) -> Prediction:
        """Return the prediction at a place from 0."""
        of, rows = self._arrays, self._arrays["next.rows"]
        at = int(np.searchsorted(rows, place))
        known = at < len(rows) and int(rows[at]) == place
        return Prediction(
            position=int(of["positions"][place]),
            ids=tuple(of["ids"][place].tolist()),
            log_probabilities=tuple(of["log_probabilities"][place].tolist()),
            next_id=int(of["next.ids"][at]) if known else None,
            next_log_probability=float(of["next.log_probabilities"][at]) if known else None,
            labels=tuple(self._labels[number] for number in of["ids"][place].tolist()) if self._labels else (),
        )


def _part(whole: Array, ends: Ints, place: int) -> bytes:
    return whole[int(ends[place - 1]) if place else 0 : int(ends[place])].tobytes()


def tokens_as_arrays(path: Path, tokens: Tokens, prefix: str = "") -> dict[str, Array]:
    """Return the arrays of tokens, by their names in a file.

    Raises:
        RecordingError: a token that is not at its own place, or whose text is not that of its bytes; a text that is
            no UTF-8; numbers beyond 64 bits.
    """
    items = tuple(tokens.items)
    for place, token in enumerate(items):
        if token.position != place or token.text != (whole_text(token.data) or ""):
            expected = f"position {place}, and the text of its bytes"
            given = f"position {token.position}, text {token.text[:40]!r}"
            broken(path, f"token {place}", expected=expected, given=given, way_out=TAKE_APART, token=place)
    labels = [_utf8(path, f"the label of token {place}", token.label) for place, token in enumerate(items)]
    data = [token.data for token in items]
    found = {
        "ids": _whole(path, "ids", [token.id for token in items]),
        "spans": _whole(path, "spans", [token.span for token in items]).reshape(-1, 2),
        "data": _bytes(b"".join(data)),
        "data.ends": np.cumsum([len(piece) for piece in data], dtype=np.int64),
        "labels": _bytes(b"".join(labels)),
        "labels.ends": np.cumsum([len(label) for label in labels], dtype=np.int64),
        "text": _bytes(_utf8(path, "the text", tokens.text)),
    }
    return {prefix + name: array for name, array in found.items()}


def tokens_of_arrays(path: Path, arrays: Mapping[str, Array], prefix: str = "") -> Tokens:
    """Return the tokens that arrays hold, made one at a time when they are asked for.

    Raises:
        RecordingError: the arrays contradict one another, or bytes are no UTF-8.
    """
    of = {name: arrays[prefix + name] for name in ("ids", "spans", "data", "labels", "text")}
    ends = {name: arrays[f"{prefix}{name}.ends"] for name in ("data", "labels")}
    text = _text(path, f"{prefix}text in {TOKENS}", of["text"], TOKENS)
    _check_ends(path, f"{prefix}data", of["data"], ends["data"], TOKENS)
    _check_labels(path, f"{prefix}labels", of["labels"], ends["labels"], TOKENS)
    start, end = of["spans"].T
    if (of["ids"] < 0).any() or (start < 0).any() or (start > end).any() or (end > len(text)).any():
        expected = f"ids from 0, and spans within the text's {len(text)} characters"
        broken(path, f"{prefix}ids and {prefix}spans in {TOKENS}", expected=expected, given="others", file=TOKENS)
    stored = StoredTokens(of["ids"], of["spans"], of["data"], ends["data"], of["labels"], ends["labels"])
    return Tokens(text, stored)


def predictions_as_arrays(path: Path, predictions: Sequence[Prediction]) -> dict[str, Array]:
    """Return the arrays of predictions, by their names in a file.

    Raises:
        RecordingError: predictions of different lengths, a next token without its log-probability, or labels of some
            ids and not of others.
    """
    items = tuple(predictions)
    widths = {len(values) for item in items for values in (item.ids, item.log_probabilities)}
    alone = [item for item in items if (item.next_id is None) != (item.next_log_probability is None)]
    if len(widths) > 1 or alone:
        expected = "as many ids as log-probabilities in each, the same number, and a next token with its own"
        given = f"{', '.join(map(str, sorted(widths)))} ids" if len(widths) > 1 else f"{alone[0]}"[:100]
        broken(path, "the predictions", expected=expected, given=given, way_out=TAKE_APART)
    width = widths.pop() if widths else 0
    labels = _labels_of(path, items)
    data = [_utf8(path, f"the label of the token id {number}", label) for number, label in labels.items()]
    after = [place for place, item in enumerate(items) if item.next_id is not None]
    return {
        "positions": _whole(path, "positions", [item.position for item in items]),
        "ids": _whole(path, "ids", [item.ids for item in items]).reshape(len(items), width),
        "log_probabilities": _doubles([item.log_probabilities for item in items]).reshape(len(items), width),
        "label.ids": _whole(path, "label.ids", list(labels)),
        "labels": _bytes(b"".join(data)),
        "labels.ends": np.cumsum([len(label) for label in data], dtype=np.int64),
        "next.rows": np.array(after, dtype=np.int64),
        "next.ids": _whole(path, "next.ids", [items[place].next_id for place in after]),
        "next.log_probabilities": _doubles([items[place].next_log_probability for place in after]),
    }


def _labels_of(path: Path, items: Sequence[Prediction]) -> dict[int, str]:
    """Return the label of every id that is predicted, ids ascending; none where predictions have none."""
    labels: dict[int, str] = {}
    for item in items:
        same = all(labels.setdefault(*pair) == pair[1] for pair in zip(item.ids, item.labels, strict=False))
        if not same or len(item.labels) != (len(item.ids) if items[0].labels else 0):
            expected = "a label for every id or for none, the same wherever the id is"
            given = f"{item.labels!r}"[:100]
            broken(path, "the labels of the predictions", expected=expected, given=given, way_out=TAKE_APART)
    return dict(sorted(labels.items()))


def predictions_of_arrays(path: Path, arrays: Mapping[str, Array], tokens: int) -> StoredPredictions:
    """Return the predictions that arrays hold, made one at a time when they are asked for.

    Raises:
        RecordingError: positions beyond the tokens or twice, ids below 0, log-probabilities that are none.
    """
    positions, rows = arrays["positions"], arrays["next.rows"]
    places = len(np.unique(positions)) == len(positions) and _within(positions, tokens)
    places = places and _within(rows, len(positions)) and bool((np.diff(rows) > 0).all())
    logs = (arrays["log_probabilities"], arrays["next.log_probabilities"])
    ids = (arrays["ids"], arrays["next.ids"])
    if not places or any((each < 0).any() for each in ids) or not all((each < np.inf).all() for each in logs):
        expected = f"positions of {tokens} tokens, each once; ids from 0; log-probabilities that are numbers"
        broken(path, f"the numbers in {PREDICTIONS}", expected=expected, given="others", file=PREDICTIONS)
    _check_labels(path, "labels", arrays["labels"], arrays["labels.ends"], PREDICTIONS)
    known = arrays["label.ids"]
    if len(known) and not ((np.diff(known) > 0).all() and np.isin(arrays["ids"], known).all()):
        expected = "ascending ids, all that are predicted among them, or none"
        broken(path, f"label.ids in {PREDICTIONS}", expected=expected, given="others", file=PREDICTIONS)
    return StoredPredictions(arrays)


def _check_ends(path: Path, name: str, data: Array, ends: Ints, file: str) -> None:
    last = int(ends[-1]) if len(ends) else 0
    if last != len(data) or (np.diff(ends, prepend=0) < 0).any():
        expected = f"ends that ascend to the {len(data)} bytes of {name}"
        broken(path, f"{name}.ends in {file}", expected=expected, given="others", file=file)


def _check_labels(path: Path, name: str, data: Array, ends: Ints, file: str) -> None:
    """Refuse labels that are not UTF-8 one by one; they are made when they are asked for."""
    _text(path, f"{name} in {file}", data, file)
    _check_ends(path, name, data, ends, file)
    inside = ends[ends < len(data)]
    if ((data[inside] & 0xC0) == 0x80).any():  # where a label would begin, a character goes on
        expected, given = "ends between characters", "one inside a character"
        broken(path, f"{name}.ends in {file}", expected=expected, given=given, file=file)


def _within(numbers: Array, size: int) -> bool:
    return bool(((numbers >= 0) & (numbers < size)).all())


def _whole(path: Path, what: str, values: Sequence[Any]) -> Ints:
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        broken(path, what, expected="numbers of 64 bits", given="larger ones", way_out=TAKE_APART)


def _doubles(values: Sequence[Any]) -> NDArray[np.float64]:
    return np.array(values, dtype=np.float64)


def _bytes(data: bytes) -> Array:
    return np.frombuffer(data, dtype=np.uint8)


def _utf8(path: Path, what: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        given = f"{text[error.start]!a} at character {error.start}"
        broken(path, what, expected="text that UTF-8 can hold", given=given, way_out=TAKE_APART)


def _text(path: Path, what: str, data: Array, file: str) -> str:
    try:
        return data.tobytes().decode()
    except UnicodeDecodeError as error:
        broken(path, what, expected="UTF-8", given=f"{error.reason} at byte {error.start}", file=file)
