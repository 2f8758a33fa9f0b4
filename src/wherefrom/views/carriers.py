"""Heads that carry, as text (floor 6): what knocking them out together did, beside random heads, and their scores.

Draws what `wherefrom.find_carriers` gave, at 80 columns or fewer; with fewer only the flowing text is broken earlier.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from wherefrom.readable import readable
from wherefrom.views.cells import bar, count, fitted, flow, percent, signed, solid
from wherefrom.views.terminal import WIDTH, PipeConsole

if TYPE_CHECKING:  # drawing needs no torch
    from wherefrom.evidence.carried import Carriers, Mean, Together

BAR = 8
NAME, VALUE, BETWEEN = 12, 7, 16
LISTED = 10
"""Heads of each set that are listed unless more are asked for."""
KNOCKED_OUT = {
    "zero": "their output is replaced by zero, at every position",
    "mean": "their output is replaced by its mean over the positions of the texts that they were found on",
    "reads": "no later position may read the place in them, and what is left of a row is renormalised",
}
DRAWN = {
    "layers": "each from the layer of a found one, or the nearest that has others left",
    "model": "from the whole model",
}
RATIO = "ratio: what the answers lose on the mean, over the mean size of what one loses or gains without others."
BRACKETS = "In brackets, from 5 cases on: 95 % of the means when cases and draws are drawn again (bootstrap)."
WHAT_IT_SAYS = (
    "A head that carries is one whose loss is felt here and not in ordinary text; heads that stand in for one another "
    "may not be felt one by one."
)
SCORES = (
    "first order: what the answer loses if the head may not read the place, estimated from one gradient. retrieval: "
    "share of the answer's tokens, of those in the place, that were written while the head's largest weight lay on "
    "that token there. weight: of the answer's rows on the place. induction: weight on what followed the same token "
    "before, in random tokens that come twice."
)


def carrier_lines(found: Carriers, *, top: int = LISTED, width: int = WIDTH) -> Iterator[Text]:
    """Yield heads that carry line by line, each at most 80 cells wide.

    Args:
        found: from `wherefrom.find_carriers`.
        top: how many heads of each set to list.
        width: cells of a line, where there are fewer than 80.
    """
    width = min(width, WIDTH)
    yield from _headline(found, width)
    yield Text()
    yield from _losses(found, width)
    yield Text()
    yield from _harm(found, width)
    yield Text()
    yield from _heads(found, top, width)
    yield Text()
    yield from _verdict(found, width)
    yield from flow(f"{RATIO} {_intervals(found)} {WHAT_IT_SAYS}", width, "dim")
    yield from flow(SCORES, width, "dim")
    yield from _cost(found, width)


def print_carriers(found: Carriers, *, top: int = LISTED, console: Console | None = None) -> None:
    """Print heads that carry; without colour when the output is not a terminal, or when NO_COLOR is set.

    Raises:
        OSError: the output cannot be written; a BrokenPipeError if its reader has gone.
    """
    out = console or PipeConsole(highlight=False)
    if out.width < 1:
        out.width = WIDTH
    for line in carrier_lines(found, top=top, width=out.width):
        out.print(line, soft_wrap=True)


def _headline(found: Carriers, width: int) -> Iterator[Text]:
    name = solid(fitted(found.model, min(len(found.model), 30), pad=False))
    kinds = [readable(family) for family in dict.fromkeys(found.families) if family]
    told = f" ({', '.join(kinds)})" if kinds else ""
    cases = f"found on {count(found.found_on, 'case')}, tested on {count(len(found.before), 'other')}{told}"
    first, *more = flow(f"{name} · {count(len(found.heads), 'head')}, numbered from 0; {cases}", width)
    first.stylize("bold", 0, len(name))
    yield from (first, *more)
    sizes = {own.by: len(own.heads) for own in found.sets}
    fewer = [f"{size} by {by}" for by, size in sizes.items() if size < found.count]
    most = count(max(sizes.values()), "head")
    up_to = "Up to " * (len(set(sizes.values())) > 1)
    yield from flow(f"{up_to}{most} knocked out together: {KNOCKED_OUT[found.how]}", width)
    if fewer:
        text = f"Of {count(found.count, 'head')} asked for, those with a score above 0 are taken: {', '.join(fewer)}."
        yield from flow(text, width)
    if found.left_out:
        yield from flow(f"Left out, as no head has such a score above 0: {', '.join(found.left_out)}.", width)


def _losses(found: Carriers, width: int) -> Iterator[Text]:
    draws = count(len(found.first.others), "draw")
    yield from flow(f"What the answers lose, {found.unit}, mean over {count(len(found.before), 'case')}", width, "bold")
    yield Text(
        f"{'found by':<{NAME}}{'lost':>{VALUE}}{'':{BETWEEN}}  {f'as many others, {draws}':<24} {'ratio':>5}", "dim"
    )
    means = [mean for own in found.sets for mean in (own.effect, own.others_effect)]
    largest = max(abs(number) for mean in means for number in mean if not math.isnan(number))
    for own in found.sets:
        yield _row(found, own, own.by, largest)
        parts = found.by_family(own)
        for family, part in parts.items() if len(parts) > 1 else ():
            yield _row(found, part, f" {readable(family) or 'no name'}", largest, "dim")
    sizes = ", ".join(solid(f"{_size(own)} ({own.by})") for own in found.sets)
    text = f"as many others: random ones, {DRAWN[found.among]}; mean size of what an answer loses or gains without them"
    yield from flow(f"{text}: {sizes}", width, "dim")


def _row(found: Carriers, own: Together, name: str, largest: float, style: str = "") -> Text:
    lost, others = (_effect(mean, largest, found.noise) for mean in (own.effect, own.others_effect))
    ratio = own.ratio
    between = "" if math.isnan(ratio.low) else f"[{_times(ratio.low)}, {_times(ratio.high)}]"
    return Text(f"{fitted(name, NAME)}{lost} {others} {_times(ratio.value):>5} {between}".rstrip(), style)


def _size(own: Together) -> str:
    return signed(own.others_size, own.others_size).removeprefix("+")


def _effect(mean: Mean, largest: float, noise: float) -> str:
    """Return a mean and its interval, with the decimals that the largest of the table needs."""
    if max(abs(number) for number in mean if not math.isnan(number)) < noise:
        return f"{'noise':>{VALUE}} {'':{BETWEEN}}"
    value, low, high = (signed(x, largest) if largest < 10 else f"{x:+.1f}".replace("-0.0", "0.0") for x in mean)
    between = "" if math.isnan(mean.low) else f"[{low}, {high}]"
    return f"{value:>{VALUE}} {between:<{BETWEEN}}"


def _times(ratio: float) -> str:
    """Return a ratio; how much larger than a thousand one is says nothing; nothing over nothing is none."""
    if math.isnan(ratio):
        return "-"
    if abs(ratio) > 999:
        return f"{ratio:g}" if math.isinf(ratio) else ">999" if ratio > 0 else "<-999"
    return f"{ratio:.0f}" if abs(ratio) >= 10 else f"{ratio:.1f}"


def _harm(found: Carriers, width: int) -> Iterator[Text]:
    cases = len(found.before)
    before = (
        f"With all heads {int(found.answered.sum())} of {cases} answers are the likeliest tokens, and ordinary text "
    )
    before += f"({found.ordinary_tokens} tokens) costs {found.ordinary_nats:.2f} nats a token."
    yield from flow("What is left, and what it does to text that needs no retrieval", width, "bold")
    yield from flow(before, width)
    yield Text(f"{'':<{NAME}}{'still the likeliest':>24}{'nats a token more':>26}", "dim")
    yield Text(f"{'found by':<{NAME}}{'found':>12}{'others':>12}{'found':>14}{'others':>12}", "dim")
    for own in found.sets:
        still = f"{int(own.answered.sum())} of {cases}"
        others = f"{own.others_answered.sum(axis=1).mean():.1f} of {cases}"
        more, of_others = own.ordinary, float(own.others_ordinary.mean())
        size = max(abs(more), abs(of_others))
        yield Text(
            f"{own.by:<{NAME}}{still:>12}{others:>12}{signed(more, size):>14}{signed(of_others, size):>12}".rstrip()
        )


def _heads(found: Carriers, top: int, width: int) -> Iterator[Text]:
    """Yield a row for each head of each set, those of the first set first."""
    place = {head: number for number, head in enumerate(found.heads)}
    listed = list(dict.fromkeys(head for own in found.sets for head in own.heads[:top]))
    largest = max(abs(float(found.scores["first order"][place[head]])) for head in listed)
    best = {own.by: set(own.heads) for own in found.sets}
    yield from flow("The heads that were knocked out, and their scores; * found by this one", width, "bold")
    heads = f"{'retrieval':>12}{'weight':>9}{'induction':>12}"
    yield Text(f"{'':<8}{'first order':>14}{'':{BAR + 2}}{heads}", "dim")
    for head in listed:
        value = float(found.scores["first order"][place[head]])
        marks = {name: "*" if head in best.get(name, ()) else " " for name in found.scores}
        row = Text(f"{f'L{head[0]} H{head[1]}':<8}{signed(value, largest) + marks['first order']:>14} ")
        row.append(f"{bar(abs(value), largest, BAR):<{BAR + 1}}", "red" if value >= 0 else "magenta")
        for name, room in (("retrieval", 12), ("weight", 9), ("induction", 12)):
            row.append(f"{_share(float(found.scores[name][place[head]])) + marks[name]:>{room}}")
        row.rstrip()
        yield row
    more = len({head for own in found.sets for head in own.heads} - set(listed))
    if more:
        yield from flow(f"and {more} more", width, "dim")


def _share(value: float) -> str:
    return "-" if math.isnan(value) else percent(value)


def _verdict(found: Carriers, width: int) -> Iterator[Text]:
    own, heads = found.first, count(len(found.first.heads), "head")
    if _is_told(found, own):
        lost = solid(f"{signed(own.effect.value, own.effect.value).removeprefix('+')} {found.unit}")
        text = f"{_on_these(found)} {heads} found by {own.by} the answers lose {lost} on the mean"
        if own.others_size > found.noise:
            text += f", {_times(own.ratio.value)} times {_size(own)}, the mean size of what one loses or gains without "
            text += "as many random others."
        else:
            text += "; without as many random others nothing changes beyond the noise."
        yield from flow(text, width, "bold")
    alike = [other.by for other in found.sets if not _is_told(found, other)]
    if alike:
        yield from flow(f"Not told from random heads by these cases: those found by {', '.join(alike)}.", width)


def _few(found: Carriers) -> bool:
    """Whether there are too few cases for an interval."""
    return math.isnan(found.first.effect.low)


def _on_these(found: Carriers) -> str:
    """Return how the closing sentence begins: of a few cases it says no more than what they show."""
    if not _few(found):
        return "Without"
    cases = len(found.before)
    return f"On {f'these {cases} cases' if cases > 1 else 'this case'}, without"


def _intervals(found: Carriers) -> str:
    cases = len(found.before)
    few = f"{count(cases, 'case')} {'are' if cases > 1 else 'is'} too few for an interval, which takes 5."
    return few if _few(found) else BRACKETS


def _is_told(found: Carriers, own: Together) -> bool:
    """Whether answers lose more without these heads than without others, at the low end of the interval."""
    least = own.ratio.value if math.isnan(own.ratio.low) else own.ratio.low
    return own.effect.value > found.noise and least > 1


def _cost(found: Carriers, width: int) -> Iterator[Text]:
    cost = found.cost
    text = f"{count(cost.forward, 'text')} read, {count(cost.backward, 'gradient')}, {cost.seconds:.1f} s; seed "
    text += f"{found.seed}; differences "
    yield from flow(f"{text}of one answer below {found.noise:.0e} are rounding", width, "dim")
