"""The commands that write a recording's file and say what is in one."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wherefrom
from by_hand import MASKS, call_of, random_call, recording_of
from command_line import Ended, finite_json, typed
from kinds import small_model
from test_answers_view import made, shown
from test_cli import refused, seen
from test_cli_asking import ask, files, opened, plain
from wherefrom.cli.recorded import _check_place
from wherefrom.recording import Check, Prediction
from wherefrom.views.recorded import _tokens, info_lines, recording_facts, token_facts

__all__ = ["ask", "files"]  # fixtures
TEXT = "To be, or not to be"
INFO = """\
by hand · 4 tokens, SIZE
path         one.wherefrom
written by   wherefrom VERSION
text         "abca"
given        all of the text
model        decoder, 2 layers of 2 heads, head size 1, context 100; fingerprint
             0000000000000000
kept         self-attention of the decoder: all 2 layers, all 2 heads, all 4
             positions, no output projections
             float32; mask: causal
size         q 64 B, k 64 B, v 64 B, lse 64 B, tokens 620 B, predictions 576 B,
             rest SIZE
predictions  none kept
kernel       by hand; the pass took 0.00 s
self-checks  0 of 2 calls checked
scans        kept of 0 of 2 calls

    at  token      id
     1  "b"        98
     2  "c"        99
