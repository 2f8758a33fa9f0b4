"""What was measured of a destination, as the page is told it (floor 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wherefrom.views.web.wire import Message

if TYPE_CHECKING:
    from wherefrom.evidence.at import Evidence
    from wherefrom.evidence.traced import CarriedSource, Carrier


def measured(found: Evidence) -> Message:
    """Return the evidence at a position: the knock-out of every source in nats, and its price beside it.

    Where a source may not be read, or where there are no prices, the arrays have NaN.
    """
    knockouts = found.nats.astype(np.float32)
    prices = np.full_like(knockouts, np.nan) if found.prices is None else found.prices.astype(np.float32)
    facts = {
        "measured": True,
        "destination": found.position,
        "target": {
            "id": found.aim.target.id,
            "label": found.aim.label,
            "probability": found.aim.probability,
            "nats": found.knockouts.before,
        },
        "scope": found.scope_in_words,
        "noise": found.noise,
        "exact": {"knockout": found.knockouts.exactness, "attribution": found.exactness_of_prices},
        "why_no_attribution": found.why_not_priced,
        "seconds": {
            "attribution": found.price_seconds,
            "knockout": found.knockouts.seconds,
            "heads": found.head_seconds,
        },
        "carried": [_carried(one) for one in found.carried],
    }
    return Message(facts, {"knockout": knockouts, "attribution": prices})


def _carried(one: CarriedSource) -> dict[str, Any]:
    return {
        "source": one.source,
        "heads": [_carrier(head) for head in one.carriers],
        "opposing": None if one.opposing is None else _carrier(one.opposing),
        "others": one.others,
        "others_nats": one.others_nats,
    }


def _carrier(head: Carrier) -> dict[str, Any]:
    return {"layer": head.layer, "head": head.head, "nats": head.nats, "weight": head.weight}
