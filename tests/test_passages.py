"""Passages: units of a text by name, marks by its user, and what is refused; the real vocabulary and made ones."""

from __future__ import annotations

import time
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from small import byte_tokenizer
from wherefrom.errors import InputError
from wherefrom.model import store
from wherefrom.passages import LABEL, Passage, passages
from wherefrom.spans import Tokens, tokens_at
from wherefrom.tokens import Tokenizer

UNITS = ("document", "paragraph", "line", "sentence", "word")  # each divides the one before it
TURNS = [
    "<|im_start|>system\nYou are kind.<|im_end|>\n",
    "<|im_start|>user\nHi there. Ok?<|im_end|>\n",
    "<|im_start|>assistant\nYes.",
]
CHAT = "".join(TURNS)
FACTS = "The capital of France is Paris. The capital of Italy is Rome. A capital of note is"
SIGNS = [
    *"aB1. !?…\"'“”()[]「」。！，-—_\n\r\t\f\u2028\u0301\u200d🙂中ひカー१ा\x00=*",
    "---\n",
    "Dr. ",
    "U.S. ",
    "etc. ",
    "\n\n",
    "<|im_start|>",
]
TEXTS = st.one_of(st.text(st.characters(exclude_categories=["Cs"])), st.lists(st.sampled_from(SIGNS)).map("".join))


@pytest.fixture(scope="session")
def smollm2() -> Tokenizer:
    return Tokenizer.from_file(store.default_model() / "tokenizer.json")


BYTES = Tokenizer(byte_tokenizer())


def cut(*pieces: str) -> Tokens:
    """Tokens of pieces of a text; an empty one is a mark."""
    ends = list(accumulate(map(len, pieces), initial=0))
    return tokens_at("".join(pieces), range(len(pieces)), [piece.encode() for piece in pieces], list(pairwise(ends)))


def letters(text: str) -> Tokens:
    return cut(*text)


def held(tokens: Tokens, found: tuple[Passage, ...]) -> list[str]:
    """The characters of each passage's tokens."""
    return [tokens.text[tokens[one.start].span[0] : tokens[one.stop - 1].span[1]] for one in found]


def units(text: str, by: str = "sentence") -> list[str]:
    """The units of a text, one token a character."""
    tokens = letters(text)
    return held(tokens, passages(tokens, by))


# ---- sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["Dr. Smith paid $3.14. ", "He left."],
        ["He lived in the U.S. in 1990. ", "She is from the U.K. ", "They met."],
        ["The U.S. Army came. ", "It left at 5 p.m. ", "We stayed."],
        [
            'She asked, "Why?" and left. ',
            '"Yes." ',
            "He nodded. ",
            "“No!” she said. ",
            "(He left.) ",
            "Then it rained.",
        ],
        ["See Fig. 3 and no. 5. ", "It shows p. 12, cf. Jones et al. 2020. ", "Answer no. ", "Go."],
        ["Also e.g. this, i.e. that, etc. and more, etc. ", "Next one."],
        ["Hmm... ", "I see. ", "Wait… what? ", "What?! ", "no. ", "OK!"],
        ["J. K. Rowling wrote it. ", "So am I. ", "Plan B. ", "Then C."],
        ["Visit www.x.com. ", "Version 2.0. ", "Hello.World is one."],
        ["1. First. ", "2. Second. ", "a. Third."],
        ["1. One thing\n", "2. Another\n", "- a point\n", "* and one more. ", "Yes"],
        ["It was late. ", "he left. ", "we stayed."],
        ["The answer is [1]. ", "Next.[2] ", "More. ", "**Bold.** ", "Last"],
        ["第一句。", "第二句！", "「好。」", "他说（对。），走。", "完"],
        ["यह है। ", "वह है। ", "ما هذا؟ ", "نعم."],
        ["A title\n", "one line\n", "  another. \n\n\n", "Last"],
        ["\n\n  Blanks before. ", "And after. \n \n"],
        ["--- "],
        ["... ? Why. ", "Yes"],
        ["One. ", "(?) Two. ", "Three"],
        ["Wait . . . done. ", "Yes"],
    ],
)
def test_sentences(sentences: list[str]) -> None:
    assert units("".join(sentences)) == sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["In Vol. ", "IV."],
        ["Am 3. ", "Oktober."],
        ["Plan B. Maybe C."],
        ["Main St. Then left."],
        ["Yahoo! ", "is a name"],
        ["A line that is\n", "broken."],
    ],
)
def test_limits_of_sentences_are_as_they_are_told(sentences: list[str]) -> None:
    assert units("".join(sentences)) == sentences


