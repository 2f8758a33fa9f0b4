"""What an answer drew on, as text (floor 6): the prompt with its passages coloured, a table, and how sure it is.

Draws what `wherefrom.trace_answer` gave, at 80 columns or fewer, with or without colour: red is evidence for the
answer, magenta evidence against it; the numbers with their signs are in the table, so no legend of colours is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from wherefrom.readable import LEFT_TO_RIGHT_MARK, readable
from wherefrom.views.cells import (
    bar,
    count,
    fitted,
    flow,
    isolated,
    percent,
    quoted,
    shortened,
    signed,
    solid,
    words,
)
from wherefrom.views.terminal import WIDTH, PipeConsole

if TYPE_CHECKING:  # drawing needs no torch
    from wherefrom.evidence.answered import AnswerTrace, Lens
    from wherefrom.evidence.routed import RouteTrace

LABEL = 26
"""Cells of a passage's beginning, where there is room for it."""
LEAST = 12
"""With less room than that for it, the bars are left out."""
BAR = 8
CARRIED = 2
"""Passages whose heads are named."""
SHOWN = 1200
"""Characters of the prompt that are drawn; of a longer one the passages of the table alone."""
STRONG = ("", "red", "bold red")
AGAINST = ("", "magenta", "bold magenta")
LENSES = ("weight", "moved", "attribution", "closed form", "gate", "direct")
SHOWN_LENSES = ("weight", "attribution", "gate")
"""Those that are shown unless others are asked for."""
SHORT = {"attribution": "gradient", "closed form": "closed"}
"""Heads of columns that are shorter than the lens's name."""
NO_DIRECTION = ("weight", "moved")
WITHIN = "within noise"
EVERYWHERE = "all layers and heads"
WHAT_IT_IS = {
    "deletion": "its tokens are taken out of the text, and the model reads the rest afresh",
    "total": "no later token may read it",
    "direct": "the answer's tokens may not read it; what others gathered from it stays",
}
FIRST_TOKEN = (
    "The passage with the first token: many heads rest on that token whatever it says. To take it away takes that rest "
    "away too, and no gate is on it."
)
NOT_PROOF = (
    "Estimates are first order: what a small step says of a large one. Two passages that say the same stand in for "
    "each other, so that neither alone is missed."
)


def answer_lines(
    trace: AnswerTrace,
    *,
    top: int = 10,
    lenses: Sequence[str] = SHOWN_LENSES,
    carried: int = CARRIED,
    width: int = WIDTH,
) -> Iterator[Text]:
    """Yield a trace of an answer line by line, each at most 80 cells wide.

    Args:
        trace: from `wherefrom.trace_answer`.
        top: how many passages to list, by the size of their evidence; those that weights point at are always listed.
        lenses: which of them to show, of `LENSES`; of one that was not run the reason is told.
        carried: for how many of the strongest passages the heads are named that carried them.
        width: cells of a line, where there are fewer than 80.
    """
    width = min(width, WIDTH)
    yield from _headline(trace, width)
    yield Text()
    yield from _prompt(trace, width)
    yield from answer_line(trace, width)
    yield Text()
    yield from _table(trace, top, lenses, width)
    yield Text()
    yield from _verdict(trace, width)
    yield from _carried(trace, carried, width)
    yield Text()
    yield from _sure(trace, width)
    yield from flow(NOT_PROOF, width, "dim")
    yield from cost_line(trace, width)


def print_answer(
    trace: AnswerTrace,
    *,
    top: int = 10,
    lenses: Sequence[str] = SHOWN_LENSES,
    carried: int = CARRIED,
    console: Console | None = None,
) -> None:
    """Print a trace of an answer; without colour when the output is not a terminal, or when NO_COLOR is set.

    The arguments are those of `answer_lines`.

    Raises:
        OSError: the output cannot be written; a BrokenPipeError if its reader has gone.
    """
    out = console or PipeConsole(highlight=False)
    if out.width < 1:
        out.width = WIDTH
    for line in answer_lines(trace, top=top, lenses=lenses, carried=carried, width=out.width):
        out.print(line, soft_wrap=True)


def _headline(trace: AnswerTrace, width: int) -> Iterator[Text]:
    name = fitted(trace.model, min(cell_len(trace.model), 30))
    made = f"{count(trace.first, 'token')} of prompt in {count(len(trace.passages), _unit(trace))}"
    answer = f"{count(len(trace.tokens) - trace.first, 'token')} of answer"
    first, *more = flow(f"{solid(name)} · {made}, {answer}", width)
    first.stylize("bold", 0, len(name))
    yield from (first, *more)


