"""A page that carries its answers: what it carries against what the explorer answers, and that nothing in it acts."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import pytest
from safetensors.numpy import load as load_arrays
from starlette.testclient import TestClient

from by_hand import MASKS, keeping, random_call, recording_of
from command_line import Ended, typed
from recordings import tokens_of
from wherefrom import InputError, Mask, save_recording
from wherefrom.recording import Recording
from wherefrom.views.web import exported as exported_module
from wherefrom.views.web import told
from wherefrom.views.web.app import explorer
from wherefrom.views.web.exported import BEHIND, Carried, exported, forecast_bytes
from wherefrom.views.web.shelf import Shelf

KEY = "by hand"
HOSTILE = ("</script><img src=x onerror=alert(1)>", "]]>&amp;'\"", "אבג", "\u200b\u202e", "🙂", "中文")


class _Parsed(HTMLParser):
    """A page, read as a browser reads it."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.policy, self.size = "", 0
        self.texts: dict[str, str] = {}
        self.packed: dict[str, str] = {}
        self._into: str | None = None
        self.feed(page.decode())
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        own = {name: value or "" for name, value in attrs}
        assert not any(name.startswith("on") for name in own)
        if own.get("http-equiv") == "Content-Security-Policy":
            self.policy = own["content"]
        self.size = int(own.get("data-size", self.size))
        self._into = own.get("data-block") or own.get("id") or tag

    def handle_data(self, data: str) -> None:
        if self._into is not None and data.strip():
            self.texts[self._into] = self.texts.get(self._into, "") + data

    def handle_endtag(self, tag: str) -> None:
        self._into = None

    @property
    def about(self) -> dict[str, Any]:
        return json.loads(base64.b64decode(self.texts["about"], validate=True))

    def answers(self) -> Iterator[tuple[str, str, str, bytes]]:
        """Yield every answer: its block, its key, what it is, its bytes."""
        ours = {"about", "page", "script", "style", "title", "noscript"}
        for name in self.texts.keys() - ours:
            whole = gzip.decompress(base64.b64decode(self.texts[name], validate=True))
            start = 4 + int.from_bytes(whole[:4], "little")
            for key, kind, first, last in json.loads(whole[4:start]):
                yield name, key, kind, whole[start:][first:last]


@pytest.fixture
def recording() -> Recording:
    calls = random_call(MASKS["causal"]), random_call(MASKS["window of 3"], layer=1, seed=5)
    return replace(recording_of(*calls, letters="abcabca"), tokens=tokens_of(*HOSTILE))


def carried(recording: Recording, **how: Any) -> Carried:
    return Carried(recording, KEY, **how)


def keys(page: _Parsed) -> set[str]:
    return {key for _, key, _, _ in page.answers()}


def test_every_answer_is_what_the_explorer_sends(recording: Recording) -> None:
    page = _Parsed(exported(carried(recording, heads=((1, 3),))).content)
    with TestClient(explorer(Shelf([(KEY, recording)]), port=8765), base_url="http://127.0.0.1:8765") as client:
        seen = 0
        for _, key, kind, body in page.answers():
            name, _, words = key.partition("?")
            if name == BEHIND:
                continue
            answer = client.get(f"/api/{name}", params={"run": KEY, **dict(parse_qsl(words))})
            assert answer.status_code == (400 if kind == "refused" else 200)
            sent = answer.content
            if name == "run":  # a page in a file needs not be told from another server's
                version = json.loads(sent)["version"]
                sent = sent.replace(f',"version":{json.dumps(version)}'.encode(), b"")
            assert body == sent, key
            seen += 1
    assert seen == len(keys(page)) - 7 > 60


