"""The explorer's answers against the questions in Python, and who is let in."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load as load_arrays
from starlette.testclient import TestClient

import wherefrom
from by_hand import MASKS, keeping, random_call, recording_of
from kinds import small_model
from recordings import with_everything
from wherefrom import InputError, save_recording
from wherefrom.attention import Mask
from wherefrom.questions import column_of_weights, row_of_weights
from wherefrom.questions.maps import HeadMap
from wherefrom.questions.worked import worked_row
from wherefrom.recording import Recording
from wherefrom.views.web.app import STATIC, explorer
from wherefrom.views.web.finding import is_blank, places
from wherefrom.views.web.guard import Guard
from wherefrom.views.web.kept import Kept
from wherefrom.views.web.shelf import Shelf

PORT = 8765
HOST = f"127.0.0.1:{PORT}"
HOSTILE = "a</b>\u05d0"


def client(shelf: Shelf, **how: Any) -> TestClient:
    return TestClient(explorer(shelf, port=PORT, **how), base_url=f"http://{HOST}")


@pytest.fixture
def recording() -> Recording:
    causal = MASKS["causal"]
    return recording_of(random_call(causal), random_call(MASKS["window of 3"], layer=1, seed=5), letters="abcabca")


@pytest.fixture
def page(recording: Recording) -> Iterator[TestClient]:
    with client(Shelf([("hand", recording)])) as made:
        yield made


def arrays(answer: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The facts and the arrays of an answer, read as the page reads them."""
    assert answer.status_code == 200, answer.text
    size = int.from_bytes(answer.content[:8], "little")
    header = json.loads(answer.content[8 : 8 + size])
    found = load_arrays(answer.content)
    for name, array in found.items():
        start, _ = header[name]["data_offsets"]
        assert (8 + size + start) % array.dtype.itemsize == 0  # a typed array can lie on it
    return json.loads(header["__metadata__"]["facts"]), found


def test_what_there_is(page: TestClient, recording: Recording) -> None:
    line = {"key": "hand", "model": "by hand", "tokens": 7, "calls": 2}
    assert page.get("/api/runs").json() == {"runs": [line], "more": False, "most": 1000, "folder": False}
    facts = page.get("/api/run", params={"run": "hand"}).json()
    assert facts["model"]["name"] == "by hand"
    assert facts["texts"] == [{"tokens": 7, "numbered": False}]
    assert [(call["layer"], call["heads"], call["window"]) for call in facts["calls"]] == [
        (0, [0, 1, 2, 3, 4, 5], None),
        (1, [0, 1, 2, 3, 4, 5], 3),
    ]
    assert [(own["layer"], own["call"], own["gap"]) for own in facts["layers"]] == [(0, [0], None), (1, [1], None)]
    assert facts["default"] == {"call": 1, "destination": 6}
    assert facts["checks"] == "0 of 2 calls"


@pytest.mark.parametrize("head", [0, 5])
@pytest.mark.parametrize("call", [0, 1])
def test_rows_and_columns_are_those_of_python(page: TestClient, recording: Recording, call: int, head: int) -> None:
    asked = {"run": "hand", "call": call, "head": head, "lens": "weight"}
    for at in range(7):
        facts, found = arrays(page.get("/api/row", params={**asked, "destination": at}))
        expected = row_of_weights(recording.calls[call], at)[head]
        assert np.allclose(found["values"], expected, atol=1e-7)
        assert (facts["heads"], facts["empty"], facts["sink"]) == (1, False, None)
        assert facts["largest"] == {"at": int(expected.argmax()), "value": pytest.approx(float(expected.max()))}
        assert np.array_equal(found["permitted"] == 1, expected > 0)
        facts, found = arrays(page.get("/api/column", params={**asked, "source": at}))
        expected = column_of_weights(recording.calls[call], at)[head]
        assert np.allclose(found["values"], expected, atol=1e-7)
        assert np.array_equal(found["permitted"] == 1, expected > 0)


def sent_to(app: Guard, *received: dict[str, Any], method: str = "GET", path: str, **scope: Any) -> list[Any]:
    """What an application sends for a request of which it receives these messages, the last one again and again."""
    asked = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": [(b"host", HOST.encode())]}
    sent: list[Any] = []
    left = list(received)

    async def receive() -> dict[str, Any]:
        return left.pop(0) if len(left) > 1 else left[0]

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(asked | scope, receive, send))
    return sent


GONE = {"type": "http.disconnect"}


