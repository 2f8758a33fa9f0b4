"""The log of a training run (floor 5): one row a step in ``log.csv``, for people, spreadsheets and plots.

Takes errors from below. Gives `LogRow` and the file's reading and writing to the run. No torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from io import TextIOWrapper
from pathlib import Path

from wherefrom.errors import TrainingError

NAME = "log.csv"


@dataclass(frozen=True)
class LogRow:
    """What one step did.

    Attributes:
        step: how many updates have been made, this one included.
        tokens: how many tokens have been trained on so far.
        train_loss: of this step's windows before the update, in nats per token.
        validation_loss: after the update, in nats per token; None where it was not measured.
        learning_rate: of this update.
        gradient_norm: over all weights, before it was clipped.
        tokens_per_second: of this update, validation and checkpoint not counted.
    """

    step: int
    tokens: int
    train_loss: float
    validation_loss: float | None
    learning_rate: float
    gradient_norm: float
    tokens_per_second: float

    def line(self) -> str:
        """Return the row as the file has it: every digit, so that reading it back gives the same numbers."""
        values = (getattr(self, name) for name in COLUMNS)
        return ",".join("" if value is None else repr(value) for value in values) + "\n"


COLUMNS = tuple(field.name for field in fields(LogRow))
HEADER = ",".join(COLUMNS) + "\n"
SHOWN = 120  # characters of a line that is wrong: more than the header has


def read_log(path: Path) -> tuple[LogRow, ...]:
    """Return the rows of a ``log.csv``; a last line that a killed run did not finish is left out.

    Lines may end as Windows programs end them.

    Raises:
        TrainingError: the file is not such a log; ``path`` and ``line`` say where.
        OSError: it cannot be read.
    """
    return tuple(_rows(path))


def refuse_foreign(path: Path) -> None:
    """Refuse a file in the log's place that is no such log, since a new run writes over it; none there is fine.

    Raises:
        TrainingError: its first line is not the log's.
        OSError: it cannot be read.
    """
    if path.exists():
        next(_lines(path), None)


def _rows(path: Path) -> Iterator[LogRow]:
    for number, line in _lines(path):
        if number > 1:
            yield _row(line, number, path)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the whole lines and their numbers, from 1; the first is the columns."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            try:
                line = raw.decode()
            except UnicodeDecodeError as error:
                given = f"the byte 0x{raw[error.start]:02X}"
                raise _damaged(path, number, "text in UTF-8", given) from None
            if number == 1 and line.rstrip("\r\n") != HEADER.strip():
                raise _damaged(path, number, f"the columns {HEADER.strip()}", repr(line.strip()[:SHOWN]))
            if not line.endswith("\n"):
                return
            yield number, line


def _row(line: str, number: int, path: Path) -> LogRow:
    cells = line.strip().split(",")
    try:
        step, tokens, loss, validation, rate, norm, speed = cells
        validated = float(validation) if validation else None
        return LogRow(int(step), int(tokens), float(loss), validated, float(rate), float(norm), float(speed))
    except ValueError:
        raise _damaged(path, number, f"{len(COLUMNS)} numbers", repr(line.strip()[:SHOWN])) from None


def _damaged(path: Path, number: int, expected: str, given: str) -> TrainingError:
    return TrainingError(
        f"{path}, line {number}",
        expected=expected,
        given=given,
        way_out="Move the file away: a run begins, or goes on, without it.",
        path=path,
        line=number,
    )


class Log:
    """A ``log.csv`` that is being written.

    Args:
        path: the file; it is made if it is not there.
        step: rows after this step, which a checkpoint did not live to see, are cut off.

    Raises:
        TrainingError: there is a file of this name that is no such log.
        OSError: it cannot be written.
    """

    def __init__(self, path: Path, step: int) -> None:
        refuse_foreign(path)
        kept = [row.line() for row in read_log(path) if row.step <= step] if step and path.exists() else []
        partial = path.with_name(f".{path.name}.partial")
        partial.write_text("".join([HEADER, *kept]), encoding="utf-8", newline="")
        partial.replace(path)
        self.file: TextIOWrapper = path.open("a", encoding="utf-8", newline="", buffering=1)  # out at each line's end

    def append(self, row: LogRow) -> None:
        """Write a row; when this returns, the system has it, so that killing the run does not lose it."""
        self.file.write(row.line())

    def sync(self) -> None:
        """Bring what was written to the disk, before a checkpoint says that it is there."""
        os.fsync(self.file.fileno())

    def close(self) -> None:
        """Close the file."""
        self.file.close()
