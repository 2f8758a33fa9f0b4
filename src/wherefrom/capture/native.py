"""Recording our own model (floor 3): a text in, a recording out, at the speed of the fused kernel.

The model takes its attention as an argument; here that argument is a `Recorder`. What is recorded of a generation
with a key/value cache is one map, the same as of one pass over the finished text: row t - 1 wrote token t.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from wherefrom.capture.recorder import Recorder
from wherefrom.checks import as_index, check_index, check_items
from wherefrom.errors import InputError
from wherefrom.model.generate import Sampling, Step, Writer, open_generation, stop_strings
from wherefrom.model.language import LanguageModel, check_tokens, read_prompt, require_model, start_tokens
from wherefrom.recording import ModelFacts, Prediction, Recording, forecast_bytes
from wherefrom.tokens import Tokens

KEPT_PREDICTIONS = 5
ROWS_AT_ONCE = 256


def facts_of(model: LanguageModel) -> ModelFacts:
    """Return what a recording keeps about a model."""
    config = model.config
    return ModelFacts(
        name=model.name,
        fingerprint=model.fingerprint,
        layers=config.layers,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_size=config.head_size,
        context=config.context,
        kind=config.kind,
        encoder_layers=config.encoder_layers,
        window=config.window,
    )


def forecast(model: LanguageModel, text: str | Tokens | int, written: str | Tokens | int | None = None) -> int:
    """Return how many bytes the recording of a text, or of that many tokens, will take, exactly; nothing runs.

    Args:
        model: from `wherefrom.load`.
        text: the prompt, its tokens, or how many there will be (of a generation, the written ones included).
        written: with an encoder, what the decoder reads, likewise; its start mark alone unless given.

    Raises:
        InputError: a prompt that `record` refuses, or a number below 0.
    """
    number = as_index(text)
    if require_model(model).config.kind != "encoder-decoder":
        refuse_written(model, written)
        return forecast_bytes(facts_of(model), len(_tokens(model, text)) if number is None else number)
    sources = len(_tokens(model, text)) if number is None else number
    rows = as_index(written)
    return forecast_bytes(
        facts_of(model), len(_written(model, written)) if rows is None else rows, source_tokens=sources
    )


@torch.inference_mode()
def record(
    model: LanguageModel,
    text: str | Tokens,
    *,
    written: str | Tokens | None = None,
    predictions: Literal["last", "all"] | Sequence[int] = "last",
    progress: Callable[[int, int], None] | None = None,
) -> Recording:
    """Return the recording of one pass over a text: every call's q, k, v and lse, checked, in memory.

    Its size is known before: `wherefrom.forecast(model, text)`. It grows linearly with the text.

    Args:
        model: from `wherefrom.load`.
        text: the prompt, or its tokens; with an encoder beside the decoder, the text that the encoder reads.
        written: with an encoder, the text that the decoder has written so far, or its tokens, start mark included.
        predictions: keep what the model expected after the last position only ("last"), after every one ("all"), or
            after some, by number; in an encoder at its masked positions only, at every one, or at some. An encoder
            without a head predicts nothing.
        progress: called after each call of attention with (calls done, calls in all).

    Raises:
        InputError: the prompt is no text, empty, blank, or longer than the model's context; tokens that are not this
            model's; predictions that are neither "last" nor "all" nor positions; a recording larger than the memory
            that is free.
        RecordingError: a kernel's output or lse failed the self-check; layer and error are named.
    """
    source, tokens = _texts(require_model(model), text, written)
    positions = _predicting(model, tokens, predictions)
    start = time.perf_counter()
    recorder = _recorder(model, len(tokens), 0 if source is None else len(source), progress)
    transformer = model.transformer
    memory = None if source is None else transformer.encode(torch.tensor([source.ids]), attention=recorder)
    x = transformer.stream(torch.tensor([tokens.ids]), attention=recorder, memory=memory)[0]  # T M
    kept: list[Prediction] = []
    for first in range(0, len(positions), ROWS_AT_ONCE):
        rows = positions[first : first + ROWS_AT_ONCE]
        kept += _predictions(transformer.logits(x[rows]), rows, tokens.ids if model.config.causal else ())
    seconds = time.perf_counter() - start
    return Recording(facts_of(model), tokens, recorder.calls(), tuple(kept), None, seconds, source)


@torch.inference_mode()
def record_generation(
    model: LanguageModel,
    text: str,
    *,
    max_tokens: int | None = None,
    sampling: Sampling | None = None,
    stop: str | Sequence[str] = (),
    stop_ids: Collection[int] | None = None,
) -> Recording:
    """Return the recording of a prompt and of what the model writes after it, token by token with a cache, as one map.

    The last token written is read too, so that the map has a row for every token. Row t - 1 wrote token t;
    `Recording.written_from` is the position of the first written token.

    Args:
        model: from `wherefrom.load`.
        text: the prompt; with an encoder, the text that it reads.
        max_tokens: at most so many tokens are written, at least 1; 50, or as many as fit, unless given.
        sampling: greedy unless given.
        stop: strings that end the text; the tokens that spell one are in the recording.
        stop_ids: writing ends after one of these; the model's end-of-text tokens unless given.

    Raises:
        InputError: the prompt is empty, blank, or longer than the context with room for `max_tokens`; a recording
            larger than the memory that is free; an encoder alone, which writes nothing.
        RecordingError: a kernel's output or lse failed the self-check.
    """
    stops = stop_strings(stop)
    opened = open_generation(require_model(model), text, max_tokens)
    writer, max_tokens = Writer(model.tokenizer, stops, opened.after), opened.room
    first, source = opened.first, opened.source
    start = time.perf_counter()
    recorder = _recorder(model, len(first) + max_tokens, 0 if source is None else len(source))
    ends = model.config.eos_ids if stop_ids is None else stop_ids
    written: list[Step] = []
    for step in opened.steps(max_tokens=max_tokens, sampling=sampling, stop_ids=ends, attention=recorder):
        written.append(step)
        writer.write(step.id)
        if writer.stopped is not None:
            break
    last = model.transformer(torch.tensor([[written[-1].id]]), attention=recorder, cache=opened.cache)[0]  # 1 N
    tokens = model.tokenizer.tokens_of([*first.ids, *(step.id for step in written)])
    kept = _predictions_of_steps(written, last, tokens.ids)
    seconds = time.perf_counter() - start
    return Recording(facts_of(model), tokens, recorder.calls(), kept, len(first), seconds, source)


def _texts(model: LanguageModel, text: Any, written: Any) -> tuple[Tokens | None, Tokens]:
    """Return what the encoder reads, if there is one beside the decoder, and what the part that predicts reads."""
    if model.config.kind == "encoder-decoder":
        return _tokens(model, text), _written(model, written)
    refuse_written(model, written)
    return None, _tokens(model, text)


def _tokens(model: LanguageModel, text: Any) -> Tokens:
    return check_tokens(model, text) if isinstance(text, Tokens) else read_prompt(model, text)


def _written(model: LanguageModel, written: Any) -> Tokens:
    return check_tokens(model, written) if isinstance(written, Tokens) else start_tokens(model, written)


NO_PAIR = {True: "a decoder, which has no encoder to read another text", False: "an encoder, which writes nothing"}


def refuse_written(model: LanguageModel, written: Any) -> None:
    """Refuse a written text for a model that reads one text only.

    Raises:
        InputError: there is one.
    """
    if written is not None:
        raise InputError(
            "the written text",
            expected="none",
            given=f"one, for {model.name}, {NO_PAIR[model.config.causal]}",
            way_out="Write it behind the prompt instead." if model.config.causal else "Give the text alone.",
        )


def _predicting(model: LanguageModel, tokens: Tokens, asked: Any) -> list[int]:
    """Return the positions whose predictions are kept."""
    if isinstance(asked, str) or asked is None:
        if asked not in ("last", "all"):
            raise InputError(
                "predictions",
                expected='"last" or "all"',
                given=repr(asked),
                way_out="Keep what the model expected after the last position only, or after every one.",
            )
    else:
        listed = check_items("predictions", asked, expected='"last", "all" or positions', way_out="One is (3,).")
        return sorted({check_index("position", position, len(tokens)) for position in listed})
    if model.config.head == "none":
        return []
    if asked == "all":
        return list(range(len(tokens)))
    if model.config.causal:
        return [len(tokens) - 1]
    return [token.position for token in tokens if token.id == model.tokenizer.mask_id]


def _recorder(
    model: LanguageModel, positions: int, sources: int, progress: Callable[[int, int], None] | None = None
) -> Recorder:
    """Return a recorder with room for a text, if the memory that it is forecast to take is free."""
    needed, free = forecast_bytes(facts_of(model), positions, source_tokens=sources), free_memory()
    if free is not None and needed > free:
        raise InputError(
            "the recording",
            expected=f"at most {free / 1e9:.2f} GB, the memory that is free",
            given=f"{needed / 1e9:.2f} GB for {positions} tokens",
            way_out="Shorten the text, or end other programs.",
            bytes=needed,
        )
    layers, beside = model.config.layers, model.config.encoder_layers
    on_call = _counter(2 * layers + beside if beside else layers, progress)
    return Recorder(layers, positions, on_call, encoder_layers=beside, sources=sources)


def free_memory() -> int | None:
    """Return how many bytes programs can still have without swapping; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    kilobytes = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return 1024 * kilobytes[0] if kilobytes else None


