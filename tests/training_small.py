"""A run of seconds: a text, a model of one layer, settings, and how two runs are compared. Also the child of the kill
tests: ``python training_small.py FOLDER HOW HOW`` trains in FOLDER/HOW, each in a process of its own, until that is
killed (see `child`), and prints the processes' numbers, then their ends.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from wherefrom.model.config import Config
from wherefrom.training import trainer
from wherefrom.training.log import LogRow, read_log
from wherefrom.training.loop import Trained, train
from wherefrom.training.run import OPTIMIZER
from wherefrom.training.settings import Settings
from wherefrom.training.text import Corpus, byte_tokenizer

TEXT = "To be, or not to be, that is the question: whether it is nobler in the mind to suffer the slings. " * 12
CONTEXT = 16
CONFIG = Config.decoder(layers=1, width=16, heads=2, vocabulary=257, context=CONTEXT)
TOKENIZER = byte_tokenizer()
CORPUS = Corpus.of(TEXT, TOKENIZER)
SETTINGS: dict[str, Any] = {
    "steps": 40,
    "batch": 3,
    "accumulate": 2,
    "learning_rate": 1e-2,
    "validate_every": 10,
    "checkpoint_every": 7,
    "device": "cpu",
    "precision": "float32",
}


def run(folder: Path, *, model: Any = CONFIG, corpus: Corpus = CORPUS, how: Any = None, **changes: Any) -> Trained:
    return train(model, corpus, TOKENIZER, Settings(**(SETTINGS | changes)), folder, **(how or {}))


class StopError(Exception):
    """What a test's callback raises to end a run."""


def stop_at(step: int, error: type[BaseException] = StopError) -> dict[str, Any]:
    def look(row: LogRow, _: object) -> None:
        if row.step == step:
            raise error

    return {"on_step": look}


def stopped(folder: Path, step: int, **changes: Any) -> Path:
    with suppress(StopError):
        run(folder, how=stop_at(step), **changes)
        raise AssertionError(f"the run did not stop at step {step}")
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def bits(checkpoint: Path) -> dict[str, bytes]:
    """Every number of a checkpoint: weights and optimizer state."""
    tensors = load_file(checkpoint / "model.safetensors") | load_file(checkpoint / OPTIMIZER)
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


def timeless(folder: Path) -> list[tuple[Any, ...]]:
    """The log without its last column, which is a clock's."""
    return [tuple(vars(row).values())[:-1] for row in read_log(folder / "log.csv")]


def child(folder: Path, how: str) -> None:
    """Train until killed: from outside ("outside"), or within the third checkpoint ("within")."""
    writes: list[Path] = []
    write: Callable[..., None] = trainer.write_folder

    def killed_within(folder: Path, *rest: Any) -> None:
        write(folder, *rest)
        writes.append(folder)
        if len(writes) == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    def slowly(row: LogRow, _: object) -> None:  # so that the parent is in time
        time.sleep(0.02)

    if how == "within":
        trainer.write_folder = killed_within
    run(folder, how={"on_step": slowly} if how == "outside" else {})


if __name__ == "__main__":
    torch.use_deterministic_algorithms(True)  # as conftest.py does for the runs it is compared with
    torch.optim.AdamW([torch.zeros(1)])  # imports what takes long, once for all
    for name in sys.argv[2:]:
        process = os.fork()
        if not process:
            child(Path(sys.argv[1]) / name, name)
            os._exit(0)
        print(process, flush=True)
    for _ in sys.argv[2:]:
        process, status = os.wait()
        print(process, os.waitstatus_to_exitcode(status), flush=True)
