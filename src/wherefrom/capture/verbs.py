"""The verbs of recording (floor 3): of the project's own models, of any model of transformers, of any module of torch.

What is given tells which: `wherefrom.load` makes the first; anything that is a module of torch is one of the others.
Nothing of transformers is imported for the first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from wherefrom.capture import native
from wherefrom.checks import whole
from wherefrom.errors import InputError
from wherefrom.model.generate import MOST, Sampling
from wherefrom.model.language import LanguageModel, require_model, require_text
from wherefrom.recording import Recording, open_recording, save_recording
from wherefrom.recording.layout import folder_of
from wherefrom.tokens import Tokens

if TYPE_CHECKING:
    from wherefrom.capture.huggingface.model import TransformersModel

OWN_OPTIONS = "A model of wherefrom.load takes a text alone."


def record(
    model: Any,
    text: Any = None,
    *,
    tokenizer: Any = None,
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
    **inputs: Any,
) -> Recording:
    """Return the recording of one pass over a text: every call's q, k, v and lse, checked, in memory or in a file.

    A recording grows linearly with the text. Of a model of `wherefrom.load` its size is known before
    (`wherefrom.forecast`), and a file is written call by call while the model runs, so that the memory needed does not
    grow with the number of layers; that of a model of transformers is written when the pass is over.

    Args:
        model: from `wherefrom.load`; or a model of transformers, as it is; or any other module of torch that is built
            on `torch.nn.MultiheadAttention` or `torch.nn.functional.scaled_dot_product_attention`.
        text: the prompt, or its tokens; with an encoder beside the decoder, the text that the encoder reads. Also
            chat messages, written out by the model's template; for a model of transformers, a mapping of its inputs,
            such as a tokenizer returns.
        tokenizer: of a model of transformers: reads the text, and gives the labels. Without it give `input_ids`.
        written: with an encoder, the text that the decoder has written so far, or its tokens, start mark included.
        predictions: keep what the model expected after the last position only ("last"), after every one ("all"), or
            after some, by number; in an encoder at its masked positions only, at every one, or at some. An encoder
            without a head predicts nothing.
        layers: keep only these; all unless given.
        heads: keep only these heads of each layer, and the keys and values that they read; all unless given.
        positions: keep only these as destinations, of the part that predicts; all unless given. Their rows of weights
            stay exact, as every source's key and value is kept.
        to: the path of the file (a folder, by custom NAME.wherefrom), where one is wanted; what is returned then
            looks into it, as `wherefrom.open_recording` does.
        store: for a file, "float16" or "bfloat16" to round q, k and v; the error that this makes is measured and kept.
        output: for a file, keep each layer's output projection too: "moved" needs it.
        overwrite: replace a recording that is at `to`.
        progress: called after each call of attention with (calls done, calls in all).
        inputs: what a model of transformers, or another module, is called with: ``input_ids=...``.

    Raises:
        InputError: the prompt is no text, empty, blank, or longer than the model's context; tokens that are not this
            model's; predictions that are neither "last" nor "all" nor positions; a layer, head or position out of
            range, or none; a recording larger than the memory that is free; inputs that the model does not take, or a
            batch (see `record_batch`); a model without attention that can be seen.
        RecordingError: a kernel's output or lse failed the self-check, or a query or key is not finite: layer and error
            are named. Or the file cannot be written: something is there, another process writes there, the disk is
            full.
    """
    how: dict[str, Any] = {"layers": layers, "heads": heads, "positions": positions}
    if isinstance(model, LanguageModel) or not is_module(model):
        _refuse_inputs(tokenizer, inputs)
        return native.record(
            model,
            text,
            written=written,
            predictions=predictions,
            to=to,
            store=store,
            output=output,
            overwrite=overwrite,
            progress=progress,
            **how,
        )
    from wherefrom.capture.huggingface.recorded import Wanted, alone, record_pass

    if store is not None and to is None:
        way_out = "Give the path of a file (to=...), or leave it out."
        raise InputError("store", expected="none for a recording in memory", given=repr(store), way_out=way_out)
    asked, known = inputs_of(model, tokenizer, text, written, inputs)
    wanted = Wanted(predictions, **how)
    made = alone(record_pass(asked, known.inputs, wanted, text=known.text, on_call=counter(asked, progress)))
    return _in_file(made, to, store=store, output=output, overwrite=overwrite)


def record_batch(
    model: Any,
    text: Any = None,
    *,
    tokenizer: Any = None,
    predictions: Literal["last", "all"] | Sequence[int] = "last",
    layers: Iterable[int] | None = None,
    heads: Iterable[int] | None = None,
    positions: Iterable[int] | None = None,
    progress: Callable[[int, int], None] | None = None,
    **inputs: Any,
) -> tuple[Recording, ...]:
    """Return a recording of each text of a batch, made in one pass of a model of transformers.

    Positions that only fill a text up to the length of the longest stay in its recording, labelled as such; nobody else
    reads them, and a row that may read nothing is empty.

    Args:
        model: of transformers, or another module of torch; see `record`, as for all the others.
        text: a list of texts (or of their tokens), which are filled up on the tokenizer's padding side; or a mapping
            of inputs, such as a tokenizer returns of several texts with ``padding=True``.
        tokenizer: reads the texts, and gives the labels.
        predictions: as in `record`, for each text.
        layers: keep only these.
        heads: keep only these.
        positions: keep only these.
        progress: called after each call of attention.
        inputs: what the model is called with.

    Raises:
        InputError: as in `record`.
        RecordingError: as in `record`.
    """
    if isinstance(model, LanguageModel) or not is_module(model):
        require_model(model)
        way_out = "Record its texts one by one: wherefrom.record(model, text)."
        raise InputError("the model", expected="one of transformers", given=f"{model!r}", way_out=way_out)
    from wherefrom.capture.huggingface.model import as_transformers_model
    from wherefrom.capture.huggingface.recorded import Wanted, record_pass

    asked = as_transformers_model(model, tokenizer)
    _refuse_of_one(asked, inputs)
    wanted, on_call = Wanted(predictions, layers, heads, positions), counter(asked, progress)
    if _is_batch(text):
        read, texts = _batch(asked, text, inputs)
        return record_pass(asked, read, wanted, text=texts, on_call=on_call)
    known = _named(asked, text, dict(inputs))
    return record_pass(asked, known.inputs, wanted, text=known.text, on_call=on_call)


def record_generation(
    model: Any,
    text: Any = None,
    *,
    tokenizer: Any = None,
    max_tokens: int | None = None,
    sampling: Sampling | None = None,
    stop: str | Sequence[str] = (),
    stop_ids: Collection[int] | None = None,
    to: str | Path | None = None,
    store: str | None = None,
    output: bool = True,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
    **inputs: Any,
) -> Recording:
    """Return the recording of a prompt and of what the model writes after it, token by token with a cache, as one map.

    The last token written is read too, so that the map has a row for every token. Row t - 1 wrote token t;
    `Recording.written_from` is the position of the first written token.

    Args:
        model: from `wherefrom.load`, or a model of transformers.
        text: the prompt; with an encoder, the text that it reads; for a model of transformers also chat messages, or
            a mapping of inputs.
        tokenizer: of a model of transformers.
        max_tokens: at most so many tokens are written, at least 1; 50, or as many as fit, unless given.
        sampling: greedy unless given; of a model of transformers give its own options instead (``do_sample=True``).
        stop: strings that end the text; the tokens that spell one are in the recording. Not for transformers.
        stop_ids: writing ends after one of these; the model's end-of-text tokens unless given.
        to: the path of a file, written when the text is; see `record`, as for the next three.
        store: round q, k and v in the file.
        output: keep the output projections in the file.
        overwrite: replace a recording that is there.
        progress: of a model of transformers, called after each call of attention with (calls done, 0).
        inputs: what a model of transformers writes from (``input_ids=...``), and options of its ``generate``, such as
            ``cache_implementation="static"``.

    Raises:
        InputError: the prompt is empty, blank, or longer than the context with room for `max_tokens`; a recording
            larger than the memory that is free; a model that writes nothing; beams, or several texts.
        RecordingError: a kernel's output or lse failed the self-check.
    """
    if isinstance(model, LanguageModel) or not is_module(model):
        _refuse_inputs(tokenizer, inputs)
        own: dict[str, Any] = {"to": to, "store": store, "output": output, "overwrite": overwrite}
        return native.record_generation(
            model, text, max_tokens=max_tokens, sampling=sampling, stop=stop, stop_ids=stop_ids, **own
        )
    from wherefrom.capture.huggingface.written import record_written

    for name, value, nothing in (("sampling", sampling, None), ("stop", tuple(stop), ())):
        if value != nothing:
            way_out = "Give the options of its generate instead: do_sample=True, temperature=0.8, stop_ids=(13,)."
            raise InputError(name, expected="none for a model of transformers", given=repr(value), way_out=way_out)
    read = {name: inputs.pop(name) for name in list(inputs) if _is_input(name, inputs[name])}
    asked, known = inputs_of(model, tokenizer, text, None, read)
    most = whole("max_tokens", MOST if max_tokens is None else max_tokens, least=1, way_out="It is a number of tokens.")
    told = None if progress is None else lambda done: progress(done, 0)
    made = record_written(
        asked, known.inputs, max_tokens=most, stop_ids=stop_ids, text=known.text, options=inputs, on_call=told
    )
    return _in_file(made, to, store=store, output=output, overwrite=overwrite)


IN_FILES = "Save each recording of the batch: wherefrom.save_recording(recording, path)."
OF_ONE = {
    **dict.fromkeys(("to", "store", "output", "overwrite"), IN_FILES),
    "written": "Of a text that is written, wherefrom.record alone makes a recording; or give decoder_input_ids.",
}
"""What `record` takes and `record_batch` does not, and what there is instead."""


def _refuse_of_one(model: TransformersModel, inputs: Mapping[str, Any]) -> None:
    for name in inputs:
        if name in OF_ONE and not model.accepts(name):
            raise InputError(name, expected="none for a batch", given="one", way_out=OF_ONE[name])


class Known:
    """The inputs of a model of transformers, and the text that its ids are the tokens of, where that is known."""

    def __init__(self, inputs: dict[str, Any], text: str | None = None) -> None:
        self.inputs, self.text = inputs, text


def inputs_of(
    model: Any, tokenizer: Any, text: Any, written: Any, inputs: Mapping[str, Any]
) -> tuple[TransformersModel, Known]:
    """Return a model of transformers with its tokenizer, and what it is to be called with."""
    from wherefrom.capture.huggingface.model import as_transformers_model

    asked = as_transformers_model(model, tokenizer)
    known = _named(asked, text, dict(inputs))
    if written is not None:
        known.inputs["decoder_input_ids"] = _written_ids(asked, written)
    return asked, known


def _is_batch(text: Any) -> bool:
    """Whether something is a list of texts, and no list of chat messages."""
    return isinstance(text, (list, tuple)) and not any(isinstance(one, Mapping) for one in text)


def _batch(
    model: TransformersModel, given: Sequence[Any], inputs: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Return what a model is called with to read several texts, filled up to the length of the longest, and them."""
    from wherefrom.capture.huggingface.texts import encode, together

    if not given:
        way_out = "Give at least one text."
        raise InputError("what to record", expected="a text or inputs", given="an empty list", way_out=way_out)
    if not all(isinstance(one, Tokens) for one in given):
        _require_tokenizer(model)
    _require_reader(model)
    _refuse_ids_beside(inputs)
    tokens: list[Tokens] = []
    for number, one in enumerate(given):
        if not isinstance(one, Tokens):
            require_text(one, f"text {number}")
        tokens.append(one if isinstance(one, Tokens) else encode(model.tokenizer, one))
    ids, mask = (torch.tensor(rows, device=model.device) for rows in together(model.tokenizer, tokens))
    own: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
    if model.learnt_positions and model.accepts("position_ids") and not bool(mask[:, 0].all()):
        own["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)  # as without what fills them up before their beginning
    return {**own, **inputs}, [one.text for one in tokens]


def _named(model: TransformersModel, text: Any, inputs: dict[str, Any]) -> Known:
    if text is None:
        if not inputs:
            way_out = "Give a text with its tokenizer, or what the model is called with: input_ids=..."
            raise InputError("what to record", expected="a text or inputs", given="neither", way_out=way_out)
        return Known(inputs)
    if isinstance(text, Tensor):
        return Known({next(iter(model.accepted), "input_ids"): text, **inputs})
    if isinstance(text, Mapping) and "role" in text:
        way_out = "Put the message into a list: [message]."
        raise InputError("the chat messages", expected="a list of messages", given="a single one", way_out=way_out)
    if isinstance(text, Mapping) or (hasattr(text, "data") and isinstance(getattr(text, "data", None), Mapping)):
        return Known({**dict(text), **inputs})
    if _is_batch(text) and text and all(isinstance(one, str | Tokens) for one in text):
        way_out = "Use wherefrom.record_batch(model, texts, tokenizer=tokenizer): it returns a recording for each text."
        raise InputError("the text", expected="one text", given=f"a list of {len(text)}", way_out=way_out)
    if not isinstance(text, Tokens):
        _require_tokenizer(model)
    _require_reader(model)
    _refuse_ids_beside(inputs)
    tokens = _tokens(model, text)
    ids = torch.tensor([tokens.ids], device=model.device)
    own = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    for name in model.unknown(own):  # some models know no padding
        own.pop(name)
    return Known({**own, **inputs}, tokens.text)


def _tokens(model: TransformersModel, text: Any) -> Tokens:
    """Return the tokens of a text or of chat messages."""
    from wherefrom.capture.huggingface.texts import chat, encode

    if isinstance(text, Tokens):
        return text
    if not isinstance(text, str):
        return chat(model.tokenizer, text)
    require_text(text)
    return encode(model.tokenizer, text)


def _require_tokenizer(model: TransformersModel) -> None:
    if model.tokenizer is None:
        raise InputError(
            "the tokenizer",
            expected="that of the model, to read a text",
            given="none",
            way_out="Give it: wherefrom.record(model, text, tokenizer=tokenizer); or give input_ids.",
        )


def _refuse_ids_beside(inputs: Mapping[str, Any]) -> None:
    if "input_ids" in inputs:
        way_out = "Leave the text out, or the ids."
        raise InputError("what to record", expected="a text or input_ids", given="both", way_out=way_out)


def _require_reader(model: TransformersModel) -> None:
    """Refuse a text for a model that reads none."""
    main = getattr(model.module, "main_input_name", "input_ids")
    if main != "input_ids" and not model.accepts("input_ids"):
        raise InputError(
            "what to record",
            expected=f"what {type(model.module).__name__} reads, {main}",
            given="a text",
            way_out=f"Give its inputs, as its processor makes them: wherefrom.record(model, {main}=...).",
        )


def _written_ids(model: TransformersModel, written: Any) -> Tensor:
    """Return what the decoder of an encoder-decoder has read: its start mark and what is written."""
    if not model.in_pairs:
        raise InputError(
            "the written text",
            expected="none",
            given=f"one, for {model.name}, which reads one text only",
            way_out="Write it behind the prompt instead.",
        )
    if isinstance(written, Tokens):
        return torch.tensor([written.ids], device=model.device)
    require_text(written, "the written text")
    if model.tokenizer is None:
        way_out = "Give it (tokenizer=...), or give decoder_input_ids."
        raise InputError("the tokenizer", expected="that of the model", given="none", way_out=way_out)
    start = getattr(model.config, "decoder_start_token_id", None) or 0
    ids = model.tokenizer(written, add_special_tokens=False)["input_ids"]
    return torch.tensor([[int(start), *ids]], device=model.device)


def _is_input(name: str, value: Any) -> bool:
    """Whether a keyword of `record_generation` is something the model reads, and no option of its writing."""
    return isinstance(value, Tensor) or name.endswith(("_ids", "_mask", "_values", "_features"))


def is_module(model: Any) -> bool:
    """Whether a model is of transformers, or another module; nothing is imported to find out."""
    known = sys.modules.get("wherefrom.capture.huggingface.model")
    return isinstance(model, torch.nn.Module) or (known is not None and isinstance(model, known.TransformersModel))


def _refuse_inputs(tokenizer: Any, inputs: Mapping[str, Any]) -> None:
    named = [*(["tokenizer"] if tokenizer is not None else []), *inputs]
    if named:
        raise InputError(named[0], expected="none for this model", given="one", way_out=OWN_OPTIONS)


def counter(model: TransformersModel, progress: Callable[[int, int], None] | None) -> Callable[[int], None] | None:
    """Return what tells somebody who waits; how many calls there will be is known of no model before it ran."""
    if progress is None:
        return None
    layers = int(getattr(model.text_config, "num_hidden_layers", 0) or 0)
    return lambda done: progress(done, max(layers, done))


def _in_file(made: Recording, to: Any, *, store: str | None, output: bool, overwrite: bool) -> Recording:
    if to is None:
        return made
    from dataclasses import replace

    kept = made if output else replace(made, calls=tuple(replace(call, output=None) for call in made.calls))
    return open_recording(save_recording(kept, folder_of(to), store=store, overwrite=overwrite))
