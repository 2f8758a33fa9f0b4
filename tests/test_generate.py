"""Generation: how the next token is chosen, where it stops, what is heard of it, and the recording of it as one map."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import wherefrom
from wherefrom.errors import InputError
from wherefrom.model.attention_function import AttentionFunction, fused
from wherefrom.model.cache import KeyValueCache
from wherefrom.model.config import Config
from wherefrom.model.generate import Sampling, generate, steps
from wherefrom.model.layouts import parameters
from wherefrom.model.transformer import Transformer
from wherefrom.questions import window_of_weights

PROMPT = "Once there was a"
END = 256


def drawn_from(logits: Tensor, times: int, **how: Any) -> Counter[int]:
    choose = Sampling(**{"temperature": 1.0, "seed": 11, **how}).chooser()
    return Counter(choose(logits) for _ in range(times))


def ids_of(model: wherefrom.LanguageModel, **how: Any) -> tuple[int, ...]:
    return generate(model, PROMPT, max_tokens=30, sampling=Sampling(**how)).ids


def test_greedy_takes_the_likeliest_each_time(small: wherefrom.LanguageModel) -> None:
    written = generate(small, PROMPT, max_tokens=40)
    ids = [*small.tokenizer.encode(PROMPT).ids, *written.ids]
    likeliest = small.transformer(torch.tensor([ids]))[0].argmax(dim=-1)
    first = len(ids) - len(written.ids)
    assert list(written.ids) == likeliest[first - 1 : -1].tolist()  # row t - 1 wrote token t
    assert len(set(written.ids)) > 1
    assert str(written) == written.prompt + written.text == PROMPT + small.tokenizer.decode(written.ids)


def test_the_same_seed_writes_the_same(small: wherefrom.LanguageModel) -> None:
    assert ids_of(small, temperature=5.0, seed=3) == ids_of(small, temperature=5.0, seed=3)
    assert len({ids_of(small, temperature=5.0, seed=seed) for seed in range(4)}) == 4
    assert ids_of(small, temperature=5.0) != ids_of(small, temperature=5.0)  # a new seed each time


@pytest.mark.parametrize(
    "how", [{"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-3}, {"temperature": 1e-40}, {"temperature": 5e-324}]
)
def test_what_equals_greedy(small: wherefrom.LanguageModel, how: dict[str, Any]) -> None:
    assert ids_of(small, **{"temperature": 1.0, "seed": 5, **how}) == ids_of(small)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_tokens_are_drawn_as_often_as_softmax_says(temperature: float) -> None:
    logits, times = torch.linspace(-2.0, 2.0, 12)[torch.randperm(12, generator=torch.Generator().manual_seed(0))], 4000
    expected = times * torch.softmax(logits.double() / temperature, dim=-1)
    counts = drawn_from(logits, times, temperature=temperature)
    often = [token for token in range(12) if expected[token] >= 5]
    assert len(often) >= 6
    chi_square = sum((counts[token] - float(expected[token])) ** 2 / float(expected[token]) for token in often)
    degrees = len(often) - 1
    # four standard deviations over the mean: the seed is fixed, so it holds always or never
    assert chi_square <= degrees + 4 * math.sqrt(2 * degrees)


@pytest.mark.parametrize("top_k", [1, 2, 5, 19, 20, 99])
def test_top_k_draws_no_other(top_k: int) -> None:
    logits = torch.randn(20, generator=torch.Generator().manual_seed(4))
    allowed = set(torch.topk(logits, min(top_k, 20)).indices.tolist())
    counts = drawn_from(logits, 3000, top_k=top_k, temperature=10.0)
    assert set(counts) == allowed


@pytest.mark.parametrize(
    ("top_p", "allowed"),
    [(0.39, {2}), (0.41, {2, 0}), (0.69, {2, 0}), (0.71, {2, 0, 3}), (0.91, {0, 1, 2, 3}), (1.0, {0, 1, 2, 3})],
)
def test_top_p_draws_until_it_is_reached(top_p: float, allowed: set[int]) -> None:
    """Probabilities 0.4, 0.3, 0.2 and 0.1: the token that reaches the share is still among them."""
    logits = torch.tensor([0.3, 0.1, 0.4, 0.2]).log()
    assert set(drawn_from(logits, 500, top_p=top_p)) == allowed


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(1, 30),
    top_k=st.none() | st.integers(1, 35),
    top_p=st.none() | st.floats(0.01, 1.0),
    temperature=st.floats(0.05, 50.0),
)
def test_no_excluded_token_is_ever_drawn(
    seed: int, size: int, top_k: int | None, top_p: float | None, temperature: float
) -> None:
    logits = 3 * torch.randn(size, generator=torch.Generator().manual_seed(seed))
    share = torch.softmax(logits.double() / temperature, dim=-1)
    order = share.argsort(descending=True).tolist()
    allowed, so_far = set(), 0.0
    for rank, token in enumerate(order):
        if (top_k is None or rank < top_k) and (top_p is None or so_far < top_p + 1e-9):
            allowed.add(token)
        so_far += float(share[token])
    assert set(drawn_from(logits, 40, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)) <= allowed


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            {"temperature": 0.0},
            "the temperature: expected a number above 0, got 0.0. Leave the temperature out for greedy",
        ),
        ({"temperature": "hot"}, "the temperature: expected a number above 0, got hot"),
        ({"temperature": True}, "the temperature: expected a number above 0, got True"),
        ({"temperature": 1.0, "top_p": "all"}, "top_p: expected a share above 0 and at most 1, got all"),
        ({"temperature": -1.0}, "the temperature: expected a number above 0, got -1.0"),
        ({"temperature": math.nan}, "the temperature: expected a number above 0, got nan"),
        ({"temperature": math.inf}, "the temperature: expected a number above 0, got inf"),
        ({"temperature": 1.0, "top_k": 0}, "top_k: expected a whole number from 1 up, got 0"),
        ({"temperature": 1.0, "top_k": -3}, "top_k: expected a whole number from 1 up, got -3"),
        ({"temperature": 1.0, "top_k": 2.5}, "top_k: expected a whole number from 1 up, got 2.5"),
        ({"temperature": 1.0, "top_k": True}, "top_k: expected a whole number from 1 up, got True"),
        ({"temperature": 1.0, "top_p": 0.0}, "top_p: expected a share above 0 and at most 1, got 0.0"),
        ({"temperature": 1.0, "top_p": 1.01}, "top_p: expected a share above 0 and at most 1, got 1.01"),
        ({"temperature": 1.0, "top_p": math.nan}, "top_p: expected a share above 0 and at most 1, got nan"),
        ({"temperature": 1.0, "seed": -1}, "the seed: expected a whole number from 0 to 2^63 - 1, got -1"),
        ({"temperature": 1.0, "seed": 2**63}, "the seed: expected a whole number from 0 to 2^63 - 1, got 92233720"),
        ({"temperature": 1.0, "seed": 1.5}, "the seed: expected a whole number from 0 to 2^63 - 1, got 1.5"),
        ({"top_k": 3}, "top_k: expected a temperature beside it, got 3 with greedy choice"),
        ({"top_p": 0.5}, "top_p: expected a temperature beside it, got 0.5 with greedy choice"),
        ({"seed": 0}, "the seed: expected a temperature beside it, got 0 with greedy choice"),
    ],
)
def test_what_is_no_way_of_sampling(how: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        Sampling(**how)
    assert str(caught.value).removeprefix("the ").startswith(said.removeprefix("the "))


def test_numbers_of_numpy_are_numbers() -> None:
    given = Sampling(np.float32(0.5), top_k=np.int64(3), top_p=np.float64(0.5), seed=np.uint8(4))
    assert given == Sampling(0.5, top_k=3, top_p=0.5, seed=4)
    assert {type(given.top_k), type(given.seed)} == {int}


def test_what_is_no_sampling_and_no_stop_id(small: wherefrom.LanguageModel) -> None:
    for verb in (generate, wherefrom.record_generation):
        with pytest.raises(InputError, match="sampling: expected a Sampling, got a value of type dict"):
            verb(small, PROMPT, sampling={})
    with pytest.raises(InputError, match="stop_ids: expected token ids, got 5"):
        wherefrom.record_generation(small, PROMPT, stop_ids=5)


def test_a_cache_larger_than_the_memory_is_refused(small: wherefrom.LanguageModel) -> None:
    checkpoint = replace(small.checkpoint, config=replace(small.config, context=2**30, head_size=2**20))
    with pytest.raises(InputError, match="one whose keys and values fit into the memory, got 1000000016 positions"):
        generate(replace(small, checkpoint=checkpoint), PROMPT, max_tokens=10**9)


def test_a_token_that_is_never_written(small: wherefrom.LanguageModel) -> None:
    first = generate(small, PROMPT, max_tokens=1).ids[0]
    never = replace(small.config, never_ids=(first, END))
    model = Transformer.from_parameters(never, parameters(never, small.checkpoint.tensors))
    ids = small.tokenizer.encode(PROMPT).ids
    [step] = steps(model, ids, max_tokens=1, cache=KeyValueCache(never, 40))
    assert int(step.logits.argmax()) == first  # they stay as the model gave them
    others = step.logits.clone()
    others[[first, END]] = -math.inf
    assert step.id == int(others.argmax())
    drawn = steps(model, ids, max_tokens=200, cache=KeyValueCache(never, 250), sampling=Sampling(9.0, seed=1))
    assert first not in {step.id for step in drawn}


@pytest.mark.parametrize("max_tokens", [0, -1, 1.5, "3", True])
def test_what_is_no_number_of_tokens(small: wherefrom.LanguageModel, max_tokens: Any) -> None:
    for verb in (generate, wherefrom.record_generation):
        with pytest.raises(InputError, match="the number of tokens to write: expected a whole number from 1 up"):
            verb(small, PROMPT, max_tokens=max_tokens)


def test_unless_told_as_much_is_written_as_fits_up_to_fifty(small: wherefrom.LanguageModel) -> None:
    context = small.config.context
    assert len(generate(small, "a" * (context - 7)).ids) <= 7
    long = [generate(small, "a" * length).ids for length in (3, context - 60)]
    assert all(len(ids) == 50 or ids[-1] in small.config.eos_ids for ids in long)
    with pytest.raises(InputError, match="and room for 1 more"):
        generate(small, "a" * context)


class Script:
    """Stands in a transformer's place and wants a given text to be written, after whatever it reads."""

    def __init__(self, ids: list[int], config: Config) -> None:
        self.ids, self.next, self.config = ids, 0, config

    def __call__(
        self,
        ids: Tensor,
        *,
        attention: AttentionFunction,
        cache: KeyValueCache,
        memory: Tensor | None = None,
        last_only: bool = False,
    ) -> Tensor:
        logits = torch.zeros(1, 1, 257)
        logits[0, 0, self.ids[self.next % len(self.ids)]] = 9.0
        self.next += 1
        return logits


