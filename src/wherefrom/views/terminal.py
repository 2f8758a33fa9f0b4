"""The terminal view (floor 6): a trace as text that reads well at 80 columns, with or without colour.

It draws only what a trace holds. Weight is blue and knock-out red (magenta where it is negative: the source spoke
against the target); a bar never stands alone, its number is beside it. Every line is broken here and not by
the terminal, so that no token and no number is split.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from wherefrom.tokens import readable

if TYPE_CHECKING:  # drawing a trace needs no torch
    from wherefrom.evidence.trace import CarriedSource, Carrier, Trace

WIDTH = 80
BAR = 12
TOKEN = 22
LABEL = 40
"""No label in running text is wider: vocabularies hold lines of 80 signs as one token."""
SINK_FROM = 0.25
"""A first token with a larger share of the weight gets a sentence of its own."""
EIGHTHS = " ▏▎▍▌▋▊▉"
HARD_BLANK = "\u00a0"
"""Stands for a blank at which no line is broken; labels never hold one, `readable` escapes it."""
WHAT_WEIGHTS_DO_NOT_SAY = (
    "A weight says how values were mixed inside one head. It does not say what mattered: that depends on "
    "what was moved, and on every other head, the feed-forward layers and the residual stream after it. "
    "The knock-out is measured; the two often disagree."
)


def trace_lines(trace: Trace, *, top: int = 10) -> Iterator[Text]:
    """Yield a trace line by line, each at most 80 cells wide.

    Args:
        trace: from `wherefrom.trace`.
        top: how many sources to list; the others are counted and summed in a line of their own. The source
            with the largest weight is always listed.
    """
    yield _headline(trace)
    yield Text()
    yield from _prompt(trace)
    yield from _predicted(trace)
    yield Text()
    yield from _sources(trace, top)
    yield Text()
    yield from _heads(trace)
    yield Text()
    yield from _sink(trace)
    yield from _flow(WHAT_WEIGHTS_DO_NOT_SAY)
    yield Text()
    yield from _cost(trace)


def print_trace(trace: Trace, *, top: int = 10, console: Console | None = None) -> None:
    """Print a trace; without colour when the output is not a terminal, or when NO_COLOR is set."""
    out = console or Console(highlight=False)
    for line in trace_lines(trace, top=top):
        out.print(line, soft_wrap=True)


def quoted(label: str) -> str:
    """Return a token's label between quotes, so that its blanks are seen."""
    return f'"{label}"'


def _headline(trace: Trace) -> Text:
    model = trace.recording.model
    size = f"{len(trace.tokens)} tokens, {model.layers} layers of {model.heads} heads, numbered from 0"
    return Text.assemble((_fitted(model.name, min(cell_len(model.name), 30)), "bold"), f" · {size}")


def _prompt(trace: Trace) -> Iterator[Text]:
    """Yield the prompt's end, about three lines of it; the strongest sources stand out."""
    pieces = _pieces(trace)
    first, room = len(pieces), 200
    while first > 0 and room >= cell_len(pieces[first - 1][0]):
        first -= 1
        room -= cell_len(pieces[first][0])
    words = [("… ", "dim")] if first else []
    words += [*pieces[first:], (" → ", "dim"), (_shortened(trace.aim.label), "bold")]
    line = Text("  ")
    for word, style in words:
        if line.cell_len + cell_len(word) > WIDTH:
            yield line
            line = Text("  ")
        line.append(word, style)
    yield line


def _pieces(trace: Trace) -> list[tuple[str, str]]:
    """Return the prompt as (text, style), a token each; tokens that share a character show it once."""
    strong = {carried.source for carried in trace.carried}
    text, pieces, end = trace.tokens.text, [], 0
    for token in trace.tokens:
        start, stop = max(end, token.span[0]), token.span[1]
        if stop > start:
            label = _fitted(readable(text[start:stop]), LABEL, pad=False)
            pieces.append((label, "bold red" if token.position in strong else ""))
            end = stop
    return pieces


