"""One pass of our own model (floor 3): run under any attention function, or written to a file call by call.

Takes the stream and the predictions from beside it, the file's writer from below. Gives `record` its two ways.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from wherefrom.capture.predicted import predictions_of
from wherefrom.capture.streaming import Keep, Stream, by_head
from wherefrom.checks import check_chosen
from wherefrom.model.attention_function import AttentionFunction, Site
from wherefrom.model.language import LanguageModel
from wherefrom.model.transformer import Attention
from wherefrom.recording import (
    Array,
    Call,
    ModelFacts,
    Prediction,
    Recording,
    Writer,
    forecast_file_bytes,
    open_recording,
    save_recording,
)
from wherefrom.tokens import Tokens

ROWS_AT_ONCE = 256
EVERYTHING = Keep()


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


@dataclass(frozen=True)
class Pass:
    """One pass of a model over a text, and the positions whose predictions are kept."""

    model: LanguageModel
    tokens: Tokens
    source: Tokens | None
    positions: tuple[int, ...]

    @torch.inference_mode()
    def run(self, attention: AttentionFunction) -> tuple[Prediction, ...]:
        """Run it under an attention function and return the predictions."""
        transformer, source = self.model.transformer, self.source
        memory = None if source is None else transformer.encode(torch.tensor([source.ids]), attention=attention)
        x = transformer.stream(torch.tensor([self.tokens.ids]), attention=attention, memory=memory)[0]  # T M
        came = self.tokens.ids if self.model.config.causal else ()
        kept: list[Prediction] = []
        label = cache(self.model.tokenizer.label)
        for first in range(0, len(self.positions), ROWS_AT_ONCE):
            rows = list(self.positions[first : first + ROWS_AT_ONCE])
            kept += predictions_of(transformer.logits(x[rows]), rows, came, label)
        return tuple(kept)


def to_file(
    asked: Pass,
    keep: Keep,
    path: Path,
    *,
    store: str | None,
    output: bool,
    overwrite: bool,
    on_call: Callable[[int], None] | None,
) -> Recording:
    """Run a pass whose calls go to a file one by one, and open it.

    Raises:
        RecordingError: a call failed its check, or the file cannot be written; nothing of it is left.
    """
    model, start = asked.model, time.perf_counter()
    size = file_bytes(
        model,
        len(asked.tokens),
        sources=0 if asked.source is None else len(asked.source),
        keep=keep,
        store=store,
        output=output,
        predictions=len(asked.positions),
        text_bytes=sum(len(text.text.encode()) for text in (asked.tokens, asked.source) if text is not None),
    )
    with Writer(
        path,
        model=facts_of(model),
        tokens=asked.tokens,
        source=asked.source,
        store=store,
        overwrite=overwrite,
        forecast=size,
    ) as file:
        projection = (lambda site: _output_projection(model, site)) if output else None
        kept = asked.run(Stream(file.add, keep=keep, output=projection, on_call=on_call))
        file.finish(predictions=kept, written_from=None, seconds=time.perf_counter() - start)
    return open_recording(path)


def file_bytes(
    model: LanguageModel,
    tokens: int,
    *,
    sources: int = 0,
    keep: Keep = EVERYTHING,
    store: str | None = None,
    output: bool = True,
    predictions: int = 1,
    text_bytes: int | None = None,
    written: int = 0,
) -> int:
    """Return how many bytes a recording of this model in a file will have, within a few hundredths; nothing runs."""
    return forecast_file_bytes(
        facts_of(model),
        tokens,
        source_tokens=sources,
        layers=keep.layers,
        heads=keep.heads,
        positions=keep.positions,
        item_size=4 if store is None else 2,
        output_width=model.config.width if output else None,
        predictions=predictions,
        text_bytes=text_bytes,
        written=written,
    )


def save_with_output(
    model: LanguageModel, recording: Recording, path: Path, *, output: bool, store: str | None, overwrite: bool
) -> Recording:
    """Write a recording of a model to a file, its output projections with it if they are wanted, and open that.

    Raises:
        RecordingError: the file cannot be written; nothing of it is left.
    """
    if output:
        recording = with_output(model, recording)
    return open_recording(save_recording(recording, path, store=store, overwrite=overwrite))


def with_output(model: LanguageModel, recording: Recording) -> Recording:
    """Return a recording with its layers' output projections, which are the model's own: nothing is copied."""
    return replace(recording, calls=tuple(_with_output(model, call) for call in recording.calls))


def keep_of(model: LanguageModel, tokens: Tokens, layers: Any, heads: Any, positions: Any) -> Keep:
    """Return what is to be kept, checked; what is all of it is None."""
    config = model.config
    most = max(config.layers, config.encoder_layers)
    return Keep(
        _chosen("layer", layers, most),
        _chosen("head", heads, config.heads),
        _chosen("position", positions, len(tokens)),
        facts_of(model).part,
    )


def _chosen(what: str, asked: Any, size: int) -> tuple[int, ...] | None:
    chosen = check_chosen(what, asked, size)
    return None if chosen is not None and len(chosen) == size else chosen


def in_order(call: Call) -> tuple[bool, bool, int]:
    """Sort calls as a recording has them: the encoder's, then self-attention, then cross-attention, by layers."""
    return call.part != "encoder", call.kind != "self", call.layer


def _with_output(model: LanguageModel, call: Call) -> Call:
    return replace(call, output=by_head(_output_projection(model, call), call.heads))


def _output_projection(model: LanguageModel, site: Site | Call) -> Array:
    """Return the output projection of a call, [M, H * V], a view of the model's own."""
    encoder = model.transformer.encoder if site.part == "encoder" else None
    block = (model.transformer if encoder is None else encoder).blocks[site.layer]
    attention = block.cross_attention if site.kind == "cross" else block.attention
    assert isinstance(attention, Attention), "every call of a block is one of its sublayers"
    array: Array = attention.output.weight.detach().cpu().numpy()
    return array
