"""Recording a transformers model as it is (floor 3): one pass, watched, as a recording of each text in the batch.

The model computes what it always computes, through the same door; what its attention was given is copied on the way.
Takes the watched interface, the collector and the tokens from beside it; gives recordings.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from wherefrom.capture.fused import Attended
from wherefrom.capture.huggingface.accepted import require_known
from wherefrom.capture.huggingface.collected import Collector, Execution
from wherefrom.capture.huggingface.everywhere import Everywhere, watched_everywhere
from wherefrom.capture.huggingface.model import TransformersModel
from wherefrom.capture.huggingface.own_words import in_its_own_words
from wherefrom.capture.huggingface.projections import Projections
from wherefrom.capture.huggingface.seen import Given
from wherefrom.capture.huggingface.sites import Place, as_written, layers_without, places
from wherefrom.capture.huggingface.texts import image_grid, label_of, tokens_of
from wherefrom.capture.predicted import predictions_of
from wherefrom.capture.streaming import Keep, by_head
from wherefrom.checks import check_chosen, check_index, check_items
from wherefrom.errors import InputError
from wherefrom.recording import Array, Call, Gap, Prediction, Recording, in_order, numbered
from wherefrom.tokens import Tokens

Predictions: TypeAlias = Literal["last", "all"] | Sequence[int]
ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class Wanted:
    """What of a pass is kept, as a user asks for it; see `wherefrom.record`."""

    predictions: Predictions = "last"
    layers: Any = None
    heads: Any = None
    positions: Any = None


@dataclass
class Pass:
    """A pass that was watched: what it was given and gave, and what its attention read.

    Attributes:
        model: whose pass.
        inputs: what the model was called with.
        outputs: what it returned.
        executions: those of attention, in the order of computation.
        gaps: attention that passed by.
        projections: the output projection of each module that has a single one, [M, H * V].
        seconds: wall clock.
    """

    model: TransformersModel
    inputs: Mapping[str, Any]
    outputs: Any = None
    executions: Sequence[Execution] = ()
    gaps: tuple[Gap, ...] = ()
    projections: Mapping[str, Tensor] = field(default_factory=dict)
    seconds: float = 0.0


def record_pass(
    model: TransformersModel,
    inputs: Mapping[str, Any],
    wanted: Wanted,
    *,
    text: str | Sequence[str] | None = None,
    on_call: Callable[[int], None] | None = None,
) -> tuple[Recording, ...]:
    """Return the recordings of one pass, one for each text of the batch.

    Args:
        model: as transformers made it, in eval mode or without dropout in its attention.
        inputs: what it is called with: ``input_ids``, ``attention_mask``, ``pixel_values`` and so on.
        wanted: what is kept.
        text: what the ids of a single text are the tokens of, where that is known; of several texts, one for each.
        on_call: told the number of executions done.

    Raises:
        InputError: inputs that the model cannot take, a choice that is out of range, no attention that can be seen.
        RecordingError: a self-check failed, or a query or key is not finite.
    """
    inputs = _checked(model, inputs)
    with torch.no_grad():
        done = run(model, _without_waste(model, inputs, wanted), on_call)
    return recordings(done, wanted, text)


def run(model: TransformersModel, inputs: Mapping[str, Any], on_call: Callable[[int], None] | None = None) -> Pass:
    """Run a model once, watched; gradients flow where they are switched on."""
    done, collector = Pass(model, inputs), Collector(on_call)
    with watching(done, collector, collector.executions):
        with in_its_own_words(model):
            done.outputs = model.module(**inputs)
        collector.finish()
    return done


@contextmanager
def watching(
    done: Pass, keep: Callable[[Given, Attended], None], executions: Sequence[Execution] = ()
) -> Iterator[Everywhere]:
    """Watch whatever runs the model within; what is kept of it comes from `keep`, called for each execution."""
    start, found = time.perf_counter(), Projections(as_written(done.model.module))

    def attention(given: Given) -> Tensor:
        attended = given.attend()
        if not given.replay:  # the backward pass computes again what is kept already
            keep(given, attended)
            found.note(given.name, attended.output, heads=attended.output.shape[1])
            if isinstance(given.module, nn.MultiheadAttention):  # which calls no module of its own for it
                own[given.name] = given.module.out_proj.weight
        return attended.output

    own: dict[str, Tensor] = {}
    with found, watched_everywhere(done.model.module, attention) as watch:
        yield watch
        done.gaps = watch.gaps
    done.executions = executions
    done.projections = {name: one.weight for name, one in found.found().items() if one.weight is not None} | own
    done.seconds = time.perf_counter() - start


def recordings(done: Pass, wanted: Wanted, text: str | Sequence[str] | None = None) -> tuple[Recording, ...]:
    """Return what was seen of a pass as recordings, one a text.

    Raises:
        InputError: nothing was seen, or a choice that is out of range.
    """
    require_attention(done)
    own = "decoder_input_ids" if done.model.in_pairs else "input_ids"
    texts, ids = _texts_in(done), _rows(done.inputs.get(own))
    known = [text] * texts if text is None or isinstance(text, str) else text
    return tuple(_recording(done, number, wanted, ids, known[number], texts) for number in range(texts))


def _texts_in(done: Pass) -> int:
    """Return how many texts (or images) the inputs of a pass are."""
    tensors = [value for value in done.inputs.values() if isinstance(value, Tensor) and value.ndim]
    ids = _rows(done.inputs.get("input_ids"))
    sizes = [len(x) for x in (ids, *tensors) if x is not None]
    batches = {len(one.q) for one in done.executions}
    return next((size for size in sizes if all(batch % size == 0 for batch in batches if batch > 1)), max(batches))


def recording_of_steps(
    done: Pass, ids: Sequence[int], first: int, logits: Sequence[Tensor], text: str | None
) -> Recording:
    """Return what was seen of a generation of one text as one recording.

    Args:
        done: its steps, joined.
        ids: all tokens, the prompt's and the written ones.
        first: how many of them are the prompt's.
        logits: [N] of each step: of the prompt's last position, and of each written one.
        text: what the ids are the tokens of, where that is known.

    Raises:
        InputError: nothing was seen.
    """
    require_attention(done)
    whole = _recording(done, 0, Wanted(predictions=()), torch.tensor([list(ids)]), text, 1)
    rows = [first - 1 + step for step in range(len(logits))]
    label = label_of(done.model.tokenizer)
    kept: list[Prediction] = []
    for row, own in zip(rows, logits, strict=True):
        kept += predictions_of(own[None].cpu(), [row], ids, label)
    return replace(whole, predictions=tuple(kept), written_from=first)


def _recording(done: Pass, number: int, wanted: Wanted, ids: Tensor | None, text: str | None, texts: int) -> Recording:
    """Return the recording of one of some texts of a batch; `ids` [B, T] are those of the part that predicts."""
    model = done.model
    found = places(model.module, list(dict.fromkeys(one.name for one in done.executions)))
    calls = in_order(
        [call for one in done.executions for call in _calls(one, number, texts, found[one.name], done.projections)]
    )
    kind = kind_of(model, calls)
    tokens, source = _texts(done, number, kind, calls, ids, text)
    facts = model.facts(calls, kind)
    keep = _keep(facts.part, calls, len(tokens), wanted)
    kept = tuple(own for own in (_kept(keep, call) for call in calls) if own is not None)
    predictions = _predictions(done, number, kind, tokens, wanted.predictions)
    gaps = (*done.gaps, *layers_without(model.module, found, done.gaps))
    return Recording(facts, tokens, kept, predictions, None, done.seconds, source, gaps=gaps)


def require_attention(done: Pass) -> None:
    """Refuse a pass in which no attention could be seen.

    Raises:
        InputError: naming what passed by, if anything did.
    """
    if done.executions:
        return
    name = type(done.model.module).__name__
    passed = ", ".join(dict.fromkeys(f"{gap.name or 'the model'} ({gap.what})" for gap in done.gaps[:3]))
    if passed:
        expected = "attention that passes the interface of transformers, or torch's scaled_dot_product_attention"
        way_out = "A model that computes its attention by itself cannot be recorded."
        given = f"{name}, in which it passes by: {passed}"
        raise InputError("the model", expected=expected, given=given, way_out=way_out)
    raise InputError(
        "the model",
        expected="one with attention",
        given=f"{name}, which has no attention: no softmax over scores was seen in the pass",
        way_out="A model of another kind, such as a recurrent one, has no weights of sources that could be recorded.",
    )


def kind_of(model: TransformersModel, calls: Sequence[Call]) -> str:
    """Return "decoder", "encoder" or "encoder-decoder", by the configuration and by what its attention may read."""
    if model.in_pairs:
        return "encoder-decoder"
    return "decoder" if any(call.part == "decoder" for call in calls) else "encoder"


def _calls(one: Execution, number: int, texts: int, place: Place, outputs: Mapping[str, Tensor]) -> Iterator[Call]:
    """Yield one text's share of an execution: a call, or one for each of the windows that it is cut into (Swin)."""
    each = max(1, len(one.q) // texts)
    for piece in range(each):
        at = number * each + piece if len(one.q) > 1 else 0
        yield _call(one, at, one.turn * each + piece, place, outputs)


def _call(one: Execution, at: int, repeat: int, place: Place, outputs: Mapping[str, Tensor]) -> Call:
    """Return what an execution computed for one entry of its batch."""
    weight = outputs.get(one.name)
    output = None
    if weight is not None:
        output = by_head(_plain(weight), one.q.shape[1])
    return Call(
        layer=place.layer,
        name=one.name,
        kind=place.kind,
        q=one.q[at],
        k=one.k[at],
        v=one.v[at],
        lse=one.lse[at],
        mask=one.masks[at if len(one.masks) > 1 else 0],
        scale=one.scale,
        kernel=one.kernel,
        checks=(one.checks[at if len(one.checks) > 1 else 0],),
        part=place.part,
        softcap=one.softcap,
        bias=None if one.bias is None else one.bias[at if len(one.bias) > 1 else 0],
        sinks=one.sinks,
        output=output,
        repeat=repeat,
    )


def _plain(weight: Tensor) -> Array:
    own = weight.detach().cpu()
    array: Array = (own.float() if own.dtype == torch.bfloat16 else own).numpy()
    return array


def _texts(
    done: Pass, number: int, kind: str, calls: Sequence[Call], ids: Tensor | None, text: str | None
) -> tuple[Tokens, Tokens | None]:
    """Return what the part that predicts read, and what an encoder read for it; numbered where it was no text."""
    if kind != "encoder-decoder":
        part = "encoder" if kind == "encoder" else "decoder"
        return _of_length(_read(done, ids, number, text, "attention_mask"), calls, part), None
    encoded = _rows(done.inputs.get("input_ids"))
    return (
        _of_length(_read(done, ids, number, None, "decoder_attention_mask"), calls, "decoder"),
        _of_length(_read(done, encoded, number, text, "attention_mask"), calls, "encoder"),
    )


def _of_length(tokens: Tokens | None, calls: Sequence[Call], part: str) -> Tokens:
    """Return tokens where a part's calls go over as many positions, else numbers."""
    own = [call for call in calls if call.part == part and call.kind == "self"] or list(calls)
    sizes = {call.destinations for call in own}
    if tokens is not None and (len(tokens) in sizes or not sizes):
        return tokens
    return numbered(max(sizes))


def _read(done: Pass, ids: Tensor | None, number: int, text: str | None, filled: str) -> Tokens | None:
    """Return one text's tokens of ids [B, T]; `filled` names the input that tells what only fills up the batch."""
    if ids is None:
        return None
    row = ids[number if len(ids) > 1 else 0].tolist()
    mask, pads = _rows(done.inputs.get(filled)), None
    if mask is not None and mask.shape[1] <= len(row):
        real = mask[number if len(mask) > 1 else 0].bool().tolist()
        pads = [not own for own in real] + [False] * (len(row) - len(real))
    images = image_grid(done.model.config, done.inputs, row) if _has_images(done.inputs) else None
    return tokens_of(done.model.tokenizer, row, text=text, pads=pads, images=images)


def _has_images(inputs: Mapping[str, Any]) -> bool:
    return any(name.startswith(("pixel_values", "image")) for name in inputs)


def _rows(value: Any) -> Tensor | None:
    """Return token ids or a padding mask as [B, T], where that is what they are."""
    if not isinstance(value, Tensor) or value.ndim != 2 or value.is_floating_point():
        return None
    return value.detach().cpu()


def _keep(part: str, calls: Sequence[Call], positions: int, wanted: Wanted) -> Keep:
    own = [call for call in calls if call.part == part]
    most = max((call.layer + 1 for call in own), default=0)
    heads = min((call.all_heads for call in own), default=0)
    return Keep(
        check_chosen("layer", wanted.layers, most),
        check_chosen("head", wanted.heads, heads),
        check_chosen("position", wanted.positions, positions),
        part,
    )


def _kept(keep: Keep, call: Call) -> Call | None:
    """Return what is kept of a call; of another tower all, unless layers or heads are chosen: they are not its own."""
    if call.part in (keep.part, "encoder"):
        return keep.of(call)
    return call if keep.layers is keep.heads is None else None


def _checked(model: TransformersModel, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of a pass, if the model takes them; a decoder reads on from its start mark."""
    inputs = dict(inputs)
    inputs.pop("labels", None)
    require_known(model.module, type(model.module).__name__, inputs)
    if inputs.get("output_attentions"):
        raise InputError(
            "output_attentions",
            expected="not to be asked for while recording",
            given="True",
            way_out="Leave it out: any weight is asked of the recording (wherefrom.weights, sources, readers).",
        )
    if inputs.get("return_dict") is False:
        way_out = "Leave it out: its predictions are read by their name."
        raise InputError("return_dict", expected="not to be switched off", given="False", way_out=way_out)
    for name in ("input_ids", "decoder_input_ids"):
        if inputs.get(name) is not None:
            check_ids(model, name, inputs[name])
    for name, value in inputs.items():
        if isinstance(value, Tensor) and value.device != model.device:
            raise _elsewhere(model, name, value)
    if "decoder_input_ids" not in inputs and model.in_pairs:
        start = getattr(model.config, "decoder_start_token_id", None)
        first = next((value for value in inputs.values() if isinstance(value, Tensor) and value.ndim), None)
        if start is not None and first is not None:
            inputs["decoder_input_ids"] = torch.full((len(first), 1), int(start), device=first.device)
    if model.accepts("use_cache") and not {"cache", "past_key_values"} & set(inputs):
        inputs.setdefault("use_cache", False)
    return inputs


def check_ids(model: TransformersModel, name: str, ids: Any, *, room: int = 0) -> None:
    """Refuse token ids that the model would fail on in words that help nobody.

    Args:
        model: that is to read them.
        name: of the input.
        ids: [B, T].
        room: how many tokens are to be written behind them.

    Raises:
        InputError: no such tensor, ids that the model does not have, more tokens than it has positions.
    """
    whole = isinstance(ids, Tensor) and not (ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool)
    if not whole or ids.ndim != 2 or not ids.numel():
        given = f"{ids.dtype} of shape {tuple(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__
        raise InputError(
            name,
            expected="a tensor of token ids [B, T], whole numbers, at least one",
            given=given,
            way_out=f"Write torch.tensor(...) of a list; of a single text {name}[None].",
        )
    if ids.device != model.device or ids.device.type == "meta":
        raise _elsewhere(model, name, ids)
    vocabulary = model.vocabulary
    if vocabulary and not bool(((ids >= 0) & (ids < vocabulary)).all()):
        wrong = ids[(ids < 0) | (ids >= vocabulary)][0]
        raise InputError(
            name,
            expected=f"numbers from 0 to {vocabulary - 1}",
            given=str(int(wrong)),
            way_out="Use the tokenizer that belongs to the model.",
        )
    if model.learnt_positions and ids.shape[1] + room > model.learnt_positions:
        raise InputError(
            "the text",
            expected=f"at most {model.learnt_positions:,} tokens (the positions that {model.name} has learnt)",
            given=f"{ids.shape[1]:,}" + (f" and room for {room:,} more" if room else ""),
            way_out="Shorten it, or use a model with a longer context.",
        )


def _elsewhere(model: TransformersModel, name: str, value: Tensor) -> InputError:
    if model.device.type == "meta":
        way_out = "Load it with its weights; a model on the meta device has none."
        return InputError("the model", expected="weights", given="none: it is on the meta device", way_out=way_out)
    return InputError(
        name,
        expected=f"a tensor on the model's device, {model.device}",
        given=f"one on {value.device}",
        way_out="Move them: inputs.to(model.device).",
    )


def _without_waste(model: TransformersModel, inputs: dict[str, Any], wanted: Wanted) -> dict[str, Any]:
    """Return inputs that have the model form the last position's logits only, where no others are kept."""
    ids, mask = inputs.get("input_ids"), inputs.get("attention_mask")
    last = isinstance(wanted.predictions, str) and wanted.predictions == "last"
    if not last or not isinstance(ids, Tensor) or model.in_pairs:
        return inputs
    filled = isinstance(mask, Tensor) and mask.ndim == 2 and not bool(mask[:, -1].all())
    if filled or not model.accepts("logits_to_keep") or "logits_to_keep" in inputs:
        return inputs
    return {**inputs, "logits_to_keep": 1}


def _predictions(done: Pass, number: int, kind: str, tokens: Tokens, asked: Predictions) -> tuple[Prediction, ...]:
    """Return what the model expected, at the positions that are asked for; nothing of a model that chooses no token."""
    rows = _predicting(done, number, kind, tokens, asked)
    logits = getattr(done.outputs, "logits", None)
    if not isinstance(logits, Tensor) or logits.ndim != 3 or logits.shape[-1] < max(done.model.vocabulary, 2):
        return ()
    first = len(tokens) - logits.shape[1]  # of the position whose logits come first
    rows = [row for row in rows if row >= first]
    came = () if kind == "encoder" else tokens.ids
    label = label_of(done.model.tokenizer)
    kept: list[Prediction] = []
    own = logits[number].detach()
    for start in range(0, len(rows), ROWS_AT_ONCE):
        part = rows[start : start + ROWS_AT_ONCE]
        kept += predictions_of(own[[row - first for row in part]].cpu(), part, came, label)
    return tuple(kept)


def _predicting(done: Pass, number: int, kind: str, tokens: Tokens, asked: Predictions) -> list[int]:
    """Return the positions whose predictions are kept; positions that only fill up a batch are none."""
    if isinstance(asked, str):
        if asked not in ("last", "all"):
            way_out = "Keep what the model expected after the last position only, or after every one."
            raise InputError("predictions", expected='"last" or "all"', given=repr(asked), way_out=way_out)
        mask = _rows(done.inputs.get("decoder_attention_mask" if kind == "encoder-decoder" else "attention_mask"))
        real = list(range(len(tokens)))
        if mask is not None and mask.shape[1] == len(tokens):
            real = np.flatnonzero(mask[number].numpy()).tolist()
        if asked == "all" or kind != "encoder":
            return real if asked == "all" else real[-1:]
        masked = getattr(done.model.tokenizer, "mask_token_id", None)
        return [position for position in real if masked is not None and tokens.ids[position] == masked]
    listed = check_items("predictions", asked, expected='"last", "all" or positions', way_out="One is (3,).")
    return sorted({check_index("position", position, len(tokens)) for position in listed})


def alone(found: tuple[Recording, ...]) -> Recording:
    """Return the only recording, or say how several are had.

    Raises:
        InputError: a batch of several texts.
    """
    if len(found) == 1:
        return found[0]
    raise InputError(
        "the inputs",
        expected="one text",
        given=f"a batch of {len(found)}",
        way_out="Use wherefrom.record_batch(model, ...): it returns a recording for each text.",
    )
