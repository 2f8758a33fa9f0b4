"""The command line: each command as a user types it, and every bad input as one sentence."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import jsonschema
import pytest
import torch
import typer
from safetensors.torch import load_file, save_file

import wherefrom
from small import write_small_model
from wherefrom import cli
from wherefrom.__main__ import main
from wherefrom.capture import fused

SCHEMA = json.loads((Path(__file__).parent.parent / "docs" / "trace.schema.json").read_text(encoding="utf-8"))
TEXT = "To be, or not to be"
WIPE = re.compile(r"\d+\.\d\d s")
SRC = Path(__file__).parent.parent / "src"


@pytest.fixture
def run(monkeypatch, capsysbinary, tmp_path):
    """Run the command line in this process, in an empty folder: (exit code, stdout, stderr), and nothing written."""
    here, cache = tmp_path / "here", tmp_path / "cache"
    here.mkdir()
    cache.mkdir()
    monkeypatch.chdir(here)
    for variable in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(variable, raising=False)

    monkeypatch.setenv("WHEREFROM_CACHE", str(cache))  # whoever would convert the default model is seen doing so

    def runs(*arguments, stdin=b"", terminal=False):
        monkeypatch.setattr(sys, "argv", ["wherefrom", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", Keyboard() if terminal else io.TextIOWrapper(io.BytesIO(stdin)))
        before = seen(tmp_path)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert seen(tmp_path) == before, "something was written to disk"
        out, err = (stream.decode() for stream in capsysbinary.readouterr())
        return ended.value.code, out, err

    return runs


class Keyboard(io.StringIO):
    def isatty(self):
        return True


def seen(folder):
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()} | {
        str(path.relative_to(folder)): None for path in folder.rglob("*") if path.is_dir()
    }


@pytest.fixture
def small_run(run, small_folder):
    return lambda verb, *arguments, **how: run(verb, *arguments, "--model", small_folder, **how)


def comparable(value):
    """A trace's JSON without its cost; numbers that were computed twice need not agree in the last digit."""
    if isinstance(value, dict):
        return {key: comparable(part) for key, part in value.items() if key not in {"cost", "checks"}}
    if isinstance(value, list):
        return [comparable(part) for part in value]
    return pytest.approx(value, abs=1e-5) if isinstance(value, float) else value


def refused(ended, sentence):
    """The one sentence of a refusal: on stderr, nothing beside it, exit code 2."""
    code, out, err = ended
    assert (code, out) == (2, "")
    assert err.startswith("wherefrom: ")
    assert err.count("\n") == 1
    assert err.endswith((".\n", '"\n'))
    assert "Traceback" not in err
    assert sentence in err


def test_a_text_is_traced(small_run, small):
    code, out, err = small_run("trace", TEXT)
    assert (code, err) == (0, "")
    assert out.startswith("small0 · 19 tokens, 3 layers of 6 heads, numbered from 0\n\n  To be, or not to be → ")
    largest = int(wherefrom.trace(small, TEXT).order[0])
    first = out.splitlines()[out.splitlines().index(next(x for x in out.splitlines() if x.startswith("    at"))) + 1]
    assert int(first.split()[0]) == largest
    assert "\x1b" not in out


