"""What an answer drew on (floor 5): every passage of the prompt under several lenses, then measured as a budget allows.

Three kinds of passes are run. One forward and one backward pass price every edge as the model reads (weight, moved,
attribution, closed form); one more of each, with gates on the passages, says what leaving each out would do; what is
left of the budget goes into runs with passages really taken away, of which the strongest alone and random ones
together. The evidence is the gates' estimate, corrected by all runs (a ridge fit whose prior it is), and how well each
lens ranks those very runs is told beside it.

Takes gates, gradients, ablations and the fit from beside it; gives an `AnswerTrace` to views.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from wherefrom.checks import check_items, check_kind, check_number
from wherefrom.errors import InputError
from wherefrom.evidence.ablations import Ablations, Ablator, Heads, How, require_cut, subsets
from wherefrom.evidence.answered import ENOUGH, Agreement, AnswerTrace, HeadPrice, Lens, spearman
from wherefrom.evidence.edges import How as Price
from wherefrom.evidence.gates import AT, gate_gradients
from wherefrom.evidence.goal import AnswerGoal, Unit
from wherefrom.evidence.gradients import price
from wherefrom.evidence.priced import Priced
from wherefrom.evidence.prompted import Prompted, read_prompted
from wherefrom.evidence.read_weights import read_weights
from wherefrom.evidence.running import Runner, runner_of
from wherefrom.evidence.scored_answer import AnswerCost
from wherefrom.evidence.surrogate import fit
from wherefrom.evidence.where import EVERYWHERE, Where, sizes_of
from wherefrom.passages import Passage, passages

Progress: TypeAlias = Callable[[str, int, int], None]
Numbers: TypeAlias = NDArray[np.float64]
BUDGET = 12.0
ALONE = 3
"""So many of the strongest passages are taken away alone, before random ones together, where not all of them can be."""
BESIDE = 4
"""Where all can, so many runs without random ones together must be affordable besides."""
MOST_RUNS = 256
STRONGEST = 3
"""So many heads are named of each passage."""
SEED = 0
PRICES: dict[str, Price] = {
    "weight": "weight",
    "moved": "moved",
    "attribution": "score gradient",
    "closed form": "closed form",
    "direct": "direct",
}
"""The lenses that are sums of prices of edges."""
MEANINGS = {
    "weight": "share of what the answer's rows read, mean over layers, heads and rows",
    "moved": "length of what the answer's rows are given of it, |a W_O v|, summed over layers, heads and rows",
    "attribution": "sum over all edges that read it of a (v - y) . g, the derivative by the edges' scores",
    "closed form": "sum over all edges that read it of a / (1 - a) (v - y) . g, what each edge's cut alone would lose",
    "gate": "what the answer gains, to first order, by a gate on each passage, while all gates let through a part",
    "direct": "what a W_O v of the answer's rows adds to their logits through the final norm alone",
}
ESTIMATE = "estimate: first order"


def trace_answer(
    model: Any,
    prompt: str | Sequence[Mapping[str, Any]],
    answer: str | None = None,
    *,
    question: str | None = None,
    tokenizer: Any = None,
    by: Any = "sentence",
    words: Sequence[int] | None = None,
    unit: Unit = "log-odds",
    how: How = "deletion",
    layers: Sequence[int] | None = None,
    heads: Heads | None = None,
    direct: bool = False,
    budget: float = BUDGET,
    at: Sequence[float] = AT["weights"],
    max_tokens: int | None = None,
    progress: Progress | None = None,
) -> AnswerTrace:
    """Return what an answer drew on: which passages of the prompt, by several lenses and by measuring.

    Args:
        model: a decoder of `wherefrom.load`, or one of transformers.
        prompt: a text; or chat messages, written out by the model's template.
        answer: a text, scored as it is given, whoever wrote it; what the model writes itself unless given.
        question: what stands between the prompt and the answer, such as "Where is it? It is", on a line of its own
            where no blank parts it. It is read, and never taken away; without one the prompt's own last part, in which
            it ends, stays.
        tokenizer: of a model of transformers.
        by: what the prompt is divided into: "token", "word", "sentence", "line", "paragraph", "document", or your own
            marks (see `wherefrom.passages.passages`): texts that occur once, token ranges, or names of those.
        words: places of the answer's tokens that count, from 0; all unless given.
        unit: the answer's "log-odds", log p - log(1 - p), or its "log-probability".
        how: the way passages are taken away: "deletion", their tokens are taken out of the text; "total", no later
            token may read them; "direct", the answer's tokens may not read them.
        layers: where passages are priced, gated and, with "total" and "direct", cut; all layers unless given.
        heads: likewise, heads of each of these layers; or pairs (layer, head), instead of layers.
        direct: also what passages add to the answer's logits along the residual stream alone, by two passes more.
        budget: how many passes over the whole text may be run, forward and backward together; at least 3. Passes with
            passages left out count by the tokens that are left.
        at: the gates at which the gate gradient is taken, one after the other; each is two passes.
        max_tokens: of an answer that the model writes; 32 unless given.
        progress: told about long work.

    Raises:
        InputError: a budget too small, no passage in the prompt, marks that match nothing or twice or overlap, an empty
            answer, log-odds that are infinite, a prompt longer than the context, layers or heads that are not there or
            of a deletion, a model that is no decoder.
        RecordingError: a kernel failed the self-check, or a cut had no effect.
    """
    start = time.perf_counter()
    tell = progress or (lambda what, done, total: None)
    check_kind("direct", direct, bool, way_out="It is True or False.")
    gates_at = check_items("the gates", at, expected="numbers in a row", way_out="A single one is (0.6,).")
    pricing = _require_budget(budget, len(gates_at), direct)
    require_cut(how, layers, heads)
    runner = runner_of(model, tokenizer)
    where = EVERYWHERE if layers is None and heads is None else Where.of(layers, heads, sizes_of(runner))
    read = read_prompted(model, runner, prompt, answer, question=question, tokenizer=tokenizer, max_tokens=max_tokens)
    goal = AnswerGoal(read.tokens.ids, read.first, unit, words)
    asked = _Asked(runner, goal, divided(read, by), where)
    tell("reading the text", 0, 3)
    priced = price(runner, goal) if pricing else None
    found = _read(asked) if priced is None else _priced(asked, priced, direct=direct)
    tell("setting gates", 1, 3)
    found.lenses["gate"] = _gated(asked, gates_at)
    absent = {name: found.absent.get(name, _why(name, pricing, len(gates_at))) for name in MEANINGS}
    trace = AnswerTrace(
        model=runner.name,
        fingerprint=runner.fingerprint,
        tokens=read.tokens,
        first=read.first,
        written=read.written,
        passages=asked.parts,
        by=by if isinstance(by, str) else "marks",
        unit=unit,
        value=float(goal.value(found.logits)[0]),
        token_log_probabilities=tuple(goal.log_probabilities(found.logits)[0].tolist()),
        chosen=tuple(row + 1 for row in goal.rows),
        lenses={name: found.lenses[name] for name in MEANINGS if name in found.lenses},
        absent={name: why for name, why in absent.items() if name not in found.lenses},
        heads=found.heads,
        where=str(where),
        measured=np.full(len(asked.parts), np.nan),
        evidence=np.nan_to_num(found.lenses["gate"].values),
        how=how,
        cost=AnswerCost(
            forward=1.0 + len(gates_at) + direct,
            backward=0.0 + pricing + len(gates_at) + direct,
            budget=float(budget),
            seconds=0.0,
            reading=read.passes,
        ),
    )
    if priced is not None:
        tell("taking passages away", 2, 3)
        trace = _measured(trace, Ablator(runner, goal, asked.parts, priced=priced), how, layers, heads, tell)
    return replace(trace, cost=replace(trace.cost, seconds=time.perf_counter() - start))


def _require_budget(budget: Any, gates: int, direct: bool) -> bool:
    """Refuse a budget that does not pay for the lenses; return whether it pays for pricing every edge too."""
    least = 1.0 + 2 * gates + 3 * direct
    more = ", two along the residual stream and one to price every edge" * direct
    way_out = "Give {0:g} to measure nothing, {1:g} to price every edge too, more" if not direct else "Give more"
    number = check_number(
        "the budget",
        budget,
        expected=f"at least {least:g} passes: one to read the text, a forward and a backward one for each gate" + more,
        way_out=way_out.format(least, least + 1) + " to check the estimates by taking passages away.",
        least=least,
    )
    return direct or number >= least + 1


def _why(name: str, pricing: bool, gates: int) -> str:
    """Return why a lens that nothing spoke against is not there."""
    if not pricing:
        return f"not run: it takes a budget of {2 + 2 * gates + 2 * (name == 'direct')} passes"
    return "not asked for: it takes two passes more (direct=True; on the command line --lens direct)"


def divided(read: Prompted, by: Any) -> tuple[Passage, ...]:
    """Return the passages of the prompt that can be taken away."""
    found = passages(read.tokens, by, within=range(read.sources))
    ends = isinstance(by, str) and found[-1].stop == read.first  # the row that predicts the answer is in it
    parts = found[:-1] if ends else found
    if not parts:
        raise InputError(
            "the prompt",
            expected="two parts at least, since the one that the answer goes on from stays",
            given="one",
            way_out='Divide it otherwise, for example by="token", or give what is asked as the question.',
        )
    return parts


@dataclass(frozen=True)
class _Asked:
    """What is asked: by which model, of which answer and which parts of the prompt, in which layers and heads."""

    runner: Runner
    goal: AnswerGoal
    parts: tuple[Passage, ...]
    where: Where


@dataclass(frozen=True)
class _Found:
    """What reading the text as it is told.

    Attributes:
        logits: [1, R, N] of the answer's rows.
        lenses: by name.
        absent: why a lens is not there.
        heads: the strongest of each passage.
    """

    logits: Tensor
    lenses: dict[str, Lens]
    absent: dict[str, str]
    heads: tuple[HeadPrice, ...] = ()


def _lens(name: str, unit: str, exactness: str, values: Numbers) -> Lens:
    return Lens(name, unit, MEANINGS[name], exactness, values)


def _read(asked: _Asked) -> _Found:
    """See what the answer's rows read, by one forward pass."""
    shares, logits = read_weights(asked.runner, asked.goal, asked.parts, where=asked.where)
    return _Found(logits, {"weight": _lens("weight", "share", "exact, within rounding", shares.numpy())}, {})


