"""The training text: files and what is wrong with them, vocabularies that lose nothing, windows of each step."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

import small
from training_small import TEXT
from wherefrom.errors import InputError
from wherefrom.tokens import Tokenizer
from wherefrom.training import text as text_module
from wherefrom.training.files import read_texts
from wherefrom.training.text import Corpus, byte_tokenizer, encode_texts, train_tokenizer

BYTES = byte_tokenizer()
LEARNT = train_tokenizer(TEXT, 300)
END = 256


def plain_corpus(train: int, validation: int, vocabulary: int = 500) -> Corpus:
    return Corpus(np.arange(train) % vocabulary, np.arange(validation) % vocabulary, vocabulary)


def test_files_are_read_as_they_are(tmp_path: Path) -> None:
    contents = ["Grüße,\r\n\tmit Tabs \u2028 und\x0b\n\n", "zweite 🙂\n"]
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content.encode())
    assert read_texts(paths) == tuple(contents)
    assert read_texts(paths[1]) == read_texts(str(paths[1])) == (contents[1],)
    paths[0].write_bytes(b"\xef\xbb\xbfmarked")
    assert read_texts(paths[0]) == ("marked",)


BROKEN: list[tuple[bytes | None, str, dict[str, Any]]] = [
    (None, "expected a text file, got nothing there. Check the path.", {}),
    (b"", "expected some text, got an empty file. Name a file with text in it.", {}),
    (b" \n\t \xc2\xa0\n", "expected some text, got only blanks. Name a file with text in it.", {}),
    (b"abc\x00def", "expected text in UTF-8, got a binary file (a zero byte at offset 3). Take the", {"offset": 3}),
    (b"\x89PNG\r\n\x1a\n\0", "got a binary file (a zero byte at offset 8)", {"offset": 8}),
    (b"caf\xe9 noir", "expected text in UTF-8, got the byte 0xE9 at offset 3. Convert it first", {"offset": 3}),
    ("a".encode("utf-16-le"), "got a binary file (a zero byte at offset 1)", {"offset": 1}),
    ("a".encode("utf-16"), "got UTF-16, by its byte order mark. Convert it first: `iconv -f utf-16 -t", {"offset": 0}),
    (b"\xfe\xff\0a", "expected text in UTF-8, got UTF-16, by its byte order mark.", {"offset": 0}),
    ("a".encode("utf-32"), "got UTF-32, by its byte order mark. Convert it first: `iconv -f utf-32 -t", {"offset": 0}),
    (b"\0\0\xfe\xff\0\0\0a", "expected text in UTF-8, got UTF-32, by its byte order mark.", {"offset": 0}),
    (b"cut short \xf0\x9f\x99", "got the byte 0xF0 at offset 10", {"offset": 10}),
    (b"\xef\xbb\xbfok then \xff", "got the byte 0xFF at offset 11", {"offset": 11}),
]


@pytest.mark.parametrize(("content", "sentence", "facts"), BROKEN, ids=[sentence for _, sentence, _ in BROKEN])
def test_a_file_that_is_no_text(tmp_path: Path, content: bytes | None, sentence: str, facts: dict[str, int]) -> None:
    path = tmp_path / "text"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=re.escape(sentence)) as caught:
        read_texts([path])
    assert str(caught.value).startswith(f"the text {path}: ")
    assert caught.value.facts == {"path": path, **facts}


def test_no_text_comes_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its second coming may be held out, and would have been trained on."""
    (tmp_path / "folder").mkdir()
    one, two, link = (tmp_path / name for name in ("one.txt", "two.txt", "link.txt"))
    one.write_text("some text")
    two.write_text("\ufeffsome text")
    link.symlink_to(one)
    way_out = "Name it once: what is held out for validation must not be trained on."
    monkeypatch.setenv("HOME", str(tmp_path))
    for path, what in [
        (one, "file"),
        (link, "file"),
        (tmp_path / "folder" / ".." / "one.txt", "file"),
        ("~/one.txt", "file"),
        (two, "text"),
    ]:
        with pytest.raises(InputError) as caught:
            read_texts([one, path])
        assert str(caught.value) == f"the text {path}: expected another text than {one}, got the same {what}. {way_out}"
        assert (caught.value.path, caught.value.other) == (Path(path), one)
    two.write_text("some texts")
    assert read_texts([one, two]) == ("some text", "some texts")


def test_a_folder_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=re.escape("expected a text file, got a folder. Name the files in it.")):
        read_texts(tmp_path)


@pytest.mark.parametrize("paths", [[], (), 3, [3], [None]])
def test_files_must_be_named(paths: Any) -> None:
    with pytest.raises(InputError, match=r"(the files|a file): expected"):
        read_texts(paths)


