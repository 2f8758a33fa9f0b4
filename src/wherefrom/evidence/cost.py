"""What a forward pass costs (floor 5): counted beside measured.

`wherefrom.model.cost` counts the multiply-adds; here the recording's size is joined to them and, if asked, the pass is
run and timed: inside the attention function that the model is handed, inside its feed-forward modules, and as a whole.
A count does not depend on a machine, a time does, and neither is the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from statistics import median_low
from typing import Any, TypeAlias

import torch
from torch import Tensor

from wherefrom.attention import Mask
from wherefrom.capture.passes import facts_of
from wherefrom.checks import check_items, check_kind, whole
from wherefrom.errors import InputError
from wherefrom.evidence.costed import Cost, CostAt, Measured
from wherefrom.model.attention_function import Site, fused
from wherefrom.model.config import Config
from wherefrom.model.cost import PassCost, check_tokens, count
from wherefrom.model.language import LanguageModel
from wherefrom.model.transformer import FeedForward
from wherefrom.recording import ModelFacts, forecast_bytes

Progress: TypeAlias = Callable[[int, int], None]
"""Called with (passes run, passes in all) after each."""

MOST_LENGTHS, MOST_REPEATS = 100, 100


def cost(
    model: LanguageModel | Config,
    lengths: Sequence[int],
    *,
    measure: bool = False,
    repeats: int = 3,
    item_size: int = 4,
    progress: Progress | None = None,
) -> Cost:
    """Return what a forward pass over so many tokens costs, counted, and if asked, measured on this machine.

    A pass reads one text and gives the logits of its last position. Where there is an encoder beside the decoder, both
    texts have that length.

    Args:
        model: from `wherefrom.load`; a configuration alone can be counted, not measured.
        lengths: numbers of tokens; one given twice is looked at once. Any length up to 1,000,000,000 can be counted,
            also beyond the model's context, and says so.
        measure: run each length with random tokens, once to warm up and then `repeats` times, and take the run whose
            time is the median.
        repeats: how many runs of a length are timed.
        item_size: bytes of a number of weights, keys and values, for the sizes; 4 is float32, in which all is run.
        progress: told after each pass.

    Raises:
        InputError: no model, no length, more than 100 lengths, one that is no whole number from 1 to 1,000,000,000;
            measuring beyond the model's context, without a model, or one that is not on the CPU; repeats that are no
            whole number from 1 to 100.
    """
    config = _config_of(model)
    asked = _lengths(lengths)
    repeats = _at_most("the number of repeats", repeats, MOST_REPEATS, "Three are enough to take the middle one.")
    facts = _facts(model)
    counts = [count(config, tokens, item_size=item_size) for tokens in asked]
    timed: list[Measured | None] = [None] * len(counts)
    if measure:
        able = _measurable(model, counts)
        told = _counter(len(counts) * (repeats + 1), progress)
        timed = [_measured(able, counted, repeats, told) for counted in counts]
    lines = []
    for counted, measured in zip(counts, timed, strict=True):
        recorded = forecast_bytes(facts, counted.tokens, source_tokens=counted.source_tokens, item_size=item_size)
        lines.append(CostAt(counted, recorded, measured))
    name = model.name if isinstance(model, LanguageModel) else config.architecture
    return Cost(name, config, item_size, tuple(lines), torch.get_num_threads() if measure else None)


class _Clock:
    """An attention function that runs `fused` and adds up the time of its calls."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Mask, scale: float, site: Site) -> Tensor:
        """Return y [B, H, T, D]."""
        start = time.perf_counter()
        y = fused(q, k, v, mask=mask, scale=scale, site=site)
        self.seconds += time.perf_counter() - start
        return y


@contextmanager
def _feed_forward_clock(model: LanguageModel) -> Iterator[list[float]]:
    """Have every feed-forward module say how long it took, one entry a call, while this is open."""
    starts: list[float] = []
    took: list[float] = []
    handles = []
    for module in model.transformer.modules():
        if isinstance(module, FeedForward):
            handles.append(module.register_forward_pre_hook(lambda *_: starts.append(time.perf_counter())))
            handles.append(module.register_forward_hook(lambda *_: took.append(time.perf_counter() - starts[-1])))
    try:
        yield took
    finally:
        for handle in handles:
            handle.remove()


