"""The command that follows a passage of a prompt to an answer (floor 7)."""

from __future__ import annotations

from typing import Annotated

import typer

import wherefrom
from wherefrom.cli.answers import Answer, By, Chat, OfUnit, Question, Units, Write, prompt_of, require_one_answer
from wherefrom.cli.app import Command, Json, Library, Model, app
from wherefrom.cli.printing import print_json, progress_bar
from wherefrom.cli.prompt import File, Text, require_reader
from wherefrom.errors import InputError
from wherefrom.views.streams import output, say


@app.command(cls=Command)
def routes(
    text: Text = None,
    file: File = None,
    answer: Answer = None,
    write: Write = None,
    question: Question = None,
    source: Annotated[
        str | None,
        typer.Option(
            help="The passage that the routes begin at, as it stands in the prompt; unless given, the one whose gate "
            "gradient is the largest.",
            metavar="TEXT",
        ),
    ] = None,
    by: By = None,
    relays: Annotated[
        Units, typer.Option(help="What the tokens between the passage and the answer are taken together by.")
    ] = "word",
    chat: Chat = None,
    depth: Annotated[int, typer.Option(min=1, help="The most steps of a route; 1 is the direct one alone.")] = 3,
    budget: Annotated[
        float,
        typer.Option(
            help="Passes over the whole text that may be run, forward and backward; a run of some rows counts by its "
            "tokens."
        ),
    ] = 12.0,
    unit: OfUnit = None,
    model: Model = "smollm2",
    context: Annotated[
        int | None,
        typer.Option(help="Read up to so many tokens, also beyond what the model was trained for.", metavar="TOKENS"),
    ] = None,
    library: Library = None,
    as_json: Json = False,
) -> None:
    """Show on which routes a passage of a prompt reached an answer.

    An answer reads a passage straight, or reads other tokens that have read it before, and so on. The steps are found
    to first order, then each route is knocked out: its first step is cut, and only what it goes on through reads what
    that changes. A tree names the places and the heads of each step of the strongest routes, twelve at most; at its
    end stands what share of the passage's total effect they explain, measured by knocking all of them out together.

    \b
    Examples:
      wherefrom routes --file facts.txt --question "Rosa lives in" --answer Athens
      wherefrom routes "It rains. Bob is in Rome. Bob is in" --write 1
      wherefrom routes --file notes.txt --write 10 --by line --budget 30 --json
    """
    require_one_answer(answer, write)
    if source is not None and by is not None:
        way_out = "Give the passage, or say what the prompt is divided into to find it."
        raise InputError("the source", expected="--source or --by", given="both", way_out=way_out)
    prompt = prompt_of(text, file, chat)
    loaded = wherefrom.load(model, context=context, library=library, say=say)
    require_reader(loaded)
    with progress_bar(quiet=as_json) as progress:
        found = wherefrom.trace_routes(
            loaded,
            prompt,
            answer,
            question=question,
            source=source,
            by=by or "sentence",
            relays=relays,
            unit=unit or "log-odds",
            depth=depth,
            budget=budget,
            max_tokens=write,
            progress=progress,
        )
    if as_json:
        print_json(found.to_json())
        return
    from wherefrom.views.routed import print_routes

    with output():
        print_routes(found)