def _priced(asked: _Asked, priced: Priced, *, direct: bool) -> _Found:
    """Sum the prices of edges by passage, under each lens that the model permits."""
    layers, by_head = _by_head(asked, priced)
    found = _Found(priced.logits, {}, {}, _strongest(layers, by_head))
    for name, how in PRICES.items():
        if name == "direct" and not direct:
            continue
        try:
            values = by_head.sum(axis=(0, 1)) if name == "attribution" else _sums(asked, priced, how)
        except InputError as error:  # it has no such prices, and says why
            found.absent[name] = f"not there: {error.given}"
            continue
        unit = "share" if name == "weight" else priced.unit(how)
        exactness = ESTIMATE if name == "attribution" else priced.exactness(how)
        found.lenses[name] = _lens(name, unit, exactness, values)
    return found


def _sums(asked: _Asked, priced: Priced, how: Price) -> Numbers:
    """Return the prices of each passage's edges, [P]: how much was read and moved is of the answer's rows alone."""
    each = asked.where.parts()
    if how not in ("weight", "moved"):
        return sum((priced.passages(asked.parts, how, **part) for part in each), start=np.zeros(len(asked.parts)))
    read = sum((priced.sources(how, rows=asked.goal.rows, **part) for part in each), start=np.zeros(()))  # S
    values = np.array([read[part.start : part.stop].sum() for part in asked.parts])
    if how == "moved":
        return values
    heads = sum(int(asked.where.mask(call.layer, call.heads).sum()) for call in priced.calls)
    return values / (heads * len(asked.goal.rows))