def scripted(model: wherefrom.LanguageModel, text: str, *ids: int) -> wherefrom.LanguageModel:
    return replace(model, transformer=Script([*model.tokenizer.encode(text).ids, *ids], model.config))


@pytest.mark.parametrize("text", ["plain", "🙃🙂", "a🏴\u200d☠️é中", "שלום مرحبا", "x\ny\t\x00"])
def test_pieces_are_whole_characters(small: wherefrom.LanguageModel, text: str) -> None:
    heard: list[str] = []
    written = generate(scripted(small, text, END), PROMPT, max_tokens=99, on_text=heard.append)
    assert written.text == "".join(heard) == text
    assert heard == list(text)  # each byte is a token here: a character is heard as soon as it is whole
    assert written.ids == (*small.tokenizer.encode(text).ids, END)
    assert written.ended


@pytest.mark.parametrize(("limit", "text"), [(1, "\ufffd"), (3, "\ufffd"), (4, "🙃"), (6, "🙃\ufffd")])
def test_a_text_that_stops_inside_a_character(small: wherefrom.LanguageModel, limit: int, text: str) -> None:
    heard: list[str] = []
    written = generate(scripted(small, "🙃🙃"), PROMPT, max_tokens=limit, on_text=heard.append)
    assert written.text == "".join(heard) == text
    assert (len(written.ids), written.ended) == (limit, False)