def _unit(trace: AnswerTrace) -> str:
    return trace.by if trace.by in ("token", "word", "sentence", "line", "paragraph", "document") else "passage"


def _prompt(trace: AnswerTrace, width: int) -> Iterator[Text]:
    """Yield the prompt, its passages coloured by their evidence."""
    end = trace.tokens[trace.first - 1].span[1]
    if end > SHOWN:
        yield from flow(f"(a prompt of {end:,} characters; the table shows its strongest passages)", width, "dim")
        return
    for line in _pieces(trace):
        yield from (Text.assemble("  ", *isolated(own)) for own in _broken(line, width - 2))


def _broken(pieces: list[tuple[str, str]], room: int) -> Iterator[list[tuple[str, str]]]:
    """Yield a line of the prompt in lines that fit, broken before a word; a word that fits none is cut."""
    line: list[tuple[str, str]] = []
    left = room
    for word in words(pieces):
        if line and sum(cell_len(piece) for piece, _ in word) > left:
            yield line
            line, left = [], room
            word[0] = (word[0][0].removeprefix(" "), word[0][1])  # the line's end is a blank itself
        for text, style in word:
            for part in _parts(text, room):
                if cell_len(part) > left and line:
                    yield line
                    line, left = [], room
                line.append((part, style))
                left -= cell_len(part)
    yield line


def _parts(text: str, cells: int) -> Iterator[str]:
    """Yield a text in parts that are no wider than a line."""
    part = ""
    for character in text:
        if cell_len(part + character) > cells:
            yield part
            part = ""
        part += character
    yield part


def _pieces(trace: AnswerTrace) -> list[list[tuple[str, str]]]:
    """Return the lines of the prompt, each token's text with the style of its passage."""
    best = np.where(trace.known, trace.measured, 0.0) if trace.known.any() else trace.best
    largest = float(abs(best).max(initial=0.0))
    styles = {
        position: _style(float(best[place]), largest)
        for place, passage in enumerate(trace.passages)
        for position in range(passage.start, passage.stop)
    }
    lines: list[list[tuple[str, str]]] = [[]]
    end = 0
    for token in trace.tokens.items[: trace.first]:
        if token.span[1] <= end:
            continue
        for number, part in enumerate(trace.tokens.text[end : token.span[1]].split("\n")):
            if number:
                lines.append([])
            if part:
                shown = readable(part).removesuffix(LEFT_TO_RIGHT_MARK)
                lines[-1].append((shown, styles.get(token.position, "dim")))
        end = token.span[1]
    return lines


def _style(value: float, largest: float) -> str:
    """Return the colour of a passage: none below a tenth of the largest, stronger from a half."""
    if largest == 0 or abs(value) < 0.1 * largest:
        return ""
    return (STRONG if value > 0 else AGAINST)[1 + (abs(value) >= 0.5 * largest)]


def answer_line(trace: AnswerTrace | RouteTrace, width: int) -> Iterator[Text]:
    """Yield the answer and how likely it is."""
    log_p = sum(trace.token_log_probabilities)
    text = shortened(readable(trace.answer))
    whole = len(trace.chosen) == len(trace.tokens) - trace.first
    counted = "" if whole else f", {count(len(trace.chosen), 'token')} of it counted"
    made = "answer, written by the model" if trace.written else "answer"
    value = f"{trace.unit} {signed(trace.value, 1)}" if trace.unit != "log-probability" else f"{signed(log_p, 1)} nats"
    probability = percent(math.exp(log_p)) if math.exp(log_p) >= 0.0005 else f"{math.exp(log_p):.1e}"
    lines = list(flow(f"{made}: {solid(text)}{counted} · probability {probability}, {solid(value)}", width))
    at = lines[0].plain.find(text)
    if at >= 0:
        lines[0].stylize("bold", at, at + len(text))
    yield from lines


