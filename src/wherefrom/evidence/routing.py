"""Routes (floor 5): on which ways, through the tokens in between, a passage of a prompt reached an answer.

The answer's rows are looked at first: a backward run prices every step into them, from the passage and from each relay
as it would be without the passage (`wherefrom.evidence.steps`). The largest are measured by path knock-outs
(`wherefrom.evidence.paths`): what goes on through the relay, on whatever way it came there, and what the passage sends
it straight. Where the two differ, and the depth allows, the relay's own reading is looked at in turn, as it acts along
the steps behind it. A route's effect is that of its own path knock-out. What all of them explain is measured too, by
knocking them out at once, beside the total knock-out of the passage: single effects do not add up.

Takes the search and its runs, gates, and a prompt with its answer from beside it; gives a `RouteTrace` to views.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from wherefrom.checks import check_number, whole
from wherefrom.errors import InputError
from wherefrom.evidence.answering import divided
from wherefrom.evidence.gates import gate_gradients
from wherefrom.evidence.goal import AnswerGoal, Unit
from wherefrom.evidence.paths import Paths
from wherefrom.evidence.prompted import Prompted, read_prompted
from wherefrom.evidence.route_search import MOST_ROUTES, Node, Prices, Search, relays_of
from wherefrom.evidence.routed import Route, RouteTrace, Step, StepHead
from wherefrom.evidence.running import Runner, runner_of
from wherefrom.evidence.scored_answer import AnswerCost
from wherefrom.passages import Mark, Passage, passages
from wherefrom.spans import Tokens

Progress: TypeAlias = Callable[[str, int, int], None]
BUDGET = 12.0
DEPTH = 3
GATING = 2.0
"""Passes that find the passage where none is given."""
LEAST = 1.0
"""No budget below serves any text; how much more it takes is known when the text is."""
TAKEN = "more than 1 pass, which the text takes"
TAKEN_WITH_GATES = "more than 3 passes, which the text and the gates that find the passage take"


def trace_routes(
    model: Any,
    prompt: str | Sequence[Mapping[str, Any]],
    answer: str | None = None,
    *,
    question: str | None = None,
    tokenizer: Any = None,
    source: Mark | None = None,
    by: Any = "sentence",
    relays: str = "word",
    words: Sequence[int] | None = None,
    unit: Unit = "log-odds",
    depth: int = DEPTH,
    budget: float = BUDGET,
    max_tokens: int | None = None,
    progress: Progress | None = None,
) -> RouteTrace:
    """Return the strongest routes from a passage of a prompt to an answer, measured, and what they explain.

    They are those of at least 3 % of the total effect, and smaller ones where those alone keep little of it; at most
    twelve.

    Args:
        model: a decoder of `wherefrom.load`, or one of transformers.
        prompt: a text; or chat messages, written out by the model's template.
        answer: a text, scored as it is given, whoever wrote it; what the model writes itself unless given.
        question: what stands between the prompt and the answer, on a line of its own where no blank parts it.
        tokenizer: of a model of transformers.
        source: the passage that the routes begin at: a text that occurs once, or a range of tokens; unless given, that
            whose gate gradient is the largest.
        by: what the prompt is divided into, to find that passage; see `wherefrom.trace_answer`.
        relays: what the tokens between the passage and the answer are taken together by: "word", "token" and so on.
        words: places of the answer's tokens that count, from 0; all unless given.
        unit: the answer's "log-odds", log p - log(1 - p), or its "log-probability".
        depth: the most steps of a route; with 1 the passage is read by the answer alone.
        budget: how many passes over the whole text may be run, forward and backward together. A run of some rows
            counts by its tokens.
        max_tokens: of an answer that the model writes; 32 unless given.
        progress: told about long work.

    Raises:
        InputError: a source that matches nothing or twice, that is in the answer, or holds the row that predicts it; a
            depth below 1, a budget too small; an empty answer, log-odds that are infinite, a prompt longer than the
            context, a model that is no decoder.
        RecordingError: a cut that took no effect, or numbers that are not finite.
    """
    start = time.perf_counter()
    tell = progress or (lambda what, done, total: None)
    depth = whole("the depth", depth, least=1, way_out="It is the most steps of a route: 1 is the direct one alone.")
    before = GATING if source is None else 0.0
    budget = _checked(budget, before + LEAST)
    runner = runner_of(model, tokenizer)
    read = read_prompted(model, runner, prompt, answer, question=question, tokenizer=tokenizer, max_tokens=max_tokens)
    goal = AnswerGoal(read.tokens.ids, read.first, unit, words)
    tell("finding the passage", 0, depth + 1)
    passage = _strongest(runner, read, goal, by) if source is None else _marked(read, source)
    _require_before(passage, goal)
    between = _relays(read.tokens, relays, range(passage.stop, goal.rows[0]))
    tell("reading the text", 0, depth + 1)
    paths = Paths(runner, goal, passage)
    search = Search(paths, [one.positions for one in between], depth, budget, before=before)
    search.run(lambda done, total: tell("following routes", done, total + 1))
    tell("knocking out routes", depth, depth + 1)
    shown = search.shown() if abs(search.total) > paths.noise else []
    if shown:
        search.measure_heads(shown)
    [answered] = passages(read.tokens, [paths.answer])
    used = [one for one in between if one.positions in {node.place for node in relays_of(shown)}]
    steps, routes = _as_steps(search, shown, [passage, *used, answered])
    others = [abs(node.route) for node in search.nodes if node not in shown]
    return RouteTrace(
        model=runner.name,
        fingerprint=runner.fingerprint,
        tokens=read.tokens,
        first=read.first,
        written=read.written,
        chosen=tuple(row + 1 for row in goal.rows),
        token_log_probabilities=tuple(goal.log_probabilities(paths.logits)[0].tolist()),
        unit=unit,
        value=paths.whole,
        found_by="gate" if source is None else "given",
        relays=relays,
        depth=depth,
        most=MOST_ROUTES,
        total=search.total,
        places=(passage, *used, answered),
        steps=steps,
        routes=routes,
        joint=search.together(shown) if shown else math.nan,
        kept=search.kept(shown) if shown else math.nan,
        named=search.together(shown, named=True) if shown else math.nan,
        measured=len(search.nodes),
        largest_left=max(others, default=0.0),
        alone=paths.alone,
        noise=paths.noise,
        cost=AnswerCost(
            forward=paths.cost - paths.backward + before / 2,
            backward=paths.backward + before / 2,
            budget=budget,
            seconds=time.perf_counter() - start,
            reading=read.passes,
        ),
    )


def _checked(budget: Any, least: float) -> float:
    """Return a budget, unless it is one with which nothing can be measured in any text."""
    expected, way_out = TAKEN if least == LEAST else TAKEN_WITH_GATES, f"{BUDGET:g} is the default."
    return check_number("the budget", budget, expected=expected, way_out=way_out, least=least)


def _strongest(runner: Runner, read: Prompted, goal: AnswerGoal, by: Any) -> Passage:
    """Return the passage whose gate gradient is the largest."""
    parts = divided(read, by)
    return parts[gate_gradients(runner, goal, parts).order[0]]


def _marked(read: Prompted, source: Mark) -> Passage:
    """Return the passage that was marked in the prompt."""
    [passage] = passages(read.tokens, [source], within=range(read.first))
    return passage


def _require_before(passage: Passage, goal: AnswerGoal) -> None:
    """Refuse a passage that holds the row which predicts the answer: it has nowhere to go."""
    row = goal.rows[0]
    if passage.stop > row:
        raise InputError(
            f'the passage "{passage.title}"',
            expected=f"one before the row that predicts the answer, of tokens 0 to {row - 1}",
            given=f"tokens {passage.start} to {passage.stop - 1}",
            way_out="Mark less of it, or give what is asked as the question.",
            passage=passage,
            row=row,
        )


def _relays(tokens: Tokens, by: Any, between: range) -> list[Passage]:
    """Return the relays of some tokens, every token in one."""
    if not isinstance(by, str):
        way_out = 'Relays are units of the text; "token" follows each token by itself.'
        raise InputError("the relays", expected='a unit, such as "word"', given=repr(by), way_out=way_out)
    if not between:
        return []
    found = list(passages(tokens, by, within=between))
    held = {position for one in found for position in one.positions}
    for position in between:  # one that stands for no character belongs to no unit at the ends
        if position not in held:
            found += passages(tokens, [(position, position + 1)])
    return sorted(found, key=lambda one: one.start)


def _as_steps(
    search: Search, shown: Sequence[Node], places: Sequence[Passage]
) -> tuple[tuple[Step, ...], tuple[Route, ...]]:
    """Return the steps of some routes, and the routes by the steps' numbers."""
    number_of = {one.positions: number for number, one in enumerate(places)}
    number_of[search.root.place] = len(places) - 1
    relays = sorted(relays_of(shown), key=lambda node: len(node.chain))
    order = {node: number for number, node in enumerate(relays)}
    steps, routes = [], []
    for node in relays:
        assert node.then is not None, "a relay is read"
        heads = _heads(search, node.heads, node.effects)
        reader, then = number_of[node.then.place], order.get(node.then)
        steps.append(Step(number_of[node.place], reader, then, node.price, node.through, heads))
    for node in shown:
        heads = _heads(search, node.first_heads, node.first_effects)
        steps.append(Step(0, number_of[node.place], order.get(node), node.first_price, node.route, heads))
        way = node.on_the_way
        own = (len(steps) - 1, *(order[relay] for relay in way))
        routes.append(Route(own, (0, *(number_of[relay.place] for relay in way), len(places) - 1), node.route))
    return tuple(steps), tuple(routes)


def _heads(search: Search, prices: Prices, effects: Prices) -> tuple[StepHead, ...]:
    """Return the heads of a step."""
    layers = [layer for _, layer in search.executions]
    return tuple(
        StepHead(layers[call], head, price, effects.get((call, head), math.nan))
        for (call, head), price in prices.items()
    )
