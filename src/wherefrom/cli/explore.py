"""The command that opens the explorer (floor 7): recordings, or a text that is recorded now, seen in a browser."""

from __future__ import annotations

import os
import sys
import threading
import webbrowser
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

import wherefrom
from wherefrom.cli.app import Command, Library, Model, app
from wherefrom.cli.measuring import ModelMeasurer
from wherefrom.cli.printing import print_text, progress_bar
from wherefrom.cli.prompt import File, read_text, say_of_other
from wherefrom.errors import RecordingError
from wherefrom.recording import Recording
from wherefrom.recording.layout import folder_of, is_recording
from wherefrom.views.streams import say
from wherefrom.views.web import HOST, PORT


@app.command(cls=Command)
def explore(
    recordings: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RECORDING",
            help="One or more recordings, each a folder such as NAME.wherefrom.",
            show_default=False,
        ),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Show every recording below this folder, as they come and go.")
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(help="Record this text now, in memory, and show it; --file does so with a file.", metavar="TEXT"),
    ] = None,
    file: File = None,
    host: Annotated[
        str, typer.Option(help="Listen here. Beyond this machine's own addresses whoever asks needs the printed token.")
    ] = HOST,
    port: Annotated[
        int, typer.Option(help="Listen at this port; where it is taken, at the next that is free, and say so.")
    ] = PORT,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = False,
    model: Model = "smollm2",
    library: Library = None,
) -> None:
    """See recordings in a browser.

    A server on this machine answers a page: the text and who reads whom, every head at a glance, and the map of
    any head from the whole to single weights, exact at any length; and a lesson on how attention works. What sources
    were worth is measured when the page asks for it, where the recording's model is the one named here. The lesson
    needs no recording: with nothing named it is there alone. Nothing comes from elsewhere, and nothing is changed.
    Ctrl-C ends it.

    \b
    Examples:
      wherefrom explore italy.wherefrom
      wherefrom explore before.wherefrom after.wherefrom
      wherefrom explore --folder runs --no-browser
      wherefrom explore --text "The capital of Italy is"
    """
    from wherefrom.views.web.serve import open_place, serve
    from wherefrom.views.web.shelf import Shelf

    named: list[Path | tuple[str, Recording]] = list(recordings or ())
    for path in recordings or ():
        _require_recording(path)  # refused before anything listens
    prompt = None if text is None and file is None else read_text(text, file)  # likewise, before anything is loaded
    measurer = ModelMeasurer(lambda: wherefrom.load(model, library=library, say=say))
    if prompt is not None:
        named.append(("text" if file is None else file.stem, _recorded(measurer.model(), prompt)))
    shelf, place = Shelf(named, folder), open_place(host, port)
    if place.instead_of is not None:
        say(f"Port {place.instead_of} is taken: this is {place.port}.")

    def ready() -> None:
        if named or folder is not None:
            measurer.begin()
        else:
            say("Nothing is named: the page has the lesson alone. Name a recording, a --folder of them, or a --text.")
        print_text(f"The explorer is at {place.address} (Ctrl-C ends it)")
        if place.address_elsewhere is not None:
            print_text(f"On other machines it is at {place.address_elsewhere}")
        if not no_browser:
            webbrowser.open(place.address)

    serve(shelf, place, measurer=measurer, ready=ready)
    if threading.active_count() > 1:  # an answer, a model that loads, a measurement: nobody waits for it any more,
        sys.stdout.flush()  # and an interpreter that ends beside torch at work is aborted
        os._exit(0)


def _require_recording(path: Path) -> None:
    """Refuse what cannot be opened; of a folder of recordings say how all of them are shown."""
    try:
        wherefrom.open_recording(path)
    except RecordingError as error:
        if is_recording(path) or not folder_of(path).is_dir():
            raise
        way_out = f"Name a recording in it, or show every recording below it: --folder {quote(str(path))}."
        raise error.with_way_out(way_out) from error


def _recorded(loaded: Any, prompt: str) -> Recording:
    """Return a text's recording, with what was predicted at every position and what "moved" needs."""
    from wherefrom.capture.passes import with_output
    from wherefrom.model.language import LanguageModel

    say_of_other(loaded, prompt)
    with progress_bar(quiet=False) as bar:
        told = None if bar is None else lambda done, total: bar("recording", done, total)
        made = wherefrom.record(loaded, prompt, predictions="all", progress=told)
    # In memory they are not kept by themselves; here nothing changes the model meanwhile.
    return with_output(loaded, made) if isinstance(loaded, LanguageModel) else made
