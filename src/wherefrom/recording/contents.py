"""What a recording holds (floor 2): the calls of one forward pass, its tokens and predictions, as plain numpy arrays.

It takes its arrays from capture, which watched a model, or from a file beside it, and gives them to questions, which
know no model. Fact one of the project: with q, k and the log-sum-exp of each row, any weight is exp(s_ij - lse_i), one
dot product; so a recording grows with the length n, never with its square. Nothing here needs torch, and nothing here
says where the arrays live: those of a `Call` may be views of memory or of a file, and `Recording.calls` may be any
sequence, a lazy one included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wherefrom.checks import as_index, check_kind, whole
from wherefrom.errors import InputError
from wherefrom.recording.call import STAGES, Call, counted, listed, part_named, sized
from wherefrom.recording.gaps import NO_ATTENTION, Gap, gaps_of
from wherefrom.recording.lazy import numbered
from wherefrom.spans import Tokens

NUMBERED = "Layers are numbered from 0; these are the ones that the recording holds."


@dataclass(frozen=True)
class Prediction:
    """What the model expected at one position: the next token (row t writes token t + 1), in an encoder the token
    there.

    Attributes:
        position: the position that predicts.
        ids: token ids, the likeliest first.
        log_probabilities: their natural log-probabilities, over the whole vocabulary.
        next_id: the token that really came next, None at the end of the text, and in an encoder.
        next_log_probability: its log-probability.
        labels: what a person sees of each of `ids`; empty where that was not kept.
    """

    position: int
    ids: tuple[int, ...]
    log_probabilities: tuple[float, ...]
    next_id: int | None = None
    next_log_probability: float | None = None
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelFacts:
    """Which model was recorded: enough to know it again, and to forecast a recording's size.

    Layers of one model may differ: what a call has is asked of the call (`heads`, `key_heads`, `shapes`).

    Attributes:
        name: the model's name.
        fingerprint: a checksum of its configuration and weights.
        layers: of the decoder, or of the encoder if it is alone.
        heads: query heads of a layer; where layers differ, of the one that has most. So are the next two.
        kv_heads: key and value heads of a layer.
        head_size: numbers of a query or key.
        context: the most tokens that it reads; 0 where that is unknown.
        kind: "decoder", "encoder", or "encoder-decoder".
        encoder_layers: layers of an encoder beside the decoder; 0 where there is one stack.
        window: how many keys a destination reads at most, its own included; None is no limit, or layers that differ.
    """

    name: str
    fingerprint: str
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    context: int
    kind: str = "decoder"
    encoder_layers: int = 0
    window: int | None = None

    @property
    def part(self) -> str:
        """The part that predicts: "decoder", or "encoder" if it is alone."""
        return "encoder" if self.kind == "encoder" else "decoder"

    def layers_of(self, part: str) -> int:
        """How many layers a part has."""
        return self.encoder_layers if part == "encoder" and self.encoder_layers else self.layers


@dataclass(frozen=True, eq=False)
class Recording:
    """The calls of one pass through a model, its tokens and its predictions.

    Attributes:
        model: which model.
        tokens: what it read.
        calls: one a layer, in the order of the layers; with an encoder its calls first, then the decoder's
            self-attention, then its cross-attention. Those of other towers come before all of them, by the towers'
            names, and a module that ran several times has a call for each time.
        predictions: for the positions that were asked for, in their order; of a decoder the last one always.
        written_from: the position of the first generated token, None if all of the text was given. Row t - 1 wrote
            token t.
        seconds: how long the pass took, wall clock, self-checks included.
        source: what an encoder read for the decoder, the keys and values of cross-attention; None without one.
        path: the file or folder that it was opened from; None for one in memory.
        gaps: attention of the pass that is not among the calls, and layers that have none.
    """

    model: ModelFacts
    tokens: Tokens
    calls: Sequence[Call]
    predictions: Sequence[Prediction]
    written_from: int | None
    seconds: float
    source: Tokens | None = None
    path: Path | None = None
    gaps: tuple[Gap, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def bytes(self) -> int:
        """The size of all arrays."""
        return sum(call.bytes for call in self.calls)

    def __repr__(self) -> str:
        counts = f"{counted(len(self), 'token')}, {counted(len(self.calls), 'call')}"
        return f"Recording({self.model.name}, {counts}, {sized(self.bytes)})"

    def call(self, layer: int, kind: str = "self", part: str | None = None, repeat: int = 0) -> Call:
        """Return the call of a layer.

        Args:
            layer: from 0.
            kind: "self", or "cross" where a part reads the output of another.
            part: "decoder", "encoder", or another tower's name; the part that predicts unless given.
            repeat: which execution of the layer's module, from 0.

        Raises:
            InputError: there is no such call in the recording; it says whether the layer has no attention at all.
        """
        part = self.model.part if part is None else part
        alike = self.calls_of(kind, part)
        of_layer = [call for call in alike if call.layer == as_index(layer)]
        for call in of_layer:
            if call.repeat == as_index(repeat):
                return call
        if of_layer:
            raise InputError(
                "the repeat",
                expected=f"one of {listed([call.repeat for call in of_layer])}, the executions of layer {layer}",
                given=repr(repeat),
                way_out="Executions of a module in one pass are numbered from 0.",
                layer=layer,
            )
        raise self._lacks(layer, kind, part, alike)

    def _lacks(self, layer: int, kind: str, part: str, alike: Sequence[Call]) -> InputError:
        """Return why there is no call of a layer."""
        held = sorted({call.layer for call in alike})
        facts = {"layer": layer, "layers": tuple(held)}
        if not alike:
            kinds = ", ".join(dict.fromkeys(f"{call.kind} of {part_named(call.part)}" for call in self.calls))
            expected, given = f"one that was recorded ({kinds or 'none'})", f"{kind} of {part_named(part)}"
            return InputError("the kind of attention", expected=expected, given=given, way_out=NUMBERED, **facts)
        gap = self.gaps_of(part).get(-1 if as_index(layer) is None else layer)
        expected = f"one of {listed(held)}"
        if gap is not None and gap.what == NO_ATTENTION:
            way_out = "Layers are numbered from 0; this one is of another kind, such as a convolution."
            expected = f"one that has attention, {listed(held)}"
            return InputError(
                "the layer", expected=expected, given=f"{layer}, which has no attention", way_out=way_out, **facts
            )
        if gap is not None:
            given = f"{layer}, whose attention was not recorded ({gap.what} in {gap.name})"
            way_out = "It is computed where it cannot be seen; the other layers can be asked about."
            return InputError("the layer", expected=expected, given=given, way_out=way_out, **facts)
        other = next((call.kind for call in self.calls if (call.part, call.layer) == (part, as_index(layer))), None)
        given = str(layer) + ("" if other is None else f", which has {other}-attention alone")
        return InputError("the layer", expected=expected, given=given, way_out=NUMBERED, **facts)

    def calls_of(self, kind: str = "self", part: str | None = None) -> list[Call]:
        """Return the calls of a kind and a part, the one that predicts unless given, in their order."""
        part = self.model.part if part is None else part
        return [call for call in self.calls if (call.kind, call.part) == (kind, part)]

    def gaps_of(self, part: str | None = None) -> dict[int, Gap]:
        """Return the gaps in the layers of a part, the one that predicts unless given, by layer."""
        part = self.model.part if part is None else part
        calls = [call for call in self.calls if call.part == part]
        return gaps_of(self.gaps, calls, predicting=part == self.model.part)

    def layers_of(self, part: str | None = None) -> int:
        """Return how many layers a part has, by what is known of the model and by the calls and gaps that there are."""
        part = self.model.part if part is None else part
        known = self.model.layers_of(part) if part in STAGES else 0
        held = [call.layer + 1 for call in self.calls if call.part == part]
        return max([known, *held, *(layer + 1 for layer in self.gaps_of(part))])

    def texts_of(self, call: Call) -> tuple[Tokens, Tokens]:
        """Return the tokens at the destinations and at the sources of a call.

        Where a call does not go over a text, or over another number of positions than that text has tokens, its
        positions are numbered: their tokens have no text, and labels such as "[12]". They count within the call.
        """
        sizes = call.destinations, call.sources
        known = self.known_texts(call)
        destinations, sources = (
            numbered(size) if text is None or len(text) != size else text
            for text, size in zip(known, sizes, strict=True)
        )
        return destinations, sources

    def own_positions(self, part: str | None = None) -> NDArray[np.bool_]:
        """Return which positions of a part are of its text, bool [T]: those that only fill up a batch are read by none.

        Args:
            part: "decoder", "encoder", or another tower's name; the part that predicts unless given.
        """
        calls = [call for call in self.calls_of("self", part) if call.destinations == call.sources]
        own = np.zeros(calls[0].sources if calls else len(self), np.bool_)
        for mask in (call.mask for call in calls if call.sources == own.size):
            own |= mask.read(own.size)
            if own.all():
                break
        return own if own.any() else ~own  # where nobody reads anything it tells nothing

    def last_position(self, part: str | None = None) -> int:
        """Return the last position of a part's text, before what only fills up a batch; see `own_positions`."""
        return int(np.flatnonzero(self.own_positions(part))[-1])

    def known_texts(self, call: Call) -> tuple[Tokens | None, Tokens | None]:
        """Return the texts that a call's destinations and sources are of; None for positions that are of none.

        The part that predicts goes over the recording's own text, an encoder beside it over `source`, and so do the
        sources of the decoder's cross-attention. No other part has a text.
        """
        if call.part == self.model.part:
            own: Tokens | None = self.tokens
        else:
            own = self.source if call.part == "encoder" else None
        if call.kind == "self":
            return own, own
        return own, self.source if call.part == "decoder" else None

    def read_by(
        self, kind: str = "self", part: str | None = None, *, layer: int | None = None, repeat: int = 0
    ) -> tuple[Tokens, Tokens]:
        """Return the tokens at the destinations and at the sources of the calls of a kind; see `texts_of`.

        Args:
            kind: "self" or "cross".
            part: "decoder", "encoder", or another tower's name; the part that predicts unless given.
            layer: of which layer's call, since those of a tower may differ; the first unless given.
            repeat: which execution of the layer's module.

        Raises:
            InputError: there are no such calls.
        """
        alike = self.calls_of(kind, part)
        if layer is None and alike:
            layer, repeat = alike[0].layer, alike[0].repeat
        return self.texts_of(self.call(0 if layer is None else layer, kind, part, repeat))

    def prediction(self, position: int) -> Prediction:
        """Return what was predicted at a position.

        Raises:
            InputError: predictions of that position were not kept.
        """
        for prediction in self.predictions:
            if prediction.position == as_index(position):
                return prediction
        kept = ", ".join(str(p.position) for p in self.predictions[:8])
        raise InputError(
            "the position of a prediction",
            expected=f"one whose prediction was kept ({kept}{', ...' if len(self.predictions) > 8 else ''})",
            given=str(position),
            way_out="Record with predictions='all' to keep every position's.",
            position=position,
        )


