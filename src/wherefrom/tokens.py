"""Text, tokens and character spans (floor 1): what a tokenizer made of a prompt, and how to show it.

Takes errors from below. Gives `Tokens` to capture, questions and views, and token ids to the model. No torch.

Two kinds of vocabulary are read to the byte: byte-level BPE (GPT-2's alphabet, where each byte has a
printable stand-in: https://github.com/openai/gpt-2/blob/master/src/encoder.py) and sentencepiece's ("▁" for a
blank, "<0xE4>" for a lone byte). A third (WordPiece, whole words) has no blanks: its decoder puts them between words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from wherefrom.errors import InputError, ModelError
from wherefrom.readable import LEFT_TO_RIGHT_MARK, escape, readable
from wherefrom.spans import LONE_BYTE, Token, Tokens, exact_spans, given_spans, lone_label, tokens_at, whole_text

MASKS = ("[MASK]", "<mask>")
__all__ = ["LEFT_TO_RIGHT_MARK", "Token", "Tokenizer", "Tokens", "readable"]
WORDS = ("WordPiece", "WordLevel", "BPEDecoder")
SENTENCEPIECE_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> tuple[str, ...]:
    """GPT-2's stand-in for each byte: itself where that prints, else the next letter from U+0100 on."""
    themselves = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in themselves else next(others)) for byte in range(256))


BYTE_TO_LETTER = _byte_alphabet()
LETTER_TO_BYTE = {letter: byte for byte, letter in enumerate(BYTE_TO_LETTER)}


