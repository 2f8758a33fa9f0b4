"""Generation (floor 2): one token after another, greedy or sampled, with a key/value cache.

Row t - 1 wrote token t: the logits of the last position read so far choose the next token, which is then read itself.
"""

from __future__ import annotations

import codecs
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wherefrom.checks import whole
from wherefrom.errors import InputError
from wherefrom.model.language import LanguageModel, read_prompt
from wherefrom.model.transformer import AttentionFunction, KeyValueCache, Transformer, fused


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen from the logits.

    Attributes:
        temperature: the logits are divided by it before softmax; None is greedy, the likeliest token always.
        top_k: only the k likeliest tokens can be drawn.
        top_p: only the likeliest tokens that together hold this probability can be drawn, the one that
            reaches it included.
        seed: of the draw, from 0 to 2^63 - 1; the same seed draws the same tokens. None draws a new one each time.

    Raises:
        InputError: a temperature that is not above 0, top_k below 1, top_p outside (0, 1], a seed out of range, or any
            of top_k, top_p and seed without a temperature.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        drawn = {"top_k": self.top_k, "top_p": self.top_p, "seed": self.seed}
        unused = [name for name, value in drawn.items() if value is not None and self.temperature is None]
        if unused:
            raise InputError(
                unused[0],
                expected="a temperature beside it",
                given=f"{drawn[unused[0]]} with greedy choice",
                way_out="Give a temperature, 1.0 for the model's own probabilities, or leave it out.",
            )
        self._require(
            "the temperature",
            self.temperature,
            "a number above 0",
            self.temperature is None or (0 < self.temperature < float("inf")),
        )
        self._require("top_k", self.top_k, "a whole number from 1 up", _is_whole(self.top_k, 1))
        self._require("top_p", self.top_p, "a share above 0 and at most 1", self.top_p is None or 0 < self.top_p <= 1)
        self._require("the seed", self.seed, "a whole number from 0 to 2^63 - 1", _is_whole(self.seed, 0, 2**63))

    @staticmethod
    def _require(what: str, value: float | None, expected: str, holds: bool) -> None:
        if not holds:
            way_out = "Leave the temperature out for greedy choice." if "temp" in what else "Leave it out."
            raise InputError(what, expected=expected, given=str(value), way_out=way_out, value=value)

    def chooser(self) -> _Chooser:
        """Return a function from logits [N] to a token id, with a random state of its own."""
        return _Chooser(self)


def _is_whole(value: float | None, least: int, stop: float = float("inf")) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and least <= value < stop)


class _Chooser:
    def __init__(self, sampling: Sampling) -> None:
        self.sampling, self.generator = sampling, torch.Generator()
        if sampling.seed is None:
            self.generator.manual_seed(secrets.randbits(63))
        else:
            self.generator.manual_seed(sampling.seed)

    def __call__(self, logits: Tensor) -> int:
        how = self.sampling
        if how.temperature is None:
            return int(logits.argmax())
        ordered, ids = torch.sort(logits.double(), descending=True)
        # the largest becomes 0 before the division, so that a temperature near 0 makes it 1 and the others 0, no NaN
        probabilities = torch.softmax((ordered - ordered[0]) / how.temperature, dim=-1)  # N
        keep = torch.ones_like(probabilities, dtype=torch.bool)
        if how.top_k is not None:
            keep[how.top_k :] = False
        if how.top_p is not None:
            keep &= probabilities.cumsum(-1) - probabilities < how.top_p  # what comes before it is not yet enough
        keep[0] = True
        drawn = torch.multinomial(probabilities * keep, 1, generator=self.generator)
        return int(ids[drawn])


@dataclass(frozen=True, eq=False)
class Step:
    """One generated token: `id` stands at `position`, written by row position - 1, whose logits [N] are here."""

    position: int
    id: int
    logits: Tensor


@torch.inference_mode()
def steps(
    transformer: Transformer,
    ids: Sequence[int],
    *,
    max_tokens: int,
    cache: KeyValueCache,
    sampling: Sampling | None = None,
    stop_ids: Collection[int] = (),
    attention: AttentionFunction = fused,
) -> Iterator[Step]:
    """Yield the generated tokens one by one; the prompt is read in one pass, then each token by itself.

    The last token yielded has been chosen but not yet read: the cache then holds all tokens before it.

    Args:
        transformer: the model.
        ids: the prompt, at least one token.
        max_tokens: at most this many are generated.
        cache: an empty cache with room for the prompt and the generated tokens.
        sampling: greedy unless given.
        stop_ids: generation ends after one of these, which is yielded too.
        attention: computes every layer's attention, such as a recorder.
    """
    choose = (sampling or Sampling()).chooser()
    unread = torch.tensor([list(ids)])  # 1 T
    for position in range(len(ids), len(ids) + max_tokens):
        logits = transformer(unread, attention=attention, cache=cache, last_only=True)[0, -1]  # N
        chosen = choose(logits)
        yield Step(position, chosen, logits)
        if chosen in stop_ids:
            return
        unread = torch.tensor([[chosen]])


@dataclass(frozen=True)
class Generated:
    """What a model wrote after a prompt.

    Attributes:
        prompt: the text given.
        text: the text written, without the end-of-text mark.
        ids: the tokens written, the mark included.
        ended: whether the model ended the text itself; if not, it stopped at the limit of tokens.
        seconds: wall clock, the reading of the prompt included.
    """

    prompt: str
    text: str
    ids: tuple[int, ...]
    ended: bool
    seconds: float

    def __str__(self) -> str:
        return self.prompt + self.text


def generate(
    model: LanguageModel,
    text: str,
    *,
    max_tokens: int = 50,
    sampling: Sampling | None = None,
    on_text: Callable[[str], None] | None = None,
) -> Generated:
    """Return what the model writes after a prompt, token by token with a key/value cache.

    Args:
        model: from `wherefrom.load`.
        text: the prompt.
        max_tokens: at most so many tokens, at least 1.
        sampling: greedy unless given.
        on_text: called with each new piece of text as soon as its characters are whole.

    Raises:
        InputError: the prompt is empty, blank, or longer than the context with room for `max_tokens`.
    """
    start = time.perf_counter()
    max_tokens = whole("the number of tokens to write", max_tokens, least=1, way_out="Ask for at least one.")
    prompt = read_prompt(model, text, room=max_tokens)
    cache, stops = KeyValueCache(model.config, len(prompt) + max_tokens), model.config.eos_ids
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")  # a character may need several tokens
    ids, pieces = [], []
    for step in steps(
        model.transformer, prompt.ids, max_tokens=max_tokens, cache=cache, sampling=sampling, stop_ids=stops
    ):
        ids.append(step.id)
        if step.id not in stops:
            pieces.append(decoder.decode(model.tokenizer.token_bytes(step.id)))
            if on_text is not None and pieces[-1]:
                on_text(pieces[-1])
    pieces.append(decoder.decode(b"", final=True))
    if on_text is not None and pieces[-1]:
        on_text(pieces[-1])
    return Generated(text, "".join(pieces), tuple(ids), ids[-1] in stops, time.perf_counter() - start)
