"""What a trace found (floor 5): a frozen value that views draw and programs read as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wherefrom.checks import whole
from wherefrom.evidence.knockout import Knockouts
from wherefrom.evidence.target import Target
from wherefrom.questions import Answer, Column, Scope
from wherefrom.questions.asked import EXACTNESS, NOTHING_LEFT
from wherefrom.recording import Recording, gaps_as_json
from wherefrom.tokens import Tokens, readable

SCHEMA = "wherefrom.trace/2"
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
        recording: the pass that was traced, for further questions. In a decoder its last position is the one that
            predicts.
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
        """What the part that predicts has read; in a decoder up to the position that predicts."""
        return self.recording.tokens

    @property
    def source_tokens(self) -> Tokens:
        """The tokens whose weights and knock-outs are listed: those, or with cross-attention what the encoder read."""
        return self.recording.read_by(self.scope.kind, self.scope.part)[1]

    @property
    def mask_id(self) -> int | None:
        """The token that was asked about in an encoder's text: the mask, or whatever stands at the position."""
        return self.tokens.ids[self.position] if self.recording.model.kind == "encoder" else None

    @property
    def position(self) -> int:
        """The position that predicts."""
        return self.knockouts.destination

    @property
    def nats(self) -> NDArray[np.float64]:
        """The measured knock-out of each source [n]; NaN where the position may not read it and nothing can be cut."""
        every = np.full(len(self.source_tokens), np.nan)
        every[list(self.readable)] = self.knockouts.nats
        return every

    @property
    def readable(self) -> tuple[int, ...]:
        """The sources that the position may read in some layer, in the order of the text."""
        return tuple(cut[0] for cut in self.knockouts.cuts)

    @property
    def order(self) -> NDArray[np.int64]:
        """The sources that can be read, by the size of their knock-out, the largest first; ties as in the text."""
        order: NDArray[np.int64] = np.array(self.readable)[np.argsort(-np.abs(self.knockouts.nats), kind="stable")]
        return order

    def is_own(self, source: int) -> bool:
        """Whether a source is the position itself."""
        return self.scope.kind == "self" and source == self.position

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
            rows=tuple((s, self.source_tokens[s].label, float(self.weights[s]), float(self.nats[s])) for s in listed),
            exactness=f"weight {EXACTNESS}\nknock_out {self.knockouts.exactness}",
            left_out=f"Not listed: {count} with {share:.4f} of the weight, knock-outs within ±{largest:.4f} nats."
            if rest.size
            else NOTHING_LEFT,
            remainder=share,
            gaps=self.recording.gaps,
        )

    def __str__(self) -> str:
        likeliest = ", ".join(f'"{label}" {100 * share:.1f}%' for label, share in self.predicted)
        return f"{self!r}\npredicted next: {likeliest}\n{self.sources()}"

    def __repr__(self) -> str:
        text = self.tokens.text if self.recording.source is None else self.recording.source.text
        shown = readable(text) if len(text) <= 60 else f"…{readable(text[-60:])}"
        return f'Trace("{shown}" -> {self.aim}, {len(self.source_tokens)} tokens)'

    def to_json(self) -> dict[str, Any]:
        """Return the trace as what `json.dumps` takes; docs/trace.schema.json describes it."""
        model, prediction = self.recording.model, self.recording.prediction(self.position)
        return {
            "schema": SCHEMA,
            "model": {"name": model.name, "fingerprint": model.fingerprint, "kind": model.kind},
            "text": self.tokens.text,
            "source_text": None if self.recording.source is None else self.recording.source.text,
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
                "kind": self.scope.kind,
                "text": self.scope.describe(self.recording),
            },
            "sources": [self._source_json(source) for source in self.readable],
            "heads": [_carried_json(carried) for carried in self.carried],
            "units": {
                "weight": "share of the position's row, mean over the heads in scope",
                "knock_out": "nats of the target, before minus after the cut",
            },
            "exactness": {"weight": EXACTNESS, "knock_out": self.knockouts.exactness},
            "checks": {"calls": len(self.recording.calls), "largest_error": self.largest_check_error},
            "cost": {name: _rounded(value) for name, value in asdict(self.cost).items()},
            "gaps": gaps_as_json(self.recording.gaps),
        }

    def _source_json(self, source: int) -> dict[str, Any]:
        token = self.source_tokens[source]
        return {
            "position": source,
            "id": token.id,
            "token": token.label,
            "span": list(token.span),
            "weight": _rounded(self.weights[source]),
            "knock_out": _rounded(self.nats[source]),
            "own": self.is_own(source),
        }


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
