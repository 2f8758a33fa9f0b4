"""The commands that ask a recording: each prints, writes and refuses what the Python verb of its name says."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest

import wherefrom
from by_hand import MASKS, random_call, recording_of
from command_line import finite_json, typed
from test_answers_view import EXACT, HEADS, RECEIVED, SOURCES, made, shown
from test_cli import refused, seen
from wherefrom.cli.files import write_answer
from wherefrom.questions import Answer, Column
from wherefrom.views.answers import answer_lines

READ = ("heads", "sources", "readers", "received", "weights", "diff", "info")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with recordings made by hand: one, another of the same tokens, one of other tokens."""
    folder = tmp_path_factory.mktemp("recordings")
    wherefrom.save_recording(made(), folder / "one.wherefrom")
    first, second = made().calls
    swapped = replace(made(), calls=(replace(second, layer=0), replace(first, layer=1)))
    wherefrom.save_recording(swapped, folder / "swapped.wherefrom")
    wherefrom.save_recording(made("abcd"), folder / "text.wherefrom")
    return folder


@pytest.fixture
def ask(tmp_path: Path, files: Path) -> Any:
    """A command on the recordings in a folder of its own: copies of them, and nothing else."""
    for file in files.iterdir():
        shutil.copytree(file, tmp_path / file.name)

    return lambda *arguments: typed(tmp_path, *arguments)


def opened(folder: Path, name: str = "one") -> wherefrom.Recording:
    return wherefrom.open_recording(folder / f"{name}.wherefrom")


def plain(answer: Any) -> Any:
    return json.loads(json.dumps(answer.to_json()))


ANSWERS = {
    "heads": ((), lambda rec: wherefrom.heads(rec)),
    "heads, chosen": (
        ("--sort", "-entropy", "--where", "largest>0.4", "--where", "first < 1", "--top", 3),
        lambda rec: wherefrom.heads(rec, sort="-entropy", where=("largest>0.4", "first < 1"), top=3),
    ),
    "heads, one": (
        ("--layer", 1, "--head", 0, "--part", "decoder"),
        lambda rec: wherefrom.heads(rec, layer=1, head=0, part="decoder"),
    ),
    "sources": ((), lambda rec: wherefrom.sources(rec)),
    "sources, chosen": (
        (2, "--layer", 1, "--head", 0, "--top", 2, "--kind", "self", "--part", "decoder"),
        lambda rec: wherefrom.sources(rec, 2, layer=1, head=0, top=2),
    ),
    "readers": ((1,), lambda rec: wherefrom.readers(rec, 1)),
    "readers, chosen": (
        (0, "--layer", 0, "--head", 1, "--top", 1),
        lambda rec: wherefrom.readers(rec, 0, layer=0, head=1, top=1),
    ),
    "received": ((), lambda rec: wherefrom.received(rec)),
    "received, chosen": (
        ("--threshold", 0.3, "--layer", 0, "--head", 1, "--top", 2),
        lambda rec: wherefrom.received(rec, threshold=0.3, layer=0, head=1, top=2),
    ),
    "weights": (("--layer", 0, "--head", 1), lambda rec: wherefrom.weights(rec, layer=0, head=1)),
    "weights, chosen": (
        ("--layer", 1, "--head", 0, "--destinations", "1:3", "--sources", ":2"),
        lambda rec: wherefrom.weights(rec, layer=1, head=0, destinations=range(1, 3), sources=range(2)),
    ),
}


@pytest.mark.parametrize(("options", "verb"), ANSWERS.values(), ids=ANSWERS)
def test_the_json_is_the_answer_of_the_python_verb(
    ask: Any, tmp_path: Path, request: pytest.FixtureRequest, options: Any, verb: Any
) -> None:
    command = request.node.callspec.id.split(",")[0]
    wanted = plain(verb(opened(tmp_path)))
    assert finite_json(ask(command, "one.wherefrom", *options, "--json")) == wanted


@pytest.mark.parametrize("other", ["swapped", "text"])
def test_the_json_of_a_difference(ask: Any, tmp_path: Path, other: str) -> None:
    wanted = plain(wherefrom.diff(opened(tmp_path), opened(tmp_path, other), layer=1, top=1))
    options = ("--layer", 1, "--top", 1, "--json")
    assert finite_json(ask("diff", "one.wherefrom", f"{other}.wherefrom", *options)) == wanted
    assert len(wanted["rows"]) == 1


