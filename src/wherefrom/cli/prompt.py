"""The prompt of a command (floor 7): an argument, a file or standard input, refused before any model is loaded."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wherefrom.errors import InputError
from wherefrom.model.language import LanguageModel, require_text
from wherefrom.views.streams import say

if TYPE_CHECKING:  # nothing heavy before the options are understood
    from wherefrom.capture.huggingface.model import TransformersModel

Text = Annotated[
    str | None,
    typer.Argument(metavar="TEXT", help="The prompt. Without it, or with -, standard input is read."),
]
File = Annotated[Path | None, typer.Option("--file", "-f", help="Read the prompt from a UTF-8 file.")]


def read_text(text: str | None, file: Path | None, what: str = "the prompt") -> str:
    """Return the prompt, or another text; what no model can read is refused here, before one is loaded or converted."""
    prompt = _given_text(text, file, what)
    try:
        prompt.encode()
    except UnicodeEncodeError:  # bytes of the command line that are not UTF-8 come as surrogates
        _decoded(os.fsencode(prompt), "the argument")
    require_text(prompt, what)
    return prompt


def _given_text(text: str | None, file: Path | None, what: str) -> str:
    """Return the argument, or a file's or standard input's text, without its final newline."""
    if file is not None:
        if text is not None:
            raise InputError(
                what,
                expected="one source",
                given="a text and --file",
                way_out="Give one of them.",
            )
        try:
            return _decoded(file.read_bytes(), str(file))
        except OSError as error:
            raise InputError(
                f"{what}'s file",
                expected="a file that can be read",
                given=f"{file} ({error.strerror})",
                way_out="Check the path.",
                path=file,
            ) from error
    if text is not None and text != "-":
        return text
    if sys.stdin.isatty():
        raise InputError(
            what,
            expected="a text",
            given="none",
            way_out='Give it as an argument, with --file, or on standard input: wherefrom trace "One, two,"',
        )
    try:
        data = sys.stdin.buffer.read()
    except OSError as error:
        raise InputError(
            what,
            expected="a text on standard input",
            given=f"{error.strerror}",
            way_out="Give the text as an argument or with --file.",
        ) from error
    return _decoded(data, "standard input")


def _decoded(data: bytes, where: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"the text in {where}",
            expected="UTF-8",
            given=f"byte 0x{error.object[error.start]:02X} at {error.start}, which is not",
            way_out="Convert it first, for example: iconv -f LATIN1 -t UTF-8.",
            offset=error.start,
        ) from error
    return text[:-1].removesuffix("\r") if text.endswith("\n") else text


def say_of_other(model: LanguageModel | TransformersModel, prompt: str, *, room: int = 0) -> None:
    """Say that a text is longer than those a model of transformers was trained on, which it reads all the same.

    Args:
        model: that was loaded; of the project's own nothing is said: they refuse such a text, or were told to read it.
        prompt: the text.
        room: how many tokens are written behind it at most.

    Raises:
        InputError: a model that reads no text.
    """
    if isinstance(model, LanguageModel):
        return
    require_reader(model)
    from wherefrom.capture.huggingface.texts import encode

    beyond = model.beyond_training(len(encode(model.tokenizer, prompt)), room)
    if beyond:
        say(beyond)


def require_reader(model: LanguageModel | TransformersModel) -> None:
    """Refuse a model that reads no text.

    Raises:
        InputError: it is one of transformers without a tokenizer.
    """
    if not isinstance(model, LanguageModel) and model.tokenizer is None:
        main = getattr(model.module, "main_input_name", "its inputs")
        raise InputError(
            "the model",
            expected="one that reads text",
            given=f"{model.name}, which has no tokenizer and reads {main}",
            way_out=f"In Python any input can be recorded: wherefrom.record(model, {main}=...).",
        )


def one_of(name: str, text: str | None, number: int | None) -> str | int | None:
    """Return a token by its text or by its id, whichever was given; both are refused."""
    if text is not None and number is not None:
        raise InputError(
            f"--{name}",
            expected=f"either it or --{name}-id",
            given="both",
            way_out="Give one of them.",
        )
    return text if text is not None else number
