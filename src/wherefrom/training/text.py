"""The text a model is trained on (floor 5): a vocabulary made of it, and its tokens in two parts.

Takes tokens, checks and errors from below. Gives a `Corpus` to the baselines and to the training loop, and a
`Tokenizer` that goes into the trained model's folder. No torch.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, models, pre_tokenizers, trainers

from wherefrom.checks import check_items, check_kind, whole
from wherefrom.errors import InputError
from wherefrom.tokens import BYTE_TO_LETTER, Tokenizer

Ids: TypeAlias = NDArray[np.unsignedinteger[Any]]
"""Token ids: uint16 where the vocabulary lets them be, else uint32."""

END = "<end>"
"""The mark that our own vocabularies have beside their bytes: it stands between two documents."""
END_MARKS = (END, "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")
"""What other makers call it, for a text that is tokenized with a vocabulary of theirs."""
LEAST_VOCABULARY = len(BYTE_TO_LETTER) + 1
# The library keeps about 100 bytes a token while it works, so a long text is handed over in pieces.
PIECE, PIECES_AT_ONCE = 2**18, 16
# A lone blank with something on either side begins a new word under GPT-2's rule, so a byte-level vocabulary
# makes the same tokens of the pieces as of the whole.
BETWEEN_WORDS = re.compile(r"(?<=\S)[ \n](?=\S)")
LONGEST_WORD = 128
"""Bytes of a word that merges are learnt from: the time to learn them grows with the square of it."""


def byte_tokenizer() -> Tokenizer:
    """Return the vocabulary of single bytes, and ``<end>``: 257 tokens that need no text to be learnt from."""
    letters = sorted(BYTE_TO_LETTER)
    return _ended(tokenizers.Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[])))


def train_tokenizer(texts: str | Sequence[str], vocabulary: int) -> Tokenizer:
    """Return a byte-level BPE vocabulary learnt from a text (Sennrich et al. 2016, on bytes as in GPT-2).

    All 256 bytes are in it, so it spells any text, of any language, without loss; ids 0 to 255 are those of
    `byte_tokenizer`, the merges follow, ``<end>`` is the last.

    Args:
        texts: one document or several.
        vocabulary: how many tokens, ``<end>`` included. A short text gives fewer: a pair that occurs once is no word.

    Raises:
        InputError: fewer than 257 tokens asked for, or nothing to learn from.
    """
    way_out = "256 bytes and <end> are always in it; 512 to 8,192 suit a few megabytes of text."
    size = whole("the vocabulary", vocabulary, least=LEAST_VOCABULARY, way_out=way_out)
    inner = _byte_level(tokenizers.Tokenizer(models.BPE()))
    cut = pre_tokenizers.Split(tokenizers.Regex(f".{{{LONGEST_WORD}}}"), "isolated")
    inner.pre_tokenizer = pre_tokenizers.Sequence([inner.pre_tokenizer, cut])  # to learn; `_ended` takes it back
    trainer = trainers.BpeTrainer(
        vocab_size=size - 1,  # <end> comes behind
        min_frequency=2,
        initial_alphabet=sorted(BYTE_TO_LETTER),
        show_progress=False,
    )
    inner.train_from_iterator((piece for text in _documents(texts) for piece in _pieces(text)), trainer)
    return _ended(inner)


def _byte_level(inner: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return inner


def _ended(inner: tokenizers.Tokenizer) -> Tokenizer:
    _byte_level(inner).add_special_tokens([END])
    return Tokenizer(inner)


def encode_texts(texts: str | Sequence[str], tokenizer: Tokenizer) -> Ids:
    """Return the ids of documents in one row, the tokenizer's end mark between two; uint16 if they fit, else uint32.

    An end mark that is spelled out in a text becomes that token, as everywhere.

    Raises:
        InputError: nothing but blanks in a document, a vocabulary that would leave out a part of it, or several
            documents and a vocabulary without an end mark.
    """
    documents = _documents(texts)
    dtype = _smallest(tokenizer.vocabulary_size)
    mark: Ids = np.array([_end_id(tokenizer)] if len(documents) > 1 else [], dtype)
    spelled = [tokenizer.token_bytes(number) for number in range(tokenizer.vocabulary_size)]
    unknown = _unknown(tokenizer)
    parts: list[Ids] = []
    for number, text in enumerate(documents):
        own: list[Ids] = [np.array(ids, dtype) for ids in _encoded(text, tokenizer)]
        _refuse_loss(text, own, spelled, number)
        _refuse_unknown(text, own, unknown, number)
        parts += [*([mark] if number else []), *own]
    return np.concatenate(parts)


def _smallest(vocabulary: int) -> np.dtype[np.unsignedinteger[Any]]:
    return np.dtype(np.uint16 if vocabulary <= 2**16 else np.uint32)


def _documents(texts: str | Sequence[str]) -> tuple[str, ...]:
    way_out = "Read them with read_texts, or hand over their text."
    listed = (texts,) if isinstance(texts, str) else check_items("the text", texts, expected="a str", way_out=way_out)
    for text in listed:
        check_kind("the text", text, str, way_out=way_out)
    if not listed or not all(text.strip() for text in listed):
        given = "nothing" if not any(listed) else "only blanks"
        raise InputError("the text", expected="some text", given=given, way_out="Hand over the text to train on.")
    return listed


def _pieces(text: str, size: int = PIECE) -> Iterator[str]:
    """Yield the text in pieces of about `size` characters; one that has no lone blank for long is not cut there."""
    start = 0
    while cut := BETWEEN_WORDS.search(text, start + size):
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:]


def _encoded(text: str, tokenizer: Tokenizer) -> Iterator[list[int]]:
    pieces = _pieces(text)
    while some := list(islice(pieces, PIECES_AT_ONCE)):
        for encoding in tokenizer.inner.encode_batch_fast(some, add_special_tokens=False):
            yield encoding.ids


def _end_id(tokenizer: Tokenizer) -> int:
    for mark in END_MARKS:
        number = tokenizer.inner.token_to_id(mark)
        if number is not None:
            return int(number)
    raise InputError(
        "the vocabulary",
        expected=f"a mark to stand between documents ({', '.join(END_MARKS)})",
        given="none of them",
        way_out="Join the documents into one, or take another vocabulary.",
    )


def _unknown(tokenizer: Tokenizer) -> tuple[int, str] | None:
    """Return the token that stands for what a vocabulary cannot spell, its id and its name, if there is one."""
    model = json.loads(tokenizer.inner.to_str())["model"]
    number, name = model.get("unk_id"), model.get("unk_token")  # the first is Unigram's, the second of all others
    if number is None and name is not None:
        number = tokenizer.inner.token_to_id(name)
    return None if number is None else (int(number), str(tokenizer.inner.id_to_token(int(number))))


def _refuse_unknown(text: str, parts: Sequence[Ids], unknown: tuple[int, str] | None, document: int) -> None:
    """Refuse a text of which a part became the unknown token; one that spells that token's name has it by right."""
    if unknown is None:
        return
    number, name = unknown
    count = sum(int((part == number).sum()) for part in parts)
    if count > text.count(name):
        raise _lossy(f"one that makes its unknown token, {name}, of {count:,} parts of it", document)


