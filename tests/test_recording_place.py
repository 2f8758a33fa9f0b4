"""Where a recording is written: whole or not there, whatever ends its writer; one writer a path; no harm to others."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from recordings import assert_same, bytes_of, everything, exact_call, facts_of, plain, tokens_of
from wherefrom.attention import Mask
from wherefrom.errors import InputError, RecordingError
from wherefrom.folders import hold, release
from wherefrom.recording import Writer, is_recording, open_recording, save_recording

TESTS = Path(__file__).parent
Start = Callable[..., "subprocess.Popen[str]"]
PROGRAM = """
import sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
import wherefrom.recording.tensors as tensors
from recordings import everything
from wherefrom.recording import save_recording
recording, pieces = everything(), tensors.pieces
def slowly(array):
    for piece in pieces(array):
        time.sleep({pause})
        yield piece
tensors.pieces = slowly
print("ready", flush=True)
"""
ONCE = """
sys.stdin.readline()
save_recording(recording, {path!r}, overwrite={overwrite})
print("done", flush=True)
"""


@pytest.fixture
def writing() -> Iterator[Start]:
    """Start a process that is about to write a recording, slowly; it begins when it is sent a line."""
    started = []

    def start(path: Path, *, pause: float = 0.002, overwrite: bool = True, then: str = ONCE) -> subprocess.Popen[str]:
        program = (PROGRAM + then).format(tests=str(TESTS), pause=pause, path=str(path), overwrite=overwrite)
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        started.append(subprocess.Popen([sys.executable, "-c", program], text=True, **streams))
        assert started[-1].stdout.readline() == "ready\n"
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def go(process: subprocess.Popen[str]) -> None:
    process.stdin.write("\n")
    process.stdin.flush()


def end(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=60)
    return out


# Killed ---------------------------------------------------------------------------------------------------------------


FORKING = """
import os
import sys
for _ in sys.stdin:
    child = os.fork()
    if not child:
        save_recording(recording, {path!r}, overwrite=True)
        os._exit(0)
    print(child, flush=True)
    os.waitpid(child, 0)
    print("ended", flush=True)
"""


def test_a_writer_killed_at_any_moment_leaves_nothing_that_opens(tmp_path: Path, writing: Start) -> None:
    """Twenty moments between beginning and end: what opens is the recording before, or the whole new one."""
    seed = 20
    draw, path = random.Random(seed), tmp_path / "a.wherefrom"
    before = bytes_of(save_recording(plain(), tmp_path / "before"))
    after = bytes_of(save_recording(everything(), tmp_path / "after"))
    outcomes = set()
    parent = writing(path, then=FORKING)  # its children write: none has to start Python first
    for moment in range(20):
        start_over(path, with_old=moment % 2 == 0)
        go(parent)
        child = int(parent.stdout.readline())
        time.sleep(draw.uniform(0, 0.15))  # writing takes about as long: some kills come after the end
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        assert parent.stdout.readline() == "ended\n"
        found = bytes_of(path) if path.exists() else None
        outcomes.add("nothing" if found is None else "new" if found == after else "old" if found == before else "else")
        for other in filter(is_recording, unfinished(tmp_path, path)):  # what has a manifest is whole
            assert bytes_of(other) in (before, after), f"seed {seed}"
        assert_same(open_recording(save_recording(everything(), path, overwrite=True)), everything())
        assert unfinished(tmp_path, path) == []
    assert {"nothing", "old"} <= outcomes <= {"nothing", "old", "new"}, f"seed {seed}"


def start_over(path: Path, *, with_old: bool) -> None:
    shutil.rmtree(path, ignore_errors=True)
    if with_old:
        save_recording(plain(), path)


def unfinished(folder: Path, path: Path) -> list[Path]:
    """What lies beside a recording and is none of this test's own."""
    return [other for other in folder.iterdir() if other.name not in (path.name, "before", "after")]


