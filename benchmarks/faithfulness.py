"""How faithful lenses are: what they say of a prompt's parts beside what is measured when parts are really taken away.

    python -m benchmarks.faithfulness measure FILE --family facts --count 24 [--model FOLDER] [--by token] [--first 0]
    python -m benchmarks.faithfulness renew FILE [--model FOLDER]
    python -m benchmarks.faithfulness table FILE ...
    python -m benchmarks.faithfulness plot FILE ... --to PICTURE

`measure` appends a JSON line for each prompt and leaves out what is there already, so that it can be stopped at any
moment. A line holds what the runs gave and what each lens said; every score is computed from these, by `table`. Where a
lens that is computed from the runs has changed since, `renew` measures again what is then taken away in another order.

Taking away is deletion: the parts' tokens leave the text, the question and the answer stay. Of a prompt are measured:
random halves to test on, other random halves for the lenses that learn from runs, each part alone, and the parts in the
order of each lens, the strongest first.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import wherefrom
from benchmarks.choices import choices_to_learn, choices_to_test, learned, order_of, steps_of, three_gates
from benchmarks.lenses import gated, scored
from benchmarks.prompts import FAMILIES, Prompt
from benchmarks.report import plot, table
from wherefrom.evidence.ablations import Ablator
from wherefrom.evidence.goal import AnswerGoal
from wherefrom.evidence.running import OwnRunner
from wherefrom.passages import Passage, passages

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
    """Return a measured line with the gates' lenses, if it lacks them, and every curve in the order that it has now."""
    asked = None
    if "gate 0.6" not in row["lenses"]:
        asked = read(runner, FAMILIES[row["family"]](row["seed"]), row["by"])
        own = {name: one.scores for name, one in gated(runner, *asked).items()}
        row = {**row, "lenses": _plain({**row["lenses"], **own})}
    if "curves" not in row:
        return dict(row)
    ranked = _ranked(row)
    kept = {name: curve for name, curve in row["curves"].items() if order_of(ranked[name]).tolist() == curve["order"]}
    if len(kept) < len(ranked):
        ablator = Ablator(runner, *(asked or read(runner, FAMILIES[row["family"]](row["seed"]), row["by"])))
        kept |= _along(ablator, {name: own for name, own in ranked.items() if name not in kept})
    return {**row, "curves": {name: kept[name] for name in ranked}}


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
    """Return the lines of some files."""
    return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faithfulness", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    measure = commands.add_parser("measure", help="measure prompts, a line each")
    measure.add_argument("file", type=Path)
    measure.add_argument("--family", choices=[*FAMILIES], action="append", help="all unless given")
    measure.add_argument("--count", type=int, default=24, help="prompts of each family")
    measure.add_argument("--first", type=int, default=0, help="the first prompt's seed")
    measure.add_argument("--model", type=Path, help="a folder; SmolLM2 unless given")
    measure.add_argument("--by", choices=["part", "token"], default="part")
    renew = commands.add_parser("renew", help="measure again what lenses say otherwise by now")
    renew.add_argument("file", type=Path)
    renew.add_argument("--model", type=Path, help="a folder; SmolLM2 unless given")
    for name in ("table", "plot"):
        shown = commands.add_parser(name, help=f"the {name} of what was measured")
        shown.add_argument("file", type=Path, nargs="+")
        shown.add_argument("--family", action="append", help="all unless given")
        if name == "plot":
            shown.add_argument("--to", type=Path, required=True, help="a picture file")
    own = parser.parse_args(arguments)
    if own.command == "measure":
        return _measure(own)
    if own.command == "renew":
        return _renew(own)
    rows = [row for row in rows_of(own.file) if own.family is None or row["family"] in own.family]
    if not rows:
        parser.error("these files hold no such prompt")
    if own.command == "plot":
        plot(rows, own.to)
    else:
        print("\n".join(table(rows)))
    return 0


def _runner(own: argparse.Namespace) -> OwnRunner:
    return OwnRunner(wherefrom.load() if own.model is None else wherefrom.load(own.model))


def _renew(own: argparse.Namespace) -> int:
    runner, rows = _runner(own), rows_of([own.file])
    lines = [json.dumps(_plain(renewed(runner, row))) + "\n" for row in rows]
    partial = own.file.with_name(f"{own.file.name}.partial")
    partial.write_text("".join(lines), encoding="utf-8")
    partial.replace(own.file)
    return 0


def _measure(own: argparse.Namespace) -> int:
    runner = _runner(own)
    done = {(row["family"], row["seed"], row["by"]) for row in (rows_of([own.file]) if own.file.exists() else [])}
    for seed in range(own.first, own.first + own.count):
        for family in own.family or FAMILIES:
            if (family, seed, own.by) in done:
                continue
            row = measured(runner, FAMILIES[family](seed), by=own.by, curves=own.by == "part")
            with own.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(_plain(row)) + "\n")
            print(f"{family} {seed}: {len(row['loo'])} parts, {row['seconds']:.0f} s", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
