"""Recording what a transformers model writes (floor 3): every step with its cache, as one map of absolute positions.

With a cache a module runs once for each token; its rows stand one behind the other, and of its keys each step brings
those of its own rows, whatever the cache does with the older ones (a sliding cache drops or overwrites them). Row t - 1
wrote token t: one token more than wanted is written and thrown away, so that the last wanted one has its row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wherefrom.capture.fused import Attended
from wherefrom.capture.huggingface.collected import Execution, checked, samples_of
from wherefrom.capture.huggingface.model import TransformersModel
from wherefrom.capture.huggingface.own_words import in_its_own_words
from wherefrom.capture.huggingface.recorded import Pass, check_ids, recording_of_steps, watching
from wherefrom.capture.huggingface.seen import Given
from wherefrom.capture.huggingface.sites import places
from wherefrom.capture.huggingface.texts import end_ids
from wherefrom.errors import InputError, RecordingError
from wherefrom.mask import Mask
from wherefrom.recording import Array, Check, Recording

UNSUPPORTED = {
    "num_beams": 1,
    "num_return_sequences": 1,
    "num_beam_groups": 1,
    "assistant_model": None,
    "prompt_lookup_num_tokens": None,
    "min_length": 0,
    "min_new_tokens": None,
    "constraints": None,
    "use_cache": True,
}
"""What `generate` may be asked for that a recording cannot follow, with the value that asks for nothing."""
OURS = (
    "max_new_tokens",
    "max_length",
    "eos_token_id",
    "stopping_criteria",
    "return_dict_in_generate",
    "output_logits",
)
"""Options that the recording gives itself."""


@dataclass
class _Grown:
    """What one module read so far: its rows one behind the other, and the keys of every position."""

    cross: bool
    first: Given
    kernel: str
    q: list[Tensor] = field(default_factory=list)
    lse: list[Tensor] = field(default_factory=list)
    k: list[Tensor] = field(default_factory=list)
    v: list[Tensor] = field(default_factory=list)
    steps: list[tuple[int, int, Mask]] = field(default_factory=list)  # first row, first column, the step's own rule
    biases: list[Tensor | None] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    rows: int = 0
    columns: int = 0


class Growing:
    """An attention function that joins the steps of a generation: one text, a cache, rows that follow one another."""

    def __init__(self, model: TransformersModel) -> None:
        self._model = model
        self._modules: dict[tuple[str, int], _Grown] = {}

    @torch.no_grad()
    def keep(self, given: Given, attended: Attended) -> None:
        """Keep the rows of a step, and the keys that came with them.

        Raises:
            RecordingError: a self-check failed; a batch; rows that do not follow those before.
        """
        if len(attended.output) != 1:
            raise RecordingError(
                f"a step of {given.name}",
                expected="one text",
                given=f"a batch of {len(attended.output)}",
                way_out="Record the generation of one text at a time.",
            )
        grown = self._modules.get((given.name, given.turn))
        if grown is None:
            cross = places(self._model.module, [given.name])[given.name].kind == "cross"
            grown = self._modules[given.name, given.turn] = _Grown(cross, given, attended.kernel)
        q, k, v, lse = (x.detach().cpu() for x in (given.q, given.k, given.v, attended.lse))
        bias = given.readable.bias
        bias = None if bias is None else bias.detach().float().cpu().expand(1, -1, q.shape[2], k.shape[2])
        sinks = None if given.sinks is None else given.sinks.detach().float().cpu()
        grown.checks += checked(samples_of(given, attended, bias, sinks), q, k, v, lse)
        self._grow(grown, given, q, k, v)
        grown.lse.append(lse.clone())
        grown.biases.append(None if bias is None else bias.clone())

    def _grow(self, grown: _Grown, given: Given, q: Tensor, k: Tensor, v: Tensor) -> None:
        length, sources = q.shape[2], k.shape[2]
        if grown.cross:
            if not grown.k:
                grown.k, grown.v, grown.columns = [k.clone()], [v.clone()], sources
            first_column, first_row = 0, grown.rows
        else:
            first_row = grown.rows
            first_column = _first_column(given, first_row, length, sources)
            new = slice(first_row - first_column, first_row - first_column + length)
            if grown.columns != first_row or new.start < 0 or new.stop > sources:
                raise RecordingError(
                    f"a step of {given.name}",
                    expected=f"rows from position {grown.columns} on, with their keys",
                    given=f"{length} rows on {sources} keys from position {first_column} on",
                    way_out="Its cache is of a kind that cannot be followed: write with use_cache=False, or record the "
                    "finished text in one pass.",
                    name=given.name,
                )
            grown.k.append(k[:, :, new].clone())  # some caches overwrite their memory at the next step
            grown.v.append(v[:, :, new].clone())
            grown.columns += length
        grown.steps.append((first_row, first_column, given.readable.masks[0]))
        grown.q.append(q.clone())
        grown.rows += length

    def executions(self) -> list[Execution]:
        """Return one execution for each module, over all positions."""
        return [_joined(name, turn, grown) for (name, turn), grown in self._modules.items()]


def _first_column(given: Given, first_row: int, length: int, sources: int) -> int:
    """Return the position of the first key: as the mask tells it, else that of keys that end with the step's own."""
    row, column = given.readable.offsets
    if (row, column) != (0, 0) and row == first_row:
        return column
    return max(0, first_row + length - sources)