def test_a_weight_of_a_row_and_what_is_behind_it_are_the_exact_one(recording: Recording) -> None:
    found = {key: body for _, key, _, body in _Parsed(exported(carried(recording, heads=((1, 3),))).content).answers()}
    for destination in range(7):
        row = load_arrays(found[f"row?call=1&destination={destination}&head=3&lens=weight"])["values"]
        behind = load_arrays(found[f"{BEHIND}?call=1&destination={destination}&head=3"])["values"]
        assert np.abs(behind).max() > 0 or destination == 0
        for source in range(7):
            exact = told.pair(recording, 1, 3, destination, source).facts["weight"]
            assert abs(float(row[source]) + float(behind[source]) - exact) <= 1e-14


def test_what_is_carried_and_what_is_not(recording: Recording) -> None:
    found = keys(_Parsed(exported(carried(recording, heads=((1, 3),), moved=False)).content))
    assert {"runs?", "run?", "heads?call=0", "heads?call=1", "units?by=line&text=0"} <= found
    assert "row?call=all&destination=6&head=all&lens=weight&like=0" in found
    assert "column?call=0&head=all&lens=weight&source=2" in found
    assert "tile?call=1&column=0&head=3&level=0&of=mean&row=0" in found
    assert "numbers?call=1&destination=6&head=3&sources=8" in found
    assert not [key for key in found if "head=2" in key or "lens=moved" in key]
    some = keys(_Parsed(exported(carried(recording, layers=(1,), positions=(2, 6))).content))
    rows = {f"row?call=1&destination={at}&head=all&lens=weight" for at in (2, 6)}
    every = {f"row?call=all&destination={at}&head=all&lens=weight&like=0" for at in (2, 6)}
    assert {key for key in some if key.startswith("row")} == rows | every


@pytest.mark.parametrize(
    ("chosen", "first"),
    [
        ({}, {"call": 1, "head": None, "destination": 6}),
        ({"positions": (2, 4)}, {"call": 1, "head": None, "destination": 4}),
        ({"layers": (0,)}, {"call": 0, "head": None, "destination": 6}),
        ({"layers": (0,), "heads": ((1, 3),), "positions": (3,)}, {"call": 1, "head": 3, "destination": 3}),
    ],
)
def test_a_page_opens_at_something_that_it_carries(
    recording: Recording, chosen: dict[str, Any], first: dict[str, Any]
) -> None:
    page = _Parsed(exported(carried(recording, **chosen)).content)
    assert page.about["first"] == first
    head = "all" if first["head"] is None else first["head"]
    assert f"row?call={first['call']}&destination={first['destination']}&head={head}&lens=weight" in keys(page)
    if first["head"] is not None:  # the strip beside the map is what rests on the first token
        assert f"column?call={first['call']}&head={head}&lens=weight&source=0" in keys(page)


def test_a_page_of_rows_that_were_not_kept_opens_where_one_was(recording: Recording) -> None:
    partial = replace(recording, calls=(keeping(random_call(MASKS["causal"]), range(6), [2, 4]),))
    assert carried(partial).first == {"call": 0, "head": None, "destination": 4}
    assert carried(partial, positions=(1, 2, 3)).first["destination"] == 2
    assert carried(partial, positions=(1, 3)).first["destination"] == 4


def test_layers_and_positions_that_are_not_there_are_refused(recording: Recording) -> None:
    with pytest.raises(InputError, match=r"the layers: expected some that the recording holds, got 7 and 9\."):
        carried(recording, layers=(7, 9))
    with pytest.raises(InputError, match=r"the positions: expected some .* got -1, 7, 8 and others\."):
        carried(recording, positions=(-1, 7, 8, 9))
    with pytest.raises(InputError, match=r"the positions: expected some .* got none\."):
        carried(recording, positions=())


def test_what_is_moved(recording: Recording) -> None:
    with pytest.raises(InputError, match="what is moved: expected a recording with"):
        carried(replace(recording, calls=tuple(replace(call, output=None) for call in recording.calls)), moved=True)


def test_a_refusal_is_carried_as_the_sentence_it_is(recording: Recording) -> None:
    partial = replace(recording, calls=(keeping(random_call(MASKS["causal"]), range(6), [2, 6]),))
    answers = {key: (kind, body) for _, key, kind, body in _Parsed(exported(carried(partial)).content).answers()}
    kind, body = answers["row?call=0&destination=3&head=all&lens=weight"]
    assert kind == "refused"
    assert "3" in json.loads(body)["error"]
    assert answers["row?call=0&destination=6&head=all&lens=weight"][0] == "arrays"