@pytest.mark.parametrize("with_old", [False, True])
def test_a_writer_killed_between_its_renamings(with_old: bool, tmp_path: Path) -> None:
    """The old recording was set aside, the new one not yet in its place: the next writer puts the old one back."""
    path, old = tmp_path / "a.wherefrom", tmp_path / ".a.wherefrom.old"
    if with_old:
        save_recording(everything(), path)
    save_recording(plain(), tmp_path / "b").rename(old)
    with Writer(path, model=facts_of(), tokens=tokens_of("a"), overwrite=True):
        assert_same(open_recording(path), everything() if with_old else plain())
    assert sorted(tmp_path.iterdir()) == [path]


def test_what_is_left_behind_is_used_again(tmp_path: Path) -> None:
    left = tmp_path / ".a.unfinished"
    (left / "calls").mkdir(parents=True)
    (left / "calls" / "decoder-self-000.safetensors").write_text("junk")
    (left / "tokens.safetensors").write_text("junk")
    (left / "recording.json").symlink_to(tmp_path)
    assert_same(open_recording(save_recording(plain(), tmp_path / "a")), plain())
    assert sorted(tmp_path.iterdir()) == [tmp_path / "a"]


FOREIGN = {
    ".a.old/thesis.txt": ".a.old beside it: expected nothing but what the writer of a recording leaves, got 'thesis.t",
    ".a.unfinished/thesis.txt": ".a.unfinished beside it: expected nothing but what the writer of a recording leaves",
    ".a.unfinished/calls/decoder-self-0.safetensors": "got 'calls/decoder-self-0.safetensors' too. Move it elsewhere",
    ".a.old/calls/decoder-self-000.safetensors/mine": "got 'calls/decoder-self-000.safetensors/mine' too",
    ".a.old": ".a.old beside it: expected nothing but what the writer of a recording leaves, got a file or a link.",
}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", FOREIGN)
def test_what_no_writer_left_is_not_touched(name: str, overwrite: bool, tmp_path: Path) -> None:
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    for _ in range(2):  # it is not held either
        with pytest.raises(RecordingError) as caught:
            save_recording(plain(), tmp_path / "a", overwrite=overwrite)
        assert FOREIGN[name] in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before
    assert file.read_text() == "mine"