def _joined(name: str, turn: int, grown: _Grown) -> Execution:
    q, k, v = (_array(torch.cat(parts, dim=2)) for parts in (grown.q, grown.k, grown.v))
    lse = _array(torch.cat(grown.lse, dim=2))
    given = grown.first
    mask = _one_mask(grown, k.shape[2])
    sinks = None if given.sinks is None else _array(given.sinks.detach().float().cpu())
    return Execution(
        name=name,
        turn=turn,
        q=q,
        k=k,
        v=v,
        lse=lse,
        masks=(mask,),
        bias=_one_bias(grown, k.shape[2]),
        sinks=sinks,
        scale=given.scale,
        softcap=given.softcap,
        kernel=grown.kernel,
        checks=tuple(grown.checks),
    )


def _one_mask(grown: _Grown, sources: int) -> Mask:
    """Return the rule of all rows: that of the first step if it says what every step did, else the steps' own rows."""
    first = grown.steps[0][2]
    rule = _continued(first, grown, sources)
    if rule is not None and all(_says(rule, step, length, sources) for step, length in _lengths(grown)):
        return rule
    heads = max(
        (
            step[2].explicit.shape[0]
            for step in grown.steps
            if step[2].explicit is not None and step[2].explicit.ndim == 3
        ),
        default=0,
    )
    shape = (heads, grown.rows, sources) if heads else (grown.rows, sources)
    whole = np.zeros(shape, np.bool_)
    for (row, column, mask), length in _lengths(grown):
        width = min(sources - column, _width(grown, column, row, length))
        whole[..., row : row + length, column : column + width] = mask.permitted(range(length), range(width))
    return Mask(causal=False, explicit=whole)


def _lengths(grown: _Grown) -> list[tuple[tuple[int, int, Mask], int]]:
    return [(step, q.shape[2]) for step, q in zip(grown.steps, grown.q, strict=True)]


def _width(grown: _Grown, column: int, row: int, length: int) -> int:
    """Return how many keys a step had that are positions of the text."""
    return grown.columns if grown.cross else row + length - column


def _continued(first: Mask, grown: _Grown, sources: int) -> Mask | None:
    """Return the first step's rule for all columns: positions that came later are none that only fill up."""
    if first.explicit is not None or first.offset:
        return None
    padding = first.padding
    if padding is not None:
        later = np.ones(max(0, sources - len(padding)), np.bool_)
        padding = np.concatenate([padding[:sources], later])
    causal = first.causal or (not grown.cross and len(grown.steps) > 1)
    # a step that lies within the window has no need to name it: then the keys that its cache still has tell it
    told = [mask.window for _, _, mask in grown.steps if mask.window is not None]
    kept = [row + 1 - column for row, column, _ in grown.steps if column]
    window = next(iter(told + kept), None)
    return Mask(causal=causal, window=window, padding=padding)


def _says(rule: Mask, step: tuple[int, int, Mask], length: int, sources: int) -> bool:
    """Whether a rule permits a step's rows what the step permitted them, and nothing of the positions it had not."""
    row, column, mask = step
    columns = range(sources)
    said = rule.permitted(range(row, row + length), columns)
    done = np.zeros(said.shape, np.bool_)
    stop = sources if not rule.causal else min(sources, row + length)
    done[..., column:stop] = mask.permitted(range(length), range(stop - column))
    return bool(np.array_equal(said, done))


def _one_bias(grown: _Grown, sources: int) -> Array | None:
    if all(bias is None for bias in grown.biases):
        return None
    heads = max(bias.shape[1] for bias in grown.biases if bias is not None)
    whole = np.zeros((1, heads, grown.rows, sources), np.float32)
    for (row, column, _), bias in zip(grown.steps, grown.biases, strict=True):
        if bias is not None:
            width = min(bias.shape[3], sources - column)
            whole[:, :, row : row + bias.shape[2], column : column + width] = bias[..., :width].numpy()
    whole.setflags(write=False)
    return whole


def _array(x: Tensor) -> Array:
    array: Array = (x.float() if x.dtype == torch.bfloat16 else x).contiguous().numpy()
    array.setflags(write=False)
    return array


