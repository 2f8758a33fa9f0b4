"""The command that finds the heads that carry answers from their places (floor 7)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import wherefrom
from wherefrom.cli.app import Command, Json, Library, Model, app
from wherefrom.cli.printing import print_json, progress_bar
from wherefrom.cli.prompt import read_text
from wherefrom.errors import InputError
from wherefrom.views.streams import output, say

if TYPE_CHECKING:  # nothing heavy before the options are understood
    from wherefrom.evidence.cases import Case

FIELDS = ("prompt", "answer", "place", "family")
FORM = '{"prompt": "...", "answer": "...", "place": "..."}'


@app.command(cls=Command)
def carriers(
    cases: Annotated[
        Path | None,
        typer.Argument(
            metavar="[CASES]",
            help=f"A file with a case a line, as JSON: {FORM}; place is some words of the prompt, or [start, stop] of "
            'its tokens; "family" may name a kind. Without it, cases made here.',
        ),
    ] = None,
    test: Annotated[
        Path | None,
        typer.Option(help="Cases to test the heads on; unless given, every second one of each family of CASES."),
    ] = None,
    made: Annotated[int, typer.Option(min=4, help="How many cases are made, where no file is given.")] = 24,
    count: Annotated[
        int,
        typer.Option(
            "--count", "-n", min=1, help="How many heads are knocked out together, at most: those with a score above 0."
        ),
    ] = 8,
    by: Annotated[
        list[str] | None,
        typer.Option(
            help='The score that heads are found by: "first order", retrieval, induction or weight; may be given '
            "several times. The first three unless given.",
            metavar="SCORE",
        ),
    ] = None,
    how: Annotated[
        Literal["zero", "mean", "reads"],
        typer.Option(
            help="What is knocked out: the heads' output, replaced by zero or by its mean; or that they read the place."
        ),
    ] = "zero",
    random: Annotated[int, typer.Option(min=1, help="How often as many random other heads are drawn.")] = 5,
    among: Annotated[
        Literal["layers", "model"],
        typer.Option(help="Where others are drawn from: the layers of those that were found, or the whole model."),
    ] = "layers",
    unit: Annotated[
        Literal["log-odds", "log-probability"], typer.Option(help="What of the answers is asked about.")
    ] = "log-odds",
    ordinary: Annotated[
        Path | None,
        typer.Option(help="A text that needs no retrieval, a page or two, instead of one of the project's own."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the cases that are made, and of what is drawn.")] = 0,
    top: Annotated[int, typer.Option(min=1, help="How many heads of each set to list.")] = 10,
    model: Model = "smollm2",
    library: Library = None,
    as_json: Json = False,
) -> None:
    """Find the heads that carry an answer from where it stands.

    For prompts of which it is known where the answer stands, every head gets three scores: what the answer would lose,
    to first order, if the head could not read the place; how often its largest weight lies on the very token that is
    written (retrieval heads); and how much it reads what followed the same token before (induction heads). The best by
    each are knocked out together, on prompts on which they were not found, beside as many random heads; and in a text
    that needs no retrieval.

    \b
    Examples:
      wherefrom carriers
      wherefrom carriers cases.jsonl --count 10 --how reads
      wherefrom carriers cases.jsonl --by "first order" --among model --json
    """
    given = None if cases is None else _read(cases)
    others = None if test is None else _read(test)
    plain = None if ordinary is None else read_text(None, ordinary, "the ordinary text")
    if given is None:
        given = list(wherefrom.retrieval_cases(made, seed=seed))
    loaded = wherefrom.load(model, library=library, say=say)
    with progress_bar(quiet=as_json) as progress:
        found = wherefrom.find_carriers(
            loaded,
            given,
            test=others,
            count=count,
            by=by or None,
            how=how,
            draws=random,
            among=among,
            unit=unit,
            ordinary=plain,
            seed=seed,
            progress=progress,
        )
    if as_json:
        print_json(found.to_json())
        return
    from wherefrom.views.carriers import print_carriers

    with output():
        print_carriers(found, top=top)


def _read(path: Path) -> list[Case]:
    """Return the cases of a file: case 3 is that of line 3."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(
            "the file of cases",
            expected="a file that can be read",
            given=f"{path} ({error.strerror})",
            way_out="Check the path.",
            path=path,
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(
            "the file of cases",
            expected="UTF-8",
            given=f"{path}, whose byte {error.start} is not",
            way_out="Convert it first, for example: iconv -f LATIN1 -t UTF-8.",
            path=path,
        ) from error
    lines = text.rstrip().split("\n") if text.strip() else []
    return [_case(line, number, path) for number, line in enumerate(lines, start=1)]


def _case(line: str, number: int, path: Path) -> Case:
    from wherefrom.evidence.cases import Case

    if not line.strip():
        raise _wrong(path, number, "an empty line")
    try:
        found: Any = json.loads(line)
    except ValueError as error:
        raise _wrong(path, number, f"none ({error})") from error
    except RecursionError as error:
        raise _wrong(path, number, "lists or objects nested too deep") from error
    if not isinstance(found, dict):
        raise _wrong(path, number, f"a JSON value of another kind ({line.strip()[:40]})")
    missing = [name for name in FIELDS[:3] if name not in found]
    unknown = [name for name in found if name not in FIELDS]
    if missing or unknown:
        raise _wrong(path, number, f"one without {missing[0]!r}" if missing else f"one with {unknown[0]!r}")
    texts = [name for name in FIELDS if name != "place" and not isinstance(found.get(name, ""), str)]
    if texts:
        raise _wrong(path, number, f"one whose {texts[0]!r} is no text")
    return Case(found["prompt"], found["answer"], found["place"], found.get("family", ""))


def _wrong(path: Path, number: int, given: str) -> InputError:
    return InputError(
        f"line {number} of {path}",
        expected=f"a case as JSON, {FORM}",
        given=given,
        way_out="Write each case with json.dumps on a line of its own.",
        path=path,
        line=number,
    )