def test_the_end_mark_ends_the_text_and_is_not_in_it(small: wherefrom.LanguageModel) -> None:
    written = generate(scripted(small, "ab", END), PROMPT, max_tokens=99)
    assert (written.text, len(written.ids), written.ended) == ("ab", 3, True)
    written = generate(scripted(small, "ab", END), PROMPT, max_tokens=2)
    assert (written.text, len(written.ids), written.ended) == ("ab", 2, False)
    assert generate(scripted(small, "", END), PROMPT).text == ""


def test_the_steps_stop_at_given_tokens(small: wherefrom.LanguageModel) -> None:
    prompt = small.tokenizer.encode(PROMPT).ids
    free = generate(small, PROMPT, max_tokens=12).ids
    stop = next(token for place, token in enumerate(free) if place >= 3 and token not in free[:place])
    cache = KeyValueCache(small.config, 60)
    taken = list(steps(small.transformer, prompt, max_tokens=12, cache=cache, stop_ids=[stop]))
    assert tuple(step.id for step in taken) == free[: free.index(stop) + 1]
    assert [step.position for step in taken] == list(range(len(prompt), len(prompt) + len(taken)))
    assert cache.length == len(prompt) + len(taken) - 1  # the last has been chosen, not read
    right = small.transformer(torch.tensor([[*prompt, *free[: len(taken) - 1]]]))[0, len(prompt) - 1 :]
    assert torch.allclose(torch.stack([step.logits for step in taken]), right, rtol=0, atol=1e-4)


