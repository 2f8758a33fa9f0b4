"""Heads that carry (floor 5): those that fetch an answer from where it stands, found on some prompts, tested on others.

Every head gets scores from the rows that wrote the answers (`wherefrom.evidence.head_scores`). The highest by one
score are knocked out together (`wherefrom.evidence.without_heads`) on cases that had no part in finding them, beside
as many random other heads, drawn several times; and so in a text that needs no retrieval, to tell heads that carry
from heads that break everything. Gives `Carriers` to views.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, get_args

import numpy as np
import torch

from wherefrom.checks import check_items, whole
from wherefrom.errors import InputError, RecordingError
from wherefrom.evidence.ablations import ROUNDING
from wherefrom.evidence.carried import (
    RANKINGS,
    Among,
    Bools,
    Carriers,
    CarriersCost,
    Numbers,
    Together,
    rank,
    require_score,
)
from wherefrom.evidence.cases import Asked, Case, read_cases, within
from wherefrom.evidence.goal import AnswerGoal, Unit
from wherefrom.evidence.head_scores import Scores, score_heads
from wherefrom.evidence.noise import noise_floor, propagated
from wherefrom.evidence.prompted import Prompted, read_prompted
from wherefrom.evidence.running import Runner, runner_of
from wherefrom.evidence.where import sizes_of
from wherefrom.evidence.without_heads import Head, Knockout, without_heads
from wherefrom.model.language import require_text
from wherefrom.passages import Passage

Progress: TypeAlias = Callable[[str, int, int], None]
COUNT = 8
DRAWS = 5
FOUND_BY = ("first order", "retrieval", "induction")
TOKENS_AT_ONCE = 512
"""Tokens that are run side by side, in versions of one text."""
MOST_ORDINARY = 1024
"""Tokens of ordinary text, whose logits at every position are held."""
ORDINARY = (
    "The road to the coast leaves the town by the old gate and climbs slowly between low walls. In the morning the "
    "fields are still wet, and a thin mist hangs over the river. Most people who walk here do so for the view: from "
    "the top of the hill one can see the whole bay, the white houses along the shore and, on a clear day, the islands "
    "far out at sea. The path then turns to the south and goes down through a small wood, where it is cool even in "
    "the middle of summer. After an hour or so it reaches a beach that is never crowded. There is a small cafe, open "
    "from spring to autumn, which sells coffee, bread and fresh fish. Many visitors stay until the evening, because "
    "the light on the water is beautiful at that time, and then take the bus back to the town."
)
"""Text that anyone might write, in which nothing that comes is said before."""


@dataclass(frozen=True)
class Plan:
    """How heads are tested: what is knocked out together, and beside what; see `find_carriers`.

    Raises:
        InputError: a number below 1, a seed below 0, an unknown score or way.
    """

    count: int = COUNT
    by: str | Sequence[str] | None = None
    how: Knockout = "zero"
    draws: int = DRAWS
    among: Among = "layers"
    seed: int = 0

    def __post_init__(self) -> None:
        _require_one_of("how", self.how, get_args(Knockout))
        _require_one_of("among", self.among, get_args(Among))
        way_out = "A single one is by='first order'."
        if self.by is not None:
            given = check_items("by", _alone(self.by), expected="names of scores", way_out=way_out)
            if not given:
                raise InputError("by", expected="at least one score", given="none", way_out=way_out)
            for name in given:
                require_score(name)
            object.__setattr__(self, "by", tuple(dict.fromkeys(given)))
        least = {"count": ("the number of heads", 1, "8 of a few hundred are a good beginning.")}
        least["draws"] = ("the number of draws", 1, "Five show how much they differ.")
        least["seed"] = ("the seed", 0, "Any number draws other heads.")
        for name, (what, smallest, said) in least.items():
            object.__setattr__(self, name, whole(what, getattr(self, name), least=smallest, way_out=said))

    def scores_of(self, scores: Scores) -> tuple[str, ...]:
        """Return the scores by which heads are found: unless named, those of three that are above 0 for some head.

        Raises:
            InputError: none is.
        """
        if self.by is not None:
            return tuple(self.by)
        named = _by_name(scores)
        found = tuple(name for name in FOUND_BY if (named[name] > 0).any())
        if not found:
            raise _none_above(f"the scores {', '.join(FOUND_BY)}")
        return found


def _alone(by: Any) -> Any:
    return (by,) if isinstance(by, str) else by


def find_carriers(
    model: Any,
    cases: Sequence[Case],
    *,
    test: Sequence[Case] | None = None,
    tokenizer: Any = None,
    count: int = COUNT,
    by: str | Sequence[str] | None = None,
    how: Knockout = "zero",
    draws: int = DRAWS,
    among: Among = "layers",
    unit: Unit = "log-odds",
    ordinary: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Carriers:
    """Return the heads that carry answers from their places, and what knocking them out together does.

    Args:
        model: a decoder of `wherefrom.load`, or one of transformers.
        cases: prompts, answers and places; `wherefrom.retrieval_cases()` makes some.
        test: cases that the heads are tested on; unless given, every second one of each family of `cases`, on which
            they are then not found.
        tokenizer: of a model of transformers.
        count: how many heads are knocked out together.
        by: the score that they are found by, or several: "first order", "retrieval", "induction" or "weight"; each is
            tested by itself. Unless given the first three, as far as they are above 0 for some head. Only heads above 0
            are taken, so that there may be fewer than `count`.
        how: what is knocked out: their output, replaced by "zero" or by its "mean" over the positions of the texts
            that they were found on; or what they read of the place, "reads": no later position may read it in them.
        draws: how often as many random other heads are drawn.
        among: where from: "layers", each from the layer of one that was found, or the nearest that has others left; or
            the whole "model".
        unit: the answers' "log-odds", log p - log(1 - p), or their "log-probability".
        ordinary: text that needs no retrieval, to see what the same knock-out does to it; a page of the project's own
            unless given. Its last three quarters count.
        seed: of the draws, and of the random tokens for induction.
        progress: told about long work.

    Raises:
        InputError: no cases, one whose place is not in its prompt, or twice (the sentence says which case); a case
            that is found on and tested on; more heads than there are, or so many that no other ones are left; an
            unknown score, or one that is above 0 for no head here; infinite log-odds; a model without attention heads.
        RecordingError: a self-check failed, a cut had no effect, or numbers that are not finite.
    """
    start = time.perf_counter()
    plan = Plan(count, by, how, draws, among, seed)
    _require_one_of("unit", unit, get_args(Unit))
    tell = progress or (lambda what, done, total: None)
    runner = runner_of(model, tokenizer)
    reader = _Counting(runner)
    _require_others(plan.count, sum(sizes_of(reader).values()))
    asked = read_cases(model, reader, cases, tokenizer=tokenizer, unit=unit)
    if test is None:
        asked, held_out = _parted(asked)
    else:
        held_out = read_cases(model, reader, test, tokenizer=tokenizer, unit=unit, named="test case")
    _require_apart(asked, held_out)
    plain = ordinary_case(model, reader, ordinary, held_out, tokenizer=tokenizer)
    scores = score_heads(
        model, runner, asked, seed=plan.seed, progress=lambda done, total: tell("reading the cases", done, total)
    )
    found = measure_carriers(runner, scores, held_out, plain, plan, progress=tell)
    texts, seconds = found.cost.forward + reader.texts, time.perf_counter() - start
    return replace(found, cost=replace(found.cost, forward=texts, seconds=seconds))


def measure_carriers(
    runner: Runner,
    scores: Scores,
    cases: Sequence[Asked],
    ordinary: Asked,
    plan: Plan,
    *,
    progress: Progress | None = None,
) -> Carriers:
    """Return what knocking out the heads of the highest scores does.

    Args:
        runner: of the model.
        scores: of its heads, on other cases.
        cases: to test the heads on.
        ordinary: of `ordinary_case`.
        plan: what is knocked out, and beside what.
        progress: told after each case.

    Raises:
        InputError: as `find_carriers`.
        RecordingError: likewise.
    """
    start, draws = time.perf_counter(), plan.draws
    reader = _Counting(runner)
    work, names = _Work(reader, scores, plan.how), plan.scores_of(scores)
    sets = [_Set(own, scores, plan) for own in names]
    versions = [(), *(heads for own in sets for heads in own.versions)]
    values, answered = [], []
    for done, case in enumerate(cases, start=1):
        value, right = work.run(case, versions)
        values.append(value)
        answered.append(right)
        if progress is not None:
            progress("knocking heads out", done, len(cases))
    lost = np.array([own[0] - own for own in values]).T  # versions C
    still = np.array(answered).T  # versions C
    noise = work.noise  # of the cases; that of a text with hundreds of tokens to predict is larger
    nats = -work.run(ordinary, versions)[0] / len(ordinary.goal.rows)  # versions
    return Carriers(
        model=runner.name,
        fingerprint=runner.fingerprint,
        heads=scores.heads,
        scores=_by_name(scores),
        found_on=scores.cases,
        families=tuple(case.family for case in cases),
        before=np.array([own[0] for own in values]),
        answered=still[0],
        unit=cases[0].goal.unit,
        how=plan.how,
        among=plan.among,
        seed=plan.seed,
        count=plan.count,
        sets=tuple(
            own.together(1 + place * (1 + draws), lost, still, nats - nats[0]) for place, own in enumerate(sets)
        ),
        left_out=() if plan.by else tuple(name for name in FOUND_BY if name not in names),
        ordinary_nats=float(nats[0]),
        ordinary_tokens=len(ordinary.goal.ids),
        noise=noise,
        cost=CarriersCost(scores.texts + reader.texts, scores.cases, time.perf_counter() - start),
    )


def _require_one_of(what: str, value: Any, known: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in known:
        raise InputError(
            what,
            expected=" or ".join(map(repr, known)),
            given=repr(value),
            way_out="They are told apart in help(wherefrom.find_carriers) and by wherefrom carriers --help.",
        )


# -- cases to find on, cases to test on


def _parted(cases: Sequence[Asked]) -> tuple[tuple[Asked, ...], tuple[Asked, ...]]:
    """Return the cases on which heads are found, and every second one of each family, on which they are tested."""
    found: list[Asked] = []
    tested: list[Asked] = []
    seen: dict[str, int] = {}
    for case in cases:
        seen[case.family] = seen.get(case.family, 0) + 1
        (found if seen[case.family] % 2 else tested).append(case)
    if not tested:
        raise InputError(
            "the cases",
            expected="two of a family at least, one to find heads on and one to test them on",
            given=f"{len(cases)}, of which none is left to test on",
            way_out="Give more cases, or others to test on (test=[...], --test FILE).",
        )
    return tuple(found), tuple(tested)


def _require_apart(found: Sequence[Asked], tested: Sequence[Asked]) -> None:
    """Refuse a case that is found on and tested on."""
    known = {case.goal.ids: case.name for case in found}
    for case in tested:
        if case.goal.ids in known:
            raise InputError(
                case.name,
                expected="a prompt and an answer that the heads are not found on",
                given=f"those of {known[case.goal.ids]}",
                way_out="Give each prompt once.",
            )


def ordinary_case(
    model: Any, runner: Runner, text: str | None, cases: Sequence[Asked], *, tokenizer: Any = None
) -> Asked:
    """Return ordinary text as a case: its last three quarters are the answer, and nothing in particular the place.

    Args:
        model: a decoder of `wherefrom.load` or of transformers.
        runner: of that model.
        text: some sentences; None: a page of the project's own, or as much of it as fits into the model's context.
        cases: whose places its own is as long as, on the mean.
        tokenizer: of a model of transformers.

    Raises:
        InputError: no sentences, or more than 1,024 tokens.
    """
    read = _of_text(model, runner, ORDINARY if text is None else text, tokenizer, shorten=text is None)
    length = len(read.tokens)
    if length > MOST_ORDINARY:
        raise InputError(
            "the ordinary text",
            expected=f"at most {MOST_ORDINARY:,} tokens",
            given=f"{length:,}",
            way_out="A page or two are enough.",
            tokens=length,
        )
    size = round(float(np.mean([len(case.place) for case in cases])))
    stop = max(1, read.first - 1)
    place = Passage(max(0, stop - size), stop, "the last words before the part that counts")
    return Asked(AnswerGoal(read.tokens.ids, read.first, "log-probability"), place, "", "the ordinary text")


def _of_text(model: Any, runner: Runner, text: Any, tokenizer: Any, *, shorten: bool) -> Prompted:
    """Return a text as a prompt, its first quarter, and an answer; a half of it where all does not fit, if wanted."""
    require_text(text, "the ordinary text")
    cut = text.find(" ", len(text) // 4)
    if cut < 1 or not text[cut:].strip():
        raise InputError(
            "the ordinary text",
            expected="some sentences",
            given=f"{len(text)} characters without a blank between two words",
            way_out="Leave it out, and a text of the project's own is taken.",
        )
    try:
        return read_prompted(model, runner, text[:cut], text[cut:], tokenizer=tokenizer)
    except InputError as error:
        if shorten and "context" in error.facts:
            return _of_text(model, runner, text[: len(text) // 2], tokenizer, shorten=True)
        raise within(error, "the ordinary text") from None


# -- sets of heads


def _by_name(scores: Scores) -> dict[str, Numbers]:
    found = scores.first_order, scores.retrieval, scores.induction, scores.weight
    return dict(zip(RANKINGS, found, strict=True))


class _Set:
    """The heads of the highest score, as far as it is above 0, and as many random others, several times."""

    def __init__(self, by: str, scores: Scores, plan: Plan) -> None:
        named = _by_name(scores)
        ranked = rank(scores.heads, named, by)
        _require_others(plan.count, len(ranked))
        size = min(plan.count, int((named[by] > 0).sum()))
        if not size:
            raise _none_above(f"the score {by!r}")
        self.by, self.heads, rest = by, ranked[:size], ranked[size:]
        draw = np.random.default_rng(plan.seed)
        self.others = tuple(others(self.heads, rest, plan.among, draw) for _ in range(plan.draws))

    @property
    def versions(self) -> tuple[tuple[Head, ...], ...]:
        """The found, and then each draw of others."""
        return self.heads, *self.others

    def together(self, first: int, lost: Numbers, answered: Bools, added: Numbers) -> Together:
        """Return what was measured: the found are version `first` of lost [versions, C], and so on."""
        rest = slice(first + 1, first + 1 + len(self.others))
        return Together(
            by=self.by,
            heads=self.heads,
            lost=lost[first],
            answered=answered[first],
            ordinary=float(added[first]),
            others=self.others,
            others_lost=lost[rest],
            others_answered=answered[rest],
            others_ordinary=added[rest],
        )


def _none_above(what: str) -> InputError:
    return InputError(
        what,
        expected="a number above 0 for some head",
        given="none for any, on the cases that heads are found on",
        way_out="Give more cases, or others, which the model answers from their places; or ask for another score.",
    )


def _require_others(count: int, heads: int) -> None:
    if 2 * count > heads:
        raise InputError(
            "the number of heads",
            expected=f"at most {heads // 2}: the model has {heads}, and as many others have to be left to draw from",
            given=f"{count}",
            way_out="Ask for fewer.",
            heads=heads,
        )


def others(found: Sequence[Head], rest: Sequence[Head], among: Among, draw: np.random.Generator) -> tuple[Head, ...]:
    """Return as many random other heads as were found, none twice.

    Args:
        found: some heads.
        rest: those that may be drawn, at least as many.
        among: "model", or "layers": each from the layer of one that was found, or, where none is left in it, from the
            nearest layer that has some.
        draw: what they are drawn by.
    """
    shuffled = [rest[int(place)] for place in draw.permutation(len(rest))]
    if among == "model":
        return tuple(sorted(shuffled[: len(found)]))
    drawn = []
    for layer, _ in (found[int(place)] for place in draw.permutation(len(found))):
        nearest = min(shuffled, key=lambda head: abs(head[0] - layer))
        shuffled.remove(nearest)
        drawn.append(nearest)
    return tuple(sorted(drawn))


# -- runs


class _Counting(Runner):
    """Runs texts as another does, and counts them.

    Attributes:
        texts: how many were run.
    """

    def __init__(self, runner: Runner) -> None:
        self.name, self.fingerprint, self.format = runner.name, runner.fingerprint, runner.format
        self.vocabulary, self.context = runner.vocabulary, runner.context
        self._runner, self.texts = runner, 0

    def logits(self, ids: torch.Tensor, rows: Sequence[int], **how: Any) -> torch.Tensor:
        """Return the logits of some rows; see `Runner.logits`."""
        self.texts += len(ids)
        return self._runner.logits(ids, rows, **how)

    def projection(self, name: str) -> torch.Tensor | None:
        """Return the output projection of an attention module."""
        return self._runner.projection(name)

    def label(self, token: int) -> str:
        """Return what a person sees of a token."""
        return self._runner.label(token)


class _Work:
    """Runs cases in versions without some heads.

    Attributes:
        noise: differences of a value below this are rounding.
    """

    def __init__(self, runner: Runner, scores: Scores, how: Knockout) -> None:
        self._runner, self._scores, self._how = runner, scores, how
        self.noise = ROUNDING

    @torch.no_grad()
    def run(self, case: Asked, versions: Sequence[tuple[Head, ...]]) -> tuple[Numbers, Bools]:
        """Return the value of the answer in each version, and whether each of its tokens is the likeliest there."""
        goal, at_once = case.goal, max(1, TOKENS_AT_ONCE // len(case.goal.ids))
        values, answered = [], []
        for start in range(0, len(versions), at_once):
            some = versions[start : start + at_once]
            attention = without_heads(
                some, self._how, length=len(goal.ids), place=case.place.positions, means=self._scores.means
            )
            logits = self._runner.logits(torch.tensor([goal.ids] * len(some)), goal.rows, attention=attention)
            try:
                values.append(goal.value(logits).cpu().numpy())
            except InputError as error:
                raise within(error, case.name) from None
            expected = torch.tensor(goal.tokens, device=logits.device)
            answered.append((logits.argmax(dim=-1) == expected).all(dim=-1).cpu().numpy())
            if not start:
                self._note_noise(goal, logits[:1])
        return _finite(np.concatenate(values)), np.concatenate(answered)

    def _note_noise(self, goal: AnswerGoal, logits: torch.Tensor) -> None:
        """Find out the noise of a case: of float32 what rounding the logits makes, of half precision once measured."""
        if self._runner.format in ("float32", "float64"):
            self.noise = max(self.noise, 2 * propagated(goal, logits, self._runner.format))
        elif self.noise == ROUNDING:
            self.noise = max(self.noise, noise_floor(self._runner, goal))


def _finite(values: Numbers) -> Numbers:
    if not np.isfinite(values).all():
        raise RecordingError(
            "a knock-out of heads",
            expected="finite values",
            given="NaN or an infinity",
            way_out="The model's numbers overflow on this text; nothing was measured.",
        )
    return values
