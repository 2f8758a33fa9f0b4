"""How faithful lenses are: what they say of a prompt's parts beside what is measured when parts are really taken away.

    python -m benchmarks.faithfulness measure FILE --family facts --count 24 [--model FOLDER] [--by token] [--first 0]
    python -m benchmarks.faithfulness renew FILE [--model FOLDER]
    python -m benchmarks.faithfulness table FILE ...
    python -m benchmarks.faithfulness plot FILE ... --to PICTURE

`measure` appends a JSON line for each prompt and leaves out what is there already of the same model, so that it can be
stopped at any moment. A line holds what the runs gave and what each lens said; every score is computed from these, by
`table`. Where a lens that is computed from the runs has changed since, `renew` measures again what is then taken away
in another order; it takes lines of its own model alone. A model is known by its checksum, and by its name in lines that
hold no checksum.

Taking away is deletion: the parts' tokens leave the text, the question and the answer stay. Of a prompt are measured:
random halves to test on, other random halves for the lenses that learn from runs, each part alone, and the parts in the
order of each lens, the strongest first.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import wherefrom
from benchmarks.choices import RUNS, choices_to_learn, choices_to_test, learned, order_of, steps_of, three_gates
from benchmarks.lenses import GATES, gated, scored
from benchmarks.prompts import FAMILIES, Prompt
from benchmarks.report import check_picture, plot, table
from wherefrom.checks import as_index, as_number, whole
from wherefrom.errors import InputError, WherefromError
from wherefrom.evidence.ablations import Ablator
from wherefrom.evidence.goal import AnswerGoal
from wherefrom.evidence.running import OwnRunner
from wherefrom.passages import Passage, passages
from wherefrom.readable import printable

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
CURVES = (
    "mean weight",
    "last layer's weight",
    "rollout",
    "gradient x input",
    "integrated gradients",
    "score gradient",
    "score gate 0.15",
    "gate 0.6",
)
"""Lenses in whose order parts are taken away one after the other, beside what is measured and fitted."""
FITTED = ("gates 1 + 1 and 32 runs", "lasso, 32 runs")
"""Fits that have a deletion curve."""
DIGITS = 6
DIVISIONS = ("part", "token")
OPTIONAL = ("fingerprint", "holds", "curves")
"""What a line may lack."""
EXTRAS = ("sklearn", "matplotlib")
"""Packages that the comparison alone needs."""


def measured(runner: OwnRunner, prompt: Prompt, *, by: str, curves: bool) -> dict[str, Any]:
    """Return all that is measured of one prompt."""
    start = time.perf_counter()
    goal, parts = read(runner, prompt, by)
    ablator, count = Ablator(runner, goal, parts), len(parts)
    lenses = {name: one.scores for name, one in scored(runner, goal, parts).items()}
    loo = ablator.measure(~np.eye(count, dtype=np.bool_)).effects
    row: dict[str, Any] = {
        "family": prompt.family,
        "seed": prompt.seed,
        "by": by,
        "model": runner.name,
        "fingerprint": runner.fingerprint,
        "tokens": len(goal.ids),
        "answer": len(goal.rows),
        "holds": list(prompt.holds) if by == "part" else None,
        "whole": ablator.whole,
        "loo": loo,
        "test": ablator.measure(choices_to_test(count, prompt.seed)).values,
        "train": ablator.measure(choices_to_learn(count, prompt.seed)).values,
        "lenses": lenses,
    }
    if curves:
        row["curves"] = _curves(ablator, row)
    row["seconds"] = round(time.perf_counter() - start, 1)
    return row


def read(runner: OwnRunner, prompt: Prompt, by: str) -> tuple[AnswerGoal, tuple[Passage, ...]]:
    """Return what is asked about, and the parts that can be taken away: the prompt's own, or their tokens."""
    before = len(runner.model.tokenizer.encode(prompt.text))
    tokens = runner.model.tokenizer.encode(prompt.text + prompt.answer)
    goal = AnswerGoal(tokens.ids, before)
    parts = passages(tokens, list(prompt.sources), within=range(before))
    if by == "token":
        parts = passages(tokens, "token", within=range(parts[0].start, parts[-1].stop))
    return goal, parts


