"""The evidence at one position of a recording (floor 5): every source's price beside its measured knock-out.

A trace records a text first; this asks about a recording that is there, such as one that an explorer shows, and the
model that made it. Both are measured in the same heads for the same target. The price is the first-order estimate of
`wherefrom.evidence.gradients` (one forward and one backward pass over the text), summed over the heads in scope; the
knock-out is what `wherefrom.evidence.knockout` measures.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from wherefrom.capture.huggingface.model import TransformersModel, as_transformers_model
from wherefrom.capture.verbs import is_module
from wherefrom.checks import whole
from wherefrom.errors import InputError
from wherefrom.evidence.carried_sources import carried_sources_of, worth_a_look
from wherefrom.evidence.goal import TokenGoal
from wherefrom.evidence.gradients import price
from wherefrom.evidence.knockout import Knockouts, knock_out, knock_out_heads, require_predicting
from wherefrom.evidence.noise import propagated
from wherefrom.evidence.priced import EXACTNESS
from wherefrom.evidence.running import runner_of
from wherefrom.evidence.target import Vocabulary, find_target
from wherefrom.evidence.traced import Aim, CarriedSource
from wherefrom.evidence.versions import Destination, Position, require_whole
from wherefrom.model.language import LanguageModel
from wherefrom.questions.scope import Scope, named_list
from wherefrom.recording import Recording, check_recording

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with (what is being done, steps done, steps in all). What it raises ends the work."""

