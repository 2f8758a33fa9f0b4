"""Small random models of transformers' config types: what is recorded of them against their own eager attention.

The default run takes a choice of types that has every feature of attention that transformers knows. All types, about
ten minutes on two cores: `WHEREFROM_CENSUS=all python -m pytest tests/test_hf_census.py`. One of them, in a line:
`python -m tests.census --only llama`.
"""

from __future__ import annotations

import os
import re
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from census.__main__ import in_processes
from census.cases import WEIGHTS_AGREE, Result, cases, examine, types
from census.compared import apart, difference, record
from census.inputs import Found
from census.reference import eager
from census.table import PAGE, cells, head, kind_of, line, row
from wherefrom.attention import Mask
from wherefrom.capture.huggingface.seen import Seen

WITH = {
    "albert": "layers that share their weights: one module in several turns",
    "bart": "cross-attention",
    "bert": "everything may be read",
    "bloom": "all attention passes by",
    "bridgetower": "multi-head attention of torch beside",
    "clip": "two towers, a text of its own mask",
    "deepseek_v3": "MLA: key heads made of a latent; values of another size",
    "deepseek_v32": "sparse indices",
    "deepseek_v4": "a mask of floats that the model extends",
    "diffllama": "two halves of the values, two turns a layer",
    "gemma2": "softcap, and windows in every second layer",
    "gemma3n_text": "layers that read the keys of others",
    "glm4v": "images in a loop",
    "gpt2": "heads without groups, Conv1D",
    "gpt_bigcode": "one key head for all",
    "gpt_oss": "sinks, windows, mixture of experts",
    "granite_swa": "sinks, and eager weights without their share",
    "grounding-dino": "an eager reference that adds a mask of bools",
    "jamba": "Mamba, attention and experts",
    "kosmos_2_5_vision_model": "eager attention whatever it is told",
    "lfm2": "convolutions between",
    "llama": "grouped heads",
    "llama4_text": "chunks",
    "longt5": "local attention of its own, cross-attention of the interface",
    "mamba": "no attention",
    "mistral": "windows",
    "mixtral": "mixture of experts",
    "modernbert": "windows on both sides",
    "nemotron_h": "one kind of layer each",
    "opt": "learned positions",
    "paligemma": "an image read both ways, a text after it; eager and sdpa differ",
    "parakeet_encoder": "relative positions in the mask",
    "pix2struct_text_model": "a bias by relative positions",
    "qwen2_5_vl": "images in the text, windows in the tower, positions of three axes",
    "qwen3": "norms of queries and keys",
    "qwen3_next": "linear attention, gated attention",
    "rt_detr": "deformable attention beside",
    "siglip": "attention that pools beside",
    "swin": "shifted windows of an image, relative bias",
    "t5": "relative bias, scale 1",
    "t5gemma": "an encoder with windows, a decoder with softcap",
    "vit": "an image",
    "wav2vec2": "sound",
    "whisper": "sound, and a text that reads it",
    "xclip": "a config that is a copy",
}
"""The choice, and what each is there for."""
KINDS = {
    "bloom": "past",
    "mamba": "without",
    "kosmos_2_5_vision_model": "past",
    "granite_swa": "unsound",
    "grounding-dino": "unsound",
}
"""Those of them that are not exact."""
ROOT = Path(__file__).parents[1]
_RESULTS: dict[str, list[Result]] = {}


def results_of(name: str) -> list[Result]:
    if name not in _RESULTS:
        _RESULTS[name] = [examine(case) for case in cases([name])]
    return _RESULTS[name]


@pytest.mark.parametrize("name", WITH)
def test_what_is_recorded_is_what_eager_attention_computes(name: str) -> None:
    for result in results_of(name):
        assert (result.missing, result.failure) == ("", "")
        assert kind_of(result) == KINDS.get(name, "exact")
        if result.exact:
            assert result.calls == result.eager
            assert result.weights <= WEIGHTS_AGREE