@given(st.text())
@pytest.mark.parametrize("tokenizer", [BYTES, LEARNT], ids=["bytes", "learnt"])
def test_nothing_is_ever_lost(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_single_bytes_are_the_first_ids_of_a_learnt_vocabulary() -> None:
    assert BYTES.vocabulary_size == 257
    assert LEARNT.vocabulary_size == 300
    assert [LEARNT.token_bytes(number) for number in range(256)] == [BYTES.token_bytes(number) for number in range(256)]
    assert sorted(BYTES.token_bytes(number) for number in range(256)) == [bytes([byte]) for byte in range(256)]
    assert BYTES.special_ids == {256}
    assert LEARNT.special_ids == {299}
    assert BYTES.token_bytes(256) == LEARNT.token_bytes(299) == b"<end>"
    theirs = Tokenizer(small.byte_tokenizer())  # the one that the other tests' models were made with
    assert [theirs.token_bytes(number) for number in range(257)] == [BYTES.token_bytes(number) for number in range(257)]


def test_the_same_text_gives_the_same_vocabulary() -> None:
    assert train_tokenizer([TEXT], 300).inner.to_str() == LEARNT.inner.to_str()
    assert train_tokenizer(TEXT.upper(), 300).inner.to_str() != LEARNT.inner.to_str()


def test_merges_shorten_the_text_they_were_learnt_from() -> None:
    assert " the" in [LEARNT.token_bytes(number).decode(errors="replace") for number in range(256, 299)]
    assert len(encode_texts(TEXT, LEARNT)) * 2 < len(encode_texts(TEXT, BYTES)) == len(TEXT)


def longest(tokenizer: Tokenizer) -> int:
    return max(len(tokenizer.token_bytes(number)) for number in range(tokenizer.vocabulary_size - 1))


def test_a_text_without_blanks_is_learnt_from_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    unbroken = "".join("abcdefgh"[number * number % 61 % 8] for number in range(2000))
    text = unbroken + " " * 1000 + "x" + "é" * 500
    cut = train_tokenizer(text, 400)
    assert longest(cut) == text_module.LONGEST_WORD == 128  # no token is longer than what it was learnt from
    assert cut.decode(encode_texts(text, cut).tolist()) == text
    assert cut.inner.encode(" " * 256).ids == [cut.one_token(" " * 128)] * 2  # words are cut to learn, not to encode
    state = json.loads(cut.inner.to_str())["pre_tokenizer"]
    assert state == json.loads(BYTES.inner.to_str())["pre_tokenizer"]
    monkeypatch.setattr(text_module, "LONGEST_WORD", 10_000)
    whole = train_tokenizer(text, 400)
    assert longest(whole) > 128
    assert train_tokenizer(TEXT, 300).inner.to_str() == LEARNT.inner.to_str()  # its words are short: nothing was cut


def test_a_pair_that_occurs_once_is_not_learnt() -> None:
    assert train_tokenizer("abcdefg", 400).vocabulary_size == 257
    assert train_tokenizer("ab ab", 400).vocabulary_size == 258


@pytest.mark.parametrize("vocabulary", [256, 0, -1, 300.5, True, None])
def test_a_vocabulary_holds_all_bytes(vocabulary: Any) -> None:
    with pytest.raises(InputError, match="the vocabulary: expected a whole number from 257 up"):
        train_tokenizer(TEXT, vocabulary)


@given(st.text(alphabet="ab1' \n.é🙂", max_size=60), st.integers(1, 7))
@pytest.mark.parametrize("tokenizer", [BYTES, LEARNT], ids=["bytes", "learnt"])
def test_pieces_of_a_text_have_the_tokens_of_the_whole(tokenizer: Tokenizer, text: str, size: int) -> None:
    pieces = list(text_module._pieces(text, size))
    assert "".join(pieces) == text
    parts = [number for piece in pieces for number in tokenizer.inner.encode(piece).ids]
    assert parts == tokenizer.inner.encode(text).ids


def test_a_long_text_is_encoded_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = encode_texts(TEXT, LEARNT)
    monkeypatch.setattr(text_module, "PIECES_AT_ONCE", 3)
    monkeypatch.setattr(text_module._pieces, "__defaults__", (50,))
    assert len(list(text_module._pieces(TEXT))) > 15
    assert np.array_equal(encode_texts(TEXT, LEARNT), whole)
    assert LEARNT.decode(whole.tolist()) == TEXT


def test_an_end_mark_stands_between_documents() -> None:
    ids = encode_texts(["ab", "c", "dé"], BYTES)
    assert BYTES.decode(ids.tolist()) == "ab<end>c<end>dé"
    assert [place for place, number in enumerate(ids) if number == END] == [2, 4]
    assert ids.dtype == np.uint16


def foreign(vocabulary: dict[str, int]) -> Tokenizer:
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return Tokenizer(inner)


def test_another_vocabularys_end_mark_is_found_or_missed() -> None:
    letters = {letter: number for number, letter in enumerate("abc")}
    ended = foreign({**letters, "<|endoftext|>": 3})
    assert encode_texts(["ab", "c"], ended).tolist() == [0, 1, 3, 2]
    assert encode_texts(["ab"], foreign(letters)).tolist() == [0, 1]
    with pytest.raises(InputError, match=r"the vocabulary: expected a mark to stand between documents \(<end>, "):
        encode_texts(["ab", "c"], foreign(letters))


def test_a_vocabulary_that_would_leave_something_out_is_refused() -> None:
    sentence = "expected one that spells the whole text, got one that would leave out 4 of its 6 bytes."
    with pytest.raises(InputError, match=re.escape(sentence)) as caught:
        encode_texts(["ab", "aéb\n \x01"[:-1]], foreign({"a": 0, "b": 1, "<end>": 2}))
    assert caught.value.document == 1


def known(*words: str, model: Any = None, unknown: str = "[UNK]") -> Tokenizer:
    vocabulary = {word: number for number, word in enumerate([unknown, "<end>", *words])}
    inner = tokenizers.Tokenizer(model or models.WordLevel(vocabulary, unk_token=unknown))
    inner.pre_tokenizer = pre_tokenizers.Split(" ", "isolated")
    return Tokenizer(inner)


UNIGRAM = models.Unigram([("<unk>", 0.0), ("<end>", -9.0), ("a", -1.0), ("b", -1.0), (" ", -1.0)], unk_id=0)


def test_what_becomes_the_unknown_token_is_refused() -> None:
    words = known("[UNK]s", "to", "be", " ", "U", "N", "K", "[", "]")
    assert encode_texts("to be to be", words).tolist() == [3, 5, 4, 5, 3, 5, 4]
    # "[NUK]" has the bytes of "[UNK]", so that only the id tells
    with pytest.raises(InputError, match=r"that makes its unknown token, \[UNK\], of 2 parts of it") as caught:
        encode_texts(["to be", "to [NUK] be [KNU]"], words)
    assert caught.value.document == 1
    assert encode_texts("to [UNK]", words).tolist() == [3, 5, 0]  # it is spelled there
    with pytest.raises(InputError, match="spells the whole text, got one that would leave out 2 of its 5 bytes"):
        encode_texts("to or", known("to", " ", unknown="[?]" * 9))  # however long the unknown token's name is
    assert encode_texts("ab a", known(model=UNIGRAM)).tolist() == [2, 3, 4, 2]
    with pytest.raises(InputError, match="the vocabulary: expected one that spells the whole text"):
        encode_texts("abc", known(model=UNIGRAM))


def test_what_a_tokenizer_adds_makes_up_for_nothing() -> None:
    tokenizer = foreign({**{letter: number for number, letter in enumerate("ab")}, "Ġ": 2, "<end>": 3})
    tokenizer.inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)  # a blank before each piece
    assert encode_texts("ab", tokenizer).tolist() == [2, 0, 1]
    with pytest.raises(InputError, match="got one that would leave out 1 of its 3 bytes"):
        encode_texts("abc", tokenizer)


