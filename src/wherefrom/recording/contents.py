"""What a recording holds (floor 2): the calls of one forward pass, its tokens and predictions, as plain numpy arrays.

It takes its arrays from capture, which watched a model, or from a file beside it, and gives them to questions, which
know no model. Fact one of the project: with q, k and the log-sum-exp of each row, any weight is exp(s_ij - lse_i), one
dot product; so a recording grows with the length n, never with its square. Nothing here needs torch, and nothing here
says where the arrays live: those of a `Call` may be views of memory or of a file, and `Recording.calls` may be any
sequence, a lazy one included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wherefrom.attention import Mask
from wherefrom.checks import as_index, check_index, check_kind, whole
from wherefrom.errors import InputError
from wherefrom.spans import Tokens

Array: TypeAlias = NDArray[Any]
ARRAYS = ("q", "k", "v", "lse", "bias", "sinks", "output")
"""The fields of a `Call` that hold arrays."""


@dataclass(frozen=True)
class Check:
    """What the self-check of one call found: some rows of every head, rebuilt from the recorded q, k, v and lse.

    Attributes:
        rows: the destinations looked at.
        sum_error: the largest distance of a row's weights from summing to one.
        output_error: the largest distance of a rebuilt output from the kernel's own, as a share of the largest value.
        tolerance: what either may be at most, from the number format and the size of the scores.
    """

    rows: tuple[int, ...]
    sum_error: float
    output_error: float
    tolerance: float


@dataclass(frozen=True, eq=False)
class Kept:
    """Which part of a call was kept, where that is not all of it: the true numbers of what its arrays hold.

    Attributes:
        heads: of the query heads along the first axis of q, ascending.
        key_heads: for each of them, the place along the first axis of k and v of what it reads.
        rows: int64 [T], of the destinations along the second axis of q, ascending.
        of_heads: how many heads the layer has in all.
        of_rows: how many destinations the call had in all.
    """

    heads: tuple[int, ...]
    key_heads: tuple[int, ...]
    rows: NDArray[np.int64]
    of_heads: int
    of_rows: int


@dataclass(frozen=True)
class Stored:
    """How the numbers of a call were rounded when they were written to a file, and what that did.

    Attributes:
        format: of q, k and v in the file, such as "float16".
        rows: the destinations looked at, in every head.
        weight_error: the largest change of one of their weights.
        sum_error: the largest distance of one of their rows from summing to one.
    """

    format: str
    rows: tuple[int, ...]
    weight_error: float
    sum_error: float


@dataclass(frozen=True, eq=False)
class Call:
    """One execution of attention: all that is needed to compute any of its weights, exactly, at any later time.

    Attributes:
        layer: the layer's true number in the model, from 0.
        name: the module that called, as the model names it.
        kind: "self" or "cross".
        q: [H, T, D] queries as the kernel was given them (positions already rotated in).
        k: [K, S, D] keys, once for every group of query heads.
        v: [K, S, V] values.
        lse: float32 [H, T], log of the sum of exp(score) over the permitted sources, natural logarithm.
        mask: the rule of who may read whom.
        scale: what q . k is multiplied by to give the score.
        kernel: the kernel that computed the outputs and lse.
        checks: what its self-checks found, one for each time the kernel ran (once a chunk or a generated token).
        part: "decoder", or "encoder" for bidirectional attention over a whole text.
        softcap: bound c on a score's size, s <- c tanh(s / c); None without one.
        kept: what the arrays hold where that is not the whole call; H and T then count what was kept.
        stored: how the numbers were rounded in a file; None where they are as the kernel was given them.
        bias: [H or 1, T, S], added to the scores after the softcap, such as a position bias; None without one.
        sinks: [H] logits that take a share of their head's rows and move nothing; lse counts them. None without.
        output: [H, M, V], each head's slice of the output projection: what j moves to i is a_ij (output[h] v_j). None
            where it was not kept.
    """

    layer: int
    name: str
    kind: str
    q: Array
    k: Array
    v: Array
    lse: NDArray[np.float32]
    mask: Mask
    scale: float
    kernel: str
    checks: tuple[Check, ...]
    part: str = "decoder"
    softcap: float | None = None
    # factories, so that the class itself has no such attribute: of a call in a file they are loaded when asked for
    kept: Kept | None = field(default_factory=lambda: None)
    stored: Stored | None = None
    bias: Array | None = field(default_factory=lambda: None)
    sinks: Array | None = field(default_factory=lambda: None)
    output: Array | None = field(default_factory=lambda: None)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the arrays that are there, by name."""
        arrays = {name: getattr(self, name) for name in ARRAYS}
        return {name: array.shape for name, array in arrays.items() if array is not None}

    @property
    def heads(self) -> int:
        """The number of query heads that were kept, H."""
        return self.shapes["q"][0]

    @property
    def head_numbers(self) -> tuple[int, ...]:
        """The true numbers of those heads."""
        return tuple(range(self.heads)) if self.kept is None else self.kept.heads

    @property
    def sources(self) -> int:
        """The number of sources, S."""
        return self.shapes["k"][1]

    @property
    def destinations(self) -> int:
        """The number of destinations that the call had, all of them kept or not."""
        return self.shapes["q"][1] if self.kept is None else self.kept.of_rows

    @property
    def rows(self) -> NDArray[np.int64]:
        """The destinations that were kept, int64 [T]."""
        return np.arange(self.shapes["q"][1]) if self.kept is None else self.kept.rows

    @property
    def all_rows(self) -> bool:
        """True where every destination was kept."""
        return self.kept is None or len(self.kept.rows) == self.kept.of_rows

    @property
    def key_heads(self) -> tuple[int, ...]:
        """For each query head that was kept, the place of what it reads along the first axis of k and v."""
        if self.kept is not None:
            return self.kept.key_heads
        group = self.heads // self.shapes["k"][0]
        return tuple(head // group for head in range(self.heads))

    @property
    def origin(self) -> tuple[str, str] | None:
        """The name of the file that it lies in, and what tells it from every other call; None in memory."""
        return None

    def place_of_head(self, head: int) -> int:
        """Return where a head's rows stand along the first axis of q.

        Raises:
            InputError: the layer has no such head, or it was not kept.
        """
        number = check_index("head", head, self.heads if self.kept is None else self.kept.of_heads)
        return self._place("head", number, self.head_numbers)

    def place_of_row(self, destination: int) -> int:
        """Return where a destination stands along the second axis of q.

        Raises:
            InputError: the call had no such destination, or it was not kept.
        """
        number = check_index("position", destination, self.destinations)
        return number if self.kept is None else self._place("destination", number, self.kept.rows)

    def _place(self, what: str, number: int, numbers: Sequence[int] | NDArray[np.int64]) -> int:
        place = int(np.searchsorted(numbers, number))
        if place < len(numbers) and numbers[place] == number:
            return place
        raise InputError(
            f"the {what}",
            expected=f"one of those that the recording keeps of layer {self.layer}, {listed(numbers)}",
            given=str(number),
            way_out=f"Record the text again with this {what} kept.",
            layer=self.layer,
        )

    @property
    def bytes(self) -> int:
        """The size of q, k, v and lse."""
        return int(self.q.nbytes + self.k.nbytes + self.v.nbytes + self.lse.nbytes)

    def __repr__(self) -> str:
        shapes = self.shapes
        heads, size = f"{self.heads} heads on {shapes['k'][0]}", f"{shapes['q'][1]} x {self.sources}"
        return f"Call(layer {self.layer}, {self.name}, {self.kind}, {heads}, {size} positions, {_size(self.bytes)})"


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

    Attributes:
        name: the model's name.
        fingerprint: a checksum of its configuration and weights.
        layers: of the decoder, or of the encoder if it is alone.
        heads: query heads of a layer.
        kv_heads: key and value heads of a layer.
        head_size: numbers of a query or key.
        context: the most tokens that it reads.
        kind: "decoder", "encoder", or "encoder-decoder".
        encoder_layers: layers of an encoder beside the decoder; 0 where there is one stack.
        window: how many keys a destination reads at most, its own included; None is no limit.
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
            self-attention, then its cross-attention.
        predictions: for the positions that were asked for, in their order; of a decoder the last one always.
        written_from: the position of the first generated token, None if all of the text was given. Row t - 1 wrote
            token t.
        seconds: how long the pass took, wall clock, self-checks included.
        source: what an encoder read for the decoder, the keys and values of cross-attention; None without one.
        path: the file or folder that it was opened from; None for one in memory.
    """

    model: ModelFacts
    tokens: Tokens
    calls: Sequence[Call]
    predictions: Sequence[Prediction]
    written_from: int | None
    seconds: float
    source: Tokens | None = None
    path: Path | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def bytes(self) -> int:
        """The size of all arrays."""
        return sum(call.bytes for call in self.calls)

    def __repr__(self) -> str:
        counts = f"{_counted(len(self), 'token')}, {_counted(len(self.calls), 'call')}"
        return f"Recording({self.model.name}, {counts}, {_size(self.bytes)})"

    def call(self, layer: int, kind: str = "self", part: str | None = None) -> Call:
        """Return the call of a layer.

        Args:
            layer: from 0.
            kind: "self", or "cross" where the decoder reads the encoder's output.
            part: "decoder" or "encoder"; the one that predicts unless given.

        Raises:
            InputError: there is no such call in the recording.
        """
        part = self.model.part if part is None else part
        alike = [call for call in self.calls if (call.kind, call.part) == (kind, part)]
        for call in alike:
            if call.layer == as_index(layer):
                return call
        kinds = ", ".join(dict.fromkeys(f"{call.kind} of the {call.part}" for call in self.calls))
        held = [call.layer for call in alike]
        raise InputError(
            "the layer" if alike else "the kind of attention",
            expected=f"one of {listed(held)}" if alike else f"one that was recorded ({kinds})",
            given=str(layer) if alike else f"{kind} of the {part}",
            way_out="Layers are numbered from 0; these are the ones that the recording holds.",
            layer=layer,
            layers=tuple(held),
        )

    def read_by(self, kind: str = "self", part: str | None = None) -> tuple[Tokens, Tokens]:
        """Return the tokens at the destinations and at the sources of calls of a kind.

        Raises:
            InputError: there are no such calls.
        """
        part = self.model.part if part is None else part
        call = next((call for call in self.calls if (call.kind, call.part) == (kind, part)), None)
        call = self.call(0, kind, part) if call is None else call  # which says what is there
        encoded = self.tokens if self.source is None else self.source
        return (
            encoded if call.part == "encoder" else self.tokens,
            encoded if call.part == "encoder" or call.kind == "cross" else self.tokens,
        )

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


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _size(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return _counted(count, "byte")


def listed(numbers: Sequence[int] | NDArray[np.int64]) -> str:
    """Return ascending whole numbers in words: "0 to 29", or some of them one by one."""
    ascending = sorted(int(number) for number in numbers)
    if len(ascending) > 2 and ascending[-1] - ascending[0] == len(ascending) - 1:
        return f"{ascending[0]} to {ascending[-1]}"
    shown = ", ".join(map(str, ascending[:8]))
    return shown + (f" and {len(ascending) - 8} more" if len(ascending) > 8 else "")