def test_the_text_may_come_from_anywhere(small_run, tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_bytes(f"\ufeff{TEXT}\r\n".encode())
    wanted = small_run("trace", TEXT)[1]
    for ended in (
        small_run("trace", stdin=TEXT.encode()),
        small_run("trace", stdin=f"{TEXT}\n".encode()),
        small_run("trace", "-", stdin=f"{TEXT}\n".encode()),
        small_run("trace", "--file", file),
        small_run("trace", "-f", file),
    ):
        assert ended[0] == 0
        assert WIPE.sub("# s", ended[1]) == WIPE.sub("# s", wanted)
    assert (
        '"\\n" itself' in small_run("trace", stdin=f"{TEXT}\n\n".encode())[1]
    )  # one final newline is dropped, no more


def test_json_is_all_that_is_printed(small_run, small):
    code, out, err = small_run("trace", TEXT, "--json")
    written = json.loads(out)
    jsonschema.Draft202012Validator(SCHEMA).validate(written)
    assert (code, err) == (0, "")
    assert comparable(written) == comparable(wherefrom.trace(small, TEXT).to_json())


def test_options_of_a_trace_reach_it(small_run, small):
    best, bang = wherefrom.trace(small, TEXT).aim.target.id, small.tokenizer.one_token("!")
    for options, how in [
        (["--target", "!"], {"target": "!"}),
        (["--target-id", bang], {"target": bang}),
        (["--target", "!", "--against", "?"], {"target": "!", "against": "?"}),
        (["--target-id", bang, "--against-id", best], {"target": bang, "against": best}),
        (["--position", 11, "--layer", 1, "--head", 4], {"position": 11, "layer": 1, "head": 4}),
        (["--carried", 0], {"carried_sources": 0}),
    ]:
        code, out, _ = small_run("trace", TEXT, "--json", *options)
        assert code == 0
        assert comparable(json.loads(out)) == comparable(wherefrom.trace(small, TEXT, **how).to_json())
    listed = small_run("trace", TEXT, "--top", 3)[1]
    assert re.search(r"^ {8}1[3-6] others together", listed, re.MULTILINE)


def test_generate_continues_the_text(small_run, small):
    expected = wherefrom.generate(small, TEXT, max_tokens=9)
    code, out, err = small_run("generate", TEXT, "--max-tokens", 9)
    assert (code, out, err) == (0, f"{TEXT}{expected.text}\n", "")
    code, out, err = small_run("generate", TEXT, "--max-tokens", 9, "--json")
    written = json.loads(out)
    assert (code, err) == (0, "")
    assert (written["prompt"], written["text"], written["model"]) == (TEXT, expected.text, "small0")
    assert tuple(written["ids"]) == expected.ids
    assert written["ended"] == expected.ended


def test_the_same_seed_writes_the_same_text(small_run):
    options = ["--temperature", 1.5, "--top-k", 40, "--top-p", 0.95, "--max-tokens", 12, "--seed"]
    first = small_run("generate", TEXT, *options, 1)
    assert first[0] == 0
    assert small_run("generate", TEXT, *options, 1) == first
    assert small_run("generate", TEXT, *options, 2)[1] != first[1]


@pytest.mark.parametrize("verb", ["trace", "generate", "example"])
def test_help_has_examples_that_stand_as_they_were_written(run, verb):
    code, out, err = run(verb, "--help")
    assert (code, err) == (0, "")
    examples = out[out.index("Examples:\n") :].splitlines()[1:]
    assert examples[0].strip().startswith(f"wherefrom {verb}")
    assert all(f"wherefrom {verb}" in line or line.startswith("        --") for line in examples[: examples.index("")])
    assert run(verb, "-h") == (code, out, err)


def test_help_of_the_whole(run):
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    assert 'wherefrom trace "The capital of France is Paris. The capital of Italy is"\n' in out
    for verb in ("trace", "generate", "example"):
        assert re.search(rf"^  {verb} +[A-Z][^.]+\.$", out, re.MULTILINE)


def test_the_version(run):
    assert run("--version") == (0, f"wherefrom {wherefrom.__version__}\n", "")


@pytest.mark.parametrize("verb", ["trace", "generate"])
@pytest.mark.parametrize(
    ("text", "given"),
    [("", "got nothing."), ("   ", "got only blanks ('   ')."), ("\n\t ", "got only blanks ('\\n\\t ').")],
)
def test_a_prompt_without_a_word_is_refused_before_a_model_is_made(run, verb, text, given):
    sentence = f"the prompt: expected some text, {given}"
    refused(run(verb, text), sentence)
    if not text.endswith("\n"):
        refused(run(verb, stdin=text.encode()), sentence)


def test_a_prompt_of_one_token_is_refused(small_run):
    refused(
        small_run("trace", "a"),
        'the prompt: expected at least one token before the position that predicts, got only "a". The first position '
        "reads only itself, so there is nothing to cut: give a longer prompt.",
    )


def test_a_prompt_longer_than_the_context_is_refused(small_run):
    assert small_run("trace", "ab" * 150, "--carried", 0)[0] == 0
    sentence = "the prompt: expected at most 300 tokens (the context of small0), got 301 tokens. Shorten the text"
    refused(small_run("trace", "a" * 301), sentence)
    refused(small_run("generate", "a" * 301, "--max-tokens", 1), "got 301 tokens and room for 1 more.")
    refused(small_run("generate", "a" * 250, "--max-tokens", 51), "got 250 tokens and room for 51 more.")


def test_bytes_that_are_not_utf8_are_refused_before_a_model_is_made(run, tmp_path):
    data = "caf\u00e9 au lait".encode("latin-1")
    file = tmp_path / "latin.txt"
    file.write_bytes(data)
    told = "expected UTF-8, got byte 0xE9 at 3, which is not. Convert it first, for example: iconv"
    refused(run("trace", stdin=data), f"the text in standard input: {told}")
    refused(run("trace", "--file", file), f"the text in {file}: {told}")
    refused(run("trace", os.fsdecode(data)), f"the text in the argument: {told}")
    refused(run("generate", os.fsdecode(data)), f"the text in the argument: {told}")
    marked = b"\xef\xbb\xbf" + data
    refused(run("trace", stdin=marked), f"the text in standard input: {told}")


def test_a_file_that_cannot_be_read_is_refused(run, tmp_path):
    missing = tmp_path / "missing.txt"
    refused(
        run("trace", "--file", missing),
        f"the prompt's file: expected a file that can be read, got {missing} (No such file or directory).",
    )
    refused(run("trace", "--file", tmp_path), f"got {tmp_path} (Is a directory).")


def test_two_sources_of_one_thing_are_refused(run, tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_text(TEXT)
    sentence = "the prompt: expected one source, got a text and --file."
    refused(run("trace", TEXT, "--file", file), sentence)
    refused(run("generate", TEXT, "--file", file), sentence)
    refused(
        run("trace", TEXT, "--target", "!", "--target-id", 3),
        "--target: expected either it or --target-id, got both. Give one of them.",
    )
    refused(
        run("trace", TEXT, "--against", "!", "--against-id", 3),
        "--against: expected either it or --against-id, got both.",
    )


def test_no_text_at_a_terminal_is_refused(run):
    refused(
        run("trace", terminal=True),
        "the prompt: expected a text, got none. Give it as an argument, with --file, or on standard",
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--target", "ab"], 'the token "ab": expected exactly one token of this model, got 2 ("a", "b"). Ask for one'),
        (
            ["--against", "ab"],
            'the token "ab": expected exactly one token of this model, got 2 ("a", "b"). Ask for one',
        ),
        (["--target", ""], 'the token "": expected exactly one token of this model, got an empty text. Name a token'),
        (["--target", "\udce9"], "expected UTF-8, got the byte 0xE9 at character 0."),
        (
            ["--target-id", 257],
            "the target: expected a token id from 0 to 256, got 257. Give the token's text instead.",
        ),
        (["--target-id", -1], "the target: expected a token id from 0 to 256, got -1."),
        (["--target", "!", "--against", "!"], "the token to compare with: expected another token than the target"),
        (
            ["--position", 19],
            "the position: expected a whole number from 0 to 18, got 19. Positions are numbered from 0",
        ),
        (["--position", -1], "the position: expected a whole number from 0 to 18, got -1."),
        (["--position", 0], "expected at least one token before the position that predicts, got position 0."),
        (
            ["--layer", 3],
            "the layer: expected a whole number from 0 to 2, got 3. Layers are numbered from 0; there are 3.",
        ),
        (["--layer", -1], "the layer: expected a whole number from 0 to 2, got -1."),
        (
            ["--head", 6],
            "the head: expected a whole number from 0 to 5, got 6. Heads are numbered from 0; there are 6.",
        ),
        (["--head", -1], "the head: expected a whole number from 0 to 5, got -1."),
    ],
    ids=str,
)
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_a_question_that_cannot_be_asked(small_run, options, sentence, as_json):
    refused(small_run("trace", TEXT, *options, *["--json"] * as_json), sentence)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--temperature", 0], "the temperature: expected a number above 0, got 0.0."),
        (["--top-k", 5], "top_k: expected a temperature beside it, got 5 with greedy choice."),
        (["--temperature", 1, "--top-k", 0], "top_k: expected a whole number from 1 up, got 0."),
        (["--temperature", 1, "--top-p", 1.5], "top_p: expected a share above 0 and at most 1, got 1.5."),
    ],
    ids=str,
)
def test_a_choice_that_cannot_be_made(run, options, sentence):
    refused(run("generate", TEXT, *options), sentence)