DIFF = """\
In which heads do two recordings by by hand weight the same 4 tokens most
differently?
layer  head   moved               largest        at  token
              share                 share  position
    0     0  0.1458 ████████████   0.2500         3  "a"
    0     1  0.1458 ████████████   0.2500         3  "a"
    1     0  0.1458 ████████████   0.2500         3  "a"
    1     1  0.1458 ████████████   0.2500         3  "a"
No head that both hold is left out.
"""  # rows move by 0, 1/6, 1/6 and 1/4: their mean is 7/48


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("sources", "one.wherefrom", "--top", 3), SOURCES),
        (("received", "one.wherefrom"), RECEIVED),
        (("heads", "one.wherefrom", "--layer", 0), HEADS),
        (("diff", "one.wherefrom", "swapped.wherefrom"), DIFF),
    ],
    ids=["sources", "received", "heads", "diff"],
)
def test_an_answer_on_a_terminal_of_eighty_columns(ask: Any, arguments: Any, text: str) -> None:
    ended = ask(*arguments)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith(text)
    assert ended.widest <= 80
    assert "\x1b" not in ended.out


def test_a_window_is_printed_with_its_tokens(ask: Any) -> None:
    ended = ask("weights", "one.wherefrom", "--layer", 0, "--head", 1, "--destinations", "1:", "--sources", ":2")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[1:6] == [
        "              0       1 outside",
        '            "a"     "b"',
        '  1 "b"  0.3333  0.6667' + ended.out.splitlines()[3][23:],
        '  2 "c"  0.2500  0.5000  0.2500',
        '  3 "a"  0.1250  0.2500  0.6250',
    ]


def test_twenty_heads_are_printed_and_all_are_written(tmp_path: Path) -> None:
    calls = [random_call(MASKS["causal"], layer=layer, seed=layer) for layer in range(5)]
    recording = recording_of(*calls, letters="abcabca")
    wherefrom.save_recording(recording, tmp_path / "many.wherefrom")
    ended = typed(tmp_path, "heads", "many.wherefrom", "--sort", "first")
    wanted = wherefrom.heads(recording, sort="first", top=20)
    assert ended == (0, shown(answer_lines(wanted)) + "\n", "")
    assert len(typed(tmp_path, "heads", "many.wherefrom", "--top", 7).out.splitlines()) == 1 + 3 + 7 + 3 + 1 + 2
    assert len(finite_json(typed(tmp_path, "heads", "many.wherefrom", "--json"))["rows"]) == 30
    said = typed(tmp_path, "heads", "many.wherefrom", "--out", "heads.csv")
    assert said == (0, f"written: heads.csv, 30 rows of 12 columns\nNo head is left out.\n{EXACT}\n", "")


@pytest.mark.parametrize("command", ["heads", "sources", "readers", "received", "diff"])
def test_a_table_is_written_whole(ask: Any, tmp_path: Path, command: str) -> None:
    last = {"readers": [0], "diff": ["swapped.wherefrom"]}.get(command, [])
    answer = finite_json(ask(command, "one.wherefrom", *last, "--json"))
    names = [column["name"] for column in answer["columns"]]
    for ending in ("parquet", "csv", "json"):
        ended = ask(command, "one.wherefrom", *last, "--out", f"table.{ending}")
        said = f"written: table.{ending}, {len(answer['rows'])} rows of {len(names)} columns\n"
        assert ended == (0, f"{said}{answer['left_out']}\n{EXACT}\n", "")
    assert polars.read_parquet(tmp_path / "table.parquet").to_dicts() == answer["rows"]
    assert json.loads((tmp_path / "table.json").read_text()) == answer
    header, *rows = csv.reader(io.StringIO((tmp_path / "table.csv").read_text(), newline=""))
    assert header == names
    assert rows == [["" if row[name] is None else str(row[name]) for name in names] for row in answer["rows"]]
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []


def test_a_figure_that_no_destination_counts_for_is_a_hole_in_every_format(ask: Any, tmp_path: Path) -> None:
    for ending in ("parquet", "csv", "json"):
        assert ask("heads", "text.wherefrom", "--out", f"table.{ending}").code == 0
    assert polars.read_parquet(tmp_path / "table.parquet")["induction"].to_list() == [None] * 4
    assert {row["induction"] for row in csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text()))} == {""}
    assert {row["induction"] for row in json.loads((tmp_path / "table.json").read_text())["rows"]} == {None}
    assert ask("heads", "text.wherefrom").out.splitlines()[4].split()[9] == "-"


def test_a_table_may_begin_with_many_holes(tmp_path: Path) -> None:
    rows = (*((at, None) for at in range(150)), (150, 0.5))
    answer = Answer("What?", (Column("head"), Column("induction", "share")), rows, "exact", "Nothing.", 0.0)
    write_answer(answer, tmp_path / "table.parquet", overwrite=False)
    assert polars.read_parquet(tmp_path / "table.parquet").rows() == list(rows)


