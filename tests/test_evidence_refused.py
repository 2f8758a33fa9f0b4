"""What evidence says of itself and refuses: ways that are not cut, models, gates, budgets that do not go."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import wherefrom
from gates_small import spans
from hf_small import IDS, made
from small import write_small_model
from wherefrom.errors import InputError
from wherefrom.evidence.ablations import Ablator, ablate, knock_out_edges, leave_one_out
from wherefrom.evidence.direct import module_of
from wherefrom.evidence.gates import gate_gradients
from wherefrom.evidence.goal import AnswerGoal
from wherefrom.evidence.running import Runner, runner_of

TEXT = tuple(b"A cat sat. Two dogs ran far off. Who sat? A cat")
GOAL = AnswerGoal(TEXT, 43)
HF_GOAL = AnswerGoal((*IDS[0].tolist(), *IDS[1].tolist()), 12)
OTHER_WAYS = "what tokens exchange by other ways than attention (recurrences, convolutions) is not cut"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> wherefrom.LanguageModel:
    return wherefrom.load(write_small_model(tmp_path_factory.mktemp("folder") / "model"))


# -- ways around attention


@pytest.mark.parametrize("name", ["bamba", "jamba", "lfm2", "qwen3_next", "zamba2", "falcon_h1"])
def test_a_hybrid_says_what_a_cut_leaves(name: str) -> None:
    runner = runner_of(made(name)[0])
    for how in ("total", "direct"):
        found = leave_one_out(runner, HF_GOAL, spans((3, 6)), how=how)  # type: ignore[arg-type]
        assert found.exactness.endswith(OTHER_WAYS)
    assert OTHER_WAYS not in leave_one_out(runner, HF_GOAL, spans((3, 6))).exactness


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "mixtral", "gpt_oss", "deepseek_v3", "falcon"])
def test_where_attention_is_the_only_way_nothing_is_said_of_others(name: str) -> None:
    found = leave_one_out(runner_of(made(name)[0]), HF_GOAL, spans((3, 6)), how="total")
    assert found.exactness.endswith("cut (within float32 rounding)")


class Table(nn.Module):
    """Embeddings that are not seen as such."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.weight[ids]


@pytest.mark.parametrize(("name", "mixes"), [("jamba", True), ("llama", False)])
def test_where_embeddings_are_not_seen_layers_without_attention_tell(name: str, mixes: bool) -> None:
    model: Any = made(name)[0]
    model.set_input_embeddings(Table(model.get_input_embeddings().weight))
    assert runner_of(model).mixes is mixes


def test_own_models_have_no_other_ways(small: wherefrom.LanguageModel) -> None:
    assert not runner_of(small).mixes


# -- models


@pytest.mark.parametrize("when", ["before", "after"])
def test_gradient_checkpointing_in_training_mode(when: str) -> None:
    model, _ = made("llama")
    model.activation_checkpointing_enable()
    runner = runner_of(model)  # in evaluation mode nothing is computed twice
    before = gate_gradients(runner, HF_GOAL, spans((3, 6))).scores
    model.train()
    said = r"the model: .* got LlamaForCausalLM in training mode with gradient checkpointing.*model\.eval\(\)"
    with pytest.raises(InputError, match=said):
        runner_of(model) if when == "before" else gate_gradients(runner, HF_GOAL, spans((3, 6)))
    np.testing.assert_array_equal(gate_gradients(runner_of(model.eval()), HF_GOAL, spans((3, 6))).scores, before)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("blip", "needs pixel_values"),
        ("blip2", "needs pixel_values"),
        ("aimv2", "needs pixel_values"),
        ("clip", "does not run on them"),
        ("siglip", "does not run on them"),
        ("swin", "does not run on them"),
    ],
)
def test_a_model_that_reads_more_than_a_text(name: str, why: str) -> None:
    said = rf"the model: expected one that reads token ids alone, got \w+, which {why}\. .* takes .*pixel_values"
    with pytest.raises(InputError, match=said):
        runner_of(made(name)[0])


def test_projections_ask_for_no_gradient(small: wherefrom.LanguageModel) -> None:
    small.transformer.requires_grad_(True)
    for runner in (runner_of(small), runner_of(made("llama")[0].requires_grad_(True))):
        names = [name for name, _ in module_of(runner).named_modules()]
        found = [own for own in map(runner.projection, names) if own is not None]
        assert found
        assert not any(own.requires_grad for own in found)
    small.transformer.requires_grad_(False)


def test_direct_prices_of_weights_that_are_trained_warn_of_nothing(tmp_path: Path) -> None:
    folder = write_small_model(tmp_path / "model")
    script = (
        f"import wherefrom; own = wherefrom.load({str(folder)!r}); own.transformer.requires_grad_(True)\n"
        "wherefrom.trace_answer(own, 'ab cd. ef gh. ij kl', ' q', direct=True, budget=6)"
    )
    ended = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


# -- gates


