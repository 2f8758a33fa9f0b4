"""Token by token with a cache, and all at once: the same loss, the same text, whatever the model."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor

from families import CONTEXT, DECODERS, PAIRS, VOCABULARY, random_model, right_padding, some_ids, worst
from wherefrom.errors import InputError
from wherefrom.model.cache import KeyValueCache
from wherefrom.model.generate import Sampling, steps
from wherefrom.model.transformer import Transformer

LENGTHS = [23, 9, 2]  # of the texts that an encoder reads


def given_to(model: Transformer, rows: int) -> dict[str, Any]:
    """What a decoder reads beside its own text: nothing, or an encoder's output of padded texts."""
    if model.encoder is None:
        return {}
    padding = right_padding(LENGTHS[:rows], max(LENGTHS[:rows]))
    return {"memory": model.encode(some_ids(*padding.shape, seed=8), padding=padding), "memory_padding": padding}


def losses(logits: Tensor, ids: Tensor) -> Tensor:
    """The cross-entropy of every next token in nats, [B, T]: row t scores token t + 1."""
    return -torch.log_softmax(logits.double(), dim=-1).gather(-1, ids[..., None])[..., 0]


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-5), (torch.float64, 1e-12)], ids=str)
@pytest.mark.parametrize("kind", [*DECODERS, *PAIRS])
def test_the_loss_of_one_pass_is_that_of_token_after_token(kind: str, dtype: torch.dtype, most: float) -> None:
    model = deepcopy(random_model(kind)).to(dtype)
    given, ids = given_to(model, 3), some_ids(3, 41)
    parallel = losses(model(ids[:, :-1], **given), ids[:, 1:])
    cache, total = KeyValueCache(model.config, 40, batch=3, dtype=dtype), torch.zeros(3, dtype=torch.float64)
    for place in range(40):
        logits = model(ids[:, place : place + 1], cache=cache, **given)
        total += losses(logits, ids[:, place + 1 : place + 2])[:, 0]
        given.pop("memory", None)  # the cache has its keys and values
    assert parallel.sum() / 120 > 2.0  # nats a token: nothing is certain, and much is to be compared
    assert abs(parallel.sum() - total.sum()) / 120 <= most
    assert worst(parallel.sum(-1), total) / 40 <= most


@pytest.mark.parametrize("prompt", [1, 13])
@pytest.mark.parametrize("kind", [*DECODERS, *PAIRS])
def test_a_cached_generation_is_the_uncached(kind: str, prompt: int) -> None:
    model, ids = random_model(kind), some_ids(1, prompt)[0].tolist()
    given = {name: tensor for name, tensor in given_to(model, 1).items() if name == "memory"}  # one text: no padding
    taken = list(steps(model, ids, max_tokens=30, cache=KeyValueCache(model.config, CONTEXT), **given))
    for step in taken:  # everything read anew for each token
        logits = model(torch.tensor([ids]), **given)[0, -1]
        assert (step.position, step.id) == (len(ids), int(logits.argmax()))
        assert worst(step.logits, logits) <= 1e-4
        ids.append(step.id)
    assert len(taken) == 30


@pytest.mark.parametrize("kind", [*DECODERS, *PAIRS])
def test_a_sampled_text_is_scored_as_by_one_pass(kind: str) -> None:
    """Greedily, some random models say one token for ever; here many are written and read."""
    model, first = random_model(kind), some_ids(1, 5)[0].tolist()
    given = {name: tensor for name, tensor in given_to(model, 1).items() if name == "memory"}
    how, cache = Sampling(temperature=9.0, seed=1), KeyValueCache(model.config, CONTEXT)
    taken = list(steps(model, first, max_tokens=30, cache=cache, sampling=how, **given))
    assert len({step.id for step in taken}) > 15
    again = model(torch.tensor([[*first, *(step.id for step in taken)]]), **given)[0, 4:-1]
    assert worst(torch.stack([step.logits for step in taken]), again) <= 1e-4


@pytest.mark.parametrize("kind", PAIRS)
def test_an_encoders_output_is_turned_into_keys_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = random_model(kind), some_ids(1, 7)
    memory, cache, asked = model.encode(some_ids(1, 19, seed=2)), KeyValueCache(model.config, 9), []
    for block in model.blocks:
        key = block.cross_attention.key
        monkeypatch.setattr(key, "forward", lambda x, own=key.forward: (asked.append(x.shape[1]), own(x))[1])
    expected = model(ids, memory=memory)
    assert asked == [19] * 3
    parts = [
        model(ids[:, :4], memory=memory, cache=cache),
        *(model(one, cache=cache) for one in ids[:, 4:].split(1, 1)),
    ]
    assert asked == [19] * 6
    assert worst(torch.cat(parts, dim=1), expected) <= 1e-4


@pytest.mark.parametrize("kind", PAIRS)
def test_a_decoder_with_nothing_to_read_from_its_encoder(kind: str) -> None:
    model = random_model(kind)
    for cache in (None, KeyValueCache(model.config, 9)):
        with pytest.raises(InputError, match=r"the encoder's output: expected a tensor \[B, S, M\], .* got none"):
            model(some_ids(1, 3), cache=cache)


def test_an_encoder_without_a_head_scores_nothing() -> None:
    model = random_model("bert", head="none", tied=False, head_bias=False)
    assert model.encode(some_ids(2, 5)).shape == (2, 5, 35)
    with pytest.raises(InputError, match="the model: expected a head that scores tokens, got an encoder without one"):
        model(some_ids(2, 5))
    assert random_model("bert")(some_ids(2, 5)).shape == (2, 5, VOCABULARY)
