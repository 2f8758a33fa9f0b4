"""What a pass costs: the counts against loops, torch's own counter and the real arrays; the times against a clock."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

import wherefrom
from wherefrom.attention import Mask
from wherefrom.capture.native import forecast, record
from wherefrom.errors import InputError
from wherefrom.evidence import cost as measuring
from wherefrom.evidence.cost import cost
from wherefrom.evidence.costed import Cost, Measured
from wherefrom.model.attention_function import AttentionFunction, fused, plain
from wherefrom.model.cache import KeyValueCache
from wherefrom.model.config import Config
from wherefrom.model.cost import PassCost, count, crossover, parameters, permitted_pairs
from wherefrom.model.layers import Linear
from wherefrom.model.transformer import FeedForward, Transformer

TINY: dict[str, Any] = {"layers": 2, "width": 6, "heads": 3, "vocabulary": 11, "context": 12}
CONFIGS = {
    "llama, grouped": Config.decoder(**TINY, kv_heads=1, head_size=4, feed_forward=5),
    "llama, window": Config.decoder(**TINY, kv_heads=1, head_size=4, feed_forward=5, window=3),
    "qwen3": Config.decoder(**TINY, head_size=4, query_key_norm=True, tied=False, attention_bias=True),
    "gpt2": Config.decoder(**TINY, style="gpt2"),
    "bert": Config.encoder(**TINY),
    "bert, window, no head": Config.encoder(**TINY, head="none", head_bias=False, window=3),
    "original": Config.encoder_decoder(**TINY, start_id=0),
    "translator": Config.encoder_decoder(
        **TINY, start_id=0, encoder_layers=3, kv_heads=1, window=4, shared_embedding=False, head_bias=True, tied=False
    ),
}
GPT2 = Config.decoder(style="gpt2", layers=12, width=768, heads=12, vocabulary=50257, context=1024)
BERT = Config.encoder(layers=12, width=768, heads=12, vocabulary=30522, context=512)
ORIGINAL = Config.encoder_decoder(layers=6, width=512, heads=8, vocabulary=37000, context=512, start_id=0)
SMOLLM = Config.decoder(
    layers=30, width=576, heads=9, kv_heads=3, feed_forward=1536, vocabulary=49152, context=8192, rope_base=1e5
)
each_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def drawn(config: Config) -> Transformer:
    model = Transformer(config).double().eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        parameter.normal_(0, 0.5, generator=generator)
    return model


def read(model: Transformer, tokens: int, sources: int, attention: AttentionFunction, last_only: bool) -> Tensor:
    """One pass; the same steps as `Transformer.forward`, which has none for an encoder without a head."""
    ids, beside = (torch.arange(length)[None] % model.config.vocabulary for length in (tokens, sources))
    memory = None if model.encoder is None else model.encode(beside, attention=attention)
    if model.head is None:
        return model.encode(ids, attention=attention)
    return model(ids, attention=attention, memory=memory, last_only=last_only)


def source_tokens(config: Config, wanted: int) -> int | None:
    return wanted if config.encoder_layers else None


class Loops:
    """Every product of the model as loops over single numbers, each multiply-add counted where it happens."""

    def __init__(self, model: Transformer) -> None:
        self.names = {module: name for name, module in model.named_modules()}
        self.counted: Counter[tuple[str, str, bool]] = Counter()
        self.stack = model.part

    def linear(self, module: Linear, x: Tensor) -> Tensor:
        name = self.names[module]
        stack = "encoder" if name.startswith("encoder.") else self.stack
        own = {"query": "projections", "key": "projections", "value": "projections", "output": "output"}
        last = name.rpartition(".")[2]
        part = "head" if last in ("head", "dense") else "feed_forward" if "feed_forward" in name else own[last]
        out, matrix = [], module.weight.tolist()
        for row in x.flatten(0, -2).tolist():
            for column in matrix:
                total = 0.0
                for a, b in zip(row, column, strict=True):
                    total += a * b
                    self.counted[part, stack, "cross_attention" in name] += 1
                out.append(total)
        y = torch.tensor(out, dtype=x.dtype).view(*x.shape[:-1], -1)
        return y if module.bias is None else y + module.bias

    def attention(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Mask, scale: float, site: Any) -> Tensor:
        out = torch.zeros_like(q)
        group = q.shape[1] // k.shape[1]
        where = site.part, site.kind == "cross"
        for head in range(q.shape[1]):
            queries = q[0, head].tolist()
            keys, values = k[0, head // group].tolist(), v[0, head // group].tolist()
            for i, query in enumerate(queries):
                row, sources = [], [j for j in range(len(keys)) if mask.permitted([i], [j]).all()]
                for j in sources:
                    score = 0.0
                    for a, b in zip(query, keys[j], strict=True):
                        score += a * b
                        self.counted[("scores", *where)] += 1
                    row.append(scale * score)
                weights = torch.softmax(torch.tensor(row, dtype=q.dtype), dim=0).tolist()
                for j, weight in zip(sources, weights, strict=True):
                    for d, number in enumerate(values[j]):
                        out[0, head, i, d] += weight * number
                        self.counted[("sums", *where)] += 1
        return out


@each_config
@pytest.mark.parametrize("last_only", [True, False])
def test_the_counts_are_those_of_loops_that_compute_the_model(
    config: Config, last_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = drawn(config)
    expected = read(model, 7, 5, plain, last_only)
    loops = Loops(model)
    monkeypatch.setattr(Linear, "forward", lambda module, x: loops.linear(module, x))
    assert torch.allclose(read(model, 7, 5, loops.attention, last_only), expected, atol=1e-10)
    counted = count(config, 7, source_tokens=source_tokens(config, 5), last_only=last_only)
    assert {(w.part, w.stack, w.cross): w.all_layers() for w in counted.work} == loops.counted
    assert counted.multiply_adds() == loops.counted.total()


def flops(
    model: Transformer, tokens: int, sources: int, attention: AttentionFunction, last_only: bool = True
) -> Counter[str]:
    """What torch's counter says, by module; it knows every fused kernel but the one of CPUs."""
    kernel: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

    def of_kernel(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
        return int(sdpa_flop_count(q, k, v))

    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping={kernel: of_kernel}) as counter:
        read(model, tokens, sources, attention, last_only)
    return Counter({name: sum(each.values()) for name, each in counter.get_flop_counts().items()})