def body(part: bytes, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": part, "more_body": more}


@pytest.mark.parametrize(("gone", "status"), [(True, 499), (False, 200)])
def test_what_nobody_waits_for_is_not_computed(recording: Recording, gone: bool, status: int) -> None:
    app = explorer(Shelf([("hand", recording)]), port=PORT)
    sent = sent_to(app, GONE if gone else body(b""), path="/api/run", query_string=b"run=hand")
    assert sent[0]["status"] == status


TOO_LONG = (413, b"Expected at most 65,536 bytes.")


@pytest.mark.parametrize(
    ("method", "path", "received", "expected"),
    [
        ("POST", "/api/jobs", [body(b"{", more=True), GONE], (499, b"")),
        ("POST", "/api/jobs", [body(b"x" * 40_000, more=True), body(b"x" * 40_000, more=True), GONE], TOO_LONG),
        ("POST", "/api/jobs", [body(b"x" * 70_000)], TOO_LONG),
        ("GET", "/api/runs", [body(b"x" * 70_000)], TOO_LONG),
    ],
)
def test_a_body_that_breaks_off_or_is_too_long_is_no_fault(
    recording: Recording, method: str, path: str, received: list[Any], expected: tuple[int, bytes], capsys: Any
) -> None:
    """A body that comes in chunks has no length beforehand."""
    sent = sent_to(explorer(Shelf([("hand", recording)]), port=PORT), *received, method=method, path=path)
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert (sent[0]["status"], sent[1]["body"]) == expected
    assert capsys.readouterr() == ("", "")


def test_a_source_that_one_head_may_read_is_permitted_to_all_of_them_together() -> None:
    """Each head's bias forbids another source: together they may read them all, alone each may not read its own."""
    may = np.tril(np.ones((6, 7, 7), bool))
    may[np.arange(6), 6, np.arange(6)] = False
    masked = random_call(Mask(explicit=may))
    biased = replace(masked, mask=Mask(), bias=np.where(may, 0, -np.inf).astype(np.float32))
    own = recording_of(biased, letters="abcabca")
    with client(Shelf([("hand", own)])) as page:
        asked = {"run": "hand", "call": 0, "lens": "weight"}
        for head, expected in (("all", [1] * 7), (2, [1, 1, 0, 1, 1, 1, 1])):
            _, found = arrays(page.get("/api/row", params={**asked, "head": head, "destination": 6}))
            assert found["permitted"].tolist() == expected
        for head, expected in (("all", 1), (2, 0), (3, 1)):
            _, found = arrays(page.get("/api/column", params={**asked, "head": head, "source": 2}))
            assert found["permitted"][6] == expected


def test_all_heads_are_the_mean_over_them(page: TestClient, recording: Recording) -> None:
    for call, own in ((1, [recording.calls[1]]), ("all", recording.calls)):
        asked = {"run": "hand", "call": call, "like": 0, "head": "all", "lens": "weight", "destination": 6}
        facts, found = arrays(page.get("/api/row", params=asked))
        rows = np.concatenate([row_of_weights(one, 6) for one in own])
        assert np.allclose(found["values"], rows.mean(axis=0), atol=1e-7)
        assert facts["heads"] == len(rows)
        assert f"mean over {len(rows)} heads" in facts["meaning"]
    facts, found = arrays(page.get("/api/row", params={**asked, "head": 2}))  # of every layer that head
    rows = np.stack([row_of_weights(one, 6)[2] for one in recording.calls])
    assert np.allclose(found["values"], rows.mean(axis=0), atol=1e-7)
    assert facts["heads"] == len(recording.calls)


def test_tiles_are_those_of_the_map(page: TestClient, recording: Recording) -> None:
    for of, name in (("largest", "largest"), ("mean", "mean")):
        asked = {"run": "hand", "call": 1, "head": 2, "level": 0, "row": 0, "column": 0, "of": of}
        facts, found = arrays(page.get("/api/tile", params=asked))
        expected = HeadMap(recording.calls[1], 2).tile(0, 0, 0)
        assert np.array_equal(found["values"], getattr(expected, name), equal_nan=True)
        assert np.array_equal(found["marks"], expected.marks)
        assert (facts["block"], facts["destinations"], facts["sources"]) == (1, [0, 7], [0, 7])
        assert set(np.unique(found["marks"])) == {0, 1}


def test_one_weight_is_exact_and_what_is_none_says_why(recording: Recording) -> None:
    kept = recording_of(keeping(random_call(MASKS["padding before"]), [1, 4], [0, 3, 6]), letters="abcdefg")
    with client(Shelf([("kept", kept)])) as page:
        asked = {"run": "kept", "call": 0, "head": 4}

        def pair(destination: int, source: int) -> Any:
            return page.get("/api/pair", params={**asked, "destination": destination, "source": source}).json()

        row = row_of_weights(kept.calls[0], 6)[1]
        found = pair(6, 3)
        assert found["weight"] == pytest.approx(float(row[3]), rel=1e-12)
        assert found["mark"] == 0
        lse = float(kept.calls[0].lse[1, 2])
        assert found["score"] == pytest.approx(np.log(float(row[3])) + lse)
        assert (pair(3, 5)["mark"], pair(3, 5)["weight"]) == (1, 0.0)
        assert (pair(0, 0)["mark"], pair(0, 0)["weight"]) == (2, None)
        assert (pair(5, 2)["mark"], pair(5, 2)["weight"]) == (3, None)
        refused = page.get("/api/pair", params={**asked, "head": 2, "destination": 6, "source": 3})
        assert refused.status_code == 400
        assert "expected one of those that the recording keeps" in refused.json()["error"]
        _, found = arrays(page.get("/api/column", params={**asked, "source": 2, "lens": "weight"}))
        assert found["permitted"].tolist() == [0, 2, 2, 1, 2, 2, 1]


def test_a_column_says_what_the_sink_takes_of_every_row() -> None:
    call = with_everything()
    with client(Shelf([("sinks", recording_of(call, letters="abcdefg"))])) as page:
        asked = {"run": "sinks", "call": 0, "lens": "weight"}
        _, found = arrays(page.get("/api/column", params={**asked, "head": 3, "source": 0}))
        for row, share in enumerate(found["sinks"]):
            facts, _ = arrays(page.get("/api/row", params={**asked, "head": 3, "destination": row}))
            assert np.isnan(share) if facts["empty"] else share == pytest.approx(facts["sink"])
        _, found = arrays(page.get("/api/column", params={**asked, "head": "all", "source": 0}))
        assert "sinks" not in found


def test_numbers_are_the_row_worked_through(page: TestClient, recording: Recording) -> None:
    asked = {"run": "hand", "call": 0, "head": 3, "destination": 5, "sources": 2}
    facts, found = arrays(page.get("/api/numbers", params=asked))
    expected = worked_row(recording.calls[0], 3, 5, top=2)
    assert expected is not None
    for name, array in found.items():
        assert np.allclose(array, getattr(expected, name), rtol=1e-6)
    assert facts["sources"] == expected.sources.tolist()
    assert facts["rest"] == {"count": 4, "weight": pytest.approx(expected.rest_weight)}
    assert facts["off"]["sum"] < 1e-5


def test_heads_have_a_kind_figures_and_a_thumbnail(page: TestClient, recording: Recording) -> None:
    facts, found = arrays(page.get("/api/heads", params={"run": "hand", "call": 0}))
    answer = wherefrom.heads(recording, layer=0)
    first = facts["figures"].index("first")
    assert np.allclose(found["figures"][:, first], [row["first"] for row in answer], atol=1e-6)
    assert len(facts["kinds"]) == len(facts["why"]) == 6
    weights = np.stack([np.asarray(row_of_weights(recording.calls[0], at)) for at in range(7)], axis=1)
    assert facts["blocks"] == 1
    assert np.allclose(np.nan_to_num(found["thumbs"]), weights, atol=1e-5)
    assert np.isnan(found["thumbs"][0, 0, 1])


def test_the_text_comes_back_whole_however_hostile(tmp_path: Path) -> None:
    text = "</script><img src=x onerror=alert(1)> \u05d0\u200b\U0001f642中"
    tokenizer = wherefrom.load().tokenizer
    tokens = tokenizer.encode(text)
    call = random_call(MASKS["causal"], length=len(tokens))
    made = Recording(recording_of(random_call(MASKS["causal"])).model, tokens, (call,), (), None, 0.0)
    with client(Shelf([(HOSTILE, made)])) as page:
        facts, found = arrays(page.get("/api/tokens", params={"run": HOSTILE, "start": 0, "count": 4096}))
        assert "".join(own for _, own in facts["tokens"]) == text
        assert found["ids"].tolist() == list(tokens.ids)
        assert all(label.replace("\u200e", "").isprintable() for label, _ in facts["tokens"])
        part, _ = arrays(page.get("/api/tokens", params={"run": HOSTILE, "start": 3, "count": 4}))
        assert part["tokens"] == facts["tokens"][3:7]
        for query, expected in (("SCRIPT", 1), ("中", 1), ("nowhere", 0)):
            places = page.get("/api/find", params={"run": HOSTILE, "query": query}).json()["places"]
            assert len(places) == expected
            for start, stop in places:
                inside = text[tokens[start].span[0] : tokens[stop - 1].span[1]]
                assert query.lower() in inside.lower()
        _, found = arrays(page.get("/api/units", params={"run": HOSTILE, "by": "word"}))
        assert len(found["owners"]) == len(tokens)


@pytest.mark.parametrize(
    ("text", "query", "expected"),
    [
        ("İı", "I", [(0, 1), (1, 2)]),
        ("x İSTANBUL", "istanbul", [(2, 10)]),
        ("die Straße", "STRASSE", [(4, 10)]),
        ("Ὀδυσσεύς", "ΕΎΣ", [(5, 8)]),
        ("\U0001f642 a", "A", [(2, 3)]),
        ("", "a", []),
    ],
)
def test_small_and_capital_letters_are_the_same_whatever_many_they_are(
    text: str, query: str, expected: list[tuple[int, int]]
) -> None:
    each = [(at, at + 1) for at in range(len(text))]
    assert places(text, each, query, 9) == (expected, False)
    assert places(text, each, query, 1) == (expected[:1], len(expected) > 1)


@pytest.mark.parametrize("query", ["", " \n", "\x85", "\u3000"])
def test_what_unicode_calls_white_space_is_nothing_to_look_for(query: str) -> None:
    assert is_blank(query)


@pytest.mark.parametrize("query", [" a", "\x1c", "\x1f ", "\ufeff", "\u200b"])
def test_other_characters_that_show_nothing_can_be_looked_for(query: str) -> None:
    assert not is_blank(query)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("/api/run", '"run" in the address: expected a value, got none'),
        ("/api/run?run=other", "the recording: expected one that is shown here, got other"),
        ("/api/run?run=../../etc/passwd", "the recording: expected one that is shown here"),
        ("/api/row?run=hand&call=7&head=0&destination=0&lens=weight", "the call: expected a whole number from 0 to 1"),
        (
            "/api/row?run=hand&call=0&head=-1&destination=0&lens=weight",
            '"head" in the address: expected a whole number',
        ),
        ("/api/row?run=hand&call=0&head=0&destination=0&lens=guess", "the lens: expected weight or moved, got guess"),
        ("/api/row?run=hand&call=0&head=0&destination=0&lens=moved", "moved: expected a recording that keeps"),
        ("/api/row?run=hand&call=0&head=0&destination=9999999999&lens=weight", "expected a whole number from 0"),
        ("/api/tile?run=hand&call=0&head=0&level=9&row=0&column=0&of=mean", "the level: expected a whole number"),
        (
            "/api/tile?run=hand&call=0&head=0&level=0&row=0&column=0&of=median",
            "the statistic: expected largest or",
        ),
        ("/api/find?run=hand&query=%20", "what is looked for: expected some text"),
        ("/api/find?run=hand&query=%C2%85%E3%80%80", "what is looked for: expected some text"),
        ("/api/units?run=hand&by=verse", "word"),
        (
            f"/api/find?run=hand&query={'x' * 1001}",
            "what is looked for: expected at most 1,000 characters, got 1,001. Type less.",
        ),
    ],
)
def test_what_means_nothing_is_refused_in_a_sentence(page: TestClient, address: str, said: str) -> None:
    answer = page.get(address)
    assert answer.status_code == 400
    assert said in answer.json()["error"]
    assert "Traceback" not in answer.text


