"""A prompt and the answer behind it, as one row of tokens (floor 5): given, or written by the model itself.

Takes the model's tokenizer from below; gives the tokens to `wherefrom.evidence.answering`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from wherefrom.capture.huggingface.model import TransformersModel, as_transformers_model
from wherefrom.capture.huggingface.texts import chat, encode, end_ids, tokens_of
from wherefrom.capture.verbs import is_module
from wherefrom.checks import whole
from wherefrom.errors import InputError
from wherefrom.evidence.goal import AnswerGoal
from wherefrom.evidence.running import Runner, require_room
from wherefrom.model.generate import open_generation
from wherefrom.model.language import LanguageModel, read_prompt, require_model, require_text
from wherefrom.tokens import Tokens

MOST = 32
"""So many tokens of an answer are written at most, unless more are asked for."""


@dataclass(frozen=True)
class Prompted:
    """A prompt and its answer.

    Attributes:
        tokens: of both.
        first: the position of the answer's first token.
        sources: how many tokens stand before the question that the answer answers; `first` without a question.
        written: whether the model wrote the answer itself.
        passes: over the whole text, that it took to write the answer, or to tell which spelling is likelier.
    """

    tokens: Tokens
    first: int
    sources: int
    written: bool
    passes: float = 0.0


def read_prompted(
    model: Any,
    runner: Runner,
    prompt: str | Sequence[Mapping[str, Any]],
    answer: str | None,
    *,
    question: str | None = None,
    tokenizer: Any = None,
    max_tokens: int | None = None,
) -> Prompted:
    """Return a prompt and its answer as tokens.

    An answer that begins with no blank is taken as it is written or with a blank before it, whichever the model finds
    likelier. Its tokens are those that the two texts have together; where the tokenizer would join the prompt's last
    characters with the answer's first, the answer's own. A mark that the tokenizer puts behind a text, to end it, is in
    neither: the model goes on from the text itself.

    Args:
        model: a decoder of `wherefrom.load` or of transformers.
        runner: of that model.
        prompt: a text; or chat messages, written out by the model's template.
        answer: a text; None: what the model writes, greedily.
        question: a text between the two.
        tokenizer: of a model of transformers.
        max_tokens: of an answer that the model writes; the context must have room for as many.

    Raises:
        InputError: no text, an empty one, one that does not fit into the model's context, a model that writes nothing.
    """
    most = whole("max_tokens", MOST if max_tokens is None else max_tokens, least=1, way_out="It is a number of tokens.")
    if answer is not None and max_tokens is not None:
        way_out = "Leave it out, or leave out the answer, and the model writes one."
        raise InputError("max_tokens", expected="none beside an answer", given=f"{most}", way_out=way_out)
    if isinstance(model, LanguageModel) or not is_module(model):
        reader: _Own | _Other = _Own(require_model(model))
    else:
        reader = _Other(as_transformers_model(model, tokenizer), runner)
    before = reader.prompt(_with_question(prompt, question))
    sources = len(before) if question is None else _sources(before, len(prompt))
    if answer is None:
        ids = reader.written(before, most)
        if not ids:
            raise InputError(
                "the answer",
                expected="at least one token that the model writes",
                given="none: it ends the text at once",
                way_out="Give the answer that you ask about.",
            )
        tokens = reader.tokens((*before.ids, *ids))
        return Prompted(tokens, len(before), sources, written=True, passes=1 - 1 / len(tokens))  # each token read once
    require_text(answer, "the answer")
    candidates = [reader.together(before, text) for text in _spellings(before, answer)]
    for ids in candidates:
        require_room(runner, len(ids), len(before))
    several = len(candidates) > 1
    chosen = max(candidates, key=lambda ids: _log_p(runner, ids, before)) if several else candidates[0]
    read = sum(map(len, candidates)) / len(chosen) if several else 0.0
    return Prompted(reader.tokens(chosen), len(before), sources, written=False, passes=read)


def _sources(before: Tokens, end: int) -> int:
    """Return how many tokens stand before a question that begins at a character.

    One that holds signs of both sides, or but a blank of the prompt and signs of the question, is the question's.
    """
    found = 0
    for own in before:
        behind = before.text[max(end, own.span[0]) : own.span[1]]
        found += own.span[0] < end and not behind.strip()
    return found


def _with_question(prompt: Any, question: str | None) -> Any:
    """Return a prompt with the question behind it, on a line of its own where no blank parts them."""
    if question is None:
        return prompt
    require_text(question, "the question")
    if not isinstance(prompt, str):
        way_out = "Write the question into the last message."
        raise InputError("the question", expected="none beside chat messages", given="one", way_out=way_out)
    require_text(prompt)
    apart = prompt[-1].isspace() or question[0].isspace()
    return prompt + question if apart else f"{prompt}\n{question}"


def _spellings(before: Tokens, answer: str) -> list[str]:
    """Return the answer, and with a blank before it where that may be meant."""
    if answer[0].isspace() or not before.text or before.text[-1].isspace():
        return [answer]
    return [answer, f" {answer}"]


@torch.no_grad()
def _log_p(runner: Runner, ids: tuple[int, ...], before: Tokens) -> float:
    """Return the log-probability of an answer."""
    goal = AnswerGoal(ids, len(before), unit="log-probability")
    return float(goal.value(runner.logits(torch.tensor([ids]), goal.rows))[0])


class _Own:
    """Reads for a model of `wherefrom.load`."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model

    def prompt(self, prompt: Any) -> Tokens:
        """Return the prompt's tokens."""
        return self._open(read_prompt(self.model, prompt))

    def written(self, before: Tokens, most: int) -> tuple[int, ...]:
        """Return what the model writes, without the mark that ends it."""
        opened = replace(open_generation(self.model, before.text, most), first=before)
        ends = self.model.config.eos_ids
        return tuple(step.id for step in opened.steps(max_tokens=most, stop_ids=ends) if step.id not in ends)

    def together(self, before: Tokens, answer: str) -> tuple[int, ...]:
        """Return the ids of a prompt and its answer."""
        own = self.model.tokenizer.encode(answer, marks=False).ids  # first: what is no text is refused by its own place
        return _behind(before.ids, self._open(self.model.tokenizer.encode(before.text + answer)).ids, own)

    def _open(self, read: Tokens) -> Tokens:
        return _without_end(read, len(self.model.tokenizer.encode(read.text, marks=False)))

    def tokens(self, ids: tuple[int, ...]) -> Tokens:
        """Return the tokens of ids."""
        return self.model.tokenizer.tokens_of(ids)


