"""What a transformers tokenizer made of a text, as readable tokens (floor 3).

Takes `wherefrom.tokens` and its spans from below. Gives `Tokens` to recordings of any transformers model, labels to
their predictions, and the places of an image's patches to its tokens. It reads tokenizers, processors and
configurations by their attributes, so nothing here imports transformers.

A fast tokenizer (one of the ``tokenizers`` library) is read to the byte by `wherefrom.tokens.Tokenizer`. Of any other
the alphabet is found by asking what it makes of three short strings; where that says nothing, each token's text is what
the tokenizer's own decoder adds behind the token before it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import isqrt
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

import tokenizers
from tokenizers import decoders

from wherefrom.checks import as_index, check_items
from wherefrom.errors import InputError
from wherefrom.model.chat import check_messages, refused, without_template
from wherefrom.spans import Token, Tokens, exact_spans, lone_label, tokens_at
from wherefrom.tokens import LETTER_TO_BYTE, SENTENCEPIECE_BYTE, Tokenizer

MARK_KINDS = ("bos_token_id", "eos_token_id", "unk_token_id", "cls_token_id", "sep_token_id", "mask_token_id")
WORD_END = "</w>"


class Patch(NamedTuple):
    """Where a token of an image lies in it.

    Attributes:
        image: which picture the model was given, from 1. Where a processor cuts a picture into tiles, each is one.
        number: which of the image's tokens it is, from 0.
        row: from the top, from 0; None where nothing tells.
        column: from the left, from 0; None where nothing tells.
    """

    image: int
    number: int
    row: int | None = None
    column: int | None = None

    @property
    def label(self) -> str:
        """What a person sees: ``image 1 (3, 7)``, row before column, or ``image 1 #12``."""
        known = self.row is not None and self.column is not None
        return f"image {self.image} ({self.row}, {self.column})" if known else f"image {self.image} #{self.number}"


def tokens_of(
    tokenizer: Any,
    ids: Iterable[int],
    *,
    text: str | None = None,
    pads: Iterable[bool] | None = None,
    images: Mapping[int, Patch] | None = None,
) -> Tokens:
    """Return the tokens of ids that a model reads: every id in its place, with its bytes, its label and its characters.

    Marks that the tokenizer puts around any text ([CLS], <s>), pads and the tokens of images stand in no text: their
    spans are empty. A mark that was written into the text (<|im_start|>) stands in it, as it is written.

    Without a text, it is what the tokens' bytes spell. With one, the spans are the tokenizer's own offsets, exact
    to the byte where the tokens' bytes are the text's. Of a tokenizer that is not a fast one, which has no offsets, the
    text is kept only where its tokens spell it; otherwise it is what they spell.

    Args:
        tokenizer: of a transformers model, or a processor that has one; None: the labels are the ids.
        ids: [T].
        text: which the ids are the tokens of, with or without marks and pads around them; further ids behind it (what
            a model wrote) spell what follows it.
        pads: [T], True where a token only fills up a batch. Without it, tokens are pads where the pad token is no
            other mark too.
        images: position -> patch, see `image_grid`.

    Raises:
        InputError: no tokenizer, ids that are no whole numbers from 0 up, or a text that the ids are not the tokens of.
    """
    numbers = _numbers(ids)
    patches = images or {}
    if tokenizer is None:
        if text is not None:
            way_out = "Leave the text out, or give the tokenizer that read it."
            raise InputError("the text", expected="none where there is no tokenizer", given="one", way_out=way_out)
        tokens = tokens_at("", numbers, [b""] * len(numbers), [(0, 0)] * len(numbers))
        return _marked(tokens, _pads(pads, numbers, None), patches)
    plain = _tokenizer(tokenizer)
    filled = _pads(pads, numbers, plain)
    reader, marks = _reader(plain), _Marks.of(plain)
    body = [place for place, pad in enumerate(filled) if not pad]
    own = [numbers[place] for place in body]
    known = _Known(*marks.around(own)) if text is None else _known(reader, marks, own, text)
    inside = [False] * len(numbers)
    for place in body[known.first : known.last]:
        inside[place] = text is not None or place not in patches
    read = body[known.first : known.first + len(known.spans)]
    rest = list(inside)
    for place in read:
        rest[place] = False
    more, spans = _joined(reader, numbers, rest, numbers[read[-1]] if read else None)
    spans = [(start + len(known.text), end + len(known.text)) for start, end in spans]
    for place, span in zip(read, known.spans, strict=True):
        spans[place] = span
    spans = _standing(spans, inside)
    tokens = tokens_at(known.text + more, numbers, [reader.data(number) for number in numbers], spans)
    return _marked(tokens, filled, patches)


