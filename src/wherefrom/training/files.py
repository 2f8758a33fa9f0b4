"""Text files to train on (floor 5): read one document a file, each of them text, none of them twice. No torch."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from wherefrom.checks import check_items, check_kind
from wherefrom.errors import InputError

# UTF-32's mark begins with that of UTF-16, so it comes first.
OTHER_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


def read_texts(paths: str | Path | Iterable[str | Path]) -> tuple[str, ...]:
    """Return the text of one file or of several, one document a file, in the order given.

    Args:
        paths: UTF-8 text files. A "~" at a beginning is the user's home. A byte order mark is left out, line ends stay.

    Raises:
        InputError: a file is missing, a folder, unreadable, empty, blank, or no text; ``path`` says which, and
            ``offset`` the first byte that is none. Or two files are one, or have the same text: the end of the text is
            held out for validation, and would have been trained on; ``other`` names the first of them.
    """
    listed = (
        (paths,)
        if isinstance(paths, str | Path)
        else check_items("the files", paths, expected="a path or several", way_out="Name the text files to train on.")
    )
    if not listed:
        raise InputError("the files", expected="at least one", given="none", way_out="Name a text file to train on.")
    for path in listed:
        check_kind("a file", Path(path) if isinstance(path, str) else path, Path, way_out="Give its path.")
    texts: dict[str, Path] = {}
    places: dict[Path, Path] = {}
    for path in map(Path, listed):
        text = _read_text(path)
        place = path.expanduser().resolve()  # it can be: the file was read
        _refuse_twice(path, places.get(place), "the same file")
        _refuse_twice(path, texts.get(text), "the same text")
        places[place] = texts[text] = path
    return tuple(texts)


def _refuse_twice(path: Path, before: Path | None, what: str) -> None:
    if before is not None:
        raise _no_text(
            path,
            f"another text than {before}",
            what,
            "Name it once: what is held out for validation must not be trained on.",
            other=before,
        )


def _read_text(path: Path) -> str:
    raw = _read_bytes(path)
    if not raw:
        raise _no_text(path, "some text", "an empty file", "Name a file with text in it.")
    other = next((name for mark, name in OTHER_MARKS.items() if raw.startswith(mark)), None)
    if other is not None:
        way_out = f"Convert it first: `iconv -f {other.lower()} -t utf-8`."
        raise _no_text(path, "text in UTF-8", f"{other}, by its byte order mark", way_out, offset=0)
    zero = raw.find(0)
    if zero >= 0:
        given = f"a binary file (a zero byte at offset {zero:,})"
        raise _no_text(path, "text in UTF-8", given, "Take the text out of it first.", offset=zero)
    try:
        text = raw.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        given = f"the byte 0x{error.object[error.start]:02X} at offset {error.start:,}"
        way_out = "Convert it first, for example with `iconv -f latin1 -t utf-8`."
        raise _no_text(path, "text in UTF-8", given, way_out, offset=error.start) from None
    if not text.strip():
        raise _no_text(path, "some text", "only blanks", "Name a file with text in it.")
    return text


def _read_bytes(path: Path) -> bytes:
    try:
        return path.expanduser().read_bytes()
    except FileNotFoundError:
        raise _no_text(path, "a text file", "nothing there", "Check the path.") from None
    except IsADirectoryError:
        raise _no_text(path, "a text file", "a folder", "Name the files in it.") from None
    except (OSError, RuntimeError, ValueError) as error:  # no permission, nobody's home, a zero byte in the name
        raise _no_text(path, "a text file that can be read", f"{error}".rstrip("."), "Check the path.") from error


def _no_text(path: Path, expected: str, given: str, way_out: str, **facts: Any) -> InputError:
    return InputError(f"the text {path}", expected=expected, given=given, way_out=way_out, path=path, **facts)