class _Other:
    """Reads for a model of transformers."""

    def __init__(self, model: TransformersModel, runner: Runner) -> None:
        if model.tokenizer is None:
            raise InputError(
                "the tokenizer",
                expected="that of the model, to read a text",
                given="none",
                way_out="Give it (tokenizer=...), or load the model by wherefrom.load with its folder's tokenizer.",
            )
        inside = getattr(model.tokenizer, "tokenizer", None)  # a processor's
        self._plain: Any = inside if hasattr(inside, "convert_ids_to_tokens") else model.tokenizer
        self.model, self.runner = model, runner

    def prompt(self, prompt: Any) -> Tokens:
        """Return the prompt's tokens."""
        if isinstance(prompt, str):
            require_text(prompt)
            return self._read(prompt)
        return chat(self.model.tokenizer, prompt)

    @torch.no_grad()
    def written(self, before: Tokens, most: int) -> tuple[int, ...]:
        """Return what the model writes, without the mark that ends it."""
        can = getattr(self.model.module, "generate", None)
        if can is None:
            raise InputError(
                "the model",
                expected="one that writes text",
                given=f"{type(self.model.module).__name__}, which writes nothing",
                way_out="Give the answer that you ask about.",
            )
        shorter = "Shorten the prompt, or have fewer tokens written (max_tokens=..., --write)."
        require_room(self.runner, len(before) + most, len(before), way_out=shorter)
        ids = torch.tensor([before.ids], device=self.model.device)
        made = can(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=most, do_sample=False)
        ends = end_ids(self.model.module, self.model.tokenizer)
        return tuple(number for number in made[0, len(before) :].tolist() if number not in ends)

    def together(self, before: Tokens, answer: str) -> tuple[int, ...]:
        """Return the ids of a prompt and its answer."""
        encode(self.model.tokenizer, answer)  # refuses what is no text, where it stands in the answer
        return _behind(before.ids, self._read(before.text + answer).ids, self._own(answer))

    def tokens(self, ids: tuple[int, ...]) -> Tokens:
        """Return the tokens of ids."""
        return tokens_of(self.model.tokenizer, ids)

    def _read(self, text: str) -> Tokens:
        return _without_end(encode(self.model.tokenizer, text), len(self._own(text)))

    def _own(self, text: str) -> tuple[int, ...]:
        """Return a text's ids without the marks that are put around it."""
        return tuple(self._plain(text, add_special_tokens=False, verbose=False)["input_ids"])


def _without_end(read: Tokens, own: int) -> Tokens:
    """Return a text's tokens without the marks put behind it, which stand for no character; `own` are the text's."""
    end = len(read)
    while end > own and read[end - 1].span[0] == read[end - 1].span[1]:
        end -= 1
    return Tokens(read.text, tuple(read.items[:end]))


def _behind(before: tuple[int, ...], whole: tuple[int, ...], own: tuple[int, ...]) -> tuple[int, ...]:
    """Return the ids of the whole text where they go on from the prompt's, else the prompt's and the answer's own."""
    return whole if whole[: len(before)] == before and len(whole) > len(before) else (*before, *own)
