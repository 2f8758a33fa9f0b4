"""The terminal view (floor 6): a trace as text that reads well at 80 columns, with or without colour.

It draws only what a trace holds. Weight is blue and knock-out red (magenta where it is negative: the source spoke
against the target); a bar never stands alone, its number with its sign is beside it, so no legend of colours is
needed. Every line is broken here and not by the terminal, so that no token and no number is split.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from wherefrom.recording import gaps_in_words
from wherefrom.views.cells import (
    HARD_BLANK,
    bar,
    count,
    decimals,
    fitted,
    flow,
    named,
    percent,
    quoted,
    shortened,
    signed,
    solid,
)
from wherefrom.views.running import running_text

if TYPE_CHECKING:  # drawing a trace needs no torch
    from wherefrom.evidence.traced import CarriedSource, Carrier, Trace

WIDTH = 80
NARROWEST = 60
"""Rows of the tables are never narrower: with less room, only the flowing text is broken earlier."""
BAR = 12
TOKEN = 22
HEAVIEST = 3
"""So many of the largest weights are always in the table: the weights that would mislead."""
HEAD_FROM = 0.005
"""Nats below which a single head's cut is not listed."""
CARRIED_FROM = 0.05
"""Nats that a knock-out must reach for its heads to be cut, as `wherefrom.evidence.trace` has it."""
SINK_FROM = 0.25
"""A first token with a larger share of the weight gets a sentence of its own."""
BYTES = re.compile(r"bytes [0-9A-F]{2}(?: [0-9A-F]{2})*")
PART = re.compile(r"(\S+) (\d+)/(\d+)")
WHAT_WEIGHTS_DO_NOT_SAY = (
    "A weight says how values were mixed inside one head. It does not say what mattered: that depends on "
    "what was moved, and on every other head, the feed-forward layers and the residual stream after it. "
    "The knock-out is measured; the two often disagree."
)


class PipeConsole(Console):
    """Rich's console, except that a closed pipe is left to the caller: rich would end the process with code 1."""

    def on_broken_pipe(self) -> None:
        """Raise what is being handled, a BrokenPipeError."""
        raise  # rich calls this where it handles the error