# ---- the other units


@pytest.mark.parametrize(
    "words",
    [
        ["don’t ", "stop ", "l'homme ", "well-known ", "dogs", "' ", "snake_case"],
        ["1,000.5 ", "at ", "12:30", ", ", "U.S", ". ", "a", ",", "b"],
        ["x", "==", "y ", "f", "(", "z", ")."],
        ["中", "文", "字", "。", "ひ", "ら", "カタカナー ", "한국어 ", "々"],
        ["हिन्दी ", "e\u0301a ", "می\u200cخواهم"],
        ["🙂🙃 ", "👩\u200d👩\u200d👧 ", "— ", "go"],
        ["  if ", "x", ":\n", "    return"],
    ],
)
def test_words(words: list[str]) -> None:
    assert units("".join(words), "word") == words


def test_lines_end_at_every_line_end_and_blank_ones_belong_to_the_one_before() -> None:
    lines = ["\n a\n", "b\r\n\r\n \n", "  c\r", "d\u2028", "e\x85", "f\x0b", "g\n\n"]
    assert units("".join(lines), "line") == lines


def test_paragraphs() -> None:
    paragraphs = ["\nOne.\nStill one.\n \t\n\n", "Two.\r\n\r\n", "Three\u2028 \u2028", "  Four\n"]
    assert units("".join(paragraphs), "paragraph") == paragraphs


def test_documents() -> None:
    documents = ["---\nA. --- B\n\nC\n  ---- \n\n", "D\n***\n", "---x\n- --\nE\f\n", "F\n===\r\n", "G\n---\n"]
    assert units("".join(documents), "document") == documents


def test_turns_of_a_chat_are_documents(smollm2: Tokenizer) -> None:
    tokens = smollm2.encode(CHAT)
    assert held(tokens, passages(tokens, "document")) == TURNS


def test_only_a_token_begins_a_turn() -> None:
    assert len(passages(letters(CHAT), "document")) == 1


@pytest.mark.parametrize(
    ("pieces", "count"),
    [
        (("<s>", "[INST]", " Hi ", "[/INST]", " Yes.", "</s>", "[INST]", " No ", "[/INST]", "\n", "Ok"), 4),
        (("<|begin_of_text|>", "<|start_header_id|>", "user", "<|end_header_id|>", "\n\n", "Hi", "<|eot_id|>"), 1),
        (("<bos>", "<start_of_turn>", "user", "\n", "Hi", "<end_of_turn>", "\n", "<start_of_turn>", "model", "\n"), 2),
        (("<｜User｜>", "Hi", "<｜Assistant｜>", "Yes"), 2),
        (("<|system|>", "Hi", "<|end|>", "<|user|>", "So", "<|end|>", "<|assistant|>"), 3),
    ],
)
def test_marks_of_other_chats(pieces: tuple[str, ...], count: int) -> None:
    found = passages(cut(*pieces), "document")
    assert len(found) == count
    assert (found[0].start, found[-1].stop) == (0, len(pieces))


@pytest.mark.parametrize("by", UNITS)
def test_a_turn_begins_every_unit_in_the_middle_of_a_line_too(by: str) -> None:
    assert 2 in {one.start for one in passages(cut("<|user|>", "Hi", "<|assistant|>", "Yes"), by)}


# ---- tokens in units


def test_a_blank_goes_with_the_word_of_its_token(smollm2: Tokenizer) -> None:
    tokens = smollm2.encode("One here.  Two there. \nThree")
    found = passages(tokens)
    assert held(tokens, found) == ["One here. ", " Two there. \n", "Three"]
    assert [one.label for one in found] == ["One here.", "Two there.", "Three"]


