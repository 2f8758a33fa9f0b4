"""Generation (floor 2): one token after another, greedy or sampled, with a key/value cache.

Row t - 1 wrote token t: the logits of the last position read so far choose the next token, which is then read itself.
"""

from __future__ import annotations

import codecs
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from wherefrom.checks import as_index, check_items, check_kind, whole
from wherefrom.errors import InputError
from wherefrom.model.attention_function import AttentionFunction, fused
from wherefrom.model.cache import KeyValueCache
from wherefrom.model.config import Config
from wherefrom.model.language import LanguageModel, read_prompt, require_model, start_tokens
from wherefrom.model.transformer import Transformer
from wherefrom.tokens import Tokenizer, Tokens

MOST = 50
"""So many tokens are written unless it is said how many."""


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
            self.temperature is None or (_is_number(self.temperature) and 0 < self.temperature < float("inf")),
        )
        self._require("top_k", self.top_k, "a whole number from 1 up", _is_whole(self.top_k, 1))
        share = self.top_p is None or (_is_number(self.top_p) and 0 < self.top_p <= 1)
        self._require("top_p", self.top_p, "a share above 0 and at most 1", share)
        self._require("the seed", self.seed, "a whole number from 0 to 2^63 - 1", _is_whole(self.seed, 0, 2**63))
        for name in ("top_k", "seed"):
            object.__setattr__(self, name, as_index(getattr(self, name)))  # numpy's numbers become plain ones

    @staticmethod
    def _require(what: str, value: float | None, expected: str, holds: bool) -> None:
        if not holds:
            way_out = "Leave the temperature out for greedy choice." if "temp" in what else "Leave it out."
            raise InputError(what, expected=expected, given=str(value), way_out=way_out, value=value)

    def chooser(self) -> _Chooser:
        """Return a function from logits [N] to a token id, with a random state of its own."""
        return _Chooser(self)


def _is_whole(value: Any, least: int, stop: float = float("inf")) -> bool:
    number = as_index(value)
    return value is None or (number is not None and least <= number < stop)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


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
    memory: Tensor | None = None,
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
        memory: an encoder's output [1, S, M], which the decoder reads.

    Raises:
        InputError: a sampling that is none, or stop ids that are no ids.
    """
    way_out = "Give wherefrom.Sampling(temperature=...), or leave it out for greedy choice."
    choose = check_kind("sampling", Sampling() if sampling is None else sampling, Sampling, way_out=way_out).chooser()
    stop_ids = check_items("stop_ids", stop_ids, expected="token ids", way_out="Give the ids in a tuple or a set.")
    never = torch.tensor(transformer.config.never_ids, dtype=torch.long)
    unread = torch.tensor([list(ids)])  # 1 T
    for position in range(len(ids), len(ids) + max_tokens):
        logits = transformer(unread, attention=attention, cache=cache, memory=memory, last_only=True)[0, -1]  # N
        chosen = choose(logits.index_fill(0, never, -torch.inf) if len(never) else logits)
        yield Step(position, chosen, logits)
        if chosen in stop_ids:
            return
        unread = torch.tensor([[chosen]])


class Writer:
    """Turns generated tokens into text as soon as its characters are whole, and stops at given strings.

    What could be the beginning of a stop string is held back until it is known not to be one. The first to be complete
    ends the text, and of two that end with the same character the longer: so it does not matter how tokens split it.

    Args:
        tokenizer: the model's.
        stops: strings that end the text and are not part of it.
        after: the last token of the text that this one continues; None where it stands by itself.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = (), after: int | None = None) -> None:
        self._tokenizer, self._stops, self._before = tokenizer, tuple(stops), after
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")  # a character may need several tokens
        self._held, self.pieces = "", [""]
        self.stopped: str | None = None

    @property
    def text(self) -> str:
        """All that has been written."""
        return "".join(self.pieces)

    def write(self, token: int) -> str:
        """Return the new text that a token completes; `stopped` is set when it completes a stop string."""
        data = self._tokenizer.added_bytes(token, self._before)
        self._before = token if self._tokenizer.token_bytes(token) else self._before
        return self._release(self._decoder.decode(data))

    def close(self) -> str:
        """Return what was held back, now that nothing follows."""
        if self.stopped is not None:
            return ""
        last = self._release(self._decoder.decode(b"", final=True))  # part of a character becomes one, and may end it
        self.pieces.append(self._held)
        last, self._held = last + self._held, ""
        return last

    def _release(self, new: str) -> str:
        self._held += new
        found = [(self._held.index(stop) + len(stop), -len(stop), stop) for stop in self._stops if stop in self._held]
        if found:
            end, _, self.stopped = min(found)
            free, self._held = self._held[: end - len(self.stopped)], ""
        else:
            at = len(self._held) - max((_begun(self._held, stop) for stop in self._stops), default=0)
            free, self._held = self._held[:at], self._held[at:]
        self.pieces.append(free)
        return free


def _begun(text: str, stop: str) -> int:
    """Return how many of the last characters of a text may be the beginning of a stop string."""
    return next((size for size in range(len(stop) - 1, 0, -1) if text.endswith(stop[:size])), 0)


@dataclass(frozen=True)
class Generated:
    """What a model wrote after a prompt, or, with an encoder, what it made of a text.

    Attributes:
        prompt: the text given.
        text: the text written, without the end-of-text mark, and without the stop string.
        ids: the tokens written, the mark and those that spelled the stop string included.
        ended: whether the model ended the text itself; if not, it stopped at a stop string or at the limit of tokens.
        seconds: wall clock, the reading of the prompt included.
        stopped: the stop string that ended the text, or None.
        continues: whether the text goes on from the prompt; with an encoder it stands by itself.
    """

    prompt: str
    text: str
    ids: tuple[int, ...]
    ended: bool
    seconds: float
    stopped: str | None = None
    continues: bool = True

    def __str__(self) -> str:
        return self.prompt + self.text if self.continues else self.text


