"""The command that draws figures (floor 7): a head's map, all heads, or a text with what a position reads of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import wherefrom
from wherefrom.cli.app import Command, Library, app
from wherefrom.cli.asking import Head, Layer, Part, Repeat
from wherefrom.cli.files import check_file, write_bytes
from wherefrom.cli.measuring import scope_of
from wherefrom.cli.printing import print_text, progress_bar
from wherefrom.cli.recorded import Overwrite, Recorded
from wherefrom.errors import InputError
from wherefrom.readable import printable
from wherefrom.views.colours import MEASURED
from wherefrom.views.streams import say

if TYPE_CHECKING:  # nothing heavy before the options are understood
    from wherefrom.views.picture import Picture

ENDINGS = (".svg", ".png")
OPTIONS = {
    "map": {"layer", "head", "kind", "part", "repeat", "of", "scale"},
    "heads": {"by", "part", "repeat"},
    "text": {"destination", "layer", "head", "kind", "part", "repeat", "lens", "scale"},
}
"""What says which figure; an option of another is refused, not passed over."""
OF_MEASURED = {"destination", "layer", "head", "kind", "part", "lens", "target", "model", "library"}
"""What says which figure of a text by what a model measured."""


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
        Literal["weight", "moved", "attribution", "knockout"] | None,
        typer.Option(
            help="Of a text: what colours its tokens; weight unless given. The last two run the model: what each "
            "source is worth to the target, estimated or measured."
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="Of what is worth to a token: that token; the likeliest unless given."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help='The model that made the recording; "smollm2" unless given.'),
    ] = None,
    library: Library = None,
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
      wherefrom figure text italy.wherefrom worth.svg --lens knockout
    """
    given = {
        name: value
        for name, value in {
            "layer": layer, "head": head, "destination": destination, "by": by, "of": of,
            "lens": lens, "target": target, "model": model, "library": library,
            "scale": scale, "kind": kind, "part": part, "repeat": repeat,
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
    measured = what == "text" and given.get("lens") in MEASURED
    known = OF_MEASURED if measured else OPTIONS[what]
    other = sorted(given.keys() - known)
    if other:
        named = f"{what} --lens {given['lens']}" if measured else what
        expected = f"options of figure {named}: {', '.join(f'--{name}' for name in sorted(known))}"
        of_lens = what == "text" and other[0] in OF_MEASURED
        way_out = f"Leave it out, or ask for --lens {' or '.join(MEASURED)}." if of_lens else "Leave it out."
        raise InputError(f"--{other[0]}", expected=expected, given="one of another figure", way_out=way_out)
    missing = sorted({"layer", "head"} - given.keys()) if what == "map" else []
    if missing:
        way_out = "wherefrom heads lists them."
        raise InputError(f"--{missing[0]}", expected="the layer and the head of the map", given="none", way_out=way_out)


def _drawn(what: str, opened: wherefrom.Recording, given: dict[str, Any]) -> Picture:
    if given.get("lens") in MEASURED:
        return _measured(opened, **given)
    if what == "map":
        return wherefrom.figure_of_map(opened, **given)
    return (wherefrom.figure_of_heads if what == "heads" else wherefrom.figure_of_text)(opened, **given)


def _measured(
    opened: wherefrom.Recording,
    *,
    lens: str,
    destination: int | None = None,
    layer: int | None = None,
    head: int | None = None,
    kind: str = "self",
    part: str | None = None,
    target: str | None = None,
    model: str = "smollm2",
    library: Literal["wherefrom", "transformers"] | None = None,
) -> Picture:
    """Return a text by what its sources are worth, measured now."""
    from wherefrom.evidence.at import evidence_at

    scope = scope_of(opened, layer, head, kind, part)
    loaded = wherefrom.load(model, library=library, say=say)
    with progress_bar(quiet=False) as progress:
        found = evidence_at(
            loaded, opened, destination, target=target, scope=scope, carried_sources=0, progress=progress
        )
    return wherefrom.figure_of_evidence(found, lens=lens)
