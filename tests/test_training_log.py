"""The log of a run: numbers come back as they were, a torn line is left out, a damaged one is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherefrom.errors import TrainingError
from wherefrom.training.log import HEADER, Log, LogRow, read_log, refuse_foreign

FLOATS = st.floats(allow_nan=False, allow_infinity=False)


def row(step: int) -> LogRow:
    return LogRow(step, step * 512, 1 / step, None if step % 2 else 0.1 + step, 1e-3, 2.5, 1234.5)


@given(st.integers(1), st.integers(0), FLOATS, st.none() | FLOATS, FLOATS)
def test_numbers_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, step: int, tokens: int, loss: float, validation: float | None, rest: float
) -> None:
    path = tmp_path_factory.mktemp("log") / "log.csv"
    written = LogRow(step, tokens, loss, validation, rest, rest / 3, rest / 7)
    log = Log(path, 0)
    log.append(written)
    log.close()
    assert read_log(path) == (written,)


def test_a_log_is_read_by_anyone(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.csv", 0)
    log.append(row(1))
    log.append(row(2))
    assert (tmp_path / "log.csv").read_text() == (  # before it is closed: a killed run has written its rows
        "step,tokens,train_loss,validation_loss,learning_rate,gradient_norm,tokens_per_second\n"
        "1,512,1.0,,0.001,2.5,1234.5\n"
        "2,1024,0.5,2.1,0.001,2.5,1234.5\n"
    )
    log.close()


def test_rows_behind_a_checkpoint_are_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(HEADER + "".join(row(step).line() for step in range(1, 8)) + "8,4096,0.")
    assert [found.step for found in read_log(path)] == list(range(1, 8))
    log = Log(path, 5)
    log.append(row(6))
    log.close()
    assert read_log(path) == tuple(row(step) for step in range(1, 7))
    Log(path, 0).close()  # a run that begins anew
    assert read_log(path) == ()
    assert [found.name for found in tmp_path.iterdir()] == ["log.csv"]
    Log(tmp_path / "lost.csv", 5).close()  # a log that is gone is begun again
    assert read_log(tmp_path / "lost.csv") == ()


DAMAGED = [
    ("step,loss\n", 1, "line 1: expected the columns step,tokens,train_loss"),
    (HEADER.replace("per_second", "per_hour"), 1, "gradient_norm,tokens_per_hour'. Move the file"),
    (HEADER + row(1).line() + "2,1024,zero,,0.001,2.5,1234.5\n", 3, "line 3: expected 7 numbers, got '2,1024,zero,,0"),
    (HEADER + "1,512,1.0,,0.001,2.5\n", 2, "line 2: expected 7 numbers, got"),
    (HEADER + "\n", 2, "line 2: expected 7 numbers, got ''. Move the file away"),
]


def test_a_new_run_leaves_a_foreign_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    for content, told in [
        (b"name,price\nsugar,3\n", "'name,price'"),
        (b"name,price", "'name,price'"),
        (b"\x89PNG\r\n", "the byte 0x89"),
    ]:
        path.write_bytes(content)
        for use in (refuse_foreign, lambda path: Log(path, 0)):
            with pytest.raises(TrainingError, match=rf"log\.csv, line 1: expected .*, got {told}\. Move the file away"):
                use(path)
        assert path.read_bytes() == content
    for ours in (b"", HEADER.encode(), HEADER.replace("\n", "\r\n").encode(), HEADER.encode() + b"1,torn"):
        path.write_bytes(ours)
        Log(path, 0).close()
        assert path.read_text() == HEADER


def test_a_log_may_have_the_line_ends_of_windows(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    lines = [HEADER, row(1).line(), row(2).line()]
    path.write_bytes("".join(lines).replace("\n", "\r\n").encode())
    assert read_log(path) == (row(1), row(2))
    Log(path, 1).close()
    assert path.read_bytes() == "".join(lines[:2]).encode()


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(HEADER.encode() + row(1).line().encode() + b"2,\xff\n")
    with pytest.raises(TrainingError, match="line 3: expected text in UTF-8, got the byte 0xFF") as caught:
        read_log(path)
    assert (caught.value.path, caught.value.line) == (path, 3)


@pytest.mark.parametrize(("content", "line", "sentence"), DAMAGED)
def test_a_damaged_log_is_named_and_left_alone(tmp_path: Path, content: str, line: int, sentence: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(content)
    for read in (lambda: read_log(path), lambda: Log(path, 3)):
        with pytest.raises(TrainingError, match=re.escape(sentence)) as caught:
            read()
        assert (caught.value.path, caught.value.line) == (path, line)
    assert path.read_text() == content
