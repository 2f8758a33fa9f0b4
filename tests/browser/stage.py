"""What the browser's tests look at: recordings made in seconds, and the command that serves them."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlencode

import psutil

import wherefrom
from by_hand import MASKS, keeping, random_call, recording_of
from recordings import everything, plain, tokens_of
from small import write_small_model
from wherefrom.recording import Recording, save_recording

MODEL = "model"
"""The folder, beside the shelf's, of the model that made most recordings."""
CHROMIUM = shutil.which("chromium")
AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"

HELD = Path(__file__).with_name("held.py")

TALK, OTHER, THOUSANDS, LONG, BROKEN = "talk", "other words", "thousands", "long", "broken"
TALK_TOKENS, OTHER_TOKENS, THOUSANDS_TOKENS, LONG_TOKENS = 734, 700, 2000, 32_768
HOSTILE = "</script><img src=x onerror=window.hit=1>"
"""A token and, as a folder within a folder, a recording's name."""
HOSTILE_TOKENS = (
    *(HOSTILE, " ", "\u202egnp.exe", "a\u200bb", "👩\u200d👩\u200d👧", "中文", "\u05e9\u05dc\u05d5\u05dd", "\n"),
    *('"><script>window.hit=1</script>', "end"),
)

WORDS = tuple(
    re.findall(
        r"\w+",
        "the council met on tuesday and anna brought the ledger while peter kept the keys to the old mill nobody had "
        "seen map harbour needs stone before winter they asked who would carry it across bridge",
    )
)


def prose(length: int, seed: int = 1) -> str:
    """Words in no order, sentences and lines, the same for a seed."""
    draw = random.Random(seed)
    said = "The capital of Italy is Rome.\n"
    while len(said) < length:
        said += draw.choice(WORDS) + draw.choice([" "] * 9 + [". ", ".\n"])
    return said[:length]


def hostile() -> Recording:
    """Tokens that would run, turn around or hide what stands beside them, in a text, on axes and in predictions."""
    call = random_call(MASKS["causal"], length=len(HOSTILE_TOKENS), seed=3)
    made = recording_of(call, replace(call, layer=1, name=HOSTILE), letters="abcdefghijklmnop"[: len(HOSTILE_TOKENS)])
    predicted = plain().predictions[0]
    labels = (HOSTILE, "\u202egnp.exe")
    return replace(
        made,
        tokens=tokens_of(*HOSTILE_TOKENS),
        model=replace(made.model, name=HOSTILE),
        predictions=tuple(replace(predicted, position=at, labels=labels) for at in range(len(HOSTILE_TOKENS))),
    )


def fill(folder: Path) -> Path:
    """Write every recording that is looked at below a folder."""
    small = wherefrom.load(write_small_model(folder / MODEL, max_position_embeddings=4096))
    wide = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2}
    long = wherefrom.load(write_small_model(folder / "long", max_position_embeddings=LONG_TOKENS, head_dim=16, **wide))
    shelf = folder / "shelf"
    (shelf / HOSTILE).parent.mkdir(parents=True)
    for name, model, length, seed in (
        (TALK, small, TALK_TOKENS, 1),
        (OTHER, small, OTHER_TOKENS, 2),
        (THOUSANDS, small, THOUSANDS_TOKENS, 1),
        (LONG, long, LONG_TOKENS, 1),
    ):
        predictions = "last" if name == LONG else "all"
        wherefrom.record(model, prose(length, seed), predictions=predictions, to=shelf / f"{name}.wherefrom")
    hand = {
        HOSTILE: hostile(),
        "everything": everything(),
        "empty rows": recording_of(random_call(MASKS["padding before"]), letters="abcabca"),
        "some rows": recording_of(keeping(random_call(MASKS["causal"]), [1, 4], [0, 3, 6]), letters="abcabca"),
    }
    for name, recording in hand.items():
        save_recording(recording, shelf / f"{name}.wherefrom")
    cut_off(shelf / "some rows.wherefrom", shelf / f"{BROKEN}.wherefrom")
    return shelf


def cut_off(whole: Path, to: Path) -> None:
    """Copy a recording as a disk that was full would have left it."""
    shutil.copytree(whole, to)
    for file in to.rglob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:40])


@dataclass(frozen=True)
class Served:
    """`wherefrom explore` as people start it.

    Attributes:
        process: that serves.
        address: of its page, with an end of "/".
        hold: the file for as long as which measuring stands still; None: it never does.
    """

    process: subprocess.Popen[str]
    address: str
    hold: Path | None = None

    def link(self, **chosen: object) -> str:
        """The address of a view."""
        page = chosen.pop("page", "")
        return f"{self.address}#/{page}?{urlencode(chosen)}"

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Let whatever is measured stand still at its next word of progress, until the end of the block."""
        assert self.hold is not None
        self.hold.touch()
        try:
            yield
        finally:
            self.hold.unlink()

    def own_memory(self) -> int:
        """Bytes of memory that the server holds; pages of mapped files are the system's, which takes them back."""
        memory = psutil.Process(self.process.pid).memory_info()
        held: int = memory.rss - memory.shared
        return held


@contextmanager
def served(*arguments: str | Path, hold: Path | None = None, port: str = "0") -> Iterator[Served]:
    """Serve until the end of the block; measuring stands still whenever there is a file `hold`."""
    start = ["-m", "wherefrom"] if hold is None else [str(HELD), str(hold)]
    command = [sys.executable, *start, "explore", *map(str, arguments), "--port", port, "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline().split()
        if len(said) < 5:
            raise RuntimeError(process.stderr.read() if process.stderr else "it said nothing")
        yield Served(process, said[4], hold)
    finally:
        process.terminate()
        process.communicate()
