"""Prompts whose answer's place is known (floor 5): given by a person, or made by code, and read as tokens.

A case is a question that a text answers at one place. Which heads fetch the answer from there is asked by
`wherefrom.evidence.carriers`. Takes passages and prompted from below and beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from wherefrom.checks import check_items, check_kind, whole
from wherefrom.errors import InputError
from wherefrom.evidence.goal import AnswerGoal, Unit
from wherefrom.evidence.prompted import read_prompted
from wherefrom.evidence.running import Runner
from wherefrom.passages import Mark, Passage, passages

WAY_OUT = "Make them: wherefrom.Case(prompt, answer, place), or wherefrom.retrieval_cases()."


@dataclass(frozen=True)
class Case:
    """A prompt, its answer, and the place in the prompt that holds what the answer needs.

    Attributes:
        prompt: a text, behind which the answer follows.
        answer: a text; with a blank before it where the model finds that likelier.
        place: some words of the prompt, as they stand there, once; or a range of its tokens, (start, stop).
        family: what kind of case it is, in a word; kinds are told apart in the result.
    """

    prompt: str
    answer: str
    place: Mark
    family: str = ""


@dataclass(frozen=True)
class Asked:
    """A case as tokens.

    Attributes:
        goal: the answer.
        place: tokens of the prompt.
        family: of the case.
        name: what it is called in an error, such as "case 3".
    """

    goal: AnswerGoal
    place: Passage
    family: str
    name: str


def read_cases(
    model: Any,
    runner: Runner,
    cases: Sequence[Case],
    *,
    tokenizer: Any = None,
    unit: Unit = "log-odds",
    named: str = "case",
) -> tuple[Asked, ...]:
    """Return cases as tokens.

    Args:
        model: a decoder of `wherefrom.load` or of transformers.
        runner: of that model.
        cases: at least one.
        tokenizer: of a model of transformers.
        unit: of the answers' values.
        named: what a case is called in an error, before its number, which counts from 1.

    Raises:
        InputError: no cases; one whose prompt or answer is empty or too long, or whose place does not stand in the
            prompt, or twice, or holds the token that predicts the answer. The sentence begins with the case's number.
    """
    given = check_items(f"the {named}s", cases, expected="cases in a row", way_out=WAY_OUT)
    if not given:
        raise InputError(f"the {named}s", expected="at least one", given="none", way_out=WAY_OUT)
    found = []
    for number, case in enumerate(given, start=1):
        name = f"{named} {number}"
        check_kind(name, case, Case, way_out=WAY_OUT)
        try:
            found.append(_asked(model, runner, case, name, tokenizer, unit))
        except InputError as error:
            raise within(error, name, case=number) from None
    return tuple(found)


def within(error: InputError, where: str, **facts: Any) -> InputError:
    """Return an error that says first where it is."""
    said = {"expected": error.expected, "given": error.given, "way_out": error.way_out}
    return InputError(f"{where}: {error.what}", **said, **{**error.facts, **facts})


def _asked(model: Any, runner: Runner, case: Case, name: str, tokenizer: Any, unit: Unit) -> Asked:
    check_kind("the answer", case.answer, str, way_out="It is a text.")
    check_kind("the family", case.family, str, way_out='A word, such as "facts"; "" is none.')
    read = read_prompted(model, runner, case.prompt, case.answer, tokenizer=tokenizer)
    marks = passages(read.tokens, [case.place], within=range(read.first))
    place = marks[0]
    if place.stop >= read.first:
        raise InputError(
            "the place",
            expected=f"tokens before {read.first - 1}, the last of the prompt, which predicts the answer",
            given=f"tokens {place.start} to {place.stop - 1}",
            way_out="Mark where the answer stands in the text, not the question.",
            place=place,
        )
    return Asked(AnswerGoal(read.tokens.ids, read.first, unit), place, case.family, name)


# -- cases made by code


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


KEYS = _words(
    "anchor barrel candle dragon engine feather hammer island kettle ladder magnet needle pillow river saddle temple "
    "window zebra bridge castle garden mirror basket rope"
)
COLOURS = _words("red blue green yellow black white brown orange purple pink grey golden")
NAMES = _words(
    "Anna Boris Clara David Elena Felix Greta Hugo Irene Jonas Karin Leo Maria Nina Oscar Paula Rosa Simon Tara Victor"
)
CITIES = _words("Paris London Rome Berlin Madrid Vienna Oslo Dublin Lisbon Athens Prague Warsaw Budapest Milan")
FAMILIES = ("lookup", "facts")
LINES, SHOWN = 6, 3
"""Pairs of a made prompt, one of which is asked about; and so many others that it answers before."""


def retrieval_cases(count: int = 24, *, seed: int = 0) -> tuple[Case, ...]:
    """Return prompts whose answer's place is known, made by code: by turns lists of keys and values, and facts.

    Each tells six pairs in lines or sentences of the same make, answers for three of them, and asks for another one:
    the place is where that one is told. A small model answers most of them.

    Args:
        count: how many.
        seed: what they are drawn from; another seed gives others.

    Raises:
        InputError: a count below 1, or a seed below 0.
    """
    whole("the number of cases", count, least=1, way_out="24 are enough to find heads by.")
    whole("the seed", seed, least=0, way_out="Any number draws other cases.")
    return tuple(_made(number, Random(f"retrieval {seed} {number}")) for number in range(count))


def _made(number: int, draw: Random) -> Case:
    family = FAMILIES[number % len(FAMILIES)]
    keys, values = (KEYS, COLOURS) if family == "lookup" else (NAMES, CITIES)
    pairs = list(zip(draw.sample(keys, LINES), draw.sample(values, LINES), strict=True))
    *shown, (key, value) = draw.sample(pairs, SHOWN + 1)
    told = [f"{own}: {other}" if family == "lookup" else f"{own} lives in {other}." for own, other in pairs]
    text = "\n".join(told) + "\n\nThe same in another order:\n" if family == "lookup" else " ".join(told) + "\n\n"
    text += "".join(f"{own}: {other}\n" for own, other in shown)
    return Case(f"{text}{key}:", f" {value}", told[pairs.index((key, value))], family)