def record_written(
    model: TransformersModel,
    inputs: Mapping[str, Any],
    *,
    max_tokens: int,
    stop_ids: Collection[int] | None = None,
    text: str | None = None,
    options: Mapping[str, Any] | None = None,
    on_call: Callable[[int], None] | None = None,
) -> Recording:
    """Return the recording of a prompt and of what the model writes behind it, token by token, as one map.

    Args:
        model: one that writes.
        inputs: what `generate` reads, such as ``input_ids`` and ``attention_mask``, of one text.
        max_tokens: at most so many tokens are written, at least 1.
        stop_ids: writing ends behind one of these; the model's own end-of-text tokens unless given.
        text: what the ids are the tokens of, where that is known.
        options: further options of `generate`, such as ``do_sample`` and ``cache_implementation``.
        on_call: told the number of executions done.

    Raises:
        InputError: a model that writes nothing, several texts, beams, or other options that cannot be followed.
        RecordingError: a self-check failed, or the cache is of a kind that cannot be followed.
    """
    from transformers import ForcedEOSTokenLogitsProcessor, LogitsProcessorList, StoppingCriteriaList

    options = _checked_options(model, inputs, options or {}, max_tokens)
    ends = frozenset(end_ids(model.module, model.tokenizer) if stop_ids is None else stop_ids)
    growing, done, first = Growing(model), Pass(model, inputs), _begun(model, inputs)
    told, generate = 0, getattr(model.module, "generate")  # noqa: B009  # of transformers, not of torch

    def keep(given: Given, attended: Attended) -> None:
        nonlocal told
        growing.keep(given, attended)
        told += 1
        if on_call is not None:
            on_call(told)

    forced = getattr(getattr(model.module, "generation_config", None), "forced_eos_token_id", None)
    rules = list(options.pop("logits_processor", ()))
    if forced is not None:  # what a text that may not be longer ends with; the token thrown away is no part of it
        rules.append(ForcedEOSTokenLogitsProcessor(first + max_tokens, forced, device=str(model.device)))
    with torch.no_grad(), watching(done, keep), in_its_own_words(model):
        written = generate(
            **inputs,
            **options,
            max_new_tokens=max_tokens + 1,
            forced_eos_token_id=None,
            logits_processor=LogitsProcessorList(rules),
            eos_token_id=max(model.vocabulary, 1),  # no token: what ends the text is looked for here
            stopping_criteria=StoppingCriteriaList([_OneLater(first, ends)]),
            return_dict_in_generate=True,
            output_logits=True,
        )
    done.executions = growing.executions()
    ids = written.sequences[0, :-1].tolist()
    return recording_of_steps(done, ids, first, [logits[0] for logits in written.logits], text)


class _OneLater:
    """Stops a generation one token behind its last: the token behind it is thrown away, its step gave the last row."""

    def __init__(self, first: int, ends: Collection[int]) -> None:
        self._first, self._ends = first, torch.tensor(sorted(ends), dtype=torch.long)

    def __call__(self, ids: Tensor, scores: Any, **_: Any) -> Tensor:
        """Return which texts are done, bool [B]."""
        before = ids[:, self._first : -1]
        return torch.isin(before, self._ends.to(ids.device)).any(dim=-1)


def _begun(model: TransformersModel, inputs: Mapping[str, Any]) -> int:
    """Return how many tokens stand in `generate`'s answer before the first one it wrote."""
    ids = inputs.get("decoder_input_ids") if model.in_pairs else inputs.get("input_ids")
    return 1 if ids is None else int(ids.shape[1])


def _checked_options(
    model: TransformersModel, inputs: Mapping[str, Any], options: Mapping[str, Any], max_tokens: int
) -> dict[str, Any]:
    """Return options that a recording can follow, or refuse them by name."""
    can = getattr(model.module, "can_generate", None)
    if can is None or not can():
        raise InputError(
            "the model",
            expected="one that writes text",
            given=f"{type(model.module).__name__}, which writes nothing",
            way_out="Load it with its language-model head, such as AutoModelForCausalLM, or record a pass.",
        )
    defaults = getattr(model.module, "generation_config", None)
    for name, nothing in UNSUPPORTED.items():
        asked = options.get(name, getattr(defaults, name, None))
        if asked not in (None, nothing, 0 if name == "min_new_tokens" else nothing):
            way_out = (
                "Write greedily or sample one text with a cache; beams jump between texts, whose rows are no one map."
            )
            raise InputError(f"the option {name}", expected=f"{nothing}", given=f"{asked}"[:60], way_out=way_out)
    for name in OURS:
        if name in options:
            way_out = "Give max_tokens, and stop_ids for the tokens that end the text; what is returned is a recording."
            raise InputError(f"the option {name}", expected="none", given="one", way_out=way_out)
    written_to = "decoder_input_ids" if model.in_pairs else "input_ids"
    if inputs.get(written_to) is not None:
        check_ids(model, written_to, inputs[written_to], room=max_tokens)
    for name, value in inputs.items():
        if isinstance(value, Tensor) and name in ("input_ids", "decoder_input_ids") and len(value) != 1:
            way_out = "Record the generation of one text at a time."
            raise InputError("the inputs", expected="one text", given=f"a batch of {len(value)}", way_out=way_out)
    return dict(options)
