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

from wherefrom.capture.passes import Pass, facts_of, in_order, keep_of, save_with_output, to_file
from wherefrom.capture.predicted import predictions_of_steps
from wherefrom.capture.recorder import Recorder
from wherefrom.capture.streaming import Keep, Stream, copied
from wherefrom.checks import as_index, check_index, check_items
from wherefrom.errors import InputError
from wherefrom.model.generate import Sampling, Step, Writer, open_generation, stop_strings
from wherefrom.model.language import LanguageModel, check_tokens, read_prompt, require_model, start_tokens
from wherefrom.recording import Call, Recording, forecast_bytes
from wherefrom.recording.layout import folder_of
from wherefrom.tokens import Tokens


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


def record(
    model: LanguageModel,
    text: str | Tokens,
    *,
    written: str | Tokens | None = None,
    predictions: Literal["last", "all"] | Sequence[int] = "last",
    layers: Iterable[int] | None = None,
    heads: Iterable[int] | None = None,
    positions: Iterable[int] | None = None,
    to: str | Path | None = None,
    store: str | None = None,
    output: bool = True,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Recording:
    """Return the recording of one pass of a model of `wherefrom.load`; see `wherefrom.record` for the arguments.

    Its size is known before: `wherefrom.forecast(model, text)`. A file is written call by call while the model runs, so
    that the memory needed does not grow with the number of layers.

    Raises:
        InputError: see `wherefrom.record`.
        RecordingError: likewise.
    """
    source, tokens = _texts(require_model(model), text, written)
    asked = Pass(model, tokens, source, tuple(_predicting(model, tokens, predictions)))
    keep = keep_of(model, tokens, layers, heads, positions)
    if to is not None:
        on_call = _counter(model, progress)
        return to_file(asked, keep, folder_of(to), store=store, output=output, overwrite=overwrite, on_call=on_call)
    if store is not None:
        way_out = "Give the path of a file (to=...), or leave it out."
        raise InputError("store", expected="none for a recording in memory", given=repr(store), way_out=way_out)
    _require_memory(model, len(tokens), 0 if source is None else len(source), keep)
    start, on_call = time.perf_counter(), _counter(model, progress)
    if keep.everything:
        recorder = _recorder(model, len(tokens), 0 if source is None else len(source), on_call)
        kept = asked.run(recorder)
        calls = recorder.calls()
    else:
        taken: list[Call] = []
        kept = asked.run(Stream(lambda call: taken.append(copied(call)), keep=keep, on_call=on_call))
        calls = tuple(sorted(taken, key=in_order))
    seconds = time.perf_counter() - start
    return Recording(facts_of(model), tokens, calls, kept, None, seconds, source)


@torch.inference_mode()
def record_generation(
    model: LanguageModel,
    text: str,
    *,
    max_tokens: int | None = None,
    sampling: Sampling | None = None,
    stop: str | Sequence[str] = (),
    stop_ids: Collection[int] | None = None,
    to: str | Path | None = None,
    store: str | None = None,
    output: bool = True,
    overwrite: bool = False,
) -> Recording:
    """Return the recording of what a model of `wherefrom.load` writes; see `wherefrom.record_generation`.

    Raises:
        InputError: see there.
        RecordingError: likewise.
    """
    stops = stop_strings(stop)
    opened = open_generation(require_model(model), text, max_tokens)
    writer, max_tokens = Writer(model.tokenizer, stops, opened.after), opened.room
    first, source = opened.first, opened.source
    start = time.perf_counter()
    _require_memory(model, len(first) + max_tokens, 0 if source is None else len(source), Keep())
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
    kept, calls = predictions_of_steps(written, last, tokens.ids, model.tokenizer.label), recorder.calls()
    seconds = time.perf_counter() - start
    recording = Recording(facts_of(model), tokens, calls, kept, len(first), seconds, source)
    if to is None:
        return recording
    return save_with_output(model, recording, folder_of(to), output=output, store=store, overwrite=overwrite)


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


def _require_memory(model: LanguageModel, positions: int, sources: int, keep: Keep) -> None:
    """Refuse a recording for which there is too little memory."""
    needed = forecast_bytes(
        facts_of(model),
        positions,
        source_tokens=sources,
        layers=keep.layers,
        heads=keep.heads,
        positions=keep.positions,
    )
    free = free_memory()
    if free is not None and needed > free:
        raise InputError(
            "the recording",
            expected=f"at most {free / 1e9:.2f} GB, the memory that is free",
            given=f"{needed / 1e9:.2f} GB for {positions} tokens",
            way_out="Record it to a file, keep fewer layers, heads or positions, or shorten the text.",
            bytes=needed,
        )


def _recorder(
    model: LanguageModel, positions: int, sources: int, on_call: Callable[[int], None] | None = None
) -> Recorder:
    """Return a recorder with room for a text."""
    config = model.config
    return Recorder(config.layers, positions, on_call, encoder_layers=config.encoder_layers, sources=sources)


def free_memory() -> int | None:
    """Return how many bytes programs can still have without swapping; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    kilobytes = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return 1024 * kilobytes[0] if kilobytes else None


def _counter(model: LanguageModel, progress: Callable[[int, int], None] | None) -> Callable[[int], None] | None:
    """Return what counts the calls of a pass for somebody who waits."""
    if progress is None:
        return None
    layers, beside = model.config.layers, model.config.encoder_layers
    done, calls = count(1), 2 * layers + beside if beside else layers
    return lambda layer: progress(next(done), calls)