@each_config
@pytest.mark.parametrize("attention", [plain, fused])
@pytest.mark.parametrize(("tokens", "sources"), [(1, 1), (2, 7), (12, 3)])
def test_twice_the_counts_are_the_flops_that_torch_counts(
    config: Config, attention: AttentionFunction, tokens: int, sources: int
) -> None:
    model = drawn(config)
    for last_only in (True, False):
        counted = count(config, tokens, source_tokens=source_tokens(config, sources), last_only=last_only)
        theirs = flops(model, tokens, sources, attention, last_only)["Global"]
        assert 2 * counted.multiply_adds(pairs="all") == theirs  # it counts n x n pairs, whatever a kernel skips


@each_config
def test_each_part_is_what_torch_counts_inside_its_modules(config: Config) -> None:
    found = flops(drawn(config), 12, 9, plain)
    counted = count(config, 12, source_tokens=source_tokens(config, 9))
    parts = {(work.part, work.stack, work.cross): 2 * work.all_layers("all") for work in counted.work}
    for part, stack, cross in parts:
        inside = partial(inside_layers, found, config, stack, "cross_attention" if cross else "attention")
        if part == "head":
            expected = found["Transformer.head"] + found["Transformer.transform"]
        elif part == "feed_forward":
            expected = inside_layers(found, config, stack, "feed_forward")
        elif part in ("scores", "sums"):  # two products alike, of which the counter knows the sum
            expected = (inside() - sum(map(inside, (".query", ".key", ".value", ".output")))) // 2
        else:
            expected = sum(map(inside, (".query", ".key", ".value") if part == "projections" else (".output",)))
        assert parts[part, stack, cross] == expected > 0


