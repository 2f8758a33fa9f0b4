"""The README is run: its Python blocks, its commands' names, and the sample that it opens with."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import wherefrom
from wherefrom.views.terminal import trace_lines

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SAMPLE = re.compile(r'<!-- sample: wherefrom trace "(?P<text>[^"]+)" -->\n```text\n(?P<shown>.*?)```', re.DOTALL)
MEASURED = re.compile(r"\d+\.\d\d s|\d+e-\d\d")
NUMBER = re.compile(r"[+±-]?\d+\.\d+")


def as_shown(model: wherefrom.LanguageModel, text: str) -> str:
    return "".join(f"{line.plain.rstrip()}\n" for line in trace_lines(wherefrom.trace(model, text)))


def test_sample_is_what_the_command_prints(smollm: wherefrom.LanguageModel) -> None:
    samples = list(SAMPLE.finditer(README))
    assert len(samples) == 1
    printed = as_shown(smollm, samples[0]["text"])
    # how long it took is this machine's, and the last digit may be; the words are the same everywhere
    words = [MEASURED.sub("_", text).split() for text in (printed, samples[0]["shown"])]
    words = [[word for word in text if not set(word) & set("█▏▎▍▌▋▊▉")] for text in words]
    assert [NUMBER.sub("#", word) for word in words[0]] == [NUMBER.sub("#", word) for word in words[1]]
    numbers = [[float(number.strip("±")) for number in NUMBER.findall(" ".join(text))] for text in words]
    assert numbers[0] == pytest.approx(numbers[1], abs=0.11)


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_python_blocks_run(
    block: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # one of them leaves a trained model behind
    exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out.strip()


def test_every_command_named_exists() -> None:
    named = set(re.findall(r"^(?:.*\| )?wherefrom (\w+)", README, re.MULTILINE))
    assert named >= {"trace", "generate", "train", "watch", "cost", "example"}
    listing = subprocess.run(
        [sys.executable, "-m", "wherefrom", "--help"], check=True, capture_output=True, text=True, env=os.environ
    ).stdout
    commands = set(re.findall(r"^  (\w+) ", listing.split("Commands:")[1], re.MULTILINE))
    assert named <= commands


def test_files_linked_exist() -> None:
    links = re.findall(r"\]\(([\w./-]+)\)", README) + re.findall(r"`((?:src|docs|benchmarks)/[\w./-]+)`", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