@dataclass(frozen=True)
class _Page:
    """A trace and the room to draw it in."""

    trace: Trace
    top: int
    width: int

    @cached_property
    def listed(self) -> list[int]:
        """The sources in the table, by the size of their knock-out."""
        heaviest = (-self.trace.weights).argsort(kind="stable")[:HEAVIEST]
        order = [int(source) for source in self.trace.order]
        return [source for place, source in enumerate(order) if place < self.top or source in heaviest]

    @cached_property
    def others(self) -> list[int]:
        """The sources that could be read and are not in the table."""
        return sorted(set(self.trace.readable) - set(self.listed))

    @cached_property
    def most_nats(self) -> float:
        """The size of the largest knock-out, from which its column takes its decimals."""
        return float(abs(self.trace.knockouts.nats).max())

    @cached_property
    def most_head_nats(self) -> float:
        """The size of the largest cut of a single head."""
        heads = [head for carried in self.trace.carried for head in (*carried.carriers, carried.opposing) if head]
        return max((abs(head.nats) for head in heads), default=0.0)

    @cached_property
    def heads_cut(self) -> int:
        """How many heads are in scope; one that runs several times is one."""
        pairs = self.trace.scope.calls(self.trace.recording)
        return len({(call.layer, head) for call, heads in pairs for head in heads})

    @cached_property
    def number(self) -> int:
        """Cells of the knock-out column's numbers."""
        return max(6, *(len(self.nats(float(self.trace.nats[source]))) for source in self.listed))

    @cached_property
    def bar(self) -> int:
        """Cells of a full bar; the other 41 of a row and its number are the same at any width."""
        return min(BAR, (max(self.width, NARROWEST) - 41 - self.number) // 2)

    def nats(self, value: float) -> str:
        """Return nats with the decimals of the knock-out column."""
        return signed(value, self.most_nats)

    def head_nats(self, value: float) -> str:
        """Return nats with the decimals of the single heads."""
        return signed(value, self.most_head_nats)

    def flow(self, text: str, style: str = "", *, indent: str = "") -> Iterator[Text]:
        """Yield a text on lines that fit, broken at its blanks; what `_solid` made stays together."""
        yield from flow(text, self.width, style, indent=indent)


def trace_lines(trace: Trace, *, top: int = 10, width: int = WIDTH) -> Iterator[Text]:
    """Yield a trace line by line, each at most 80 cells wide.

    Args:
        trace: from `wherefrom.trace`.
        top: how many sources to list; the others are counted and summed in a line of their own. The sources
            with the three largest weights are always listed.
        width: cells of a line, where there are fewer than 80; rows of the tables need 60.
    """
    page = _Page(trace, top, min(width, WIDTH))
    yield from _headline(page)
    yield Text()
    yield from running_text(page.trace, page.width)
    yield from _predicted(page)
    yield Text()
    yield from _sources(page)
    yield Text()
    yield from _heads(page)
    yield Text()
    yield from _sink(page)
    yield from page.flow(WHAT_WEIGHTS_DO_NOT_SAY)
    if gaps := gaps_in_words(trace.recording.gaps):
        yield from page.flow(gaps)
    yield Text()
    yield from _cost(page)


def print_trace(trace: Trace, *, top: int = 10, console: Console | None = None) -> None:
    """Print a trace; without colour when the output is not a terminal, or when NO_COLOR is set.

    Raises:
        OSError: the output cannot be written; a BrokenPipeError if its reader has gone.
    """
    out = console or PipeConsole(highlight=False)
    if out.width < 1:  # COLUMNS=0, with which rich prints nothing
        out.width = WIDTH
    for line in trace_lines(trace, top=top, width=out.width):
        out.print(line, soft_wrap=True)


def _headline(page: _Page) -> Iterator[Text]:
    model = page.trace.recording.model
    name = fitted(model.name, min(cell_len(model.name), 30))
    source = page.trace.recording.source
    tokens = f"{len(page.trace.tokens)} tokens" if source is None else f"{len(source)} tokens read by its encoder"
    size = f"{tokens}, {count(model.layers, 'layer')} of {count(model.heads, 'head')}"
    first, *more = page.flow(f"{solid(name)} · {size}, numbered from 0")
    first.stylize("bold", 0, len(name))
    yield from (first, *more)


def _predicted(page: _Page) -> Iterator[Text]:
    trace, aim = page.trace, page.trace.aim
    likeliest = [f"{named(label)}{HARD_BLANK}{percent(p)}" for label, p in trace.predicted]
    when = "next" if trace.mask_id is None else f"at position {trace.position}"
    yield from page.flow(f"predicted {when}: {', '.join(likeliest)}", indent="  ")
    label, before = named(aim.label), trace.knockouts.before
    if aim.against_label is not None:
        lead = solid(f"{signed(before, 1)} nats")
        yield from page.flow(f"target: the lead of {label} over {named(aim.against_label)}, {lead}", indent="  ")
    else:
        base = solid(f"{percent(aim.probability)} ({signed(before, 1)} nats)")
        yield from page.flow(f"target: {label}, {base}", indent="  ")
    if trace.actual_next is not None:
        yield Text(f"  (what comes after position {trace.position} was not read)", "dim")


def _sources(page: _Page) -> Iterator[Text]:
    trace = page.trace
    own = named(trace.tokens[trace.position].label)
    of = " of the source text" if trace.scope.kind == "cross" else ""
    title = f"What position {trace.position}, {own}, read{of}: its weight, and what cutting it costs"
    yield from page.flow(title, "bold")
    yield _beside(page, f"{'at':>6}  {'source':<{TOKEN}}  weight", "knock-out, nats", 42 + page.bar)
    for source in page.listed:
        yield _source_row(page, source)
    if page.others:
        yield _others_row(page, page.others)
    yield from page.flow(f"weight: {trace.scope.describe(trace.recording)}", "dim")
    loser = "the lead" if trace.aim.against_label is not None else "the log-probability"
    where = "this head" if page.heads_cut == 1 else f"all {page.heads_cut} heads"
    of = named(trace.aim.label)
    again = any(call.repeat for call, _ in trace.scope.calls(trace.recording))
    where += ", each time it runs" if again and page.heads_cut == 1 else ", each time they run" * again
    way = f" (way: {trace.knockouts.way})" if trace.knockouts.way else ""
    yield from page.flow(f"knock-out: what {loser} of {of} loses when the edge is cut in {where}{way}", "dim")
    yield from _parts_explained(page)


def _beside(page: _Page, left: str, right: str, start: int) -> Text:
    """Return a dim line with its second part at a column, or earlier where it would not fit."""
    start = min(start, max(page.width, NARROWEST) - cell_len(right))
    return Text(f"{left:<{start}}{right}", "dim")


def _others_row(page: _Page, others: list[int]) -> Text:
    """Return the line that says what the table leaves out."""
    weight, largest = float(page.trace.weights[others].sum()), float(abs(page.trace.nats[others]).max())
    label = "1 other" if len(others) == 1 else f"{len(others)} others together"
    digits = decimals(page.most_nats)
    size = f"{largest:.1e}" if digits is None else f"{largest:.{max(4, digits + 1)}f}"
    rest = f"{'' if len(others) == 1 else 'each '}within ±{size}"
    return _beside(page, f"{'':>6}  {label:<{TOKEN}} {percent(weight):>6}", rest, 41 + page.bar)


def _source_row(page: _Page, source: int) -> Text:
    trace = page.trace
    itself = " itself" if trace.is_own(source) else ""
    label = fitted(quoted(trace.source_tokens[source].label), TOKEN - len(itself), pad=False) + itself
    weight, nats = float(trace.weights[source]), float(trace.nats[source])
    row = Text(f"{source:>6}  {set_cell_size(label, TOKEN)} {percent(weight):>6} ")
    row.append(bar(weight, float(trace.weights.max()), page.bar).ljust(page.bar), "blue")
    number = page.nats(nats)
    row.append(f"  {number:>{page.number}} ")
    if number[0] in "+-":  # what rounds to zero has no bar
        row.append(bar(abs(nats), page.most_nats, page.bar), "red" if nats >= 0 else "magenta")
    return row


def _parts_explained(page: _Page) -> Iterator[Text]:
    """Yield a line on labels of tokens that are no whole characters, if such labels are shown."""
    trace = page.trace
    at = [*page.listed, *(carried.source for carried in trace.carried)]
    shown = [*(trace.source_tokens[place] for place in at), trace.tokens[trace.position]]
    broken = [token.label for token in shown if token.data and not token.text]
    alone = (*(label for label, _ in trace.predicted), trace.aim.label, trace.aim.against_label)
    said = []
    part = next((found for label in broken if (found := PART.search(label))), None)
    if part:
        said.append(f"{part[0]} is token {part[2]} of the {part[3]} that make up one character")
    lone = next((label for label in (*broken, *alone) if label and BYTES.fullmatch(label)), None)
    if lone:
        said.append(f"{shortened(lone)[1:-1]} is less than a whole character")
    if said:
        yield from page.flow("; ".join(said), "dim")


def _heads(page: _Page) -> Iterator[Text]:
    if not page.trace.carried:
        asked = page.most_nats >= CARRIED_FROM
        why = "none was asked for" if asked else f"no knock-out reaches {CARRIED_FROM} nats"
        yield from page.flow(f"No head was cut alone: {why}.", "dim")
        return
    yield from page.flow("Largest cuts of one head alone: nats (the head's weight)", "bold")
    for carried in page.trace.carried:
        yield from _carried(page, carried)
    heads = [head for carried in page.trace.carried for head in _listed_heads(carried)]
    name = f"L{heads[0].layer} H{heads[0].head} is head {heads[0].head} of layer {heads[0].layer}. " if heads else ""
    yield from page.flow(f"{name}One head's cut need not show what several heads do together.", "dim")


def _listed_heads(carried: CarriedSource) -> list[Carrier]:
    return [head for head in carried.carriers if abs(head.nats) >= HEAD_FROM]


def _carried(page: _Page, carried: CarriedSource) -> Iterator[Text]:
    """Yield one source's heads in columns, then what the others, and all of them, add up to."""
    indent = " " * (8 + TOKEN)
    heads = [_carrier(page, head) for head in _listed_heads(carried)]
    cells = max(map(len, heads), default=0)
    columns = max(1, (max(page.width, NARROWEST) - len(indent) + 2) // (cells + 2))
    starts = range(0, len(heads), columns)
    lines = ["  ".join(head.ljust(cells) for head in heads[at : at + columns]).rstrip() for at in starts]
    lines = [indent + line for line in lines]
    for sentence in _sums(page, carried, len(heads)):
        lines += [line.plain for line in page.flow(sentence, indent=indent)]
    label = fitted(quoted(page.trace.source_tokens[carried.source].label), TOKEN - 1)
    yield Text(f"{carried.source:>6}  {label} {lines[0].removeprefix(indent)}")
    yield from map(Text, lines[1:])


def _sums(page: _Page, carried: CarriedSource, listed: int) -> Iterator[str]:
    every = len(carried.carriers) + carried.others
    total = sum(head.nats for head in carried.carriers) + carried.others_nats
    rest, others = every - listed, total - sum(head.nats for head in _listed_heads(carried))
    if carried.carriers and not listed:
        yield f"no head that goes its way reaches {HEAD_FROM}"
    elif rest and listed:
        sentence = f"the other {count(rest, 'head')} add up to {page.nats(others)}"
        if rest == 1:
            sentence = f"the other head: {page.head_nats(others)}"
        elif carried.opposing is not None and abs(carried.opposing.nats) >= HEAD_FROM:
            head = solid(" ".join(_carrier(page, carried.opposing).split()))
            sentence += f"; among them {head} goes furthest the other way"
        yield sentence
    if every > 1:
        of = page.nats(float(page.trace.nats[carried.source]))
        yield f"{every} heads, each alone, add up to {page.nats(total)} of {of}"


def _carrier(page: _Page, head: Carrier) -> str:
    name = f"L{head.layer} H{head.head}"
    return f"{name:<7} {page.head_nats(head.nats):>5} ({percent(head.weight)})"


def _sink(page: _Page) -> Iterator[Text]:
    """Yield a plain sentence or two about the first token when it swallows the weight."""
    share, nats = float(page.trace.weights[0]), float(page.trace.nats[0])
    if share < SINK_FROM:
        return
    text = f"The first token, {named(page.trace.source_tokens[0].label)}, takes {percent(share)} of the weight. "
    rest = "any heads rest on the first token whatever it says (an attention sink)"
    cut = f"measured knock-out is {solid(f'{page.nats(nats)} nats')}"
    if abs(nats) >= 0.1 and abs(nats) >= 0.1 * page.most_nats:
        text += (
            f"That weight alone is no evidence: m{rest}. Its {cut}; such a cut also spreads a large share of the "
            "weight over the other sources, so it measures both."
        )
    else:
        spread = ": what it held is then spread over the other sources" if abs(nats) >= CARRIED_FROM else ""
        text += f"M{rest}, so that weight is no evidence that it mattered. Its {cut}{spread}."
    yield from page.flow(text)
    yield Text()


def _cost(page: _Page) -> Iterator[Text]:
    trace, cost, calls = page.trace, page.trace.cost, len(page.trace.recording.calls)
    sources = count(len(trace.readable), "source")
    text = (
        f"read and recorded in {cost.record_seconds:.2f} s ({cost.recording_bytes / 1e6:.1f} MB; {calls} of "
        f"{count(calls, 'call')} checked, largest error {trace.largest_check_error:.0e}); {sources} "
        f"cut in {cost.knockout_seconds:.2f} s"
    )
    heads = sum(len(carried.carriers) + carried.others for carried in trace.carried)
    if heads:
        text += f", {count(heads, 'single head')} in {cost.head_seconds:.2f} s"
    yield from page.flow(text, "dim")