@pytest.mark.parametrize(
    "arguments",
    [
        ["trace", TEXT, "--top", "0"],
        ["trace", TEXT, "--layer", "x"],
        ["trace", "a", "b"],
        ["follow"],
        ["trace", "--no"],
    ],
    ids=str,
)
def test_what_is_no_command_ends_with_the_usage(run, arguments):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("Usage: wherefrom ")
    assert "Error: " in err
    assert "Traceback" not in err


def damage_config(folder, **changes):
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**fields, **changes}))


def damage_weights(folder, name, change):
    tensors = {key: tensor.clone() for key, tensor in load_file(folder / "model.safetensors").items()}
    tensors[name] = change(tensors[name])
    save_file(tensors, folder / "model.safetensors")


def with_nan(tensor):
    tensor[0, 0] = torch.nan
    return tensor


KEYS = "model.layers.1.self_attn.k_proj.weight"
DAMAGES = {
    "missing": (shutil.rmtree, "expected a folder, got nothing there."),
    "no config": (lambda folder: (folder / "config.json").unlink(), "expected a config.json in it, got none."),
    "no weights": (
        lambda folder: (folder / "model.safetensors").unlink(),
        "expected a model.safetensors in it, got none.",
    ),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "expected a tokenizer.json in it, got none."),
    "unknown architecture": (
        lambda folder: damage_config(folder, model_type="no-such-type"),
        "config.json: the field model_type: expected a supported architecture (",
    ),
    "wrong shape": (
        lambda folder: damage_weights(folder, KEYS, lambda tensor: tensor[:, :-1].contiguous()),
        f"the tensor {KEYS}: expected shape [20, 42] as config.json has it, got [20, 41].",
    ),
    "NaN": (
        lambda folder: damage_weights(folder, KEYS, with_nan),
        f"the tensor {KEYS}: expected finite numbers, got 1 that are NaN or infinite.",
    ),
    "cut short": (
        lambda folder: (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-1]),
        "model.safetensors: expected a whole safetensors file, got a cut or damaged one (",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("verb", ["trace", "generate"])
