"""What a token can change: in a decoder nothing before it, to the bit; a token that only fills up a row, nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from families import CONTEXT, DECODERS, PAIRS, random_model, right_padding, some_ids, worst
from wherefrom.model.attention_function import fused, plain
from wherefrom.model.cache import KeyValueCache

MANY = settings(max_examples=15)
BOTH_WAYS = pytest.mark.parametrize("attention", [fused, plain])


@dataclass(frozen=True)
class Change:
    """A batch of texts, and the same with another token at one place of one row."""

    ids: Tensor
    other: Tensor
    row: int
    at: int


@st.composite
def changes(draw: Any, least: int = 2) -> Change:
    batch, length = draw(st.integers(1, 3), label="batch"), draw(st.integers(least, CONTEXT), label="length")
    row, at = draw(st.integers(0, batch - 1), label="row"), draw(st.integers(0, length - 1), label="at")
    ids = some_ids(batch, length, seed=draw(st.integers(0, 2**32), label="seed"))
    other = ids.clone()
    other[row, at] = (ids[row, at] + draw(st.integers(1, 255), label="step")) % 256
    return Change(ids, other, row, at)


def logits(kind: str, ids: Tensor, **how: Any) -> Tensor:
    model = random_model(kind)
    if kind in PAIRS:
        how["memory"] = model.encode(some_ids(len(ids), 17, seed=5))
    return model(ids, **how)


@BOTH_WAYS
@pytest.mark.parametrize("kind", [*DECODERS, *PAIRS])
@MANY
@given(change=changes())
def test_a_decoder_changes_nothing_before_a_changed_token(kind: str, attention: Any, change: Change) -> None:
    before, after = (logits(kind, ids, attention=attention) for ids in (change.ids, change.other))
    assert torch.equal(before[:, : change.at], after[:, : change.at])
    others = [row for row in range(len(before)) if row != change.row]
    assert torch.equal(before[others], after[others])
    assert not torch.equal(before[change.row, change.at], after[change.row, change.at])


@MANY
@given(change=changes())
def test_an_encoder_changes_all_of_the_text_and_no_other(change: Change) -> None:
    before, after = (logits("bert", ids) for ids in (change.ids, change.other))
    here, there = before[change.row], after[change.row]
    assert all(not torch.equal(here[place], there[place]) for place in range(change.ids.shape[1]))
    others = [row for row in range(len(before)) if row != change.row]
    assert torch.equal(before[others], after[others])


@pytest.mark.parametrize("kind", PAIRS)
@MANY
@given(change=changes())
def test_a_token_of_the_source_changes_all_that_is_written(kind: str, change: Change) -> None:
    model, written = random_model(kind), some_ids(len(change.ids), 11, seed=5)
    before, after = (model(written, memory=model.encode(ids)) for ids in (change.ids, change.other))
    assert all(not torch.equal(before[change.row, place], after[change.row, place]) for place in range(11))


def padded(kind: str, ids: Tensor, padding: Tensor, attention: Any) -> Tensor:
    """What a model says at real positions of padded texts; of an encoder-decoder, all that it writes of them."""
    model = random_model(kind)
    if kind in PAIRS:
        memory = model.encode(ids, padding=padding, attention=attention)
        return model(some_ids(len(ids), 11, seed=5), memory=memory, memory_padding=padding, attention=attention)
    return model(ids, padding=padding, attention=attention)[padding]


@BOTH_WAYS
@pytest.mark.parametrize("kind", [*DECODERS, *PAIRS, "bert"])
@MANY
@given(data=st.data())
def test_a_token_that_fills_up_a_row_changes_nothing(kind: str, attention: Any, data: st.DataObject) -> None:
    """To the bit: its score becomes minus infinity, its weight 0, and 0 times any number adds 0 to a sum."""
    lengths = data.draw(st.lists(st.integers(1, CONTEXT - 1), min_size=1, max_size=3), label="lengths")
    length = data.draw(st.integers(max(lengths) + 1, CONTEXT), label="length")
    ids, padding = some_ids(len(lengths), length), right_padding(lengths, length)
    other = torch.where(padding, ids, (ids + data.draw(st.integers(1, 255), label="step")) % 256)
    assert torch.equal(padded(kind, ids, padding, attention), padded(kind, other, padding, attention))


@pytest.mark.parametrize("kind", [*DECODERS, "bert"])
def test_a_padded_batch_says_what_each_text_says_alone(kind: str) -> None:
    """Not to the bit: sums of other lengths are added up in another order."""
    lengths = [31, 17, 1]
    ids, padding = some_ids(3, 31), right_padding(lengths, 31)
    together = random_model(kind)(ids, padding=padding)
    for row, length in enumerate(lengths):
        alone = random_model(kind)(ids[row : row + 1, :length])
        assert worst(together[row : row + 1, :length], alone) <= 1e-4


@pytest.mark.parametrize("kind", PAIRS)
def test_a_padded_batch_is_translated_as_each_text_alone(kind: str) -> None:
    model, written, lengths = random_model(kind), some_ids(3, 11, seed=5), [31, 17, 1]
    ids, padding = some_ids(3, 31), right_padding(lengths, 31)
    together = model(written, memory=model.encode(ids, padding=padding), memory_padding=padding)
    for row, length in enumerate(lengths):
        alone = model(written[row : row + 1], memory=model.encode(ids[row : row + 1, :length]))
        assert worst(together[row : row + 1], alone) <= 1e-4


@pytest.mark.parametrize("cached", [False, True], ids=["one pass", "a token at a time"])
@pytest.mark.parametrize(("window", "layers"), [(1, 3), (2, 1), (2, 3), (3, 2), (5, 3), (7, 1)])
def test_a_window_reaches_so_far_and_no_farther(window: int, layers: int, cached: bool) -> None:
    """Each layer carries a token at most window - 1 positions on."""
    model = random_model("mistral", window=window, layers=layers)
    ids, at = some_ids(1, 40), 9
    other = ids.clone()
    other[0, at] = (ids[0, at] + 1) % 256
    before, after = (_read(model, text, cached) for text in (ids, other))
    changed = [place for place in range(40) if not torch.equal(before[0, place], after[0, place])]
    assert changed == list(range(at, at + layers * (window - 1) + 1))


def _read(model: Any, ids: Tensor, cached: bool) -> Tensor:
    if not cached:
        return model(ids)
    cache = KeyValueCache(model.config, ids.shape[1])
    return torch.cat([model(token, cache=cache) for token in ids.split(1, dim=1)], dim=1)


@pytest.mark.parametrize("kind", ["bert", "windowed pair"])
def test_an_encoders_window_reaches_both_ways(kind: str) -> None:
    model = random_model(kind, window=3)
    layers = model.config.encoder_layers or model.config.layers
    ids, at = some_ids(1, 40), 17
    other = ids.clone()
    other[0, at] = (ids[0, at] + 1) % 256
    before, after = model.encode(ids), model.encode(other)
    changed = [place for place in range(40) if not torch.equal(before[0, place], after[0, place])]
    assert changed == list(range(at - layers * 2, at + layers * 2 + 1))