def inside_layers(found: Counter[str], config: Config, stack: str, sublayer: str, module: str = "") -> int:
    """The FLOPs inside a module of all layers; those of a stack that was called block by block are under one name."""
    if stack == "encoder" and (config.encoder_layers or config.head == "none"):
        return found[f"Block.{sublayer}{module}"]
    return sum(found[f"Transformer.blocks.{layer}.{sublayer}{module}"] for layer in range(config.layers))


def test_the_fused_call_alone_is_the_pair_work() -> None:
    """Without being told of the CPU's kernel, torch's counter leaves out pair work and nothing else."""
    config = CONFIGS["llama, grouped"]
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        read(drawn(config), 12, 1, fused, True)
    counted = count(config, 12)
    assert counter.get_total_flops() == 2 * (counted.multiply_adds() - counted.multiply_adds("scores", "sums"))


@given(st.integers(1, 40), st.booleans(), st.none() | st.integers(1, 45))
def test_pairs_are_those_that_a_mask_permits(tokens: int, causal: bool, window: int | None) -> None:
    mask = Mask(causal=causal, window=window)
    assert permitted_pairs(tokens, causal=causal, window=window) == mask.dense(tokens, tokens).sum()


def test_pairs_that_one_can_do_on_paper() -> None:
    assert permitted_pairs(4, causal=True) == 1 + 2 + 3 + 4
    assert permitted_pairs(4, causal=False) == 16
    assert permitted_pairs(5, causal=True, window=2) == 1 + 2 + 2 + 2 + 2
    assert permitted_pairs(5, causal=False, window=2) == 2 + 3 + 3 + 3 + 2


@pytest.mark.parametrize("config", [*CONFIGS.values(), GPT2, BERT, ORIGINAL, SMOLLM])
def test_parameters_are_those_of_the_model(config: Config) -> None:
    with torch.device("meta"):
        assert parameters(config) == sum(p.numel() for p in Transformer(config).parameters())


def test_parameters_of_models_that_everybody_knows(smollm: wherefrom.LanguageModel) -> None:
    assert parameters(GPT2) == 124_439_808
    assert parameters(BERT) == 109_514_298
    held = sum(p.numel() for p in smollm.transformer.parameters())
    assert parameters(smollm.config) == parameters(SMOLLM) == held == 134_515_008
    assert count(smollm.config, 1).weight_bytes == sum(p.nbytes for p in smollm.transformer.parameters())


def test_smollm_by_hand(smollm: wherefrom.LanguageModel) -> None:
    """Width 576, 9 heads of 64 on 3, feed-forward 1,536 gated, 30 layers, at 2,048 tokens.

    Pair work is 2 x 576 multiply-adds a pair and the feed-forward 3 x 576 x 1,536 a token. With n (n + 1) / 2 pairs,
    576 (n + 1) > 3 x 576 x 1,536 where n + 1 > 4,608; with n^2, where n > 2,304. Queries and output are 2 x 576 x 576
    more a token, keys and values 2 x 576 x 192; that is 1,536 x 576 in all, so 576 (n + 1) > 576 (4,608 + 1,536) where
    n + 1 > 6,144, by which the head, 576 x 49,152 / (30 n) a token and layer, moves it: 0.27 x 576 there.
    """
    at = count(smollm.config, 2048)
    by_hand = {
        "projections": 30 * 2048 * 576 * (576 + 192 + 192),
        "scores": 30 * 576 * 2048 * 2049 // 2,
        "sums": 30 * 576 * 2048 * 2049 // 2,
        "output": 30 * 2048 * 576 * 576,
        "feed_forward": 30 * 2048 * 3 * 576 * 1536,
        "head": 576 * 49152,
    }
    assert {work.part: work.all_layers() for work in at.work} == by_hand
    assert at.multiply_adds() == sum(by_hand.values()) == 289_973_993_472
    assert at.one_layer() == (at.multiply_adds() - 576 * 49152) // 30
    assert at.share("scores", "sums") == (by_hand["scores"] + by_hand["sums"]) / at.multiply_adds()
    assert crossover(smollm.config) == 4608
    assert crossover(smollm.config, pairs="all") == 2305
    assert crossover(smollm.config, "everything_else") == 6144
    assert crossover(smollm.config, "everything_else", pairs="all") == 3073


