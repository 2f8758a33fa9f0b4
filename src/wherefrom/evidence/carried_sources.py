"""Which heads carried the strongest sources (floor 5): of knock-outs those that are a story, and their heads."""

from __future__ import annotations

import numpy as np

from wherefrom.evidence.knockout import HeadKnockouts, Knockouts
from wherefrom.evidence.traced import CarriedSource, Carrier
from wherefrom.questions.exact import row_of_weights
from wherefrom.recording import Recording

CARRIED_FROM = 0.05
"""Nats that a knock-out must reach for its heads to be looked at: a change of 5 % of the probability."""


def worth_a_look(measured: Knockouts, most: int) -> list[int]:
    """Return the sources whose heads are looked at: the largest knock-outs, if they are large enough to be a story."""
    order = np.argsort(-np.abs(measured.nats), kind="stable")[:most]
    return [measured.cuts[place][0] for place in order if abs(measured.nats[place]) >= CARRIED_FROM]


def carried_sources_of(
    recording: Recording, measured: Knockouts, heads: HeadKnockouts, most: int
) -> tuple[CarriedSource, ...]:
    """Return, for each source whose heads were cut alone, the heads that carried it, at most so many."""
    return tuple(_carried_source(recording, measured, heads, index, most) for index in range(len(heads.sources)))


def _carried_source(
    recording: Recording, measured: Knockouts, heads: HeadKnockouts, index: int, most: int
) -> CarriedSource:
    nats, source = heads.nats[index], heads.sources[index]  # layers x heads
    way = 1.0 if measured.nats[measured.cuts.index((source,))] >= 0 else -1.0
    order = np.argsort(-way * nats, axis=None, kind="stable")

    def carrier(place: int) -> Carrier:
        layer_index, head_index = np.unravel_index(place, nats.shape)
        layer, head = heads.layers[layer_index], heads.heads[head_index]
        weight = _weight(recording, measured, layer, head, source)
        return Carrier(layer, head, float(nats[layer_index, head_index]), weight)

    listed = tuple(carrier(int(place)) for place in order[:most])
    against = carrier(int(order[-1])) if nats.size > most and way * nats.flat[order[-1]] < 0 else None
    rest = float(nats.sum()) - sum(one.nats for one in listed)
    return CarriedSource(source, listed, against, nats.size - len(listed), rest)


def _weight(recording: Recording, measured: Knockouts, layer: int, head: int, source: int) -> float:
    """Return a head's weight, the mean over the times that it ran: its cut is made in all of them."""
    calls = [call for call in recording.calls_of(measured.scope.kind) if call.layer == layer]
    return float(np.mean([row_of_weights(call, measured.destination)[head, source] for call in calls]))
