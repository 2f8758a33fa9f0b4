"""Commands that ask a recording (floor 7): no model is loaded, and no torch; each is the Python verb of its name."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

import wherefrom
from wherefrom.cli.app import Command, Json, app
from wherefrom.cli.files import MAPS, TABLES, check_file, write_answer, write_window
from wherefrom.cli.printing import print_json, print_text, progress_bar
from wherefrom.cli.ranges import Numbers
from wherefrom.cli.recorded import Overwrite, Recorded
from wherefrom.errors import InputError
from wherefrom.views.streams import output

if TYPE_CHECKING:  # nothing heavy before the options are understood
    from wherefrom.questions import Answer, Window
    from wherefrom.recording import Recording

SHOWN = 20
"""Heads that are printed unless more are asked for: they fit on a screen."""
LISTED = 10
"""Rows of every other table that is not written into a file, unless more are asked for."""
REPEATED = ("largest", "layer", "head")
"""Columns that say of one layer and one head on every row what the question says."""
Layer: TypeAlias = Annotated[int | None, typer.Option("--layer", help="This layer only (from 0).")]
Head: TypeAlias = Annotated[int | None, typer.Option("--head", help="This head of each layer only (from 0).")]
Kind: TypeAlias = Annotated[
    Literal["self", "cross"],
    typer.Option("--kind", help="With an encoder-decoder: cross, for what the decoder reads of the encoder's text."),
]
Part: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--part",
        help="Whose attention: decoder, encoder, or another tower's name, such as vision; that of the part that "
        "predicts unless given.",
        metavar="PART",
    ),
]
Repeat: TypeAlias = Annotated[
    int | None,
    typer.Option("--repeat", help="This execution only (from 0), of modules that ran several times in the pass."),
]
Top: TypeAlias = Annotated[
    int | None,
    typer.Option("--top", min=1, help="How many rows; 10 unless given, with --out all. The rest is counted."),
]
Table: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        help="Write the table into this file instead; with --json, what is written is said as JSON.",
        metavar="NAME.parquet|csv|json",
    ),
]


class AtPosition(Command):
    """A command about a position. One below 0 is no option, but a position that is not there: so it is refused."""

    def make_context(self, info_name: str | None, args: list[str], *others: Any, **how: Any) -> Any:
        """Parse the arguments."""
        if any(re.fullmatch(r"-\d+", argument) for argument in args):
            how["ignore_unknown_options"] = True
        return super().make_context(info_name, args, *others, **how)


@app.command(cls=Command)
def heads(
    recording: Recorded,
    layer: Layer = None,
    head: Head = None,
    part: Part = None,
    repeat: Repeat = None,
    sort: Annotated[
        str | None,
        typer.Option(help='Sort by this column, the largest first; with a "-" before its name the smallest.'),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(help='Only heads of which this holds: "induction>0.3". May be given several times.'),
    ] = None,
    top: Annotated[
        int | None, typer.Option(min=1, help="How many rows; 20 when they are printed, else all unless given.")
    ] = None,
    out: Table = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Show what every head reads, and find the heads of a kind.

    Columns: layer, head, entropy and effective (how widely a head reads), largest, then the shares of a row: first
    (on position 0), self, previous, duplicate (on earlier tokens of the same kind) and induction (on what followed
    them); largest_score, and distance. From one exact pass over all weights, which is kept in the recording's folder.

    All but the largest score are means over destinations: first, self and previous over those from 1 up, duplicate
    and induction over those whose token came before, the others over all.

    A figure says where weights lie in this text; it does not say what a head is for.

    \b
    Induction heads, heads that rest on the first token (attention sinks),
    heads that read the token before, and heads that read one token only:
      wherefrom heads book.wherefrom --sort induction --where "induction>0.3"
      wherefrom heads book.wherefrom --sort first --where "first>0.9"
      wherefrom heads book.wherefrom --sort previous
      wherefrom heads book.wherefrom --sort -entropy

    \b
    Examples:
      wherefrom heads book.wherefrom --layer 5
      wherefrom heads book.wherefrom --where "first<0.5" --where "distance>100"
      wherefrom heads book.wherefrom --out heads.parquet
    """
    check_file(out, TABLES, overwrite=overwrite)
    opened = wherefrom.open_recording(recording)
    most = SHOWN if top is None and out is None and not as_json else top
    with _as_typed(sort), _progress("scanning", quiet=as_json) as told:
        answer = wherefrom.heads(
            opened,
            layer=layer,
            head=head,
            part=part,
            repeat=repeat,
            sort=sort,
            where=where or (),
            top=most,
            progress=told,
        )
    _give(answer, out, overwrite=overwrite, as_json=as_json)