def test_a_folder_that_was_let_go_is_another_writers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be removed is taken over by the next writer; whoever had it before leaves it alone."""
    from wherefrom.recording import place

    first = Writer(tmp_path / "a", model=facts_of(), tokens=tokens_of("a"))
    with monkeypatch.context() as patch:
        patch.setattr(place, "_remove", lambda path: None)
        first.abandon()
    with Writer(tmp_path / "a", model=facts_of(), tokens=tokens_of("b")) as second:
        first.abandon()
        second.finish(predictions=())
    assert open_recording(tmp_path / "a").tokens.text == "b"


def test_the_remains_of_one_with_scans_are_removed(tmp_path: Path) -> None:
    old = save_recording(plain(), tmp_path / "b").rename(tmp_path / ".a.old")
    (old / "scans").mkdir()
    (old / "scans" / "anything").write_text("found of the weights")
    (old / "recording.json").unlink()
    save_recording(plain(), tmp_path / "a")
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]


def test_another_writers_folder_of_the_same_name_is_left(tmp_path: Path) -> None:
    """Once ours is in its place, the name of the unfinished one is free, and another writer may have it."""
    path = tmp_path / "a"
    with Writer(path, model=facts_of(), tokens=tokens_of("a")) as writer:
        writer.finish(predictions=())
        with Writer(path, model=facts_of(), tokens=tokens_of("b"), overwrite=True) as second:
            writer.abandon()
            second.finish(predictions=())
    assert open_recording(path).tokens.text == "b"


def test_a_part_of_an_old_one_is_not_put_back(tmp_path: Path) -> None:
    """A writer killed while it removed what it had replaced: that has no manifest any more."""
    save_recording(plain(), tmp_path / "b").rename(tmp_path / ".a.old")
    (tmp_path / ".a.old" / "recording.json").unlink()
    assert_same(open_recording(save_recording(everything(), tmp_path / "a")), everything())
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]


# Two writers ----------------------------------------------------------------------------------------------------------


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.wherefrom"
    with Writer(path, model=facts_of(), tokens=tokens_of(*"abcdefg")) as first:
        first.add(exact_call(Mask()))
        with pytest.raises(RecordingError, match="its place: expected no other process that writes there, got another"):
            Writer(path, model=facts_of(), tokens=tokens_of("a"))
        assert_same(open_recording(save_recording(plain(), tmp_path / "b")), plain())  # another path is free
        first.finish(predictions=())
    assert len(open_recording(path).calls) == 1


def test_of_two_processes_one_writes(tmp_path: Path, writing: Start) -> None:
    path = tmp_path / "a.wherefrom"
    first = writing(path, pause=0.02)
    go(first)
    while not (tmp_path / ".a.wherefrom.unfinished" / "tokens.safetensors").exists():
        time.sleep(0.001)
    with pytest.raises(RecordingError, match="expected no other process that writes there"):
        save_recording(plain(), path, overwrite=True)
    assert end(first) == "done\n"
    assert_same(open_recording(path), everything())


def test_many_writers_at_once_leave_one_whole_recording(tmp_path: Path, writing: Start) -> None:
    path = tmp_path / "a.wherefrom"
    processes = [writing(path, pause=0, overwrite=False) for _ in range(4)]
    for process in processes:
        go(process)
    assert [end(process) for process in processes].count("done\n") == 1
    assert_same(open_recording(path), everything())
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_renamed_before_it_is_locked_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between finding the other's folder and locking it, the other finishes: what was locked is then its recording."""
    from wherefrom.recording import place

    path, other = tmp_path / "a.wherefrom", tmp_path / ".a.wherefrom.unfinished"
    shutil.copytree(save_recording(plain(), tmp_path / "b"), other)

    def late(folder: Path) -> int | None:
        opened = hold(folder)
        if other.exists() and is_recording(other):
            other.rename(path)
        return opened

    monkeypatch.setattr(place, "hold", late)
    with pytest.raises(RecordingError, match="its place: expected nothing there yet, got a recording"):
        save_recording(everything(), path)
    assert_same(open_recording(path), plain())


def test_without_locks_what_is_left_is_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from wherefrom.recording import place

    monkeypatch.setattr(place, "hold", lambda folder: None)
    left = tmp_path / ".a.unfinished"
    left.mkdir()
    with pytest.raises(
        RecordingError, match=r"got \.a\.unfinished, which another writes or has left behind; remove it"
    ):
        save_recording(plain(), tmp_path / "a")
    left.rmdir()
    assert_same(open_recording(save_recording(plain(), tmp_path / "a")), plain())


def test_a_lock_is_let_go(tmp_path: Path) -> None:
    held = hold(tmp_path)
    with pytest.raises(BlockingIOError):
        hold(tmp_path)
    release(held)
    release(hold(tmp_path))
    with pytest.raises(OSError, match=r"No such file"):
        hold(tmp_path / "nowhere")


# What is there already ------------------------------------------------------------------------------------------------


def spoiled(path: Path) -> None:
    (path / "recording.json").write_bytes((path / "recording.json").read_bytes()[:-9])


THERE = {
    "a recording": (
        lambda path: save_recording(plain(), path),
        False,
        "got a recording. Choose another path, or replace",
    ),
    "a file": (
        lambda path: path.write_text("mine"),
        True,
        "expected nothing there yet, got a file. Choose another path",
    ),
    "a folder": (lambda path: path.mkdir(), True, "expected nothing there yet, got a folder of something else"),
    "a recording with more in it": (
        lambda path: (save_recording(plain(), path) / "notes.txt").write_text("mine"),
        True,
        "expected nothing but the files of the recording to be replaced, got 'notes.txt' too",
    ),
    "more among its calls": (
        lambda path: (save_recording(plain(), path) / "calls" / "notes.txt").write_text("mine"),
        True,
        "expected nothing but the files of the recording to be replaced, got 'calls/notes.txt' too",
    ),
    "a damaged recording": (
        lambda path: spoiled(save_recording(plain(), path)),
        True,
        "recording.json: expected the checksum that it states",
    ),
}