def test_a_window_is_written_whole(ask: Any, tmp_path: Path) -> None:
    which = ("weights", "one.wherefrom", "--layer", 0, "--head", 1, "--destinations", "1:4")
    window = wherefrom.weights(opened(tmp_path), layer=0, head=1, destinations=range(1, 4))
    for ending in ("npy", "csv", "json"):
        said = f"written: map.{ending}, 3 destinations x 4 sources\nNo source is left out.\n{EXACT}\n"
        assert ask(*which, "--out", f"map.{ending}") == (0, said, "")
    assert np.array_equal(np.load(tmp_path / "map.npy"), np.asarray(window))
    assert json.loads((tmp_path / "map.json").read_text()) == plain(window)
    header, *rows = csv.reader(io.StringIO((tmp_path / "map.csv").read_text(), newline=""))
    assert header == ["destination", "0", "1", "2", "3"]
    assert [[int(row[0]), *map(float, row[1:])] for row in rows] == [
        [at + 1, *row] for at, row in enumerate(window.values.tolist())
    ]


def test_a_destination_without_a_row_is_no_number(tmp_path: Path) -> None:
    wherefrom.save_recording(recording_of(random_call(MASKS["padding before"])), tmp_path / "r.wherefrom")
    which = ("weights", "r.wherefrom", "--layer", 0, "--head", 0)
    for ending in ("npy", "csv"):
        assert typed(tmp_path, *which, "--out", f"map.{ending}").code == 0
    assert np.isnan(np.load(tmp_path / "map.npy")).any(axis=1).tolist() == [True, True, *[False] * 5]
    assert (tmp_path / "map.csv").read_text().splitlines()[1] == "0,,,,,,,"
    assert finite_json(typed(tmp_path, *which, "--json"))["values"][1] == [None] * 7


@pytest.mark.parametrize("command", ["heads", "sources", "readers", "received", "diff"])
def test_a_file_has_every_row_unless_told(tmp_path: Path, command: str) -> None:
    calls = [random_call(MASKS["causal"], layer=layer, seed=layer, length=23) for layer in range(4)]
    for name, order in (("a", calls), ("b", [replace(calls[3 - at], layer=at) for at in range(4)])):
        recording = recording_of(*order, letters="abcdefghijklmnopqrstuvw")
        wherefrom.save_recording(recording, tmp_path / f"{name}.wherefrom")
    asked = (command, "a.wherefrom", *{"readers": [0], "diff": ["b.wherefrom"]}.get(command, []))
    every = 24 if command in ("heads", "diff") else 23
    said = typed(tmp_path, *asked, "--out", "all.csv").out
    assert f"all.csv, {every} rows of" in said
    assert len((tmp_path / "all.csv").read_text().splitlines()) == 1 + every
    fewer = typed(tmp_path, *asked, "--out", "few.csv", "--top", 3).out
    assert "few.csv, 3 rows of" in fewer
    assert f"\nNot listed: {every - 3} more " in fewer
    if command != "heads":
        assert len(finite_json(typed(tmp_path, *asked, "--json"))["rows"]) == 10


def test_of_what_is_written_json_says_what_the_sentence_says(ask: Any, tmp_path: Path) -> None:
    answer = wherefrom.sources(opened(tmp_path), top=2)
    said = {"question": answer.question, "left_out": answer.left_out, "exactness": answer.exactness, "gaps": []}
    found = finite_json(ask("sources", "one.wherefrom", "--out", "table.csv", "--top", 2, "--json"))
    assert found == {"written": "table.csv", "rows": 2, "columns": 6, **said}
    assert (tmp_path / "table.csv").read_text().count("\n") == 3
    window = wherefrom.weights(opened(tmp_path), layer=0, head=1, sources=range(2))
    which = ("weights", "one.wherefrom", "--layer", 0, "--head", 1, "--sources", ":2")
    left_out = "Left out: 2 of 4 sources, with at most 0.6250 of a destination's row."
    said = {"question": window.question, "left_out": left_out, "exactness": window.exactness, "gaps": []}
    found = finite_json(ask(*which, "--out", "map.npy", "--json"))
    assert found == {"written": "map.npy", "destinations": 4, "sources": 2, **said}
    assert left_out in ask(*which, "--out", "map.csv").out


