"""The readable transformer: against itself in plain lines, against transformers' Llama, and in the order of time."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import wherefrom
from small import write_small_model
from wherefrom.attention import Mask
from wherefrom.capture.recorder import Recorder
from wherefrom.errors import InputError
from wherefrom.model.attention_function import AttentionFunction, Site, fused, plain
from wherefrom.model.cache import KeyValueCache
from wherefrom.model.layouts import parameters
from wherefrom.model.transformer import Transformer
from wherefrom.questions import window_of_weights

VARIANTS: dict[str, dict[str, Any]] = {
    "tied, grouped": {},
    "untied": {"tie_word_embeddings": False},
    "attention bias": {"attention_bias": True},
    "feed-forward bias": {"mlp_bias": True},
    "untied, all biases": {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True},
    "a key head each": {"num_key_value_heads": 6},
    "one key head": {"num_key_value_heads": 1},
    "one head, other rotation and epsilon": {
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 14,
        "rope_theta": 777.0,
        "rms_norm_eps": 1e-2,
    },
}


@pytest.fixture(scope="module", params=VARIANTS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_model(tmp_path_factory.mktemp("variant"), **VARIANTS[request.param])


def llama_of(folder: Path, implementation: str) -> transformers.LlamaForCausalLM:
    transformers.utils.logging.disable_progress_bar()
    return transformers.LlamaForCausalLM.from_pretrained(
        folder, attn_implementation=implementation, dtype=torch.float32
    ).eval()


def some_ids(*shape: int, seed: int = 3) -> Tensor:
    return torch.randint(0, 257, shape, generator=torch.Generator().manual_seed(seed))


def worst(a: Tensor, b: Tensor) -> float:
    assert a.shape == b.shape
    return float((a - b).abs().max())


@pytest.mark.parametrize("length", [1, 2, 7, 131, 300])
def test_fused_is_as_right_as_plain(small: wherefrom.LanguageModel, length: int) -> None:
    """Logits here are sums of some hundred float32 products: how far off they may be, the plain run itself says."""
    ids = some_ids(2, length)
    page = deepcopy(small.transformer).double()(ids, attention=plain)
    one_rounding = torch.finfo(torch.float32).eps * float(page.abs().max())
    usual = worst(small.transformer(ids, attention=plain).double(), page) + one_rounding
    assert usual <= 1e-4
    assert worst(small.transformer(ids, attention=fused).double(), page) <= 3 * usual


@pytest.mark.parametrize(
    ("destinations", "sources", "mask"),
    [
        (5, 5, Mask(offset=3)),  # as many rows as columns, and yet not the square of a whole text
        (1, 9, Mask(offset=8)),
        (1, 9, Mask(offset=4)),
        (4, 11, Mask(offset=7)),
        (9, 9, Mask(window=3)),
        (5, 7, Mask.bidirectional()),
        (5, 7, Mask.bidirectional(window=2)),
        (1, 7, Mask.bidirectional(window=2)),
        (9, 9, Mask(padding=np.arange(9) < [[9], [4]])),
        (5, 7, Mask.bidirectional(padding=np.arange(7) < [[7], [1]])),
        (1, 7, Mask.bidirectional(padding=np.arange(7) < [[7], [1]])),
        (9, 9, Mask(window=3, padding=np.arange(9) < [[9], [4]])),  # the last rows of the second have nothing to read
        (9, 9, Mask.bidirectional(padding=np.arange(9) < [[9], [0]])),
    ],
)
def test_fused_equals_plain_under_other_masks(destinations: int, sources: int, mask: Mask) -> None:
    generator = torch.Generator().manual_seed(5)
    q = torch.randn(2, 6, destinations, 10, generator=generator)
    k, v = (torch.randn(2, 2, sources, 10, generator=generator) for _ in range(2))
    given = {"mask": mask, "scale": 0.4, "site": Site(0, "here")}
    found = fused(q, k, v, **given)
    assert worst(found, plain(q, k, v, **given)) <= 1e-5
    permitted = np.broadcast_to(mask.dense(destinations, sources), (2, 1, destinations, sources))[:, 0]
    assert torch.equal((found == 0).all(-1).all(1), torch.from_numpy(~permitted.any(-1)))  # nothing to read: 0


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_logits_are_those_of_transformers(folder: Path, implementation: str) -> None:
    ids = some_ids(2, 53)
    with torch.inference_mode():
        theirs = llama_of(folder, implementation)(ids).logits
        ours = wherefrom.load(folder).transformer(ids)
    assert theirs.std() > 0.5  # far from a model that says nothing
    assert worst(ours, theirs) <= 1e-4


def test_weights_are_those_of_transformers(folder: Path) -> None:
    recording = wherefrom.record(wherefrom.load(folder), "Where did that come from, then? 東京")
    n = len(recording)
    with torch.inference_mode():
        attentions = llama_of(folder, "eager")(torch.tensor([recording.tokens.ids]), output_attentions=True).attentions
    assert len(attentions) == len(recording.calls)
    for call, theirs in zip(recording.calls, attentions, strict=True):
        for head in range(call.heads):
            ours = window_of_weights(call, head, range(n), range(n))
            assert abs(ours - theirs[0, head].numpy()).max() <= 1e-5
    assert max(float(layer.max(dim=-1).values.min()) for layer in attentions) > 1.5 / n  # the weights are not even


@pytest.mark.parametrize("attention", [fused, plain, "recorder"])
@pytest.mark.parametrize("chunks", [[1] * 41, [17, 1, 1, 1, 13, 2, 5, 1], [40, 1], [1, 40], [3, 38], [20, 21]])
def test_reading_in_chunks_with_a_cache(
    small: wherefrom.LanguageModel, attention: AttentionFunction | str, chunks: list[int]
) -> None:
    ids = some_ids(1, sum(chunks))
    function = Recorder(60, 800) if isinstance(attention, str) else attention
    cache = KeyValueCache(small.config, sum(chunks))
    parts, first = [], 0
    for size in chunks:
        parts.append(small.transformer(ids[:, first : first + size], cache=cache, attention=function))
        first += size
        assert cache.length == first
    assert worst(torch.cat(parts, dim=1), small.transformer(ids)) <= 1e-4


loaded = cache(wherefrom.load)  # hypothesis prints a failing test's arguments: a folder is short, a model is not


@settings(max_examples=40)
@given(st.data())
def test_what_comes_later_changes_nothing_before(small_folder: Path, data: st.DataObject) -> None:
    length = data.draw(st.integers(2, 90), label="length")
    changed = data.draw(st.integers(1, length - 1), label="changed")
    ids = some_ids(1, length, seed=data.draw(st.integers(0, 2**32), label="seed"))
    other = ids.clone()
    other[0, changed] = (ids[0, changed] + data.draw(st.integers(1, 256), label="step")) % 257
    transformer = loaded(small_folder).transformer
    before, after = transformer(ids)[0], transformer(other)[0]
    assert torch.equal(before[:changed], after[:changed])
    assert not torch.equal(before[changed], after[changed])


def test_the_last_position_alone(small: wherefrom.LanguageModel) -> None:
    ids = some_ids(2, 31)
    last = small.transformer(ids, last_only=True)
    assert last.shape == (2, 1, 257)
    assert worst(last, small.transformer(ids)[:, -1:]) <= 1e-5


def test_a_batch_of_two_equals_two_alone(small: wherefrom.LanguageModel) -> None:
    ids = some_ids(2, 67)
    together = small.transformer(ids)
    for row in range(2):
        assert worst(together[row : row + 1], small.transformer(ids[row : row + 1])) <= 1e-5


def test_a_cache_for_a_batch(small: wherefrom.LanguageModel) -> None:
    ids, cache = some_ids(3, 20), KeyValueCache(small.config, 20, batch=3)
    parts = [small.transformer(part, cache=cache) for part in ids.split([11, 1, 8], dim=1)]
    assert worst(torch.cat(parts, dim=1), small.transformer(ids)) <= 1e-4


@pytest.mark.parametrize(("held", "more"), [(0, 301), (300, 1), (290, 11)])
def test_more_tokens_than_the_context(small: wherefrom.LanguageModel, held: int, more: int) -> None:
    cache = KeyValueCache(small.config, 400)
    if held:
        small.transformer(some_ids(1, held), cache=cache)
    with pytest.raises(InputError, match=r"at most 300 \(the model's context\), got 301 tokens") as caught:
        small.transformer(some_ids(1, more), cache=cache)
    assert (caught.value.facts["tokens"], caught.value.facts["context"]) == (301, 300)


def test_no_token_at_all(small: wherefrom.LanguageModel) -> None:
    with pytest.raises(InputError, match="at least one token"):
        small.transformer(some_ids(1, 0))


def test_a_cache_that_is_full(small: wherefrom.LanguageModel) -> None:
    cache = KeyValueCache(small.config, 10)
    small.transformer(some_ids(1, 8), cache=cache)
    with pytest.raises(InputError, match="expected at most 10 positions, got 11"):
        small.transformer(some_ids(1, 3), cache=cache)
    assert cache.length == 8
    assert small.transformer(some_ids(1, 2), cache=cache).shape == (1, 2, 257)  # what fits still fits


def test_the_attention_function_is_told_the_rule(small: wherefrom.LanguageModel) -> None:
    seen: list[tuple[Site, Mask, float, tuple[int, ...], tuple[int, ...]]] = []

    def watch(q: Tensor, k: Tensor, v: Tensor, *, mask: Mask, scale: float, site: Site) -> Tensor:
        seen.append((site, mask, scale, tuple(q.shape), tuple(k.shape)))
        return fused(q, k, v, mask=mask, scale=scale, site=site)

    cache = KeyValueCache(small.config, 9)
    small.transformer(some_ids(1, 7), attention=watch, cache=cache)
    small.transformer(some_ids(1, 2), attention=watch, cache=cache)
    sites = [Site(layer, f"blocks.{layer}.attention", "self") for layer in range(3)]
    first = [(site, Mask(), 10**-0.5, (1, 6, 7, 10), (1, 2, 7, 10)) for site in sites]
    then = [(site, Mask(offset=7), 10**-0.5, (1, 6, 2, 10), (1, 2, 9, 10)) for site in sites]
    assert seen == first + then


def test_tied_weights_are_one_matrix(small: wherefrom.LanguageModel) -> None:
    transformer = small.transformer
    assert transformer.head.weight is transformer.embedding.weight
    untied = Transformer(replace(small.config, tied=False))
    assert untied.head.weight is not untied.embedding.weight


def test_weights_are_not_copied(small: wherefrom.LanguageModel) -> None:
    theirs = small.checkpoint.tensors["model.layers.1.self_attn.k_proj.weight"]
    assert small.transformer.blocks[1].attention.key.weight.data_ptr() == theirs.data_ptr()
    assert not any(parameter.requires_grad for parameter in small.transformer.parameters())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda own: own.pop("norm.weight"), "the parameter norm.weight: expected shape [42], got none."),
        (lambda own: own.update(more=torch.ones(2)), "the parameter more: expected none of this name, got shape [2]."),
        (
            lambda own: own.update({"norm.weight": torch.ones(1, 42)}),
            "the parameter norm.weight: expected shape [42], got shape [1, 42].",
        ),
    ],
)
def test_parameters_that_do_not_fit(small: wherefrom.LanguageModel, change: Any, sentence: str) -> None:
    own = dict(parameters(small.config, small.checkpoint.tensors))
    change(own)
    with pytest.raises(InputError) as caught:
        Transformer.from_parameters(small.config, own)
    assert sentence in str(caught.value)
