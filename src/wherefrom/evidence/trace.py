"""The main job (floor 5): where did this token come from? Every source's weight beside its measured knock-out.

It records one pass, asks the recording for the last position's weights, measures every source's knock-out, and then,
for the strongest sources, every head alone. The result is a frozen value that views draw and programs read as JSON.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wherefrom.capture.native import forecast, record
from wherefrom.checks import check_index, whole
from wherefrom.errors import InputError
from wherefrom.evidence.knockout import HeadKnockouts, Knockouts, LastPosition, knock_out, knock_out_heads
from wherefrom.evidence.target import Target, find_target
from wherefrom.model.language import LanguageModel, read_prompt
from wherefrom.questions import Answer, Column, Scope
from wherefrom.questions.asked import EXACTNESS, mean_row
from wherefrom.questions.exact import row_of_weights
from wherefrom.recording import Prediction, Recording
from wherefrom.tokens import Tokens, readable

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with (what is being done, steps done, steps in all)."""

SCHEMA = "wherefrom.trace/1"
CARRIED_FROM = 0.05
"""Nats that a knock-out must reach for its heads to be looked at: a change of 5 % of the probability."""
DECIMALS = 7
"""JSON numbers are rounded here: float32 carries seven digits, more would be noise."""


@dataclass(frozen=True)
class Carrier:
    """One head that carried a source to the target: its measured knock-out alone, in nats, and its weight there."""

    layer: int
    head: int
    nats: float
    weight: float


@dataclass(frozen=True)
class CarriedSource:
    """The heads of one source.

    Attributes:
        source: its position.
        carriers: heads, those first whose knock-out goes furthest the way of the source's own.
        opposing: the head whose knock-out goes furthest the other way, None if none does.
        others: how many heads are not among the carriers.
        others_nats: what their single knock-outs add up to, the opposing head's included.
    """

    source: int
    carriers: tuple[Carrier, ...]
    opposing: Carrier | None
    others: int
    others_nats: float


@dataclass(frozen=True)
class Cost:
    """What a trace cost: wall-clock seconds of each part, versions of the position run, the recording's bytes."""

    record_seconds: float
    knockout_seconds: float
    head_seconds: float
    knockout_rows: int
    head_rows: int
    recording_bytes: int


@dataclass(frozen=True)
class Aim:
    """The target as people read it.

    Attributes:
        target: the token id, and the other one of a difference.
        label: the token, readable.
        against_label: the other token of a difference, or None.
        probability: the token's probability, nothing cut.
    """

    target: Target
    label: str
    against_label: str | None
    probability: float

    def __str__(self) -> str:
        return f'"{self.label}"' + ("" if self.against_label is None else f' over "{self.against_label}"')