def check_recording(value: Any) -> Recording:
    """Return `value` if it is a recording.

    Raises:
        InputError: it is not, such as a trace, which has one.
    """
    way_out = "Make one with `wherefrom.record(model, text)`; that of a trace is trace.recording."
    return check_kind("the recording", value, Recording, way_out=way_out)


def forecast_bytes(
    model: ModelFacts,
    tokens: int,
    *,
    source_tokens: int = 0,
    item_size: int = 4,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    positions: Sequence[int] | None = None,
) -> int:
    """Return the size that the arrays of a recording of that many tokens will have, exactly, before anything runs.

    A token costs, in every layer, one query a head, one key and one value a key/value head, and one float32 lse a head;
    in cross-attention, one query and lse a token and one key and value a token of the source.

    Args:
        model: `recording.model`.
        tokens: of the text; of the decoder where there is an encoder.
        source_tokens: of the encoder's text.
        item_size: bytes of a number of q, k and v.
        layers: those that are kept; all unless given.
        heads: those of each layer that are kept, with the keys and values that they read; all unless given.
        positions: the destinations that are kept, of the part that predicts; all unless given.

    Raises:
        InputError: the facts of no model (those of a recording are `recording.model`), or a number below 0.
    """
    way_out = "Give recording.model, or ask `wherefrom.forecast(model, text)`."
    model = check_kind("the model's facts", model, ModelFacts, way_out=way_out)
    tokens = whole("the number of tokens", tokens, least=0, way_out="Say how many tokens are to be recorded.")
    sources = whole(
        "the number of source tokens", source_tokens, least=0, way_out="0 where there is no encoder beside."
    )
    group = model.heads // model.kv_heads
    own_heads = model.heads if heads is None else len(heads)
    own_kv_heads = model.kv_heads if heads is None else len({head // group for head in heads})
    reads = own_heads * (model.head_size * item_size + 4)
    is_read = 2 * own_kv_heads * model.head_size * item_size
    rows = tokens if positions is None else len(positions)
    own_layers = _count(layers, model.layers)
    own = own_layers * (rows * reads + tokens * is_read)
    if model.kind != "encoder-decoder":
        return own
    encoder = _count(layers, model.encoder_layers) * sources * (reads + is_read)
    return own + encoder + own_layers * (rows * reads + sources * is_read)


def _count(chosen: Sequence[int] | None, size: int) -> int:
    """Return how many of `size` layers are chosen."""
    return size if chosen is None else sum(layer < size for layer in chosen)
