"""What reading was worth to a goal (floor 5): the prices of edges, and their sums by source, passage and head.

`wherefrom.evidence.gradients.price` makes a `Priced` by one forward and one backward pass. What the prices are, and
what is exact about them, is told at the top of `wherefrom.evidence.edges`. Prices are float32 (float64 of a model in
float64), sums of them float64; nothing T x S is held unless a row or a window of that size is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wherefrom.checks import check_chosen, check_index, check_items
from wherefrom.errors import InputError
from wherefrom.evidence.edges import How, PricedCall
from wherefrom.evidence.goal import Goal
from wherefrom.recording.call import listed

Floats: TypeAlias = NDArray[np.float64]

UNITS = {"weight": "share of the destination's row", "moved": "length of what is added to the residual stream"}
EXACTNESS: dict[How, str] = {
    "weight": "exact, within rounding",
    "moved": "exact, within rounding",
    "closed form": "estimate: first order in the change of the head's output, which itself is exact",
    "score gradient": "estimate: first order; exact, within rounding, as the derivative by the score",
    "direct": "estimate: first order, along the residual stream alone, the final norm's statistics held",
}


class Stretch(Protocol):
    """Neighbouring tokens taken as one source: a `wherefrom.passages.Passage`, or a range."""

    @property
    def start(self) -> int:
        """The first token."""

    @property
    def stop(self) -> int:
        """The position after the last one."""


@dataclass(frozen=True, eq=False)
class Priced:
    """Every edge of every head, priced by one backward pass.

    The ways to price are "closed form", "score gradient", "direct", "weight" and "moved". Heads, layers and positions
    count from 0. `layers` and `heads` of a method are those that count, all unless given; so are `rows`, the
    destinations, but for "direct", which has prices for the goal's rows alone.

    Attributes:
        goal: what was asked about.
        value: what it is, in its unit.
        calls: one for each execution of attention, in the order of computation.
        model: the model's name.
        fingerprint: of its weights.
        seconds: wall clock of both passes.
        logits: [1, R, N], of the goal's rows.
    """

    goal: Goal
    value: float
    calls: tuple[PricedCall, ...]
    model: str
    fingerprint: str
    seconds: float
    logits: Tensor = field(repr=False)
    directly: Callable[[], tuple[Tensor, ...]] | None = field(default=None, repr=False)
    _direct: list[tuple[Tensor, ...]] = field(default_factory=list, repr=False)

    def __repr__(self) -> str:
        return f"Priced({self.model}, {len(self)} tokens, {len(self.calls)} calls, {self.value:.4g} {self.goal.unit})"

    def __len__(self) -> int:
        return len(self.goal.ids)

    @property
    def layers(self) -> tuple[int, ...]:
        """The layer of each call."""
        return tuple(call.layer for call in self.calls)

    def unit(self, how: How = "closed form") -> str:
        """Return what prices are in: the goal's own unit, but for weight and moved."""
        return UNITS.get(_checked(how), self.goal.unit)

    def exactness(self, how: How = "closed form") -> str:
        """Return how exact prices are."""
        return EXACTNESS[_checked(how)]

    def edge(
        self, layer: int, head: int, destination: int, source: int, how: How = "closed form", *, repeat: int = 0
    ) -> float:
        """Return the price of one edge; see `row`.

        Raises:
            InputError: as `row`, or a source out of range.
        """
        row = self.row(layer, head, destination, how, repeat=repeat)
        return float(row[check_index("position", source, len(row))])

    def row(self, layer: int, head: int, destination: int, how: How = "closed form", *, repeat: int = 0) -> Floats:
        """Return the prices of all that a destination may read in one head, [S].

        A pair that the mask does not permit is 0; the closed form of a row's only edge is NaN.

        Args:
            layer: from 0.
            head: from 0.
            destination: the position that reads.
            how: which price.
            repeat: which execution of the layer, where it runs several times.

        Raises:
            InputError: an unknown price, a number out of range; "moved" where no single matrix projects the outputs;
                "direct" for another row than the goal's, or for a model that has none (`wherefrom.evidence.direct`).
        """
        rows = [check_index("position", destination, len(self))]
        found: Floats = self._window(layer, head, rows, how, repeat)[0]
        return found

    def window(
        self, layer: int, head: int, rows: range, columns: range, how: How = "closed form", *, repeat: int = 0
    ) -> Floats:
        """Return the prices [len(rows), len(columns)] of a piece of one head's map, in the order of both; see `row`.

        Raises:
            InputError: as `row`; no rows or columns, or some out of range.
        """
        own = self._rows(how, list(rows))
        check_chosen("position", list(columns), len(self))
        whole = self._window(layer, head, own, how, repeat)
        piece: Floats = whole[np.ix_([own.index(row) for row in rows], list(columns))]
        return piece

    def sources(
        self,
        how: How = "closed form",
        *,
        rows: Iterable[int] | None = None,
        layers: Iterable[int] | None = None,
        heads: Iterable[int] | None = None,
    ) -> Floats:
        """Return each source's price, summed over destinations, layers and heads, [S].

        Raises:
            InputError: as `row`.
        """
        found = torch.zeros(self._length(), dtype=torch.float64)
        for _, _, _, columns, prices in self._strips(how, rows, layers, heads):
            found[columns.start : columns.stop] += prices.sum(dim=(0, 1), dtype=torch.float64)
        return found.numpy()

    def passages(
        self,
        passages: Sequence[Stretch],
        how: How = "closed form",
        *,
        rows: Iterable[int] | None = None,
        layers: Iterable[int] | None = None,
        heads: Iterable[int] | None = None,
    ) -> Floats:
        """Return each passage's price, [P]: of its tokens, read by any destination outside of it.

        Raises:
            InputError: as `row`; no passages, some that overlap or are out of range.
        """
        owner, found = self._owner(passages), torch.zeros(len(passages), dtype=torch.float64)
        for _, _, own, columns, prices in self._strips(how, rows, layers, heads):
            found += _by_passage(prices.sum(dim=0, dtype=torch.float64)[None], owner, own, columns, len(passages))[0]
        return found.numpy()

    def heads(
        self,
        how: How = "closed form",
        *,
        passages: Sequence[Stretch] | None = None,
        rows: Iterable[int] | None = None,
    ) -> Floats:
        """Return each head's sum of the sizes of its prices, [L, H], L the calls; or its sums by passage, [L, H, P].

        A head that a call does not have is NaN.

        Raises:
            InputError: as `passages`.
        """
        owner = None if passages is None else self._owner(passages)
        size = (len(self.calls), max(call.heads for call in self.calls))
        found = torch.full(size if passages is None else (*size, len(passages)), torch.nan, dtype=torch.float64)
        for place, call in enumerate(self.calls):
            found[place, : call.heads] = 0.0
        for place, _, own, columns, prices in self._strips(how, rows, None, None):
            if owner is None or passages is None:
                sums = prices.abs_().sum(dim=(1, 2), dtype=torch.float64)
            else:
                sums = _by_passage(prices.double(), owner, own, columns, len(passages))
            found[place, : len(prices)] += sums
        return found.numpy()

    # -- the parts of these

    def _length(self) -> int:
        return max(call.sources for call in self.calls)

    def _window(self, layer: int, head: int, rows: Sequence[int], how: How, repeat: int) -> Floats:
        """Return the prices [R, S] of some rows of one head."""
        place = self._place(layer, repeat)
        call = self.calls[place]
        heads = [check_index("head", head, call.heads)]
        rows = self._rows(how, rows)
        found = np.zeros((len(rows), call.sources))
        done = 0
        for own, columns, prices in self._of_call(place, how, rows, heads):
            found[done : done + len(own), columns.start : columns.stop] = prices[0].numpy()
            done += len(own)
        return found

    def _strips(
        self, how: How, rows: Iterable[int] | None, layers: Iterable[int] | None, heads: Iterable[int] | None
    ) -> Iterator[tuple[int, Sequence[int], Sequence[int], range, Tensor]]:
        """Yield the place of a call, heads, rows, columns, and their prices [h, R, C], nothing in an only edge's."""
        own_rows = self._rows(how, rows)
        own_layers = check_chosen("layer", layers, 1 + max(self.layers))
        own_heads = check_chosen("head", heads, max(call.heads for call in self.calls))
        for place, call in enumerate(self.calls):
            chosen = [head for head in own_heads or range(call.heads) if head < call.heads]
            if not chosen or (own_layers is not None and call.layer not in own_layers):
                continue
            for strip, columns, prices in self._of_call(place, how, own_rows, chosen, alone=0.0):
                yield place, chosen, strip, columns, prices

    def _of_call(
        self, place: int, how: How, rows: Sequence[int], heads: Sequence[int], *, alone: float = torch.nan
    ) -> Iterator[tuple[Sequence[int], range, Tensor]]:
        """Yield strips of rows, the columns that they reach, and their prices [h, R, C]."""
        call = self.calls[place]
        lengths = call.lengths(heads) if how == "moved" else None
        whole = self._gradients()[place][list(heads)] if how == "direct" else None  # h R V, of the goal's rows
        for strip in call.strips(rows, len(heads)):
            direct = None if whole is None else whole[:, [self.goal.rows.index(row) for row in strip]]
            with torch.no_grad():
                prices = call.prices(how, strip, heads, lengths, direct, alone)
            yield strip, call.reach(strip), prices

    def _gradients(self) -> tuple[Tensor, ...]:
        """Return the gradient along the residual stream for each call, [H, R, V], R the goal's rows."""
        if not self._direct:
            if self.directly is None:
                raise InputError(
                    "how",
                    expected="a price of what was recorded",
                    given="'direct', which needs the model",
                    way_out="Price the text again.",
                )
            self._direct.append(self.directly())
        return self._direct[0]

    def _place(self, layer: int, repeat: int) -> int:
        """Return which call is the self-attention of a layer, or whatever attention it has."""
        alike = [place for place, call in enumerate(self.calls) if (call.layer, call.repeat) == (layer, repeat)]
        if not alike:
            again = f", execution {repeat}" if repeat else ""
            raise InputError(
                "the layer",
                expected=f"one that has attention, of {listed(sorted(set(self.layers)))}",
                given=f"{layer!r}{again}",
                way_out="Layers are numbered from 0.",
                layer=layer,
            )
        return min(alike, key=lambda place: self.calls[place].kind != "self")

    def _rows(self, how: How, rows: Iterable[int] | None) -> tuple[int, ...]:
        """Return the destinations that count, ascending."""
        if _checked(how) != "direct":
            return check_chosen("position", rows, len(self)) or tuple(range(len(self)))
        own = tuple(sorted(self.goal.rows))
        chosen = check_chosen("position", rows, len(self)) or own
        wrong = [row for row in chosen if row not in own]
        if wrong:
            raise InputError(
                "the destination",
                expected=f"one that predicts the goal, of {listed(own)}",
                given=str(wrong[0]),
                way_out='Others reach the goal through later layers only: how="closed form" prices them.',
                destination=wrong[0],
            )
        return chosen

    def _owner(self, passages: Sequence[Stretch]) -> Tensor:
        """Return which passage each token is in, int [S]; -1 for none."""
        owner = torch.full((self._length(),), -1)
        way_out = "Take those of wherefrom.passages, or ranges of positions."
        listed_ = check_items("the passages", passages, expected="passages of the text", way_out=way_out)
        for number, one in enumerate(listed_):
            fits = 0 <= one.start < one.stop <= len(owner)
            if not fits or bool((owner[one.start : one.stop] >= 0).any()):
                raise InputError(
                    "the passages",
                    expected=f"some that hold tokens 0 to {len(owner) - 1} and do not overlap",
                    given=f"tokens {one.start} to {one.stop - 1}" + (", some of them twice" if fits else ""),
                    way_out=way_out,
                )
            owner[one.start : one.stop] = number
        if not listed_:
            raise InputError("the passages", expected="at least one", given="none", way_out=way_out)
        return owner


def _by_passage(prices: Tensor, owner: Tensor, rows: Sequence[int], columns: range, passages: int) -> Tensor:
    """Return sums [h, P] of prices [h, R, C], float64, by the passage of the source; within a passage none counts."""
    index = owner[columns.start : columns.stop].clone()
    index[index < 0] = passages  # of no passage
    sums = prices.new_zeros(*prices.shape[:2], passages + 1).index_add_(2, index, prices)  # h R P+1
    inside = owner[list(rows)]
    own = torch.nonzero(inside >= 0)[:, 0]
    sums[:, own, inside[own]] = 0.0
    return sums[..., :passages].sum(dim=1)


def _checked(how: How) -> How:
    if how not in get_args(How):
        raise InputError(
            "how",
            expected=f"one of {', '.join(map(repr, get_args(How)))}",
            given=repr(how),
            way_out="They are told apart at the top of wherefrom.evidence.edges.",
        )
    return how