class Tokenizer:
    """A vocabulary and its rules: text to tokens and back.

    Args:
        inner: a tokenizer of the ``tokenizers`` library. It is changed in one way: a length limit or padding
            that came in its file is switched off, since both would silently change the prompt.
        rows: how many ids the model can predict. Embeddings are often padded beyond the vocabulary; such an id
            spells nothing, and its label is its number ("id 485").
    """

    def __init__(self, inner: tokenizers.Tokenizer, *, rows: int = 0) -> None:
        inner.no_truncation()
        inner.no_padding()
        self.inner, self.rows = inner, max(rows, inner.get_vocab_size(with_added_tokens=True))
        self._added = {number: token.content for number, token in inner.get_added_tokens_decoder().items()}
        rules = _decoding(inner)
        self._byte_level, self._words = "ByteLevel" in rules, not rules.isdisjoint(WORDS)
        # the longest first, as the library prefers them; an empty alternation would match everywhere
        names = sorted((re.escape(name) for name in self._added.values()), key=len, reverse=True)
        self._added_names = re.compile("|".join(names) or r"(?!)")
        self._missing = self._missing_bytes()
        self._opening = tuple(inner.encode("").ids)

    @classmethod
    def from_file(cls, path: Path, *, rows: int = 0) -> Tokenizer:
        """Return the tokenizer of a ``tokenizer.json``.

        Raises:
            ModelError: the file is missing, or is not one that the ``tokenizers`` library reads.
        """
        try:
            return cls(tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8")), rows=rows)
        except Exception as error:  # the library raises bare Exception for whatever is wrong in the file
            raise ModelError(
                f"{path}",
                expected="a tokenizer.json",
                given=f"a file that cannot be read as one ({error})",
                way_out="Copy the model's tokenizer.json here again.",
                path=path,
            ) from error

    @property
    def vocabulary_size(self) -> int:
        """How many tokens there are, the added ones included."""
        return int(self.inner.get_vocab_size(with_added_tokens=True))

    @property
    def special_ids(self) -> frozenset[int]:
        """The ids of tokens that are marks, not text (``<|endoftext|>``)."""
        added = self.inner.get_added_tokens_decoder()
        return frozenset(number for number, token in added.items() if token.special)

    @property
    def mask_id(self) -> int | None:
        """The token that stands for a missing one in an encoder's text, or None."""
        found = (self.inner.token_to_id(name) for name in MASKS)
        return next((int(number) for number in found if number is not None), None)

    def encode(self, text: str, *, marks: bool = True) -> Tokens:
        """Return the tokens of a text, with marks around it only if the tokenizer's own rules add some.

        Special tokens that are spelled out in the text (``<|im_end|>``) become those tokens.

        Args:
            text: any text.
            marks: whether those rules are followed; without them, the text's own tokens alone.

        Raises:
            InputError: the text is not Unicode (undecodable bytes from a command line), or it holds a byte
                that the vocabulary lacks, which the tokenizer would leave out without a word.
        """
        raw = _utf8(text)
        self._refuse_missing(text, raw)
        encoding = self.inner.encode(text, add_special_tokens=marks)
        data = [self.token_bytes(number) for number in encoding.ids]
        inside = [mark == 0 for mark in encoding.special_tokens_mask]
        if b"".join(piece for piece, own in zip(data, inside, strict=True) if own) == raw:
            spans = exact_spans(text, data, inside)
        else:  # the tokenizer rewrote the text (a blank before it, normal forms): its own account is the best
            spans = given_spans(text, encoding.offsets, inside)
        return tokens_at(text, encoding.ids, data, spans)

    def tokens_of(self, ids: Iterable[int]) -> Tokens:
        """Return the tokens of given ids, such as a prompt with what a model wrote after it.

        The text is what the tokens' bytes spell, special tokens included, the beginning mark that `encode`
        adds left out; words that have no blanks of their own get one between them. A byte that belongs to no whole
        character (a text cut inside one) is one U+FFFD of it.

        Raises:
            InputError: the vocabulary has no token of one of the numbers.
        """
        numbers = tuple(ids)
        data = [self.token_bytes(number) for number in numbers]
        opening = len(self._opening) if numbers[: len(self._opening)] == self._opening else 0
        inside = [position >= opening for position in range(len(numbers))]
        pieces = self._joined(numbers, data, inside) if self._words else data
        # surrogateescape gives every broken byte a character of its own, which no whole character is.
        text = b"".join(pieces[opening:]).decode(errors="surrogateescape")
        spans = exact_spans(text, pieces, inside)
        if self._words:  # as in a text that is read, the blank before a word is no part of it
            spans = [(start + (end - start > 1 and text[start] == " "), end) for start, end in spans]
        return tokens_at(text, numbers, data, spans)

    def _joined(self, numbers: Sequence[int], data: Sequence[bytes], inside: Sequence[bool]) -> list[bytes]:
        """Return what each token adds to the text."""
        pieces, before = [], None
        for number, own_data, own in zip(numbers, data, inside, strict=True):
            pieces.append(self.added_bytes(number, before) if own else own_data)
            before = number if own and own_data else before
        return pieces

    def added_bytes(self, number: int, before: int | None) -> bytes:
        """Return what a token adds to a text: its bytes, and the blank that its vocabulary's decoder puts before it.

        Args:
            number: the token's id.
            before: the token before it; None at the beginning of a text, where a decoder may leave a blank out.

        Raises:
            InputError: the model has no token of this number.
        """
        data = self.token_bytes(number)
        if not data or (before is not None and not self._words):
            return data
        if before is not None:
            start, both = self.decode([before]), self.decode([before, number])
            return both.removeprefix(start).encode()
        begun = self.decode([number]).encode()
        return begun if self._words else data if begun.startswith(b" ") else data.removeprefix(b" ")

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of token ids, special tokens spelled out; broken characters become U+FFFD."""
        return str(self.inner.decode(list(ids), skip_special_tokens=False))

    def token_bytes(self, number: int) -> bytes:
        """Return the bytes that a token stands for; none for an id that only pads the embedding.

        Raises:
            InputError: the model has no token of this number.
        """
        if number in self._added:  # added tokens are written literally, in any vocabulary
            return self._added[number].encode()
        piece = self.inner.id_to_token(number) if number >= 0 else None
        if piece is None and 0 <= number < self.rows:
            return b""
        if piece is None:
            raise InputError(
                "the token id",
                expected=f"a number from 0 to {self.rows - 1}",
                given=f"{number}",
                way_out="Use an id that this model's tokenizer gave.",
                id=number,
            )
        if self._byte_level:
            return b"".join(
                bytes([LETTER_TO_BYTE[letter]]) if letter in LETTER_TO_BYTE else letter.encode() for letter in piece
            )
        lone_byte = SENTENCEPIECE_BYTE.fullmatch(piece)
        return bytes.fromhex(lone_byte[1]) if lone_byte else piece.replace("▁", " ").encode()

    def label(self, number: int) -> str:
        """Return what a person sees for a token that is not in a text, such as a predicted one.

        A part of a character shows its bytes (``bytes F0 9F``), since the character is not known.
        """
        return lone_label(self.token_bytes(number), number)

    def one_token(self, text: str) -> int:
        """Return the id of the token that spells exactly this text, its leading blank included.

        A vocabulary that rewrites what it reads (in small letters, without blanks) may spell it otherwise: then it is
        the one token that it reads the text as.

        Raises:
            InputError: there is no such token; ``pieces`` and ``ids`` name those that the text falls into.
        """
        raw = _utf8(text)
        in_letters = "".join(BYTE_TO_LETTER[byte] for byte in raw)
        in_sentencepiece = (text.replace(" ", "▁"), f"<0x{raw.hex().upper()}>")
        for piece in (text, *((in_letters,) if self._byte_level else in_sentencepiece)):
            number = self.inner.token_to_id(piece)
            if number is not None and self.token_bytes(number) == raw:
                return int(number)
        self._refuse_missing(text, raw)
        ids = tuple(int(number) for number in self.inner.encode(text, add_special_tokens=False).ids)
        unknown = self._unknown_id() if ids else None
        if len(ids) == 1 and ids[0] != unknown:
            return ids[0]
        if unknown in ids:
            raise InputError(
                f'the token "{readable(text)}"',
                expected="a word that this model's vocabulary has",
                given=f'one that it reads as "{self.label(ids[ids.index(unknown)])}"',
                way_out="Ask for another word.",
                text=text,
                ids=ids,
            )
        pieces = tuple(self.label(number) for number in ids)
        typable = all(whole_text(self.token_bytes(number)) is not None for number in ids)
        named = [f'"{piece}"' + f" = id {number}" * (not typable) for piece, number in zip(pieces, ids, strict=True)]
        listed = ", ".join(named)
        by_id = "" if typable else " by its id (--target-id or --against-id; in Python, the number)"
        raise InputError(
            f'the token "{readable(text)}"',
            expected="exactly one token of this model",
            given=f"{len(ids)} ({listed})" if ids else "an empty text",
            way_out=f"Ask for one of these pieces{by_id}." if ids else 'Name a token, for example " the".',
            text=text,
            pieces=pieces,
            ids=ids,
        )

    def _unknown_id(self) -> int | None:
        """Return the token that stands for what the vocabulary cannot spell, if there is one."""
        name = getattr(self.inner.model, "unk_token", None)
        if name is None:  # Unigram has a number instead, which only its file shows
            number = json.loads(self.inner.to_str())["model"].get("unk_id")
        else:
            number = self.inner.token_to_id(name)
        return None if number is None else int(number)

    def _missing_bytes(self) -> frozenset[int]:
        """Bytes that no token spells and no unknown-token would mark: the library drops them silently."""
        if not self._byte_level or getattr(self.inner.model, "unk_token", None) is not None:
            return frozenset()
        return frozenset(byte for byte, letter in enumerate(BYTE_TO_LETTER) if self.inner.token_to_id(letter) is None)

    def _refuse_missing(self, text: str, raw: bytes) -> None:
        """Refuse a text of which the tokenizer would leave something out."""
        if self._missing.isdisjoint(raw):
            return
        spelled = {at for found in self._added_names.finditer(text) for at in range(*found.span())}
        lacking = (at for at, letter in enumerate(text) if not self._missing.isdisjoint(letter.encode()))
        at = next((at for at in lacking if at not in spelled), None)  # an added token spells itself, letters or not
        if at is None:
            return
        raise InputError(
            "the text",
            expected="characters that this model's vocabulary can spell",
            given=f"{escape(text[at])} at character {at}, which its tokenizer would leave out",
            way_out="Take the character out of the text.",
            position=at,
            character=text[at],
        )


def _decoding(inner: tokenizers.Tokenizer) -> frozenset[str]:
    """Return the types of the decoder and its parts; without one, that of the model, such as "WordLevel"."""
    if inner.decoder is None:
        return frozenset({type(inner.model).__name__})
    # Decoders have no readable fields; their pickled state is their JSON.
    return _types(json.loads(inner.decoder.__getstate__()))


def _types(state: Mapping[str, Any]) -> frozenset[str]:
    return frozenset({state["type"]}).union(*map(_types, state.get("decoders", ())))


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        is_byte = LONE_BYTE.match(text, error.start)
        broken = f"the byte 0x{code - 0xDC00:02X}" if is_byte else f"half a character, \\u{code:04x},"
        raise InputError(
            "the text",
            expected="UTF-8",
            given=f"{broken} at character {error.start}",
            way_out="Convert it first, for example with `iconv -f latin1 -t utf-8`.",
            position=error.start,
        ) from error