def test_no_token_stands_in_the_markup(recording: Recording) -> None:
    content = exported(carried(recording, heads=((0, 0),)), most=5).content
    page = _Parsed(content)
    assert set(page.tags) == {"html", "head", "meta", "title", "link", "style", "body", "div", "noscript", "script"}
    for token in HOSTILE:
        assert token.encode() not in content
    packed = next(body for _, key, _, body in page.answers() if key.startswith("tokens"))
    header = json.loads(packed[8 : 8 + int.from_bytes(packed[:8], "little")])
    own = [own for _, own in json.loads(header["__metadata__"]["facts"])["tokens"]]
    assert own == [*HOSTILE[:4], "🙂", "", "中文"]  # there as they are, to be drawn as text


def test_nothing_runs_but_its_own_script_and_nothing_is_fetched(recording: Recording) -> None:
    content = exported(carried(recording)).content
    page = _Parsed(content)
    directives = dict(part.split(" ", 1) for part in page.policy.split("; "))
    digest = {
        name: "'sha256-" + base64.b64encode(hashlib.sha256(page.texts[name].encode()).digest()).decode() + "'"
        for name in ("script", "style")
    }
    assert directives == {
        "default-src": "'none'",
        "script-src": digest["script"],
        "style-src": digest["style"],
        "img-src": "data: blob:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert content.index(b"Content-Security-Policy") < content.index(b"<style>")
    assert not re.search(
        r"""(?:src|href)=["'](?!data:)|@import|url\((?!data:)""",
        re.sub(r"<script>.*?</script>", "", content.decode(), flags=re.DOTALL),
    )
    assert "<script" not in page.texts["script"].lower()  # nothing that a parser could take for a tag of the page
    assert "\r" not in page.texts["script"] + page.texts["style"]


def test_it_says_its_size_and_what_it_leaves_out(recording: Recording) -> None:
    made = exported(carried(recording, heads=((1, 3),), positions=(2, 6)))
    page = _Parsed(made.content)
    assert page.size == len(made.content)
    assert (page.about["carries"], page.about["leavesOut"]) == (made.carries, made.leaves_out)
    assert made.carries == (
        "Carries the text of 7 tokens, kind and thumbnail of 12 heads, and rows and columns at 2 of 7 positions by "
        "weight, of all heads together and of each layer; of head 3 of layer 1 also the map, rows, columns and numbers."
    )
    assert made.leaves_out == (
        "Leaves out rows, maps and numbers of the other heads, the other positions' rows and columns, what is moved "
        "and measuring: a file cannot run a model."
    )
    assert page.about["first"] == {"call": 1, "head": 3, "destination": 6}
    assert exported(carried(recording, heads=((1, 3),), positions=(2, 6))).content == made.content


def test_too_large_a_page_is_refused_before_it_is_made(recording: Recording) -> None:
    own, told_before = carried(recording), []
    size = len(exported(own, foretold=told_before.append).content)
    assert told_before == [forecast_bytes(own)]
    assert 0.7 < told_before[0] / size < 1.4
    with pytest.raises(
        InputError, match=r"the page: expected at most 0.3 MB, got at least about \d.\d MB. Take fewer positions"
    ):
        exported(own, most=0.3, progress=lambda done, total: pytest.fail("it was begun"))
    with pytest.raises(InputError, match=r"the page: expected at most [\d.]+ MB, got \d.\d MB."):
        exported(own, most=(size - 1) / 1e6)
    assert len(exported(own, most=(size + 0.5) / 1e6).content) == size


def test_of_a_page_that_is_much_too_large_little_is_asked(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, right, asked = carried(recording, heads=((0, 1),)), exported_module._Answers.of, []

    def of(self: object, question: tuple[str, dict[str, object]]) -> object:
        asked.append(question[0])
        return right(self, question)

    monkeypatch.setattr(exported_module._Answers, "of", of)
    whole, every = forecast_bytes(own), asked[:]
    assert every[-2:] == ["heads", "heads"]  # what scans whole maps comes last
    asked.clear()
    part = forecast_bytes(own, whole / 2)
    assert whole / 2 < part < whole
    assert asked == every[: len(asked)]
    assert len(asked) < len(every) - 2


@pytest.mark.parametrize("length", [600, 1100])
def test_of_a_map_of_several_tiles_the_forecast_is_near_too(length: int) -> None:
    long = recording_of(random_call(MASKS["causal"], length=length), letters="ab" * (length // 2))
    own, told_before = carried(long, heads=((0, 1),), positions=(length - 1,)), []
    size = len(exported(own, foretold=told_before.append).content)
    assert 0.9 < told_before[0] / size < 1.15


@pytest.mark.parametrize("heads", [(), ((0, 1),)])
@pytest.mark.parametrize("window", [1, 3, 30])
def test_of_rows_that_are_mostly_empty_the_forecast_is_near_too(
    window: int, heads: tuple[tuple[int, int], ...]
) -> None:
    own = carried(recording_of(random_call(Mask(window=window), length=300), letters="abc" * 100), heads=heads)
    assert 0.9 < forecast_bytes(own) / len(exported(own).content) < 1.2


@pytest.fixture
def file(recording: Recording, tmp_path: Path) -> Path:
    save_recording(recording, tmp_path / "hand.wherefrom")
    return tmp_path / "hand.wherefrom"


def export(file: Path, *arguments: object) -> Ended:
    return typed(file.parent, "export", file, *arguments)


def test_the_command(file: Path) -> None:
    page = file.with_name("page.html")
    ended = export(file, page, "--head", "1.3", "--positions", "2,6")
    assert (ended.code, ended.err.startswith("about ")) == (0, True)
    size, carries, leaves_out = ended.out.splitlines()
    parsed = _Parsed(page.read_bytes())
    assert size == f"{page}: {len(page.read_bytes()) / 1e6:.1f} MB" or size.startswith(f"{page}: ")
    assert (carries, leaves_out) == (parsed.about["carries"], parsed.about["leavesOut"])
    assert parsed.about["run"] == "hand"
    before = page.read_bytes()
    ended = export(file, page)
    assert (ended.code, ended.out, page.read_bytes()) == (2, "", before)
    assert "expected nothing there yet, got a file. Choose another path, or replace it with --overwrite." in ended.err
    assert export(file, page, "--overwrite").code == 0
    assert page.read_bytes() != before
    assert {path.name for path in file.parent.iterdir()} == {"hand.wherefrom", "page.html"}


def test_a_recording_that_one_stands_in_has_its_name(file: Path) -> None:
    assert typed(file, "export", ".", file.parent / "page.html").code == 0
    assert _Parsed((file.parent / "page.html").read_bytes()).about["run"] == "hand"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("page.txt",), "a name that ends in .html"),
        (("page.html", "--head", "3"), '--head: expected a layer and a head such as "14.3", got "3".'),
        (("page.html", "--head", "1.6"), "the head: expected one that the recording holds, got head 6 of layer 1."),
        (("page.html", "--layers", "2"), "--layers: expected numbers from 0 to 1, and ranges that end at 2 or before"),
        (("page.html", "--positions", "7"), "--positions: expected numbers from 0 to 6"),
        (("page.html", "--most-mb", "0.1"), "the page: expected at most 0.1 MB, got at least about"),
        (("none/page.html",), "expected a folder that is there"),
    ],
)
def test_a_page_that_cannot_be_is_refused(file: Path, arguments: tuple[str, ...], sentence: str) -> None:
    ended = export(file, file.parent / arguments[0], *arguments[1:])
    assert (ended.code, ended.out) == (2, "")
    assert sentence in ended.err
    assert {path.name for path in file.parent.iterdir()} == {"hand.wherefrom"}