@dataclass(frozen=True, eq=False)
class Trace:
    """Where one prediction came from.

    Attributes:
        recording: the pass that was traced, for further questions; its last position is the one that predicts.
        aim: the target.
        predicted: what the model expected next: (token, probability), the likeliest first.
        actual_next: the id of the token that came next in a longer text, or None.
        scope: the layers and heads looked at and cut; all where its fields are None.
        weights: float64 [n], the mean weight of each source over the heads in scope; they sum to one.
        knockouts: the measured direct knock-out of each source.
        carried: for the strongest sources, the heads that carried them.
        cost: what it took.
    """

    recording: Recording
    aim: Aim
    predicted: tuple[tuple[str, float], ...]
    actual_next: int | None
    scope: Scope
    weights: NDArray[np.float64]
    knockouts: Knockouts
    carried: tuple[CarriedSource, ...]
    cost: Cost

    @property
    def tokens(self) -> Tokens:
        """What was read, up to the position that predicts."""
        return self.recording.tokens

    @property
    def position(self) -> int:
        """The position that predicts."""
        return self.knockouts.destination

    @property
    def nats(self) -> NDArray[np.float64]:
        """The measured knock-out of each source [n]; the last entry is the position's own edge."""
        return self.knockouts.nats

    @property
    def order(self) -> NDArray[np.int64]:
        """Positions by the size of their knock-out, the largest first, ties in the order of the text."""
        return np.argsort(-np.abs(self.nats), kind="stable")

    @property
    def largest_check_error(self) -> float:
        """The largest error that the self-checks found in any call."""
        return max(max(c.sum_error, c.output_error) for call in self.recording.calls for c in call.checks)

    def sources(self, top: int = 10) -> Answer:
        """Return the sources as a table, each with its weight and its knock-out, the largest knock-out first.

        Raises:
            InputError: top is below 1.
        """
        most = whole("top", top, least=1, way_out="Say how many rows you want.")
        listed, rest = self.order[:most].tolist(), self.order[most:]
        share, largest = float(self.weights[rest].sum()), float(np.abs(self.nats[rest]).max(initial=0.0))
        count = f"{rest.size} more source{'' if rest.size == 1 else 's'}"
        return Answer(
            question=f"Where did {self.aim}, at position {self.position}, come from? "
            + self.scope.describe(self.recording),
            columns=(
                Column("source", "", "position of the source, from 0"),
                Column("token", "", "the source's token"),
                Column("weight", "share of a row", "its share of the position's row, mean over the heads in scope"),
                Column("knock_out", "nats", "what the target loses when the position may not read it"),
            ),
            rows=tuple((s, self.tokens[s].label, float(self.weights[s]), float(self.nats[s])) for s in listed),
            exactness=f"weight {EXACTNESS}\nknock_out {self.knockouts.exactness}",
            left_out=f"Not listed: {count} with {share:.4f} of the weight, knock-outs within ±{largest:.4f} nats.",
            remainder=share,
        )

    def __str__(self) -> str:
        likeliest = ", ".join(f'"{label}" {100 * share:.1f}%' for label, share in self.predicted)
        return f"{self!r}\npredicted next: {likeliest}\n{self.sources()}"

    def __repr__(self) -> str:
        text = self.tokens.text
        shown = readable(text) if len(text) <= 60 else f"…{readable(text[-60:])}"
        return f'Trace("{shown}" -> {self.aim}, {len(self.tokens)} tokens)'

    def to_json(self) -> dict[str, Any]:
        """Return the trace as what `json.dumps` takes; docs/trace.schema.json describes it."""
        model, prediction = self.recording.model, self.recording.prediction(self.position)
        return {
            "schema": SCHEMA,
            "model": {"name": model.name, "fingerprint": model.fingerprint},
            "text": self.tokens.text,
            "position": self.position,
            "target": {
                "id": self.aim.target.id,
                "token": self.aim.label,
                "probability": _rounded(self.aim.probability),
                "against_id": self.aim.target.against,
                "against": self.aim.against_label,
                "nats": _rounded(self.knockouts.before),
            },
            "predicted": [
                {"id": token, "token": label, "probability": _rounded(probability)}
                for token, (label, probability) in zip(prediction.ids, self.predicted, strict=True)
            ],
            "actual_next_id": self.actual_next,
            "scope": {
                "layers": None if self.scope.layers is None else list(self.scope.layers),
                "heads": None if self.scope.heads is None else list(self.scope.heads),
                "text": self.scope.describe(self.recording),
            },
            "sources": [self._source_json(source) for source in range(len(self.tokens))],
            "heads": [_carried_json(carried) for carried in self.carried],
            "units": {
                "weight": "share of the position's row, mean over the heads in scope",
                "knock_out": "nats of the target, before minus after the cut",
            },
            "exactness": {"weight": EXACTNESS, "knock_out": self.knockouts.exactness},
            "checks": {"calls": len(self.recording.calls), "largest_error": self.largest_check_error},
            "cost": {name: _rounded(value) for name, value in asdict(self.cost).items()},
        }

    def _source_json(self, source: int) -> dict[str, Any]:
        token = self.tokens[source]
        return {
            "position": source,
            "id": token.id,
            "token": token.label,
            "span": list(token.span),
            "weight": _rounded(self.weights[source]),
            "knock_out": _rounded(self.nats[source]),
            "own": source == self.position,
        }


def trace(
    model: LanguageModel,
    text: str,
    *,
    target: str | int | None = None,
    against: str | int | None = None,
    position: int | None = None,
    layer: int | None = None,
    head: int | None = None,
    carried_sources: int = 2,
    carriers: int = 4,
    progress: Progress | None = None,
) -> Trace:
    """Return where a prediction of the model came from: every source's weight and measured knock-out, and the heads.

    Args:
        model: from `wherefrom.load`.
        text: the prompt.
        target: the token to ask about, as text or id; the model's own next token unless given.
        against: a second token: the target is then the first one's lead over it, log p - log p'.
        position: the position whose prediction is traced; the last unless given. What comes after it cannot
            matter in a causal model and is not read.
        layer: look at and cut in this layer only.
        head: look at and cut in this head of each layer only.
        carried_sources: for how many sources, by the size of their knock-out, each head is cut alone; 0 for none.
        carriers: how many heads are listed for each.
        progress: told about long work.

    Raises:
        InputError: an empty, blank, one-token or too long prompt; a target that is not one token; a position, layer
            or head out of range; a number of sources or heads below 0.
        RecordingError: a kernel failed the self-check.
    """
    carried_sources = whole("carried_sources", carried_sources, least=0, way_out="0 leaves them out.")
    carriers = whole("carriers", carriers, least=0, way_out="0 leaves them out.")
    tell = progress or (lambda what, done, total: None)
    tokens, actual_next = _up_to(read_prompt(model, text), position)
    scope = _scope(model, layer, head)
    reading = f"reading {len(tokens)} tokens ({forecast(model, len(tokens)) / 1e6:.1f} MB)"
    recording = record(model, tokens, progress=lambda done, total: tell(reading, done, total))
    last = LastPosition(model, recording)
    logits, prediction = last.logits(), recording.prediction(last.position)
    target_found = find_target(model.tokenizer, logits, prediction.ids[0] if target is None else target, against)
    measured = knock_out(
        last,
        target_found,
        scope=scope,
        progress=lambda done, total: tell("cutting each source", done, total),
    )
    heads = knock_out_heads(
        last,
        target_found,
        _worth_a_look(measured, carried_sources),
        scope=scope,
        progress=lambda done, total: tell("cutting each head alone", done, total),
    )
    return Trace(
        recording=recording,
        aim=_aim(model, target_found, prediction, float(replace(target_found, against=None).of_logits(logits))),
        predicted=_predicted(model, prediction),
        actual_next=actual_next,
        scope=scope,
        weights=mean_row(recording, last.position, scope),
        knockouts=measured,
        carried=tuple(_carried(recording, measured, heads, index, carriers) for index in range(len(heads.sources))),
        cost=_cost(recording, measured, heads),
    )