def _by_head(asked: _Asked, priced: Priced) -> tuple[list[int], Numbers]:
    """Return the layers, and what each passage was worth through each of their heads by its scores, [L, H, P]."""
    each = np.nan_to_num(priced.heads("score gradient", passages=asked.parts))  # calls H P
    layers = sorted(set(priced.layers))
    prices = np.zeros((len(layers), *each.shape[1:]))
    for call, own in zip(priced.calls, each, strict=True):  # a layer may run several times
        prices[layers.index(call.layer)] += own * asked.where.mask(call.layer, len(own)).numpy()[:, None]
    return layers, prices


def _strongest(layers: Sequence[int], prices: Numbers) -> tuple[HeadPrice, ...]:
    """Return the heads through which each passage was worth most, of prices [L, H, P]."""
    found = []
    for passage, own in enumerate(np.moveaxis(prices, -1, 0)):  # L H
        for place in np.argsort(-np.abs(own), axis=None, kind="stable")[:STRONGEST]:
            layer, head = divmod(int(place), own.shape[1])
            if own[layer, head]:
                found.append(HeadPrice(layers[layer], head, passage, float(own[layer, head])))
    return tuple(found)


def _gated(asked: _Asked, at: Sequence[float]) -> Lens:
    """Estimate what leaving each passage out would do."""
    gated = gate_gradients(asked.runner, asked.goal, asked.parts, at=at, where=asked.where)
    return _lens("gate", f"{asked.goal.unit} per unit of gate", ESTIMATE, gated.scores)