def test_a_token_belongs_to_the_unit_in_which_it_begins() -> None:
    tokens = cut("One", ". Tw", "o.", "\n ", " Th", "ree")
    assert held(tokens, passages(tokens)) == ["One. Tw", "o.\n ", " Three"]
    assert held(tokens, passages(tokens, "word")) == ["One", ". Tw", "o.", "\n ", " Three"]


def test_a_unit_in_which_no_token_begins_is_no_passage() -> None:
    assert len(passages(cut("One. Two. Three. ", "Four."))) == 2


def test_the_tokens_of_a_character_stay_together(smollm2: Tokenizer) -> None:
    tokens = smollm2.encode("Oh 🙃! A 🏴󠁧󠁢󠁥󠁮󠁧󠁿")
    for one in passages(tokens, "word"):
        inside = [tokens[position].span for position in one.positions]
        outside = [token.span for token in tokens if token.position not in one]
        assert not {at for span in inside for at in range(*span)} & {at for span in outside for at in range(*span)}
    assert len(passages(tokens, "token")) == len(tokens)


def test_a_character_whose_first_byte_is_in_the_token_before_stays_with_it() -> None:
    smile = "🙂".encode()
    tokens = tokens_at("a🙂b", [0, 1, 2], [b"a" + smile[:2], smile[2:], b"b"], [(0, 2), (1, 2), (2, 3)])
    assert [(one.start, one.stop) for one in passages(tokens, "word")] == [(0, 2), (2, 3)]
    assert [(one.start, one.stop) for one in passages(tokens, "token")] == [(0, 1), (1, 2), (2, 3)]


def test_marks_that_stand_for_no_character_are_in_no_passage_but_between_two() -> None:
    tokens = cut("", "", "One.", "", " Two.", "", "")
    assert [(one.start, one.stop) for one in passages(tokens)] == [(2, 4), (4, 5)]
    assert [(one.start, one.stop) for one in passages(tokens, "token")] == [(2, 3), (3, 4), (4, 5)]