def test_gpt2_by_hand() -> None:
    """Feed-forward 2 x 768 x 3,072 and projections 4 x 768 x 768 a token; 2 x 768 a pair."""
    at = count(GPT2, 1024)
    assert at.multiply_adds("scores", "sums") == 12 * 2 * 768 * 1024 * 1025 // 2
    assert at.multiply_adds("feed_forward") == 12 * 1024 * 8 * 768 * 768
    assert at.multiply_adds("projections", "output") == 12 * 1024 * 4 * 768 * 768
    assert (crossover(GPT2), crossover(GPT2, pairs="all")) == (6144, 3073)


def test_one_layer_of_each_stack() -> None:
    counted = count(CONFIGS["translator"], 4, source_tokens=6)
    # width 6, 3 heads of 2 on 1, feed-forward 24: 4 tokens read 6, within a window of 4
    decoder = 6 * (4 * 6 + 2 * 4 * 2) + 2 * 10 * 6 + 4 * 36
    across = 6 * (4 * 6 + 2 * 6 * 2) + 2 * 24 * 6 + 4 * 36
    encoder = 6 * (6 * 6 + 2 * 6 * 2) + 2 * 30 * 6 + 6 * 36  # 36 pairs less those 4 and 5 apart
    assert counted.one_layer() == decoder + across + 4 * 2 * 6 * 24
    assert counted.one_layer("encoder") == encoder + 6 * 2 * 6 * 24
    head = counted.multiply_adds("head")
    assert counted.multiply_adds() == 2 * counted.one_layer() + 3 * counted.one_layer("encoder") + head
    assert head == 6 * 11


@each_config
@pytest.mark.parametrize("pairs", ["permitted", "all"])
@pytest.mark.parametrize("against", ["feed_forward", "everything_else"])
@pytest.mark.parametrize("last_only", [True, False])
@pytest.mark.parametrize("wide", [1, 4])
def test_the_crossover_is_where_brute_force_finds_it(
    config: Config, pairs: Any, against: Any, last_only: bool, wide: int
) -> None:
    config = replace(config, feed_forward=wide * config.feed_forward)

    def above(n: int) -> bool:
        return overtaken(count(config, n, last_only=last_only), against, pairs)

    found = crossover(config, against, pairs=pairs, last_only=last_only)
    where = [n for n in range(1, 400) if above(n)]
    assert where == ([] if found is None else list(range(found, 400)))
    assert above(10**8) == (found is not None)


def overtaken(counted: PassCost, against: str, pairs: Any) -> bool:
    own = counted.multiply_adds("scores", "sums", pairs=pairs)
    other = counted.multiply_adds("feed_forward")
    return own > (other if against == "feed_forward" else counted.multiply_adds(pairs=pairs) - own)


@given(st.data())
def test_the_crossover_of_any_shape(data: st.DataObject) -> None:
    sizes = {name: data.draw(st.integers(1, 9), label=name) for name in ("layers", "heads", "feed_forward")}
    head_size, width = (data.draw(st.integers(1, 9)) for _ in range(2))
    shape = {**sizes, "width": width, "kv_heads": sizes["heads"], "head_size": 2 * head_size}
    causal, beside = data.draw(st.booleans()), data.draw(st.integers(0, 2))
    assume(causal or not beside)
    config = Config(
        architecture="wherefrom",
        vocabulary=data.draw(st.integers(1, 300)),
        context=9,
        causal=causal,
        window=data.draw(st.none() | st.integers(1, 30)),
        encoder_layers=beside,
        start_id=0,
        gated=data.draw(st.booleans()),
        **shape,
    )
    against: Any = data.draw(st.sampled_from(["feed_forward", "everything_else"]))
    found = crossover(config, against)
    if found is None:
        assert config.window is not None
        assert not any(overtaken(count(config, n), against, "permitted") for n in (1, 10, 1000, 10**9))
    else:
        assert overtaken(count(config, found), against, "permitted")
        assert found == 1 or not overtaken(count(config, found - 1), against, "permitted")


