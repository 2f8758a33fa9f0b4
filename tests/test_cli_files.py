"""Where a command writes an answer: a link is followed, and stays a link."""

from __future__ import annotations

from pathlib import Path

import pytest

import wherefrom
from command_line import Ended, typed
from test_answers_view import made
from test_cli import refused


def sources(folder: Path, out: str, *options: str) -> Ended:
    if not (folder / "r.wherefrom").exists():
        wherefrom.save_recording(made(), folder / "r.wherefrom")
    return typed(folder, "sources", "r.wherefrom", "--out", out, *options)


@pytest.mark.parametrize("there", [False, True])
def test_a_link_is_followed(there: bool, tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "link.csv").symlink_to(Path("far") / "table.csv")
    if there:
        (tmp_path / "far" / "table.csv").write_text("mine")
        refused(sources(tmp_path, "link.csv"), "--out link.csv: expected nothing there yet, got a file.")
    assert sources(tmp_path, "link.csv", *["--overwrite"] * there).code == 0
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "far" / "table.csv").read_text().startswith("source,token,weight,")
    assert [file.name for file in (tmp_path / "far").iterdir()] == ["table.csv"]
    assert {file.name for file in tmp_path.iterdir()} >= {"link.csv", "far", "r.wherefrom"}


def test_a_link_into_nowhere(tmp_path: Path) -> None:
    (tmp_path / "link.csv").symlink_to(tmp_path / "no" / "table.csv")
    refused(sources(tmp_path, "link.csv"), f"expected a folder that is there, got none at {tmp_path / 'no'}. Make it")
