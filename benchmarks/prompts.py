"""Prompts with a known answer place, made by code from seeds: what lenses of evidence are compared on.

Five families. In each the sources are sentences, lines or paragraphs, one or two of which hold what the answer needs,
among others of the same make; who is asked about, and where that stands, is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from benchmarks.texts import LONG


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NAMES = _words(
    "Anna Boris Clara David Elena Felix Greta Hugo Irene Jonas Karin Leo Maria Nina Oscar Paula Quentin Rosa Simon "
    "Tara Ulla Victor Wanda Xaver Yara Zoe Adam Bella Carl Dora Emil Fiona Gustav Hanna Ivan Julia Kurt Lydia Max Nora"
)
CITIES = _words(
    "Paris London Rome Berlin Madrid Vienna Oslo Dublin Lisbon Athens Prague Warsaw Budapest Helsinki Stockholm "
    "Copenhagen Brussels Amsterdam Geneva Milan"
)
JOBS = _words(
    "doctor teacher lawyer baker painter farmer nurse pilot singer writer carpenter sailor chemist judge tailor "
    "gardener dentist plumber butcher engineer"
)
THINGS = _words(
    "book drink ball letter ring lamp hat coin key apple map knife pen cup flower basket rope bell drum mirror"
)
PLACES = _words("store park school station garden beach museum office market harbour theatre library")
COLOURS = _words("red blue green yellow black white brown orange purple pink grey golden")
WORDS = _words(
    "anchor barrel candle dragon engine feather glacier hammer island jungle kettle ladder magnet needle ocean pillow "
    "quarry river saddle temple umbrella valley window yellow zebra bridge castle desert forest harvest"
)


@dataclass(frozen=True)
class Prompt:
    """A prompt, its answer, and the sources that are compared.

    Attributes:
        family: which of the five.
        seed: what it was drawn from.
        text: the prompt; the answer follows at once.
        answer: with the blank before it.
        sources: the parts of the text that can be left out, in order; the rest (a question) stays.
        holds: which of them hold what the answer needs.
    """

    family: str
    seed: int
    text: str
    answer: str
    sources: tuple[str, ...]
    holds: tuple[int, ...]


def facts(seed: int, sources: int = 15) -> Prompt:
    """Return sentences about people, one of whom is asked about."""
    draw = Random(f"facts {seed}")
    kinds: list[tuple[str, list[str], str]] = [
        ("{name} lives in {value}.", CITIES, "Question: Where does {name} live?\nAnswer: {name} lives in"),
        ("{name} works as a {value}.", JOBS, "Question: What is the job of {name}?\nAnswer: {name} works as a"),
        ("{name} has a {value} car.", COLOURS, "Question: Which colour is the car of {name}?\nAnswer: {name} has a"),
    ]
    names = draw.sample(NAMES, sources)
    drawn = [draw.choice(kinds) for _ in names]
    values = [draw.choice(own) for _, own, _ in drawn]
    sentences = [form.format(name=n, value=v) for (form, _, _), n, v in zip(drawn, names, values, strict=True)]
    asked = draw.randrange(sources)
    question = drawn[asked][2].format(name=names[asked])
    return _joined("facts", seed, sentences, " ", f"\n{question}", f" {values[asked]}", (asked,))


def indirect_object(seed: int, sources: int = 10) -> Prompt:
    """Return a story in which two go somewhere and one of them gives something to the other."""
    draw = Random(f"indirect object {seed}")
    names = draw.sample(NAMES, 2 * sources)
    pairs = list(zip(names[::2], names[1::2], strict=True))
    places = draw.choices(PLACES, k=sources)
    sentences = [f"{a} and {b} went to the {place}." for (a, b), place in zip(pairs, places, strict=True)]
    asked = draw.randrange(sources)
    giver, receiver = draw.sample(pairs[asked], 2)
    rest = f" At the {places[asked]}, {giver} gave a {draw.choice(THINGS)} to"
    return _joined("indirect object", seed, sentences, " ", rest, f" {receiver}", (asked,))


def key_value(seed: int, sources: int = 16) -> Prompt:
    """Return lines of keys and values, one of which is looked up."""
    draw = Random(f"key value {seed}")
    keys, values = draw.sample(WORDS, sources), draw.choices([*COLOURS, *CITIES], k=sources)
    lines = [f"{key}: {value}" for key, value in zip(keys, values, strict=True)]
    asked = draw.randrange(sources)
    return _joined("key value", seed, lines, "\n", f"\n\nLookup\n{keys[asked]}:", f" {values[asked]}", (asked,))


def code(seed: int, sources: int = 14) -> Prompt:
    """Return constants and functions of a program, one of which a last line needs."""
    draw = Random(f"code {seed}")
    names = draw.sample(WORDS, sources)
    numbers = draw.sample(range(2, 100), sources)
    functions = [draw.random() < 0.5 for _ in names]
    arguments = [draw.choice(WORDS) for _ in names]
    lines = [
        f"def get_{name}({argument}): return {argument} + {number}" if function else f"{name.upper()} = {number}"
        for name, number, function, argument in zip(names, numbers, functions, arguments, strict=True)
    ]
    asked = draw.randrange(sources)
    if functions[asked]:
        rest, answer = f"\n\nassert get_{names[asked]}(0) ==", f" {numbers[asked]}"
    else:
        rest, answer = f"\n\nassert {names[asked].upper()} ==", f" {numbers[asked]}"
    return _joined("code", seed, lines, "\n", rest, answer, (asked,))


def needle(seed: int, sources: int = 28, characters: int = 400) -> Prompt:
    """Return a long text of paragraphs, 80 to 100 tokens each, with a sentence hidden in it that is asked about."""
    draw = Random(f"needle {seed}")
    pieces = [piece.strip() for piece in _pieces(characters)]
    start = draw.randrange(len(pieces) - sources)
    paragraphs = [" ".join(piece.split()) for piece in pieces[start : start + sources - 1]]
    asked, owner, word = draw.randrange(sources), draw.choice(NAMES), draw.choice(WORDS)
    paragraphs.insert(asked, f"The secret word of {owner} is {word}. Whoever knows the secret word may come in.")
    rest = f"\n\nQuestion: What is the secret word of {owner}?\nAnswer: The secret word of {owner} is"
    return _joined("needle", seed, paragraphs, "\n\n", rest, f" {word}", (asked,))


FAMILIES: dict[str, Callable[[int], Prompt]] = {
    "facts": facts,
    "indirect object": indirect_object,
    "key value": key_value,
    "code": code,
    "needle": needle,
}


def prompts(family: str, count: int) -> Iterator[Prompt]:
    """Yield the first so many prompts of a family."""
    for seed in range(count):
        yield FAMILIES[family](seed)


def _joined(
    family: str, seed: int, sources: list[str], between: str, rest: str, answer: str, holds: tuple[int, ...]
) -> Prompt:
    return Prompt(family, seed, between.join(sources) + rest, answer, tuple(sources), holds)


def _pieces(characters: int) -> list[str]:
    """Return the long text cut at blanks into pieces of about so many characters."""
    pieces, start = [], 0
    while start + characters < len(LONG):
        stop = LONG.index(" ", start + characters)
        pieces.append(LONG[start:stop])
        start = stop + 1
    return pieces
