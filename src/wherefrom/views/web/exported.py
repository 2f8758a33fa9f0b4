"""A page that carries its answers (floor 6): one file of a short recording, which asks nobody and needs no server.

It is the explorer's own page, built into one script. What a server would be asked, the file holds answered, in the very
bytes that the server sends: gathered in blocks, packed (gzip) and written as base64, whose letters can end no tag; so
no token of a text ever stands in the page's markup. The page's policy lets nothing run but its own script, by its
digest, and lets nothing be fetched.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from wherefrom.errors import InputError
from wherefrom.questions import row_of_weights, window_of_weights
from wherefrom.questions.maps import TILE, HeadMap
from wherefrom.recording import Call, Recording
from wherefrom.views.cells import count
from wherefrom.views.web import contents
from wherefrom.views.web.app import STATIC, Explorer
from wherefrom.views.web.asked import ALL, Asked
from wherefrom.views.web.shelf import Shelf, listed
from wherefrom.views.web.wire import FACTS_TYPE, Message

PARTS = Path(__file__).parent / "page"
"""Where the built page lies: a script and a style sheet, to be written into the file."""
MOST_MB = 20.0
MEGABYTE = 1e6
CHUNK = 256
"""Tokens that the page asks for at once."""
UNITS = ("word", "sentence", "line")
ONE_BY_ONE = 8
"""Sources that the carried numbers show one by one."""
BEHIND = "behind"
"""A question of the page's own: what each weight of a head's row has behind its 24 bits, so that a pair's is exact."""
NO_MODEL = "A file cannot run a model: wherefrom explore measures."
TRIED, TRIED_TILES = 4, 64
"""Questions of each block that are answered to say beforehand how large a page will be; tiles differ more than rows."""
DOUBT = 1.5
"""What is forecast above the bound by more than this is not tried."""
SOME = 3
"""Numbers that a refusal repeats."""
DIGITS = 10
"""Those in which a page states its own size, so that the statement does not change it."""
Progress: TypeAlias = Callable[[int, int], None]
Parameters: TypeAlias = Mapping[str, str | int]
Question: TypeAlias = tuple[str, Parameters]
Answered: TypeAlias = tuple[str, str, bytes]
"""A question's key in its block, what its answer is ("json", "arrays", "refused"), its bytes."""


