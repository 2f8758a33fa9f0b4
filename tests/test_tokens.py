"""Text, tokens and spans: SmolLM2's vocabulary and small ones built here."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from small import byte_tokenizer
from wherefrom.errors import InputError, ModelError
from wherefrom.model import store
from wherefrom.model.generate import Writer
from wherefrom.tokens import BYTE_TO_LETTER, Tokenizer, readable

# From transformers on the same vocabulary.
PROMPTS = {
    "When Mary and John went to the store, John gave a drink to": (
        2427, 5099, 284, 2322, 3514, 288, 260, 4249, 28, 2322, 4502, 253, 5968, 288,
    ),
    "The capital of France is Paris. The capital of Italy is": (
        504, 3575, 282, 4649, 314, 7042, 30, 378, 3575, 282, 7158, 314,
    ),
}  # fmt: skip
TEXTS = (
    "plain",
    "  two blanks and\ttab\n\nlines \r\n",
    "12345 x+y=3.14",
    "中文字和 ideographs",
    "🙂🙃 👩‍👩‍👧 🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "e\u0301 שלום مرحبا",
    "<|im_start|>user\nhi<|im_end|>",
    "</script> [bold]x[/bold] \x1b[31m\x00",
    "naïve don't I'll",
)


@pytest.fixture(scope="session")
def smollm2() -> Tokenizer:
    return Tokenizer.from_file(store.default_model() / "tokenizer.json")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (" Mary", " Mary"),
        ("a\n\t\r", "a\\n\\t\\r"),
        ("\x00", "\\x00"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\u202eevil", "\\u202eevil"),
        ("a\u200db", "a\\u200db"),
        ("\u2066x\ufeff", "\\u2066x\\ufeff"),
        ("\xa0\u3000", "\\xa0\\u3000"),
        ("\U000e0067", "\\U000e0067"),
        ("\u3164\u034f", "\\u3164\\u034f"),
        ("\u0301", "◌\u0301"),
        ("e\u0301", "e\u0301"),
        ("\n\u0301", "\\n◌\u0301"),
        ("שלום", "שלום\u200e"),
        (" مرحبا", " مرحبا\u200e"),
        ("٣", "٣\u200e"),
        ("中文", "中文"),
        ("🙂", "🙂"),
        ("</script>", "</script>"),
        ("[bold]", "[bold]"),
        ("\\n", "\\n"),
        ("", ""),
    ],
)
def test_what_a_person_sees(text: str, shown: str) -> None:
    assert readable(text) == shown


@given(st.text())
def test_what_a_person_sees_is_one_printable_line(text: str) -> None:
    assert readable(text).replace("\u200e", "").isprintable()


@pytest.mark.parametrize("prompt", PROMPTS)
def test_ids_are_those_of_the_reference(smollm2: Tokenizer, prompt: str) -> None:
    tokens = smollm2.encode(prompt)
    assert tokens.ids == PROMPTS[prompt]
    assert "".join(token.text for token in tokens) == prompt == tokens.text


def test_a_token_knows_its_place(smollm2: Tokenizer) -> None:
    token = smollm2.encode("The capital of France is")[3]
    assert (token.position, token.id, token.text, token.data) == (3, 4649, " France", b" France")
    assert (token.span, token.label) == ((14, 21), " France")


def test_tokens_are_a_sequence(smollm2: Tokenizer) -> None:
    tokens = smollm2.encode("one two three")
    assert len(tokens) == 3
    assert [token.label for token in tokens[1:]] == [" two", " three"]
    assert tokens == smollm2.encode("one two three")


@pytest.mark.parametrize("text", TEXTS)
def test_decoding_undoes_encoding(smollm2: Tokenizer, text: str) -> None:
    tokens = smollm2.encode(text)
    assert smollm2.decode(tokens.ids) == text
    assert smollm2.tokens_of(tokens.ids) == tokens


@settings(max_examples=200)
@given(st.data())
def test_any_text_comes_back_or_is_refused(smollm2: Tokenizer, data: st.DataObject) -> None:
    text = data.draw(st.text(st.characters(exclude_categories=["Cs"])))
    missing = [at for at, letter in enumerate(text) if lacks(letter)]
    if missing:
        with pytest.raises(InputError) as caught:
            smollm2.encode(text)
        assert caught.value.facts["position"] == missing[0]
        return
    tokens = smollm2.encode(text)
    assert smollm2.decode(tokens.ids) == text
    assert b"".join(token.data for token in tokens) == text.encode()
    covered = 0
    for token in tokens:
        start, end = token.span
        assert start <= covered <= end  # touches or shares a character with what came before
        assert start < end
        covered = end
    assert covered == len(text)


def lacks(letter: str) -> bool:
    """Whether SmolLM2's vocabulary, which has 235 of the 256 bytes, cannot spell a character."""
    return letter in "\x04\x06\x13\x14\x16\x1d" or 0x40000 <= ord(letter) < 0xC0000