def test_each_token_is_read_once(small: wherefrom.LanguageModel) -> None:
    read: list[int] = []

    class Counting(Transformer):
        def forward(self, ids: Tensor, **given: Any) -> Tensor:
            read.append(ids.shape[1])
            return super().forward(ids, **given)

    model = Counting.from_parameters(small.config, parameters(small.config, small.checkpoint.tensors))
    prompt = small.tokenizer.encode(PROMPT).ids
    assert len(list(steps(model, prompt, max_tokens=5, cache=KeyValueCache(small.config, 40)))) == 5
    assert read == [len(prompt), 1, 1, 1, 1]


def test_a_recorded_generation_is_the_generation(small: wherefrom.LanguageModel) -> None:
    recording = wherefrom.record_generation(small, PROMPT, max_tokens=25)
    written = generate(small, PROMPT, max_tokens=25)
    first = len(small.tokenizer.encode(PROMPT))
    assert recording.written_from == first
    assert recording.tokens.ids[first:] == written.ids
    assert recording.tokens == small.tokenizer.tokens_of(recording.tokens.ids)
    ids, last = recording.tokens.ids, len(recording) - 1
    assert [kept.position for kept in recording.predictions] == list(range(first - 1, last + 1))
    for position in range(first, last + 1):
        before = recording.prediction(position - 1)  # row t - 1 wrote token t
        assert before.ids[0] == before.next_id == ids[position]
        assert before.next_log_probability == pytest.approx(before.log_probabilities[0])
    assert recording.prediction(last).next_id is None


def test_a_recorded_generation_equals_one_pass_over_its_text(small: wherefrom.LanguageModel) -> None:
    written = wherefrom.record_generation(small, PROMPT, max_tokens=25)
    whole = wherefrom.record(small, written.tokens, predictions="all")
    n = len(whole)
    assert written.bytes == whole.bytes == wherefrom.forecast_bytes(whole.model, n)
    for ours, theirs in zip(written.calls, whole.calls, strict=True):
        assert (ours.layer, ours.name, ours.mask, ours.scale) == (theirs.layer, theirs.name, theirs.mask, theirs.scale)
        for one, other in ((ours.q, theirs.q), (ours.k, theirs.k), (ours.v, theirs.v), (ours.lse, theirs.lse)):
            assert one.shape == other.shape
            assert abs(one - other).max() <= 1e-4
        for head in range(ours.heads):
            pair = [window_of_weights(call, head, range(n), range(n)) for call in (ours, theirs)]
            assert abs(pair[0] - pair[1]).max() <= 1e-4
    for kept in written.predictions:
        right = whole.prediction(kept.position)
        assert (kept.ids, kept.next_id) == (right.ids, right.next_id)
        assert kept.log_probabilities == pytest.approx(right.log_probabilities, abs=1e-4)


def test_a_recorded_generation_stops_too(small: wherefrom.LanguageModel) -> None:
    free = generate(small, PROMPT, max_tokens=12).ids
    recording = wherefrom.record_generation(small, PROMPT, max_tokens=12, stop_ids=free[:1])
    assert recording.tokens.ids[-1] == free[0]
    assert len(recording) == recording.written_from + 1
    ending = replace(small.config, eos_ids=(free[0],))
    model = replace(small, checkpoint=replace(small.checkpoint, config=ending))
    assert wherefrom.record_generation(model, PROMPT, max_tokens=12).tokens == recording.tokens
    assert len(wherefrom.record_generation(model, PROMPT, max_tokens=12, stop_ids=())) == len(PROMPT) + 12


def test_a_sampled_recording_is_the_sampled_text(small: wherefrom.LanguageModel) -> None:
    how = Sampling(temperature=4.0, seed=9)
    recording = wherefrom.record_generation(small, PROMPT, max_tokens=8, sampling=how)
    assert recording.tokens.ids[recording.written_from :] == generate(small, PROMPT, max_tokens=8, sampling=how).ids
    drawn = [recording.prediction(t - 1).ids[0] != recording.tokens.ids[t] for t in range(len(PROMPT), len(recording))]
    assert any(drawn)  # hot enough that other tokens than the likeliest were written
    assert all(np.isfinite(kept.log_probabilities).all() for kept in recording.predictions)


def test_generation_fills_the_context(small: wherefrom.LanguageModel) -> None:
    prompt = "z" * 295
    recording = wherefrom.record_generation(small, prompt, max_tokens=5, stop_ids=())
    assert len(recording) == 300
    cache = KeyValueCache(small.config, 400)
    with pytest.raises(InputError, match="context"):
        list(steps(small.transformer, list(range(200)), max_tokens=102, cache=cache, attention=fused))
