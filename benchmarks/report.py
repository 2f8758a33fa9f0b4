"""The table and the picture of the comparison of lenses, from lines that `benchmarks.faithfulness` measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.choices import BUDGETS, LASSO, TOP
from benchmarks.lenses import GATES, SCORE_GATES, STEPS
from benchmarks.scores import Judged, Way, judge, mean_of
from wherefrom.errors import InputError

Rows = Sequence[Mapping[str, Any]]
Say = Callable[[str], None]
CHOSEN = "gate 0.6"
CROWDED = (
    f"{CHOSEN}, its first alone",
    "score gate 1",
    "score gate 0.3",
    "score gate 0.1",
    "gate 0.4",
    "gate 0.7",
    "gate 0.9",
)
"""Lenses too near to another to be named in the picture."""
ABOVE, BESIDE = (-12, 16), (6, -3)
"""Where a name stands, in points."""
EVERY = 10
"""After so many prompts is said how far the judging is."""
PICTURES = (".png", ".svg", ".pdf")


def ways(rows: Sequence[Judged]) -> list[Way]:
    """Return every lens that was judged, the cheapest first."""
    parts = round(sum(row.parts for row in rows) / len(rows))
    one, both = (1, "1 forward"), (2, "1 + 1")
    cheap = {"random": (0, "nothing"), "mean weight": one, "last layer's weight": one, "rollout": one}
    gradients = {"gradient x input": both, "integrated gradients": (2 * STEPS, f"{STEPS} + {STEPS}")}
    alone = {"leave one out": (parts + 1, f"{parts + 1} forward (mean)")}
    lassos = {f"lasso, {runs} runs": (runs, f"{runs} forward") for runs in LASSO}
    baselines = [Way(name, *cost, ours=False) for name, cost in (cheap | gradients | alone | lassos).items()]
    own = {"moved": one, "direct": (3, "2 + 1"), "closed form": both, "score gradient": both}
    own |= {f"score gate {m:g}": both for m in SCORE_GATES} | {f"gate {m:g}": both for m in sorted(GATES)}
    own |= {"gates 3 + 3": (6, "3 + 3"), f"{CHOSEN}, its first alone": both}
    for name, passes in (("1 + 1", 2), ("3 + 3", 6)):
        own |= {f"gates {name} and {runs} runs": (passes + runs + 1, f"{name}, {runs + 1} forward") for runs in BUDGETS}
    every = baselines + [Way(name, *cost, ours=True) for name, cost in own.items()]
    known, _ = _known(rows, "LDS")
    return sorted((way for way in every if way.name in known), key=lambda way: way.passes)


def _known(rows: Sequence[Judged], score: str) -> tuple[set[str], list[str]]:
    """Return the lenses that a score is known of for every prompt; and of the others, in words, for how many."""
    counts = Counter(name for row in rows for name in row.figures[score])
    known = {name for name, count in counts.items() if count == len(rows)}
    others = sorted(counts.items() - {(name, len(rows)) for name in known})
    return known, [f"{name}, measured for {count} of {len(rows)} prompts" for name, count in others]


def _not_shown(others: Sequence[str]) -> Iterator[str]:
    if others:
        yield ""
        yield f"Not shown: {'; '.join(others)}."


def _judged(measured: Rows, say: Say) -> list[Judged]:
    """Return every prompt's scores, saying how far that is."""
    say(f"judging {len(measured)} prompts: fits of their runs are made again, about a second each")
    rows = []
    for number, row in enumerate(measured, start=1):
        rows.append(judge(row))
        if number % EVERY == 0:
            say(f"judged {number} of {len(measured)} prompts")
    return rows


def table(measured: Rows, say: Say = lambda _: None) -> Iterator[str]:
    """Yield the lines of the tables in Markdown: LDS by family, then the curves, then the leads.

    Args:
        measured: lines, each prompt once.
        say: told how far the judging is.
    """
    rows = _judged(measured, say)
    families = list(dict.fromkeys(row.family for row in rows))
    counts = ", ".join(f"{sum(row.family == name for row in rows)} {name}" for name in families)
    models = ", ".join(dict.fromkeys(row["model"] for row in measured))
    divided = ", ".join(dict.fromkeys(row["by"] for row in measured))
    yield f"{len(rows)} prompts ({counts}) of {models}, divided by {divided}; intervals are 95 %."
    yield ""
    parted = all("LDS within" in row.figures for row in rows)
    yield f"| lens | passes | LDS | {' | '.join(families)} |" + " within |" * parted
    yield "| --- | --- | --- |" + " --- |" * (len(families) + parted)
    for way in ways(rows):
        own = [mean_of([row for row in rows if row.family == family], "LDS", way.name) for family in families]
        figures = " | ".join(f"{one.value:.2f}" if one.count else "none" for one in own)
        within = f" {mean_of(rows, 'LDS within', way.name)} |" if parted else ""
        yield f"| {_title(way)} | {way.cost} | {mean_of(rows, 'LDS', way.name)} | {figures} |{within}"
    yield from _not_shown(_known(rows, "LDS")[1])
    yield from _curves(rows)
    yield from _leads(rows, families)


def _title(way: Way) -> str:
    return f"**{way.name}**" if way.ours else way.name