def _table(trace: AnswerTrace, top: int, lenses: Sequence[str], width: int) -> Iterator[Text]:
    listed = _listed(trace, top)
    shown = [trace.lenses[name] for name in lenses if name in trace.lenses]
    measured = [_measured(trace, place) for place in listed]
    last = max(10, *(1 + cell_len(number) for number in measured))
    room = max(LEAST, width - 6 - sum(map(_width, shown)) - last)
    bars = BAR if room - 1 - BAR >= LEAST else 0
    label = min(LABEL, room - bars - (bars > 0))
    where = "" if trace.where == EVERYWHERE else f"; in {trace.where}"
    yield from flow(f"What the answer drew on, by {trace.by}; positive: it spoke for the answer{where}", width, "bold")
    heads = "".join(f"{SHORT.get(lens.name, lens.name):>{_width(lens)}}" for lens in shown)
    yield Text(f"{'#':>4}  {_unit(trace)[:label]:<{label}}{heads}{'effect':>{last}}", "dim")
    largest = float(np.nanmax(abs(trace.measured))) if trace.known.any() else 0.0
    for place, number in zip(listed, measured, strict=True):
        name = fitted(quoted(trace.passages[place].title), label, pad=False)
        cells = "".join(f"{_number(lens, place):>{_width(lens)}}" for lens in shown)
        row = Text(f"{place:>4}  {set_cell_size(name, label)}{cells}{number:>{last}}")
        value = float(trace.measured[place])
        drawn = bars and trace.known[place]
        row.append(f" {bar(abs(value), largest, bars)}" if drawn else "", "red" if value >= 0 else "magenta")
        yield row
    rest = sorted(set(range(len(trace.passages))) - set(listed))
    if rest:
        share, most = float(trace.lenses["weight"].values[rest].sum()), float(abs(trace.best[rest]).max())
        kinds = [("effect", trace.known[rest].any()), ("estimate", not trace.known[rest].all())]
        what = " or ".join(kind for kind, there in kinds if there)
        others = f"{count(len(rest), 'other')}: {percent(share)} of the weight, {what} of each within ±{most:.3f}"
        yield from flow(others, width, "dim", indent=" " * 6)
    stays = 1.0 - float(trace.lenses["weight"].values.sum())
    if "weight" in lenses and trace.where == EVERYWHERE and stays >= 0.0005:
        text = f"{percent(stays)} of the weight lies on what stays: {_staying(trace)}"
        yield from flow(text, width, "dim", indent=" " * 6)
    for name in lenses:
        told = trace.lenses[name].meaning if name in trace.lenses else trace.absent[name]
        long = f" ({name} in JSON and Python)" if name in SHORT else ""
        yield from flow(f"{SHORT.get(name, name)}{long}: {told}", width, "dim")
    if any(math.isnan(value) for lens in shown for value in lens.values[listed]):
        yield from flow("-: the text's first token has no gate, and a passage of it alone no number", width, "dim")
    text = f"effect: what the {trace.unit} loses without the passage ({trace.how}: {WHAT_IT_IS[trace.how]}), measured"
    if not trace.known.all():
        text += f"; ≈ was not run alone, and is no measurement: {trace.estimate}"
    if trace.ablations is not None and trace.ablations.caveat:
        text += f"; {trace.ablations.caveat}"
    yield from flow(text, width, "dim")


def _staying(trace: AnswerTrace) -> str:
    """Return what is never taken away, in words."""
    end = max(passage.stop for passage in trace.passages)
    asked = "what is asked" if end < trace.first else "what lies between the parts"
    return f"{asked}, and the answer itself"


def _width(lens: Lens) -> int:
    return 7 if lens.name == "weight" else 9


def _number(lens: Lens, place: int) -> str:
    """Return a lens's number for a passage; what has no direction has no sign."""
    value = float(lens.values[place])
    if lens.name == "weight":
        return percent(value)
    if math.isnan(value):  # the first token alone has no gate
        return "-"
    number = signed(value, float(np.nanmax(abs(lens.values))))
    return number.removeprefix("+") if lens.name in NO_DIRECTION else number


def _measured(trace: AnswerTrace, place: int) -> str:
    """Return what a passage was measured to do, or what is estimated of it."""
    measured, most = float(trace.measured[place]), float(abs(trace.best).max())
    if abs(measured) < trace.noise:  # never of one that is NaN
        return WITHIN
    return signed(measured, most) if not math.isnan(measured) else f"≈{signed(float(trace.best[place]), most)}"


def _listed(trace: AnswerTrace, top: int) -> list[int]:
    """Return the passages in the table, by the size of what is known of them."""
    order = [int(place) for place in trace.order]
    weights = trace.lenses["weight"].values
    heaviest = {int(place) for place in (-weights).argsort(kind="stable")[:2]}
    return [place for rank, place in enumerate(order) if rank < top or place in heaviest]