def encode(tokenizer: Any, text: str) -> Tokens:
    """Return a text's tokens with the marks that the tokenizer puts around it, none of them twice.

    A mark is put twice where the text is written with it already (``<s>Hello``, as a chat template writes): where the
    text's own tokens begin with all marks that the tokenizer puts before a text, or end with all that it puts behind
    one, those are left out. Nothing is cut off, however long the text is.

    Args:
        tokenizer: of a transformers model, or a processor that has one.
        text: any text; marks that are spelled out in it (``<|im_end|>``) become those tokens.

    Raises:
        InputError: no tokenizer, a text that is no str or not Unicode, or one with a character that a vocabulary of
            bytes lacks, which the tokenizer would leave out without a word.
    """
    plain = _tokenizer(tokenizer)
    _require_text(text)
    ids, added = _call(plain, text, marks=True)
    opening, closing = _runs(added)
    own = ids[opening : len(ids) - closing]
    if opening and own[:opening] == ids[:opening]:
        ids = ids[opening:]
    if closing and own[len(own) - closing :] == ids[len(ids) - closing :]:
        ids = ids[: len(ids) - closing]
    return tokens_of(plain, ids, text=text)


def together(tokenizer: Any, texts: Sequence[Tokens]) -> tuple[list[list[int]], list[list[int]]]:
    """Return the ids of several texts, all as long as the longest, and which of them are a text's own: 1, else 0.

    They are filled up as the tokenizer does it, on its side and with its pad token. Where it has none, the token that
    ends a text does: nobody reads it. The tokenizer stays as it is.

    Args:
        tokenizer: of a transformers model, or a processor that has one; None fills up with 0.
        texts: of one model, at least one.
    """
    plain = _inner(tokenizer)
    kinds = ("pad_token_id", "eos_token_id", "unk_token_id")
    known = [as_index(getattr(plain, kind, None)) for kind in kinds]
    pad = next((number for number in known if number is not None and number >= 0), 0)
    left, most = getattr(plain, "padding_side", "right") == "left", max(map(len, texts))
    ids, own = [], []
    for tokens in texts:
        fill, here = [pad] * (most - len(tokens)), [1] * len(tokens)
        ids.append([*fill, *tokens.ids] if left else [*tokens.ids, *fill])
        own.append([*(0 for _ in fill), *here] if left else [*here, *(0 for _ in fill)])
    return ids, own


def chat(tokenizer: Any, messages: Sequence[Mapping[str, Any]], *, continue_final: bool = False) -> Tokens:
    """Return a conversation's tokens, written out by the model's own chat template.

    The template's marks are part of the text, which so shows exactly what the model reads; none are put around it.

    Args:
        tokenizer: of a transformers model, or a processor that has one.
        messages: each with a "role" ("user", "assistant", ...) and a "content".
        continue_final: whether the model is to go on with the last message; otherwise its answer begins.

    Raises:
        InputError: no tokenizer, one without a template, messages of another form, or ones that the template refuses.
    """
    plain = _tokenizer(tokenizer)
    given = check_messages(messages)
    if not getattr(plain, "chat_template", None):
        raise without_template("a tokenizer that has none")
    how: dict[str, Any] = {"add_generation_prompt": not continue_final, "continue_final_message": continue_final}
    try:
        text = plain.apply_chat_template(given, tokenize=False, **how)
        made = plain.apply_chat_template(given, tokenize=True, return_dict=True, **how)
    except Exception as error:  # a template is a program: whatever it raises is its word on these messages
        raise refused(error) from error
    return tokens_of(plain, made["input_ids"], text=text)