@pytest.mark.parametrize("letter", ["\x04", "\x1d", "\U00040000", "\U00080000"])
def test_a_character_that_would_vanish_is_refused(smollm2: Tokenizer, letter: str) -> None:
    assert smollm2.inner.decode(smollm2.inner.encode(letter).ids) != letter  # what we guard against
    with pytest.raises(InputError, match="which its tokenizer would leave out") as caught:
        smollm2.encode(f"ab{letter}")
    assert caught.value.facts["position"] == 2
    assert caught.value.facts["character"] == letter
    with pytest.raises(InputError, match="leave out"):
        smollm2.one_token(letter)


def test_parts_of_a_character_say_which(smollm2: Tokenizer) -> None:
    tokens = smollm2.encode("hi🙃a\u202e")
    assert [token.label for token in tokens] == [
        "hi",
        "🙃 1/3",
        "🙃 2/3",
        "🙃 3/3",
        "a",
        "\\u202e 1/2",
        "\\u202e 2/2",
    ]
    assert [token.span for token in tokens[1:4]] == [(2, 3)] * 3
    assert [token.text for token in tokens[1:4]] == [""] * 3
    assert b"".join(token.data for token in tokens[1:4]) == "🙃".encode()


def test_a_token_with_a_whole_and_a_part(smollm2: Tokenizer) -> None:
    tokens = smollm2.encode("a שם")
    assert [token.label for token in tokens] == [
        "a",
        " ש\u200e 1/2",
        "ש\u200e 2/2",
        "ם\u200e 1/2",
        "ם\u200e 2/2",
    ]
    assert [token.span for token in tokens] == [(0, 1), (1, 3), (2, 3), (3, 4), (3, 4)]


def test_the_end_of_one_character_and_the_start_of_the_next() -> None:
    first, second = spell("é")[0], spell("é")[1]
    tokenizer = byte_level({first: 0, second: 1, second + first: 2}, [(second, first)])
    assert [token.label for token in tokenizer.encode("éé")] == ["é 1/2", "é 2/2 + é 1/2", "é 2/2"]


def test_a_predicted_part_shows_its_bytes(smollm2: Tokenizer) -> None:
    first = smollm2.encode("🙃")[0]
    assert first.label == "🙃 1/3"
    assert smollm2.label(first.id) == "bytes F0 9F"
    assert smollm2.label(smollm2.one_token("\n")) == "\\n"


def test_tokens_of_a_text_cut_inside_a_character(smollm2: Tokenizer) -> None:
    ids = smollm2.encode("hi🙃").ids[:-1]
    tokens = smollm2.tokens_of(ids)
    assert tokens.text == "hi\ufffd\ufffd\ufffd"
    assert [token.label for token in tokens] == ["hi", "bytes F0 9F", "bytes 99"]
    assert [token.span for token in tokens] == [(0, 2), (2, 4), (4, 5)]


@pytest.mark.parametrize(
    ("text", "number"), [(" Rome", 7268), (" Mary", 5099), ("The", 504), ("<|im_end|>", 2), ("\n", 198)]
)
def test_one_token(smollm2: Tokenizer, text: str, number: int) -> None:
    assert smollm2.one_token(text) == number


def test_more_than_one_token_offers_the_pieces(smollm2: Tokenizer) -> None:
    with pytest.raises(InputError) as caught:
        smollm2.one_token(" Rome\tParis")
    assert caught.value.facts["pieces"] == (" Rome", "\\t", "Paris")
    assert caught.value.facts["ids"][0] == 7268
    assert str(caught.value) == (
        'the token " Rome\\tParis": expected exactly one token of this model, '
        'got 3 (" Rome", "\\t", "Paris"). Ask for one of these pieces.'
    )


def test_no_token_at_all(smollm2: Tokenizer) -> None:
    with pytest.raises(InputError, match=r"got an empty text\. Name a token"):
        smollm2.one_token("")
    assert len(smollm2.encode("")) == 0


@pytest.mark.parametrize(
    ("text", "given"),
    [("caf\udce9", "the byte 0xE9 at character 3"), ("\ud83d", r"half a character, \\ud83d, at character 0")],
)
def test_what_is_not_unicode_is_refused(smollm2: Tokenizer, text: str, given: str) -> None:
    for refuse in (smollm2.encode, smollm2.one_token):
        with pytest.raises(InputError, match=rf"expected UTF-8, got {given}"):
            refuse(text)


