"""Routes from a passage to an answer, as text (floor 6): a tree whose root is the answer, and what it explains.

Draws what `wherefrom.trace_routes` gave, at 80 columns or fewer, with or without colour. A line is a place that is
read; what that place itself reads stands below it, further in, and every branch ends in the passage.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from wherefrom.readable import readable
from wherefrom.views.answered import WITHIN, answer_line, cost_line
from wherefrom.views.cells import count, fitted, flow, quoted, shortened, signed, solid
from wherefrom.views.terminal import WIDTH, PipeConsole

if TYPE_CHECKING:  # drawing needs no torch
    from wherefrom.evidence.routed import RouteTrace, Step

NUMBERS = 17
"""Cells of effect and share."""
LEAST = 14
"""Cells of a place where heads stand beside it; where fewer are left, they are left out."""
FEWEST = 8
"""Cells of a place in any case: in a narrower window lines are longer than it."""
HEADS = 30
"""Cells of heads."""
PASSAGE = "the passage"
NOT_SUMS = (
    "Effects do not add up: routes that carry the same stand in for each other, and what one carries another may "
    "correct. So all of them are knocked out together, too."
)
ABOVE = 1.05
"""From this share on the routes do more than the whole."""
MORE = "That is more than the total effect, in which all other ways are cut as well: those work the other way round."
AGAINST = "The passage speaks against the answer."
OF_THAT = (
    "Shares are of this effect below 0: a route with a positive share speaks against it too, one with a negative share "
    "for it."
)
RELAYS = (
    ". Of the passage, that of the route alone which begins there; of a relay, that of all which the passage sends "
    "there on any way and which goes on by the steps above it"
)
FIRST_TOKEN = (
    "The passage holds the first token, on which many heads rest whatever it says: to cut it also takes that rest away."
)


def route_lines(trace: RouteTrace, *, width: int = WIDTH) -> Iterator[Text]:
    """Yield routes line by line, each at most 80 cells wide.

    Args:
        trace: from `wherefrom.trace_routes`.
        width: cells of a line, where there are fewer than 80.
    """
    width = min(width, WIDTH)
    yield from _headline(trace, width)
    yield Text()
    yield from _passage(trace, width)
    yield from answer_line(trace, width)
    yield Text()
    yield from _total(trace, width)
    if trace.routes:
        yield Text()
        yield from _tree(trace, width)
        yield Text()
        yield from _explained(trace, width)
    yield from _notes(trace, width)
    yield from cost_line(trace, width)


def print_routes(trace: RouteTrace, *, console: Console | None = None) -> None:
    """Print routes; without colour when the output is not a terminal, or when NO_COLOR is set.

    Raises:
        OSError: the output cannot be written; a BrokenPipeError if its reader has gone.
    """
    out = console or PipeConsole(highlight=False)
    if out.width < 1:
        out.width = WIDTH
    for line in route_lines(trace, width=out.width):
        out.print(line, soft_wrap=True)


def _headline(trace: RouteTrace, width: int) -> Iterator[Text]:
    name = fitted(trace.model, min(cell_len(trace.model), 30))
    texts = f"{count(trace.first, 'token')} of prompt, {count(len(trace.tokens) - trace.first, 'token')} of answer"
    first, *more = flow(f"{solid(name)} · {texts}", width)
    first.stylize("bold", 0, len(name))
    yield from (first, *more)


def _passage(trace: RouteTrace, width: int) -> Iterator[Text]:
    passage = trace.passage
    name = "" if passage.name is None else f" ({passage.name})"
    where = f"token {passage.start}" if len(passage) == 1 else f"tokens {passage.start} to {passage.stop - 1}"
    found = ", the strongest by its gate" if trace.found_by == "gate" else ""
    yield from flow(f"passage: {solid(shortened(readable(passage.label)))}{name} · {solid(where)}{found}", width)


def _total(trace: RouteTrace, width: int) -> Iterator[Text]:
    if not trace.reached:
        yield from flow(
            f"Nothing of the passage reached the answer: when no later token may read it, the {trace.unit} changes by "
            f"less than {trace.noise:.0e}, {WITHIN}.",
            width,
            "bold",
        )
        return
    yield from flow(
        f"When no later token may read the passage, the {trace.unit} {'falls' if trace.total > 0 else 'rises'} by "
        f"{abs(trace.total):.2f}, from {trace.value:+.2f} to {trace.value - trace.total:+.2f}: the total effect.",
        width,
        "bold",
    )
    if trace.against:
        yield from flow(AGAINST if trace.cancels else f"{AGAINST} {OF_THAT}", width)
    if trace.cancels:
        largest = max(abs(step.effect) for step in trace.steps)
        text = f"The total effect is small beside what single steps do, up to {largest:.2f}, and these cancel: "
        yield from flow(f"{text}shares of it would say little, and none are told.", width)
    if not trace.routes:
        left = signed(trace.largest_left, trace.largest_left).removeprefix("+")
        yield from flow(
            f"No route carries a share worth naming: {count(trace.measured, 'route')} of up to "
            f"{count(trace.depth, 'step')} measured, {_within(trace.measured)} ±{left}.",
            width,
        )


def _tree(trace: RouteTrace, width: int) -> Iterator[Text]:
    rows = list(trace.tree())
    deepest = max(deep for deep, _ in rows)
    wanted = max(cell_len(_label(trace, number)) + 2 * deep for deep, number in rows)
    room = width - NUMBERS
    heads = HEADS if room - HEADS >= max(LEAST, 2 * deepest + 8) else 0
    label = min(wanted, max(room - heads - 1, 2 * deepest + FEWEST))
    yield Text(f"{'effect':>8} {'share':>6}  {'the answer reads':<{label}}{' heads, each alone' * (heads > 0)}", "dim")
    stems = _stems([deep for deep, _ in rows])
    most = max(abs(step.effect) for step in trace.steps)
    for (_, number), stem in zip(rows, stems, strict=True):
        step = trace.steps[number]
        place = fitted(_label(trace, number), label - cell_len(stem), pad=False)
        style = "red" if step.effect > 0 else "magenta"
        share = trace.of_total(step.effect)
        row = Text(f"{signed(step.effect, most):>8}", style)
        row.append(f" {'' if share is None else f'{share:.0%}':>6}  ", "")
        row.append(stem, "dim")
        row.append(set_cell_size(place, label - cell_len(stem)), "bold" if step.source == 0 else "")
        if heads:
            row.append(f" {_heads(step, most, width - NUMBERS - label - 1)}", "dim")
        row.rstrip()
        yield row


def _label(trace: RouteTrace, number: int) -> str:
    step = trace.steps[number]
    place = trace.places[step.source]
    return PASSAGE if step.source == 0 else f"{place.start} {quoted(readable(place.label))}"


def _stems(depths: list[int]) -> list[str]:
    """Return the lines that tie each row of a tree to the one above it, two cells a depth."""
    found = []
    for row, deep in enumerate(depths):
        stem = ""
        for level in range(1, deep + 1):
            later = next((other for other in depths[row + 1 :] if other <= level), 0)
            goes_on = later == level
            stem += ("├ " if goes_on else "└ ") if level == deep else ("│ " if goes_on else "  ")
        found.append(stem)
    return found


def _heads(step: Step, most: float, room: int) -> str:
    """Return the heads of a step that fit, those of the largest measured effects first; estimates behind them."""
    order = sorted(step.heads, key=lambda own: (math.isnan(own.effect), -abs(own.effect)))
    found = ""
    for own in order:
        number = f"≈{signed(own.price, most)}" if math.isnan(own.effect) else signed(own.effect, most)
        longer = f"{found}{', ' if found else ''}L{own.layer} H{own.head} {number}"
        if cell_len(longer) > room:
            break
        found = longer
    return found


def _explained(trace: RouteTrace, width: int) -> Iterator[Text]:
    joint, kept, named = (_of_total(trace, effect) for effect in (trace.joint, trace.kept, trace.named))
    several = len(trace.routes) > 1
    routes, they = (f"The {len(trace.routes)} routes", "they keep") if several else ("The one route", "it keeps")
    together = " together" * several
    of_it = " of the total effect" * (trace.share is not None)
    yield from flow(f"{routes} knocked out{together}: {joint}{of_it}. Left alone {they} {kept}.", width, "bold")
    if (trace.share or 0.0) > ABOVE:
        yield from flow(MORE, width)
    if not math.isnan(trace.named):
        yield from flow(f"Knocked out{together} in the named heads of each step alone: {named}.", width)


def _of_total(trace: RouteTrace, effect: float) -> str:
    share = trace.of_total(effect)
    return solid(f"{effect:+.2f}" + ("" if share is None else f", {share:.0%}"))


def _notes(trace: RouteTrace, width: int) -> Iterator[Text]:
    if not trace.reached:
        return
    if trace.passage.start == 0:
        yield from flow(FIRST_TOKEN, width)
    if not trace.routes:
        return
    yield from flow(
        f"effect: what the {trace.unit} loses, measured by a path knock-out{RELAYS * (len(trace.places) > 2)}.",
        width,
        "dim",
    )
    if any(step.heads for step in trace.steps):
        guess = any(math.isnan(own.effect) for step in trace.steps for own in step.heads)
        text = "heads: those of the largest effect to first order; the step knocked out in each alone"
        yield from flow(f"{text}{', ≈ estimated and not run' * guess}.", width, "dim")
    left = trace.measured - len(trace.routes)
    if left:
        size = signed(trace.largest_left, 1.0).removeprefix("+")
        most = f"; {trace.most} are shown at most" * (len(trace.routes) == trace.most)
        yield from flow(f"{count(left, 'other route')} measured, {_within(left)} ±{size}{most}.", width, "dim")
    if len(trace.routes) > 1:
        yield from flow(NOT_SUMS, width, "dim")


def _within(routes: int) -> str:
    return "each within" if routes > 1 else "within"
