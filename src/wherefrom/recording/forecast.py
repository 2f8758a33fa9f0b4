"""How large a recording's folder will be (floor 2), before anything runs: from the model's facts and a few counts.

Takes the layout from beside it. The manifest and every header are made as they will be and measured; only the bytes of
the text, which nobody knows before, and the digits of some numbers are guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from wherefrom.checks import as_index, check_chosen, check_kind, whole
from wherefrom.errors import InputError
from wherefrom.recording.agreement import CALL, KEPT, OF_PREDICTIONS, OF_SOURCE, OF_TOKENS, OPTIONAL, Form
from wherefrom.recording.call import Stored
from wherefrom.recording.contents import ModelFacts
from wherefrom.recording.layout import PREDICTIONS, TOKENS, CallFacts, FileFacts, KeptFacts, Manifest
from wherefrom.recording.tensors import Spec, size_of

LETTERS = 5
"""Bytes a token of text: English with a vocabulary of 50,000 has four to five."""
PREDICTED = 5
"""Likeliest tokens that are kept of a prediction."""
LONG = 1.2345678901234567e-07  # a float of as many digits as most have
ROWS_CHECKED = 5
NUMBERS = {2: "F16", 4: "F32", 8: "F64"}


def forecast_file_bytes(
    model: ModelFacts,
    tokens: int,
    *,
    source_tokens: int = 0,
    item_size: int = 4,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    positions: Sequence[int] | None = None,
    output_width: int | None = None,
    predictions: int = 1,
    text_bytes: int | None = None,
    written: int = 0,
) -> int:
    """Return the size in bytes that a recording's folder will have, within a few hundredths.

    Args:
        model: `recording.model`.
        tokens: of the text; of the decoder where there is an encoder.
        source_tokens: of the encoder's text.
        item_size: bytes of a number of q, k and v: 4, or 2 with `store`.
        layers: those that are kept; all unless given. One given twice counts once; so do heads and positions.
        heads: those of each layer that are kept, with the keys and values that they read; all unless given.
        positions: the destinations that are kept, of the part that predicts; all unless given.
        output_width: the width M of the model where output projections are kept.
        predictions: how many positions' predictions are kept.
        text_bytes: of the text, where that is known.
        written: how many of the tokens the model writes: of each, every call that reads it keeps a self-check.

    Raises:
        InputError: the facts of no model; a number below 0; a layer, head or position out of range, or none.
    """
    model = check_kind("the model's facts", model, ModelFacts, way_out="Give recording.model.")
    named = {"tokens": tokens, "source_tokens": source_tokens, "predictions": predictions, "written": written}
    optional = {"output_width": output_width, "text_bytes": text_bytes}
    named |= {name: value for name, value in optional.items() if value is not None}
    for name, value in named.items():
        whole(name, value, least=0, way_out="Count from 0; leave it out where nothing is left out.")
    dtype = NUMBERS.get(as_index(item_size) or 0)
    if dtype is None:
        given, way_out = repr(item_size), "float16 and bfloat16 have 2, float32 has 4."
        raise InputError("the bytes of a number", expected="2, 4 or 8", given=given, way_out=way_out)
    chosen = (
        check_chosen("layer", layers, max(model.layers, model.encoder_layers)),
        check_chosen("head", heads, model.heads),
        check_chosen("position", positions, tokens),
    )
    keep = _Keep(model, *chosen, dtype, output_width, written)
    letters = LETTERS * tokens if text_bytes is None else text_bytes
    files = {
        TOKENS: _tokens(tokens, letters, source_tokens if model.kind == "encoder-decoder" else None),
        PREDICTIONS: _specs(OF_PREDICTIONS, _predicted(predictions)),
    }
    calls = list(keep.calls(tokens, source_tokens))
    files |= {call.file: specs for call, specs in calls}
    listed = {name: FileFacts(size_of(specs), specs) for name, specs in files.items()}
    manifest = Manifest("0.0.0", model, None, LONG, tuple(call for call, _ in calls), listed)
    return len(manifest.to_bytes()) + sum(file.bytes for file in listed.values())


def _predicted(predictions: int) -> dict[str, int]:
    """Return the sizes of the predictions' arrays; how many different tokens are predicted is a guess."""
    distinct = PREDICTED * predictions if predictions < 20 else predictions
    sizes = {"P": predictions, "K": PREDICTED, "N": max(predictions - 1, 0)}
    return {**sizes, "D": distinct, "L": LETTERS * distinct}