def test_a_narrow_window_is_never_overtaken_and_a_wide_one_is() -> None:
    """2 x 6 multiply-adds a pair against 2 x 6 x 24 a token: more than 24 keys a token are needed."""
    gpt2 = CONFIGS["gpt2"]
    assert crossover(replace(gpt2, window=24)) is None
    assert crossover(replace(gpt2, window=25)) == 1 + 25 * 24 // 2  # 25 n - 300 > 24 n
    assert crossover(replace(gpt2, window=48)) == crossover(gpt2) == 48  # n (n + 1) / 2 > 24 n
    assert crossover(replace(gpt2, window=25), pairs="all") == 25


@each_config
def test_dense_bytes_are_those_of_the_weights_that_would_be_formed(config: Config) -> None:
    formed: list[int] = []

    def forming(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
        formed.append((q @ k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).mT).nbytes)
        return plain(q, k, v, **how)

    read(drawn(config), 7, 5, forming, True)
    assert count(config, 7, source_tokens=source_tokens(config, 5), item_size=8).dense_bytes == sum(formed)


@each_config
def test_cache_bytes_are_those_of_a_cache(config: Config) -> None:
    counted = count(config, 7, source_tokens=source_tokens(config, 5))
    if not config.causal:
        assert counted.cache_bytes == 0
        return
    model, cache = drawn(config).float(), KeyValueCache(config, 7)
    memory = model.encode(torch.arange(5)[None]) if config.encoder_layers else None
    model(torch.arange(7)[None], cache=cache, memory=memory)
    arrays = [*cache.keys, *cache.values, *(array for pair in cache.of_memory.values() for array in pair)]
    assert counted.cache_bytes == sum(array.nbytes for array in arrays) > 0
    assert 2 * count(config, 7, source_tokens=source_tokens(config, 5), item_size=2).cache_bytes == counted.cache_bytes


def test_recording_bytes_are_the_forecast_and_the_recording(small: wherefrom.LanguageModel) -> None:
    text = "What is it? It is that."
    recording = record(small, text)
    (at,) = cost(small, [len(recording)]).lengths
    assert at.recording_bytes == forecast(small, text) == recording.bytes
    original = cost(ORIGINAL, [50], item_size=2).lengths[0]
    # self and cross of the decoder and self of the encoder: 6 layers, 512 numbers for q, k and v, 8 lse of 4 bytes
    assert original.recording_bytes == 3 * 6 * 50 * (3 * 512 * 2 + 8 * 4)


