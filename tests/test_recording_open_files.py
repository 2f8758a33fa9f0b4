"""Open files: a recording needs one only while an array of a file is there, and says so when there are no more."""

from __future__ import annotations

import gc
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import wherefrom
from recordings import bytes_of, plain, uneven
from wherefrom.recording import open_recording, save_recording

SENTENCE = r"got \[Errno 24\] Too many open files.*Let go of other recordings that are open, or raise the limit on open"
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="open files are counted in /proc")


@contextmanager
def only(more: int) -> Iterator[None]:
    """So many files may still be opened."""
    opened = [os.dup(0) for _ in range(more + 1)]
    for number in opened:
        os.close(number)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(opened), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def files() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


@linux
def test_a_file_is_open_while_an_array_of_it_is_there(tmp_path: Path) -> None:
    path = save_recording(plain(), tmp_path / "a")
    before, recording = files(), open_recording(path)
    assert [len(call.checks) for call in recording.calls] == [len(call.checks) for call in plain().calls]
    assert files() == before  # their numbers were taken out of the arrays
    first = recording.calls[0]
    q, k = first.q, first.k
    assert files() == before + (sys.version_info < (3, 13))  # one map for both
    assert q.base is k.base
    del recording, first
    assert q.tolist() == plain().calls[0].q.tolist()
    del q, k
    assert files() == before


@linux
def test_rounded_to_bfloat16_none_is_open(tmp_path: Path) -> None:
    recording = open_recording(save_recording(plain(), tmp_path / "a", store="bfloat16"))
    before = files()
    assert recording.calls[0].q.base is None or recording.calls[0].q.base.base is None
    assert files() == before


@linux
@pytest.mark.parametrize("more", [0, 1])
def test_too_many_open_files_to_read(more: int, tmp_path: Path) -> None:
    path = save_recording(plain(), tmp_path / "a")
    call = open_recording(path).calls[0]
    with only(more), pytest.raises(wherefrom.RecordingError, match=SENTENCE):
        _ = call.q if more or sys.version_info < (3, 13) else open_recording(path)
    with only(0), pytest.raises(wherefrom.RecordingError, match=SENTENCE):
        open_recording(path)
    assert call.q.tolist() == plain().calls[0].q.tolist()  # asked again, when one is free


@linux
@pytest.mark.parametrize("more", [0, 1])
def test_too_many_open_files_to_write(more: int, tmp_path: Path) -> None:
    """The old one that a killed writer had set aside is not lost for want of a look at it."""
    old = bytes_of(save_recording(plain(), tmp_path / "b").rename(tmp_path / ".a.old"))
    with only(more), pytest.raises(wherefrom.RecordingError, match=SENTENCE):
        save_recording(uneven(), tmp_path / "a", overwrite=True)
    assert old == bytes_of(tmp_path / (".a.old" if (tmp_path / ".a.old").exists() else "a"))
    save_recording(uneven(), tmp_path / "a", overwrite=True)
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]