@dataclass(frozen=True)
class _Keep:
    """What is kept of every call; None is all."""

    model: ModelFacts
    layers: tuple[int, ...] | None
    heads: tuple[int, ...] | None
    positions: tuple[int, ...] | None
    dtype: str
    output_width: int | None
    written: int

    def calls(self, tokens: int, sources: int) -> Iterator[tuple[CallFacts, dict[str, Spec]]]:
        """Yield the facts and the arrays of every call of a recording."""
        model = self.model
        kinds = [(model.part, "self", model.layers, tokens, tokens)]
        if model.kind == "encoder-decoder":
            kinds.insert(0, ("encoder", "self", model.encoder_layers, sources, sources))
            kinds.append(("decoder", "cross", model.layers, tokens, sources))
        for part, kind, layers, T, S in kinds:
            for layer in range(layers) if self.layers is None else [one for one in self.layers if one < layers]:
                yield self._call(layer, part, kind, T, S)

    def _call(self, layer: int, part: str, kind: str, T: int, S: int) -> tuple[CallFacts, dict[str, Spec]]:
        model, group = self.model, self.model.heads // self.model.kv_heads
        heads = tuple(range(model.heads)) if self.heads is None else self.heads
        read = sorted({head // group for head in heads})
        rows = T if self.positions is None or part != model.part else len(self.positions)
        sizes = {"H": len(heads), "K": len(read), "T": rows, "S": S, "D": model.head_size, "V": model.head_size}
        written = self.written if part == model.part else 0  # each in a pass of its own, which checks its one row
        sizes |= {"M": self.output_width or 0, "C": 1 + written, "R": ROWS_CHECKED + written}
        part_only = (len(heads), rows) != (model.heads, T)
        forms = CALL | (KEPT if part_only else {})
        forms |= {} if self.output_width is None else {"output": OPTIONAL["output"][0]}
        kept = None
        if part_only:
            kept = KeptFacts(heads, tuple(read.index(head // group) for head in heads), model.heads, T)
        stored = Stored("float16", tuple(range(ROWS_CHECKED)), LONG, LONG) if self.dtype == "F16" else None
        name, kernel = f"model.layers.{layer}.self_attn", "torch flash, CPU"
        facts = CallFacts(layer, name, kind, part, 0, kernel, LONG, None, True, None, 0, kept, stored)
        return facts, _specs(forms, sizes, self.dtype)


def _specs(forms: Mapping[str, Form], sizes: Mapping[str, int], dtype: str = "F32") -> dict[str, Spec]:
    """Return what arrays of some forms are; those that may have any floating-point numbers have `dtype`."""
    found = {}
    for name, (kinds, letters) in forms.items():
        shape = tuple(int(letter) if letter.isdigit() else sizes[letter] for letter in letters)
        found[name] = Spec(kinds[0] if len(kinds) == 1 else "F32" if name == "output" else dtype, shape)
    return found


def _tokens(tokens: int, letters: int, sources: int | None) -> dict[str, Spec]:
    sizes = {"T": tokens, "B": letters, "L": letters, "X": letters}
    if sources is None:
        return _specs(OF_TOKENS, sizes)
    sizes |= {"t": sources, "b": LETTERS * sources, "l": LETTERS * sources, "x": LETTERS * sources}
    return _specs(OF_TOKENS | OF_SOURCE, sizes)
