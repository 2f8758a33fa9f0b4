"""Commands that ask a model (floor 7): where a token came from, and what comes next."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

import wherefrom
from wherefrom.cli.answers import (
    Answer,
    Asked,
    Budget,
    By,
    Chat,
    Heads,
    How,
    Layers,
    Lens,
    Marks,
    OfUnit,
    Question,
    Write,
    refuse_beside,
    trace_answer,
)
from wherefrom.cli.app import Command, Json, Library, Model, app, own_model
from wherefrom.cli.printing import print_json, print_text, progress_bar
from wherefrom.cli.prompt import File, Text, one_of, read_text, say_of_other
from wherefrom.views.streams import output, say


@app.command(cls=Command)
def trace(
    text: Text = None,
    file: File = None,
    target: Annotated[
        str | None,
        typer.Option(help="The token to ask about, instead of the model's own choice."),
    ] = None,
    against: Annotated[str | None, typer.Option(help="A second token: ask for the target's lead over it.")] = None,
    target_id: Annotated[int | None, typer.Option(help="The target by its token id.")] = None,
    against_id: Annotated[int | None, typer.Option(help="The second token by its id.")] = None,
    position: Annotated[
        int | None,
        typer.Option(help="Trace the prediction made at this position (from 0), not at the end or at the mask."),
    ] = None,
    written: Annotated[
        str | None, typer.Option(help="With an encoder-decoder: what has been written so far of its output.")
    ] = None,
    through: Annotated[
        Literal["self", "cross"] | None,
        typer.Option(help="With an encoder-decoder: its source text (cross, the default) or what it wrote (self)."),
    ] = None,
    layer: Annotated[int | None, typer.Option(help="Look at and cut in this layer only (from 0).")] = None,
    head: Annotated[
        int | None, typer.Option(help="Look at and cut in this head of each layer in scope (from 0).")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="How many sources to list; the rest is summed.")] = 10,
    carried: Annotated[
        int,
        typer.Option(
            min=0,
            help="For how many sources, of those that reach 0.05 nats, each head is cut alone; of an answer for how "
            "many parts of the prompt the strongest heads are named.",
        ),
    ] = 2,
    model: Model = "smollm2",
    context: Annotated[
        int | None,
        typer.Option(help="Read up to so many tokens, also beyond what the model was trained for.", metavar="TOKENS"),
    ] = None,
    library: Library = None,
    as_json: Json = False,
    answer: Answer = None,
    write: Write = None,
    question: Question = None,
    by: By = None,
    mark: Marks = None,
    chat: Chat = None,
    budget: Budget = None,
    how: How = None,
    unit: OfUnit = None,
    lens: Lens = None,
    layers: Layers = None,
    heads: Heads = None,
) -> None:
    """Show where a token came from, or what a whole answer drew on.

    An encoder, such as BERT, is asked about the token that a [MASK] in the text stands for; an encoder-decoder
    about the next token that it writes, whose sources are the words of the text that it reads.

    Every source's attention weight stands beside its measured knock-out: what the target's log-probability
    loses, in nats, when the position may not read that source. Then, for the strongest sources, each head is
    cut alone, so that the heads that carried them are named.

    With --answer, --write or --chat it is a whole answer that is asked about: which sentences (--by) of the prompt it
    drew on, by their weight, by a gradient, by gates on all parts at once, and, as far as --budget goes, by
    running the text without them.

    A target is taken as it is typed or with a blank before it, whichever the model finds likelier; the
    output says which.

    \b
    Examples:
      wherefrom trace "When Mary and John went to the store, John gave a drink to"
      wherefrom trace "The capital of Italy is" --target Rome --against Paris
      wherefrom trace --file notes.txt --top 20
      echo "The capital of Italy is" | wherefrom trace --json | jq .sources
      wherefrom trace --file report.txt --write 20 --by paragraph --budget 20
      wherefrom trace --file facts.txt --question "Rosa lives in" --answer Athens
    """
    asked = Asked(answer, write, question, by, mark, chat, budget, how, unit, lens, layers, heads)
    if asked.of_answer:
        refuse_beside(
            {
                "--target": target,
                "--against": against,
                "--target-id": target_id,
                "--against-id": against_id,
                "--position": position,
                "--written": written,
                "--through": through,
                "--layer": layer,
                "--head": head,
            }
        )
        trace_answer(
            asked,
            text,
            file,
            model=model,
            context=context,
            library=library,
            top=top,
            carried=carried,
            as_json=as_json,
        )
        return
    prompt = read_text(text, file)
    wanted, other = one_of("target", target, target_id), one_of("against", against, against_id)
    loaded = wherefrom.load(model, context=context, library=library, say=say)
    say_of_other(loaded, prompt)
    with progress_bar(quiet=as_json) as progress:
        result = wherefrom.trace(
            loaded,
            prompt,
            target=wanted,
            against=other,
            written=written,
            through=through,
            position=position,
            layer=layer,
            head=head,
            carried_sources=carried,
            progress=progress,
        )
    if as_json:
        print_json(result.to_json())
        return
    from wherefrom.views.terminal import print_trace

    with output():
        print_trace(result, top=top)


@app.command(cls=Command)
def generate(
    text: Text = None,
    file: File = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Write at most this many tokens (50, or as many as fit).")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Sample, with the logits divided by this; without it, greedy.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(help="Sample among the k likeliest tokens only (with --temperature).")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Sample among the likeliest tokens that together hold this probability (likewise)."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed writes the same text (likewise).")] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(help="Stop before this string; may be given several times. A line's end is $'\\n'."),
    ] = None,
    model: Model = "smollm2",
    as_json: Json = False,
) -> None:
    """Continue a text, token by token.

    \b
    Examples:
      wherefrom generate "Once upon a time"
      wherefrom generate "Once upon a time" --temperature 0.8 --seed 1
      wherefrom generate "The three primary colours are" --stop "."
    """
    prompt = read_text(text, file)
    from wherefrom.model.generate import Sampling, stop_strings

    sampling = Sampling(temperature, top_k, top_p, seed)
    stops = stop_strings(stop or ())
    loaded = own_model(model, "generate")
    if as_json:
        result = wherefrom.generate(loaded, prompt, max_tokens=max_tokens, sampling=sampling, stop=stops)
        print_json({**vars(result), "model": loaded.name})
        return
    started: list[bool] = []
    opening = prompt if loaded.config.kind == "decoder" else ""

    def show(piece: str) -> None:
        print_text(piece if started else opening + piece, end="")
        started.append(True)

    wherefrom.generate(loaded, prompt, max_tokens=max_tokens, sampling=sampling, stop=stops, on_text=show)
    print_text("" if started else opening)
