"""The command line (floor 7): one function a command; each parses, calls the public verb of its name, and prints."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from typer.core import TyperCommand, TyperGroup

import wherefrom
from wherefrom.errors import InputError, WherefromError
from wherefrom.model.language import require_text
from wherefrom.views.streams import output, prepare_streams, say

_UsageError: Any = typer.BadParameter.__base__  # click's, which typer imports or carries inside, by its version


class _Command(TyperCommand):
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


def _hint(error: Any) -> str:
    """Return what to do where a text was taken for several, or for an option."""
    if hasattr(error, "possibilities"):  # no such option
        return '. (A text that begins with "-" goes behind --, or comes on standard input.)'
    return ". Put the text in quotes." if error.message.startswith("Got unexpected extra") else ""


class _Commands(TyperGroup):
    """The commands, with our own endings: typer has others for Ctrl-C (no word) and for a closed pipe (exit code 1)."""

    def make_context(self, *arguments: Any, **how: Any) -> Any:
        """Parse the arguments; typer prints the help in here."""
        with output():
            return super().make_context(*arguments, **how)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; bad input ends it with one sentence and exit code 2."""
        try:
            return super().invoke(ctx)
        except WherefromError as error:
            say(f"wherefrom: {error}")
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

Text = Annotated[
    str | None,
    typer.Argument(metavar="TEXT", help="The prompt. Without it, or with -, standard input is read."),
]
File = Annotated[Path | None, typer.Option("--file", "-f", help="Read the prompt from a UTF-8 file.")]
Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help='"smollm2", the built-in model, or a checkpoint folder (Hugging Face layout) with model_type llama and '
        "rope_type default: not Llama 3.1's scaled rotation, Mistral or Qwen yet.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text.")]


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


@app.command(cls=_Command)
def trace(
    text: Text = None,
    file: File = None,
    target: Annotated[
        str | None,
        typer.Option(help="The token to ask about, instead of the model's own next token."),
    ] = None,
    against: Annotated[str | None, typer.Option(help="A second token: ask for the target's lead over it.")] = None,
    target_id: Annotated[int | None, typer.Option(help="The target by its token id.")] = None,
    against_id: Annotated[int | None, typer.Option(help="The second token by its id.")] = None,
    position: Annotated[
        int | None, typer.Option(help="Trace the prediction made at this position (from 0), not at the end.")
    ] = None,
    layer: Annotated[int | None, typer.Option(help="Look at and cut in this layer only (from 0).")] = None,
    head: Annotated[
        int | None, typer.Option(help="Look at and cut in this head of each layer in scope (from 0).")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="How many sources to list; the rest is summed.")] = 10,
    carried: Annotated[
        int,
        typer.Option(min=0, help="For how many sources, of those that reach 0.05 nats, each head is cut alone."),
    ] = 2,
    model: Model = "smollm2",
    as_json: Json = False,
) -> None:
    """Show where a model's next token came from.

    Every source's attention weight stands beside its measured knock-out: what the target's log-probability
    loses, in nats, when the position may not read that source. Then, for the strongest sources, each head is
    cut alone, so that the heads that carried them are named.

    A target is taken as it is typed or with a blank before it, whichever the model finds likelier; the
    output says which.

    \b
    Examples:
      wherefrom trace "When Mary and John went to the store, John gave a drink to"
      wherefrom trace "When Mary and John went to the store, John gave a drink to" \\
          --target Mary --against John
      wherefrom trace --file notes.txt --top 20
      echo "The capital of Italy is" | wherefrom trace --json | jq .sources
    """
    prompt = _read_text(text, file)
    wanted, other = _one_of("target", target, target_id), _one_of("against", against, against_id)
    loaded = wherefrom.load(model, say=say)
    with _progress(quiet=as_json) as progress:
        result = wherefrom.trace(
            loaded,
            prompt,
            target=wanted,
            against=other,
            position=position,
            layer=layer,
            head=head,
            carried_sources=carried,
            progress=progress,
        )
    if as_json:
        _print_json(result.to_json())
        return
    from wherefrom.views.terminal import print_trace

    with output():
        print_trace(result, top=top)


@app.command(cls=_Command)
def generate(
    text: Text = None,
    file: File = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Write at most this many tokens.")] = 50,
    temperature: Annotated[
        float | None, typer.Option(help="Sample, with the logits divided by this; without it, greedy.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample among the k likeliest tokens only.")] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Sample among the likeliest tokens that together hold this probability."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed writes the same text.")] = None,
    model: Model = "smollm2",
    as_json: Json = False,
) -> None:
    """Continue a text, token by token.

    \b
    Examples:
      wherefrom generate "Once upon a time"
      wherefrom generate "Once upon a time" --temperature 0.8 --top-p 0.9 --seed 1
    """
    prompt = _read_text(text, file)
    from wherefrom.model.generate import Sampling

    sampling = Sampling(temperature, top_k, top_p, seed)
    loaded = wherefrom.load(model, say=say)
    if as_json:
        result = wherefrom.generate(loaded, prompt, max_tokens=max_tokens, sampling=sampling)
        _print_json({**vars(result), "model": loaded.name})
        return
    started: list[bool] = []

    def show(piece: str) -> None:
        _print(piece if started else prompt + piece, end="")
        started.append(True)

    wherefrom.generate(loaded, prompt, max_tokens=max_tokens, sampling=sampling, on_text=show)
    _print("" if started else prompt)