@pytest.mark.parametrize("name", THERE)
def test_what_is_there_stays(name: str, tmp_path: Path) -> None:
    put, overwrite, sentence = THERE[name]
    path = tmp_path / "a.wherefrom"
    put(path)
    before = bytes_of(tmp_path)
    with pytest.raises(RecordingError) as caught:
        save_recording(everything(), path, overwrite=overwrite)
    assert sentence in str(caught.value)
    assert bytes_of(tmp_path) == before
    assert list(tmp_path.iterdir()) == [path]


def test_the_old_one_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = save_recording(plain(), tmp_path / "a.wherefrom")
    opened = open_recording(path)
    q = opened.calls[0].q
    writer = Writer(path, model=facts_of(), tokens=tokens_of(*"abcdefg"), overwrite=True)
    writer.add(exact_call(Mask()))
    assert_same(open_recording(path), plain())
    writer.abandon()
    assert_same(open_recording(path), plain())
    assert_same(open_recording(save_recording(everything(), path, overwrite=True)), everything())
    assert q.tolist() == plain().calls[0].q.tolist()  # what was mapped is still there
    assert list(tmp_path.iterdir()) == [path]


def test_scans_go_with_what_is_replaced(tmp_path: Path) -> None:
    path = save_recording(plain(), tmp_path / "a.wherefrom")
    (path / "scans").mkdir()
    (path / "scans" / "decoder-self-000.safetensors").write_text("of another recording")
    assert_same(open_recording(save_recording(everything(), path, overwrite=True)), everything())
    assert not (path / "scans").exists()


def test_a_recording_is_saved_over_itself(tmp_path: Path) -> None:
    path = save_recording(everything(), tmp_path / "a.wherefrom")
    assert_same(open_recording(save_recording(open_recording(path), path, overwrite=True)), everything())


def test_something_that_came_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.wherefrom"
    with Writer(path, model=facts_of(), tokens=tokens_of("a")) as writer:
        path.mkdir()
        with pytest.raises(RecordingError, match="expected nothing there yet, got a folder of something else"):
            writer.finish(predictions=())
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "a").symlink_to(tmp_path / "disk" / "a")
    assert save_recording(plain(), tmp_path / "a") == tmp_path / "disk" / "a"
    assert save_recording(everything(), tmp_path / "a", overwrite=True) == tmp_path / "disk" / "a"
    assert list((tmp_path / "disk").iterdir()) == [tmp_path / "disk" / "a"]
    assert_same(open_recording(tmp_path / "a"), everything())


# A context ------------------------------------------------------------------------------------------------------------


def test_leaving_by_an_exception_leaves_nothing(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "a", model=facts_of(), tokens=tokens_of(*"abcdefg"))

    def interrupted() -> None:
        with writer:
            writer.add(exact_call(Mask()))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(
        RecordingError, match="the writer: expected a writer that is still open, got one that is closed"
    ):
        writer.add(exact_call(Mask()))
    with pytest.raises(RecordingError, match="expected a writer that is still open"):
        writer.finish(predictions=())


def test_leaving_before_the_end_leaves_nothing(tmp_path: Path) -> None:
    with Writer(tmp_path / "a", model=facts_of(), tokens=tokens_of("a")):
        pass
    assert list(tmp_path.iterdir()) == []


# No room --------------------------------------------------------------------------------------------------------------


