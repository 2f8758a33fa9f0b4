r"""Passages of a text (floor 1): runs of neighbouring tokens that are taken as one source.

Takes errors and checks from below, and from beside it tokens in their text (spans) and what a person sees of them
(readable). Gives `Passage` and `passages` to evidence and views. No torch.

The named units lie inside one another: every place where a document, paragraph or line begins is also the beginning
of a sentence, and every beginning of a sentence that of a word. They are found by rules, without a dictionary:

- A line ends at ``\n``, ``\r``, vertical tab, form feed, U+0085, U+2028 or U+2029; one without a sign on it belongs to
  the line before it.
- A paragraph ends at such a blank line.
- A document ends with a line of only ``---``, ``***`` or ``===`` (three or more), at a form feed, and where a token
  marks the next turn of a chat (`TURN`). Also a heading that is underlined so is taken for a document's end.
- A sentence ends at a line's end; at ``.``, ``!``, ``?``, their kin in other scripts and at ``…``, with the quotes and
  brackets that close after them, where a blank follows, or anything at all after ``。！？``. A full stop ends none
  after a title (``Dr.``), after ``e.g.`` and its like, between ``No.`` and a number, after the number of a list's
  item, nor after initials and ``U.S.``, unless a word follows that often opens a sentence (``The``). An ellipsis, a
  closing quote and ``etc.`` end none where a small letter follows. Its limits: abbreviations of English and not all
  (``Vol. IV`` and a German ``3. Oktober`` are cut, "Main St. Then" is not; "plan B. Then" is, "plan B. Maybe" is not),
  names such as ``Yahoo!``, and lines that are broken at a width, each of which is a sentence here.
- A word is letters, digits, underscores and the marks on them, joined by an apostrophe, a hyphen or a full stop
  between them (``don't``, ``well-known``, ``U.S``) and between digits also by a comma or a colon (``1,000.5``,
  ``12:30``). Each Han character and each hiragana is a word, a run of katakana one. Scripts that write no blanks
  otherwise (Thai, Lao, Khmer) are not divided inside a run. Signs between words are units of their own, a run one.

Libraries for sentences were weighed, and left out: sentencex 1.0.32 panics on some texts (U+2028 before a full stop),
pysbd 0.3.4 is slow and no longer kept, and uniseg 0.10.1, the rule of Unicode's UAX 29, ends a sentence at ``Dr.`` and
takes seconds for 80,000 characters.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeAlias

from wherefrom.checks import as_index, check_items, check_kind
from wherefrom.errors import InputError
from wherefrom.readable import readable
from wherefrom.spans import Token, Tokens

LABEL = 40
"""Characters of a label at most."""
OFFERED = 5
"""Places that an error shows."""
AROUND = 24
"""Characters that it shows on either side of a place."""

LINE_END = re.compile("\r\n|[\n\r\v\f\x85\u2028\u2029]")
RULE = re.compile(r"[^\S\n]*(-{3,}|\*{3,}|={3,})[^\S\n]*")
TURN = re.compile(
    r"<\|(im_)?(start|user|assistant|system|developer|tool|observation)\|>|<\|start_header_id\|>|<\|header_start\|>"
    r"|<\|start_of_role\|>|<start_of_turn>|<\|turn>|<\|START_OF_TURN_TOKEN\|>|<｜(User|Assistant)｜>|\[(INST|SYSTEM_PROMPT)\]"
)
"""Tokens that begin a turn of a chat. Text that only looks like one falls into several, and counts for nothing."""
AFTER_TURN = re.compile(r"\[/(INST|SYSTEM_PROMPT)\]")
TOKEN_OF_MARKS = re.compile(r"\s*|[<\[]\S*[>\]]")

WIDE = "。！？｡．"  # nothing has to follow
STRONG = "!?‼⁇⁈⁉؟۔।॥።፧។៕။" + WIDE
ENDING = re.compile(f"[.…{STRONG}]+")
CLOSING = re.compile(r"""(?:["'”’»›)\]}」』）】》〉］｝*_`]|\[\d{1,3}\])*""")
OPENING = re.compile(r"""["'“‘«‹¿¡(\[{「『（【《〈［｛*_`]*(\w*)""")
GOES_ON = frozenset("，、；：,;:）")
BEFORE_STOP = re.compile(r"(?:[^\W_]|\.)+\Z")
ITEM = re.compile(r"\s*[(\[]?(?:\d{1,3}|[^\W\d_]|[ivxIVX]{1,4})")
DOTTED = re.compile(r"(?:[^\W\d_]{1,2}\.)+[^\W\d_]{1,2}")


def _words(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


TITLES = _words(
    "Mr Mrs Ms Mx Dr Drs Prof St Mt Ft Gen Col Maj Sgt Capt Cpt Lt Cmdr Adm Rep Sen Gov Rev Hon Pres Messrs Mme Sra"
)
NEVER = _words("e.g i.e eg ie vs v cf viz al ca resp incl")
NUMBERED = _words(
    "no nos nr fig figs p pp vol ch chap sec eq eqs art ex tab ref ver jan feb mar apr jun jul aug sep sept oct nov dec"
)
INSIDE = _words("etc inc ltd co corp jr sr approx dept est min max ave blvd rd usw bzw")
OPENERS = _words(
    "A After All An And Another Any As At Because Before Both But By Each Every For From He Her Here His How However "
    "I If In It Its Let Many Most My No Not Now On Once One Only Our She Since So Some That The Their Then There These "
    "They This Those To Today Two Under Until We What When Where Which While Who Why With Yes You Your"
)

WORD = re.compile(r"[ad][adx]*(?:(?:['-]|\.|(?<=d)[,:](?=d))[ad][adx]*)*|k[kx]*|cx*|[^ adkc][^ adkc]*")
"""A word in the kinds of its characters (`_kind`)."""

Mark: TypeAlias = "str | Sequence[int] | Passage"


@dataclass(frozen=True)
class Passage:
    """A run of neighbouring tokens that is taken as one source.

    Attributes:
        start: its first token's position.
        stop: the position after its last token.
        label: what a person sees of it, at most `LABEL` characters.
        name: what its user calls it, or None.

    Raises:
        InputError: it holds no token, or begins before the first.
    """

    start: int
    stop: int
    label: str
    name: str | None = None

    def __post_init__(self) -> None:
        start, stop = as_index(self.start), as_index(self.stop)
        if start is None or stop is None or not 0 <= start < stop:
            raise InputError(
                "a passage",
                expected="a range of at least one token, from 0 up",
                given=f"{self.start!r} to {self.stop!r}",
                way_out="Tokens are start, start + 1, ... up to but not including stop.",
                start=self.start,
                stop=self.stop,
            )
        object.__setattr__(self, "start", start)
        object.__setattr__(self, "stop", stop)

    @property
    def positions(self) -> range:
        """The positions of its tokens."""
        return range(self.start, self.stop)

    @property
    def title(self) -> str:
        """Its name, or its label if it has none."""
        return self.label if self.name is None else self.name

    def __len__(self) -> int:
        return self.stop - self.start

    def __contains__(self, position: object) -> bool:
        return position in self.positions


def passages(
    tokens: Tokens, by: str | Sequence[Mark] | Mapping[str, Mark] = "sentence", *, within: range | None = None
) -> tuple[Passage, ...]:
    """Return the passages of a text, in its order; none overlaps another.

    Named units cover the text. A token belongs to the unit in which it begins, that is where its first character that
    is no blank stands: a blank that a vocabulary writes before a word goes with the word, other blanks with the unit
    before them; those that open a line with that line, if they are tokens of their own. Tokens that share a
    character stay together, but for ``by="token"``. A token that stands for no character belongs to no passage before
    the first one and after the last (``<s>``), and between them to the unit before it. A unit in which no token begins
    is no passage.

    Marks need not cover. A marked text takes every token that holds a sign of it.

    Args:
        tokens: the text and its tokens.
        by: "token", "word", "sentence", "line", "paragraph" or "document" (the module says what they are), or marks:
            texts, each of which occurs once, ranges of tokens (start, stop) or passages; or a mapping of names to such.
        within: the tokens that are divided; None is all. Passages that it cuts are shortened, and a marked text has
            to occur once in it.

    Raises:
        InputError: no token to divide; an unknown unit; a range that is not in the text; no marks, an empty one, one
            that occurs not at all or more than once (``places`` are those of its characters and ``ranges`` those of
            its tokens), or two that share a token.
    """
    check_kind("the tokens", tokens, Tokens, way_out="Use what the model's tokenizer returns for a text.")
    items = tuple(tokens)
    kept = _kept(within, len(items))
    if isinstance(by, str):
        return _units(tokens.text, items, _unit_named(by), kept)
    return _marked(tokens.text, items, _named(by), kept)


def _kept(within: Any, length: int) -> range:
    """Return the tokens that are to be divided."""
    if within is None:
        return range(length)
    if isinstance(within, range) and within.step == 1 and 0 <= within.start < within.stop <= length:
        return within
    raise InputError(
        "the tokens to divide (within)",
        expected=f"a range of at least one token from 0 to {length}, such as range(0, {length})",
        given=repr(within)[:LABEL],
        way_out="None divides all tokens.",
        within=within,
    )


# ---- units by their names


def _unit_named(by: str) -> str:
    if by in ("token", *CUTS):
        return by
    raise InputError(
        "the unit of passages",
        expected=", ".join(f'"{name}"' for name in ("token", *CUTS)) + ", or marks in a list",
        given=f'"{_label(by)}"',
        way_out="A text to mark goes into a list: by=[text].",
        by=by,
    )


def _units(text: str, items: Sequence[Token], by: str, kept: range) -> tuple[Passage, ...]:
    owners = _owners(text, items, None if by == "token" else CUTS[by](text, items))
    edges = [place for place in kept if place == kept.start or owners[place] != owners[place - 1]]
    found = tuple(
        Passage(start, stop, items[start].label if by == "token" else _label_of(text, items[start:stop]))
        for start, stop in pairwise([*edges, kept.stop])
        if owners[start] >= 0
    )
    if not found:
        raise InputError(
            "the text",
            expected="at least one token that stands for a character",
            given="none" + f" of {len(kept)}" * bool(kept),
            way_out="Give a text, or mark tokens by their ranges.",
        )
    return found


def _owners(text: str, items: Sequence[Token], cuts: Sequence[int] | None) -> list[int]:
    """Return the number of each token's unit, ascending, and -1 for a token in none; without cuts, each its own."""
    owners: list[int] = []
    own, reach, last = -1, 0, 0  # reach: the characters that are spoken for; last: the tokens up to the last unit's end
    for token in items:
        start, end = token.span
        if start < end or (cuts is None and own >= 0):
            if cuts is None:
                own = token.position
            elif start >= reach or own < 0:
                own = max(own, bisect_right(cuts, _first_sign(text, start, end)) - 1)
            reach = max(reach, end)
        owners.append(own)
        last = len(owners) if start < end else last
    return owners[:last] + [-1] * (len(owners) - last)


def _first_sign(text: str, start: int, end: int) -> int:
    found = SIGN.search(text, start, end)
    return start if found is None else found.start()


SIGN = re.compile(r"\S")
SOME_WORD = re.compile(r"[^\W_]")


def _lines(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield where each line begins and where the next one does, and what stands on it."""
    start = 0
    for end in LINE_END.finditer(text):
        yield start, end.end(), text[start : end.start()]
        start = end.end()
    yield start, len(text), text[start:]


def _line_cuts(text: str, items: Sequence[Token]) -> list[int]:
    begun = {start for start, _, line in _lines(text) if line and not line.isspace()}
    return _cuts(text, begun, _document_cuts(text, items))


def _paragraph_cuts(text: str, items: Sequence[Token]) -> list[int]:
    begun, blank = set(), True
    for start, _, line in _lines(text):
        empty = not line or line.isspace()
        if blank and not empty:
            begun.add(start)
        blank = empty
    return _cuts(text, begun, _document_cuts(text, items))


def _document_cuts(text: str, items: Sequence[Token]) -> list[int]:
    begun = _turns(text, items)
    for _, stop, line in _lines(text):
        if RULE.fullmatch(line) or text[stop - 1 : stop] == "\f":
            begun.add(stop)
    written = SOME_WORD.search(text)
    first = written.start() if written else len(text)
    return _cuts(text, {_resumed(text, place) for place in begun if place > first})


def _turns(text: str, items: Sequence[Token]) -> set[int]:
    """Return the characters at which turns of a chat begin, but for the first if only marks stand before it."""
    begun = set()
    alone = True  # only tokens of marks so far
    for token in items:
        if TURN.fullmatch(token.text) and not alone:
            begun.add(token.span[0])
        elif AFTER_TURN.fullmatch(token.text):
            begun.add(token.span[1])
        alone = alone and bool(TOKEN_OF_MARKS.fullmatch(token.text)) and not TURN.fullmatch(token.text)
    return begun


def _resumed(text: str, place: int) -> int:
    """Return where a text goes on from a place, blank lines skipped: at a line's beginning, or at its next sign."""
    begin = _first_sign(text, place, len(text))
    ends = [end.end() for end in LINE_END.finditer(text, place, begin)]
    at_line = LINE_END.match(text, place - 1) is not None
    return ends[-1] if ends else place if at_line else begin


def _cuts(text: str, *begun: set[int] | list[int]) -> list[int]:
    """Return where units begin, ascending: the first at 0, whatever blanks the text opens with, none in its last."""
    first, last = _first_sign(text, 0, len(text)), len(text.rstrip())
    return [0, *sorted(place for place in set().union(*begun) if first < place < last)]


# ---- sentences


def _sentence_cuts(text: str, items: Sequence[Token]) -> list[int]:
    lines = _line_cuts(text, items)
    begun: set[int] = set()
    for start, stop in pairwise([*lines, len(text)]):
        begun.update(_sentences(text, start, stop))
    return _cuts(text, lines, begun)


def _sentences(text: str, start: int, stop: int) -> Iterator[int]:
    """Yield where sentences begin inside a line, after its first."""
    written = _first_word(text, start, stop)
    for ending in ENDING.finditer(text, start, stop):
        closed = CLOSING.match(text, ending.end(), stop)
        end = closed.end() if closed else ending.end()
        begin = _first_sign(text, end, stop) if end < stop else stop
        if ending.end() <= written or begin >= stop or text[begin].isspace():
            continue
        if _parted(text, ending[0], end, begin) and _ends(text, start, ending, end, begin):
            yield begin
            start, written = begin, _first_word(text, begin, stop)


def _first_word(text: str, start: int, stop: int) -> int:
    found = SOME_WORD.search(text, start, stop)
    return found.start() if found else stop


def _parted(text: str, mark: str, end: int, begin: int) -> bool:
    """Return whether what follows a sentence's last sign leaves it the last."""
    if text[begin] in ENDS:
        return False
    if begin > end:
        return True
    joined = text[begin] in GOES_ON or unicodedata.category(text[begin]) in ("Mn", "Mc", "Me", "Cf")
    return any(sign in WIDE for sign in mark) and not joined


ENDS = frozenset(".…" + STRONG)


def _ends(text: str, start: int, ending: re.Match[str], end: int, begin: int) -> bool:
    """Return whether a sentence ends at its signs `ending` and the closing ones up to `end`; the next is at `begin`."""
    mark = ending[0]
    opened = OPENING.match(text, begin)
    word = opened[1] if opened else ""
    small = word[:1].islower()
    if any(sign in WIDE for sign in mark):
        return True
    if small and end > ending.end():
        return False
    if any(sign in STRONG for sign in mark):
        return True
    return not small if mark != "." else _stop_ends(text, start, ending.start(), word)


def _stop_ends(text: str, start: int, at: int, word: str) -> bool:
    """Return whether a full stop, at a place in a sentence that began at `start`, ends it; `word` comes after it."""
    if at - start <= 2 * len("(viii") and ITEM.fullmatch(text, start, at):
        return False
    found = BEFORE_STOP.search(text[max(start, at - AROUND) : at])
    before = found[0] if found else ""
    small = before.casefold()
    if before in TITLES or small in NEVER:
        return False
    if small in NUMBERED and word[:1].isdigit():
        return False
    initial = len(before) == 1 and before.isupper() and before != "I"
    if initial or DOTTED.fullmatch(before):
        return word in OPENERS
    return not (word[:1].islower() and (not before or small in INSIDE))


# ---- words


def _word_cuts(text: str, items: Sequence[Token]) -> list[int]:
    sentences = _sentence_cuts(text, items)
    kinds = "".join(map(_kind, text))
    starts = {found.start() for found in WORD.finditer(kinds)}
    for place in sentences:  # what indents a line goes with its first word
        first = _first_sign(text, place, len(text))
        if first > place:
            starts.discard(first)
    return _cuts(text, sentences, starts)


@lru_cache(maxsize=4096)
def _kind(sign: str) -> str:
    """Return what a character does in words.

    "a" and "d" letters and digits, "c" those that are words alone, "k" katakana, "x" what clings to the one before
    it, " " blanks; apostrophes, hyphens, full stops, commas and colons are each written in one way; "s" other signs.
    """
    if sign.isspace():
        return " "
    if sign in JOINERS:
        return JOINERS[sign]
    category, name = unicodedata.category(sign), unicodedata.name(sign, "")
    if category[0] == "M" or category == "Cf" or "PROLONGED SOUND MARK" in name:
        return "x"
    if name.startswith(
        ("CJK UNIFIED", "CJK COMPATIBILITY IDEOGRAPH", "HIRAGANA", "IDEOGRAPHIC NUMBER", "IDEOGRAPHIC ITER")
    ):
        return "c"
    if name.startswith(("KATAKANA LETTER", "HALFWIDTH KATAKANA")):
        return "k"
    return "d" if category == "Nd" else "a" if category[0] in "LN" or category == "Pc" else "s"


JOINERS = {"'": "'", "’": "'", "＇": "'", "-": "-", "‐": "-", "‑": "-", "\xad": "-", ".": ".", ",": ",", ":": ":"}


CUTS = {
    "word": _word_cuts,
    "sentence": _sentence_cuts,
    "line": _line_cuts,
    "paragraph": _paragraph_cuts,
    "document": _document_cuts,
}
"""The units, and where each begins in a text."""


# ---- marks


def _named(by: Any) -> list[tuple[str | None, Any]]:
    """Return marks with their names."""
    way_out = 'Marks are a list such as ["a text", (3, 5)], or a mapping such as {"fact": "a text"}.'
    if isinstance(by, Mapping):
        wrong = [name for name in by if not isinstance(name, str) or not name.strip()]
        if wrong:
            given = repr(wrong[0])[:LABEL]
            raise InputError("a mark's name", expected="a text", given=given, way_out=way_out, name=wrong[0])
        marks: list[tuple[str | None, Any]] = list(by.items())
    else:
        found = check_items("the passages", by, expected="the name of a unit, or marks", way_out=way_out)
        marks = [(mark.name if isinstance(mark, Passage) else None, mark) for mark in found]
    if not marks:
        raise InputError("the marks", expected="at least one", given="none", way_out=way_out)
    return marks


def _marked(
    text: str, items: Sequence[Token], marks: Sequence[tuple[str | None, Any]], kept: range
) -> tuple[Passage, ...]:
    found = [
        _text_mark(text, items, name, mark, kept)
        if isinstance(mark, str)
        else _range_mark(text, items, name, mark, kept)
        for name, mark in marks
    ]
    found.sort(key=lambda passage: (passage.start, passage.stop))
    for one, other in pairwise(found):
        if other.start < one.stop:
            shared = range(other.start, min(one.stop, other.stop))
            raise InputError(
                "the marks",
                expected="marks that share no token",
                given=f"{_told(one)} and {_told(other)}, which share "
                + (f'token {shared[0]} "{items[shared[0]].label}"' if len(shared) == 1 else _tokens_told(shared)),
                way_out="Shorten one of them, or mark both as one.",
                marks=(one, other),
                shared=shared,
            )
    return tuple(found)


def _told(passage: Passage) -> str:
    return f'"{passage.title}" ({_tokens_told(passage.positions)})'


def _tokens_told(held: range) -> str:
    return f"token {held[0]}" if len(held) == 1 else f"tokens {held[0]} to {held[-1]}"


def _range_mark(text: str, items: Sequence[Token], name: str | None, mark: Any, kept: range) -> Passage:
    held = mark.positions if isinstance(mark, Passage) else mark
    one_by_one = not isinstance(held, range) or held.step == 1
    edges = (held.start, held.stop) if isinstance(held, range) else _pair(held)
    start, stop = (as_index(edge) for edge in edges)
    if start is None or stop is None or not one_by_one or not kept.start <= start < stop <= kept.stop:
        raise InputError(
            "a mark" if name is None else f'the mark "{_label(name)}"',
            expected=f"a text, or tokens (start, stop) with {kept.start} <= start < stop <= {kept.stop}",
            given=repr(mark)[: 2 * LABEL],
            way_out="Tokens are counted from 0, and stop is the one after the last: token 3 alone is [(3, 4)].",
            mark=mark,
        )
    label = mark.label if isinstance(mark, Passage) else _label_of(text, items[start:stop])
    return Passage(start, stop, label, name)


def _pair(held: Any) -> tuple[Any, Any]:
    """Return the two items of a pair; what is none of a pair is refused by its (None, None)."""
    try:
        first, second = held
    except (TypeError, ValueError):
        return None, None
    return first, second


def _text_mark(text: str, items: Sequence[Token], name: str | None, mark: str, kept: range) -> Passage:
    if not mark:
        way_out = "Mark some words of the text, or tokens by their range."
        raise InputError("a marked text", expected="at least one character", given="none", way_out=way_out, mark=mark)
    found = [(place, held) for place in _places(text, mark) if (held := _held(text, items, place, kept))]
    if len(found) == 1:
        held = found[0][1]
        return Passage(held.start, held.stop, _label(mark), name)
    ranges = tuple((held.start, held.stop) for _, held in found)
    if found:
        places = [place for place, _ in found]
        given = f"one that occurs {_times(len(found))}: {_shown(text, places)}"
        way_out = f"Mark more of the words around it, or tokens by their range: {_listed(ranges)}."
    else:
        places, how = _near(text, mark)
        given = "one that does not" + f"; {how} at {_shown(text, places)}" * bool(places)
        way_out = "Mark it letter for letter, blanks and line ends too, or tokens by their range, such as [(3, 5)]."
    raise InputError(
        f'the marked text "{_label(mark)}"' + ("" if name is None else f' ("{_label(name)}")'),
        expected="a text that occurs once" + " in the tokens to divide" * (len(kept) < len(items)),
        given=given,
        way_out=way_out,
        mark=mark,
        places=tuple(places),
        ranges=ranges,
    )


def _listed(ranges: Sequence[tuple[int, int]]) -> str:
    different = list(dict.fromkeys(ranges))
    more = " and so on" * (len(different) > OFFERED)
    return " or ".join(f"[{held}]" for held in different[:OFFERED]) + more


def _times(count: int) -> str:
    return "twice" if count == 2 else f"{count} times"


def _places(text: str, mark: str) -> list[tuple[int, int]]:
    """Return the characters (start, end) of every occurrence, overlapping ones too."""
    places: list[tuple[int, int]] = []
    at = text.find(mark) if mark else -1
    while at >= 0:
        places.append((at, at + len(mark)))
        at = text.find(mark, at + 1)
    return places


def _held(text: str, items: Sequence[Token], place: tuple[int, int], kept: range) -> range:
    """Return the tokens that hold a sign of some characters; none if one of them is not to be divided."""
    start, end = place
    blank = not text[start:end].strip()
    if not blank:
        start, end = _first_sign(text, start, end), start + len(text[start:end].rstrip())
    found = [
        token.position
        for token in items
        if start < token.span[1] > token.span[0] and (token.span[0] if blank else _first_sign(text, *token.span)) < end
    ]
    inside = bool(found) and found[0] in kept and found[-1] in kept
    return range(found[0], found[-1] + 1) if inside else range(0)


def _near(text: str, mark: str) -> tuple[list[tuple[int, int]], str]:
    """Return where a text stands that is like a mark which occurs nowhere, and how it is like it."""
    if exactly := _places(text, mark):
        return exactly, "outside of the tokens to divide it stands"
    loosely = r"\s+".join(map(re.escape, mark.split()))
    found = [found.span() for found in re.finditer(loosely, text, re.IGNORECASE)] if loosely else []
    if found:
        return found, "with other blanks or capitals it stands"
    least, most = 0, len(mark)
    while least < most:  # the longest beginning that occurs
        middle = (least + most + 1) // 2
        least, most = (middle, most) if mark[:middle] in text else (least, middle - 1)
    begun = mark[:least].strip()
    return (_places(text, begun), f'its beginning "{_label(begun)}" stands') if len(begun) >= 4 else ([], "")


def _shown(text: str, places: Sequence[tuple[int, int]]) -> str:
    """Return places with the words around them."""
    shown = []
    for start, end in places[:OFFERED]:
        before, after = text[max(0, start - AROUND) : start], text[end : end + AROUND]
        # whole words alone, where a word was cut
        before = before.partition(" ")[2] or before if start > AROUND else before
        after = after.rpartition(" ")[0] or after if end + AROUND < len(text) else after
        left, right = "…" * (start > len(before)), "…" * (end + len(after) < len(text))
        shown.append(
            f'character {start} ("{left}{readable(before)}[{_label(text[start:end])}]{readable(after)}{right}")'
        )
    return ", ".join(shown) + f", and {len(places) - OFFERED} more" * (len(places) > OFFERED)


# ---- labels


def _label_of(text: str, items: Sequence[Token]) -> str:
    """Return the label of tokens: that of their text, or those of their own where they stand for no character."""
    spans = [token.span for token in items if token.span[0] < token.span[1]]
    if not spans:
        return _label(" ".join(token.label for token in items))
    return _label(text[spans[0][0] : max(end for _, end in spans)])


def _label(text: str) -> str:
    """Return a text as a person sees it, on one line, each run of blanks one; a long one without its middle."""
    flat = " ".join(text.split()) or text
    if len(flat) <= LABEL and len(shown := readable(flat)) <= LABEL:
        return shown
    for half in range(LABEL // 2, 1, -1):
        shown = readable(flat[:half].rstrip() + "…" + flat[max(half, len(flat) - half + 1) :].lstrip())
        if len(shown) <= LABEL:
            break
    return shown