def _name(trace: AnswerTrace, place: int) -> str:
    passage = trace.passages[place]
    return solid(f"#{place} {fitted(quoted(passage.title), 32, pad=False)}")


def _verdict(trace: AnswerTrace, width: int) -> Iterator[Text]:
    for what, places in (("for the answer", _signed(trace, 1)), ("against it", _signed(trace, -1))):
        if places:
            yield from flow(f"What mattered, {what}: {_named(trace, places)}.", width, "bold")
    if not trace.mattered and trace.known.any():
        yield from flow("Nothing that was measured mattered beyond the noise.", width, "bold")
    if trace.suspected:
        them = _named(trace, trace.suspected)
        yield from flow(f"What may matter, by the estimate alone: {them}. A larger budget measures it.", width)
    if trace.mattered or trace.suspected:
        yield from flow("Those with at least a tenth of the largest effect are named.", width, "dim")
    if trace.disputed:
        most = float(abs(trace.best).max())
        each = ", ".join(
            f"{_name(trace, place)} {solid(signed(float(trace.evidence[place]), most))}" for place in trace.disputed[:4]
        )
        text = (
            f"The runs with several parts away say otherwise of {each}: alone, something else stands in for it, such "
            "as a part that says the same."
        )
        yield from flow(text, width, "bold")
    if 0 in [trace.passages[place].start for place in trace.mattered]:
        yield from flow(FIRST_TOKEN, width)
    for place in trace.misleading[:2]:
        weight, measured = float(trace.lenses["weight"].values[place]), float(trace.measured[place])
        most = float(abs(trace.best).max())
        text = (
            f"Weights point at {_name(trace, place)} ({percent(weight)}), but taking it away changes little: "
            f"{signed(measured, most)}, the largest effect being {signed(most, most).removeprefix('+')}."
        )
        yield from flow(text, width)


def _signed(trace: AnswerTrace, sign: int) -> list[int]:
    """Return the passages that mattered whose effect has a sign."""
    return [place for place in trace.mattered if sign * trace.measured[place] > 0]


def _named(trace: AnswerTrace, places: Sequence[int]) -> str:
    more = f" and {len(places) - 4} more" if len(places) > 4 else ""
    return ", ".join(_name(trace, place) for place in places[:4]) + more


def _carried(trace: AnswerTrace, carried: int, width: int) -> Iterator[Text]:
    """Yield the heads that carried the strongest passages."""
    for place in trace.order[:carried].tolist():
        own = [one for one in trace.heads if one.passage == place]
        most = max((abs(one.price) for one in own), default=0.0)
        each = ", ".join(solid(f"layer {one.layer} head {one.head} {signed(one.price, most)}") for one in own)
        if own:
            total = signed(float(trace.lenses["attribution"].values[place]), most)
            yield from flow(f"Heads of {_name(trace, place)}, by gradient: {each}, of {total} in all.", width)


def _sure(trace: AnswerTrace, width: int) -> Iterator[Text]:
    known = [own for own in trace.agreements if not math.isnan(own.correlation)]
    if not known:
        few = 2 ** len(trace.passages) - 1 < trace.enough  # so many choices of passages to take away there are
        more = f"it has too few parts for {trace.enough} different ones" if few else "a larger budget says it"
        text = f"How sure: {count(trace.runs, 'run')} measured, too few to say how well each lens ranks this prompt; "
        yield from flow(f"{text}{more}.", width)
        return
    each = ", ".join(solid(f"{SHORT.get(own.lens, own.lens)} {own.correlation:+.2f}") for own in known)
    yield from flow(
        f"How sure: rank correlation of each lens with {count(known[0].runs, 'measured run')} of this prompt: {each}.",
        width,
    )


def cost_line(trace: AnswerTrace | RouteTrace, width: int) -> Iterator[Text]:
    """Yield what was run."""
    cost = trace.cost
    text = (
        f"{cost.passes:.1f} passes' worth of {cost.budget:g} allowed ({cost.forward:.1f} forward, {cost.backward:.1f} "
        f"backward), {cost.seconds:.1f} s"
    )
    if cost.reading:
        why = "to write the answer" if trace.written else "to tell whether a blank stands before the answer"
        text += f"; before that {cost.reading:.1f} {why}"
    if not math.isnan(trace.noise):
        text += f"; differences below {trace.noise:.0e} are {WITHIN}: rounding"
    yield from flow(text, width, "dim")