def test_a_model_that_cannot_be_used(run, tmp_path, name, verb):
    damage, sentence = DAMAGES[name]
    folder = write_small_model(tmp_path / "model")
    damage(folder)
    ended = run(verb, TEXT, "--model", folder)
    refused(ended, sentence)
    assert f"wherefrom: {folder}" in ended[2]


def test_a_kernel_whose_lse_is_off_is_refused(small_run, monkeypatch):
    right = fused.attend

    def off_by_ln_2(*arguments, **how):
        attended = right(*arguments, **how)
        return attended._replace(lse=attended.lse + torch.log(torch.tensor(2.0)))

    monkeypatch.setattr(fused, "attend", off_by_ln_2)
    refused(
        small_run("trace", TEXT),
        "the self-check of layer 0 (blocks.0.attention, kernel torch flash, CPU): expected weights that sum to one and "
        "rebuild the kernel's output within ",
    )


def test_an_interrupt_is_one_line(small_run, monkeypatch):
    def interrupted(*arguments, **how):
        raise KeyboardInterrupt

    for verb in ("trace", "generate"):
        monkeypatch.setattr(wherefrom, verb, interrupted)
        assert small_run(verb, TEXT) == (130, "", "wherefrom: interrupted\n")


def test_an_interrupt_while_the_options_are_read_is_one_line(run, monkeypatch):
    def interrupted(*arguments, **how):
        raise KeyboardInterrupt

    monkeypatch.setattr(typer.core.TyperGroup, "make_context", interrupted)
    assert run("trace", TEXT) == (130, "", "wherefrom: interrupted\n")


def test_an_interrupt_before_a_word_is_read_is_one_line(monkeypatch, capsys):
    class Slow(ModuleType):
        def __getattr__(self, name):
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "wherefrom.cli", Slow("wherefrom.cli"))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert capsys.readouterr() == ("", "wherefrom: interrupted\n")


def test_a_bug_is_not_swallowed(small_run, monkeypatch):
    def broken(*arguments, **how):
        raise ZeroDivisionError

    monkeypatch.setattr(wherefrom, "trace", broken)
    monkeypatch.setattr(sys, "argv", ["wherefrom", "trace", TEXT])
    with pytest.raises(ZeroDivisionError):
        small_run("trace", TEXT)


