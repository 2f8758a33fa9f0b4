"""What kind of reader a head is in a text (floor 4): one word for each, by a rule on its figures.

The word says where most of its weight lies in this very text, as `wherefrom.heads` counts it. It does not say what the
head is for, nor that what it moves matters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from wherefrom.scans.contract import OF_SAME_TOKEN

SHARES = {
    "induction": "on what followed them before",
    "previous": "on the token before",
    "duplicate": "on the same ones before",
    "self": "on itself",
    "first": "on the first token",
}
"""Figures that are shares of a row, the more telling first: where two are large, the first is the kind."""
TELLING = 0.3
"""From this mean share on a head is of that kind;"""
RESTS = 0.5
"""of the first token from this one on: nearly every head rests there a little."""
REPEATS = 5
"""Of fewer destinations whose token came before a mean says little: no head is named by what they read."""
NEAR = 8.0
"""A head whose weights lie at most so many tokens back on the mean is local."""
NAMES = {"first": "sink", "self": "itself"}
KINDS = ("induction", "previous", "duplicate", "itself", "sink", "local", "broad", "unknown")


class Kind(NamedTuple):
    """A head's kind.

    Attributes:
        name: one of `KINDS`.
        why: in words.
    """

    name: str
    why: str


def kind_of(figures: Mapping[str, float | None], repeats: int) -> Kind:
    """Return the kind of a head.

    A mean share of 0.3 or more of its rows on what followed the same token before, on the token before, on the same
    token before or on itself names it, in that order; then one of 0.5 or more on the first token. The first and third
    are means over the destinations whose token came before, and name a head where there are five or more. Of the
    others those whose weights lie at most eight tokens back on the mean are local, the rest broad.

    Args:
        figures: as `wherefrom.heads` names them: shares, and "distance" in tokens; None where there is none.
        repeats: how many destinations hold a token that came before, see `wherefrom.questions.figures.repeats_of`.
    """
    for name, words in SHARES.items():
        share = figures.get(name)
        again = name in OF_SAME_TOKEN
        if share is None or share < (RESTS if name == "first" else TELLING) or (again and repeats < REPEATS):
            continue
        if again:
            return Kind(name, f"{share:.0%} of the weight of the {repeats:,} repeated tokens lies {words}")
        return Kind(NAMES.get(name, name), f"{share:.0%} of its weight lies {words}")
    distance = figures.get("distance")
    if distance is None:
        return Kind("unknown", "no destination of this text tells")
    near = distance <= NEAR
    return Kind("local" if near else "broad", f"its weight lies {distance:,.1f} tokens back on the mean")