def test_the_first_token_alone_has_no_number(small: wherefrom.LanguageModel) -> None:
    runner = runner_of(small)
    found = gate_gradients(runner, GOAL, spans((0, 1)), at=(0.6, 0.2), per_head=True)
    assert np.isnan(found.scores).tolist() == [True]
    assert found.gradients.shape == (2, 1)
    assert found.per_call is not None
    assert found.per_call.shape[-1] == 1
    assert np.isnan(found.per_call).all()
    with torch.no_grad():
        plain = float(GOAL.value(runner.logits(torch.tensor([TEXT]), GOAL.rows))[0])
    assert found.values == pytest.approx([plain, plain], abs=1e-4)  # no gate: the model as it is
    assert np.isfinite(gate_gradients(runner, GOAL, spans((0, 1)), kind="scores").scores).all()


@pytest.mark.parametrize("kind", ["weights", "scores"])
@pytest.mark.parametrize("m", [1e-46, 1e-44, 9e-31])
def test_a_gate_too_small_to_compute_with(small: wherefrom.LanguageModel, kind: Any, m: float) -> None:
    with pytest.raises(InputError, match=r"a gate: expected a number from 1e-30 to 1 .*, got "):
        gate_gradients(runner_of(small), GOAL, spans((2, 9)), at=(m,), kind=kind)


@pytest.mark.parametrize("kind", ["weights", "scores"])
def test_the_smallest_gate_is_right(small: wherefrom.LanguageModel, kind: Any) -> None:
    parts = spans((2, 9), (11, 20))
    single = gate_gradients(runner_of(small), GOAL, parts, at=(1e-30,), kind=kind)
    near = gate_gradients(runner_of(small), GOAL, parts, at=(1e-9,), kind=kind)
    np.testing.assert_allclose(single.values, near.values, rtol=1e-5)
    np.testing.assert_allclose(single.scores, near.scores, rtol=1e-3)


@pytest.mark.parametrize("kind", [["weights"], {}, None, 3])
def test_a_kind_of_gates_that_is_no_name(small: wherefrom.LanguageModel, kind: Any) -> None:
    with pytest.raises(InputError, match='the kind of gates: expected "weights" or "scores", got'):
        gate_gradients(runner_of(small), GOAL, spans((2, 9)), kind=kind)


# -- passages and budgets


@pytest.mark.parametrize("wrong", [None, 3, (2, 9)])
def test_what_is_no_passage(small: wherefrom.LanguageModel, wrong: Any) -> None:
    with pytest.raises(InputError, match="a passage: expected one with a start, a stop and a label, got"):
        leave_one_out(runner_of(small), GOAL, [*spans((2, 9)), wrong])


def in_half(name: str) -> tuple[Runner, list[int]]:
    """Return a model in half precision, and how many tokens each of its passes will have."""
    model, tokens = made(name)[0].to(torch.bfloat16), list[int]()
    runner = runner_of(model)
    assert not runner.mixes  # found out once for a model
    model.register_forward_pre_hook(lambda _, __, named: tokens.append(named["input_ids"].numel()), with_kwargs=True)
    return runner, tokens


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("how", ["deletion", "total", "direct"])
def test_a_budget_that_is_too_small_is_not_spent_on_noise(name: str, how: Any) -> None:
    runner, tokens = in_half(name)
    length = len(HF_GOAL.ids)
    with pytest.raises(InputError, match=r"the budget: expected at least [67]\.\d\d forward passes' worth") as refused:
        ablate(runner, HF_GOAL, spans((3, 6)), [[False]], how=how, budget=6.0)
    assert sum(tokens) < 2 * length  # the text, and whether its last rows can be run alone
    tokens.clear()
    least = refused.value.least  # type: ignore[attr-defined]
    found = ablate(runner, HF_GOAL, spans((3, 6)), [[False], [False]], how=how, budget=least)
    assert len(found.values) == 1
    assert found.cost == pytest.approx(least)
    assert sum(tokens) == pytest.approx(least * length)


def test_a_budget_below_the_whole_text_runs_nothing(small: wherefrom.LanguageModel) -> None:
    runner, tokens = in_half("llama")
    said = "the budget: expected 1 or more forward passes' worth, got 0.9"
    with pytest.raises(InputError, match=said):
        ablate(runner, HF_GOAL, spans((3, 6)), [[False]], budget=0.9)
    with pytest.raises(InputError, match=said):
        knock_out_edges(runner, HF_GOAL, [wherefrom.Cut((13,), (1,))], budget=0.9)
    assert not tokens
    assert ablate(runner_of(small), GOAL, spans((3, 6)), [[True]], budget=1.0).cost == 1
    with pytest.raises(InputError, match="the budget: expected 0 or more forward passes' worth, got -1"):
        Ablator(runner_of(small), GOAL, spans((3, 6))).measure([[True]], budget=-1.0)


def test_noise_is_paid_for_even_where_nothing_is_taken_away() -> None:
    runner, tokens = in_half("llama")
    with pytest.raises(InputError, match=r"the budget: expected at least 6\.\d\d forward passes' worth"):
        ablate(runner, HF_GOAL, spans((3, 6)), [], budget=2.0)
    assert sum(tokens) == len(HF_GOAL.ids)