def test_a_broken_recording_is_a_sentence_and_others_stay(recording: Recording, tmp_path: Path) -> None:
    good = save_recording(recording, tmp_path / "good.wherefrom")
    bad = (
        save_recording(recording, tmp_path / "deep" / "bad.wherefrom") if (tmp_path / "deep").mkdir() is None else None
    )
    assert bad is not None
    (bad / "recording.json").write_bytes(b"{}")
    (tmp_path / "link").symlink_to(Path("/etc"))
    with client(Shelf(folder=tmp_path)) as page:
        first, second = page.get("/api/runs").json()["runs"]
        assert (first["key"], set(first)) == ("deep/bad", {"key", "error"})
        assert "recording.json" in first["error"]
        size = sum(file.stat().st_size for file in good.rglob("*.safetensors"))
        facts = {"model": "by hand", "tokens": 7, "calls": len(recording.calls)}
        assert second == {"key": "good", **facts, "bytes": size}
        answer = page.get("/api/run", params={"run": "deep/bad"})
        assert answer.status_code == 422
        assert "recording.json" in answer.json()["error"]
        assert page.get("/api/run", params={"run": "good"}).json()["model"]["name"] == "by hand"
        save_recording(recording_of(random_call(MASKS["causal"]), letters="abcdefg"), good, overwrite=True)
        assert len(page.get("/api/run", params={"run": "good"}).json()["calls"]) == 1  # the new one


