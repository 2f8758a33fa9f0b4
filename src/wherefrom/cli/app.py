"""The command line's frame (floor 7): the group of commands, how they end, and the options that several share."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

import wherefrom
from wherefrom.errors import ModelError, WherefromError
from wherefrom.model.fields import UNCOMPUTED
from wherefrom.readable import printable
from wherefrom.views.streams import output, prepare_streams, say

if TYPE_CHECKING:  # nothing heavy before the options are understood
    from wherefrom.model.language import LanguageModel

_UsageError: Any = typer.BadParameter.__base__  # click's, which typer imports or carries inside, by its version


class Command(TyperCommand):
    """A command whose help may be cut by its reader, and whose usage errors say how a text is typed."""

    def make_context(self, *arguments: Any, **how: Any) -> Any:
        """Parse the arguments; typer prints the help in here."""
        try:
            with output():
                return super().make_context(*arguments, **how)
        except _UsageError as error:
            if any(parameter.name == "text" for parameter in self.params):
                error.message += _hint(error)
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line; some versions of typer put a required argument in braces."""
        return [re.sub(r"^\{(.+)\}(?:\.\.\.)?$", r"\1", piece) for piece in super().collect_usage_pieces(ctx)]


def _hint(error: Any) -> str:
    """Return what to do where a text was taken for several, or for an option."""
    if hasattr(error, "possibilities"):  # no such option
        return '. (A text that begins with "-" goes behind --, or comes on standard input.)'
    return ". Put the text in quotes." if error.message.startswith("Got unexpected extra") else ""


class _Commands(TyperGroup):
    """The commands, with our own endings: typer has others for Ctrl-C (no word) and for a closed pipe (exit code 1)."""

    def make_context(self, *arguments: Any, **how: Any) -> Any:
        """Parse the arguments; typer prints the help in here."""
        with _endings(), output():
            return super().make_context(*arguments, **how)

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        with _endings():
            return super().invoke(ctx)


@contextmanager
def _endings() -> Iterator[None]:
    """End bad input with one sentence and exit code 2, and Ctrl-C with a word."""
    try:
        yield
    except WherefromError as error:
        say(printable(f"wherefrom: {error}"))  # a path may hold what moves a terminal's cursor
        sys.exit(2)
    except KeyboardInterrupt:
        say("wherefrom: interrupted")
        sys.exit(130)


app = typer.Typer(
    name="wherefrom",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help='"smollm2", the built-in model, a checkpoint folder in the Hugging Face layout, a GGUF file, a name on '
        "the hub, or the folder of a training run.",
    ),
]
Library = Annotated[
    Literal["wherefrom", "transformers"] | None,
    typer.Option(
        help="What computes the model: our own transformer (llama, mistral, qwen3, gpt2, bert, marian) or the "
        "transformers library (any other; the default where ours does not compute it)."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text.")]


def own_model(name: str, command: str) -> LanguageModel:
    """Return a model of the project's own transformer, for a command that takes no others.

    Args:
        name: as it was typed.
        command: which one.

    Raises:
        ModelError: it cannot be loaded; of a model that is computed by transformers it says which commands take it.
    """
    try:
        return wherefrom.load(name, library="wherefrom", say=say)
    except ModelError as error:
        foreign = error.facts.get("field") == "model_type" or error.way_out.startswith(UNCOMPUTED)
        if not foreign:
            raise
        way_out = (
            f"wherefrom {command} computes models of our own transformer only; of models that the transformers library "
            "computes, wherefrom trace and wherefrom record take any."
        )
        raise error.with_way_out(way_out) from error


def main() -> NoReturn:
    """Run the command line and end the process."""
    # Threads that wait for one another sleep instead of spinning: with one other busy process on two cores, a short
    # trace takes a quarter of the time. It is read when torch is first imported; whoever has set it keeps their value.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    prepare_streams()
    app(prog_name="wherefrom")
    sys.exit(0)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"wherefrom {wherefrom.__version__}")
        raise typer.Exit


@app.callback()
def _about(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Where did this token's information come from?

    wherefrom reads a text with a language model, records its attention at the speed of fused kernels, and
    answers exactly: what each position read, and what a measured knock-out of each source costs.

    \b
    Start with:
      wherefrom trace "The capital of France is Paris. The capital of Italy is"
    """