def test_a_vocabulary_of_words_without_blanks() -> None:
    inner = tokenizers.Tokenizer(models.WordLevel({"one": 0, ".": 1, "two": 2, "[UNK]": 3}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokens = Tokenizer(inner).encode("one two. two one.\n\nthree")
    assert held(tokens, passages(tokens)) == ["one two.", "two one.", "three"]
    assert [one.label for one in passages(tokens, ["two one"])] == ["two one"]


def test_tokens_in_part_of_a_text(smollm2: Tokenizer) -> None:
    tokens = smollm2.encode(FACTS)
    found = passages(tokens, within=range(3, 10))
    assert [(one.start, one.stop, one.label) for one in found] == [
        (3, 7, "France is Paris."),
        (7, 10, "The capital of"),
    ]
    assert passages(tokens, ["The"], within=range(5)) == (Passage(0, 1, "The"),)
    assert passages(tokens, within=range(len(tokens))) == passages(tokens)


# ---- properties


@settings(max_examples=300)
@given(text=TEXTS, by=st.sampled_from(("token", *UNITS)), data=st.data())
def test_units_cover_what_they_divide(text: str, by: str, data: st.DataObject) -> None:
    tokens = BYTES.encode(text) if data.draw(st.booleans()) else letters(text)
    if not text:
        with pytest.raises(InputError, match="at least one token that stands for a character"):
            passages(tokens, by)
        return
    start = data.draw(st.integers(0, len(tokens) - 1))
    within = range(start, data.draw(st.integers(start + 1, len(tokens))))
    found = passages(tokens, by, within=within)
    assert (found[0].start, found[-1].stop) == (within.start, within.stop)
    assert all(one.stop == other.start for one, other in pairwise(found))
    assert all(0 < len(one.label) <= LABEL for one in found)
    assert (by != "token") or len(found) == len(within)


@settings(max_examples=200)
@given(text=TEXTS.filter(bool))
def test_units_lie_inside_one_another(text: str) -> None:
    tokens = BYTES.encode(text)
    starts = [{one.start for one in passages(tokens, by)} for by in UNITS]
    assert all(outer <= inner for outer, inner in pairwise(starts))


@settings(max_examples=200)
@given(text=TEXTS.filter(bool), by=st.sampled_from(UNITS))
def test_units_begin_with_a_sign_and_share_no_character(text: str, by: str) -> None:
    tokens = BYTES.encode(text)
    found = passages(tokens, by)
    assert "".join(held(tokens, found)) == tokens.text
    assert all(piece.strip() for piece in held(tokens, found)) or not tokens.text.strip()


@settings(max_examples=200)
@given(
    pieces=st.lists(st.sampled_from(["", "", "One. ", " ", "\n\n", "Two", ". Three", "🙂!", "---\n", "。"])),
    by=st.sampled_from(("token", *UNITS)),
)
def test_only_tokens_without_a_character_are_left_out(pieces: list[str], by: str) -> None:
    if not any(pieces):
        return
    found = passages(cut(*pieces), by)
    inside = [position for one in found for position in one.positions]
    written = [place for place, piece in enumerate(pieces) if piece]
    assert inside == list(range(written[0], written[-1] + 1))


@settings(max_examples=200)
@given(text=TEXTS.filter(lambda text: bool(text.strip())), data=st.data())
def test_a_text_that_occurs_once_marks_all_its_tokens(text: str, data: st.DataObject) -> None:
    tokens = BYTES.encode(text)
    start = data.draw(st.integers(0, len(text) - 1))
    mark = text[start : data.draw(st.integers(start + 1, len(text)))]
    places = [at for at in range(len(text)) if text.startswith(mark, at)]
    if len(places) > 1:
        with pytest.raises(InputError) as caught:
            passages(tokens, [mark])
        assert [at for at, _ in caught.value.facts["places"]] == places
        return
    (one,) = passages(tokens, [mark])
    span = (tokens[one.start].span[0], tokens[one.stop - 1].span[1])
    assert text[slice(*span)] == (mark.strip() or mark)


@pytest.mark.parametrize(
    "piece", ["! ", "Yes. ", "a. ", "\n", "x", "。", "--- \n", "(\"'", ". ", "\u200d", "<|im_start|>"]
)
@pytest.mark.parametrize("by", UNITS)
def test_time_is_linear(piece: str, by: str) -> None:
    text = piece * (60_000 // len(piece))
    tokens = cut(*(text[at : at + 20] for at in range(0, len(text), 20)))
    began = time.process_time()
    passages(tokens, by)
    assert time.process_time() - began < 30  # a square one takes minutes, a linear one parts of a second


# ---- marks


def test_marks(smollm2: Tokenizer) -> None:
    tokens = smollm2.encode(FACTS)
    assert passages(tokens, ["Rome", (0, 2), range(3, 5), [5, 6], Passage(8, 9, "so", "mine")]) == (
        Passage(0, 2, "The capital"),
        Passage(3, 5, "France is"),
        Passage(5, 6, "Paris"),
        Passage(8, 9, "so", "mine"),
        Passage(12, 13, "Rome"),
    )
    named = passages(tokens, {"fact": "of Italy is", "first": (0, 1), "again": Passage(4, 5, "is", "x")})
    assert [(one.name, one.label, one.start) for one in named] == [
        ("first", "The", 0),
        ("again", "is", 4),
        ("fact", "of Italy is", 9),
    ]
    assert passages(tokens, np.array([[1, 3]])) == (Passage(1, 3, "capital of"),)
    assert passages(tokens, passages(tokens)) == passages(tokens)


@pytest.mark.parametrize(
    ("mark", "taken"),
    [("e thr", "One three"), (" three\t", " three"), ("🙃", "🙃"), ("\n\n", "\n\n"), ("r\n", " four\n")],
)
def test_a_mark_takes_every_token_that_holds_a_sign_of_it(smollm2: Tokenizer, mark: str, taken: str) -> None:
    tokens = smollm2.encode("One three\t🙃 four\n\nfive")
    found = passages(tokens, [mark])
    assert held(tokens, found) == [taken.rstrip("\n") if mark.strip() else taken]
    assert len(found[0]) == (3 if mark == "🙃" else 1 if taken.startswith(" ") else 2)


def test_a_token_without_a_character_can_be_marked_by_its_range() -> None:
    (one,) = passages(cut("", "One"), {"sink": (0, 1)})
    assert (one.start, one.stop, one.title) == (0, 1, "sink")
    assert one.label == "id 0"


def test_a_mark_that_occurs_twice_offers_its_places(smollm2: Tokenizer) -> None:
    with pytest.raises(InputError) as caught:
        passages(smollm2.encode(FACTS), ["The capital of"])
    assert str(caught.value) == (
        'the marked text "The capital of": expected a text that occurs once, got one that occurs twice: character 0 '
        '("[The capital of] France is Paris. The…"), character 32 ("…of France is Paris. [The capital of] Italy is '
        'Rome. A…"). Mark more of the words around it, or tokens by their range: [(0, 3)] or [(7, 10)].'
    )
    assert caught.value.facts["places"] == ((0, 14), (32, 46))
    assert caught.value.facts["ranges"] == ((0, 3), (7, 10))


def test_of_many_places_five_are_shown() -> None:
    with pytest.raises(InputError, match=r"occurs 9 times: .*, and 4 more\..* and so on") as caught:
        passages(letters("aaaaaaaaaa"), ["aa"])
    assert len(caught.value.facts["places"]) == 9  # those that overlap too


def test_the_same_tokens_are_offered_once() -> None:
    with pytest.raises(InputError, match=r"by their range: \[\(0, 1\)\] or \[\(1, 2\)\]\.$"):
        passages(cut("aa", "a"), ["a"])


@pytest.mark.parametrize(
    ("mark", "said", "places"),
    [
        ("paris", r"other blanks or capitals it stands at character 25 \(.*\[Paris\]", ((25, 30),)),
        ("of\n Italy", r"other blanks or capitals it stands at character 44 \(.*\[of Italy\]", ((44, 52),)),
        ("Italy is Roman", r"its beginning \"Italy is Rom\" stands at character 47", ((47, 59),)),
        ("zzz", r"got one that does not\. Mark it letter for letter", ()),
        ("  \n", r"got one that does not\. ", ()),
    ],
)
def test_a_mark_that_occurs_nowhere_offers_what_is_like_it(
    smollm2: Tokenizer, mark: str, said: str, places: tuple[Any, ...]
) -> None:
    with pytest.raises(InputError, match=said) as caught:
        passages(smollm2.encode(FACTS), {"fact": mark})
    assert caught.value.facts["places"] == places
    assert '("fact"): expected a text that occurs once, got' in str(caught.value)


def test_a_mark_outside_of_what_is_divided(smollm2: Tokenizer) -> None:
    tokens = smollm2.encode(FACTS)
    said = (
        "once in the tokens to divide, got one that does not; outside of the tokens to divide it stands at character 56"
    )
    with pytest.raises(InputError, match=said):
        passages(tokens, ["Rome"], within=range(5))
    with pytest.raises(InputError, match=r"with 2 <= start < stop <= 5, got \(1, 3\)"):
        passages(tokens, [(1, 3)], within=range(2, 5))


def test_overlapping_marks_are_refused_with_the_tokens_that_they_share(smollm2: Tokenizer) -> None:
    tokens = smollm2.encode(FACTS)
    said = r'got "France is" \(tokens 3 to 4\) and "b" \(tokens 4 to 5\), which share token 4 " is"\. Shorten one'
    with pytest.raises(InputError, match=said) as caught:
        passages(tokens, {"b": "is Paris", "France is": "France is"})
    assert caught.value.facts["shared"] == range(4, 5)
    with pytest.raises(InputError, match="which share tokens 1 to 2"):
        passages(tokens, [(0, 9), (1, 3)])
    with pytest.raises(InputError, match='share token 5 " Paris"'):  # their texts share nothing, their tokens do
        passages(tokens, ["e is P", "aris. T"])


@pytest.mark.parametrize(
    ("by", "said"),
    [
        ("fact", r'the unit of passages: expected "token", "word", .* got "fact"\. A text to mark goes into a list'),
        ("", r"the unit of passages: "),
        ("Sentence", r"the unit of passages: "),
        ([], r"the marks: expected at least one, got none"),
        ({}, r"the marks: expected at least one, got none"),
        ([""], r"a marked text: expected at least one character, got none"),
        ({"fact": ""}, r"a marked text: expected at least one character, got none"),
        ({"": "Rome"}, r"a mark's name: expected a text, got ''"),
        ({3: "Rome"}, r"a mark's name: expected a text, got 3"),
        (None, r"the passages: expected the name of a unit, or marks, got None"),
        (5, r"the passages: expected the name of a unit, or marks, got 5"),
        (b"Rome", r"the passages: expected the name of a unit, or marks, got b'Rome'"),
        (Passage(0, 1, "x"), r"the passages: expected the name of a unit, or marks"),
        ((3, 5), r"a text, or tokens \(start, stop\) with 0 <= start < stop <= 19, got 3\. .*\[\(3, 4\)\]"),
        ([(3, 3)], r"got \(3, 3\)"),
        ([(5, 3)], r"got \(5, 3\)"),
        ([(-2, 3)], r"got \(-2, 3\)"),
        ([(0, 20)], r"got \(0, 20\)"),
        ([(0.0, 2)], r"got \(0\.0, 2\)"),
        ([(True, 2)], r"got \(True, 2\)"),
        ([(1, 2, 3)], r"got \(1, 2, 3\)"),
        ([range(0, 4, 2)], r"got range\(0, 4, 2\)"),
        ([Passage(19, 22, "x")], r"stop <= 19, got Passage\(start=19"),
        ({"fact": None}, r'the mark "fact": .* got None'),
        ([b"Rome"], r"a mark: .* got b'Rome'"),
    ],
)  # fmt: skip
def test_what_is_no_unit_and_no_mark(smollm2: Tokenizer, by: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        passages(smollm2.encode(FACTS), by)


@pytest.mark.parametrize(
    "within", [range(0), range(3, 3), range(0, 4, 2), range(20), range(-1, 3), (0, 3), slice(0, 3), 3]
)
def test_what_is_no_range_to_divide(smollm2: Tokenizer, within: Any) -> None:
    with pytest.raises(InputError, match=r"range of at least one token from 0 to 19, such as range\(0, 19\), got"):
        passages(smollm2.encode(FACTS), within=within)


def test_nothing_to_divide() -> None:
    for tokens in (cut(), cut("", "")):
        with pytest.raises(InputError, match="at least one token that stands for a character"):
            passages(tokens)
    with pytest.raises(InputError, match="got none of 1"):
        passages(cut("", "One"), within=range(1))
    with pytest.raises(InputError, match="the tokens: expected a Tokens"):
        passages("One. Two.")  # type: ignore[arg-type]


# ---- a passage


def test_a_passage_holds_its_positions() -> None:
    one = Passage(np.int64(3), 5, "a fact")  # type: ignore[arg-type]
    assert (one.start, one.stop, len(one), one.positions) == (3, 5, 2, range(3, 5))
    assert [position in one for position in (2, 3, 4, 5, "3")] == [False, True, True, False, False]
    assert (one.title, Passage(3, 5, "a fact", "mine").title) == ("a fact", "mine")
    assert type(one.start) is int


@pytest.mark.parametrize("edges", [(3, 3), (4, 3), (-1, 2), (0, 1.5), (True, 2), (None, 2)])
def test_a_passage_of_no_tokens_is_refused(edges: tuple[Any, Any]) -> None:
    with pytest.raises(InputError, match="a passage: expected a range of at least one token, from 0 up"):
        Passage(*edges, "x")


# ---- labels


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("  two\n\n words\t", "two words"),
        ("a\x1b[31m\u202e", "a\\x1b[31m\\u202e"),
        ("x" * 40, "x" * 40),
        ("The quick brown fox jumps over the lazy dog.", "The quick brown fox…over the lazy dog."),
        ("a" * 30 + "b" * 30, "a" * 20 + "…" + "b" * 19),
        ("\u202e" * 30 + "b" * 30, "\\u202e" * 5 + "…" + "bbbb"),
        ("שלום", "שלום\u200e"),
        ("\n\n", "\\n\\n"),
        ("\U000e0067" * 9, "\\U000e0067\\U000e0067…\\U000e0067"),
    ],
)
def test_labels(text: str, label: str) -> None:
    (one,) = passages(letters(text), "document")
    assert one.label == label


def test_the_label_of_a_token_is_its_own(smollm2: Tokenizer) -> None:
    tokens = smollm2.encode("One 🙃")
    assert [one.label for one in passages(tokens, "token")] == [token.label for token in tokens]