@pytest.mark.parametrize("number", [-1, 49152])
def test_an_id_outside_the_vocabulary(smollm2: Tokenizer, number: int) -> None:
    with pytest.raises(InputError, match=rf"a number from 0 to 49151, got {number}"):
        smollm2.token_bytes(number)


def test_size_and_special_tokens(smollm2: Tokenizer) -> None:
    assert smollm2.vocabulary_size == 49152
    assert smollm2.special_ids == frozenset(range(17))


def test_the_byte_alphabet_is_gpt2s() -> None:
    assert BYTE_TO_LETTER[ord(" ")] == "Ġ"
    assert BYTE_TO_LETTER[ord("\n")] == "Ċ"
    assert BYTE_TO_LETTER[ord("A")] == "A"
    assert BYTE_TO_LETTER[0xAD] == "Ń"
    assert sorted(BYTE_TO_LETTER) == sorted(pre_tokenizers.ByteLevel.alphabet())


def spell(text: str) -> str:
    return "".join(BYTE_TO_LETTER[byte] for byte in text.encode())


def byte_level(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> Tokenizer:
    inner = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return Tokenizer(inner)


def sentencepiece() -> Tokenizer:
    """A vocabulary in the manner of Llama 1 and 2, with a beginning mark."""
    pieces = ["<unk>", "<s>", "▁", "a", "b", "▁a", "ab", *(f"<0x{byte:02X}>" for byte in range(256))]
    numbers = {piece: number for number, piece in enumerate(pieces)}
    merges = [("▁", "a"), ("a", "b")]
    inner = tokenizers.Tokenizer(models.BPE(numbers, merges, unk_token="<unk>", byte_fallback=True))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    inner.decoder = decoders.Sequence(steps)
    inner.add_special_tokens(["<s>"])
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return Tokenizer(inner)


def test_sentencepiece_vocabularies_with_a_beginning_mark() -> None:
    tokenizer = sentencepiece()
    tokens = tokenizer.encode("a ab中")
    assert [token.label for token in tokens] == ["<s>", " a", " a", "b", "中 1/3", "中 2/3", "中 3/3"]
    assert [token.span for token in tokens] == [(0, 0), (0, 1), (1, 3), (3, 4), (4, 5), (4, 5), (4, 5)]
    assert [token.data for token in tokens[4:]] == [b"\xe4", b"\xb8", b"\xad"]
    assert tokenizer.label(tokens[4].id) == "bytes E4"
    assert tokenizer.decode(tokens.ids[1:]) == "a ab中"


def test_one_token_of_a_sentencepiece_vocabulary() -> None:
    tokenizer = sentencepiece()
    assert tokenizer.label(tokenizer.one_token(" a")) == " a"  # encoding it would put a second blank before
    assert tokenizer.label(tokenizer.one_token("a")) == "a"
    assert tokenizer.label(tokenizer.one_token("\n")) == "\\n"
    with pytest.raises(InputError):
        tokenizer.one_token("<0xE4>")


def words(*, decoder: bool = True) -> Tokenizer:
    """A vocabulary in the manner of BERT, all in small letters, with marks around; or of whole words."""
    names = ["[CLS]", "[SEP]", "[UNK]", "the", "bridge", "##s", "was", "closed", "."]
    numbers = {name: number for number, name in enumerate(names)}
    if not decoder:
        inner = tokenizers.Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
        inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return Tokenizer(inner)
    inner = tokenizers.Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
    inner.normalizer, inner.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    inner.add_special_tokens(["[CLS]", "[SEP]"])
    inner.post_processor = processors.BertProcessing(("[SEP]", 1), ("[CLS]", 0))
    return Tokenizer(inner)


def test_words_are_not_glued_together() -> None:
    for tokenizer, ids, text in (
        (words(decoder=False), (3, 4, 6), "the bridge was"),
        (words(), (0, 3, 4, 5, 6, 7, 8, 1), "[CLS] the bridges was closed. [SEP]"),
    ):
        tokens = tokenizer.tokens_of(ids)
        assert tokens.text == text == tokenizer.decode(ids)
        spelled = [text[slice(*token.span)] for token in tokens]
        assert spelled == [token.text.removeprefix("##") for token in tokens]
    read = words().encode("The bridges was closed.")
    assert [token.span for token in read[1:-1]] == [(0, 3), (4, 10), (10, 11), (12, 15), (16, 22), (22, 23)]


def test_a_mark_behind_a_text_that_is_rewritten_stands_behind_it() -> None:
    assert [token.span for token in words().encode("The bridge")] == [(0, 0), (0, 3), (4, 10), (10, 10)]


@pytest.mark.parametrize(("text", "number"), [("Bridge", 4), (" Bridge", 4), ("bridge", 4), ("##s", 5), ("[CLS]", 0)])
def test_one_token_of_a_vocabulary_in_small_letters(text: str, number: int) -> None:
    assert words().one_token(text) == number


def test_a_word_that_the_vocabulary_lacks() -> None:
    for text in ("Paris", "the Paris"):
        with pytest.raises(InputError) as caught:
            words().one_token(text)
        assert str(caught.value) == (
            f'the token "{text}": expected a word that this model\'s vocabulary has, '
            'got one that it reads as "[UNK]". Ask for another word.'
        )
    with pytest.raises(InputError, match=r'exactly one token of this model, got 2 \("the", "bridge"\)'):
        words().one_token("The bridge")


@pytest.mark.parametrize(
    ("tokenizer", "ids", "after", "text"),
    [
        (words(), (4, 5, 6, 8), None, "bridges was."),
        (words(), (4, 5, 6, 8), 3, " bridges was."),
        (words(decoder=False), (4, 6), None, "bridge was"),
        (words(decoder=False), (4, 6), 3, " bridge was"),
        (sentencepiece(), (5, 4, 5), None, "ab a"),
        (sentencepiece(), (5, 4, 5), 3, " ab a"),
        (Tokenizer(byte_tokenizer()), (Tokenizer(byte_tokenizer()).one_token(" "), 65), None, None),
    ],
)  # fmt: skip
def test_a_text_is_written_as_its_decoder_would(
    tokenizer: Tokenizer, ids: tuple[int, ...], after: int | None, text: str | None
) -> None:
    writer = Writer(tokenizer, after=after)
    pieces = [writer.write(number) for number in ids]
    assert "".join(pieces) == writer.text == (tokenizer.decode(ids) if text is None else text)
    if after is None:
        assert writer.text == tokenizer.decode(ids)


def test_tokens_of_leaves_out_the_beginning_mark() -> None:
    tokens = sentencepiece().tokens_of([1, 5, 4])
    assert tokens.text == " ab"
    assert [token.span for token in tokens] == [(0, 0), (0, 2), (2, 3)]


def test_an_added_token_is_written_as_it_is() -> None:
    tokenizer = byte_level({letter: byte for byte, letter in enumerate(BYTE_TO_LETTER)}, [])
    tokenizer.inner.add_special_tokens(["<é>"])  # é is a letter of the byte alphabet too
    tokenizer.inner.add_tokens(["two words"])
    again = Tokenizer(tokenizer.inner)
    assert again.token_bytes(256) == "<é>".encode()
    assert [token.text for token in again.encode("a<é>two words")] == ["a", "<é>", "two words"]
    assert (again.one_token("<é>"), again.one_token("two words")) == (256, 257)
    assert again.special_ids == {256}


def test_a_length_limit_in_the_file_is_switched_off(tmp_path: Path) -> None:
    inner = byte_level({letter: byte for byte, letter in enumerate(BYTE_TO_LETTER)}, []).inner
    inner.enable_truncation(2)
    inner.enable_padding(length=9)
    inner.save(str(tmp_path / "tokenizer.json"))
    assert len(Tokenizer.from_file(tmp_path / "tokenizer.json").encode("abcd")) == 4


@pytest.mark.parametrize("content", [None, b"{", b"{}", b"\xff\xfe"])
def test_a_file_that_is_no_tokenizer(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelError, match=r"expected a tokenizer\.json, got a file that cannot be read") as caught:
        Tokenizer.from_file(path)
    assert caught.value.facts["path"] == path


def test_an_id_that_only_pads_the_embedding_spells_nothing_and_is_shown_by_its_number():
    tokenizer = Tokenizer(byte_tokenizer(), rows=300)
    assert tokenizer.vocabulary_size == 257
    assert tokenizer.token_bytes(299) == b""
    assert tokenizer.label(299) == "id 299"
    letter = tokenizer.one_token("a")
    tokens = tokenizer.tokens_of([letter, 299, letter])
    assert tokens.text == "aa"
    assert [token.label for token in tokens] == ["a", "id 299", "a"]
    assert [token.span for token in tokens] == [(0, 1), (1, 1), (1, 2)]
    with pytest.raises(InputError, match="a number from 0 to 299"):
        tokenizer.token_bytes(300)