@torch.inference_mode()
def _measured(model: LanguageModel, counted: PassCost, repeats: int, tell: Callable[[], None]) -> Measured:
    """Return the time of a pass over random tokens; what they are changes nothing."""
    draw = torch.Generator().manual_seed(0)
    ids, read = (
        torch.randint(model.config.vocabulary, (1, length), generator=draw)
        for length in (counted.tokens, max(1, counted.source_tokens))
    )
    runs = []
    for _ in range(repeats + 1):
        runs.append(_run(model, ids, read))
        tell()
    timed = runs[1:]
    middle = median_low(seconds for seconds, _, _ in timed)
    seconds, attention, feed_forward = next(run for run in timed if run[0] == middle)
    return Measured(seconds, attention, feed_forward, tuple(run[0] for run in timed))


def _run(model: LanguageModel, ids: Tensor, read: Tensor) -> tuple[float, float, float]:
    """Run one pass of ids [1, T], `read` [1, S] for an encoder beside; return seconds: all, attention, feed-forward."""
    transformer, clock = model.transformer, _Clock()
    with _feed_forward_clock(model) as feed_forward:
        start = time.perf_counter()
        memory = None if transformer.encoder is None else transformer.encode(read, attention=clock)
        x = transformer.stream(ids, attention=clock, memory=memory)  # 1 T M
        if transformer.head is not None:
            transformer.logits(x[:, -1:])
        seconds = time.perf_counter() - start
    return seconds, clock.seconds, sum(feed_forward)


def _config_of(model: Any) -> Config:
    if isinstance(model, Config):
        return model
    way_out = "Load it first: model = wherefrom.load(); a wherefrom.Config alone can be counted."
    return check_kind("the model", model, LanguageModel, way_out=way_out).config


def _facts(model: LanguageModel | Config) -> ModelFacts:
    """Return what a recording's size depends on."""
    if isinstance(model, LanguageModel):
        return facts_of(model)
    sizes = {name: getattr(model, name) for name in ("layers", "heads", "kv_heads", "head_size", "context")}
    return ModelFacts(model.architecture, "", **sizes, kind=model.kind, encoder_layers=model.encoder_layers)


def _lengths(lengths: Any) -> tuple[int, ...]:
    what, expected = "the lengths", "numbers of tokens in a row, such as (512, 2048)"
    if isinstance(lengths, Sized):  # before a long range is laid out
        _at_most("the number of lengths", len(lengths), MOST_LENGTHS, "Give some lengths, such as (512, 2048).")
    items = check_items(what, lengths, expected=expected, way_out="A single one is (512,).")
    _at_most("the number of lengths", len(items), MOST_LENGTHS, "Give some lengths, such as (512, 2048).")
    return tuple(dict.fromkeys(check_tokens("a length", item) for item in items))


def _at_most(what: str, value: Any, most: int, way_out: str) -> int:
    number = whole(what, value, least=1, way_out=way_out)
    if number > most:
        raise InputError(what, expected=f"at most {most}", given=f"{number:,}", way_out=way_out, value=number)
    return number


def _measurable(model: LanguageModel | Config, counts: Sequence[PassCost]) -> LanguageModel:
    """Return the model, if every length can be run and timed."""
    if isinstance(model, Config):
        raise InputError(
            "the model",
            expected="one with weights, to be measured",
            given="a configuration",
            way_out="Load a model, or leave measure out: a configuration can be counted.",
        )
    longest = max(max(counted.tokens, counted.source_tokens) for counted in counts)
    if longest > model.config.context:
        raise InputError(
            "a length to measure",
            expected=f"at most {model.config.context:,} tokens (the context of {model.name})",
            given=f"{longest:,}",
            way_out="Leave measure out: any length can be counted.",
            tokens=longest,
            context=model.config.context,
        )
    device = next(model.transformer.parameters()).device.type
    if device != "cpu":
        raise InputError(
            "the model",
            expected="one on the CPU, whose clock this is",
            given=f"one on {device}",
            way_out='Move it: model.transformer.to("cpu").',
            device=device,
        )
    return model


def _counter(total: int, progress: Progress | None) -> Callable[[], None]:
    """Return what is to be called after each pass."""
    done = 0

    def tell() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    return tell