@app.command(cls=AtPosition)
def sources(
    recording: Recorded,
    destination: Annotated[
        int | None, typer.Argument(metavar="[DESTINATION]", help="The position that reads; the last unless given.")
    ] = None,
    layer: Layer = None,
    head: Head = None,
    kind: Kind = "self",
    part: Part = None,
    repeat: Repeat = None,
    top: Top = None,
    out: Table = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """List which sources a position reads most.

    The mean of its weights over all heads, or over those asked for; beside it the one head in which each
    is largest. A weight says how values were mixed, not what mattered: for that, trace the text.

    \b
    Examples:
      wherefrom sources italy.wherefrom
      wherefrom sources italy.wherefrom 4 --layer 12 --head 3 --top 20
      wherefrom sources translated.wherefrom 7 --kind cross
    """
    check_file(out, TABLES, overwrite=overwrite)
    opened = wherefrom.open_recording(recording)
    scope: dict[str, Any] = {"layer": layer, "head": head, "kind": kind, "part": part, "repeat": repeat}
    answer = wherefrom.sources(opened, destination, **scope, top=_most(top, out))
    _give(answer, out, overwrite=overwrite, as_json=as_json, without=_repeated(layer, head))


@app.command(cls=AtPosition)
def readers(
    recording: Recorded,
    source: Annotated[int, typer.Argument(metavar="SOURCE", help="The position that is read.")],
    layer: Layer = None,
    head: Head = None,
    kind: Kind = "self",
    part: Part = None,
    repeat: Repeat = None,
    top: Top = None,
    out: Table = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """List which positions read a source most.

    Each reader's weight on it, the mean over all heads, or over those asked for. The weights of different
    readers are shares of different rows: they do not sum to one.

    \b
    Examples:
      wherefrom readers italy.wherefrom 3
      wherefrom readers italy.wherefrom 3 --layer 12 --top 20
    """
    check_file(out, TABLES, overwrite=overwrite)
    opened = wherefrom.open_recording(recording)
    scope: dict[str, Any] = {"layer": layer, "head": head, "kind": kind, "part": part, "repeat": repeat}
    answer = wherefrom.readers(opened, source, **scope, top=_most(top, out))
    _give(answer, out, overwrite=overwrite, as_json=as_json, without=_repeated(layer, head))


@app.command(cls=Command)
def received(
    recording: Recorded,
    layer: Layer = None,
    head: Head = None,
    kind: Kind = "self",
    part: Part = None,
    repeat: Repeat = None,
    threshold: Annotated[float, typer.Option(help="The weight from which a destination counts as a reader.")] = 0.05,
    top: Top = None,
    out: Table = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """List which sources receive most attention in all.

    The weights that all destinations give a source, added up: what policies for a key/value cache rank sources
    by. Then in how many destinations it has a reader, and the last of them.

    \b
    Examples:
      wherefrom received book.wherefrom --top 20
      wherefrom received book.wherefrom --layer 12 --threshold 0.2
    """
    check_file(out, TABLES, overwrite=overwrite)
    opened = wherefrom.open_recording(recording)
    scope: dict[str, Any] = {"layer": layer, "head": head, "kind": kind, "part": part, "repeat": repeat}
    most = _most(top, out)
    with _progress("scanning", quiet=as_json) as told:
        answer = wherefrom.received(opened, **scope, threshold=threshold, top=most, progress=told)
    _give(answer, out, overwrite=overwrite, as_json=as_json, without=_repeated(layer, head))


@app.command(cls=Command)
def weights(
    recording: Recorded,
    layer: Annotated[int, typer.Option("--layer", help="Of this layer (from 0).")],
    head: Annotated[int, typer.Option("--head", help="Of this head (from 0).")],
    destinations: Annotated[
        str | None, typer.Option(help='The rows, such as "0:20", without 20; all unless given.', metavar="RANGE")
    ] = None,
    sources: Annotated[
        str | None, typer.Option(help="The columns, likewise; all unless given.", metavar="RANGE")
    ] = None,
    kind: Kind = "self",
    part: Part = None,
    repeat: Annotated[
        int, typer.Option("--repeat", help="Which execution (from 0), of a module that ran several times in the pass.")
    ] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Write the weights into this file instead; with --json, what is written is said as JSON.",
            metavar="NAME.npy|csv|json",
        ),
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Print a window of one head's weights.

    Rows are destinations, columns sources, both from 0. A window that is too large for a screen is shown by its
    corners; --out and --json have all of it, of at most 16.8 million weights (4,096 x 4,096). An .npy file holds
    them in float64. A destination that may read nothing has no row: a dash when printed, null in JSON, an empty
    cell in CSV, NaN in the array of an .npy file. What a sink takes of a row is a column of its own, but in .npy.

    \b
    Examples:
      wherefrom weights italy.wherefrom --layer 12 --head 3
      wherefrom weights book.wherefrom --layer 12 --head 3 \\
          --destinations 900:920 --sources 0:20
      wherefrom weights book.wherefrom --layer 12 --head 3 --out map.npy
    """
    check_file(out, MAPS, overwrite=overwrite)
    asked = {
        name: None if text is None else Numbers.of(f"--{name}", text)
        for name, text in (("destinations", destinations), ("sources", sources))
    }
    opened = wherefrom.open_recording(recording)
    ranges = {}
    if any(asked.values()):
        sides = dict(zip(asked, opened.read_by(kind, part, layer=layer, repeat=repeat), strict=True))
        typed = {name: numbers for name, numbers in asked.items() if numbers is not None}
        ranges = {name: numbers.window(name[:-1], len(sides[name])) for name, numbers in typed.items()}
    window = wherefrom.weights(opened, layer=layer, head=head, kind=kind, part=part, repeat=repeat, **ranges)
    _give_window(window, opened, out, overwrite=overwrite, as_json=as_json)


@app.command(cls=Command)
def diff(
    first: Annotated[Path, typer.Argument(metavar="FIRST", help="Folder of a recording.")],
    second: Annotated[Path, typer.Argument(metavar="SECOND", help="Folder of another.")],
    layer: Layer = None,
    kind: Kind = "self",
    part: Part = None,
    repeat: Repeat = None,
    top: Top = None,
    out: Table = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """List in which heads two recordings differ most.

    One text in two models, or twice in one, is compared weight by weight: the share of a row that would have to
    move. Of two texts in one model the figures of every head are compared (see: wherefrom heads --help), through
    self-attention alone.

    \b
    Examples:
      wherefrom diff before.wherefrom after.wherefrom
      wherefrom diff english.wherefrom french.wherefrom --layer 12 --top 20
    """
    check_file(out, TABLES, overwrite=overwrite)
    one, other = wherefrom.open_recording(first), wherefrom.open_recording(second)
    with _progress("comparing", quiet=as_json) as told:
        answer = wherefrom.diff(
            one, other, layer=layer, kind=kind, part=part, repeat=repeat, top=_most(top, out), progress=told
        )
    _give(answer, out, overwrite=overwrite, as_json=as_json)


@contextmanager
def _progress(what: str, *, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Yield what a verb tells its progress; None where nobody waits at a terminal."""
    with progress_bar(quiet=quiet) as bar:
        yield None if bar is None else lambda done, total: bar(what, done, total)


@contextmanager
def _as_typed(sort: str | None) -> Iterator[None]:
    """Name the option in what is refused of --sort and --where."""
    try:
        yield
    except InputError as error:
        if error.what not in ("a column of the heads", "a condition"):
            raise
        sorted_by = error.facts.get("name") == str(sort).removeprefix("-")
        option = "--sort" if sorted_by else "--where"
        raise InputError(
            option, expected=error.expected, given=error.given, way_out=error.way_out, **error.facts
        ) from None


def _most(top: int | None, out: Path | None) -> int:
    """Return how many rows to ask for: of a table that is written all, unless a number was given."""
    return top if top is not None else LISTED if out is None else sys.maxsize


def _repeated(layer: int | None, head: int | None) -> tuple[str, ...]:
    """Return the columns that a table need not show a reader."""
    return () if layer is None or head is None else REPEATED


def _give(answer: Answer, out: Path | None, *, overwrite: bool, as_json: bool, without: tuple[str, ...] = ()) -> None:
    """Write an answer into a file and say so, print it for programs, or print it."""
    if out is not None:
        write_answer(answer, out, overwrite=overwrite)
        size = f"{len(answer):,} row{'s' * (len(answer) != 1)} of {len(answer.columns)} columns"
        facts = {"rows": len(answer), "columns": len(answer.columns)}
        said = {"question": answer.question, "left_out": answer.left_out, "exactness": answer.exactness}
        _say_written(out, size, facts | said, answer, as_json=as_json)
    elif as_json:
        print_json(answer.to_json())
    else:
        from wherefrom.views.answers import answer_lines, print_lines

        again = any(column.name == "repeat" for column in answer.columns)  # then a mean of one head is over several
        with output():
            print_lines(lambda width: answer_lines(answer, width=width, without=() if again else without))


def _give_window(window: Window, recording: Recording, out: Path | None, *, overwrite: bool, as_json: bool) -> None:
    """Write a window into a file and say so, print it for programs, or print it."""
    from wherefrom.views.windows import outside, window_lines

    read_by = recording.texts_of(recording.call(window.layer, window.kind, window.part, window.repeat))
    if out is not None:
        write_window(window, out, overwrite=overwrite)
        size = f"{len(window.destinations):,} destinations x {len(window.sources):,} sources"
        facts = {"destinations": len(window.destinations), "sources": len(window.sources)}
        said = {"question": window.question, "left_out": outside(window, read_by[1]), "exactness": window.exactness}
        _say_written(out, size, facts | said, window, as_json=as_json)
    elif as_json:
        print_json(window.to_json())
    else:
        from wherefrom.views.answers import print_lines

        with output():
            print_lines(lambda width: window_lines(window, *read_by, width=width))


def _say_written(out: Path, size: str, facts: dict[str, int | str], written: Answer | Window, *, as_json: bool) -> None:
    """Say what a file holds, and what a table of numbers alone cannot say of itself."""
    from wherefrom.readable import printable
    from wherefrom.recording import gaps_as_json
    from wherefrom.views.answers import flowing, print_lines

    if as_json:
        print_json({"written": str(out), **facts, "gaps": gaps_as_json(written.gaps)})
        return
    print_text(f"written: {printable(str(out))}, {size}")
    sentences = [*(str(facts[name]) for name in ("left_out", "exactness")), *written.said_of_gaps]
    with output():
        print_lines(lambda width: (line for said in sentences for line in flowing(said, width)))
