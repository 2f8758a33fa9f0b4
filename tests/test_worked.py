"""A row worked through, what is moved, and what kind a head is: against the double-precision page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from by_hand import MASKS, keeping, random_call, recording_of
from wherefrom import InputError, attend
from wherefrom.mask import Mask
from wherefrom.questions import row_of_weights
from wherefrom.questions.figures import repeats_of
from wherefrom.questions.kinds import KINDS, kind_of
from wherefrom.questions.moved import lengths_of, moved
from wherefrom.questions.worked import worked_row
from wherefrom.recording import Call

DRAW = np.random.default_rng(4)
ALSO: dict[str, dict[str, Any]] = {
    "plain": {},
    "softcap": {"softcap": 1.5},
    "bias": {"bias": DRAW.standard_normal((6, 7, 7)).astype(np.float32)},
    "sinks": {"sinks": DRAW.standard_normal(6).astype(np.float32)},
}


def page(call: Call) -> Any:
    how = {"scale": call.scale, "softcap": call.softcap, "bias": call.bias, "sinks": call.sinks}
    return attend(call.q, call.k, call.v, call.mask, **how)


@pytest.mark.parametrize("also", ALSO)
@pytest.mark.parametrize("mask", MASKS)
def test_a_row_adds_up_to_what_the_page_says(mask: str, also: str) -> None:
    call = random_call(MASKS[mask], **ALSO[also])
    dense = page(call)
    for head in (0, 5):
        for row in range(7):
            found = worked_row(call, head, row, top=3)
            if np.ma.getmaskarray(dense.weights)[head, row].all():
                assert found is None
                continue
            assert found is not None
            weights = np.asarray(dense.weights[head, row])
            readable = call.mask.dense(7, 7)
            readable = (readable[head] if readable.ndim == 3 else readable)[row]
            shown = found.sources
            assert len(shown) == min(3, readable.sum())
            assert found.others == readable.sum() - len(shown)
            assert readable[shown].all()
            assert np.all(np.diff(found.weights) <= 0)
            assert np.allclose(found.weights, weights[shown], atol=4e-6)
            assert found.rest_weight == pytest.approx(weights.sum() - weights[shown].sum(), abs=1e-5)
            assert np.allclose(np.exp(found.scores - found.lse), found.weights, atol=1e-12)
            assert np.allclose(found.parts.sum(axis=0) + found.rest, found.output, atol=1e-12)
            assert np.allclose(found.output, np.asarray(dense.output)[head, row], atol=2e-5)
            assert np.allclose(found.products, found.k @ found.q)
            share = 0.0 if found.sink is None else found.sink
            assert (found.sink is None) == (call.sinks is None)
            assert found.off == pytest.approx(abs(1 - weights.sum() - share), abs=4e-6)
            assert found.off < 4e-6


def test_what_was_not_kept_is_refused() -> None:
    kept = keeping(random_call(Mask()), [1, 4], [0, 3, 6])
    found, whole = worked_row(kept, 4, 6), worked_row(random_call(Mask()), 4, 6)
    assert found is not None
    assert whole is not None
    assert np.allclose(found.output, whole.output)
    for head, row in ((2, 3), (4, 5)):
        with pytest.raises(InputError, match="one of those that the recording keeps"):
            worked_row(kept, head, row)
    with pytest.raises(InputError, match="the number of sources"):
        worked_row(kept, 4, 3, top=0)


def test_what_is_moved_is_the_length_of_the_projected_value() -> None:
    call = random_call(MASKS["causal"])
    output = DRAW.standard_normal((6, 11, 5)).astype(np.float32)  # H M V
    call = replace(call, output=output)
    weights = row_of_weights(call, 6)
    for head in range(6):
        values = call.v[call.key_heads[head]].astype(np.float64)
        expected = [np.linalg.norm(weights[head, j] * (output[head].astype(np.float64) @ values[j])) for j in range(7)]
        found = moved(weights[head], lengths_of(call, head))
        assert np.allclose(found, expected, rtol=1e-10)
    kept = replace(keeping(call, [1, 4], [0, 6]), output=output[[1, 4]])
    assert np.array_equal(lengths_of(kept, 4), lengths_of(call, 4))
    with pytest.raises(InputError, match="moved: expected a recording that keeps the layers' output projections"):
        lengths_of(random_call(Mask()), 0)


def test_a_destination_without_a_row_moves_nothing_and_is_marked() -> None:
    call = replace(random_call(MASKS["padding before"]), output=DRAW.standard_normal((6, 11, 5)).astype(np.float32))
    found = moved(row_of_weights(call, 0), np.stack([lengths_of(call, head) for head in range(6)]))
    assert np.ma.getmaskarray(found).all()


@pytest.mark.parametrize(
    ("figures", "kind", "why"),
    [
        ({"first": 0.7, "previous": 0.1, "distance": 40.0}, "sink", "70% of its weight lies on the first token"),
        ({"first": 0.6, "previous": 0.31, "distance": 40.0}, "previous", "31% of its weight lies on the token before"),
        (
            {"induction": 0.3, "previous": 0.5, "distance": 9.0},
            "induction",
            "30% of the weight of the 7 repeated tokens lies on what followed",
        ),
        ({"duplicate": 0.5, "self": 0.4, "distance": 9.0}, "duplicate", "repeated tokens lies on the same ones before"),
        ({"self": 0.4, "distance": 9.0}, "itself", "on itself"),
        ({"first": 0.49, "distance": 8.0}, "local", "its weight lies 8.0 tokens back on the mean"),
        ({"first": 0.49, "distance": 8.1}, "broad", "its weight lies 8.1 tokens back"),
        ({"first": None, "duplicate": None, "distance": None}, "unknown", "no destination of this text tells"),
    ],
)
def test_a_head_is_named_by_where_most_of_its_weight_lies(figures: Any, kind: str, why: str) -> None:
    found = kind_of(figures, 7)
    assert found.name == kind
    assert why in found.why
    assert kind in KINDS


def test_no_head_is_named_by_what_a_few_repeated_tokens_read() -> None:
    figures = {"induction": 0.9, "duplicate": 0.9, "first": 0.6, "distance": 9.0}
    assert [kind_of(figures, repeats).name for repeats in (0, 4, 5)] == ["sink", "sink", "induction"]


def test_repeats_are_the_destinations_whose_token_came_before() -> None:
    call = random_call(MASKS["causal"])
    assert repeats_of(recording_of(call, letters="abcabca"), call) == 4
    assert repeats_of(recording_of(call, letters="abcdefg"), call) == 0


def test_kinds_use_the_names_of_figures() -> None:
    from wherefrom.questions.figures import _columns
    from wherefrom.questions.kinds import SHARES

    assert {*SHARES, "distance"} <= {column.name for column in _columns(5, 1)}