def _refuse_loss(text: str, parts: Sequence[Ids], spelled: Sequence[bytes], document: int) -> None:
    """Refuse ids that spell a byte less often than the text has it; blanks that a tokenizer adds are no loss."""
    raw = text.encode(errors="surrogatepass")
    missing = _counts(raw)
    for part in parts:
        missing -= _counts(b"".join(map(spelled.__getitem__, part.tolist())))
    lost = int(missing.clip(min=0).sum())
    if lost:
        raise _lossy(f"one that would leave out {lost:,} of its {len(raw):,} bytes", document)


def _counts(data: bytes) -> NDArray[np.int64]:
    """Return how often each byte occurs [256]."""
    return np.bincount(np.frombuffer(data, np.uint8), minlength=256)


def _lossy(given: str, document: int) -> InputError:
    return InputError(
        "the vocabulary",
        expected="one that spells the whole text",
        given=given,
        way_out="Use byte_tokenizer() or train_tokenizer(text, size): they spell any text.",
        document=document,
    )


@dataclass(frozen=True, eq=False)
class Corpus:
    """The tokens a model is trained on, and those it is tested on: the end of the same text.

    Attributes:
        train: ids [train tokens], uint16 or uint32, read-only.
        validation: ids [validation tokens], what follows them in the text; never trained on.
        vocabulary: how many ids there are; all are below it.

    Raises:
        InputError: an id beyond the vocabulary, or arrays that are not rows of whole numbers.
    """

    train: Ids
    validation: Ids
    vocabulary: int

    def __post_init__(self) -> None:
        size = whole("the vocabulary", self.vocabulary, least=1, way_out="Give the tokenizer's vocabulary_size.")
        for name in ("train", "validation"):
            object.__setattr__(self, name, _checked(name, getattr(self, name), size))

    @classmethod
    def of(cls, texts: str | Sequence[str], tokenizer: Tokenizer, *, held_out: float = 0.1) -> Corpus:
        """Return the tokens of documents, of which the last share is held out for validation.

        Args:
            texts: one document or several; between two stands the tokenizer's end mark.
            tokenizer: makes the tokens.
            held_out: the share of the tokens, at the end, that is not trained on.

        Raises:
            InputError: as `encode_texts`, or a share that is not between 0 and 1.
        """
        if isinstance(held_out, bool) or not isinstance(held_out, int | float) or not 0 < held_out < 1:
            raise InputError(
                "the held-out share",
                expected="a number above 0 and below 1",
                given=f"{held_out!r}",
                way_out="0.1 holds out a tenth.",
                value=held_out,
            )
        ids = encode_texts(texts, tokenizer)
        kept = len(ids) - round(len(ids) * held_out)
        return cls(ids[:kept], ids[kept:], tokenizer.vocabulary_size)

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of the tokens, of where they are split, and of the vocabulary's size."""
        digest = hashlib.sha256(f"{self.vocabulary} {len(self.train)} {len(self.validation)}\n".encode())
        for part in (self.train, self.validation):
            digest.update(np.ascontiguousarray(part, part.dtype.newbyteorder("<")).data)
        return digest.hexdigest()

    def batch(self, step: int, size: int, context: int, seed: int) -> NDArray[np.int64]:
        """Return windows of the training text [size, context + 1], drawn with replacement for one step of one seed.

        They depend on nothing else (a counter-based generator, Salmon et al. 2011), so a resumed run reads what the
        unbroken one would. Philox's raw numbers are used, since numpy keeps those the same in every version.
        """
        places = np.empty((size, context + 1), np.int64)  # first, so that a batch too large for memory ends here
        drawn = np.random.Philox(np.random.SeedSequence((seed, step))).random_raw(size)
        # 64 random bits, modulo the places where a window fits: uneven by (their number) / 2^64, which is nothing
        starts = (np.asarray(drawn, np.uint64) % np.uint64(len(self.train) - context)).astype(np.int64)
        np.add(starts[:, None], np.arange(context + 1), out=places)
        windows: NDArray[np.int64] = self.train[places].astype(np.int64)
        return windows

    def windows(self, context: int, most: int | None = None) -> Ids:
        """Return the validation text in windows [W, context + 1], each beginning with the last token of the one before.

        So every token but the first is predicted once, and a rest shorter than a window not at all. Views, or with
        `most` a copy of so many of them, evenly spread: always the same ones.
        """
        every = np.lib.stride_tricks.sliding_window_view(self.validation, context + 1)[::context]
        if most is None or most >= len(every):
            return every
        return every[np.linspace(0, len(every) - 1, most).round().astype(np.int64)]

    def require(self, context: int, vocabulary: int) -> None:
        """Refuse a text that a model cannot be trained on.

        Args:
            context: the model's, in tokens.
            vocabulary: the rows of its embedding.

        Raises:
            InputError: either part is shorter than one window of context + 1 tokens, or the text has more ids; or the
                context is no whole number from 1 up.
        """
        context = whole("the context", context, least=1, way_out="It is the model's, in tokens.")
        for name, part in (("training", self.train), ("validation", self.validation)):
            if len(part) < context + 1:
                raise InputError(
                    f"the {name} text",
                    expected=f"at least {context + 1:,} tokens, one window of the context and its next token",
                    given=f"{len(part):,}",
                    way_out="Give more text, a shorter context"
                    + (", or hold out a larger share." if name == "validation" else ", or hold out a smaller share."),
                    tokens=len(part),
                    context=context,
                )
        if self.vocabulary > vocabulary:
            raise InputError(
                "the model's vocabulary",
                expected=f"at least the text's {self.vocabulary:,} ids",
                given=f"{vocabulary:,} rows",
                way_out="Make the model with vocabulary=tokenizer.vocabulary_size.",
                vocabulary=vocabulary,
                ids=self.vocabulary,
            )


def _checked(name: str, ids: Ids, vocabulary: int) -> Ids:
    given = np.asarray(ids)
    if given.ndim != 1 or given.dtype.kind not in "ui":
        raise InputError(
            f"the {name} tokens",
            expected="a row of whole numbers",
            given=f"{given.dtype} {list(given.shape)}",
            way_out="Make a corpus with Corpus.of(text, tokenizer).",
        )
    low, high = (int(given.min()), int(given.max())) if given.size else (0, 0)
    if low < 0 or high >= vocabulary:
        raise InputError(
            f"the {name} tokens",
            expected=f"ids from 0 to {vocabulary - 1:,}",
            given=f"{low if low < 0 else high}",
            way_out="Use the tokenizer that the text was encoded with.",
            id=low if low < 0 else high,
            vocabulary=vocabulary,
        )
    held: Ids = given.astype(_smallest(vocabulary), copy=False).view()
    held.flags.writeable = False
    return held