def _predicted(trace: Trace) -> Iterator[Text]:
    aim = trace.aim
    likeliest = [f"{_named(label)}{HARD_BLANK}{_percent(p)}" for label, p in trace.predicted]
    yield from _flow(f"predicted next: {', '.join(likeliest)}", indent="  ")
    label = _named(aim.label)
    if aim.against_label is not None:
        lead = _solid(f"{trace.knockouts.before:+.2f} nats")
        yield from _flow(f"target: the lead of {label} over {_named(aim.against_label)}, {lead}", indent="  ")
    elif aim.target.id != trace.recording.prediction(trace.position).ids[0]:
        yield from _flow(f"target: {label}, {_percent(aim.probability)}", indent="  ")
    if trace.actual_next is not None:
        yield Text(f"  (what comes after position {trace.position} was not read)", "dim")


def _sources(trace: Trace, top: int) -> Iterator[Text]:
    listed = [int(source) for source in trace.order[:top]]
    heaviest = int(trace.weights.argmax())
    if heaviest not in listed:
        listed.append(heaviest)  # the weight that would mislead is always beside its knock-out
    own = _named(trace.tokens[trace.position].label)
    yield from _flow(f"What position {trace.position}, {own}, read: its weight, and what cutting it costs", "bold")
    yield Text(f"{'at':>6}  {'source':<{TOKEN}}  {'weight':<{8 + BAR}}  knock-out, nats", "dim")
    most_weight, most_nats = float(trace.weights.max()), float(abs(trace.nats).max())
    for source in listed:
        yield _source_row(trace, source, most_weight, most_nats)
    others = sorted(set(range(len(trace.tokens))) - set(listed))
    if others:
        yield _others_row(trace, others)
    yield from _flow(f"weight: {trace.scope.describe(trace.recording)}", "dim")
    loser = "the lead" if trace.aim.against_label is not None else "the log-probability"
    of = _named(trace.aim.label)
    yield from _flow(f"knock-out: what {loser} of {of} loses when the edge is cut in all of them", "dim")


def _others_row(trace: Trace, others: list[int]) -> Text:
    """Return the line that says what the table leaves out."""
    weight, largest = float(trace.weights[others].sum()), float(abs(trace.nats[others]).max())
    label = "1 other" if len(others) == 1 else f"{len(others)} others together"
    rest = f"{'' if len(others) == 1 else 'each '}within ±{largest:.4f}"
    return Text(f"{'':>6}  {label:<{TOKEN}} {_percent(weight):>6} {'':<{BAR}}   {rest}", "dim")


def _source_row(trace: Trace, source: int, most_weight: float, most_nats: float) -> Text:
    itself = " itself" if source == trace.position else ""
    label = _fitted(quoted(trace.tokens[source].label), TOKEN - len(itself), pad=False) + itself
    weight, nats = float(trace.weights[source]), float(trace.nats[source])
    row = Text(f"{source:>6}  {set_cell_size(label, TOKEN)} {_percent(weight):>6} ")
    row.append(_bar(weight, most_weight).ljust(BAR), "blue")
    row.append(f"  {_signed(nats):>6} ")
    row.append(_bar(abs(nats), most_nats), "red" if nats >= 0 else "magenta")
    return row


def _heads(trace: Trace) -> Iterator[Text]:
    if not trace.carried:
        yield Text("No head was cut alone: none was asked for, or no knock-out reaches 0.05 nats.", "dim")
        return
    yield Text("Heads that carried them: the edge cut in one head alone, nats (its weight)", "bold")
    for carried in trace.carried:
        yield from _carried(trace, carried)
    yield from _flow(
        "L24 H4 is head 4 of layer 24. Heads stand in for one another, so what each costs alone need not add up "
        "to what the source costs.",
        "dim",
    )