def test_many_ids_need_four_bytes() -> None:
    letters = {letter: number for number, letter in enumerate("abc")}
    padding = {f"x{number}": number for number in range(3, 70_000)}
    ids = encode_texts("cab", foreign(letters | padding))
    assert ids.dtype == np.uint32
    assert ids.tolist() == [2, 0, 1]
    assert plain_corpus(100, 50, 65_536).train.dtype == np.uint16
    assert plain_corpus(100, 50, 65_537).validation.dtype == np.uint32


@pytest.mark.parametrize("texts", ["", " \n", [], ["ab", " "]])
def test_nothing_to_train_on(texts: Any) -> None:
    with pytest.raises(InputError, match=r"the text: expected some text, got (nothing|only blanks)"):
        Corpus.of(texts, BYTES)


@pytest.mark.parametrize("texts", [b"abc", 3, None, ["ab", 3]])
def test_a_text_is_a_str(texts: Any) -> None:
    with pytest.raises(InputError, match="the text: expected a str"):
        Corpus.of(texts, BYTES)


@pytest.mark.parametrize(("held_out", "kept"), [(0.1, 90), (0.25, 75), (0.999, 0), (0.001, 100)])
def test_the_end_of_the_text_is_held_out(held_out: float, kept: int) -> None:
    text = "0123456789" * 10
    corpus = Corpus.of(text, BYTES, held_out=held_out)
    assert BYTES.decode(corpus.train.tolist()) == text[:kept]
    assert BYTES.decode(corpus.validation.tolist()) == text[kept:]
    assert corpus.vocabulary == 257
    with pytest.raises(ValueError, match="read-only"):
        corpus.validation[:] = 0


