"""Opening a recording's file (floor 2): in milliseconds at any size, with numpy alone; arrays are mapped when asked.

Takes the layout and the tensors from beside it. Gives questions a `Recording` whose calls load nothing until an array
is asked for; that array is then summed up once, and refused if it is not what was written. Opening checks the
manifest's checksum, every file's size and header, every shape, and the tokens and predictions throughout.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from wherefrom.recording import agreement, words
from wherefrom.recording.contents import ModelFacts, Recording
from wherefrom.recording.layout import (
    CALLS,
    MANIFEST,
    PREDICTIONS,
    TOKENS,
    Manifest,
    folder_of,
    is_recording,
    read_manifest,
)
from wherefrom.recording.stored import LOADED, StoredCall, StoredFile
from wherefrom.recording.strict import broken, way_out_of


@dataclass(frozen=True)
class Summary:
    """What a recording's manifest says of it.

    Attributes:
        model: that was watched.
        tokens: how many the text has.
        calls: how many calls of attention there are.
        files: the size of each in bytes, by its name in the folder; without the manifest.
    """

    model: ModelFacts
    tokens: int
    calls: int
    files: Mapping[str, int]


SAVE = "Name the folder that `wherefrom record` or save_recording wrote, by custom NAME.wherefrom."


@dataclass(frozen=True)
class Verified:
    """What `verify_recording` went through, and found to be as it was written.

    Attributes:
        recording: it.
        files: how many, the manifest included.
        arrays: how many.
        bytes: of all files.
    """

    recording: Recording
    files: int
    arrays: int
    bytes: int


def open_recording(path: str | Path) -> Recording:
    """Return the recording in a folder; its calls' arrays stay in the file until they are asked for.

    Arrays are views of the file, not to be written to; bfloat16 comes as the same float32. Each is checked against its
    checksum when it is first asked for, once. Leave the folder as it is while the recording is in use.

    Args:
        path: the folder, by custom NAME.wherefrom. A "~" at its beginning is the user's home.

    Raises:
        RecordingError: it is no recording, of a newer version, or not as it was written; and, when an array is asked
            for, that it is not.
    """
    folder = folder_of(path).absolute()  # so that it is found when the working folder is another
    _require_recording(folder)
    try:
        manifest = read_manifest(folder)
        agreement.check_agreement(folder, manifest)
        check_sizes(folder, _sizes_of(manifest))
        files = {name: StoredFile(folder, name, facts) for name, facts in manifest.files.items()}
        for file in files.values():
            file.check_header()
        tokens, predictions = (files[name].everything() for name in (TOKENS, PREDICTIONS))
    except OSError as error:
        _unreadable(folder, error)
    count = len(tokens["ids"])
    return Recording(
        model=manifest.model,
        tokens=words.tokens_of_arrays(folder, tokens),
        calls=tuple(StoredCall.of(call, replace(files[call.file], layer=call.layer)) for call in manifest.calls),
        predictions=words.predictions_of_arrays(folder, predictions, count),
        written_from=manifest.written_from,
        seconds=manifest.seconds,
        source=words.tokens_of_arrays(folder, tokens, "source.") if "source.ids" in tokens else None,
        path=folder,
        gaps=manifest.gaps,
    )


def summary_of(path: str | Path) -> Summary:
    """Return what the manifest of a recording says of it; sizes of files are checked, headers and arrays are not.

    Args:
        path: the folder, as for `open_recording`.

    Raises:
        RecordingError: it is no recording, of a newer version, or not as it was written.
    """
    folder = folder_of(path).absolute()
    _require_recording(folder)
    try:
        manifest = read_manifest(folder)
        agreement.check_agreement(folder, manifest)
        sizes = _sizes_of(manifest)
        check_sizes(folder, sizes)
    except OSError as error:
        _unreadable(folder, error)
    tokens = manifest.files[TOKENS].tensors["ids"].shape[0]
    return Summary(manifest.model, tokens, len(manifest.calls), sizes)


def verify_recording(path: str | Path) -> Verified:
    """Return what is in a recording's folder after every byte of it was read and found to be as it was written.

    Raises:
        RecordingError: the first thing that is not; file, layer and array are named.
    """
    recording = open_recording(path)
    folder = folder_of(path).absolute()
    files = read_manifest(folder).files
    for call in recording.calls:
        for name in LOADED:
            getattr(call, name)
    size = (folder / MANIFEST).stat().st_size + sum(file.bytes for file in files.values())
    return Verified(recording, 1 + len(files), sum(len(file.tensors) for file in files.values()), size)


def _require_recording(folder: Path) -> None:
    """Say what is at a path where no recording is."""
    if is_recording(folder):
        return
    expected = "a folder with a recording"
    there, inside = os.path.lexists(folder), os.path.lexists(folder / MANIFEST)
    if not there:
        broken(folder, "the recording", expected=expected, given="nothing there", way_out=f"Check the path. {SAVE}")
    if not folder.is_dir():
        broken(folder, "the recording", expected=expected, given="a file", way_out=SAVE)
    if not inside:
        given = f"a folder without a {MANIFEST}"
        broken(folder, "the recording", expected=expected, given=given, way_out=SAVE)
    if not stat.S_ISREG(os.lstat(folder / MANIFEST).st_mode):
        _refuse_link(folder, MANIFEST)


def _unreadable(folder: Path, error: OSError) -> NoReturn:
    given = f"{error}".rstrip(".")
    way_out = way_out_of(error, "Copy the recording to where it can be read.")
    broken(folder, "the recording", expected="files that can be read", given=given, way_out=way_out)


def _sizes_of(manifest: Manifest) -> dict[str, int]:
    return {name: facts.bytes for name, facts in manifest.files.items()}


def check_sizes(folder: Path, files: Mapping[str, int]) -> None:
    """Refuse files of a recording's folder that are missing, are links, or have another size than was written.

    Args:
        folder: of the recording.
        files: the size of each in bytes, by its name.

    Raises:
        RecordingError: the first that is not as it was written.
    """
    if (folder / CALLS).is_symlink():
        _refuse_link(folder, CALLS)
    for name, size in files.items():
        try:
            found = os.lstat(folder / name)
        except (FileNotFoundError, NotADirectoryError):
            broken(folder, name, expected=f"a file of {size:,} bytes", given="nothing there", file=name)
        if not stat.S_ISREG(found.st_mode):
            _refuse_link(folder, name)
        if found.st_size != size:
            expected, given = f"{size:,} bytes", f"{found.st_size:,}"
            broken(folder, name, expected=expected, given=given, file=name, size=found.st_size)


def _refuse_link(folder: Path, name: str) -> NoReturn:
    way_out = "Copy the recording with its files, not with links to them."
    expected = "a file or folder of its own"
    broken(folder, name, expected=expected, given="a link or something else", way_out=way_out, file=name)