def test_eager_attention_and_sdpa_differ_where_it_is_said() -> None:
    """Such a model runs as eager attention has it while it is recorded, and the census says so."""
    assert [name for name in WITH if any(result.note for result in results_of(name))] == ["paligemma"]


def several(calls: tuple[Seen, ...]) -> set[int]:
    return {call.turn for call in calls}


def rules(calls: tuple[Seen, ...]) -> list[Mask]:
    return [mask for call in calls for mask in call.masks]


FEATURES: dict[str, Callable[[tuple[Seen, ...]], bool]] = {
    "albert": lambda calls: several(calls) == {0, 1} and len({call.name for call in calls}) == 1,
    "bart": lambda calls: any(call.q.shape[2] < call.k.shape[2] for call in calls),
    "bert": lambda calls: all(mask.all_permitted for mask in rules(calls)),
    "deepseek_v3": lambda calls: all(call.v.shape[-1] != call.k.shape[-1] for call in calls),
    "deepseek_v32": lambda calls: all(mask.dense(11, 11).sum(-1).max() == 4 for mask in rules(calls)),
    "diffllama": lambda calls: several(calls) == {0, 1},
    "gemma2": lambda calls: all(float(_scores(call).abs().max()) > (call.softcap or torch.inf) for call in calls),
    "gemma3n_text": lambda calls: len({call.k.data_ptr() for call in calls}) < len(calls),
    "glm4v": lambda calls: several(calls) == {0, 1},
    "gpt_bigcode": lambda calls: all(call.k.shape[1] == 1 < call.q.shape[1] for call in calls),
    "gpt_oss": lambda calls: all(call.sinks is not None for call in calls),
    "llama": lambda calls: all(1 < call.k.shape[1] < call.q.shape[1] for call in calls),
    "llama4_text": lambda calls: any(
        not mask.dense(11, 11)[5, 3] and mask.dense(11, 11)[3, 1] for mask in rules(calls)
    ),
    "mistral": lambda calls: all(mask.window == 4 for mask in rules(calls)),
    "modernbert": lambda calls: any(not mask.causal and mask.dense(11, 11).sum() < 121 for mask in rules(calls)),
    "swin": lambda calls: all(call.bias is not None for call in calls),
    "t5": lambda calls: all(call.scale == 1 for call in calls) and any(call.bias is not None for call in calls),
}
"""What must be seen of a model, lest its small form leaves out what it is there for."""


