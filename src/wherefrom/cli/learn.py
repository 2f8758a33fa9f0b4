"""Commands to learn from (floor 7): attention worked through by hand, and what a pass costs."""

from __future__ import annotations

from typing import Annotated

import typer

import wherefrom
from wherefrom.cli.app import Command, Json, Model, app, own_model
from wherefrom.cli.printing import print_json, print_text, progress_bar
from wherefrom.errors import InputError


@app.command(cls=Command)
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
    scaling: Annotated[
        bool, typer.Option("--scaling", help="Instead: what the division by sqrt(d_k) is for, measured.")
    ] = False,
    sizes: Annotated[
        str | None, typer.Option("--sizes", help='Sizes d_k for --scaling: "1,16,256".', metavar="NUMBERS")
    ] = None,
    as_json: Json = False,
) -> None:
    """Work self-attention through by hand.

    Prints the scores, weights and outputs of a small example, rounded to three decimals (--json: unrounded).
    Without options it is the three-token example of the lesson on self-attention; its numbers can be
    replaced. Pairs that the mask does not permit are shown as a dash.

    With --scaling it shows why scores are divided by sqrt(d_k): how far scores spread, how softmax saturates and
    what becomes of the gradient as d_k grows, with and without the division.

    \b
    Examples:
      wherefrom example
      wherefrom example --q "1,0; 0,2; 0,3"
      wherefrom example --scaling
      wherefrom example --tokens "a b" --q "1; 2" --k "1; 1" --v "1,0,0; 0,1,0" \\
          --bidirectional
    """
    own = {"--q": q, "--k": k, "--v": v, "--tokens": tokens, "--window": window, "--scale": scale}
    if scaling or sizes is not None:
        _refuse_both(scaling, {**own, "--bidirectional": bidirectional or None})
        _print_scaling(sizes, as_json)
        return
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
        print_json(example_json(names, **rows, mask=mask, scale=scale))
    else:
        print_text(example_tables(names, **rows, mask=mask, scale=scale), end="")


@app.command(cls=Command)
def cost(
    lengths: Annotated[
        str | None,
        typer.Option(
            "--lengths", "-n", help='Tokens: "512,2048"; three up to the context unless given.', metavar="NUMBERS"
        ),
    ] = None,
    parts: Annotated[bool, typer.Option("--parts", help="Also each part of a layer, at the longest length.")] = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="Also run the model and time it, beside the count.")
    ] = False,
    repeats: Annotated[int, typer.Option(min=1, help="How often each length is timed.")] = 3,
    model: Model = "smollm2",
    as_json: Json = False,
) -> None:
    """Count what a pass costs, and where attention overtakes the rest.

    Multiply-adds and bytes of a model at some lengths: in all, per layer, the share of attention's pair work and of
    the feed-forward, what all n x n weights would take if they were formed, and what a recording takes. Then the
    length from which the pair work is more than the feed-forward.

    \b
    Examples:
      wherefrom cost
      wherefrom cost --lengths 512,2048 --parts --measure
      wherefrom cost --model path/to/checkpoint --json
    """
    asked = None if lengths is None else whole_numbers("--lengths", lengths)
    loaded = own_model(model, "cost")
    most = loaded.config.context
    chosen = tuple(sorted({max(1, most // 16), max(1, most // 4), most})) if asked is None else asked
    with progress_bar(quiet=as_json or not measure) as bar:
        told = None if bar is None else lambda done, total: bar("timing", done, total)
        found = wherefrom.cost(loaded, chosen, measure=measure, repeats=repeats, progress=told)
    if as_json:
        print_json(found.to_json())
        return
    from wherefrom.views.cost import cost_table, part_table

    print_text(cost_table(found), end="")
    if parts:
        print_text("\n" + part_table(found), end="")


def _refuse_both(scaling: bool, own: dict[str, object]) -> None:
    """Refuse options of the worked example beside --scaling, and --sizes without it."""
    beside = [name for name, value in own.items() if value is not None]
    if not scaling or beside:
        raise InputError(
            "--scaling" if scaling else "--sizes",
            expected="none of the example's own options beside it" if scaling else "--scaling beside it",
            given=beside[0] if scaling else "--sizes alone",
            way_out="The two tables have nothing in common: ask for one of them.",
        )


def _print_scaling(sizes: str | None, as_json: bool) -> None:
    from wherefrom.views.scaling import SIZES, scaling, scaling_json, scaling_table

    rows = scaling(SIZES if sizes is None else whole_numbers("--sizes", sizes))
    if as_json:
        print_json(scaling_json(rows))
    else:
        print_text(scaling_table(rows), end="")


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """Return the numbers of "1,16,256"."""
    try:
        return tuple(int(part) for part in text.replace(",", " ").split())
    except ValueError as error:
        raise InputError(
            option, expected='whole numbers, such as "1,16,256"', given=f'"{text}"', way_out="Separate them by commas."
        ) from error