@dataclass(frozen=True)
class Carried:
    """What a page carries of a recording, besides its text, its heads' kinds and thumbnails.

    Args:
        recording: which one.
        key: what the page calls it.
        heads: (layer, head) by their true numbers: their maps, rows, columns and numbers.
        layers: rows and columns of all heads of each of these layers; None: of every layer.
        positions: of which rows, columns and numbers are carried; None: of all.
        moved: whether rows and columns by what is moved are carried beside those by weight.

    Raises:
        InputError: no such head, none of these layers or positions, or "moved" of a recording without output
            projections.
    """

    recording: Recording
    key: str
    heads: tuple[tuple[int, int], ...] = ()
    layers: tuple[int, ...] | None = None
    positions: tuple[int, ...] | None = None
    moved: bool = False

    def __post_init__(self) -> None:
        for layer, head in self.heads:
            if not any(call.layer == layer and head in call.head_numbers for call in self.recording.calls):
                raise InputError(
                    "the head",
                    expected="one that the recording holds",
                    given=f"head {head} of layer {layer}",
                    way_out="wherefrom info says which there are.",
                    layer=layer,
                    head=head,
                )
        among = {"layers": (self.layers, self.calls), "positions": (self.positions, self._among(len(self.recording)))}
        for what, (asked, found) in among.items():
            if asked is not None and not found:
                raise InputError(
                    f"the {what}",
                    expected="some that the recording holds",
                    given=_listed([*map(str, asked[:SOME]), *(["others"] if asked[SOME:] else [])]) or "none",
                    way_out="wherefrom info says which there are.",
                )
        if self.moved and not all("output" in call.shapes for call in self.recording.calls):
            raise InputError(
                "what is moved",
                expected="a recording with its layers' output projections",
                given="one without",
                way_out="Leave --moved out, or record without --no-output.",
            )

    @property
    def lenses(self) -> tuple[str, ...]:
        """The lenses whose rows and columns are carried."""
        return ("weight", "moved") if self.moved else ("weight",)

    @cached_property
    def alike(self) -> list[int]:
        """For each call the first of the same kind, part and repetition: all of them together are asked by it."""
        kinds = [(call.kind, call.part, call.repeat) for call in self.recording.calls]
        return [kinds.index(kind) for kind in kinds]

    @cached_property
    def calls(self) -> list[int]:
        """The calls of whose heads together rows and columns are carried."""
        every = enumerate(self.recording.calls)
        return [index for index, call in every if self.layers is None or call.layer in self.layers]

    @cached_property
    def chosen(self) -> list[tuple[int, int]]:
        """The calls and heads whose maps, rows, columns and numbers are carried."""
        return [
            (index, head)
            for layer, head in self.heads
            for index, call in enumerate(self.recording.calls)
            if call.layer == layer and head in call.head_numbers
        ]

    @cached_property
    def first(self) -> dict[str, int | None]:
        """What the page shows where nothing is chosen: the last position of what it carries."""
        usual = contents.suggested(self.recording)
        if not self.recording.calls:
            return {**usual, "head": None}
        calls = [usual["call"]] if usual["call"] in self.calls else self.calls
        call, head = self.chosen[0] if self.chosen else (calls[len(calls) // 2], None)
        rows = self._rows(self.recording.calls[call]) or [usual["destination"]]
        return {"call": call, "head": head, "destination": rows[-1]}

    def questions(self) -> Iterator[list[Question]]:
        """Yield what is asked, block by block; what takes longest to answer comes last."""
        return (block for block in self._blocks() if block)

    def _blocks(self) -> Iterator[list[Question]]:
        recording = self.recording
        yield [("runs", {})]
        yield [("run", {})]
        texts = contents.texts_of(recording)
        yield [
            ("tokens", {"text": number, "start": start, "count": CHUNK})
            for number, text in enumerate(texts)
            for start in range(0, len(text), CHUNK)
        ]
        yield [("units", {"text": number, "by": by}) for number in range(len(texts)) for by in UNITS]
        for like in sorted(set(self.alike)):
            yield from self._edges({"call": ALL, "head": ALL, "like": like}, recording.calls[like])
        for index in self.calls:
            yield from self._edges({"call": index, "head": ALL}, recording.calls[index])
        for index, head in self.chosen:
            call, one = recording.calls[index], {"call": index, "head": head}
            yield from self._edges(one, call, columns=(0,))  # the strip beside the map
            rows = self._rows(call)
            yield [("tile", {**one, **tile}) for tile in _tiles(HeadMap(call, head))]
            yield [("numbers", {**one, "destination": at, "sources": ONE_BY_ONE}) for at in rows]
            yield [(BEHIND, {**one, "destination": at}) for at in rows]
        for index in range(len(recording.calls)):
            yield [("heads", {"call": index})]

    def _edges(self, whose: Parameters, call: Call, columns: Iterable[int] = ()) -> Iterator[list[Question]]:
        every = sorted({*columns, *self._among(call.sources)})
        for lens in self.lenses:
            asked = {**whose, "lens": lens}
            yield [("row", {**asked, "destination": at}) for at in self._among(call.destinations)]
            yield [("column", {**asked, "source": at}) for at in every]

    def _rows(self, call: Call) -> list[int]:
        return [at for at in self._among(call.destinations) if call.all_rows or at in call.rows]

    def _among(self, size: int) -> Sequence[int]:
        return range(size) if self.positions is None else [at for at in self.positions if 0 <= at < size]

    def said(self) -> tuple[str, str]:
        """Return what the page carries, and what it leaves out, each as a sentence."""
        recording = self.recording
        every = sum(len(call.head_numbers) for call in recording.calls)
        names = _listed([f"head {head} of layer {layer}" for layer, head in self.heads])
        layers = "each layer" if self.layers is None else _listed([f"layer {layer}" for layer in self.layers])
        at = "" if self.positions is None else f" at {len(self.positions):,} of {len(recording):,} positions"
        carries = (
            f"Carries the text of {count(len(recording), 'token')}, kind and thumbnail of {count(every, 'head')}, and "
            f"rows and columns{at} by {' and '.join(self.lenses)}, of all heads together and of {layers}"
            + (f"; of {names} also the map, rows, columns and numbers." if self.heads else ".")
        )
        left = [
            f"rows, maps and numbers of {'the other' if self.heads else 'single'} heads",
            *([] if self.layers is None else ["the other layers' rows and columns"]),
            *([] if self.positions is None else ["the other positions' rows and columns"]),
            *([] if self.moved else ["what is moved"]),
        ]
        return carries, f"Leaves out {_listed([*left, 'measuring: a file cannot run a model'])}."


@dataclass(frozen=True)
class Page:
    """A page, whole.

    Attributes:
        content: its bytes.
        carries: what it holds, as a sentence.
        leaves_out: what it does not, likewise.
    """

    content: bytes
    carries: str
    leaves_out: str


def exported(
    carried: Carried,
    *,
    most: float = MOST_MB,
    foretold: Callable[[int], None] | None = None,
    progress: Progress | None = None,
) -> Page:
    """Return a page.

    Args:
        carried: what of which recording.
        most: megabytes that it may have.
        foretold: called before with about how many bytes it will have.
        progress: called with the questions answered so far and all of them.

    Raises:
        InputError: it is larger.
    """
    enough = DOUBT * most * MEGABYTE
    forecast = forecast_bytes(carried, enough)
    if forecast > enough:
        _refuse(forecast, most, "at least about ")
    if foretold is not None:
        foretold(forecast)
    blocks = list(carried.questions())
    total, done, packed = sum(map(len, blocks)), 0, {}
    answers = _Answers(carried)
    for block in blocks:
        packed[block_of(*block[0])] = _packed(map(answers.of, block))
        done += len(block)
        if progress is not None:
            progress(done, total)
    carries, leaves_out = carried.said()
    facts = {
        "run": carried.key,
        "carries": carries,
        "leavesOut": leaves_out,
        "alike": carried.alike,
        "layers": [call.layer for call in carried.recording.calls],
        "spans": [[token.span for token in text] for text in contents.texts_of(carried.recording)],
        "first": carried.first,
        "noModel": NO_MODEL,
    }
    content = _document(facts, packed)
    if len(content) > most * MEGABYTE:
        _refuse(len(content), most)
    return Page(content, carries, leaves_out)


def forecast_bytes(carried: Carried, enough: float = math.inf) -> int:
    """Return about how many bytes a page will have, by answering a few of its questions.

    Args:
        carried: what it carries.
        enough: bytes; of a page that has more than these no more is asked, and what is returned is a part of it.
    """
    answers, size = _Answers(carried), len(_document({}, {}))
    for block in carried.questions():
        if size > enough:
            break
        size += _forecast_block(answers, block)
    return size


def _forecast_block(answers: _Answers, block: list[Question]) -> int:
    """Return about how many bytes a block has: of some answers, and of each other as many as half of these add."""
    # Of a tile both that have the same place, often one answer.
    together, most = (2, TRIED_TILES) if block[0][0] == "tile" else (1, TRIED)
    places = range(0, len(block), together * math.ceil(len(block) / most))
    tried = [[answers.of(question) for question in block[at : at + together]] for at in places]
    (number, size), (fewer, part) = (
        (len(some), len(_packed(some))) for some in map(list, map(chain.from_iterable, (tried, tried[::2])))
    )
    return size + (len(block) - number) * max(0, size - part) // max(1, number - fewer)


def _refuse(size: float, most: float, about: str = "") -> None:
    raise InputError(
        "the page",
        expected=f"at most {most:g} MB",
        given=f"{about}{size / MEGABYTE:,.1f} MB",
        way_out="Take fewer positions (--positions), layers (--layers) or heads (--head), or allow more (--most-mb).",
        size=int(size),
        most=most,
    )


class _Answers:
    """The explorer's own answers."""

    def __init__(self, carried: Carried) -> None:
        self._shelf = Shelf([(carried.key, carried.recording)])
        self._explorer, self._own = Explorer(self._shelf), carried

    def of(self, question: Question) -> Answered:
        name, parameters = question
        key = key_of(name, parameters)
        if name == "runs":
            return key, "json", listed(self._shelf).packed()[1]
        asked = Asked({"run": self._own.key, **{own: str(value) for own, value in parameters.items()}})
        if name == BEHIND:
            return key, "arrays", self._behind(*map(asked.number, ("call", "head", "destination")))
        try:
            kind, body = self._explorer.answer(name, self._own.recording, asked)
        except InputError as error:  # as the server would answer it
            return key, "refused", _json({"error": str(error)})
        return key, "json" if kind == FACTS_TYPE else "arrays", body

    def _behind(self, index: int, head: int, destination: int) -> bytes:
        call = self._own.recording.calls[index]
        row = row_of_weights(call, destination)[call.place_of_head(head)].filled(0.0)
        exact = window_of_weights(call, head, range(destination, destination + 1), range(call.sources))[0].filled(0.0)
        return Message({}, {"values": (exact - row.astype(np.float32)).astype(np.float32)}).packed()[1]


def block_of(name: str, parameters: Parameters) -> str:
    """Return which block a question's answer is in, as the page finds it too."""
    return " ".join([name, *(str(parameters[own]) for own in ("call", "head", "like", "lens") if own in parameters)])


def key_of(name: str, parameters: Parameters) -> str:
    """Return what an answer is found by: the question's name and parameters, in the order of their names."""
    return f"{name}?{'&'.join(f'{own}={value}' for own, value in sorted(parameters.items()))}"


def _packed(answers: Iterable[Answered]) -> str:
    """Return answers as base64 of gzip of: the length of an index, the index, the bytes, each different answer once."""
    index, bodies, places, end = [], [], {}, 0
    for key, kind, body in answers:
        if body not in places:
            places[body] = end, end + len(body)
            bodies.append(body)
            end += len(body)
        index.append([key, kind, *places[body]])
    head = _json(index)
    packed = gzip.compress(b"".join([len(head).to_bytes(4, "little"), head, *bodies]), 9, mtime=0)
    return base64.b64encode(packed).decode("ascii")


def _json(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()


def _tiles(map_: HeadMap) -> Iterator[dict[str, str | int]]:
    for level in range(map_.levels):
        rows, columns = (math.ceil(size / (TILE << level)) for size in map_.shape)
        for row in range(rows):
            for column in range(columns):
                for of in ("largest", "mean"):
                    yield {"level": level, "row": row, "column": column, "of": of}


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


def _document(facts: dict[str, Any], packed: dict[str, str]) -> bytes:
    """Return the file. All of it that is not ours is base64."""
    script, style = ((PARTS / name).read_text(encoding="utf-8") for name in ("page.js", "page.css"))
    icon = base64.b64encode((STATIC / "favicon.svg").read_bytes()).decode("ascii")
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src '{_digest(script)}'",
            f"style-src '{_digest(style)}'",
            "img-src data: blob:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    about = base64.b64encode(_json(facts)).decode("ascii")
    data = "\n".join(
        f'<script type="application/octet-stream" data-block="{html.escape(name)}">{body}</script>'
        for name, body in packed.items()
    )
    whole = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>wherefrom</title>
<link rel="icon" href="data:image/svg+xml;base64,{icon}">
<style>{style}</style>
</head>
<body>
<div id="page"><noscript>This page draws itself with a script of its own; it asks nobody.</noscript></div>
<script type="application/octet-stream" id="about" data-size="{0:0{DIGITS}}">{about}</script>
{data}
<script>{script}</script>
</body>
</html>
"""
    size = len(whole.encode())
    return whole.replace(f'data-size="{0:0{DIGITS}}"', f'data-size="{size:0{DIGITS}}"', 1).encode()


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