def _up_to(tokens: Tokens, position: int | None) -> tuple[Tokens, int | None]:
    """Return the tokens up to a position, and the id of the token after it if there is one."""
    last = len(tokens) - 1 if position is None else check_index("position", position, len(tokens))
    if last == 0:
        raise InputError(
            "the prompt" if len(tokens) == 1 else "the position",
            expected="at least one token before the position that predicts",
            given=f'only "{tokens[0].label}"' if len(tokens) == 1 else "position 0",
            way_out="The first position reads only itself, so there is nothing to cut: "
            + ("give a longer prompt." if len(tokens) == 1 else "ask about a later position."),
        )
    if last == len(tokens) - 1:
        return tokens, None
    return Tokens(tokens.text[: tokens[last].span[1]], tokens.items[: last + 1]), tokens.ids[last + 1]


def _scope(model: LanguageModel, layer: int | None, head: int | None) -> Scope:
    return Scope(
        None if layer is None else (check_index("layer", layer, model.config.layers),),
        None if head is None else (check_index("head", head, model.config.heads),),
    )


def _aim(model: LanguageModel, target: Target, prediction: Prediction, log_probability: float) -> Aim:
    """Return the target; a token that is listed as predicted has the probability that it has there, to the last bit."""
    label, listed = model.tokenizer.label, dict(zip(prediction.ids, prediction.log_probabilities, strict=True))
    against = None if target.against is None else label(target.against)
    return Aim(target, label(target.id), against, math.exp(listed.get(target.id, log_probability)))


def _predicted(model: LanguageModel, prediction: Prediction) -> tuple[tuple[str, float], ...]:
    pairs = zip(prediction.ids, prediction.log_probabilities, strict=True)
    return tuple((model.tokenizer.label(token), math.exp(log_p)) for token, log_p in pairs)


def _worth_a_look(measured: Knockouts, most: int) -> list[int]:
    """Return the sources whose heads are looked at: the largest knock-outs, if they are large enough to be a story."""
    order = np.argsort(-np.abs(measured.nats), kind="stable")[:most]
    return [int(source) for source in order if abs(measured.nats[source]) >= CARRIED_FROM]


def _carried(recording: Recording, measured: Knockouts, heads: HeadKnockouts, index: int, most: int) -> CarriedSource:
    nats, source = heads.nats[index], heads.sources[index]  # layers x heads
    way = 1.0 if measured.nats[source] >= 0 else -1.0
    order = np.argsort(-way * nats, axis=None, kind="stable")

    def carrier(place: int) -> Carrier:
        layer_index, head_index = np.unravel_index(place, nats.shape)
        layer, head = heads.layers[layer_index], heads.heads[head_index]
        weight = row_of_weights(recording.call(layer), len(recording) - 1)[head, source]
        return Carrier(layer, head, float(nats[layer_index, head_index]), float(weight))

    listed = tuple(carrier(int(place)) for place in order[:most])
    against = carrier(int(order[-1])) if nats.size > most and way * nats.flat[order[-1]] < 0 else None
    rest = float(nats.sum()) - sum(one.nats for one in listed)
    return CarriedSource(source, listed, against, nats.size - len(listed), rest)


def _cost(recording: Recording, measured: Knockouts, heads: HeadKnockouts) -> Cost:
    return Cost(
        record_seconds=recording.seconds,
        knockout_seconds=measured.seconds,
        head_seconds=heads.seconds,
        knockout_rows=measured.rows,
        head_rows=heads.rows,
        recording_bytes=recording.bytes,
    )


def _carried_json(carried: CarriedSource) -> dict[str, Any]:
    return {
        "source": carried.source,
        "carriers": [_carrier_json(carrier) for carrier in carried.carriers],
        "opposing": None if carried.opposing is None else _carrier_json(carried.opposing),
        "others": carried.others,
        "others_nats": _rounded(carried.others_nats),
    }


def _carrier_json(carrier: Carrier) -> dict[str, Any]:
    return {
        "layer": carrier.layer,
        "head": carrier.head,
        "nats": _rounded(carrier.nats),
        "weight": _rounded(carrier.weight),
    }


def _rounded(value: float) -> float | int:
    return value if isinstance(value, int) else round(float(value), DECIMALS)