def test_what_is_listed_is_what_lies_there_now(recording: Recording, tmp_path: Path) -> None:
    own = save_recording(recording, tmp_path / "one.wherefrom")
    outside = save_recording(recording, tmp_path.parent / f"{tmp_path.name} outside.wherefrom")

    def said(page: TestClient) -> Any:
        (line,) = page.get("/api/runs").json()["runs"]
        return line.get("error", line.get("calls"))

    with client(Shelf(folder=tmp_path)) as page:
        assert said(page) == len(recording.calls)
        tokens = own / "tokens.safetensors"
        whole = tokens.read_bytes()
        tokens.write_bytes(whole[:-1])
        assert "tokens.safetensors" in said(page)
        tokens.write_bytes(whole)
        save_recording(recording_of(random_call(MASKS["causal"]), letters="abcdefg"), own, overwrite=True)
        assert said(page) == 1
        assert page.get("/api/run", params={"run": "one"}).status_code == 200
        shutil.rmtree(own)
        own.symlink_to(outside)  # a key that was known leads nowhere else
        assert page.get("/api/run", params={"run": "one"}).status_code == 400
        assert page.get("/api/runs").json()["runs"] == []


def test_a_folder_is_gone_through_for_a_list_and_for_no_question(
    recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_recording(recording, tmp_path / "one.wherefrom")
    walks = []
    walk = os.walk
    monkeypatch.setattr(os, "walk", lambda place: (walks.append(place), walk(place))[1])
    with client(Shelf(folder=tmp_path)) as page:
        for _ in range(3):
            assert page.get("/api/run", params={"run": "one"}).status_code == 200
        assert len(walks) == 1
        page.get("/api/runs")
        assert len(walks) == 2


def test_a_folder_that_leads_out_is_not_followed(recording: Recording, tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    save_recording(recording, outside / "secret.wherefrom")
    (inside / "out").symlink_to(outside)
    (inside / "one.wherefrom").symlink_to(outside / "secret.wherefrom")
    assert Shelf(folder=inside).runs() == []
    with pytest.raises(InputError, match="the folder: expected one that is there"):
        Shelf(folder=tmp_path / "nowhere")


def test_with_nothing_to_show_there_is_a_page_and_an_empty_list(tmp_path: Path) -> None:
    for shelf, folder in ((Shelf(), False), (Shelf(folder=tmp_path), True)):
        with client(shelf) as page:
            assert page.get("/").status_code == 200
            assert page.get("/api/runs").json() == {"runs": [], "more": False, "most": 1000, "folder": folder}


@pytest.mark.parametrize("how", ["shorter in place", "shorter, then another in its place", "as long, with other bytes"])
def test_a_file_that_changed_since_it_was_opened_is_looked_at_anew(
    recording: Recording, tmp_path: Path, how: str
) -> None:
    """Of one that is shorter than what is mapped of it, reading the rest would end the process."""
    own = save_recording(recording, tmp_path / "one.wherefrom")
    file = sorted(own.rglob("*-self-*.safetensors"))[0]
    whole = file.read_bytes()
    app = explorer(Shelf(folder=tmp_path), port=PORT)
    with TestClient(app, base_url=f"http://{HOST}") as page:

        def asked(destination: int) -> Any:
            where = {"run": "one", "call": 0, "head": 0, "lens": "weight", "destination": destination}
            return page.get("/api/row", params=where)

        assert asked(1).status_code == 200
        if how == "as long, with other bytes":
            file.write_bytes(whole[: len(whole) // 2] + bytes(len(whole) - len(whole) // 2))
            answer = asked(2)
            assert (answer.status_code, "the checksum" in answer.json()["error"]) == (422, True)
        else:
            os.truncate(file, 8)
            if how == "shorter in place":
                for destination in (1, 2):  # what was answered before as well
                    answer = asked(destination)
                    assert answer.status_code == 422
                    assert f"{file.name}: expected {len(whole):,} bytes, got 8" in answer.json()["error"]
        other = file.with_name("other")
        other.write_bytes(whole)
        other.rename(file)
        _, found = arrays(asked(3))
        assert np.allclose(found["values"], row_of_weights(recording.calls[0], 3)[0], atol=1e-6)


def test_a_page_is_told_that_its_recording_was_written_anew(recording: Recording, tmp_path: Path) -> None:
    """Else it would show the new one's numbers at the old one's tokens."""
    own = save_recording(recording, tmp_path / "one.wherefrom")
    with client(Shelf(folder=tmp_path)) as page:

        def version() -> str:
            found: str = page.get("/api/run", params={"run": "one"}).json()["version"]
            return found

        first = version()
        asked = {"run": "one", "version": first, "call": 0, "head": 0, "lens": "weight", "destination": 4}
        assert page.get("/api/row", params=asked).status_code == 200
        save_recording(recording_of(random_call(MASKS["causal"], seed=9), letters="xyzxyzx"), own, overwrite=True)
        for name in ("row", "measured"):
            refused = page.get(f"/api/{name}", params=asked)
            assert (refused.status_code, refused.json()["error"]) == (
                400,
                "the recording: expected what this page shows, got one that was written since. Load the page again.",
            )
        assert page.post("/api/jobs", json=asked).json() == refused.json()
        assert version() != first
        assert page.get("/api/row", params={**asked, "version": version()}).status_code == 200
        second = version()
    with client(Shelf(folder=tmp_path)) as page:  # another server
        assert version() == second
    in_memory = []
    for _ in range(2):  # two servers, each with something in its memory that is called the same
        with client(Shelf([("hand", recording)])) as page:
            in_memory.append(page.get("/api/run", params={"run": "hand"}).json()["version"])
            asked = {"run": "hand", "call": 0, "head": 0, "destination": 3, "lens": "weight", "version": in_memory[0]}
            assert page.get("/api/row", params=asked).status_code == (200 if len(in_memory) == 1 else 400)


def test_every_recording_has_a_name(recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = save_recording(recording, tmp_path / "here.wherefrom")
    (tmp_path / "deep").mkdir()
    bare = save_recording(recording, tmp_path / "deep" / ".wherefrom")
    monkeypatch.chdir(here)
    named = [Path(), Path("calls") / "..", Path("..") / here.name, bare]
    assert [run.key for run in Shelf(named).runs()] == ["here", "here (2)", "here (3)", ".wherefrom"]
    assert [run.key for run in Shelf(folder=tmp_path).runs()] == ["deep/.wherefrom", "here"]
    assert [run.key for run in Shelf(folder=here).runs()] == ["here"]


def test_a_name_that_is_no_text_breaks_no_list(recording: Recording, tmp_path: Path) -> None:
    good = save_recording(recording, tmp_path / "good.wherefrom")
    bad = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.wherefrom")
    try:
        shutil.copytree(good, bad)
    except OSError:
        pytest.skip("this file system has no such names")
    broken = Path(os.fsdecode(os.fsencode(tmp_path) + b"/dam\xff.wherefrom"))
    shutil.copytree(good, broken)
    (broken / "recording.json").write_bytes(b"{}")
    with client(Shelf(folder=tmp_path)) as page:
        found = page.get("/api/runs").json()["runs"]
        assert [run["key"] for run in found] == ["caf\\xe9", "dam\\xff", "good"]
        assert "dam\\xff.wherefrom: recording.json" in found[1]["error"]
        assert page.get("/api/run", params={"run": "caf\\xe9"}).json()["key"] == "caf\\xe9"
        assert page.get("/api/run", params={"run": "dam\\xff"}).status_code == 422
    with client(Shelf([Path(bad), ("text\udce9", recording)])) as page:
        assert [run["key"] for run in page.get("/api/runs").json()["runs"]] == ["caf\\xe9", "text\\xe9"]


def test_what_a_list_has_no_room_for_is_said_and_opens_by_its_name(
    recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wherefrom.views.web.shelf.MOST_FOUND", 2)
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    for place in ("a", "b", "c.wherefrom", "deep/d.wherefrom", "deep/e", "c.wherefrom/nested"):
        (inside / place).parent.mkdir(parents=True, exist_ok=True)
        save_recording(recording, inside / place)
    outside.mkdir()
    save_recording(recording, outside / "secret")
    (inside / "link").symlink_to(outside / "secret")
    (inside / "out").symlink_to(outside)
    walks = []
    walk = os.walk
    monkeypatch.setattr(os, "walk", lambda place: (walks.append(place), walk(place))[1])
    with client(Shelf(folder=inside)) as page:

        def opens(key: str) -> bool:
            return page.get("/api/run", params={"run": key}).status_code == 200

        facts = page.get("/api/runs").json()
        assert [run["key"] for run in facts.pop("runs")] == ["a", "b"]
        assert facts == {"more": True, "most": 2, "folder": True}
        assert all(opens(key) for key in ("a", "b", "c", "deep/d", "deep/e"))
        before = len(walks)
        assert opens("deep/e")
        assert len(walks) == before
        for key in (
            *("link", "out/secret", "../outside/secret", f"{outside}/secret", "deep/../c", "./c", "deep//d", "c/", ""),
            *("c.wherefrom", "c.wherefrom/nested", "c.wherefrom/calls", "a\0", "x" * 300, "nowhere", "."),
        ):
            assert not opens(key), key
        shutil.rmtree(inside / "a")
        assert [run["key"] for run in page.get("/api/runs").json()["runs"]] == ["b", "c"]
        shutil.rmtree(inside / "b")
        shutil.rmtree(inside / "deep")
        assert page.get("/api/runs").json()["more"] is False


def test_a_long_name_opens_and_one_that_is_too_long_says_so(recording: Recording, tmp_path: Path) -> None:
    short = save_recording(recording, tmp_path / "r.wherefrom")
    shelf = tmp_path / "shelf"
    for name, levels in (("y" * 250, 5), ("\u4e2d" * 80, 10), (os.fsdecode(b"\xff" * 250), 5)):
        place = shelf.joinpath(*[name] * levels)
        try:
            place.mkdir(parents=True)
            shutil.copytree(short, place / "r.wherefrom")
        except OSError:
            pytest.skip("this file system has no such names")
    with client(Shelf(folder=shelf)) as page:
        long, chinese, too_long = page.get("/api/runs").json()["runs"]
        for run in (long, chinese):
            assert page.get("/api/run", params={"run": run["key"]}).json()["key"] == run["key"]
            asked = {"run": run["key"], "query": "\u4e2d" * 1000}
            assert page.get("/api/find", params=asked).status_code == 200
        assert "its name below the folder: expected at most 4,096 bytes, got 5,0" in too_long["error"]


def test_two_of_one_name_are_told_apart(recording: Recording) -> None:
    assert [run.key for run in Shelf([("a", recording), ("a", recording)]).runs()] == ["a", "a (2)"]


def test_only_this_server_is_answered(page: TestClient) -> None:
    assert page.get("/api/runs").status_code == 200
    for headers, status in (
        ({"host": "evil.example:8765"}, 421),
        ({"host": "127.0.0.1:8766"}, 421),
        ({"host": "127.0.0.1"}, 421),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": ""}, 403),
        ({"origin": f"http://localhost:{PORT}"}, 403),
        ({"host": f"[evil.example]:{PORT}"}, 421),
        ({"host": f"127.0.0.1:{PORT}:{PORT}"}, 421),
        ({"host": f"10.0.0.1:{PORT}"}, 421),
        ({"host": f"LocalHost:{PORT}"}, 200),
        ({"host": f"[0:0::1]:{PORT}"}, 200),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"content-length": "99999999"}, 413),
        ({"content-length": "-1"}, 413),
        ({"origin": f"http://{HOST}"}, 200),
        ({"host": f"localhost:{PORT}"}, 200),
        ({"host": f"localhost.:{PORT}", "origin": f"http://localhost.:{PORT}"}, 200),
        ({"host": f"localhost..:{PORT}"}, 421),
        ({"sec-fetch-site": "same-origin"}, 200),
    ):
        assert page.get("/api/runs", headers=headers).status_code == status, headers
    for name, first, second in (
        ("origin", "http://evil.example", f"http://{HOST}"),
        ("sec-fetch-site", "cross-site", "none"),
    ):
        assert page.get("/api/runs", headers=[(name, first), (name, second)]).status_code == 403, name
    assert page.get("/api/runs?x=" + "y" * 40_000).status_code == 414
    assert page.post("/api/runs").status_code == 405


@pytest.mark.parametrize("address", ["/api/runs", "/nowhere", "/api/run?run=other"])
def test_every_answer_carries_the_policy(page: TestClient, address: str) -> None:
    for headers in ({}, {"host": "evil.example"}):
        answer = page.get(address, headers=headers)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in page.get("/../../etc/passwd").headers["content-security-policy"]


def test_beyond_this_machine_a_token_is_asked_for(recording: Recording) -> None:
    shelf = Shelf([("hand", recording)])
    with TestClient(
        explorer(shelf, port=PORT, names=("10.0.0.1",), token="s3cret"),
        base_url=f"http://10.0.0.1:{PORT}",
        follow_redirects=False,
    ) as page:
        assert page.get("/api/runs").status_code == 401
        assert page.get("/?token=wrong").status_code == 401
        assert page.get("/api/runs?token=s3cret").status_code == 401  # only the page takes it
        taken = page.get("/?token=s3cret")
        assert (taken.status_code, taken.headers["location"]) == (303, "/")
        assert "HttpOnly" in taken.headers["set-cookie"]
        assert "SameSite=Strict" in taken.headers["set-cookie"]
        assert page.get("/api/runs").status_code == 200
        assert page.get("/api/runs", headers={"host": f"127.0.0.1:{PORT}"}).status_code == 421


def test_where_it_listens_at_all_addresses_it_is_called_by_any_and_by_its_own_names_alone(recording: Recording) -> None:
    """Whoever turns a name of theirs into this machine is not answered: with an address there is nothing to turn."""
    shelf = Shelf([("hand", recording)])
    with TestClient(
        explorer(shelf, port=PORT, names=("vm", "localhost"), token="s3cret", anywhere=True),
        base_url=f"http://10.0.0.1:{PORT}",
    ) as page:
        assert page.get("/?token=s3cret").status_code == 200
        for headers, status in (
            ({"host": f"192.0.2.7:{PORT}"}, 200),
            ({"host": f"[2001:DB8::7]:{PORT}"}, 200),
            ({"host": f"VM:{PORT}"}, 200),
            ({"host": f"vm:{PORT}", "origin": f"http://vm:{PORT}"}, 200),
            ({"host": "192.0.2.7:80"}, 421),
            ({"host": f"evil.example:{PORT}"}, 421),
            ({"host": f"10.0.0.1.evil.example:{PORT}"}, 421),
            ({"host": f"192.0.2.7:{PORT}", "origin": f"http://192.0.2.8:{PORT}"}, 403),
            ({"host": f"192.0.2.7:{PORT}", "origin": f"http://evil.example:{PORT}"}, 403),
        ):
            cookie = {"cookie": f"wherefrom-token-{PORT}=s3cret"}
            assert page.get("/api/runs", headers={**cookie, **headers}).status_code == status, headers
        page.cookies.clear()
        assert page.get("/api/runs", headers={"host": f"192.0.2.7:{PORT}"}).status_code == 401
        refused = page.get("/api/runs", headers={"host": f"evil.example:{PORT}"}).text
        assert refused == f"This server answers to localhost:{PORT}, vm:{PORT}, any address of this machine alone."
    with pytest.raises(AssertionError, match="asks for a token"):
        explorer(shelf, port=PORT, anywhere=True)


@pytest.mark.parametrize(
    ("cookies", "status"),
    [
        ("{own}", 200),
        ('x={{"a":1}}; {own}', 200),
        ("a b; {own}", 200),
        ("{own};a b", 200),
        ("wherefrom-token-9=other; {own}", 200),
        ("{name}=older; {own}", 200),
        ("{name}=\u00ff", 401),
        ("x{own}", 401),
        ("{name}", 401),
        ("wherefrom-token-9=s3cret", 401),
        ("", 401),
    ],
)
def test_cookies_of_other_servers_lock_nobody_out(recording: Recording, cookies: str, status: int) -> None:
    """All servers of a host are sent each other's cookies, at whatever port they are, and whatever stands in them."""
    app = explorer(Shelf([("hand", recording)]), port=PORT, token="s3cret")
    with TestClient(app, base_url=f"http://{HOST}", follow_redirects=False) as page:
        own = page.get("/?token=s3cret").headers["set-cookie"].split(";")[0]
        page.cookies.clear()
        given = cookies.format(own=own, name=own.split("=")[0]).encode("latin-1")
        assert page.get("/api/runs", headers={b"cookie": given}).status_code == status
        assert page.get("/api/runs", headers=[(b"cookie", given), (b"cookie", b"x=1")]).status_code == status


def test_a_fault_is_no_stack_trace(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from wherefrom.views.web import contents

    monkeypatch.setattr(contents, "about", lambda key, own: 1 / 0)
    with client(Shelf([("hand", recording)])) as page:
        answer = page.get("/api/run", params={"run": "hand"})
    assert answer.status_code == 500
    assert "ZeroDivisionError" not in answer.text
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_what_is_kept_is_bounded_and_made_once() -> None:
    kept: Kept[bytes] = Kept(10)
    made: list[int] = []

    def ask(key: int, size: int) -> bytes:
        def make() -> bytes:
            made.append(key)
            return bytes(size)

        return kept.get(key, make, len)

    for key, size in ((1, 4), (2, 4), (1, 4), (3, 4), (2, 4), (1, 4)):
        assert len(ask(key, size)) == size
        assert kept.held <= 10
    assert made == [1, 2, 3, 2, 1]
    ask(9, 11)
    assert kept.held <= 10
    ask(9, 11)
    assert made[-2:] == [9, 9]


def test_the_page_loads_nothing_from_elsewhere_and_runs_nothing_that_stands_in_it(page: TestClient) -> None:
    index = page.get("/")
    assert index.headers["content-type"].startswith("text/html")
    named = re.findall(r'(?:src|href)="([^"]+)"', index.text)
    assert {Path(name).suffix for name in named} >= {".js", ".css"}
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon\w+=", index.text)
    for name in named:
        assert re.match(r"\.?/(?!/)", name), name
        assert page.get(name.removeprefix(".")).status_code == 200
    for file in (path for path in sorted(STATIC.rglob("*")) if path.is_file()):
        if file.suffix in (".js", ".css", ".html", ".svg"):
            hosts = set(re.findall(r"https?://([\w.-]+)", file.read_text(encoding="utf-8")))
            assert hosts <= {"www.w3.org", "svelte.dev", "leafletjs.com"}, (file.name, hosts)  # names, not addresses
        assert page.get(f"/{file.relative_to(STATIC).as_posix()}").status_code == 200
    assert page.get("/assets/../app.py").status_code == 404
    assert page.get("/%2e%2e/app.py").status_code == 404


def test_cross_attention_has_maps_and_no_kind() -> None:
    model = small_model("marian")
    recording = wherefrom.record(model, "ab cd", written="ef")
    with client(Shelf([("pair", recording)])) as page:
        calls = page.get("/api/run", params={"run": "pair"}).json()["calls"]
        for call in calls:
            facts, found = arrays(page.get("/api/heads", params={"run": "pair", "call": call["index"]}))
            own = recording.calls[call["index"]]
            assert found["thumbs"].shape[0] == len(facts["kinds"]) == own.heads
            if call["kind"] == "cross":
                assert set(facts["kinds"]) == {"unknown"}
                assert "it reads another text" in facts["why"][0]
                assert found["figures"].shape == (own.heads, 0)
            else:
                assert found["figures"].shape == (own.heads, len(facts["figures"]))
            asked = {"run": "pair", "call": call["index"], "head": 0, "lens": "weight"}
            _, row = arrays(page.get("/api/row", params={**asked, "destination": own.destinations - 1}))
            assert np.allclose(row["values"], row_of_weights(own, own.destinations - 1)[0], atol=1e-6)


def test_a_recording_of_some_rows_says_why_it_has_no_thumbnails() -> None:
    kept = recording_of(keeping(random_call(MASKS["causal"]), [1, 4], [0, 3, 6]), letters="abcdefg")
    with client(Shelf([("kept", kept)])) as page:
        facts = page.get("/api/heads", params={"run": "kept", "call": 0}).json()
    assert (facts["whole"], facts["heads"]) == (False, [1, 4])
    assert "destination" in facts["why_not"]


def test_what_was_closed_is_not_taken_for_what_is_open(recording: Recording, tmp_path: Path) -> None:
    """A recording that is opened may lie where a closed one lay in memory."""
    for number in range(12):
        made = recording_of(random_call(MASKS["causal"], seed=number), letters="abcabca")
        save_recording(made, tmp_path / f"r{number:02}.wherefrom")
    with client(Shelf(folder=tmp_path)) as page:
        for _ in range(2):
            for number in range(12):
                asked = {"run": f"r{number:02}", "call": 0, "head": 0, "destination": 6, "lens": "weight"}
                _, found = arrays(page.get("/api/row", params=asked))
                expected = row_of_weights(random_call(MASKS["causal"], seed=number), 6)[0]
                assert np.allclose(found["values"], expected, atol=1e-6)