@pytest.mark.parametrize("command", ["sources", "readers", "received"])
def test_of_one_head_no_column_repeats_the_question(ask: Any, tmp_path: Path, command: str) -> None:
    asked = (command, "one.wherefrom", *[1] * (command == "readers"), "--layer", 0)
    whole, one = ask(*asked).out, ask(*asked, "--head", 1).out
    names = {"largest", "layer", "head"}
    assert names <= {*whole.splitlines()[1].split()}
    assert not names & {*one.splitlines()[1].split()}
    assert finite_json(ask(*asked, "--head", 1, "--json"))["rows"][0].keys() >= names
    ask(*asked, "--head", 1, "--out", "table.csv")
    assert "largest,layer,head" in (tmp_path / "table.csv").read_text()


def test_a_difference_of_another_kind_or_part(tmp_path: Path) -> None:
    one, own, other = (random_call(MASKS["bidirectional"], seed=seed) for seed in range(3))
    encoder, cross = replace(one, part="encoder"), replace(other, kind="cross")
    alone = recording_of(own)
    facts = replace(alone.model, kind="encoder-decoder", encoder_layers=1)
    recording = replace(alone, model=facts, calls=(encoder, own, cross), source=alone.tokens)
    wherefrom.save_recording(recording, tmp_path / "r.wherefrom")
    for option, value in (("kind", "cross"), ("part", "encoder")):
        ended = typed(tmp_path, "diff", "r.wherefrom", "r.wherefrom", f"--{option}", value, "--json")
        assert finite_json(ended) == plain(wherefrom.diff(recording, recording, **{option: value}))


def test_the_help_says_what_a_reader_must_know(tmp_path: Path) -> None:
    said = {name: " ".join(typed(tmp_path, name, "--help").out.split()) for name in READ}
    assert "first, self and previous over those from 1 up, duplicate and induction over those whose" in said["heads"]
    assert "at most 16.8 million weights (4,096 x 4,096). An .npy file holds them in float64." in said["weights"]
    assert all("10 unless given, with --out all." in said[name] for name in ("sources", "readers", "received", "diff"))


TABLES = "expected a name that ends in .parquet, .csv or .json, got"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("heads", "one.wherefrom", "--out", "x.xlsx"), f'--out x.xlsx: {TABLES} "x.xlsx".'),
        (("heads", "one.wherefrom", "--out", "x"), f'--out x: {TABLES} "x".'),
        (("heads", "one.wherefrom", "--out", "x.npy"), TABLES),
        (("weights", "one.wherefrom", "--layer", 0, "--head", 0, "--out", "x.parquet"), "ends in .npy, .csv or .json"),
        (("sources", "one.wherefrom", "--out", "there.csv"), "--out there.csv: expected nothing there yet, got a"),
        (("weights", "one.wherefrom", "--layer", 0, "--head", 0, "--out", "there.csv"), "replace it with --overwrite."),
        (("diff", "one.wherefrom", "text.wherefrom", "--out", "no/x.csv"), "expected a folder that is there, got none"),
        (("received", "one.wherefrom", "--out", "folder.csv"), "expected a file's place, got a folder."),
        (("received", "one.wherefrom", "--out", "pipe.csv", "--overwrite"), "got something else: a device, a pipe"),
        (("received", "one.wherefrom", "--out", f"{'x' * 300}.csv"), "File name too long"),
        (("heads", "missing.wherefrom"), "missing.wherefrom: the recording: expected a folder with a recording, got"),
        (("sources", "there.csv"), "there.csv: the recording: expected a folder with a recording, got a file."),
        (("info", "folder.csv"), "expected a folder with a recording, got a folder without a recording.json."),
        (("diff", "one.wherefrom", "missing.wherefrom"), "got nothing there."),
        (("heads", "one.wherefrom", "--layer", 2), "the layer: expected a whole number from 0 to 1"),
        (("heads", "one.wherefrom", "--head", -1), "the head: expected a whole number from 0 to 1, got -1."),
        (("heads", "one.wherefrom", "--where", "induction"), "--where: expected a column, one of > >= < <=, and a"),
        (("heads", "one.wherefrom", "--where", "sinks>0.3"), '\'sinks\'. The weight on the first token, where sinks'),
        (("heads", "one.wherefrom", "--sort", "-bos"), "'bos'. The weight on the first token, where sinks show, is"),
        (("heads", "one.wherefrom", "--sort", "-size", "--where", "first>0"), "--sort: expected one of layer, "),
        (("heads", "one.wherefrom", "--sort", "first", "--where", "size>0"), "--where: expected one of layer, "),
        (("heads", "one.wherefrom", "--sort", "size"), "'size'. Give a name as it stands above its column.\n"),
        (("heads", "one.wherefrom", "--part", "encoder"), "the kind of attention: expected one that the model has"),
        (("sources", "one.wherefrom", 4), "the position: expected a whole number from 0 to 3, got 4."),
        (("sources", "one.wherefrom", -1), "from 0 to 3, got -1. Positions are numbered from 0; there are 4."),
        (("readers", "one.wherefrom", -2), "the position: expected a whole number from 0 to 3, got -2."),
        (("diff", "one.wherefrom", "swapped.wherefrom", "--kind", "cross"), "Only an encoder-decoder has cross-att"),
        (("sources", "one.wherefrom", "--kind", "cross"), "Only an encoder-decoder has cross-attention."),
        (("readers", "one.wherefrom", 9), "the position: expected a whole number from 0 to 3, got 9."),
        (("received", "one.wherefrom", "--threshold", 0), "expected a number above 0 and at most 1, got 0.0."),
        (("received", "one.wherefrom", "--threshold", "nan"), "expected a number above 0 and at most 1, got nan."),
        (("weights", "one.wherefrom", "--layer", 2, "--head", 0), "the layer: expected a whole number from 0 to 1"),
        (("weights", "one.wherefrom", "--layer", 0, "--head", 2), "the head: expected a whole number from 0 to 1"),
        (
            ("weights", "one.wherefrom", "--layer", 0, "--head", 0, "--sources", "0:5"),
            '--sources: expected numbers from 0 to 3, and ranges that end at 4 or before, got "0:5".',
        ),
        (
            ("weights", "one.wherefrom", "--layer", 0, "--head", 0, "--destinations", "0,2"),
            '--destinations: expected one range, such as 0:20, got "0,2".',
        ),
        (
            ("weights", "one.wherefrom", "--layer", 0, "--head", 0, "--destinations", "-2:"),
            '--destinations: expected numbers and ranges such as "0:3,5", which is 0, 1, 2 and 5, got "-2:".',
        ),
        (("info", "one.wherefrom", "--tokens", "2:9"), "--tokens: expected numbers from 0 to 3, and ranges"),
        (("info", "one.wherefrom", "--tokens", "last"), '--tokens: expected numbers and ranges such as "0:3,5"'),
    ],
    ids=lambda value: " ".join(map(str, value))[:60] if isinstance(value, tuple) else "",
)  # fmt: skip
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_what_is_refused(ask: Any, tmp_path: Path, arguments: Any, sentence: str, as_json: bool) -> None:
    (tmp_path / "there.csv").write_text("mine")
    (tmp_path / "folder.csv").mkdir()
    os.mkfifo(tmp_path / "pipe.csv")
    before = seen(tmp_path)
    refused(ask(*arguments, *["--json"] * as_json), sentence)
    assert seen(tmp_path) == before