MOST_PRICED = 4096
"""Tokens of a text that is priced: the backward pass of the default model holds 1.4 MB of each."""
ROWS_TOLD = 128
"""Versions of the position between two words of progress."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """What the sources of one position were worth to a token.

    Attributes:
        recording: whose position.
        aim: the token.
        scope: the layers and heads, priced and cut.
        knockouts: of each source that the position may read.
        prices: float64 [S], first order, in nats; NaN at a source that the position may not read. None: not priced.
        why_not_priced: then, in a sentence.
        carried: the heads of the strongest sources, each cut alone.
        noise: nats below which a knock-out is rounding: how far the same number, computed in two ways, was apart, or
            what rounding the logits makes of it, twice the larger.
        price_seconds: wall clock of both passes.
        head_seconds: of cutting heads alone.
    """

    recording: Recording
    aim: Aim
    scope: Scope
    knockouts: Knockouts
    prices: NDArray[np.float64] | None
    why_not_priced: str | None
    carried: tuple[CarriedSource, ...]
    noise: float
    price_seconds: float
    head_seconds: float

    @property
    def position(self) -> int:
        """The one that reads, and predicts."""
        return self.knockouts.destination

    @property
    def exactness_of_prices(self) -> str:
        """How exact the prices are, in a sentence."""
        return EXACTNESS["closed form"]

    @property
    def scope_in_words(self) -> str:
        """The layers and heads that were priced and cut, such as "head 2 of layer 1"."""
        layers, heads = self.scope.layers, self.scope.heads
        layer = "all layers" if layers is None else named_list("layer", layers)
        head = "all heads" if heads is None else named_list("head", heads)
        return f"{head} of {layer}" + ("" if self.scope.kind == "self" else f", {self.scope.kind}-attention")

    @property
    def nats(self) -> NDArray[np.float64]:
        """The knock-outs by source, [S]: what the target loses; NaN where the position may not read the source."""
        found = np.full(len(self.recording.read_by(self.scope.kind, self.scope.part)[1]), np.nan)
        found[[cut[0] for cut in self.knockouts.cuts]] = self.knockouts.nats
        return found


def evidence_at(
    model: Any,
    recording: Recording,
    position: int | None = None,
    *,
    target: str | int | None = None,
    scope: Scope | None = None,
    carried_sources: int = 3,
    carriers: int = 4,
    progress: Progress | None = None,
) -> Evidence:
    """Return what every source of a position of a recording was worth to a token that is predicted there.

    Args:
        model: that made the recording: from `wherefrom.load`, or one of transformers.
        recording: of a text.
        position: the one that reads; the last unless given.
        target: the token to ask about, as text or id; the likeliest unless given.
        scope: the layers and heads; all of self-attention unless given.
        carried_sources: for how many sources, by the size of their knock-out, each head is cut alone; 0 for none.
        carriers: how many heads are listed for each.
        progress: told about long work.

    Raises:
        InputError: another model, a target that is no single token, a position that reads only itself, a scope that the
            recording does not have, a number of sources or heads below 0.
        RecordingError: a kernel failed the self-check.
    """
    carried_sources = whole("carried_sources", carried_sources, least=0, way_out="0 leaves them out.")
    carriers = whole("carriers", carriers, least=0, way_out="0 leaves them out.")
    tell = progress or (lambda what, done, total: None)
    at, vocabulary = _position(model, check_recording(recording), position)
    logits = at.logits()
    aim = _aim(vocabulary, logits, target)
    tell("cutting each source", 0, len(at.readable("self" if scope is None else scope.kind)))
    found = knock_out(
        at,
        aim.target,
        scope=scope,
        rows_at_once=None if progress is None else ROWS_TOLD,
        progress=lambda done, total: tell("cutting each source", done, total),
    )
    start = time.perf_counter()
    prices, value, why_not = _prices(model, at, aim, found, tell)
    price_seconds = time.perf_counter() - start
    strong = worth_a_look(found, carried_sources)
    if strong:
        tell("cutting each head alone", 0, len(strong))
    heads = knock_out_heads(
        at,
        aim.target,
        strong,
        scope=scope,
        progress=lambda done, total: tell("cutting each head alone", done, total),
    )
    goal = TokenGoal(recording.tokens.ids[: at.position + 1], aim.target)
    apart = 0.0 if value is None else abs(value - found.before)
    return Evidence(
        recording=recording,
        aim=aim,
        scope=found.scope,
        knockouts=found,
        prices=prices,
        why_not_priced=why_not,
        carried=carried_sources_of(recording, found, heads, carriers),
        noise=2 * max(apart, propagated(goal, logits[None, None], at.format)),
        price_seconds=price_seconds,
        head_seconds=heads.seconds,
    )


def why_not_measured(recording: Recording, scope: Scope) -> InputError | None:
    """Return why no position can be measured in a scope, by the recording alone; None where it may be."""
    try:
        require_whole(recording)
        require_predicting(recording, scope)
    except InputError as error:
        return error
    return None


def _position(model: Any, recording: Recording, position: int | None) -> tuple[Position, Vocabulary]:
    if isinstance(model, LanguageModel) or not (is_module(model) or isinstance(model, TransformersModel)):
        at = Destination(model, recording, position)
        return at, model.tokenizer
    from wherefrom.evidence import huggingface as other

    asked = as_transformers_model(model)
    return other.TransformersDestination(asked, recording, position), other.Vocabulary(asked.tokenizer)


def _aim(vocabulary: Vocabulary, logits: Tensor, wanted: str | int | None) -> Aim:
    target = find_target(vocabulary, logits, wanted)
    probability = math.exp(float(target.of_logits(logits)))
    return Aim(target, vocabulary.label(target.id), None, probability)


def _prices(
    model: Any, at: Position, aim: Aim, found: Knockouts, tell: Progress
) -> tuple[NDArray[np.float64] | None, float | None, str | None]:
    """Return the price of each source, and the target as the whole text gives it; or why there are none."""
    recording, scope = at.recording, found.scope
    if scope.kind != "self" or recording.source is not None:
        return None, None, "The estimate (attribution) is of texts that read themselves, with no encoder beside."
    ids = recording.tokens.ids[: at.position + 1]
    if len(ids) > MOST_PRICED:
        return None, None, f"A backward pass is made over {MOST_PRICED:,} tokens at most, and these are {len(ids):,}."
    tell("one pass forward, one back", 0, 2)
    try:
        priced = price(
            runner_of(model),
            TokenGoal(ids, aim.target),
            progress=lambda done, total: tell("one pass forward, one back", done, total),
        )
        own = priced.sources(rows=[at.position], layers=scope.layers, heads=scope.heads)
    except InputError as error:
        return None, None, str(error)
    prices = np.full(at.sources(), np.nan)
    readable = sorted(at.readable())
    prices[readable] = own[readable]
    return prices, priced.value, None