def started(*arguments, **how):
    """The command line as a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1", **how.pop("env", {})}
    environment.pop("PYTHONUNBUFFERED", None)  # a pipe's last words are then written at the very end
    return subprocess.Popen(
        [sys.executable, "-m", "wherefrom", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **how,
    )


def test_as_a_process_through_a_pipe(small_folder, small):
    process = started("trace", TEXT, "--model", str(small_folder), env={"LC_ALL": "C", "PYTHONUTF8": "0"})
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, b"")
    assert b"\x1b" not in out
    assert "██" in out.decode()  # UTF-8, whatever the locale says
    assert out.decode().splitlines()[0] == "small0 · 19 tokens, 3 layers of 6 heads, numbered from 0"


def test_as_a_process_with_bytes_that_are_not_utf8(small_folder):
    process = started("trace", b"caf\xe9 au lait", "--model", str(small_folder))
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (2, b"")
    assert err.startswith(b"wherefrom: the text in the argument: expected UTF-8, got byte 0xE9 at 3, which is not.")
    assert err.count(b"\n") == 1


@pytest.mark.parametrize(
    "verb",
    ["trace", pytest.param("generate", marks=pytest.mark.long), "example", "--help", "trace --help"],
)
def test_as_a_process_whose_reader_has_gone(small_folder, verb):
    model = [TEXT, "--model", str(small_folder)] if verb in {"trace", "generate"} else []
    with started(*verb.split(), *model) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def in_shell(redirection, *arguments):
    """The command line with its streams as a shell leaves them: (exit code, stdout, stderr)."""
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-m", "wherefrom", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        check=False,
        timeout=120,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("redirection", [">/dev/full", ">&-"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["trace", TEXT],
        pytest.param(["trace", "--json", TEXT], marks=pytest.mark.long),
        pytest.param(["generate", TEXT], marks=pytest.mark.long),
        ["example"],
        ["--help"],
    ],
    ids=str,
)
def test_output_that_cannot_be_written(small_folder, redirection, arguments):
    model = ["--model", small_folder] if TEXT in arguments else []
    code, _, err = in_shell(redirection, *arguments, *model)
    assert code == 1
    assert err.startswith(b"wherefrom: standard output: expected ")
    assert err.count(b"\n") == 1


@pytest.mark.long
def test_closed_input_and_closed_errors(small_folder):
    code, out, err = in_shell("<&-", "trace")
    assert (code, out, err.count(b"\n")) == (2, b"", 1)
    assert err.startswith(b"wherefrom: the prompt: expected some text, got nothing.")
    code, out, _ = in_shell("2>&-", "trace", TEXT, "--json", "--model", small_folder)
    assert code == 0
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(out))
    assert in_shell("2>&-", "trace", "") == (2, b"", b"")
    assert in_shell("2>/dev/full", "trace", "") == (2, b"", b"")


def test_a_text_of_several_arguments_or_with_a_dash(run):
    assert run("trace", "When", "Mary")[2].endswith("(Mary). Put the text in quotes.\n")
    assert 'A text that begins with "-" goes behind --' in run("generate", "-5 degrees")[2]
    assert "quotes" not in run("example", "When")[2]


def test_an_example_that_is_not_one(run):
    refused(run("example", "--tokens", "a b"), "the token names: expected 3, one for each key, got 2.")
    refused(
        run("example", "--q", "1;1e200", "--k", "1;1e200", "--v", "1;1"),
        "a score of the example: expected a finite number, got inf in row 2, column 2, counted from 1.",
    )
    refused(run("example", "--q", "1;1 2"), "row 2 of --q: expected 1 number, as in its first row, got 2")


def test_a_part_of_a_character_is_offered_by_its_id(small_run):
    refused(
        small_run("trace", TEXT, "--target", "é"),
        '("bytes C3" = id 127, "bytes A9" = id 102). Ask for one of these pieces by its id (--target-id or ',
    )


def test_as_a_process_before_head(small_folder):
    with started("trace", TEXT, "--model", str(small_folder)) as process:
        head = subprocess.run(["head", "-1"], stdin=process.stdout, capture_output=True, check=True, timeout=120)
        assert head.stdout.decode() == "small0 · 19 tokens, 3 layers of 6 heads, numbered from 0\n"
        process.stdout.close()
        assert process.stderr.read() == b""