@pytest.mark.parametrize("command", [*READ, "record"])
@pytest.mark.parametrize("options", [(), ("--top", 0), ("--kind", "both"), ("--no-such",)], ids=str)
def test_what_is_no_command_line_ends_with_the_usage(tmp_path: Path, command: str, options: Any) -> None:
    ended = typed(tmp_path, command, *options)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"Usage: wherefrom {command} ")


def test_a_file_is_replaced_when_told(ask: Any, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("mine")
    assert ask("sources", "one.wherefrom", "--out", "table.csv", "--overwrite").code == 0
    assert (tmp_path / "table.csv").read_text().startswith("source,token,weight,")


def test_what_cannot_be_written_leaves_nothing(ask: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    refused(ask("sources", "one.wherefrom", "--out", "x.csv"), "room and permission to write it, got No space left on")
    assert not list(tmp_path.glob("*x.csv*"))


def test_asking_imports_no_torch_and_no_polars(files: Path) -> None:
    commands = [
        ["info", "one.wherefrom", "--verify", "--tokens", "0:2"],
        ["heads", "one.wherefrom"],
        ["sources", "one.wherefrom", "--out", "table.csv", "--overwrite"],
        ["readers", "one.wherefrom", "1", "--json"],
        ["received", "one.wherefrom"],
        ["weights", "one.wherefrom", "--layer", "0", "--head", "0", "--out", "map.npy", "--overwrite"],
        ["diff", "one.wherefrom", "text.wherefrom"],
    ]
    code = f"""
import sys
from wherefrom.cli import main
for arguments in {commands!r}:
    sys.argv = ["wherefrom", *arguments]
    try:
        main()
    except SystemExit as ended:
        assert ended.code == 0, arguments
    seen = {{name.split(".")[0] for name in sys.modules}}
    heavy = {{"torch", "polars", "transformers", "gguf"}} | ({{"numba"}} if arguments[0] == "info" else set())
    assert not seen & heavy, (arguments, seen & heavy)
"""
    ran = subprocess.run([sys.executable, "-c", code], cwd=files, capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, "")