"""


def test_what_is_in_a_recording(ask: Any, tmp_path: Path) -> None:
    ended = ask("info", "one.wherefrom", "--tokens", "1:3")
    facts = finite_json(ask("info", "one.wherefrom", "--json"))
    text = INFO.replace("VERSION", wherefrom.__version__)
    for value in (facts["bytes"]["total"], facts["bytes"]["rest"]):
        text = text.replace("SIZE", f"{value / 1000:.2f} kB", 1)
    assert ended == (0, text, "")
    assert ended.widest <= 80
    folder = tmp_path / "one.wherefrom"
    assert facts["bytes"]["total"] == sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    assert sum(facts["bytes"].values()) == 2 * facts["bytes"]["total"]


def partial(model: wherefrom.LanguageModel, to: Path) -> wherefrom.Recording:
    how: dict[str, Any] = {"layers": (0, 2), "heads": range(2, 5), "positions": (0, 1, 4, 18)}
    return wherefrom.record(model, TEXT, to=to, store="bfloat16", predictions="all", output=False, **how)


def test_what_is_in_a_part_of_a_pass(small: wherefrom.LanguageModel, tmp_path: Path) -> None:
    made = partial(small, tmp_path / "part.wherefrom")
    ended = typed(tmp_path, "info", "part.wherefrom", "--verify")
    flat = " ".join(ended.out.split())
    assert "layers 0,2 of 3, heads 2:5 of 6, positions 0:2,4,18 of 19, no output projections bfloat16; mask" in flat
    assert "2 of 2 calls checked, largest error " in flat
    assert "rounding q, k and v to bfloat16: in the rows looked at, weights changed by at most " in flat
    assert "19 kept; the last, at position 18: " in flat
    assert ": every byte is as it was written" in flat
    facts = finite_json(typed(tmp_path, "info", "part.wherefrom", "--verify", "--json"))
    kind = facts["calls"][0]
    assert (kind["layers"], kind["heads"], kind["positions"]) == ([0, 2], [2, 3, 4], [0, 1, 4, 18])
    assert (kind["of_layers"], kind["of_heads"], kind["of_positions"], kind["alike"]) == (3, 6, 19, True)
    errors = [max(check.sum_error, check.output_error) for call in made.calls for check in call.checks]
    assert facts["checks"] == {"calls": 2, "of": 2, "largest_error": max(errors)}
    assert facts["stored"]["weight_error"] == max(call.stored.weight_error for call in made.calls if call.stored)
    last = made.predictions[-1]
    shown = facts["predictions"]["last"]
    assert [one["log_probability"] for one in shown["likeliest"]] == list(last.log_probabilities)
    assert [one["id"] for one in shown["likeliest"]] == list(last.ids)
    assert facts["verified"]["bytes"] == facts["bytes"]["total"]


def test_the_largest_error_of_all_self_checks_is_said(tmp_path: Path) -> None:
    checks = (Check((0, 1), 1e-7, 3e-6, 1e-4), Check((2,), 2e-6, 1e-7, 1e-4))
    first, second = made().calls
    recording = replace(made(), calls=(replace(first, checks=checks), second))
    wherefrom.save_recording(recording, tmp_path / "r.wherefrom")
    assert "self-checks  1 of 2 calls checked, largest error 3e-06\n" in typed(tmp_path, "info", "r.wherefrom").out


def test_a_predicted_token_is_named_if_the_text_has_it(tmp_path: Path) -> None:
    predicted = Prediction(3, (98, 7), (float(np.log(0.75)), float(np.log(0.25))))
    wherefrom.save_recording(replace(made(), predictions=(predicted,)), tmp_path / "r.wherefrom")
    assert '1 kept; the last, at position 3: "b" 75.0%, id 7 25.0%\n' in typed(tmp_path, "info", "r.wherefrom").out
    named = replace(predicted, labels=("b", "\u20ac"))
    wherefrom.save_recording(replace(made(), predictions=(named,)), tmp_path / "n.wherefrom")
    assert '1 kept; the last, at position 3: "b" 75.0%, "€" 25.0%\n' in typed(tmp_path, "info", "n.wherefrom").out


def test_a_probability_of_zero_has_no_logarithm(tmp_path: Path) -> None:
    predicted = Prediction(3, (98, 7), (0.0, -np.inf))
    wherefrom.save_recording(replace(made(), predictions=(predicted,)), tmp_path / "r.wherefrom")
    likeliest = finite_json(typed(tmp_path, "info", "r.wherefrom", "--json"))["predictions"]["last"]["likeliest"]
    assert [one["log_probability"] for one in likeliest] == [0.0, None]
    assert '1 kept; the last, at position 3: "b" 100.0%, id 7 0.0%\n' in typed(tmp_path, "info", "r.wherefrom").out


def test_what_is_said_of_a_recording_needs_its_folder(tmp_path: Path) -> None:
    with pytest.raises(wherefrom.InputError, match="the recording: expected one that was opened from a file, got one"):
        recording_facts(made())
    recording = wherefrom.open_recording(wherefrom.save_recording(made(), tmp_path / "r.wherefrom"))
    shutil.rmtree(tmp_path / "r.wherefrom")
    with pytest.raises(wherefrom.RecordingError, match="expected the folder as it was when it was opened, got"):
        recording_facts(recording)


def test_masks_sinks_and_softcaps_are_said(tmp_path: Path) -> None:
    also: dict[str, Any] = {"softcap": 30.0, "sinks": np.zeros(6, np.float32)}
    wherefrom.save_recording(recording_of(random_call(MASKS["both"], **also)), tmp_path / "r.wherefrom")
    text = " ".join(typed(tmp_path, "info", "r.wherefrom").out.split())
    assert "mask: causal, window of 4 keys, explicit mask, softcap 30, sinks" in text


def test_written_tokens_are_told_from_given_ones(tmp_path: Path) -> None:
    wherefrom.save_recording(replace(made(), written_from=2), tmp_path / "r.wherefrom")
    ended = typed(tmp_path, "info", "r.wherefrom", "--tokens", "0:4")
    assert "given        positions 0 to 1; 2 to 3 were written by the model, row t - 1 wrote\n" in ended.out
    assert [line.endswith("written") for line in ended.out.splitlines()[-4:]] == [False, False, True, True]


@pytest.mark.parametrize("width", [31, 40, 80])
@pytest.mark.parametrize("written", [None, 1])
def test_tokens_fit(written: int | None, width: int) -> None:
    recording = replace(made(), written_from=written)
    items = tuple(replace(token, label="long" * 20, id=123456) for token in recording.tokens)
    recording = replace(recording, tokens=replace(recording.tokens, items=items))
    lines = [line.cell_len for line in _tokens(token_facts(recording, range(4)), width)]
    assert max(lines) <= width
    assert width > 60 or max(lines) == width  # all of it is used
    assert max(line.cell_len for line in _tokens([{**token_facts(made(), range(1))[0], "id": 12345678}], width)) < width


def test_scans_that_are_kept_are_said_and_are_no_part_of_the_size(ask: Any) -> None:
    before = finite_json(ask("info", "one.wherefrom", "--json"))
    assert before["scans"] == {"calls": 0, "bytes": 0}
    assert ask("heads", "one.wherefrom").code == 0
    after = finite_json(ask("info", "one.wherefrom", "--json"))
    assert after["scans"]["calls"] == 2
    assert after["scans"]["bytes"] > 0
    assert after["bytes"] == before["bytes"]
    assert "kept of 2 of 2 calls" in ask("info", "one.wherefrom").out


def test_a_long_text_is_shown_by_its_ends(tmp_path: Path) -> None:
    letters = "".join(chr(ord("a") + at % 26) for at in range(200))
    k = np.zeros((1, 200, 1))
    wherefrom.save_recording(recording_of(call_of(np.ones_like(k), k), letters=letters), tmp_path / "r.wherefrom")
    ended = typed(tmp_path, "info", "r.wherefrom")
    assert f'"{letters[:60]}"' in ended.out
    assert f'"{letters[-60:]}"' in ended.out
    assert " (200 characters)" in " ".join(ended.out.split())


def test_arrays_are_read_when_they_are_verified_alone(ask: Any, tmp_path: Path) -> None:
    """A byte of q is changed: info does not look, --verify does."""
    file = tmp_path / "one.wherefrom" / "calls" / "decoder-self-001.safetensors"
    data = bytearray(file.read_bytes())
    place = data.index(np.ones(4, np.float32).tobytes())
    data[place] ^= 1
    file.write_bytes(data)
    assert ask("info", "one.wherefrom").code == 0
    refused(ask("info", "one.wherefrom", "--verify"), "q in calls/decoder-self-001.safetensors: expected the checksum")


def test_names_and_labels_cannot_move_the_cursor(tmp_path: Path) -> None:
    recording = made()
    items = tuple(replace(token, label="\x1b[2J") for token in recording.tokens)
    tokens = replace(recording.tokens, items=items, text="a\x1b[2J")
    nasty = replace(recording, tokens=tokens, model=replace(recording.model, name="\x1b[31m"))
    facts = {**recording_facts(wherefrom.open_recording(wherefrom.save_recording(made(), tmp_path / "r.wherefrom")))}
    facts |= {"verified": None, "listed": [{"position": 0, "id": 1, "label": "\x1b[2J", "written": False}]}
    facts |= {"model": facts["model"] | {"name": nasty.model.name}, "path": "\x1b\n"}
    facts["text"] = {"characters": 4, "begins": tokens.text, "ends": ""}
    facts["predictions"] = {
        "kept": 1,
        "last": {"position": 0, "likeliest": [{"id": 1, "label": "\x1b", "log_probability": 0.0}]},
    }
    text = shown(info_lines(facts))
    assert all(letter.isprintable() for line in text.splitlines() for letter in line)
    assert text.count("\\x1b") == 5


@pytest.mark.parametrize("width", [60, 80])
def test_what_is_in_a_recording_fits(small: wherefrom.LanguageModel, tmp_path: Path, width: int) -> None:
    facts = recording_facts(partial(small, tmp_path / f"{'long' * 50}.wherefrom"))
    facts |= {"verified": None, "listed": None}
    assert max(line.cell_len for line in info_lines(facts, width=width)) <= width


def record(folder: Path, model: Path, *arguments: object) -> Ended:
    return typed(folder, "record", *arguments, "--model", model)


def test_a_text_is_recorded(small_folder: Path, small: wherefrom.LanguageModel, tmp_path: Path) -> None:
    ended = record(tmp_path, small_folder, TEXT, "--out", "r.wherefrom")
    assert (ended.code, ended.err) == (0, "")
    first, written, size, checks, further = ended.out.splitlines()
    assert first.startswith("forecast     ")
    assert " for 19 tokens; " in first
    assert first.endswith(" free")
    assert written == "written      r.wherefrom"
    made, wanted = opened(tmp_path, "r"), wherefrom.record(small, TEXT)
    assert size.startswith("             ")
    assert ", 19 tokens, 3 calls, recorded in " in size
    assert checks.startswith("self-checks  3 of 3 calls checked, largest error ")
    assert further == "see it       wherefrom explore r.wherefrom"
    for call, other in zip(made.calls, wanted.calls, strict=True):
        assert np.array_equal(call.q, other.q)
        assert call.output is not None
    assert wherefrom.sources(made) == wherefrom.sources(wanted)


def test_a_part_of_it_is_recorded_rounded(small_folder: Path, tmp_path: Path) -> None:
    options = ("--layers", "0,2:", "--heads", "2:5", "--positions", "last,0:2,4", "--store", "bfloat16")
    more = ("--predictions", "all", "--no-output")
    ended = record(tmp_path, small_folder, TEXT, "--out", "r.wherefrom", *options, *more)
    assert (ended.code, ended.err) == (0, "")
    assert ended.widest <= 80
    assert "rounding     q, k and v to bfloat16: in the rows looked at, weights changed by\n" in ended.out
    made = opened(tmp_path, "r")
    assert [call.layer for call in made.calls] == [0, 2]
    assert made.calls[1].head_numbers == (2, 3, 4)
    assert made.calls[1].rows.tolist() == [0, 1, 4, 18]
    assert (made.calls[0].stored.format, made.calls[0].output) == ("bfloat16", None)
    assert len(made.predictions) == 19
    said = finite_json(record(tmp_path, small_folder, TEXT, "--out", "j.wherefrom", *options, *more, "--json"))
    assert said["forecast_bytes"] == pytest.approx(said["bytes"]["total"], rel=0.15)


@pytest.mark.parametrize("out", ["~nosuchuser/x", "/", "x" * 300])
def test_a_place_that_cannot_be(tmp_path: Path, out: str) -> None:
    code, said, err = record(tmp_path, tmp_path / "missing", TEXT, "--out", out)
    sentences = {"~nosuchuser/x": "a folder to put it in, got", "/": "a folder with a name, got the root"}
    refused((code, said, err), f": expected {sentences.get(out, 'room and permission to write it, got')}")
    assert seen(tmp_path) == {}


def test_a_home_is_found(small_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    assert record(tmp_path, small_folder, TEXT, "--out", "~/r.wherefrom").code == 0
    assert typed(tmp_path, "info", "~/r.wherefrom").code == 0
    assert wherefrom.open_recording(tmp_path / "home" / "r.wherefrom").tokens.text == TEXT


def test_what_is_said_of_a_recording_is_json_too(small_folder: Path, tmp_path: Path) -> None:
    ended = record(tmp_path, small_folder, TEXT, "--out", "r.wherefrom", "--store", "float16", "--json")
    said, made = finite_json(ended), opened(tmp_path, "r")
    folder = tmp_path / "r.wherefrom"
    assert said["bytes"]["total"] == sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    assert said["forecast_bytes"] == pytest.approx(said["bytes"]["total"], rel=0.05)
    assert said["free_bytes"] == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.15)
    assert (said["tokens"], said["calls"], said["path"]) == (19, 3, "r.wherefrom")
    assert said["seconds"] == made.seconds
    assert said["stored"]["weight_error"] == max(call.stored.weight_error for call in made.calls)


def test_a_text_that_is_being_written_is_recorded(small_folder: Path, small: Any, tmp_path: Path) -> None:
    ended = record(tmp_path, small_folder, TEXT, "--out", "r.wherefrom", "--generate", 5)
    assert (ended.code, ended.err) == (0, "")
    assert " for at most 24 tokens; " in ended.out.splitlines()[0]
    assert "\nwritten      r.wherefrom\n" in ended.out
    assert "given        positions 0 to 18; 19 to 23 were written by the model, row t - 1\n" in ended.out
    made, wanted = opened(tmp_path, "r"), wherefrom.record_generation(small, TEXT, max_tokens=5)
    assert made.tokens.ids == wanted.tokens.ids
    assert made.written_from == 19
    said = finite_json(record(tmp_path, small_folder, TEXT, "--out", "j.wherefrom", "--generate", 5, "--json"))
    assert said["forecast_bytes"] == pytest.approx(said["bytes"]["total"], rel=0.05)


def test_what_a_long_generation_takes_is_known(small_folder: Path, tmp_path: Path) -> None:
    """Each token that is written is checked by itself, and the checks are kept."""
    options = ("--out", "j.wherefrom", "--generate", 280, "--json")
    said, made = finite_json(record(tmp_path, small_folder, TEXT, *options)), opened(tmp_path, "j")
    assert {len(call.checks) for call in made.calls} == {1 + 280}
    assert said["forecast_bytes"] == pytest.approx(said["bytes"]["total"], rel=0.02)


def test_an_encoder_decoder_is_recorded(tmp_path: Path) -> None:
    model = small_model("marian")
    folder = model.checkpoint.identity.path
    ended = record(tmp_path, folder, TEXT, "--written", "Sein", "--out", "r.wherefrom", "--json")
    said, made = finite_json(ended), opened(tmp_path, "r")
    assert made.source is not None
    assert (said["tokens"], said["source_tokens"]) == (len(made), len(made.source))
    assert said["forecast_bytes"] == pytest.approx(said["bytes"]["total"], rel=0.15)
    for command, last in (
        ("sources", []),
        ("readers", [0]),
        ("received", []),
        ("weights", ["--layer", 0, "--head", 0]),
    ):
        for kind, part in (("cross", "decoder"), ("self", "encoder")):
            how = {"kind": kind, "part": part}
            verb = getattr(wherefrom, command)
            wanted = verb(made, layer=0, head=0, **how) if command == "weights" else verb(made, *last, **how)
            options = ("--kind", kind, "--part", part)
            assert finite_json(typed(tmp_path, command, "r.wherefrom", *last, *options, "--json")) == plain(wanted)
            assert typed(tmp_path, command, "r.wherefrom", *last, *options).widest <= 80
    text = typed(tmp_path, "info", "r.wherefrom").out
    assert f"encoder read {len(made.source)} tokens: " in text
    assert "cross-attention of the decoder: all 3 layers" in text
    assert "self-attention of the encoder: all " in text


REFUSED = [
    (("--layers", "0:4"), '--layers: expected numbers from 0 to 2, and ranges that end at 3 or before, got "0:4".'),
    (("--layers", "3:"), "--layers: expected numbers from 0 to 2"),
    (("--heads", "6"), '--heads: expected numbers from 0 to 5, and ranges that end at 6 or before, got "6".'),
    (("--positions", "0:20"), '--positions: expected numbers from 0 to 18, and ranges that end at 19 or before, got'),
    (("--written", "Sein"), "the written text: expected none, got one"),
    (("--context", 10), "the prompt: expected at most 10 tokens"),
    (("--generate", 290), "the prompt: expected at most 300 tokens"),
]  # fmt: skip
EARLY = [
    (("--layers", "0:-1"), '--layers: expected numbers and ranges such as "0:3,5", which is 0, 1, 2 and 5, got "0:'),
    (("--layers", "last"), '--layers: expected numbers and ranges such as "0:3,5"'),
    (("--heads", ""), '--heads: expected numbers and ranges such as "0:3,5", which is 0, 1, 2 and 5, got "".'),
    (("--positions", "end"), '5, or "last", got "end". They count from 0;'),
    (("--generate", 3, "--layers", "0"), "--layers: expected none beside --generate, got one."),
    (("--generate", 3, "--predictions", "all"), "--predictions: expected none beside --generate, got one."),
    (("--generate", 3, "--written", "Sein"), "--written: expected none beside --generate, got one."),
    (("--out", "there"), "its place: expected nothing there yet, got a folder of something else."),
    (("--out", "no/r.wherefrom"), "the recording's folder: expected a folder to put it in, got"),
    (("--file", "no.txt"), "the prompt: expected one source, got a text and --file."),
]  # fmt: skip


@pytest.mark.parametrize(("options", "sentence"), REFUSED, ids=str)
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_a_recording_that_cannot_be(
    small_folder: Path, tmp_path: Path, options: Any, sentence: str, as_json: bool
) -> None:
    code, out, err = record(tmp_path, small_folder, TEXT, "--out", "r.wherefrom", *options, *["--json"] * as_json)
    refused((code, "" if out.startswith("forecast ") and not as_json else out, err), sentence)
    assert seen(tmp_path) == {}


@pytest.mark.parametrize(("options", "sentence"), EARLY, ids=str)
def test_what_can_be_known_before_is_refused_before_a_model_is_read(
    tmp_path: Path, options: Any, sentence: str
) -> None:
    (tmp_path / "there").mkdir()
    refused(record(tmp_path, tmp_path / "missing", TEXT, "--out", "r.wherefrom", *options), sentence)
    assert seen(tmp_path) == {"there": None}


def test_a_recording_is_replaced_when_told(small_folder: Path, tmp_path: Path) -> None:
    wherefrom.save_recording(made(), tmp_path / "r.wherefrom")
    sentence = "got a recording. Choose another path, or replace it with --overwrite."
    refused(record(tmp_path, tmp_path / "missing", TEXT, "--out", "r.wherefrom"), sentence)
    assert record(tmp_path, small_folder, TEXT, "--out", "r.wherefrom", "--overwrite").code == 0
    assert len(opened(tmp_path, "r")) == 19


def test_a_place_that_was_looked_at_is_free_again(tmp_path: Path) -> None:
    """When the disk is full too."""
    for room in (0, 2**62):
        with suppress(wherefrom.RecordingError):
            _check_place(tmp_path / "r", overwrite=False, room=room)
        assert seen(tmp_path) == {}
    assert wherefrom.save_recording(made(), tmp_path / "r").exists()


def test_a_full_disk_is_told_with_the_option_that_helps(
    small_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(9, 9, 0))
    code, out, err = record(tmp_path, small_folder, TEXT, "--out", "r.wherefrom")
    assert out.endswith("; 0 B free\n")
    refused((code, "", err), "keep fewer layers, heads or rows, or --store float16.")
    monkeypatch.setattr("wherefrom.capture.native.record_generation", lambda *_, **__: pytest.fail("it ran"))
    monkeypatch.delitem(vars(wherefrom), "record_generation", raising=False)
    code, _, err = record(tmp_path, small_folder, TEXT, "--out", "r.wherefrom", "--generate", 5)
    refused((code, "", err), "the disk: expected ")
    assert seen(tmp_path) == {}
