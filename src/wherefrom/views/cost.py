"""What passes cost, as text (floor 6): a table of lengths, the parts of one length, and what was measured beside.

It takes a `Cost` and gives plain text of at most 80 columns to the command line; the numbers are rounded to three
digits here and only here.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from wherefrom.checks import as_index
from wherefrom.errors import InputError
from wherefrom.model.cost import PAIR_WORK
from wherefrom.readable import readable
from wherefrom.views.cells import HARD_BLANK, count, fitted, percent, solid

if TYPE_CHECKING:  # drawing needs no torch
    from wherefrom.evidence.costed import Cost, CostAt, Crossing
    from wherefrom.model.cost import Against, Pairs, Work

WIDTH = 80
POWERS = ("", "k", "M", "G", "T", "P", "E", "Z", "Y", "R", "Q")
NAMES = {
    "projections": "queries, keys, values",
    "scores": "scores q·k",
    "sums": "weighted sums of v",
    "output": "output projection",
    "feed_forward": "feed-forward",
    "head": "vocabulary head",
}


def cost_table(cost: Cost) -> str:
    """Return what passes cost as plain text: a row a length, where pair work overtakes the rest, what was measured.

    Args:
        cost: from `wherefrom.evidence.cost.cost`.
    """
    sections = [_heading(cost), _counted(cost), _meanings(cost), _crossovers(cost), _saying(cost)]
    if cost.threads is not None:
        sections += [_measured(cost), _measured_meanings(cost), _crossings(cost)]
    return "\n\n".join(sections) + "\n"


def part_table(cost: Cost, tokens: int | None = None) -> str:
    """Return the parts of a pass over one length as plain text: multiply-adds of one layer and of all its layers.

    Args:
        cost: from `wherefrom.evidence.cost.cost`.
        tokens: one of its lengths; the last of them unless given.

    Raises:
        InputError: a length that is not among them.
    """
    at = _length(cost, tokens)
    rows = [_part_row(at, work, several=bool(at.counted.source_tokens)) for work in at.counted.work]
    every = at.counted.multiply_adds
    rows.append(["in all", "", "", number(every()), percent(1), number(every(pairs="all"))])
    header = ["part", "layers", "one layer", "all layers", "share", "all n x n"]
    title = f"Part by part at {_tokens(at.tokens)}, multiply-adds"
    told = f"all n x n: all layers, with every pair computed; the columns before it count {_pairs(cost)}."
    return f"{title}\n{_table(header, rows, left=1)}\n\n{_filled(told)}\n"


def number(value: float) -> str:
    """Return a number in three digits: 812, 1.96k, 58.9G; one below 1,000 is rounded to a whole one."""
    figure, power = _scaled(value)
    return f"{figure}{power}"


def size(value: int) -> str:
    """Return a number of bytes in three digits: 812 B, 1.96 kB, 58.9 GB, in powers of 1,000."""
    figure, power = _scaled(value)
    return f"{figure} {power}B"


def _scaled(value: float) -> tuple[str, str]:
    """Return three digits and the power of 1,000 that they are to be taken times."""
    if value < 999.5:
        return f"{value:.0f}", ""
    mantissa, exponent = f"{value:.2e}".split("e")  # rounded once: 999,600 is 1.00M, not 1000k
    power, shift = divmod(int(exponent), 3)
    if power >= len(POWERS):
        return f"{value:.2e}", ""
    digits = mantissa.replace(".", "")
    return f"{digits[: 1 + shift]}.{digits[1 + shift :]}".rstrip("."), POWERS[power]


def _heading(cost: Cost) -> str:
    config, first = cost.config, cost.lengths[0].counted
    beside = f"{config.encoder_layers} + " if config.encoder_layers else ""
    shared = "" if config.kv_heads == config.heads else f" on {config.kv_heads} of keys and values"
    shape = (
        f"{beside}{count(config.layers, 'layer')}, width {config.width:,}, {count(config.heads, 'head')} of "
        f"{config.head_size}{shared}, feed-forward {config.feed_forward:,}, vocabulary {config.vocabulary:,}; "
        f"{first.parameters:,} parameters, {solid(size(first.weight_bytes))}"
    )
    return f"What one pass of {fitted(readable(cost.name), 40, pad=False)} costs\n{_filled(shape)}"


def _counted(cost: Cost) -> str:
    rows = [_counted_row(at) for at in cost.lengths]
    header = ["tokens", "in all", "a layer", "pairs", "feed-fwd", "n x n", "recording", "kv cache"]
    table = _table(header, rows, groups=((1, 2, " multiply-adds "), (3, 4, " share "), (5, 7, " bytes ")))
    if not any(at.counted.beyond_context for at in cost.lengths):
        return f"Counted\n{table}"
    refused = f"* beyond the model's context of {_tokens(cost.config.context)}: counted, but the model refuses it"
    return f"Counted\n{table}\n{_filled(refused, indent=2)}"


def _counted_row(at: CostAt) -> list[str]:
    counted = at.counted
    return [
        f"{at.tokens:,}{'*' * counted.beyond_context}",
        number(counted.multiply_adds()),
        number(counted.one_layer()),
        percent(counted.share(*PAIR_WORK)),
        percent(counted.share("feed_forward")),
        size(counted.dense_bytes),
        size(at.recording_bytes),
        size(counted.cache_bytes) if counted.cache_bytes else "-",
    ]


def _meanings(cost: Cost) -> str:
    which = "its last position" if cost.config.causal else "one position"
    scored = "" if cost.config.head == "none" else f", with the logits of {which}"
    both = "; encoder and decoder each read so many tokens" if cost.config.encoder_layers else ""
    layer = "the decoder's, cross-attention included" if cost.config.encoder_layers else "attention and feed-forward"
    cache = "" if cost.config.causal else "; an encoder alone keeps none"
    meanings = {
        "multiply-adds": f"each is one product and one sum, 2 FLOPs; of one text{scored}{both}. A layer: {layer}.",
        "pairs": f"the share of pair work, scores q·k and weighted sums of v: {_pairs(cost)}.",
        "n x n": f"the weights of all heads and layers ({count(cost.item_size, 'byte')} each), if an implementation "
        "forms and keeps them; a fused kernel does not.",
        "recording": "what a recording of the pass takes, exactly.",
        "kv cache": f"keys and values that are kept while writing{cache}.",
    }
    return "\n".join(_filled(f"{name:<13}  {meaning}", indent=15) for name, meaning in meanings.items())


def _pairs(cost: Cost) -> str:
    """Return which pairs are counted, in words."""
    config = cost.config
    within = "" if config.window is None else f" within a window of {count(config.window, 'key')}"
    anyone = f"the pairs{within}" if within else solid("all n² pairs")
    if not config.causal:
        return anyone
    own = f"the permitted pairs{within}" if within else "the permitted pairs, n(n+1)/2"
    return f"{own}, in the decoder; {anyone} in the encoder; all n² across" if config.encoder_layers else own


def _crossovers(cost: Cost) -> str:
    """Return where pair work overtakes the rest, counted, as sentences."""
    permitted, dense = ([cost.crossover(against, pairs) for against in _compared()] for pairs in _each())
    told = [_overtakes(permitted, cost)]
    if dense != permitted:
        told.append(f"With all n² pairs computed: {' and '.join(f'{found:,}' for found in dense if found)}.")
        skipped = "of the decoder's own" if cost.config.encoder_layers else "of them"
        told.append(
            f"A fused causal kernel skips about half {skipped}, those above the diagonal."
            if cost.config.window is None
            else "So it is where the window is only a mask that is laid over them."
        )
    told.append(f"The model reads at most {_tokens(cost.config.context)}.")
    return _filled(" ".join(told))


def _overtakes(found: Sequence[int | None], cost: Cost) -> str:
    """Return from which n on pair work takes more than the feed-forward, and than everything else, as a sentence."""
    feed_forward, rest = found
    line = f"beyond the window of {count(cost.config.window or 0, 'key')} it grows with n, as they do"
    if feed_forward is None:
        return f"Pair work never overtakes the feed-forward: {line}."
    first = f"Pair work overtakes the feed-forward from {_tokens(feed_forward)} on,"
    if rest is None:
        return f"{first} but never everything else together: {line}."
    return f"{first} and everything else together from {rest:,} on."


def _compared() -> tuple[Against, ...]:
    return "feed_forward", "everything_else"


def _each() -> tuple[Pairs, ...]:
    return "permitted", "all"


def _named(against: Against) -> str:
    return "the feed-forward" if against == "feed_forward" else "everything else together"


def _saying(cost: Cost) -> str:
    """Return what the table shows, with the numbers of the shortest length."""
    window = cost.config.window
    how = "with n²" if window is None else f"with n² up to the window of {count(window, 'key')} and with n beyond it"
    if window is not None and cost.config.encoder_layers:
        how += ", in cross-attention with n²"
    at = min(cost.lengths, key=lambda at: at.tokens)
    shares = percent(at.counted.share(*PAIR_WORK)), percent(at.counted.share("feed_forward"))
    return _filled(
        f"The number of pairs grows {how}; no other work grows faster than n. That says how fast pair work grows, not "
        "how large it is: the square alone does not mean that attention dominates at short lengths, since its "
        f"constant decides from where on. Here, at {_tokens(at.tokens)}, pair work is {shares[0]} of the multiply-adds "
        f"and the feed-forward {shares[1]}."
    )


def _part_row(at: CostAt, work: Work, *, several: bool) -> list[str]:
    name = NAMES[work.part]
    if several and work.part != "head":
        name = f"{'cross' if work.cross else work.stack}: {name}"
    share = work.all_layers() / at.counted.multiply_adds()
    layers, one = ("", "") if work.part == "head" else (str(work.layers), number(work.one_layer()))
    return [name, layers, one, number(work.all_layers()), percent(share), number(work.all_layers("all"))]


def _length(cost: Cost, tokens: int | None) -> CostAt:
    if tokens is None:
        return cost.lengths[-1]
    for at in cost.lengths:
        if at.tokens == as_index(tokens):
            return at
    raise InputError(
        "the length whose parts are shown",
        expected="one of " + ", ".join(f"{at.tokens:,}" for at in cost.lengths[:8]) + ", ..." * (len(cost.lengths) > 8),
        given=repr(tokens),
        way_out="Count that length too.",
        tokens=tokens,
    )


def _measured(cost: Cost) -> str:
    rows = [row for at in cost.lengths if (row := _measured_row(at))]
    header = ["tokens", "seconds", "counted", "timed", "counted", "timed", "pairs", "ffwd", "all"]
    groups = ((2, 3, " pairs "), (4, 5, " feed-fwd "), (6, 8, " multiply-adds/s "))
    runs = [at.measured.runs for at in cost.lengths if at.measured is not None]
    middle = f"the middle one of {len(runs[0])} runs" if len(runs[0]) > 1 else "one run"
    apart = max(max(each) / min(each) for each in runs)
    noise = f"; runs of one length are up to {apart:.1f} times as long as another" if len(runs[0]) > 1 else ""
    told = f"Measured here and now: {count(cost.threads or 0, 'thread')}, {middle}{noise}"
    return f"{_filled(told)}\n{_table(header, rows, groups=groups)}"


def _measured_row(at: CostAt) -> list[str]:
    if at.measured is None:
        return []
    counted, measured = at.counted, at.measured
    rates = [at.rate("attention"), at.rate("feed_forward"), at.rate("all")]
    return [
        f"{at.tokens:,}",
        f"{measured.seconds:.3g}" if measured.seconds < 1000 else f"{measured.seconds:,.0f}",
        percent(counted.share(*PAIR_WORK)),
        percent(measured.share("attention")),
        percent(counted.share("feed_forward")),
        percent(measured.share("feed_forward")),
        *(number(rate or 0) for rate in rates),
    ]


def _measured_meanings(cost: Cost) -> str:
    masked = cost.config.window is not None
    window = "; the making of the window's masks too, under which all n² pairs are computed" if masked else ""
    return _filled(
        "counted: share of the multiply-adds; timed: share of the time. The time of pairs is all that is spent "
        f"inside the attention function: softmax too, which no multiply-add stands for{window}. The multiply-adds/s "
        "count permitted pairs only."
    )


def _crossings(cost: Cost) -> str:
    found = [(against, cost.crossing(against)) for against in _compared()]
    told = [f"than {_named(against)} {_crossing(crossing)}" for against, crossing in found if crossing is not None]
    beyond = "Nothing is said about lengths beyond these."
    return _filled(f"Measured, attention takes longer {'; longer '.join(told)}. {beyond}")


def _crossing(crossing: Crossing) -> str:
    if crossing.between is not None:
        n, m = crossing.between
        return f"from about {crossing.estimate:,} tokens on (between {n:,} and {m:,}, which were measured)"
    told = {"below": "at none of these lengths", "above": "at each of these lengths"}
    return told.get(crossing.found, "at some of these lengths, with no one change of sides (too noisy to tell)")


def _tokens(tokens: int) -> str:
    return f"{tokens:,} token{'' if tokens == 1 else 's'}"


def _table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: int = 0,
    groups: Sequence[tuple[int, int, str]] = (),
) -> str:
    """Return lines with columns two blanks apart: the first `left` of them flush left, groups of them named above.

    Args:
        header: the names.
        rows: as many cells each.
        left: how many columns are flush left.
        groups: (first column, last column, name).
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    above, end = "", 0
    for first, last, name in groups:
        start = sum(widths[:first]) + 2 * first
        stop = sum(widths[: last + 1]) + 2 * last
        above += " " * (start - end) + f"{name:-^{stop - start}}"
        end = stop
    lines = [above] if above else []
    for row in (header, *rows):
        cells = [
            cell.ljust(w) if at < left else cell.rjust(w) for at, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _filled(text: str, indent: int = 0) -> str:
    filled = textwrap.fill(text, WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False)
    return filled.replace(HARD_BLANK, " ")