def renewed(runner: OwnRunner, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a measured line with the lenses that it lacks, and every curve in the order that it has now.

    Raises:
        InputError: the line's prompt is no longer made, or in another way.
    """
    asked = None
    gates = {f"gate {m:g}" for m in GATES}
    if missing := ({*CURVES} | gates) - {*row["lenses"]}:
        asked = _asked_again(runner, row)
        found = gated(runner, *asked) if missing <= gates else scored(runner, *asked)
        row = {**row, "lenses": _plain({**row["lenses"], **{name: one.scores for name, one in found.items()}})}
    if "curves" not in row:
        return dict(row)
    ranked = _ranked(row)
    kept = {name: curve for name, curve in row["curves"].items() if name in ranked}
    kept = {name: curve for name, curve in kept.items() if order_of(ranked[name]).tolist() == curve["order"]}
    if len(kept) < len(ranked):
        ablator = Ablator(runner, *(asked or _asked_again(runner, row)))
        kept |= _along(ablator, {name: own for name, own in ranked.items() if name not in kept})
    return {**row, "curves": {name: kept[name] for name in ranked}}


def _asked_again(runner: OwnRunner, row: Mapping[str, Any]) -> tuple[AnswerGoal, tuple[Passage, ...]]:
    """Return what a line asked about, and its parts, if the prompt is still made as it was."""
    what = f"the prompt {row['family']} {row['seed']}"
    if row["family"] not in FAMILIES:
        families = ", ".join(FAMILIES)
        raise InputError(what, expected=f"one of {families}", given="another", way_out="Take its line out.")
    goal, parts = read(runner, FAMILIES[row["family"]](row["seed"]), row["by"])
    before, now = (row["tokens"], len(row["loo"])), (len(goal.ids), len(parts))
    if before != now:
        raise InputError(
            what,
            expected=f"{before[0]} tokens in {before[1]} parts, as its line has it",
            given=f"{now[0]} in {now[1]}",
            way_out="It is made in another way by now: take its line out, and measure it anew.",
        )
    return goal, parts


def _curves(ablator: Ablator, row: Mapping[str, Any]) -> dict[str, dict[str, list[Any]]]:
    """Return each lens's order, and the goal's values along it."""
    return _along(ablator, _ranked(row))


def _ranked(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scores of the lenses that have a curve."""
    ranked = {name: row["lenses"][name] for name in CURVES} | {"leave one out": row["loo"]}
    return ranked | {
        "gates 3 + 3": three_gates(row),
        **{name: one for name, one in learned(row).items() if name in FITTED},
    }


def _along(ablator: Ablator, ranked: Mapping[str, Any]) -> dict[str, dict[str, list[Any]]]:
    """Return the order of some scores, and the goal's values along it; a choice that several share is run once."""
    kept = {name: [choice for _, choice in steps_of(scores)] for name, scores in ranked.items()}
    unique = np.unique(np.concatenate(list(kept.values())), axis=0)
    values = {choice.tobytes(): value for choice, value in zip(unique, ablator.measure(unique).values, strict=True)}
    return {
        name: {"order": order_of(ranked[name]).tolist(), "values": [values[choice.tobytes()] for choice in own]}
        for name, own in kept.items()
    }


def _plain(value: Any) -> Any:
    """Return a value as JSON has it, numbers rounded to some digits."""
    if isinstance(value, np.ndarray | list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float | np.floating) else value


def rows_of(files: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the lines of some files.

    Raises:
        InputError: a file that cannot be read, a line that is none of `measure`, or a prompt that comes twice, of the
            same model and divided in the same way.
    """
    rows: list[dict[str, Any]] = []
    places: dict[tuple[Any, ...], list[tuple[dict[str, Any], str]]] = {}
    for file in files:
        for number, line in enumerate(_lines_of(file), start=1):
            row, place = _row(line, number, file), f"line {number} of {file}"
            same = places.setdefault((row["family"], row["seed"], row["by"]), [])
            if first := [there for other, there in same if is_of(other, row["model"], row.get("fingerprint"))]:
                raise InputError(
                    place,
                    expected="each prompt once",
                    given=f"{row['family']} {row['seed']} of {row['model']} by {row['by']}, as on {first[0]}",
                    way_out="Take one of the two out.",
                )
            same.append((row, place))
            rows.append(row)
    return rows


def is_of(row: Mapping[str, Any], name: str, fingerprint: str | None) -> bool:
    """Return whether a line is of a model: by their checksums, or by their names where one has no checksum."""
    own = row.get("fingerprint")
    return bool(own == fingerprint if own and fingerprint else row["model"] == name)


def _lines_of(file: Path) -> list[str]:
    what = "the file of measured prompts"
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        given, way_out = f"{file} ({error.strerror})", "Check the path; `measure` makes such files."
        raise InputError(what, expected="a file that can be read", given=given, way_out=way_out) from error
    except UnicodeDecodeError as error:
        given, way_out = f"{file}, whose byte {error.start} is not", "Name a file that `measure` made."
        raise InputError(what, expected="UTF-8", given=given, way_out=way_out) from error
    return text.removesuffix("\n").split("\n") if text else []


def _row(line: str, number: int, file: Path) -> dict[str, Any]:
    """Return what a line holds, if `measure` can have written it."""
    try:
        found: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        given = f"no JSON ({error})" if line.strip() else "a blank line"
    else:
        if isinstance(found, dict) and not (wrong := _wrong(found)):
            return found
        given = wrong if isinstance(found, dict) else f"a JSON value of another kind ({line.strip()[:40]})"
    raise InputError(
        f"line {number} of {file}",
        expected="a prompt as `measure` writes it",
        given=given,
        way_out="Name a file that `measure` made, or take the line out to have its prompt measured again.",
        path=file,
        line=number,
    )


def _wrong(row: Mapping[str, Any]) -> str:
    """Return what is wrong with a line, nothing if all is well."""
    parts = len(row["loo"]) if isinstance(row.get("loo"), list) else 0

    def numbers(value: Any, count: int) -> bool:
        return isinstance(value, list) and len(value) == count and all(as_number(one) is not None for one in value)

    def index(value: Any, least: int, below: float = np.inf) -> bool:
        return (number := as_index(value)) is not None and least <= number < below

    def curve(value: Any) -> bool:
        if not isinstance(value, dict) or not numbers(value.get("order"), parts):
            return False
        return sorted(value["order"]) == [*range(parts)] and numbers(value.get("values"), steps)

    steps = len(list(steps_of([0.0] * parts)))
    fits: dict[str, Callable[[Any], bool]] = {
        "family": lambda value: isinstance(value, str),
        "seed": lambda value: index(value, 0),
        "by": lambda value: value in DIVISIONS,
        "model": lambda value: isinstance(value, str),
        "fingerprint": lambda value: isinstance(value, str),
        "tokens": lambda value: index(value, 1),
        "answer": lambda value: index(value, 1),
        "loo": lambda value: parts > 0 and numbers(value, parts),
        "holds": lambda value: value is None or (isinstance(value, list) and all(index(i, 0, parts) for i in value)),
        "whole": lambda value: numbers([value], 1),
        "test": lambda value: numbers(value, RUNS),
        "train": lambda value: numbers(value, RUNS),
        "lenses": lambda value: isinstance(value, dict) and all(numbers(own, parts) for own in value.values()),
        "curves": lambda value: isinstance(value, dict) and all(map(curve, value.values())),
    }
    if missing := [name for name in fits if name not in row and name not in OPTIONAL]:
        return f'one without "{missing[0]}"'
    return next(
        (f'one whose "{name}" is of another form' for name, fit in fits.items() if name in row and not fit(row[name])),
        "",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of the commands; bad input ends it with one sentence and 2."""
    own = _parser().parse_args(arguments)
    try:
        {"measure": _measure, "renew": _renew}.get(own.command, _show)(own)
    except WherefromError as error:
        _say(f"benchmarks.faithfulness: {error}")
        return 2
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        _say(f'benchmarks.faithfulness: {error}. Install what the comparison needs: pip install -e ".[bench]".')
        return 2
    except KeyboardInterrupt:
        _say("benchmarks.faithfulness: interrupted")
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    assert __doc__
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faithfulness", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    measure = commands.add_parser("measure", help="measure prompts, a line each")
    measure.add_argument("file", type=Path)
    measure.add_argument("--family", choices=[*FAMILIES], action="append", help="all unless given")
    measure.add_argument("--count", type=int, default=24, help="prompts of each family")
    measure.add_argument("--first", type=int, default=0, help="the first prompt's seed")
    measure.add_argument("--model", type=Path, help="a folder; SmolLM2 unless given")
    measure.add_argument("--by", choices=DIVISIONS, default="part")
    renew = commands.add_parser("renew", help="measure again what lenses say otherwise by now")
    renew.add_argument("file", type=Path)
    renew.add_argument("--model", type=Path, help="a folder; SmolLM2 unless given")
    for name in ("table", "plot"):
        shown = commands.add_parser(name, help=f"the {name} of what was measured")
        shown.add_argument("file", type=Path, nargs="+")
        shown.add_argument("--family", action="append", help="all unless given")
        if name == "plot":
            shown.add_argument("--to", type=Path, required=True, help="a picture file")
    return parser


def _say(sentence: str) -> None:
    """Tell of the work, or of what is wrong, beside what is printed."""
    print(printable(sentence), file=sys.stderr, flush=True)


def _show(own: argparse.Namespace) -> None:
    """Print the table, or draw the picture."""
    if own.command == "plot":
        check_picture(own.to)
    every = rows_of(own.file)
    rows = [row for row in every if own.family is None or row["family"] in own.family]
    if not rows:
        there = ", ".join(dict.fromkeys(row["family"] for row in every)) or "no prompt"
        raise InputError(
            "what is to be shown",
            expected=f"prompts of {', '.join(own.family or ['some family'])}",
            given=f"{there} in {', '.join(map(str, own.file))}",
            way_out="Leave --family out to see all, or measure some first.",
        )
    if own.command == "plot":
        plot(rows, own.to, _say)
    else:
        print("\n".join(table(rows, _say)))


def _runner(own: argparse.Namespace) -> OwnRunner:
    return OwnRunner(wherefrom.load() if own.model is None else wherefrom.load(own.model))


def _renew(own: argparse.Namespace) -> None:
    """Write a file again, line by line; nothing is written unless every line is of the model."""
    rows = rows_of([own.file])
    runner = _runner(own)
    for number, row in enumerate(rows, start=1):
        if not is_of(row, runner.name, runner.fingerprint):
            other = (
                row["model"] if row["model"] != runner.name else f"another model of that name ({row['fingerprint']})"
            )
            raise InputError(
                f"line {number} of {own.file}",
                expected=f"one of {runner.name}, which was to renew it",
                given=f"one of {other}",
                way_out="Name the folder of the line's model with --model, or keep each model's lines in a file.",
            )
    lines = []
    for row in rows:
        lines.append(json.dumps(_plain(renewed(runner, row))) + "\n")
        _say(f"{row['family']} {row['seed']}: renewed")
    partial = own.file.with_name(f"{own.file.name}.partial")
    try:
        partial.write_text("".join(lines), encoding="utf-8")
        partial.replace(own.file)
    except OSError as error:
        raise _unwritten(own.file, error) from error


def _measure(own: argparse.Namespace) -> None:
    """Add a line for each prompt that the file has none of by the same model."""
    whole("--count", own.count, least=1, way_out="So many prompts of each family are measured.")
    whole("--first", own.first, least=0, way_out="Prompts are counted from 0.")
    try:
        rows = rows_of([own.file]) if own.file.exists() else []
    except OSError as error:  # such as a name that is too long
        raise _unwritten(own.file, error) from error
    runner = _runner(own)
    done = {(row["family"], row["seed"], row["by"]) for row in rows if is_of(row, runner.name, runner.fingerprint)}
    _add(own.file, "")  # before a minute's work for each
    for seed in range(own.first, own.first + own.count):
        for family in own.family or FAMILIES:
            if (family, seed, own.by) in done:
                continue
            row = measured(runner, FAMILIES[family](seed), by=own.by, curves=own.by == "part")
            _add(own.file, json.dumps(_plain(row)) + "\n")
            _say(f"{family} {seed}: {len(row['loo'])} parts, {row['seconds']:.0f} s")


def _add(file: Path, line: str) -> None:
    """Add a line to a file; one before it that has no end gets it first."""
    try:
        with file.open("a+b") as opened:
            if opened.tell():
                opened.seek(-1, 2)
                if opened.read(1) != b"\n":
                    line = "\n" + line
            opened.write(line.encode())
    except OSError as error:
        raise _unwritten(file, error) from error


def _unwritten(file: Path, error: OSError) -> InputError:
    return InputError(
        f"the file {file}",
        expected="room and permission to write it, in a folder that is there",
        given=error.strerror or str(error),
        way_out="Choose another path.",
        path=file,
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