def _carried(trace: Trace, carried: CarriedSource) -> Iterator[Text]:
    heads = [_carrier(carrier) for carrier in carried.carriers]
    lines = ["  ".join(heads[start : start + 2]).rstrip() for start in range(0, len(heads), 2)]
    if carried.others:
        lines.append(f"the other {carried.others} heads add up to {_signed(carried.others_nats)}")
    if carried.opposing is not None and abs(carried.opposing.nats) >= 0.005:
        lines.append(f"{_carrier(carried.opposing).rstrip()} goes furthest the other way")
    margin = f"{carried.source:>6}  {_fitted(quoted(trace.tokens[carried.source].label), TOKEN)} "
    for line in lines:
        yield Text(margin + line)
        margin = " " * (9 + TOKEN)


def _carrier(carrier: Carrier) -> str:
    return f"{f'L{carrier.layer} H{carrier.head}':<7} {_signed(carrier.nats):>5} {f'({_percent(carrier.weight)})':<9}"


def _sink(trace: Trace) -> Iterator[Text]:
    """Yield a plain sentence about the first token when it swallows the weight."""
    share, nats = float(trace.weights[0]), float(trace.nats[0])
    if share < SINK_FROM:
        return
    first = _named(trace.tokens[0].label)
    spread = ": what it held is then spread over the other sources" if abs(nats) >= 0.05 else ""
    yield from _flow(
        f"The first token, {first}, takes {_percent(share)} of the weight. Many heads rest on the first token "
        "whatever it says (an attention sink), so that weight is no evidence that it mattered. Its measured "
        f"knock-out is {_signed(nats)} nats{spread}."
    )
    yield Text()


def _cost(trace: Trace) -> Iterator[Text]:
    cost, calls = trace.cost, len(trace.recording.calls)
    text = (
        f"read and recorded in {cost.record_seconds:.2f} s ({cost.recording_bytes / 1e6:.1f} MB; {calls} of "
        f"{calls} calls checked, largest error {trace.largest_check_error:.0e}); {len(trace.nats)} sources "
        f"cut in {cost.knockout_seconds:.2f} s"
    )
    heads = sum(len(carried.carriers) + carried.others for carried in trace.carried)
    if heads:
        text += f", {heads} single heads in {cost.head_seconds:.2f} s"
    yield from _flow(text, "dim")


def _flow(text: str, style: str = "", *, indent: str = "") -> Iterator[Text]:
    """Yield a text on lines of at most 80 cells, broken at its blanks; what `_solid` made stays together."""
    line = ""
    for word in text.split(" "):
        longer = f"{line} {word}" if line else indent + word
        if line and cell_len(longer) > WIDTH:
            yield Text(line.replace(HARD_BLANK, " "), style)
            longer = indent + word
        line = longer
    yield Text(line.replace(HARD_BLANK, " "), style)


def _solid(text: str) -> str:
    return text.replace(" ", HARD_BLANK)


def _shortened(label: str) -> str:
    return _fitted(quoted(label), LABEL, pad=False)


def _named(label: str) -> str:
    """Return a label as it stands in running text: quoted, not too wide, on one line."""
    return _solid(_shortened(label))


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%" if share >= 0.0005 or share == 0 else "<0.1%"


def _signed(nats: float) -> str:
    return f"{nats:+.2f}" if abs(nats) >= 0.005 else "0.00"


def _bar(value: float, largest: float) -> str:
    eighths = round(8 * BAR * value / largest) if largest > 0 else 0
    return ("█" * (eighths // 8) + EIGHTHS[eighths % 8]).rstrip()


def _fitted(label: str, width: int, *, pad: bool = True) -> str:
    """Return a label in at most (with `pad`, exactly) `width` cells; what does not fit is cut, visibly."""
    if cell_len(label) > width:
        label = set_cell_size(label, width - 6).rstrip() + "…" + _end(label, 5)
    return set_cell_size(label, width) if pad else label


def _end(label: str, width: int) -> str:
    end = ""
    for character in reversed(label):
        if cell_len(character + end) > width:
            break
        end = character + end
    return end