def _scores(call: Seen) -> Tensor:
    return call.q @ call.k.repeat_interleave(call.q.shape[1] // call.k.shape[1], dim=1).mT * call.scale


@contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def made(name: str) -> tuple[PreTrainedModel, Found]:
    with quiet():
        return next(cases([name])).make()


@pytest.mark.parametrize("name", FEATURES)
def test_a_small_model_shows_what_it_is_there_for(name: str) -> None:
    model, found = made(name)
    with quiet():
        recorded = record(model, found.alone)
    assert FEATURES[name](recorded.calls)


@pytest.mark.parametrize("name", ["llama", "t5", "gemma2"])
def test_weights_are_far_from_alike(name: str) -> None:
    """Weights that are nearly the same everywhere would hide much."""
    model, found = made(name)
    for call in eager(model, found.alone).calls:
        assert float(call.weights.amax(-1).mean()) > 2.5 / call.weights.shape[-1]
        assert torch.allclose(call.weights.sum(-1), torch.ones(()), atol=1e-5)


WRONG = {
    "a scale": lambda call: replace(call, scale=call.scale * 1.001),
    "lse": lambda call: replace(call, lse=call.lse + 1e-3),
    "a mask": lambda call: replace(call, masks=(Mask(window=10),)),
    "keys of another layer": lambda call: replace(call, k=call.k.flip(1)),
    "a bias": lambda call: replace(call, bias=torch.full((1, 1, 11, 11), 1e-3)),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_recording_is_seen(what: str) -> None:
    model, found = made("llama")
    recorded, reference = record(model, found.alone), eager(model, found.alone)
    assert difference(recorded, reference) < WEIGHTS_AGREE
    wrong = replace(recorded, calls=(recorded.calls[0], WRONG[what](recorded.calls[1])))
    assert difference(wrong, reference) > WEIGHTS_AGREE


def test_a_call_that_is_missing_or_marked_wrongly_is_seen() -> None:
    model, found = made("llama")
    recorded, reference = record(model, found.alone), eager(model, found.alone)
    with pytest.raises(AssertionError, match="not recorded, and not told"):
        difference(replace(recorded, calls=recorded.calls[:1]), reference)
    with pytest.raises(AssertionError, match="what eager attention did not do"):
        difference(recorded, replace(reference, calls=reference.calls[:1]))
    empty = recorded.calls[0].lse.clone()
    empty[0, 0, 3] = -torch.inf
    with pytest.raises(AssertionError, match="wrongly marked as empty"):
        difference(replace(recorded, calls=(replace(recorded.calls[0], lse=empty), recorded.calls[1])), reference)


def test_outputs_are_compared_but_for_pads() -> None:
    one, padding = torch.ones(2, 3, 4), torch.tensor([[1, 1, 1], [0, 1, 1]])
    other = one.clone()
    other[1, 0] = 5.0
    assert apart((one,), (other,), padding) == 0.0
    assert apart((one,), (other,)) == pytest.approx(0.8)
    assert apart((torch.full((2,), -torch.inf),), (torch.full((2,), -torch.inf),)) == 0.0
    assert apart((torch.full((2,), torch.nan),), (torch.ones(2),)) == torch.inf


def test_eager_functions_are_as_they_were_after_a_reference() -> None:
    from transformers.models.llama import modeling_llama

    stock = modeling_llama.eager_attention_forward
    model, found = made("llama")
    eager(model, found.alone)
    assert modeling_llama.eager_attention_forward is stock


def test_what_cannot_be_made_is_told_with_its_reason() -> None:
    (case,) = cases(["sam_prompt_encoder"])
    assert examine(case).missing == "no model class of its own: a part of others"
    (case,) = cases(["bark"])
    assert "forward" in examine(case).missing
    slow = replace(next(cases(["llama"])), make=partial(time.sleep, 30))
    assert examine(slow, seconds=1).missing == "took longer than 1 s"


def in_step(name: str, text: str) -> bool:
    """Whether the page has a type's rows as the script would write them, but for the numbers of a difference."""
    for result in results_of(name):
        wanted = re.escape(row(cells(result)))
        if kind_of(result) == "exact":
            wanted = re.sub(r"\\ \d+e\\-\d+\\ ", lambda _: r" \d+e-\d+ ", wanted)
        if re.search(f"^{wanted}$", text, re.MULTILINE) is None:
            return False
    return True


def test_the_page_is_what_the_script_writes() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    opening = head([]).partition("**")[0]
    if opening.splitlines()[2] not in text:
        pytest.skip("the page was written with other versions: run `python -m tests.census --table`")
    assert text.startswith(opening)
    assert [name for name in WITH if not in_step(name, text)] == []
    named = set(re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE))
    assert named == set(types())


def test_a_row_out_of_step_is_seen() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    assert not in_step("llama", text.replace("`LlamaModel` | text (padded too) | 2 / 2", "`LlamaModel` | text | 1 / 2"))


@pytest.mark.skipif(os.environ.get("WHEREFROM_CENSUS") != "all", reason="set WHEREFROM_CENSUS=all, about 10 minutes")
def test_the_whole_census() -> None:
    results = in_processes()
    assert {result.type_name for result in results} == set(types())
    assert [line(result) for result in results if kind_of(result) == "failed" and not refused(result)] == []
    assert sum(kind_of(result) == "exact" for result in results) >= 480


def refused(result: Result) -> bool:
    """Whether a recording was refused by a sentence of ours."""
    return result.failure.startswith(("ModelError", "InputError"))