def test_lengths_beyond_the_context_are_counted_and_say_so() -> None:
    assert [at.counted.beyond_context for at in cost(GPT2, (1024, 1025)).lengths] == [False, True]
    assert count(ORIGINAL, 5, source_tokens=513).beyond_context
    most = count(SMOLLM, 10**9)
    assert most.multiply_adds("scores") == 30 * 576 * (10**9 * (10**9 + 1) // 2)  # exact where a float64 is not


def test_scored_positions() -> None:
    assert [count(BERT, 9, last_only=last).scored for last in (True, False)] == [1, 9]
    assert count(BERT, 9, last_only=False).multiply_adds("head") == 9 * (768 * 768 + 768 * 30522)
    assert count(CONFIGS["bert, window, no head"], 9).scored == 0


class FakeTime:
    """A clock that shows a second more at each look, in each run times a factor of its own."""

    def __init__(self, *factors: int) -> None:
        self.factors, self.now, self.run = factors, 0, 0

    def perf_counter(self) -> int:
        self.now += self.factors[self.run]
        return self.now

    def next(self, done: int, total: int) -> None:
        assert (done, total) == (self.run + 1, len(self.factors))
        self.run += 1 if done < total else 0


def timed(model: wherefrom.LanguageModel, tokens: int, *factors: int, monkeypatch: pytest.MonkeyPatch) -> Cost:
    clock = FakeTime(*factors)
    monkeypatch.setattr(measuring, "time", SimpleNamespace(perf_counter=clock.perf_counter))
    found = cost(model, [tokens], measure=True, repeats=len(factors) - 1, progress=clock.next)
    assert clock.run == len(factors) - 1
    return found


def test_the_parts_of_a_measured_pass(small: wherefrom.LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 3 layers looks at the clock twice in attention and twice in the feed-forward, and the pass twice."""
    found = timed(small, 9, 100, 5, 1, 3, monkeypatch=monkeypatch)
    measured = found.lengths[0].measured
    assert measured is not None
    assert measured.runs == (13 * 5, 13 * 1, 13 * 3)  # the first run, to warm up, is not among them
    assert (measured.seconds, measured.attention_seconds, measured.feed_forward_seconds) == (39, 9, 9)  # the middle one
    assert measured.rest_seconds == 21
    assert measured.share("attention") == 9 / 39
    assert sum(measured.share(part) for part in ("attention", "feed_forward", "rest")) == pytest.approx(1)
    at, counted = found.lengths[0], found.lengths[0].counted
    assert at.rate("attention") == counted.multiply_adds("scores", "sums") / 9
    assert at.rate("feed_forward") == counted.multiply_adds("feed_forward") / 9
    assert at.rate("rest") == counted.multiply_adds("projections", "output", "head") / 21
    assert at.rate("all") == counted.multiply_adds() / 39
    assert found.threads == torch.get_num_threads()


def test_of_an_even_number_of_runs_the_lower_middle_one_counts(
    small: wherefrom.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = timed(small, 2, 1, 8, 2, 4, 3, monkeypatch=monkeypatch).lengths[0].measured
    assert measured is not None
    assert measured.seconds == 13 * 3


def test_measuring_leaves_the_model_as_it_was(small: wherefrom.LanguageModel) -> None:
    ids = torch.arange(20)[None]
    before = small.transformer(ids)
    cost(small, (1, 300), measure=True, repeats=1)
    hooks = [hook for module in small.transformer.modules() for hook in module._forward_hooks]
    assert [*hooks, *(hook for m in small.transformer.modules() for hook in m._forward_pre_hooks)] == []
    assert torch.equal(small.transformer(ids), before)


def test_a_pass_that_fails_leaves_no_hooks(small: wherefrom.LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Tensor:
        raise KeyboardInterrupt

    monkeypatch.setattr(measuring, "fused", fails)
    with pytest.raises(KeyboardInterrupt):
        cost(small, [3], measure=True)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in small.transformer.modules())


@each_config
def test_every_kind_of_model_is_run_whole(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """The measured pass does the counted work: the same calls, and the same FLOPs."""
    model, counted = drawn(config).float(), count(config, 12)
    held: Any = SimpleNamespace(transformer=model, config=config)
    sites: list[Any] = []
    monkeypatch.setattr(measuring, "fused", lambda *qkv, **how: sites.append(how["site"]) or plain(*qkv, **how))
    with FlopCounterMode(display=False) as counter:
        found = measuring._measured(held, counted, 1, lambda: None)
    assert counter.get_total_flops() == 2 * 2 * counted.multiply_adds(pairs="all")  # one run to warm up, one timed
    blocks = config.layers + config.encoder_layers
    assert len(sites) == 2 * (blocks + (config.layers if config.encoder_layers else 0))
    assert len([m for m in model.modules() if isinstance(m, FeedForward)]) == blocks
    assert 0 < found.attention_seconds + found.feed_forward_seconds < found.seconds


def fake(ratios: dict[int, float], rest: float = 10.0) -> Cost:
    """Attention takes `ratio` seconds and the feed-forward one."""
    found = cost(SMOLLM, list(ratios))
    lines = [
        replace(at, measured=Measured(ratio + 1 + rest, ratio, 1.0, (ratio + 1 + rest,)))
        for at, ratio in zip(found.lengths, ratios.values(), strict=True)
    ]
    return replace(found, lengths=tuple(lines), threads=2)


def test_a_measured_crossover_lies_between_measured_lengths() -> None:
    """A ratio of n / 1,000 is 1 at n = 1,000."""
    found = fake({4000: 4.0, 500: 0.5, 2000: 2.0}).crossing()
    assert found is not None
    assert (found.found, found.between, found.estimate) == ("between", (500, 2000), 1000)
    squared = fake({100: 0.01, 3000: 9.0}).crossing()  # (n / 1,000)^2
    assert squared is not None
    assert squared.estimate == 1000
    exactly = fake({100: 0.5, 200: 1.0}).crossing()
    assert exactly is not None
    assert (exactly.between, exactly.estimate) == ((100, 200), 200)


def test_nothing_is_said_beyond_what_was_measured() -> None:
    cases = {"below": {100: 0.1, 200: 0.9}, "above": {100: 1.1, 200: 2.0}, "unclear": {1: 0.5, 2: 1.5, 3: 0.5, 4: 2}}
    for expected, ratios in cases.items():
        found = fake(ratios).crossing()
        assert found is not None
        assert (found.found, found.between, found.estimate) == (expected, None, None)
    falling = fake({100: 2.0, 200: 0.5}).crossing()
    assert falling is not None
    assert falling.found == "unclear"
    assert fake({100: 20.0}).crossing("everything_else") == fake({100: 1.5}).crossing("feed_forward")
    assert cost(SMOLLM, [100]).crossing() is None


def test_everything_else_is_all_the_time_outside_attention() -> None:
    found = fake({100: 1.0, 200: 16.0}, rest=3.0).crossing("everything_else")  # 1 against 4, 16 against 4
    assert found is not None
    assert found.between == (100, 200)
    assert found.estimate == 141  # half of the way on both logarithmic scales


def test_the_plain_table() -> None:
    assert str(cost(SMOLLM, (1, 2048))).splitlines()[:4] == [
        "What a forward pass of llama costs, permitted pairs only",
        "tokens    multiply-adds  pair work  feed-forward    n x n bytes    recording       cache",
        "     1      134,514,432       0.0%         59.2%          1,080      116,280      46,080",
        " 2,048  289,973,993,472      25.0%         56.2%  4,529,848,320  238,141,440  94,371,840",
    ]
    lines = str(fake({2048: 3.0})).splitlines()
    assert lines[1].endswith("cache  seconds  in attention")
    assert lines[2].endswith("  94,371,840   14.000         21.4%")


def test_the_json_is_whole_and_says_what_the_answer_says(smollm: wherefrom.LanguageModel) -> None:
    plain_json = cost(smollm, (512, 9000)).to_json()
    assert json.loads(json.dumps(plain_json, allow_nan=False))["lengths"][1]["beyond_context"] is True
    assert plain_json["model"] == smollm.name
    assert plain_json["parameters"] == 134_515_008
    assert plain_json["crossovers"] == {
        "feed_forward": {"permitted": 4608, "all": 2305},
        "everything_else": {"permitted": 6144, "all": 3073},
    }
    assert plain_json["measured_crossovers"] == {"feed_forward": None, "everything_else": None}
    first = plain_json["lengths"][0]
    assert first["measured"] is None
    assert first["multiply_adds"]["permitted"] == count(smollm.config, 512).multiply_adds()
    assert first["bytes"]["recording"] == forecast(smollm, 512)
    assert sum(part["layers"] * part["all_pairs"] for part in first["parts"]) == first["multiply_adds"]["all"]
    told = fake({500: 0.5, 2000: 2.0}).to_json()
    assert json.loads(json.dumps(told))["measured_crossovers"]["feed_forward"] == {
        "found": "between",
        "between": [500, 2000],
        "estimate": 1000,
    }
    assert told["lengths"][0]["measured"]["seconds"] == {
        "attention": 0.5,
        "feed_forward": 1.0,
        "rest": 10.0,
        "all": 11.5,
    }


def test_lengths_may_be_anything_that_holds_whole_numbers() -> None:
    assert [at.tokens for at in cost(SMOLLM, range(5, 8)).lengths] == [5, 6, 7]
    assert [at.tokens for at in cost(SMOLLM, (9, 3, 9)).lengths] == [9, 3]  # one given twice is looked at once
    assert [type(at.tokens) for at in cost(SMOLLM, torch.tensor([4]).numpy()).lengths] == [int]


WRONG: list[tuple[Callable[[Any], Any], str]] = [
    (lambda m: cost(m, ()), "the number of lengths: expected a whole number from 1 up, got 0."),
    (lambda m: cost(m, 512), "the lengths: expected numbers of tokens in a row, such as (512, 2048), got 512."),
    (lambda m: cost(m, "512"), "the lengths: expected numbers of tokens in a row, such as (512, 2048), got '512'."),
    (lambda m: cost(m, [0]), "a length: expected a whole number from 1 up, got 0. A text has at least one token."),
    (lambda m: cost(m, [-3]), "a length: expected a whole number from 1 up, got -3."),
    (lambda m: cost(m, [5.0]), "a length: expected a whole number from 1 up, got 5.0."),
    (lambda m: cost(m, [True]), "a length: expected a whole number from 1 up, got True."),
    (lambda m: cost(m, [10**12]), "a length: expected at most 1,000,000,000, got 1,000,000,000,000. No model reads"),
    (lambda m: cost(m, range(1, 10**12)), "the number of lengths: expected at most 100, got 999,999,999,999."),
    (lambda m: cost(m, iter(range(1, 102))), "the number of lengths: expected at most 100, got 101."),
    (lambda m: cost(m, [9], repeats=0), "the number of repeats: expected a whole number from 1 up, got 0."),
    (lambda m: cost(m, [9], repeats=101), "the number of repeats: expected at most 100, got 101."),
    (lambda m: cost(m, [9], item_size=0), "the bytes of a number: expected a whole number from 1 up, got 0."),
    (lambda m: cost("smollm2", [9]), "the model: expected a LanguageModel, got 'smollm2'. Load it first"),
    (lambda m: cost(SMOLLM, [9], measure=True), "the model: expected one with weights, to be measured, got a config"),
    (
        lambda m: cost(m, [300, 301, 2], measure=True),
        "a length to measure: expected at most 300 tokens (the context of small0), got 301. Leave measure out: any",
    ),
    (lambda m: count(None, 3), "the configuration: expected a Config, got None."),
    (lambda m: count(m.config, 0), "the number of tokens: expected a whole number from 1 up, got 0."),
    (lambda m: count(ORIGINAL, 3, source_tokens=0), "the number of source tokens: expected a whole number from 1 up"),
    (
        lambda m: count(m.config, 3, source_tokens=3),
        "the number of source tokens: expected none, as the model is a decoder alone, got 3.",
    ),
    (lambda m: count(BERT, 3, source_tokens=3), "expected none, as the model is an encoder alone, got 3."),
    (lambda m: crossover(GPT2, "head"), 'against: expected "feed_forward" or "everything_else", got \'head\'.'),
    (lambda m: crossover(GPT2, pairs="half"), 'pairs: expected "permitted" or "all", got \'half\'.'),
    (lambda m: crossover(m), "the configuration: expected a Config, got a value of type LanguageModel."),
]


@pytest.mark.parametrize(("asked", "sentence"), WRONG, ids=[sentence for _, sentence in WRONG])
def test_what_cannot_be_asked(asked: Callable[[Any], Any], sentence: str, small: wherefrom.LanguageModel) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)):
        asked(small)


def test_a_model_elsewhere_than_on_the_cpu_is_not_timed(small: wherefrom.LanguageModel) -> None:
    elsewhere = replace(small, transformer=Transformer(small.config).to("meta"))
    with pytest.raises(InputError, match="expected one on the CPU, whose clock this is, got one on meta"):
        cost(elsewhere, [3], measure=True)
    assert cost(elsewhere, [3]).lengths[0].counted == count(small.config, 3)