def _measured(trace: AnswerTrace, measurer: Ablator, how: How, layers: Any, heads: Any, tell: Progress) -> AnswerTrace:
    """Return a trace with passages taken away as far as its budget goes: the strongest alone, then random ones."""
    left = trace.cost.budget - trace.cost.passes
    if left < measurer.upfront:
        return trace
    given = (left, how, layers, heads)
    try:
        kept = _affordable(measurer, _choices(trace.passages, _prior(trace), len(trace.passages)), *given)
        if len(kept) < len(trace.passages) + BESIDE:
            kept = _affordable(measurer, _choices(trace.passages, _prior(trace), ALONE), *given)
    except InputError:  # a choice that leaves nothing of the prompt: one passage, which is all of it
        return trace
    runs = None
    if len(kept):
        told = lambda done, total: tell("taking passages away", done, total)  # noqa: E731
        runs = measurer.measure(kept, how=how, layers=layers, heads=heads, progress=told)
    trace = replace(trace, cost=replace(trace.cost, forward=trace.cost.forward + measurer.cost), ablations=runs)
    return trace if runs is None else _corrected(trace, runs)


def _prior(trace: AnswerTrace) -> Numbers:
    """Return the gates' numbers, 0 of a passage that has none."""
    return np.nan_to_num(trace.lenses["gate"].values)


def _affordable(
    measurer: Ablator, kept: NDArray[np.bool_], left: float, how: How, layers: Any, heads: Any
) -> NDArray[np.bool_]:
    """Return the first of some choices that so many passes pay for, with what was run and comes before them."""
    costs = measurer.costs(kept, how=how, layers=layers, heads=heads)  # which may run the check: first
    return kept[np.cumsum(costs) <= left - measurer.cost - measurer.upfront]


def _choices(parts: Sequence[Passage], gate: Numbers, most: int) -> NDArray[np.bool_]:
    """Return which passages are kept in each run that a budget may pay for, bool [n, P], each choice once.

    The strongest ones, at most so many, are gone alone first; then random halves are.
    """
    strongest = np.argsort(-np.abs(gate), kind="stable")[:most]
    alone = np.arange(len(parts)) != strongest[:, None]  # n P
    both = np.concatenate([alone, subsets(parts, MOST_RUNS, seed=SEED)])
    return both[np.sort(np.unique(both, axis=0, return_index=True)[1])]


def _corrected(trace: AnswerTrace, runs: Ablations) -> AnswerTrace:
    """Return a trace whose estimate is corrected by its runs, with what they say of its lenses."""
    gate, kept = _prior(trace), runs.kept
    whole = np.ones((1, len(gate)), np.bool_)
    fitted = fit(np.concatenate([kept, whole]), np.append(runs.values, trace.value), prior=gate)
    measured = np.full(len(gate), np.nan)
    for gone, effect in zip(~kept, runs.effects, strict=True):
        if gone.sum() == 1:
            measured[gone] = effect
    enough = len(kept) >= ENOUGH
    agreements = [
        Agreement(
            lens.name, spearman(np.asarray(kept @ np.nan_to_num(lens.values), np.float64), runs.values), len(kept)
        )
        for lens in trace.lenses.values()
    ]
    return replace(
        trace,
        fitted=fitted,
        measured=measured,
        evidence=fitted.weights if enough else gate * (fitted.scale if fitted.scale > 0 else 1.0),
        agreements=tuple(agreements) if enough else (),
    )