def _curves(rows: Sequence[Judged]) -> Iterator[str]:
    """Yield what taking the strongest away does."""
    rows = [row for row in rows if "RISE" in row.figures]
    if not rows:
        return
    scores = [*(f"top-{k} drop" for k in TOP), "RISE", "MAS"]
    yield ""
    yield f"| lens | passes | {' | '.join(scores)} |"
    yield "| --- | --- |" + " --- |" * len(scores)
    known, other = _known(rows, "RISE")
    for way in ways(rows):
        if way.name not in known:
            continue
        elsewhere = sum(np.isnan(row.figures[scores[0]][way.name]) for row in rows)
        if elsewhere:
            other.append(f"{way.name}, whose order has changed since for {elsewhere} of {len(rows)} prompts")
        else:
            yield f"| {_title(way)} | {way.cost} | {' | '.join(str(mean_of(rows, s, way.name)) for s in scores)} |"
    yield from _not_shown(other)


def _leads(rows: Sequence[Judged], families: Sequence[str]) -> Iterator[str]:
    """Yield how far ours are above what they are compared with, prompt by prompt."""
    yield ""
    yield "| LDS of the first above that of the second | mean | " + " | ".join(families) + " |"
    yield "| --- | --- |" + " --- |" * len(families)
    pairs = [(CHOSEN, other) for other in ("leave one out", "score gate 0.15", "mean weight")]
    pairs += [("gates 3 + 3", "leave one out"), ("gates 3 + 3", CHOSEN)]
    pairs += [(f"gates 1 + 1 and {runs} runs", f"lasso, {runs} runs") for runs in LASSO]
    known, _ = _known(rows, "LDS")
    for first, second in pairs:
        if not {first, second} <= known:
            continue
        groups = [rows, *([row for row in rows if row.family == family] for family in families)]
        own = [mean_of(group, "LDS", first, above=second) for group in groups]
        figures = " | ".join(f"{one:+.3f}" for one in own)
        yield f"| {first}, {second} | {figures} |"


def check_picture(to: Path) -> None:
    """Refuse a picture that could not be written in the end.

    Raises:
        InputError: another kind of picture, or no such folder.
    """
    what, way_out = f"--to {to}", "Choose another path."
    if to.suffix.lower() not in PICTURES:
        expected = f"a name that ends in {', '.join(PICTURES[:-1])} or {PICTURES[-1]}"
        raise InputError(what, expected=expected, given=f'"{to.name}"', way_out="The ending says the kind.", path=to)
    try:
        beside, folder = to.parent.is_dir(), to.is_dir()
    except OSError as error:  # such as a name that is too long
        given = error.strerror or str(error)
        raise InputError(what, expected="a file's place", given=given, way_out=way_out, path=to) from error
    if not beside or folder:
        expected, given = (
            ("a file's place", "a folder") if folder else ("a folder that is there", f"none at {to.parent}")
        )
        raise InputError(what, expected=expected, given=given, way_out=way_out, path=to)


def plot(measured: Rows, to: Path, say: Say = lambda _: None) -> None:
    """Draw LDS against passes, every lens with its interval if it has one, into a picture file.

    Args:
        measured: lines, each prompt once.
        to: the picture; its ending says the kind.
        say: told how far the judging is.

    Raises:
        InputError: a place where no picture can be.
    """
    check_picture(to)
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 6), layout="constrained")
    rows = _judged(measured, say)
    points = {way.name: (way, mean_of(rows, "LDS", way.name)) for way in ways(rows) if way.passes}
    for ours, colour, label in ((True, "#1f6f8b", "wherefrom"), (False, "#b5651d", "baselines")):
        own = [point for point in points.values() if point[0].ours == ours]
        at = [way.passes for way, _ in own]
        middle = [mean.value for _, mean in own]
        bars = [[mean.value - mean.low for _, mean in own], [mean.high - mean.value for _, mean in own]]  # NaN: none
        axes.errorbar(at, middle, yerr=bars, fmt="o", color=colour, label=label, alpha=0.85, capsize=2)
    for names, colour in (_lines(), "#1f6f8b"), ((tuple(f"lasso, {n} runs" for n in LASSO),), "#b5651d"):
        for line in names:
            drawn = [points[name] for name in line if name in points]
            axes.plot([way.passes for way, _ in drawn], [mean.value for _, mean in drawn], color=colour, lw=1)
    for name, (way, mean) in points.items():
        if (name not in CROWDED and not name.endswith("runs")) or name.startswith("lasso"):
            at = ABOVE if name in (CHOSEN, "gates 3 + 3") else BESIDE
            axes.annotate(name, (way.passes, mean.value), xytext=at, textcoords="offset points", fontsize=8)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("passes over the whole text: forward + backward, each run with parts gone counted as one")
    axes.set_ylabel("LDS: rank correlation with what is measured when parts are taken away")
    families = ", ".join(dict.fromkeys(row.family for row in rows))
    models = ", ".join(dict.fromkeys(row["model"] for row in measured))
    axes.set_title(f"{models}, {len(rows)} prompts ({families}); bars: 95 %", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    try:
        figure.savefig(to, dpi=150)
    except OSError as error:
        given = error.strerror or str(error)
        expected = "room and permission to write it"
        raise InputError(f"--to {to}", expected=expected, given=given, way_out="Choose another path.") from error
    finally:
        pyplot.close(figure)


def _lines() -> tuple[tuple[str, ...], ...]:
    """Return which of ours are joined: each gates' estimate with what it becomes as runs are added."""
    return tuple(
        (first, *(f"gates {name} and {runs} runs" for runs in BUDGETS))
        for name, first in (("1 + 1", CHOSEN), ("3 + 3", "gates 3 + 3"))
    )