@pytest.mark.parametrize("held_out", [0, 1, -0.1, 1.5, float("nan"), True, "0.1"])
def test_a_share_is_held_out(held_out: Any) -> None:
    with pytest.raises(InputError, match="the held-out share: expected a number above 0 and below 1"):
        Corpus.of(TEXT, BYTES, held_out=held_out)


def test_the_checksum_tells_texts_splits_and_vocabularies_apart() -> None:
    corpus = Corpus.of("abcdefghij", BYTES, held_out=0.2)
    assert corpus.checksum == Corpus.of("abcdefghij", BYTES, held_out=0.2).checksum
    others = [
        Corpus.of("abcdefghik", BYTES, held_out=0.2),
        Corpus.of("abcdefghij", BYTES, held_out=0.3),
        Corpus(corpus.train, corpus.validation, 258),
        Corpus(corpus.validation, corpus.train, 257),
    ]
    assert len({corpus.checksum, *(other.checksum for other in others)}) == 5


def test_a_batch_depends_on_seed_and_step_alone() -> None:
    corpus = plain_corpus(1000, 50, 2000)
    first = corpus.batch(5, 6, 9, seed=3)
    assert first.dtype == np.int64
    assert first.shape == (6, 10)
    assert np.array_equal(np.diff(first), np.ones((6, 9)))  # windows of the text, which counts up
    for other in (corpus.batch(6, 6, 9, seed=3), corpus.batch(5, 6, 9, seed=4)):
        assert not np.array_equal(other, first)
    assert np.array_equal(corpus.batch(5, 6, 9, seed=3), first)
    assert first[:, 0].tolist() == [734, 269, 24, 630, 21, 828]  # the same with every version of numpy


def test_every_window_can_be_drawn() -> None:
    corpus = plain_corpus(13, 12)
    starts = {int(row[0]) for step in range(40) for row in corpus.batch(step, 4, 10, seed=1)}
    assert starts == {0, 1, 2}
    assert {int(row[-1]) for row in corpus.batch(0, 50, 10, seed=1)} == {10, 11, 12}
    assert corpus.batch(7, 3, 12, seed=0).tolist() == [list(range(13))] * 3  # one window fits


def test_validation_predicts_every_token_once() -> None:
    corpus = plain_corpus(50, 34)
    windows = corpus.windows(8)
    assert windows.shape == (4, 9)
    assert windows[:, 1:].ravel().tolist() == list(range(1, 33))  # a rest of one is left out
    assert windows[:, 0].tolist() == [0, 8, 16, 24]
    assert plain_corpus(50, 33).windows(8).shape == (4, 9)
    assert plain_corpus(50, 32).windows(8).shape == (3, 9)


def test_some_validation_windows_are_spread_evenly() -> None:
    corpus = plain_corpus(50, 90)
    every = corpus.windows(8)
    assert len(every) == 11
    assert corpus.windows(8, 3)[:, 0].tolist() == [0, 40, 80]
    assert corpus.windows(8, 1)[:, 0].tolist() == [0]
    for most in (11, 12, None):
        assert np.array_equal(corpus.windows(8, most), every)


SHORT = [
    (
        10,
        50,
        10,
        500,
        "the training text: expected at least 11 tokens, one window of the context and its next token, got",
    ),
    (50, 10, 10, 500, "got 10. Give more text, a shorter context, or hold out a larger share."),
    (10, 50, 10, 500, "got 10. Give more text, a shorter context, or hold out a smaller share."),
    (
        50,
        50,
        10,
        499,
        "the model's vocabulary: expected at least the text's 500 ids, got 499 rows. Make the model with",
    ),
]


@pytest.mark.parametrize(("train", "validation", "context", "rows", "sentence"), SHORT)
def test_a_text_that_does_not_suit_the_model(
    train: int, validation: int, context: int, rows: int, sentence: str
) -> None:
    corpus = plain_corpus(train, validation)
    with pytest.raises(InputError, match=re.escape(sentence)):
        corpus.require(context, rows)
    plain_corpus(11, 11).require(10, 500)


WRONG_IDS: list[tuple[Any, str]] = [
    ([0, 7], "the train tokens: expected ids from 0 to 6, got 7. Use the tokenizer"),
    ([0, -1], "expected ids from 0 to 6, got -1"),
    ([[0, 1]], "expected a row of whole numbers, got int64 [1, 2]"),
    ([0.5], "expected a row of whole numbers, got float64 [1]"),
]


@pytest.mark.parametrize(("ids", "sentence"), WRONG_IDS)
def test_ids_beyond_the_vocabulary(ids: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)):
        Corpus(np.array(ids), np.array([0, 1]), 7)