def end_ids(model: Any, tokenizer: Any = None) -> frozenset[int]:
    """Return the ids of the tokens that end a text: those at which the model's own ``generate`` stops.

    They are those of its generation configuration; where that names none, of its configuration; where that names none
    either, of the tokenizer. A model may have several, or none.

    Args:
        model: a transformers model.
        tokenizer: its tokenizer, if it has one.
    """
    config: Any = getattr(model, "config", None)
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else None
    for place in (getattr(model, "generation_config", None), config, text, _inner(tokenizer)):
        found = getattr(place, "eos_token_id", None)
        several = found if isinstance(found, list | tuple) else [found]
        numbers = [number for number in map(as_index, several) if number is not None and number >= 0]
        if numbers:
            return frozenset(numbers)
    return frozenset()


def label_of(tokenizer: Any) -> Callable[[int], str]:
    """Return what gives a token's label where it stands in no text, such as a predicted one.

    An id that spells nothing, such as one that only pads the embedding, is its number ("id 485"); so is every id where
    there is no tokenizer.

    Raises:
        InputError: no tokenizer (None is allowed).
    """
    if tokenizer is None:
        return lambda number: lone_label(b"", number)
    reader = _reader(_tokenizer(tokenizer))
    return lambda number: lone_label(reader.data(number), number)


def image_grid(source: Any, inputs: Mapping[str, Any], ids: Iterable[int], *, before: int = 0) -> dict[int, Patch]:
    """Return which tokens of a text stand for images, and for which place in them.

    Rows and columns are known where the inputs say them (``image_grid_thw`` of the Qwen-VL family, whose patches are
    merged in squares of ``spatial_merge_size``), or where the number of an image's tokens is that of the squares that
    the configuration cuts every image into (``image_size / patch_size`` each way, as with LLaVA; merged in squares as
    with Idefics 3 and InternVL, or averaged to ``mm_tokens_per_image`` as with Gemma 3). Otherwise (queries of a
    resampler, tiles with ends of rows) the tokens of an image, which are then those that stand side by side, are
    numbered.

    Args:
        source: the model's configuration or its processor.
        inputs: what the model is given.
        ids: [T], of one text.
        before: how many images of the inputs belong to the texts before this one in a batch.

    Returns:
        position -> patch; empty where the source names no image token.

    Raises:
        InputError: ids that are no whole numbers from 0 up.
    """
    numbers = _numbers(ids)
    token = _image_token(source)
    places = [place for place, number in enumerate(numbers) if number == token]
    exact = _by_grids(places, _grids(source, inputs)[before:])
    return _by_runs(places, _side(source)) if exact is None else exact


class _Reader(Protocol):
    """A vocabulary, read token by token."""

    def data(self, number: int) -> bytes:
        """Return the bytes that a token stands for; none where it spells nothing."""

    def added(self, number: int, before: int | None) -> bytes:
        """Return what a token adds to a text behind another one (None: at its beginning)."""

    def read(self, text: str) -> tuple[list[int], list[tuple[int, int]] | None]:
        """Return a text's ids without marks, and their spans in it where those are known."""