def _counter(calls: int, progress: Callable[[int, int], None] | None) -> Callable[[int], None] | None:
    """Return what counts the calls of a pass for somebody who waits."""
    if progress is None:
        return None
    done = count(1)
    return lambda layer: progress(next(done), calls)


def _predictions_of_steps(written: Sequence[Step], last: Tensor, ids: Sequence[int]) -> tuple[Prediction, ...]:
    kept: list[Prediction] = []
    for step in written:
        kept += _predictions(step.logits[None], [step.position - 1], ids)
    return (*kept, *_predictions(last, [len(ids) - 1], ids))


def _predictions(logits: Tensor, positions: Iterable[int], ids: Sequence[int]) -> list[Prediction]:
    """Return the predictions of logits [R, N], one a position."""
    normalizer = torch.logsumexp(logits.float(), dim=-1)  # R
    best, best_ids = torch.topk(logits, min(KEPT_PREDICTIONS, logits.shape[-1]), dim=-1)  # R 5
    kept = []
    for row, position in enumerate(positions):
        after = ids[position + 1] if position + 1 < len(ids) else None
        kept.append(
            Prediction(
                position=position,
                ids=tuple(best_ids[row].tolist()),
                log_probabilities=tuple((best[row].float() - normalizer[row]).tolist()),
                next_id=after,
                next_log_probability=None if after is None else float(logits[row, after].float() - normalizer[row]),
            )
        )
    return kept
