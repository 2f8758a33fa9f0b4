"""The command that shows how a training run's attention formed (floor 7)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wherefrom.cli.app import Command, Json, app
from wherefrom.cli.printing import print_json, print_text

if TYPE_CHECKING:  # nothing heavy before the options are understood
    from numpy.typing import NDArray


@app.command(cls=Command)
def watch(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run trained with --watch.")],
    figure: Annotated[
        str, typer.Option(help="What of each head: induction, previous, first, entropy, ...")
    ] = "induction",
    layer: Annotated[int | None, typer.Option(help="Draw this layer's heads only (from 0).")] = None,
    top: Annotated[int, typer.Option(min=1, help="How many heads to draw, of more those that change most.")] = 24,
    as_json: Json = False,
) -> None:
    """Show how attention formed during a training run.

    Draws one figure of every head over the steps, as it was measured on a row of different tokens that comes twice.
    The numbers of all heads are in the folder's attention.csv, and in the JSON.

    \b
    Examples:
      wherefrom watch run
      wherefrom watch run --figure previous --layer 0
    """
    from wherefrom.training.place import run_folder
    from wherefrom.training.watched import read_watched
    from wherefrom.views.forming import check_figure, forming_lines

    check_figure(figure)
    folder = run_folder(folder)
    watched = read_watched(folder)
    if as_json:
        print_json(_watched_json(watched, figure))
        return
    print_text("\n".join(forming_lines(watched, figure, name=folder.resolve().name, layer=layer, top=top)))


def _watched_json(watched: Any, figure: str) -> dict[str, Any]:
    import numpy as np

    def plain(values: NDArray[np.float64]) -> Any:
        cells = values.astype(object)
        cells[~np.isfinite(values)] = None
        return cells.tolist()

    return {
        "figure": figure,
        "steps": watched.steps.tolist(),
        "values": plain(watched.of(figure)),
        "new_nats": plain(watched.new_nats),
        "again_nats": plain(watched.again_nats),
        "axes": "values: steps, layers, heads",
    }