class _Fast:
    """The vocabulary of a fast tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._own = Tokenizer(_with_decoder(tokenizer.backend_tokenizer), rows=sys.maxsize)
        self._end = (getattr(self._own.inner.model, "end_of_word_suffix", None) or "").encode()
        self._added = frozenset(self._own.inner.get_added_tokens_decoder())

    def data(self, number: int) -> bytes:
        piece = self._own.token_bytes(number)
        if self._end and number not in self._added and piece.endswith(self._end):
            return piece.removesuffix(self._end) + b" "
        return piece

    def added(self, number: int, before: int | None) -> bytes:
        piece = self._own.added_bytes(number, before)
        return self.data(number) if self._end and piece.endswith(self._end) else piece

    def read(self, text: str) -> tuple[list[int], list[tuple[int, int]] | None]:
        ids, _ = _call(self._tokenizer, text, marks=False)
        tokens = self._own.encode(text, marks=False)
        if list(tokens.ids) != ids:
            return ids, None
        return ids, _apart(text, [token.span for token in tokens], [self.data(number) for number in ids])


class _Slow:
    """The vocabulary of a tokenizer of Python code, by how it writes its tokens' bytes."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        known = getattr(tokenizer, "added_tokens_decoder", None) or {}
        self._added = {int(number): str(token) for number, token in known.items()}
        self._alphabet = _alphabet(tokenizer)

    def data(self, number: int) -> bytes:
        if number in self._added:
            return self._added[number].encode()
        piece = self._piece(number)
        if isinstance(piece, bytes):
            return piece
        if self._alphabet == "letters":
            return b"".join(
                bytes([LETTER_TO_BYTE[letter]]) if letter in LETTER_TO_BYTE else letter.encode() for letter in piece
            )
        if self._alphabet == "ordinals" and all(ord(letter) < 256 for letter in piece):
            return piece.encode("latin-1")
        lone_byte = SENTENCEPIECE_BYTE.fullmatch(piece)
        if lone_byte:
            return bytes.fromhex(lone_byte[1])
        if piece.endswith(WORD_END) and piece != WORD_END:
            piece = piece.removesuffix(WORD_END) + " "
        return (piece.replace("▁", " ") if self._alphabet == "pieces" else piece).encode(errors="replace")

    def added(self, number: int, before: int | None) -> bytes:
        data = self.data(number)
        if self._alphabet == "pieces" and before is None:
            return data.removeprefix(b" ")
        if self._alphabet != "words" or not data:
            return data
        if before is None:
            return self._decoded([number]).encode()
        start, both = self._decoded([before]), self._decoded([before, number])
        return both.removeprefix(start).encode() if both.startswith(start) else data

    def read(self, text: str) -> tuple[list[int], list[tuple[int, int]] | None]:
        ids, _ = _call(self._tokenizer, text, marks=False)
        spelled, spans = _joined(self, ids, [True] * len(ids), None)
        return ids, spans if spelled == text else None

    def _piece(self, number: int) -> str | bytes:
        try:
            piece = self._tokenizer.convert_ids_to_tokens(number)
        except (LookupError, ValueError, TypeError, OverflowError):  # beyond the vocabulary: each has its own way
            return b""
        return piece if isinstance(piece, str | bytes) else b""

    def _decoded(self, ids: list[int]) -> str:
        how = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
        return str(self._tokenizer.decode(ids, **how))


def _reader(tokenizer: Any) -> _Reader:
    fast = isinstance(getattr(tokenizer, "backend_tokenizer", None), tokenizers.Tokenizer)
    return _Fast(tokenizer) if fast else _Slow(tokenizer)


def _apart(text: str, spans: Sequence[tuple[int, int]], data: Sequence[bytes]) -> list[tuple[int, int]]:
    """Return spans where tokens that share one over several characters have their own, if their bytes are its own.

    A Unigram vocabulary takes neighbouring characters that it lacks as one, and gives each of their bytes the span of
    all of them.
    """
    found: list[tuple[int, int]] = []
    for (start, end), sharing in groupby(zip(spans, data, strict=True), key=itemgetter(0)):
        pieces = [piece for _, piece in sharing]
        if b"".join(pieces) == text[start:end].encode():
            own = exact_spans(text[start:end], pieces, [True] * len(pieces))
            found += [(start + first, start + last) for first, last in own]
        else:
            found += [(start, end)] * len(pieces)
    return found


