"""Stop strings: what is shown of a text that ends before one, however tokens split it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import tokenizers
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

import wherefrom
from kinds import PAIRS, small_model
from wherefrom.errors import InputError
from wherefrom.model.generate import Sampling, Writer, generate, stop_strings
from wherefrom.tokens import BYTE_TO_LETTER, Tokenizer

PROMPT = "Once there was a"
PIECES = ("a", "b", "aa", "ab", "ba", "abab", "aabaa", "é", "🙂", " ", "\n")


def pieced(*pieces: bytes) -> Tokenizer:
    """A vocabulary of all bytes, and of given pieces, which may begin and end inside a character."""
    vocabulary = {letter: number for number, letter in enumerate(sorted(BYTE_TO_LETTER))}
    for piece in pieces:
        vocabulary.setdefault("".join(BYTE_TO_LETTER[byte] for byte in piece), len(vocabulary))
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return Tokenizer(inner)


def before_stop(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """The meaning, letter by letter: the first stop to be complete ends the text, the longer of two at one place."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end - len(stop)], stop
    return text, None


def written(pieces: Sequence[bytes], stops: Sequence[str]) -> tuple[list[str], Writer]:
    """What is shown, piece by piece, of a text whose tokens have given bytes."""
    tokenizer = pieced(*pieces)
    writer = Writer(tokenizer, stops)
    shown = []
    for piece in pieces:
        shown.append(writer.write(number_of(tokenizer, piece)))
        if writer.stopped is not None:
            break
    return [*shown, writer.close()], writer


def number_of(tokenizer: Tokenizer, piece: bytes) -> int:
    return int(tokenizer.inner.token_to_id("".join(BYTE_TO_LETTER[byte] for byte in piece)))


def split(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    """Bytes in pieces: each cut is taken modulo what is left."""
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[start:stop] for start, stop in pairwise(places)]


TEXTS = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
STOPS = st.lists(st.lists(st.sampled_from(PIECES), min_size=1, max_size=3).map("".join), max_size=4)
CUTS = st.lists(st.integers(0, 60), max_size=20)


@settings(max_examples=300)
@given(text=TEXTS, stops=STOPS, cuts=CUTS)
@example(text="abcd", stops=["abcd", "bc"], cuts=[])  # both in one token: the first to be complete
@example(text="abcd", stops=["abcd", "bc"], cuts=[1, 2, 3])
@example(text="aab", stops=["ab", "b"], cuts=[2])  # both end at one character
@example(text="aaab", stops=["aab"], cuts=[1, 2, 3])  # held back, and released by what follows
@example(text="x🙂y", stops=["🙂"], cuts=[2, 3, 4])
@example(text="é", stops=[], cuts=[1])
def test_what_is_shown_is_the_text_before_the_first_stop(text: str, stops: list[str], cuts: list[int]) -> None:
    shown, writer = written(split(text.encode(), cuts), stops)
    expected, stop = before_stop(text, stops)
    assert "".join(shown) == writer.text == expected
    assert writer.stopped == stop


@settings(max_examples=200)
@given(data=st.binary(max_size=12), cuts=CUTS)
@example(data="🙂".encode()[:3], cuts=[])
@example(data=b"a\xc3", cuts=[1])
def test_bytes_that_are_no_text_are_shown_as_the_library_shows_them(data: bytes, cuts: list[int]) -> None:
    shown, writer = written(split(data, cuts), ["zz"])
    assert "".join(shown) == writer.text == data.decode(errors="replace")


def test_a_part_of_a_character_at_the_end_may_be_a_stop() -> None:
    shown, writer = written([b"a", b"\xf0\x9f"], ["\ufffd"])
    assert ("".join(shown), writer.stopped) == ("a", "\ufffd")


