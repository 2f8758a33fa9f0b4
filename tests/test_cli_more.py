"""The command line's later words: stop strings, encoder-decoders, the cost of a pass, and why scores are divided."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import wherefrom
from command_line import Ended, finite_json, typed
from kinds import small_model
from test_cli import SCHEMA, comparable, refused
from test_cli import seen as files
from wherefrom.model.generate import generate
from wherefrom.views.cost import cost_table, part_table
from wherefrom.views.scaling import SIZES, scaling, scaling_json, scaling_table

TEXT = "To be, or not to be"
SAMPLED = ("--temperature", 2, "--seed", 3, "--max-tokens", 30)
VERBS = (
    *("trace", "generate", "train", "watch", "cost", "example", "record", "info"),
    *("heads", "sources", "readers", "received", "weights", "diff", "routes", "carriers"),
    *("explore", "export", "figure"),
)


@pytest.fixture
def ask(tmp_path: Path, small_folder: Path) -> Any:
    """A question to the small model, which writes nothing to disk."""

    def asks(verb: str, *arguments: object, model: Path = small_folder) -> Ended:
        ended = typed(tmp_path, verb, *arguments, "--model", model)
        assert files(tmp_path) == {}, "something was written to disk"
        return ended

    return asks


def folder_of(kind: str) -> Path:
    return small_model(kind).checkpoint.identity.path


@pytest.mark.parametrize("verb", [*VERBS, None])
def test_help_fits_a_terminal(tmp_path: Path, verb: str | None) -> None:
    arguments = [] if verb is None else [verb]
    ended = typed(tmp_path, *arguments, "--help")
    assert (ended.code, ended.err) == (0, "")
    assert ended.widest <= 80
    assert typed(tmp_path, *arguments, "-h") == ended
    assert ended.out.startswith(f"Usage: wherefrom {verb or '[OPTIONS]'} ")


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_examples_that_begin_with_the_command(tmp_path: Path, verb: str) -> None:
    out = typed(tmp_path, verb, "--help").out
    examples = out[out.index("Examples:\n") :].split("\n\n")[0].splitlines()[1:]
    assert examples[0].startswith(f"    wherefrom {verb} ") or examples[0] == f"    wherefrom {verb}"
    continued = [line.endswith("\\") for line in ["", *examples]]
    for line, goes_on in zip(examples, continued, strict=False):
        assert line.startswith("        --" if goes_on else "    ")
        assert goes_on or re.match(r"    (echo .* \| )?wherefrom (\w+)\b", line), line
    named = set(re.findall(r"(?<= )--[a-z-]+", " ".join(examples)))
    assert named <= set(re.findall(r"--[a-z-]+", out[out.index("Options:\n") :])) | {"--resume", "--model"}


def test_the_commands_are_named_in_the_help_of_the_whole(tmp_path: Path) -> None:
    out = typed(tmp_path, "--help").out
    named = re.findall(r"^  ([a-z]+) +[A-Z].*\.$", out[out.index("Commands:\n") :], re.MULTILINE)
    assert sorted(named) == sorted(VERBS)


def sampled(small: wherefrom.LanguageModel, stop: Sequence[str] = ()) -> Any:
    sampling = wherefrom.Sampling(temperature=2.0, seed=3)
    return generate(small, TEXT, max_tokens=30, sampling=sampling, stop=stop)


def test_generate_stops_before_a_string(ask: Any, small: wherefrom.LanguageModel) -> None:
    free = sampled(small).text
    assert ask("generate", TEXT, *SAMPLED) == (0, f"{TEXT}{free}\n", "")
    one, other = free[9:11], free[5:8]
    stops = ("--stop", one, "--stop", other, "--stop", "never")
    cut = sampled(small, [one, other])
    assert len(cut.text) < len(free)
    assert ask("generate", TEXT, *SAMPLED, *stops) == (0, f"{TEXT}{cut.text}\n", "")
    written = finite_json(ask("generate", TEXT, *SAMPLED, *stops, "--json"))
    assert (written["text"], written["stopped"], written["ended"]) == (cut.text, cut.stopped, False)
    assert written["ids"] == list(cut.ids)
    assert ask("generate", TEXT, *SAMPLED, "--stop", free[0]) == (0, f"{TEXT}\n", "")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--stop", ""], "a stop string: expected a text of at least one character, got ''. Give texts, such as stop="),
        (["--stop", "a", "--stop", ""], "a stop string: expected a text of at least one character, got ''."),
        (["--temperature", 0], "the temperature: expected a number above 0, got 0.0. Leave the temperature out for"),
        (["--temperature", -1], "the temperature: expected a number above 0, got -1.0."),
        (["--temperature", "nan"], "the temperature: expected a number above 0, got nan."),
        (["--temperature", "inf"], "the temperature: expected a number above 0, got inf."),
        (["--temperature", 1, "--top-p", 0], "top_p: expected a share above 0 and at most 1, got 0.0."),
        (["--temperature", 1, "--top-p", 1.5], "top_p: expected a share above 0 and at most 1, got 1.5."),
        (["--temperature", 1, "--top-p", "nan"], "top_p: expected a share above 0 and at most 1, got nan."),
        (["--temperature", 1, "--top-k", -1], "top_k: expected a whole number from 1 up, got -1."),
        (["--temperature", 1, "--seed", -1], "the seed: expected a whole number from 0 to 2^63 - 1, got -1."),
        (["--top-p", 0.5], "top_p: expected a temperature beside it, got 0.5 with greedy choice."),
    ],
    ids=str,
)
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_a_choice_that_cannot_be_made_is_refused_before_a_model_is_read(
    ask: Any, tmp_path: Path, options: list[Any], sentence: str, as_json: bool
) -> None:
    refused(ask("generate", TEXT, *options, *["--json"] * as_json, model=tmp_path / "missing"), sentence)


def test_an_encoder_decoder_writes_without_its_source(ask: Any) -> None:
    model, folder = small_model("marian"), folder_of("marian")
    written = generate(model, TEXT, max_tokens=9)
    assert ask("generate", TEXT, "--max-tokens", 9, model=folder) == (0, f"{written.text}\n", "")
    told = finite_json(ask("generate", TEXT, "--max-tokens", 9, "--json", model=folder))
    assert (told["text"], told["continues"]) == (written.text, False)


def test_an_encoder_writes_nothing(ask: Any) -> None:
    refused(ask("generate", TEXT, model=folder_of("bert")), "the model: expected one that writes, got bert, an encoder")


@pytest.mark.parametrize(
    ("options", "how"),
    [
        ((), {}),
        (("--written", "Sein"), {"written": "Sein"}),
        (("--written", "Sein", "--through", "self"), {"written": "Sein", "through": "self"}),
        (("--written", "Sein", "--through", "cross", "--layer", 1), {"written": "Sein", "layer": 1}),
        (("--written", "Sein", "--position", 2), {"written": "Sein", "position": 2}),
    ],
    ids=str,
)
def test_a_trace_of_an_encoder_decoder(ask: Any, options: tuple[Any, ...], how: dict[str, Any]) -> None:
    model, folder = small_model("marian"), folder_of("marian")
    traced = wherefrom.trace(model, TEXT, **how)
    written = finite_json(ask("trace", TEXT, *options, "--json", model=folder))
    jsonschema.Draft202012Validator(SCHEMA).validate(written)
    assert comparable(written) == comparable(json.loads(json.dumps(traced.to_json())))
    assert written["source_text"].startswith(TEXT)
    assert written["scope"]["kind"] == how.get("through", "cross")
    ended = ask("trace", TEXT, *options, model=folder)
    assert (ended.code, ended.err) == (0, "")
    assert ended.widest <= 80
    beside = "the encoder read: " if how.get("through") == "self" else "written so far: "
    assert f"\n  {beside}" in ended.out


@pytest.mark.parametrize(
    ("kind", "options", "sentence"),
    [
        ("llama", ("--written", "Sein"), "expected none, got one, for llama, a decoder, which has no encoder"),
        ("bert", ("--written", "Sein"), "expected none, got one, for bert, an encoder, which writes nothing"),
        ("llama", ("--through", "cross"), 'through: expected "self", got "cross", for llama, which is no encoder'),
        ("marian", ("--written", ""), "the written text: expected some text, got nothing. Leave it out"),
        ("marian", ("--written", "a" * 64), "the written text: expected at most 64 tokens (the context of marian)"),
        ("marian", ("--through", "self"), "expected"),
        ("marian", ("--written", "Sein", "--layer", 3), "the layer: expected a whole number from 0 to 2, got 3."),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_traced(ask: Any, kind: str, options: tuple[Any, ...], sentence: str) -> None:
    text = f"{TEXT} [MASK]" if kind == "bert" else TEXT
    refused(ask("trace", text, *options, model=folder_of(kind)), sentence)


def test_what_does_not_print_reaches_no_terminal(ask: Any, small_folder: Path, tmp_path_factory: Any) -> None:
    place = tmp_path_factory.mktemp("named") / "esc\x1b[31m"
    ended = ask("trace", TEXT, model=place)
    assert (ended.code, ended.out) == (2, "")
    assert "/esc\\x1b[31m: expected a folder, got nothing there." in ended.err
    assert ended.err.count("\n") == 1
    assert "\\x1b\\nx: expected a folder" in ask("trace", TEXT, model=Path("\x1b\nx")).err
    shutil.copytree(small_folder, place)
    shown = ask("trace", TEXT, model=place)
    assert shown.out.startswith("esc\\x1b[31m · ")
    assert "\x1b" not in shown.out + shown.err


def test_another_way_than_self_or_cross_ends_with_the_usage(ask: Any) -> None:
    ended = ask("trace", TEXT, "--through", "both", model=folder_of("marian"))
    assert (ended.code, ended.out) == (2, "")
    assert "Invalid value for '--through'" in ended.err


def test_the_cost_of_a_pass(ask: Any, small: wherefrom.LanguageModel) -> None:
    asked = wherefrom.cost(small, (7, 100, 300))
    ended = ask("cost", "--lengths", "7,100 300")
    assert ended == (0, cost_table(asked), "")
    assert ended.widest <= 80
    assert ended.out.endswith("\n")
    assert not ended.out.endswith("\n\n")
    both = ask("cost", "-n", "7, 100, 300", "--parts")
    assert both.out == f"{cost_table(asked)}\n{part_table(asked)}"
    assert "\n\n\n" not in both.out
    assert finite_json(ask("cost", "--lengths", "7,100,300", "--json")) == json.loads(json.dumps(asked.to_json()))


def test_the_cost_at_lengths_that_the_context_gives(ask: Any, small: wherefrom.LanguageModel) -> None:
    assert ask("cost").out == cost_table(wherefrom.cost(small, (18, 75, 300)))


def test_a_measured_cost(ask: Any) -> None:
    ended = ask("cost", "--lengths", "5,20", "--measure", "--repeats", 2)
    assert (ended.code, ended.err) == (0, "")
    assert ended.widest <= 80
    assert "measured" in ended.out.lower()
    written = finite_json(ask("cost", "--lengths", "5,20", "--measure", "--repeats", 2, "--json"))
    for line in written["lengths"]:
        measured = line["measured"]
        assert len(measured["runs"]) == 2
        assert min(measured["runs"]) > 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--lengths", "7,many"], '--lengths: expected whole numbers, such as "1,16,256", got "7,many". Separate them'),
        (["--lengths", "7.5"], '--lengths: expected whole numbers, such as "1,16,256", got "7.5".'),
        (["--lengths", ""], "the number of lengths: expected a whole number from 1 up, got 0."),
        (["--lengths", " , "], "the number of lengths: expected a whole number from 1 up, got 0."),
        (["--lengths", "0"], "a length: expected a whole number from 1 up, got 0."),
        (["--lengths", "5,-2"], "a length: expected a whole number from 1 up, got -2."),
        (["--lengths", "99999999999"], "a length: expected at most 1,000,000,000"),
        (["--lengths", ",".join("1" * 101)], "the number of lengths: expected at most 100, got 101."),
        (["--lengths", "5,301", "--measure"], "a length to measure: expected at most 300 tokens (the context"),
        (["--measure", "--repeats", 101], "the number of repeats: expected at most 100, got 101."),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_a_cost_that_cannot_be_said(ask: Any, options: list[Any], sentence: str, as_json: bool) -> None:
    refused(ask("cost", *options, *["--json"] * as_json), sentence)


def test_a_length_beyond_the_context_is_counted(ask: Any) -> None:
    ended = ask("cost", "--lengths", "301")
    assert ended.code == 0
    assert "301*" in ended.out
    assert "beyond the model's context of 300 tokens" in ended.out


def test_why_scores_are_divided(tmp_path: Path) -> None:
    rows = scaling((1, 16))
    assert typed(tmp_path, "example", "--scaling", "--sizes", "1,16") == (0, scaling_table(rows), "")
    assert typed(tmp_path, "example", "--scaling", "--sizes", " 1 16 ") == (0, scaling_table(rows), "")
    assert not scaling_table(rows).endswith("\n\n")
    written = finite_json(typed(tmp_path, "example", "--scaling", "--sizes", "1,16", "--json"))
    assert written == scaling_json(rows)
    ended = typed(tmp_path, "example", "--scaling")
    assert ended == (0, scaling_table(scaling(SIZES)), "")
    assert ended.widest <= 80


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--sizes", "1,16"], "--sizes: expected --scaling beside it, got --sizes alone."),
        (["--scaling", "--q", "1;2"], "--scaling: expected none of the example's own options beside it, got --q."),
        (["--scaling", "--bidirectional"], "none of the example's own options beside it, got --bidirectional."),
        (["--scaling", "--window", 2, "--sizes", "3"], "none of the example's own options beside it, got --window."),
        (["--scaling", "--sizes", "1,x"], '--sizes: expected whole numbers, such as "1,16,256", got "1,x".'),
        (["--scaling", "--sizes", ""], "the sizes: expected at least one, got none."),
        (["--scaling", "--sizes", "0"], "a size: expected a whole number from 1 up, got 0."),
        (["--scaling", "--sizes", "1,-4"], "a size: expected a whole number from 1 up, got -4."),
        (["--scaling", "--sizes", "65537"], "a size: expected whole numbers from 1 to 65,536, got 65,537."),
    ],
    ids=str,
)
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_a_table_that_cannot_be_made(tmp_path: Path, options: list[Any], sentence: str, as_json: bool) -> None:
    refused(typed(tmp_path, "example", *options, *["--json"] * as_json), sentence)


def test_a_text_beyond_the_training_is_traced_and_said(tmp_path: Path, small_folder: Path) -> None:
    text = "x" * 310  # the model was trained on 300 tokens
    ended = typed(tmp_path, "trace", text, "--model", small_folder, "--carried", 0)
    assert (ended.code, ended.out) == (2, "")
    assert "at most 300 tokens" in ended.err
    ended = typed(tmp_path, "trace", text, "--model", small_folder, "--carried", 0, "--context", 310)
    assert ended.code == 0
    assert ended.out.startswith("small")
    assert "310 tokens" in ended.out
    assert "was trained on up to 300 tokens and may read 310: beyond its training" in ended.err
