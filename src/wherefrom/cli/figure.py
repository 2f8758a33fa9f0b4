"""The command that draws figures (floor 7): a head's map, all heads, or a text with what a position reads of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import wherefrom
from wherefrom.cli.app import Command, app
from wherefrom.cli.asking import Head, Layer, Part, Repeat
from wherefrom.cli.files import check_file, write_bytes
from wherefrom.cli.printing import print_text
from wherefrom.cli.recorded import Overwrite, Recorded
from wherefrom.errors import InputError
from wherefrom.readable import printable

if TYPE_CHECKING:  # nothing heavy before the options are understood
    from wherefrom.views.picture import Picture

ENDINGS = (".svg", ".png")
OPTIONS = {
    "map": {"layer", "head", "kind", "part", "repeat", "of", "scale"},
    "heads": {"by", "part", "repeat"},
    "text": {"destination", "layer", "head", "kind", "part", "repeat", "lens", "scale"},
}
"""What says which figure; an option of another is refused, not passed over."""


@app.command(cls=Command)
def figure(
    what: Annotated[
        Literal["map", "heads", "text"],
        typer.Argument(metavar="map|heads|text", help="A head's map, every head, or a text and what is read of it."),
    ],
    recording: Recorded,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write, NAME.svg or NAME.png.")],
    layer: Layer = None,
    head: Head = None,
    destination: Annotated[
        int | None, typer.Option(help="Of a text: the position that reads; the last unless given.")
    ] = None,
    by: Annotated[
        str | None, typer.Option(help='Of heads: what colours them, "kind" or a column of wherefrom heads.')
    ] = None,
    of: Annotated[
        Literal["largest", "mean"] | None,
        typer.Option(help="Of the map of a long text: which weight of a block; the largest unless given."),
    ] = None,
    lens: Annotated[
        Literal["weight", "moved"] | None,
        typer.Option(
            help="Of a text: what colours its tokens, how values were mixed or what moved; weight unless given."
        ),
    ] = None,
    scale: Annotated[
        Literal["linear", "log"] | None,
        typer.Option(help="Of the colours of a map or a text: a log one shows small weights too; linear unless given."),
    ] = None,
    kind: Annotated[Literal["self", "cross"] | None, typer.Option(help="Self-attention unless given.")] = None,
    part: Part = None,
    repeat: Repeat = None,
    font: Annotated[
        Path | None, typer.Option(help="For a PNG: a font's file with letters that DejaVu Sans has not.")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Draw a figure as SVG or PNG.

    A head's map, with its marks and legend; all heads in a grid of layers and heads, coloured by their kind or by a
    figure; or a text whose tokens stand on a ground as strong as what one position reads of them. Each says its unit,
    range and direction, and what is not shown. Of a long text a map is drawn in blocks, and says so.

    \b
    Examples:
      wherefrom figure map italy.wherefrom map.svg --layer 17 --head 5
      wherefrom figure map italy.wherefrom log.svg --layer 17 --head 5 --scale log
      wherefrom figure heads italy.wherefrom heads.svg
      wherefrom figure heads italy.wherefrom entropy.png --by entropy
      wherefrom figure text italy.wherefrom text.svg --destination 18 --layer 17
      wherefrom figure text italy.wherefrom moved.svg --lens moved
    """
    given = {
        name: value
        for name, value in {
            "layer": layer, "head": head, "destination": destination, "by": by, "of": of,
            "lens": lens, "scale": scale, "kind": kind, "part": part, "repeat": repeat,
        }.items()
        if value is not None
    }  # fmt: skip
    check_file(out, ENDINGS, overwrite=overwrite, named="OUT")
    _check(what, given)
    drawn = _drawn(what, wherefrom.open_recording(recording), given)
    svg = out.suffix.lower() == ".svg"
    content = drawn.svg().encode() if svg else drawn.png(font=font)
    write_bytes(content, out, overwrite=overwrite, named="OUT")
    print_text("\n".join(printable(line) for line in (f"{out}: {drawn.title}", *drawn.notes)))


def _check(what: str, given: dict[str, Any]) -> None:
    other = sorted(given.keys() - OPTIONS[what])
    if other:
        expected = f"options of figure {what}: {', '.join(f'--{name}' for name in sorted(OPTIONS[what]))}"
        raise InputError(f"--{other[0]}", expected=expected, given="one of another figure", way_out="Leave it out.")
    missing = sorted({"layer", "head"} - given.keys()) if what == "map" else []
    if missing:
        way_out = "wherefrom heads lists them."
        raise InputError(f"--{missing[0]}", expected="the layer and the head of the map", given="none", way_out=way_out)


def _drawn(what: str, opened: wherefrom.Recording, given: dict[str, Any]) -> Picture:
    if what == "map":
        return wherefrom.figure_of_map(opened, **given)
    return (wherefrom.figure_of_heads if what == "heads" else wherefrom.figure_of_text)(opened, **given)