def _with_decoder(inner: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Return a tokenizer that can spell its tokens; one made without a decoder gets, in a copy, the one it implies."""
    if inner.decoder is not None:
        return inner
    # its other parts have no readable fields either
    byte_level = "ByteLevel" in str(inner.pre_tokenizer)
    if not byte_level and type(inner.model).__name__ != "WordPiece":
        return inner
    copy = tokenizers.Tokenizer.from_str(inner.to_str())
    prefix = getattr(inner.model, "continuing_subword_prefix", "##")
    copy.decoder = decoders.ByteLevel() if byte_level else decoders.WordPiece(prefix, cleanup=False)
    return copy


def _alphabet(tokenizer: Any) -> str:
    """Return how tokens write bytes: in GPT-2's letters, as code points, as sentencepiece does, or as words."""
    asked = {
        "letters": (["Ġ", "Ã", "©"], {" é", "é"}),
        "ordinals": (["a", "Ã", "©"], {"aé"}),
        "pieces": (["▁a", "▁b"], {"a b", " a b"}),
        "characters": (["a", "b"], {"ab"}),
    }
    for alphabet, (pieces, answers) in asked.items():
        try:
            if tokenizer.convert_tokens_to_string(pieces) in answers:
                return alphabet
        except Exception:  # noqa: PERF203 - a vocabulary that cannot read them is of another alphabet
            continue
    return "words"


@dataclass(frozen=True)
class _Marks:
    """What a tokenizer puts around any text.

    Attributes:
        opening: the ids before it.
        closing: the ids behind it.
    """

    opening: list[int]
    closing: list[int]

    @classmethod
    def of(cls, tokenizer: Any) -> _Marks:
        ids, added = _call(tokenizer, "a", marks=True)
        opening, closing = _runs(added)
        return cls(ids[:opening], ids[len(ids) - closing :])

    def around(self, ids: Sequence[int]) -> tuple[int, int]:
        """Return from where to where ids are a text's, without the marks around it."""
        first = len(self.opening) if ids[: len(self.opening)] == self.opening else 0
        last = len(ids) - len(self.closing)
        return first, last if last >= first and ids[last:] == self.closing else len(ids)


@dataclass(frozen=True)
class _Known:
    """What is known of a text before its tokens are spelled.

    Attributes:
        first: the first id that is not a mark before the text.
        last: the id behind the last one that is not a mark behind it.
        text: the characters that are given; nothing where the tokens spell them.
        spans: of the ids from `first` on that the given text was read as.
    """

    first: int
    last: int
    text: str = ""
    spans: Sequence[tuple[int, int]] = ()


def _known(reader: _Reader, marks: _Marks, own: list[int], text: str) -> _Known:
    """Return where a given text's tokens stand among ids, with or without the marks around them."""
    _require_text(text)
    ids, spans = reader.read(text)
    begun = []
    for first in dict.fromkeys((0, *((len(marks.opening),) if own[: len(marks.opening)] == marks.opening else ()))):
        behind = first + len(ids)
        if own[first:behind] != ids:
            continue
        ends = len(own) - len(marks.closing)
        last = ends if ends >= behind and own[ends:] == marks.closing else len(own)
        begun.append((last - behind, first, last))
    if not begun:
        raise InputError(
            "the text",
            expected="the one that the tokens were read from",
            given=f"one that the tokenizer reads as {len(ids)} others",
            way_out="Leave the text out: it is then what the tokens spell.",
        )
    _, first, last = min(begun)  # of two readings, the one that leaves the fewest tokens unexplained
    return _Known(first, last) if spans is None else _Known(first, last, text, spans)


def _joined(
    reader: _Reader, numbers: Sequence[int], inside: Sequence[bool], before: int | None
) -> tuple[str, list[tuple[int, int]]]:
    """Return what the tokens inside a text spell behind another token, and their spans in it."""
    data, pieces = [reader.data(number) if own else b"" for number, own in zip(numbers, inside, strict=True)], []
    for number, piece in zip(numbers, data, strict=True):
        pieces.append(reader.added(number, before) if piece else piece)
        before = number if piece else before
    # every broken byte becomes a character of its own, which no whole character is
    text = b"".join(pieces).decode(errors="surrogateescape")
    spans = []
    for (start, end), piece, own in zip(exact_spans(text, pieces, inside), pieces, data, strict=True):
        decoders_blank = piece.startswith(b" ") and not own.startswith(b" ") and end - start > 1
        spans.append((start + decoders_blank, end))  # as in a text that is read, it is no part of the word
    return text, spans


def _standing(spans: Sequence[tuple[int, int]], inside: Sequence[bool]) -> list[tuple[int, int]]:
    """Return spans with an empty one, where it stands, for every token that is in no text."""
    placed, at = [], 0
    for span, own in zip(spans, inside, strict=True):
        placed.append(span if own else (at, at))
        at = span[1] if own else at
    return placed


def _marked(tokens: Tokens, pads: Sequence[bool], images: Mapping[int, Patch]) -> Tokens:
    """Return tokens with the labels of pads and patches."""
    items: list[Token] = []
    for token, pad in zip(tokens, pads, strict=True):
        label = images[token.position].label if token.position in images else token.label
        if pad:
            label = label if "pad" in label.lower() else f"pad ({label})"
        items.append(token if label == token.label else replace(token, label=label))
    return Tokens(tokens.text, tuple(items))


def _pads(given: Iterable[bool] | None, numbers: Sequence[int], tokenizer: Any) -> list[bool]:
    if given is not None:
        found = [bool(pad) for pad in given]
        if len(found) != len(numbers):
            raise InputError(
                "the pads",
                expected=f"one True or False for each of the {len(numbers)} tokens",
                given=f"{len(found)}",
                way_out="They are the places where the attention mask is 0.",
            )
        return found
    pad = getattr(tokenizer, "pad_token_id", None)
    others = {getattr(tokenizer, kind, None) for kind in MARK_KINDS}
    return [number == pad and pad not in others for number in numbers]


def _call(tokenizer: Any, text: str, *, marks: bool) -> tuple[list[int], list[bool]]:
    """Return the ids that a tokenizer gives, and which of them it put around the text's own."""
    made = tokenizer(text, add_special_tokens=marks, return_special_tokens_mask=True, truncation=False, verbose=False)
    return [int(number) for number in made["input_ids"]], [bool(mark) for mark in made["special_tokens_mask"]]


def _runs(added: Sequence[bool]) -> tuple[int, int]:
    """Return how many marks stand before a text's own tokens, and how many behind them."""
    own = [place for place, mark in enumerate(added) if not mark]
    return (own[0], len(added) - 1 - own[-1]) if own else (len(added), 0)


def _inner(tokenizer: Any) -> Any:
    """Return a processor's tokenizer, or what was given."""
    inside = getattr(tokenizer, "tokenizer", None)
    return inside if hasattr(inside, "convert_ids_to_tokens") else tokenizer


def _tokenizer(given: Any) -> Any:
    found = _inner(given)
    if hasattr(found, "convert_ids_to_tokens") and callable(found):
        return found
    raise InputError(
        "the tokenizer",
        expected="one of transformers, or a processor that has one",
        given="None" if given is None else f"a value of type {type(given).__name__}",
        way_out="Load it first: transformers.AutoTokenizer.from_pretrained(folder).",
    )


def _numbers(ids: Iterable[int]) -> list[int]:
    plain = ids.tolist() if hasattr(ids, "tolist") else ids
    way_out = "They are one text's, such as those of input_ids[0]."
    given = check_items("the token ids", plain, expected="whole numbers, one for each token", way_out=way_out)
    numbers = []
    for place, value in enumerate(given):
        number = as_index(value)
        if number is None or number < 0:
            expected, what = "a whole number from 0 up", f"the token id at position {place}"
            shown = repr(value) if len(repr(value)) <= 40 else f"a value of type {type(value).__name__}"
            raise InputError(what, expected=expected, given=shown, way_out=way_out, position=place)
        numbers.append(number)
    return numbers


def _require_text(text: object) -> None:
    way_out = "Give the text that the model is to read as a str."
    if not isinstance(text, str):
        given = f"a value of type {type(text).__name__}"
        raise InputError("the text", expected="a text (str)", given=given, way_out=way_out)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        given = f"half a character, \\u{ord(text[error.start]):04x}, at character {error.start}"
        way_out = 'Read the text as UTF-8, for example with open(path, encoding="utf-8").'
        raise InputError("the text", expected="Unicode", given=given, way_out=way_out, position=error.start) from error


def _image_token(source: Any) -> int | None:
    """Return the id of the token that stands for images in a text, where the source names one."""
    for name in ("image_token_id", "image_token_index"):
        number = as_index(getattr(source, name, None))
        if number is not None:
            return number
    written, inner = getattr(source, "image_token", None), _inner(source)
    if isinstance(written, str) and inner is not source:
        return as_index(inner.convert_tokens_to_ids(written))
    return None


def _whole_of(places: Iterable[Any], names: Collection[str]) -> int | None:
    """Return the first whole number from 1 up that one of some places has under one of some names."""
    for place in places:
        for name in names:
            value = place.get(name) if isinstance(place, Mapping) else getattr(place, name, None)
            value = value[0] if isinstance(value, list | tuple) and len(set(value)) == 1 else value
            number = as_index(value)
            if number is not None and number > 0:
                return number
    return None


def _merge(source: Any) -> int | None:
    """Return the side of the squares of patches that become one token, where the source says it."""
    places = [getattr(source, "vision_config", None), source, getattr(source, "image_processor", None)]
    merge = _whole_of(places, ("spatial_merge_size", "merge_size", "scale_factor"))
    ratio = getattr(source, "downsample_ratio", None)
    return round(1 / ratio) if merge is None and isinstance(ratio, float) and 0 < ratio <= 1 else merge


def _grids(source: Any, inputs: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return how many rows and columns of tokens each image has, where the inputs say it."""
    merge, shapes = _merge(source), inputs.get("image_grid_thw")
    if shapes is not None and merge:
        return [(int(t) * int(h) // merge, int(w) // merge) for t, h, w in shapes]
    sizes = inputs.get("image_sizes")
    patch = _whole_of([getattr(source, "vision_config", None), source], ("patch_size",))
    if sizes is not None and patch:
        cell = patch * (merge or 1)
        return [(int(height) // cell, int(width) // cell) for height, width in sizes]
    return []


def _side(source: Any) -> int | None:
    """Return the side of the square of tokens that every image becomes, where the source says it."""
    averaged = _whole_of([source], ("mm_tokens_per_image",))
    if averaged is not None:
        return isqrt(averaged) if isqrt(averaged) ** 2 == averaged else None
    vision, processor = getattr(source, "vision_config", None), getattr(source, "image_processor", None)
    sizes = [vision, *(getattr(processor, name, None) for name in ("crop_size", "size"))]
    size = _whole_of(sizes, ("image_size", "height", "shortest_edge"))
    patch = _whole_of([vision, source], ("patch_size",))
    if not size or not patch:
        return None
    return size // patch // (_merge(source) or 1) or None


def _by_grids(places: Sequence[int], grids: Sequence[tuple[int, int]]) -> dict[int, Patch] | None:
    """Return the patches where the images' grids account for every token, None where they do not."""
    patches: dict[int, Patch] = {}
    for image, (rows, columns) in enumerate(grids, 1):
        if len(patches) == len(places):
            break
        own = places[len(patches) : len(patches) + rows * columns]
        if len(own) < rows * columns:
            return None
        patches.update(_patches(image, own, columns))
    return patches if grids and len(patches) == len(places) else None


def _by_runs(places: Sequence[int], side: int | None) -> dict[int, Patch]:
    """Return the patches of images whose tokens stand side by side, in squares where their number is that of some."""
    runs: list[list[int]] = []
    for place in places:
        if runs and place == runs[-1][-1] + 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    patches: dict[int, Patch] = {}
    image = 0
    for run in runs:
        known = side if side and len(run) % side**2 == 0 else None
        size = known**2 if known else len(run)
        for start in range(0, len(run), size):
            image += 1
            patches.update(_patches(image, run[start : start + size], known))
    return patches


def _patches(image: int, places: Sequence[int], columns: int | None) -> dict[int, Patch]:
    return {
        place: Patch(image, number, *(divmod(number, columns) if columns else (None, None)))
        for number, place in enumerate(places)
    }
