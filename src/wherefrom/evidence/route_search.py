"""The search for routes (floor 5): steps priced by backward runs, measured by path knock-outs, as a budget allows.

A `Node` is a place on a chain of steps to the answer. The search begins at the answer and goes away from it, a step at
a time: every step into a node is priced to first order, the largest are measured, and where what goes on through a
relay differs from what the passage sends there straight, the relay is a node to look at next. Takes the runs from
`wherefrom.evidence.paths` and gives a tree to `wherefrom.evidence.routing`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor

from wherefrom.errors import InputError
from wherefrom.evidence.paths import Paths
from wherefrom.evidence.steps import Change, Changes, Execution, Heads, Keys, Reading

Chain: TypeAlias = tuple[range, ...]
"""Places that are read one by the next, the last by the answer."""
Item: TypeAlias = tuple[Chain, Changes]
"""What the first place of a chain reads otherwise; of an empty chain, the answer."""
CallHead: TypeAlias = tuple[int, int]
"""A call, its number in the order of computation, and one of its heads."""
Prices: TypeAlias = dict[CallHead, float]
Thing = TypeVar("Thing")
SHOWN = 0.03
"""A route is shown from this share of the total effect on,"""
LEAST = 0.01
"""and from this one where the larger ones, left alone, keep less than"""
ENOUGH = 0.8
"""of the total effect. What goes on through a relay is looked at from the least share on."""
PRICED = 0.005
"""A step is measured if its price is at least this share of the total effect."""
MOST_STEPS = 24
"""So many steps are measured at each distance from the answer, at most."""
MOST_NODES = 8
"""So many relays are looked at, likewise."""
MOST_ROUTES = 12
"""So many routes are shown, at most."""
HEADS = 3
"""So many heads of a step are named."""
TOGETHER = 3
"""Times that the routes are run together: in all heads, in the named ones, and they alone."""


@dataclass(eq=False)
class Node:
    """A place on a chain of steps to the answer.

    Attributes:
        place: its tokens.
        then: the node that reads it; None: it is the answer.
        price: of the step from here to `then`.
        heads: those of the largest prices of that step, (call, head), and their prices.
        through: what the goal loses when `then` reads the place as it is without the passage, measured.
        route: what it loses by the path knock-out of the route passage -> place -> ... -> answer.
        reading: the place's own, as it acts along the chain; None: it was not looked at.
        prices: of the steps that it reads, from the passage and from each relay before it, [calls, H, 1 + P].
        effects: of single heads of the step to `then`, measured.
        first_effects: of single heads of the step from the passage.
    """

    place: range
    then: Node | None
    price: float = math.nan
    heads: Prices = field(default_factory=dict)
    through: float = math.nan
    route: float = math.nan
    reading: Reading | None = field(default=None, repr=False)
    prices: Tensor | None = field(default=None, repr=False)
    effects: Prices = field(default_factory=dict)
    first_effects: Prices = field(default_factory=dict)

    @property
    def chain(self) -> Chain:
        """The places from here to the last before the answer."""
        return () if self.then is None else (self.place, *self.then.chain)

    @property
    def on_the_way(self) -> tuple[Node, ...]:
        """The relays from here to the answer."""
        return () if self.then is None else (self, *self.then.on_the_way)

    @property
    def first_price(self) -> float:
        """The price of the step from the passage; NaN where the place was not looked at."""
        return math.nan if self.prices is None else float(self.prices[..., 0].sum())

    @property
    def first_heads(self) -> Prices:
        """The heads of the largest prices of the step from the passage; none where the place was not looked at."""
        return {} if self.prices is None else _strongest(self.prices[..., 0])


class Search:
    """The routes from a passage to an answer.

    Args:
        paths: runs the text.
        relays: places between the passage and the answer, in order.
        depth: the most steps of a route.
        budget: passes that may be run, what `paths` has run included, and what was run before.
        before: passes that were run before, to find the passage.

    Attributes:
        total: the effect of the total knock-out.
        root: the answer's node.
        nodes: every node whose route was measured, the answer's first.

    Raises:
        InputError: a budget that does not pay for the total knock-out and the direct route; infinite log-odds.
    """

    def __init__(
        self, paths: Paths, relays: Sequence[range], depth: int, budget: float, *, before: float = 0.0
    ) -> None:
        self._paths, self._relays, self._depth = paths, relays, depth
        self._budget, self._spent = budget, before
        noise = paths.noise  # in half precision it is measured, by runs that count
        self._require_budget()
        self._without, self._value = paths.knocked_out()
        self.total = paths.whole - self._value
        self._least = max(LEAST * abs(self.total), noise)
        self._cut = Change(paths.passage)
        self.root, self.nodes = Node(paths.answer, None), list[Node]()

    def run(self, tell: Callable[[int, int], None]) -> None:
        """Look at the answer, and at relays in turn; measure what is worth it.

        Args:
            tell: told how many steps were gone, of how many.
        """
        level = [self.root]
        self._look(level)
        self._measure(level)
        for relays in range(1, self._depth):
            if not level:  # nothing goes on from farther away
                break
            tell(relays, self._depth)
            nodes = self._affordable(self._candidates(level), self._cost_of)
            self._measure(nodes)
            if relays < self._depth - 1:
                goes_on = [node for node in nodes if abs(node.through - node.route) >= self._least]
                goes_on.sort(key=lambda node: -abs(node.through - node.route))
                level = self._looked_at(goes_on[:MOST_NODES])

    def shown(self) -> list[Node]:
        """Return the nodes whose routes are worth showing, by the size of their effect."""
        order = self._worthy()
        count = sum(abs(node.route) >= SHOWN * abs(self.total) for node in order)
        while count < len(order):
            cost = sum(
                map(self._paths.cost_of, [*(node.place for node in relays_of(order[:count])), self._paths.answer])
            )
            if cost > self._left or (count and self.kept(order[:count]) / self.total >= ENOUGH):
                break
            count += 1
        return order[:count]

    def measure_heads(self, shown: Sequence[Node]) -> None:
        """Measure the heads of the largest prices of some routes' steps, each alone, as the budget allows."""
        self._looked_at([node for node in shown if node.reading is None])
        steps: list[tuple[Prices, Prices, Keys | None, range, Chain]] = [
            (node.effects, node.heads, self._without, node.place, node.chain[1:]) for node in relays_of(shown)
        ]
        steps += [(node.first_effects, node.first_heads, None, self._paths.passage, node.chain) for node in shown]
        items: list[tuple[Prices, CallHead, Item]] = [
            (effects, one, (chain, [Change(place, keys, self._only([one]))]))
            for effects, heads, keys, place, chain in steps
            for one in heads
        ]
        items = self._affordable(items, lambda item: self._cost(item[2][0]))
        effects = self._effects([item for _, _, item in items])
        for (found, one, _), effect in zip(items, effects, strict=True):
            found[one] = effect

    def together(self, shown: Sequence[Node], *, named: bool = False) -> float:
        """Return what the goal loses when some routes are knocked out at once.

        Args:
            shown: the nodes that they begin at.
            named: only in the named heads of each step; NaN where some have none.
        """
        if named and not all(node.first_heads for node in shown):
            return math.nan

        def changes(node: Node, keys: Mapping[Node, Keys]) -> list[Change]:
            heads = self._only(node.first_heads) if named else None
            found = [Change(self._cut.place, None, heads)] if node in shown else []
            return found + [
                Change(own.place, keys[own], self._only(own.heads) if named else None) for own in _read_by(node, shown)
            ]

        return self._paths.whole - self._run(shown, changes)

    def kept(self, shown: Sequence[Node]) -> float:
        """Return what some routes bring back by themselves.

        That is the goal's value with all else as under the total knock-out, less its value there.
        """

        def changes(node: Node, keys: Mapping[Node, Keys]) -> list[Change]:
            found = [] if node in shown else [self._cut]
            start = self._paths.passage.stop
            for own in _read_by(node, shown):
                found += [Change(range(start, own.place.start), self._without), Change(own.place, keys[own])]
                start = own.place.stop
            return [*found, Change(range(start, node.place.start), self._without)]

        return self._run(shown, changes) - self._value

    # -- the parts of these

    def _run(self, shown: Sequence[Node], changes: Callable[[Node, Mapping[Node, Keys]], list[Change]]) -> float:
        """Return the goal's value when the places of some routes read what `changes` says, the farthest first."""
        relays, keys = relays_of(shown), dict[Node, Keys]()
        for steps in sorted({len(node.chain) for node in relays}, reverse=True):
            level = [node for node in relays if len(node.chain) == steps]
            found = self._paths.keys([(node.place, changes(node, keys)) for node in level])
            keys.update(zip(level, found, strict=True))
        return self._paths.values([changes(self.root, keys)])[0]

    def _worthy(self) -> list[Node]:
        """Return the nodes whose routes may be shown, by the size of their effect."""
        worth = [node for node in self.nodes if abs(node.route) >= self._least]
        return sorted(worth, key=lambda node: -abs(node.route))[:MOST_ROUTES]

    def _look(self, nodes: Sequence[Node]) -> None:
        """Read the places of some nodes, all relays or the answer alone, and price the steps that they read."""
        toward = None if self.root in nodes else [_reading_of(node.then).toward(node.place) for node in nodes]
        readings = self._paths.readings([node.place for node in nodes], toward)
        for node, reading in zip(nodes, readings, strict=True):
            node.reading = reading
            node.prices = reading.prices(self._paths.passage, self._before(node), self._without)

    def _looked_at(self, nodes: Sequence[Node]) -> list[Node]:
        """Look at the first of some relays, as many as the budget pays for, and return them."""
        some = self._affordable(nodes, lambda node: 2 * self._paths.cost_of(node.place))
        if some:
            self._look(some)
        return some

    def _before(self, node: Node) -> list[range]:
        """Return the relays that a node may read."""
        return [place for place in self._relays if place.stop <= node.place.start]

    def _candidates(self, level: Iterable[Node]) -> list[Node]:
        """Return the relays that some nodes read, those of the largest prices."""
        found: list[Node] = []
        for node in level:
            assert node.prices is not None, "every node of a level is looked at"
            by_place = node.prices.sum(dim=(0, 1))[1:].tolist()
            for number, (place, price) in enumerate(zip(self._before(node), by_place, strict=True)):
                if abs(price) >= max(PRICED * abs(self.total), self._paths.noise):
                    found.append(Node(place, node, price, _strongest(node.prices[..., 1 + number])))
        return sorted(found, key=lambda node: -abs(node.price))[:MOST_STEPS]

    def _measure(self, nodes: Sequence[Node]) -> None:
        """Measure the routes of some nodes, and what goes on through them."""
        relays = [node for node in nodes if node.then is not None]
        routes: list[Item] = [(node.chain, [self._cut]) for node in nodes]
        through: list[Item] = [(node.chain[1:], [Change(node.place, self._without)]) for node in relays]
        effects = self._effects([*routes, *through])
        for node, effect in zip(nodes, effects[: len(nodes)], strict=True):
            node.route = effect
        for node, effect in zip(relays, effects[len(nodes) :], strict=True):
            node.through = effect
        self.nodes += nodes

    def _effects(self, items: Sequence[Item]) -> list[float]:
        """Return what the goal loses by each item's changes, as they act along its chain."""
        changes = [own for _, own in items]
        for left in range(max((len(chain) for chain, _ in items), default=0), 0, -1):
            some = [number for number, (chain, _) in enumerate(items) if len(chain) >= left]
            readers = [(items[number][0][-left], changes[number]) for number in some]
            for number, keys in zip(some, self._paths.keys(readers), strict=True):
                changes[number] = [Change(items[number][0][-left], keys)]
        return [self._paths.whole - value for value in self._paths.values(changes)]

    def _only(self, heads: Iterable[CallHead]) -> Heads:
        """Return heads by their executions."""
        found: dict[Execution, tuple[int, ...]] = {}
        for call, head in heads:
            execution = self.executions[call][0]
            found[execution] = (*found.get(execution, ()), head)
        return found

    @property
    def executions(self) -> list[tuple[Execution, int]]:
        """Each execution of attention with its layer, in the order of the prices."""
        return [(rows.execution, rows.layer) for rows, _ in _reading_of(self.root).calls]

    # -- the budget

    @property
    def _left(self) -> float:
        """Passes that may still be run; those that the routes together will take are set aside."""
        places = [node.place for node in relays_of(self._worthy())]
        aside = TOGETHER * sum(map(self._paths.cost_of, [*places, self._paths.answer]))
        return self._budget - self._spent - self._paths.cost - aside

    def _cost(self, chain: Chain) -> float:
        """Return the passes that one item takes."""
        return sum(map(self._paths.cost_of, (*chain, self._paths.answer)))

    def _cost_of(self, node: Node) -> float:
        """Return the passes that measuring a node takes, with what it may then add to the routes together."""
        return self._cost(node.chain) + self._cost(node.chain[1:]) + TOGETHER * self._paths.cost_of(node.place)

    def _affordable(self, things: Sequence[Thing], cost: Callable[[Thing], float]) -> list[Thing]:
        """Return the first of some things, as many as the budget pays for."""
        left, found = self._left, list[Thing]()
        for one in things:
            left -= cost(one)
            if left < 0:
                break
            found.append(one)
        return found

    def _require_budget(self) -> None:
        paths = self._paths
        behind = range(paths.passage.stop, paths.answer.stop)
        least = self._spent + paths.cost + paths.cost_of(behind) + (3 + TOGETHER) * paths.cost_of(paths.answer)
        if self._budget >= least:
            return
        least = math.ceil(10 * least) / 10
        raise InputError(
            "the budget",
            expected=f"at least {least:g} passes: for {'the gates that find the passage, ' * bool(self._spent)}the "
            "text and its checks, the total knock-out, the direct route",
            given=f"{self._budget:g}",
            way_out=f"Give {least:g} to follow no relay, more to follow some.",
            least=least,
        )


def relays_of(shown: Iterable[Node]) -> list[Node]:
    """Return the relays on some routes, each once."""
    return list(dict.fromkeys(relay for node in shown for relay in node.on_the_way))


def _read_by(node: Node, shown: Iterable[Node]) -> list[Node]:
    """Return the relays on some routes that a node reads, in the order of the text."""
    return sorted((own for own in relays_of(shown) if own.then is node), key=lambda own: own.place.start)


def _reading_of(node: Node | None) -> Reading:
    reading = None if node is None else node.reading
    assert reading is not None, "a reader is looked at before what it reads"
    return reading


def _strongest(prices: Tensor) -> Prices:
    """Return the heads of the largest prices [calls, H], the largest first."""
    flat = prices.flatten()
    order = torch.argsort(flat.abs(), descending=True, stable=True)[:HEADS].tolist()
    return {divmod(place, prices.shape[1]): float(flat[place]) for place in order if float(flat[place])}