def generate(
    model: LanguageModel,
    text: str,
    *,
    max_tokens: int | None = None,
    sampling: Sampling | None = None,
    stop: str | Sequence[str] = (),
    on_text: Callable[[str], None] | None = None,
) -> Generated:
    """Return what the model writes after a prompt, token by token with a key/value cache.

    Args:
        model: from `wherefrom.load`.
        text: the prompt; with an encoder, the text that it reads.
        max_tokens: at most so many tokens, at least 1; 50, or as many as the context has room for, unless given.
        sampling: greedy unless given.
        stop: strings that end the text; they are not part of it.
        on_text: called with each new piece of text as soon as its characters are whole.

    Raises:
        InputError: the prompt is empty, blank, or longer than the context with room for `max_tokens`; a stop string
            that is empty or no text; an encoder alone, which writes nothing.
    """
    start = time.perf_counter()
    stops = stop_strings(stop)
    opened = open_generation(require_model(model), text, max_tokens)
    writer = Writer(model.tokenizer, stops, opened.after)
    max_tokens = opened.room
    tell = on_text or (lambda piece: None)
    ids, ends = [], model.config.eos_ids
    for step in opened.steps(max_tokens=max_tokens, sampling=sampling, stop_ids=ends):
        ids.append(step.id)
        piece = "" if step.id in ends else writer.write(step.id)
        if piece:
            tell(piece)
        if writer.stopped is not None:
            break
    if last := writer.close():
        tell(last)
    seconds = time.perf_counter() - start
    continues = model.config.kind == "decoder"
    return Generated(text, writer.text, tuple(ids), ids[-1] in ends, seconds, writer.stopped, continues)


@dataclass(frozen=True, eq=False)
class OpenGeneration:
    """A generation that can begin: what the decoder reads first, what the encoder has read, and an empty cache.

    Attributes:
        transformer: the model.
        first: the tokens that the decoder reads before it writes: the prompt, or the start mark.
        source: what the encoder reads; None without one.
        cache: with room for all.
        room: how many tokens can be written.
    """

    transformer: Transformer
    first: Tokens
    source: Tokens | None
    cache: KeyValueCache
    room: int

    @property
    def after(self) -> int | None:
        """The last token of the text that is continued; None with an encoder, where the text stands by itself."""
        return self.first.ids[-1] if self.source is None else None

    def steps(self, *, attention: AttentionFunction = fused, **how: Any) -> Iterator[Step]:
        """Yield the tokens one by one; the arguments are those of the function `steps`."""
        memory = None
        if self.source is not None:
            with torch.inference_mode():
                memory = self.transformer.encode(torch.tensor([self.source.ids]), attention=attention)
        yield from steps(self.transformer, self.first.ids, cache=self.cache, attention=attention, memory=memory, **how)


def open_generation(model: LanguageModel, text: str, max_tokens: int | None) -> OpenGeneration:
    """Return a generation after a prompt, or of what an encoder reads, ready to begin.

    Args:
        model: a decoder, or one with an encoder.
        text: see `generate`, as with the next.
        max_tokens: how many tokens are to be written at most; `MOST`, or as many as fit, unless given.

    Raises:
        InputError: an encoder alone; or as `read_prompt` refuses the text.
    """
    config = model.config
    if config.kind == "encoder":
        raise InputError(
            "the model",
            expected="one that writes",
            given=f"{model.name}, an encoder, which reads whole texts",
            way_out="Ask it about a masked token: `wherefrom trace` with the mask in the text."
            if config.head != "none"
            else "Record it, and ask for its attention.",
        )
    if max_tokens is not None:
        max_tokens = whole("the number of tokens to write", max_tokens, least=1, way_out="Ask for at least one.")
    least = max_tokens or 1
    if config.kind == "encoder-decoder":
        source, first = read_prompt(model, text), start_tokens(model, None, room=least)
    else:
        source, first = None, read_prompt(model, text, room=least)
    room = max_tokens or min(MOST, config.context - len(first))
    return OpenGeneration(model.transformer, first, source, _cache(config, len(first) + room), room)


def _cache(config: Config, positions: int) -> KeyValueCache:
    """Return an empty cache, if there is memory for it."""
    try:
        return KeyValueCache(config, positions)
    except RuntimeError as error:  # torch has no narrower one for memory on the CPU
        size = 8 * config.layers * config.kv_heads * config.head_size * positions  # keys and values, 4 bytes each
        raise InputError(
            "the number of tokens to write",
            expected="one whose keys and values fit into the memory",
            given=f"{positions} positions with the prompt, which take {size / 1e9:,.0f} GB",
            way_out="Ask for fewer.",
            bytes=size,
        ) from error


def stop_strings(stop: Any) -> tuple[str, ...]:
    """Return stop strings as a tuple; a single one may come alone.

    Raises:
        InputError: one that is empty or no text.
    """
    way_out = 'Give texts, such as stop=["\\n"]; leave it out to stop at the end mark or the limit.'
    listed = (stop,) if isinstance(stop, str) else check_items("stop", stop, expected="texts", way_out=way_out)
    for one in listed:
        if not isinstance(one, str) or not one:
            raise InputError(
                "a stop string", expected="a text of at least one character", given=repr(one), way_out=way_out
            )
    return listed
