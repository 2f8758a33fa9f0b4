"""The command that writes a page (floor 7): a recording of a short run as one file that needs no server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import wherefrom
from wherefrom.cli.app import Command, app
from wherefrom.cli.files import check_file, write_bytes
from wherefrom.cli.printing import print_text, progress_bar
from wherefrom.cli.ranges import METAVAR, Numbers
from wherefrom.cli.recorded import Overwrite, Recorded
from wherefrom.errors import InputError
from wherefrom.views.streams import say

if TYPE_CHECKING:  # nothing heavy before the options are understood
    from wherefrom.recording import Recording

ENDINGS = (".html", ".htm")
HEAD = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})")
MOST_MB = 20.0


@app.command(cls=Command)
def export(
    recording: Recorded,
    page: Annotated[Path, typer.Argument(metavar="PAGE", help="The file to write, NAME.html.")],
    head: Annotated[
        list[str] | None,
        typer.Option(
            "--head",
            help='Carry this head too, its map, rows and numbers: "14.3" is head 3 of layer 14. May be repeated.',
            metavar="LAYER.HEAD",
        ),
    ] = None,
    moved: Annotated[bool, typer.Option("--moved", help="Carry what is moved beside the weights.")] = False,
    layers: Annotated[
        str | None,
        typer.Option(help='Carry rows and columns of these layers only: "0:3,5" is 0, 1, 2 and 5.', metavar=METAVAR),
    ] = None,
    positions: Annotated[
        str | None,
        typer.Option(help='Carry rows, columns and numbers of these positions only, or "last".', metavar=METAVAR),
    ] = None,
    most_mb: Annotated[
        float, typer.Option("--most-mb", min=0.0, help="Refuse to write a larger page than this, in MB.")
    ] = MOST_MB,
    overwrite: Overwrite = False,
) -> None:
    """Write a recording of a short run as one page.

    The file is the explorer's page with its answers inside: it opens from a disk, asks nobody, and shows the very
    numbers that the recording gives. It carries the text, every head's kind and thumbnail, and the rows and columns
    of all heads together and of each layer; of the heads that are named also the map and the numbers. How
    large it is, and what it leaves out, is said, here and in the page. It grows with the square of the text.

    \b
    Examples:
      wherefrom export italy.wherefrom italy.html --head 14.3
      wherefrom export italy.wherefrom italy.html --head 14.3 --head 17.5 --moved
      wherefrom export book.wherefrom end.html --positions 700:734 --layers 10:20
    """
    check_file(page, ENDINGS, overwrite=overwrite, named="PAGE")
    heads = tuple(_head(given) for given in head or ())
    kept = {
        name: Numbers.of(f"--{name}", given, last=name == "positions")
        for name, given in {"layers": layers, "positions": positions}.items()
        if given is not None
    }
    opened = wherefrom.open_recording(recording)
    from wherefrom.views.cost import size
    from wherefrom.views.web.exported import Carried, exported
    from wherefrom.views.web.shelf import name_of

    sizes = {"layers": ("layer", _layers(opened)), "positions": ("position", len(opened))}
    chosen = {name: numbers.within(*sizes[name]) for name, numbers in kept.items()}
    carried = Carried(opened, name_of(recording), heads, moved=moved, **chosen)
    with progress_bar(quiet=False) as bar:
        told = None if bar is None else lambda done, total: bar("answering", done, total)
        made = exported(carried, most=most_mb, foretold=lambda bytes_: say(f"about {size(bytes_)}"), progress=told)
    write_bytes(made.content, page, overwrite=overwrite, named="PAGE")
    print_text(f"{page}: {size(len(made.content))}\n{made.carries}\n{made.leaves_out}")


def _layers(recording: Recording) -> int:
    return max((call.layer for call in recording.calls), default=0) + 1


def _head(given: str) -> tuple[int, int]:
    """Return a layer and a head as they are typed."""
    found = HEAD.fullmatch(given)
    if found is None:
        expected, way_out = 'a layer and a head such as "14.3"', "Both are numbered from 0."
        raise InputError("--head", expected=expected, given=f'"{given}"', way_out=way_out)
    return int(found[1]), int(found[2])