def test_more_than_is_free_is_refused_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9 - 1000, 1000))
    with pytest.raises(RecordingError, match=r"the disk: expected 2\.0 MB free, got 0\.0 MB") as caught:
        Writer(tmp_path / "a", model=facts_of(), tokens=tokens_of("a"), forecast=2 * 10**6)
    assert (caught.value.bytes, caught.value.free) == (2 * 10**6, 1000)
    with (
        pytest.raises(RecordingError, match="the disk: expected"),
        Writer(tmp_path / "a", model=facts_of(), tokens=tokens_of("a")) as writer,
    ):
        writer.add(exact_call(Mask()))
    assert list(tmp_path.iterdir()) == []


LIMITED = """
import resource, signal, sys
sys.path.insert(0, {tests!r})
from recordings import everything
from wherefrom.recording import save_recording
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
recording = everything()
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
try:
    save_recording(recording, {path!r})
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("limit", [0, 700, 1500, 3000])
def test_a_disk_that_is_full(limit: int, tmp_path: Path) -> None:
    """The system refuses a byte too many: in the header, in an array, in a later file."""
    program = LIMITED.format(tests=str(TESTS), path=str(tmp_path / "a"), limit=limit)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    sentence = r"expected room and permission to write it, got [Errno 27] File too large"
    assert ran.stdout.startswith(f"RecordingError {tmp_path / 'a'}: ")
    assert sentence in ran.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fails_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk may say only when it is waited for that it is full."""
    from wherefrom.recording import place

    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(place, "sync", full)
    with pytest.raises(
        RecordingError, match=r"expected room and permission to write it, got \[Errno 28\] No space left"
    ):
        save_recording(plain(), tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_a_new_one_that_cannot_be_renamed_leaves_the_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_recording(plain(), tmp_path / "a")
    rename = Path.rename

    def no(self: Path, target: Path) -> Path:
        if self.name.endswith(".unfinished"):
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", no)
    with pytest.raises(RecordingError, match="Input/output error"):
        save_recording(everything(), path, overwrite=True)
    assert_same(open_recording(path), plain())
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("path", ["a" * 250, "a" * 300, "file/a"])
def test_a_place_that_cannot_be(path: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RecordingError, match="expected room and permission to write it, got"):
        save_recording(plain(), tmp_path / path)
    assert [other.name for other in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("path", ["/", "//", "/.."])
def test_a_place_without_a_name(path: str) -> None:
    with pytest.raises(RecordingError, match="its place: expected a folder with a name, got the root of all folders"):
        save_recording(plain(), path)


@pytest.mark.parametrize("path", [123, b"x", None, "a\0b", "\ud800", ["a"]])
def test_what_is_no_path(path: object) -> None:
    for door in (is_recording, open_recording, lambda given: save_recording(plain(), given)):
        with pytest.raises(InputError, match=r"the path: expected (a Path|a name that a folder can have), got"):
            door(path)


def test_the_home_of_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecordingError, match="expected a folder to put it in, got"):
        save_recording(plain(), "~nosuchuser/x")


def test_the_disk_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files first, then the manifest, then the folders' names; only then the renaming, which is brought there too."""
    from wherefrom.recording import place

    done: list[str] = []
    sync, rename = place.sync, Path.rename
    monkeypatch.setattr(place, "sync", lambda path: (sync(path), done.append(path.name)))
    monkeypatch.setattr(Path, "rename", lambda self, to: (done.append("renamed"), rename(self, to))[1])
    path = save_recording(plain(), tmp_path / "a")
    files = {Path(name).name for name in bytes_of(path)} - {"recording.json"}
    assert set(done[: len(files)]) == files
    assert done[len(files) :] == ["recording.json", "calls", ".a.unfinished", "renamed", tmp_path.name]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordingError) as caught:
        save_recording(plain(), tmp_path / "nowhere" / "x.wherefrom")
    assert "expected a folder to put it in, got" in str(caught.value)
    assert str(caught.value).endswith("nowhere, where nothing is. Make that folder first, or choose another path.")