@app.command(cls=_Command)
def example(
    q: Annotated[
        str | None, typer.Option("--q", help='Queries, a row a token: "1,0; 0,2; 2,1".', metavar="ROWS")
    ] = None,
    k: Annotated[str | None, typer.Option("--k", help="Keys, as long as the queries.", metavar="ROWS")] = None,
    v: Annotated[str | None, typer.Option("--v", help="Values, of any length.", metavar="ROWS")] = None,
    tokens: Annotated[str | None, typer.Option(help="The tokens' names, apart by blanks.", metavar="WORDS")] = None,
    bidirectional: Annotated[bool, typer.Option("--bidirectional", help="No causal mask.")] = False,
    window: Annotated[
        int | None, typer.Option(help="Read at most this many keys, the destination's own included.")
    ] = None,
    scale: Annotated[float | None, typer.Option(help="Multiply q . k by this; 1 / sqrt(d_k) unless given.")] = None,
    as_json: Json = False,
) -> None:
    """Work self-attention through by hand.

    Prints the scores, weights and outputs of a small example, rounded to three decimals (--json: unrounded).
    Without options it is the three-token example of the lesson on self-attention; its numbers can be
    replaced. Pairs that the mask does not permit are shown as a dash.

    \b
    Examples:
      wherefrom example
      wherefrom example --q "1,0; 0,2; 0,3"
      wherefrom example --tokens "a b" --q "1; 2" --k "1; 1" --v "1,0,0; 0,1,0" --bidirectional
    """
    from wherefrom.attention import Mask
    from wherefrom.views.example_input import parse_matrix
    from wherefrom.views.lesson import LESSON, example_json, example_tables

    given = {"q": q, "k": k, "v": v}
    rows = {
        name: getattr(LESSON, name) if text is None else parse_matrix(f"--{name}", text) for name, text in given.items()
    }
    names = LESSON.tokens if tokens is None else tuple(tokens.split())
    if tokens is None and len(rows["k"]) != len(names):
        names = tuple(f"t{number}" for number in range(1, len(rows["k"]) + 1))
    mask = Mask(causal=not bidirectional, window=window)
    if as_json:
        _print_json(example_json(names, **rows, mask=mask, scale=scale))
    else:
        _print(example_tables(names, **rows, mask=mask, scale=scale), end="")


def _read_text(text: str | None, file: Path | None) -> str:
    """Return the prompt; what no model can read is refused here, before a model is loaded or converted."""
    prompt = _given_text(text, file)
    try:
        prompt.encode()
    except UnicodeEncodeError:  # bytes of the command line that are not UTF-8 come as surrogates
        _decoded(os.fsencode(prompt), "the argument")
    require_text(prompt)
    return prompt


def _given_text(text: str | None, file: Path | None) -> str:
    """Return the argument, or a file's or standard input's text, without its final newline."""
    if file is not None:
        if text is not None:
            raise InputError(
                "the prompt",
                expected="one source",
                given="a text and --file",
                way_out="Give one of them.",
            )
        try:
            return _decoded(file.read_bytes(), str(file))
        except OSError as error:
            raise InputError(
                "the prompt's file",
                expected="a file that can be read",
                given=f"{file} ({error.strerror})",
                way_out="Check the path.",
                path=file,
            ) from error
    if text is not None and text != "-":
        return text
    if sys.stdin.isatty():
        raise InputError(
            "the prompt",
            expected="a text",
            given="none",
            way_out='Give it as an argument, with --file, or on standard input: wherefrom trace "One, two,"',
        )
    try:
        data = sys.stdin.buffer.read()
    except OSError as error:
        raise InputError(
            "the prompt",
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


def _one_of(name: str, text: str | None, number: int | None) -> str | int | None:
    if text is not None and number is not None:
        raise InputError(
            f"--{name}",
            expected=f"either it or --{name}-id",
            given="both",
            way_out="Give one of them.",
        )
    return text if text is not None else number


def _print_json(value: dict[str, Any]) -> None:
    _print(json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2))


def _print(text: str, end: str = "\n") -> None:
    with output():
        print(text, end=end)


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Any]:
    """Yield a progress callback that draws a bar on a terminal, and nothing anywhere else."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("starting", total=None)

        def progress(what: str, done: int, total: int) -> None:
            bars.update(task, description=what, completed=done, total=total)

        yield progress
