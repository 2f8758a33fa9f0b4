"""Watching attention form (floor 5): while a model trains, what each of its heads reads is measured every few steps.

The probe is a row of different tokens that comes twice (Olsson et al. 2022). In its second half a head can look for
what followed the same token before; one that does is an induction head, and the loss of that half falls with it. The
attention is recorded like that of any model and asked like any recording, so the figures are exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from wherefrom.capture.recorder import Recorder
from wherefrom.checks import whole
from wherefrom.errors import InputError, TrainingError
from wherefrom.model.language import load
from wherefrom.model.transformer import Transformer
from wherefrom.questions.figures import figures_of
from wherefrom.training.log import LogRow
from wherefrom.training.place import run_folder
from wherefrom.training.text import Corpus
from wherefrom.training.trainer import own_copy
from wherefrom.training.watched import COLUMNS, NAME, read_rows, rows_of


def repeated_probe(corpus: Corpus, length: int, seed: int = 0) -> NDArray[np.int64]:
    """Return token ids [2 R]: R different tokens of the training text in random order, and the same again.

    Args:
        corpus: whose tokens; a frequent one is as likely as a rare one, as long as it is there.
        length: at most so many in all.
        seed: the same seed gives the same probe.

    Raises:
        InputError: a length below 4, or fewer than two different tokens.
    """
    half = whole("the probe's length", length, least=4, way_out="64 is a good one.") // 2
    known = np.unique(corpus.train)
    if known.size < 2:
        raise InputError(
            "the training text",
            expected="at least two different tokens",
            given=f"{known.size}",
            way_out="Give a text in which something can be learnt.",
        )
    drawn = np.random.default_rng(seed).permutation(known)[:half].astype(np.int64)
    return np.concatenate((drawn, drawn))


@dataclass(eq=False)
class Watch:
    """An `on_step` for `train` that writes the figures of every head to ``attention.csv`` in the run's folder.

    Of a run that is resumed, the rows of steps that are made again are replaced, and one that was stopped between a
    checkpoint and the look at it is looked at again, so that the table is that of an unbroken run.

    Attributes:
        folder: of the run.
        probe: the token ids, see `repeated_probe`.
        every: steps between two looks; the first step is looked at too.

    Raises:
        InputError: `every` is no whole number from 1 up, or the folder is no path.
        TrainingError: the folder has an ``attention.csv`` that is another table, or cannot be read.
    """

    folder: Path
    probe: NDArray[np.int64]
    every: int = 50
    _next: int | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.folder = run_folder(self.folder)
        self.every = whole("the steps between two looks", self.every, least=1, way_out="50 is a good number.")
        self._rows()  # what cannot be gone on with is refused before a run begins

    @property
    def path(self) -> Path:
        """The table."""
        return self.folder / NAME

    def __call__(self, row: LogRow, transformer: Transformer) -> None:
        """Look at the model after a step, if it is time.

        Raises:
            TrainingError: the table cannot be written.
        """
        if row.step != self._next:  # a run begins here, or goes on
            self._begin(row.step, transformer)
        self._next = row.step + 1
        if self._is_time(row.step):
            rows = self.look(row.step, transformer)
            header = [] if self.path.exists() else [list(COLUMNS)]
            with self._writing(), self.path.open("a", encoding="utf-8", newline="") as file:
                file.write(_lines([*header, *rows]))

    @torch.inference_mode()
    def look(self, step: int, transformer: Transformer) -> list[list[str]]:
        """Return the table's rows of a step."""
        ids = torch.from_numpy(self.probe).to(transformer.embedding.weight.device)[None]  # 1 2R
        recorder = Recorder(transformer.config.layers, ids.shape[1])
        logits = transformer.logits(transformer.stream(ids, attention=recorder))[0, :-1].float()
        losses = F.cross_entropy(logits, ids[0, 1:], reduction="none")  # loss t is that of token t + 1
        half = len(self.probe) // 2
        new, again = (float(part.mean()) for part in (losses[: half - 1], losses[half:]))
        figures = (figures_of(call, self.probe) for call in recorder.calls())
        return list(rows_of(step, figures, new, again, self.every))

    def _is_time(self, step: int) -> bool:
        return step == 1 or step % self.every == 0

    def _begin(self, step: int, transformer: Transformer) -> None:
        """Leave in the table what came before this step; if that is nothing, the first look makes it."""
        kept = [row for row in self._rows() if int(row[0]) < step]
        before, size = str(step - 1), transformer.config.layers * transformer.config.heads
        place = self.folder / f"step-{step - 1:08d}"
        if sum(row[0] == before for row in kept) < size:  # killed before its last look was written, or within it
            kept = [row for row in kept if row[0] != before]
            if self._is_time(step - 1) and place.is_dir():
                device = transformer.embedding.weight.device
                kept += self.look(step - 1, own_copy(load(place).transformer).to(device))  # in memory as in training
        partial = self.path.with_name(f".{NAME}.partial")
        with self._writing():
            if kept:
                partial.write_text(_lines([list(COLUMNS), *kept]), encoding="utf-8", newline="")
                partial.replace(self.path)
            else:
                self.path.unlink(missing_ok=True)

    def _rows(self) -> list[list[str]]:
        """Return the rows that are there."""
        return read_rows(self.path) if self.path.exists() else []

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TrainingError(
                f"{self.path}",
                expected="a place that can be written",
                given=f"{error.strerror}",
                way_out="Make room; the run's last checkpoint is whole.",
                path=self.path,
            ) from error


def _lines(rows: list[list[str]]) -> str:
    return "".join(",".join(row) + "\n" for row in rows)
