"""Recording our own model (floor 3): a text in, a recording out, at the speed of the fused kernel.

The model takes its attention as an argument; here that argument is a `Recorder`. What is recorded of a generation
with a key/value cache is one map, the same as of one pass over the finished text: row t - 1 wrote token t.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from wherefrom.capture.recorder import Recorder
from wherefrom.checks import as_index, whole
from wherefrom.errors import InputError
from wherefrom.model.generate import Sampling, Step, steps
from wherefrom.model.language import LanguageModel, check_tokens, read_prompt, require_model
from wherefrom.model.transformer import KeyValueCache
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
    )


def forecast(model: LanguageModel, text: str | Tokens | int) -> int:
    """Return how many bytes the recording of a text, or of that many tokens, will take, exactly; nothing runs.

    Args:
        model: from `wherefrom.load`.
        text: the prompt, its tokens, or how many there will be (of a generation, the written ones included).

    Raises:
        InputError: a prompt that `record` refuses, or a number below 0.
    """
    require_model(model)
    count = as_index(text)
    return forecast_bytes(facts_of(model), len(_tokens(model, text)) if count is None else count)


@torch.inference_mode()
def record(
    model: LanguageModel,
    text: str | Tokens,
    *,
    predictions: Literal["last", "all"] = "last",
    progress: Callable[[int, int], None] | None = None,
) -> Recording:
    """Return the recording of one pass over a text: every call's q, k, v and lse, checked, in memory.

    Its size is known before: `wherefrom.forecast(model, text)`. It grows linearly with the text.

    Args:
        model: from `wherefrom.load`.
        text: the prompt, or its tokens.
        predictions: keep what the model expected after the last position only, or after every one.
        progress: called after each layer with (layers done, layers in all).

    Raises:
        InputError: the prompt is no text, empty, blank, or longer than the model's context; tokens that are not this
            model's; predictions that are neither "last" nor "all"; a recording larger than the memory that is free.
        RecordingError: a kernel's output or lse failed the self-check; layer and error are named.
    """
    tokens = _tokens(model, text)
    if predictions not in ("last", "all"):
        raise InputError(
            "predictions",
            expected='"last" or "all"',
            given=repr(predictions),
            way_out="Keep what the model expected after the last position only, or after every one.",
        )
    start = time.perf_counter()
    recorder = _recorder(model, len(tokens), _layer_counter(model, progress))
    x = model.transformer.stream(torch.tensor([tokens.ids]), attention=recorder)[0]  # T M
    positions = range(len(tokens)) if predictions == "all" else range(len(tokens) - 1, len(tokens))
    kept: list[Prediction] = []
    for first in range(positions.start, positions.stop, ROWS_AT_ONCE):
        rows = range(first, min(first + ROWS_AT_ONCE, positions.stop))
        kept += _predictions(model.transformer.logits(x[rows.start : rows.stop]), rows, tokens.ids)
    return Recording(facts_of(model), tokens, recorder.calls(), tuple(kept), None, time.perf_counter() - start)


@torch.inference_mode()
def record_generation(
    model: LanguageModel,
    text: str,
    *,
    max_tokens: int = 20,
    sampling: Sampling | None = None,
    stop_ids: Collection[int] | None = None,
) -> Recording:
    """Return the recording of a prompt and of what the model writes after it, token by token with a cache, as one map.

    The last token written is read too, so that the map has a row for every token. Row t - 1 wrote token t;
    `Recording.written_from` is the position of the first written token.

    Args:
        model: from `wherefrom.load`.
        text: the prompt.
        max_tokens: at most so many tokens are written, at least 1.
        sampling: greedy unless given.
        stop_ids: writing ends after one of these; the model's end-of-text tokens unless given.

    Raises:
        InputError: the prompt is empty, blank, or longer than the context with room for `max_tokens`; a recording
            larger than the memory that is free.
        RecordingError: a kernel's output or lse failed the self-check.
    """
    max_tokens = whole("the number of tokens to write", max_tokens, least=1, way_out="Ask for at least one.")
    prompt = read_prompt(model, text, room=max_tokens)
    start = time.perf_counter()
    recorder = _recorder(model, len(prompt) + max_tokens)
    cache = KeyValueCache(model.config, len(prompt) + max_tokens)
    stops = model.config.eos_ids if stop_ids is None else stop_ids
    written = list(
        steps(
            model.transformer,
            prompt.ids,
            max_tokens=max_tokens,
            cache=cache,
            sampling=sampling,
            stop_ids=stops,
            attention=recorder,
        )
    )
    last = model.transformer(torch.tensor([[written[-1].id]]), attention=recorder, cache=cache)[0]  # 1 N
    tokens = model.tokenizer.tokens_of([*prompt.ids, *(step.id for step in written)])
    kept = _predictions_of_steps(written, last, tokens.ids)
    return Recording(facts_of(model), tokens, recorder.calls(), kept, len(prompt), time.perf_counter() - start)


def _tokens(model: LanguageModel, text: Any) -> Tokens:
    return check_tokens(model, text) if isinstance(text, Tokens) else read_prompt(model, text)


def _recorder(model: LanguageModel, positions: int, on_call: Callable[[int], None] | None = None) -> Recorder:
    """Return a recorder with room for a text, if the memory that it is forecast to take is free."""
    needed, free = forecast(model, positions), free_memory()
    if free is not None and needed > free:
        raise InputError(
            "the recording",
            expected=f"at most {free / 1e9:.2f} GB, the memory that is free",
            given=f"{needed / 1e9:.2f} GB for {positions} tokens",
            way_out="Shorten the text, or end other programs.",
            bytes=needed,
        )
    return Recorder(model.config.layers, positions, on_call)


def free_memory() -> int | None:
    """Return how many bytes programs can still have without swapping; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    kilobytes = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return 1024 * kilobytes[0] if kilobytes else None


def _layer_counter(model: LanguageModel, progress: Callable[[int, int], None] | None) -> Callable[[int], None] | None:
    if progress is None:
        return None
    return lambda layer: progress(layer + 1, model.config.layers)


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