@settings(max_examples=200)
@given(text=TEXTS, stops=STOPS, cuts=CUTS)
def test_nothing_that_belongs_to_a_stop_is_shown_even_for_a_moment(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    """After each token, what has been shown is a beginning of what will have been, whatever follows."""
    pieces = split(text.encode(), cuts)
    shown, _ = written(pieces, stops)
    so_far = ""
    for number, piece in enumerate(shown[:-1], start=1):
        so_far += piece
        whole = b"".join(pieces[:number]).decode(errors="ignore")
        for stop in stops:  # if the text went on with the rest of a stop that has begun
            for size in range(1, len(stop)):
                if whole.endswith(stop[:size]) and before_stop(whole, stops)[1] is None:
                    assert before_stop(whole + stop[size:], stops)[0].startswith(so_far)


def test_what_cannot_be_a_stop_is_shown_at_once() -> None:
    assert written([b"a", b"b", b"c", b"a", b"x"], ["abd"])[0] == ["", "", "abc", "", "ax", ""]
    assert written([b"a", b"b", b"c"], [])[0] == ["a", "b", "c", ""]
    assert written([b"a", b"b"], ["abd"])[0] == ["", "", "ab"]  # nothing follows: it was none
    assert written([b"a", b"\xc3", b"\xa9"], ["é"])[0] == ["a", "", "", ""]


def greedy(model: wherefrom.LanguageModel, **how: Any) -> str:
    return generate(model, PROMPT, max_tokens=20, **how).text


def test_a_model_stops_before_the_string(small: wherefrom.LanguageModel) -> None:
    sampling = Sampling(temperature=2.0, seed=3)
    free = generate(small, PROMPT, max_tokens=30, sampling=sampling)
    assert len(free.text) > 12
    assert free.stopped is None
    stop = free.text[7:10]
    heard: list[str] = []
    cut = generate(small, PROMPT, max_tokens=30, sampling=sampling, stop=stop, on_text=heard.append)
    at = free.text.index(stop)
    assert cut.text == "".join(heard) == free.text[:at]
    assert (cut.stopped, cut.ended) == (stop, False)
    assert cut.ids == free.ids[: len(cut.ids)]
    assert small.tokenizer.decode(cut.ids).endswith(stop)  # the tokens that spell it are there, and none behind them
    assert str(cut) == PROMPT + cut.text
    never = generate(small, PROMPT, max_tokens=30, sampling=sampling, stop=["\x00\x00\x00", "never"])
    assert (never.text, never.ids, never.stopped) == (free.text, free.ids, None)


def test_the_prompt_may_hold_the_string(small: wherefrom.LanguageModel) -> None:
    free = greedy(small)
    assert greedy(small, stop=PROMPT[-5:] + free[:1]) == free  # it begins in the prompt
    assert greedy(small, stop=free[0]) == ""


def test_of_several_strings_the_first_to_come_stops(small: wherefrom.LanguageModel) -> None:
    sampling = Sampling(temperature=2.0, seed=3)
    free = generate(small, PROMPT, max_tokens=30, sampling=sampling).text
    stops = [free[9:11], free[4:6], free[15:17]]
    cut = generate(small, PROMPT, max_tokens=30, sampling=sampling, stop=stops)
    assert (cut.text, cut.stopped) == before_stop(free, stops)
    assert len(cut.text) <= 4


def test_a_recorded_generation_stops_at_the_same_token(small: wherefrom.LanguageModel) -> None:
    sampling = Sampling(temperature=2.0, seed=3)
    stop = generate(small, PROMPT, max_tokens=30, sampling=sampling).text[6:9]
    cut = generate(small, PROMPT, max_tokens=30, sampling=sampling, stop=stop)
    recording = wherefrom.record_generation(small, PROMPT, max_tokens=30, sampling=sampling, stop=[stop])
    assert recording.tokens.ids[recording.written_from :] == cut.ids
    assert recording.tokens.text == PROMPT + cut.text + stop
    assert len(recording.predictions) == len(cut.ids) + 1
    assert all(call.q.shape[1] == len(recording) for call in recording.calls)


def seen(model: wherefrom.LanguageModel, source: str, count: int) -> list[int]:
    """What an encoder-decoder writes, without a cache: all of it again for every token."""
    transformer, tokenizer = model.transformer, model.tokenizer
    ids = [model.config.start_id]
    with torch.inference_mode():
        memory = transformer.encode(torch.tensor([tokenizer.encode(source).ids]))
        while len(ids) <= count and ids[-1] not in model.config.eos_ids:
            ids.append(int(transformer(torch.tensor([ids]), memory=memory)[0, -1].argmax()))
    return ids[1:]


@pytest.mark.parametrize("kind", PAIRS)
def test_an_encoder_decoder_writes_what_it_expects_most(kind: str) -> None:
    model, source = small_model(kind), "The bridge was old"
    free = generate(model, source, max_tokens=12)
    assert list(free.ids) == seen(model, source, 12)
    assert not free.continues
    assert str(free) == free.text
    assert generate(model, "Another text", max_tokens=12).ids != free.ids  # the encoder is heard
    recording = wherefrom.record_generation(model, source, max_tokens=12)
    assert recording.source is not None
    assert recording.source.text == source
    assert recording.tokens.ids == (model.config.start_id, *free.ids)
    assert {call.kind for call in recording.calls} == {"self", "cross"}


@pytest.mark.parametrize("kind", PAIRS)
def test_an_encoder_decoder_stops_too(kind: str) -> None:
    model, source, sampling = small_model(kind), "The bridge was old", Sampling(temperature=3.0, seed=1)
    free = generate(model, source, max_tokens=20, sampling=sampling)
    stop = free.text[5:7]
    heard: list[str] = []
    cut = generate(model, source, max_tokens=20, sampling=sampling, stop=[stop, "never"], on_text=heard.append)
    assert cut.text == "".join(heard) == free.text[: free.text.index(stop)]
    assert cut.stopped == stop
    recording = wherefrom.record_generation(model, source, max_tokens=20, sampling=sampling, stop=stop)
    assert recording.tokens.ids[recording.written_from :] == cut.ids


def test_the_end_mark_goes_before_a_stop(small: wherefrom.LanguageModel) -> None:
    free = generate(small, PROMPT, max_tokens=6)
    ending = replace(small, checkpoint=replace(small.checkpoint, config=replace(small.config, eos_ids=free.ids[:1])))
    ended = generate(ending, PROMPT, max_tokens=6, stop=free.text[0])
    assert (ended.text, ended.ended, ended.stopped) == ("", True, None)


@pytest.mark.parametrize("stop", ["", [""], ["a", ""], [3], [None], [b"a"], 3, None, [["a"]]], ids=repr)
def test_what_is_no_stop_string(small: wherefrom.LanguageModel, stop: Any) -> None:
    for verb in (generate, wherefrom.record_generation):
        with pytest.raises(InputError, match=r"stop.*: expected .*text.*, got .*\. Give texts, such as stop="):
            verb(small, PROMPT, stop=stop)


def test_stop_strings_are_a_tuple() -> None:
    assert stop_strings("ab") == ("ab",)
    assert stop_strings(["a", "\n"]) == stop_strings(iter(("a", "\n"))) == ("a", "\n")
    assert stop_strings(()) == ()
