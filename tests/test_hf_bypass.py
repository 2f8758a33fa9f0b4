"""Attention that passes by the interface of transformers: found, named and counted, and nothing else taken for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hf_small import made
from wherefrom.capture.huggingface.bypass import SOON, Bypass
from wherefrom.capture.huggingface.interface import watched
from wherefrom.capture.plain_calls import handled
from wherefrom.recording import Gap

SCORES = torch.randn(2, 4, 6, 6, generator=torch.Generator().manual_seed(1))
VALUES = torch.randn(2, 4, 6, 8, generator=torch.Generator().manual_seed(2))
OWN_SOFTMAX = {
    "blip": [
        *(f"vision_model.encoder.layers.{n}.self_attn" for n in (0, 1)),
        *(
            f"text_decoder.bert.encoder.layer.{n}.{kind}.self"
            for n in (0, 1)
            for kind in ("attention", "crossattention")
        ),
    ],
    "bloom": [f"transformer.h.{n}.self_attention" for n in (0, 1)],
    "deberta_v2": [f"encoder.layer.{n}.attention.self" for n in (0, 1)],
    "gpt_neo": [f"transformer.h.{n}.attn.attention" for n in (0, 1)],
    "longt5": [f"encoder.block.{n}.layer.0.LocalSelfAttention" for n in (0, 1)],
}


def gaps_of(model: nn.Module, *args: Any, **inputs: Any) -> tuple[Gap, ...]:
    """Return what passes by in one pass."""
    with torch.no_grad(), watched(model, lambda given: given.attend().output) as watch:
        model(*args, **inputs)
        assert torch._C._len_torch_function_stack() == 0
    return watch.gaps


@pytest.mark.parametrize("name", OWN_SOFTMAX)
def test_a_softmax_of_a_models_own_is_found(name: str) -> None:
    model, inputs = made(name)
    found = gaps_of(model, **inputs)
    assert [(gap.name, gap.what, gap.calls) for gap in found] == [(own, "softmax", 1) for own in OWN_SOFTMAX[name]]
    assert [gap.layer for gap in found] == [next(int(n) for n in gap.name.split(".") if n.isdigit()) for gap in found]


def test_torchs_own_attention_is_found() -> None:
    model, inputs = made("falcon", "sdpa")
    names = [f"transformer.h.{n}.self_attention" for n in (0, 1)]
    expected = tuple(Gap(name, "scaled_dot_product_attention", n, 1) for n, name in enumerate(names))
    assert gaps_of(model, **inputs) == expected
    model, inputs = made("aimv2")
    assert gaps_of(model, **inputs) == (Gap("head", "scaled_dot_product_attention", None, 1),)
    model, inputs = made("siglip")
    assert gaps_of(model, **inputs) == (Gap("vision_model.head.attention", "multi_head_attention", None, 1),)


@pytest.mark.parametrize("name", ["deepseek_v4", "gpt_oss", "llama", "mixtral", "qwen3_next", "t5", "zamba2"])
def test_nothing_is_found_where_all_attention_is_seen(name: str) -> None:
    model, inputs = made(name)
    assert gaps_of(model, **inputs) == ()


class Holder(nn.Module):
    """Runs a function in a module of some class, under some name."""

    def __init__(self, run: Callable[[], Any], kind: str = "Block", name: str = "part") -> None:
        super().__init__()
        module = type(kind, (nn.Module,), {"forward": lambda self: run()})()
        self.add_module(name, module)
        self._name = name

    def forward(self) -> Any:
        return getattr(self, self._name)()


def found(run: Callable[[], Any], kind: str = "Block", name: str = "part") -> list[tuple[str, str, int]]:
    return [(gap.name, gap.what, gap.calls) for gap in gaps_of(Holder(run, kind, name))]


@pytest.mark.parametrize(
    "softmax",
    [
        lambda x: F.softmax(x, dim=-1),
        lambda x: torch.softmax(x, -1),
        lambda x: x.softmax(-1),
        lambda x: torch.special.softmax(x, -1),
        lambda x: nn.Softmax(-1)(x),
    ],
)
def test_every_spelling_of_softmax_is_found(softmax: Callable[[Tensor], Tensor]) -> None:
    assert found(lambda: softmax(SCORES), "OwnAttention") == [("part", "softmax", 1)]
    assert found(lambda: softmax(SCORES), "Block", "self_attn") == [("self_attn", "softmax", 1)]
    assert found(lambda: softmax(SCORES[0, 0]), "OwnAttention") == []  # two dimensions hold no heads


@pytest.mark.parametrize(
    "product",
    [
        lambda w: w @ VALUES,
        lambda w: torch.matmul(w, VALUES),
        lambda w: w.matmul(VALUES),
        lambda w: torch.bmm(w.flatten(0, 1), VALUES.flatten(0, 1)),
        lambda w: w.flatten(0, 1).bmm(VALUES.flatten(0, 1)),
        lambda w: torch.einsum("bhts,bhsv->bhtv", w, VALUES),
        lambda w: torch.einsum("bhts,bhsv->bhtv", [w, VALUES]),
        lambda w: torch.baddbmm(torch.zeros(8, 6, 8), w.flatten(0, 1), VALUES.flatten(0, 1)),
        lambda w: VALUES.transpose(-1, -2) @ w.transpose(-1, -2),
        lambda w: F.dropout(w.to(torch.float64), 0.0).to(torch.float32) @ VALUES,
    ],
)
def test_weights_that_are_multiplied_with_values_are_attention_whatever_the_name(
    product: Callable[[Tensor], Tensor],
) -> None:
    assert found(lambda: product(torch.softmax(SCORES, -1))) == [("part", "softmax", 1)]
    assert found(lambda: product(torch.softmax(SCORES, -1)), "Router") == []
    assert found(lambda: product(torch.softmax(SCORES, -1)), "Block", "gate") == []


def test_a_softmax_that_is_not_multiplied_soon_is_none() -> None:
    assert found(lambda: torch.softmax(SCORES, -1).topk(2)) == []
    assert found(lambda: torch.softmax(SCORES, -1).sum(-1) @ torch.ones(6)) == []

    def late(pause: int) -> Tensor:
        weights = torch.softmax(SCORES, -1)
        for _ in range(pause):
            torch.zeros(1)
        return weights @ VALUES

    assert found(lambda: late(SOON - 1)) == [("part", "softmax", 1)]
    assert found(lambda: late(SOON)) == []


def test_a_class_that_says_more_than_the_path() -> None:
    run = lambda: torch.softmax(SCORES, -1)  # noqa: E731
    assert found(run, "HyperConnection", "attn_hc") == []
    assert found(run, "GatedAttention", "router") == [("router", "softmax", 1)]


def test_the_innermost_module_of_the_model_is_named() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(1, 4, 8)
    assert gaps_of(model, x) == (Gap("self_attn", "multi_head_attention", None, 1),)
    outer = nn.Sequential(nn.Sequential(nn.MultiheadAttention(8, 2)), nn.Identity())
    outer.forward = lambda: [outer[0][0](x, x, x) for _ in range(3)]  # type: ignore[method-assign]
    assert gaps_of(outer) == (Gap("0.0", "multi_head_attention", 0, 3),)


def test_a_small_module_of_torchs_own_is_named_by_what_holds_it() -> None:
    outer = Holder(lambda: outer.part.normalise(SCORES), "OwnAttention")
    outer.part.add_module("normalise", nn.Softmax(-1))
    assert gaps_of(outer) == (Gap("part", "softmax", None, 1),)


def test_what_no_module_of_the_model_runs_is_not_counted() -> None:
    counted: list[tuple[str, str]] = []
    module = Holder(lambda: torch.softmax(SCORES, -1), "OwnAttention")
    with Bypass({}, lambda *one: counted.append(one)):
        module()
        F.scaled_dot_product_attention(VALUES, VALUES, VALUES)
    assert counted == []
    names = {id(own): name for name, own in module.named_modules()}
    with Bypass(names, lambda *one: counted.append(one)):
        module()
        with handled():
            module()
            with handled():
                pass
            module()
        module()
    assert counted == [("part", "softmax")] * 2


def test_what_an_attention_function_does_itself_is_not_counted() -> None:
    model, inputs = made("llama")

    def attention(given: Any) -> Tensor:
        def forward(self: nn.Module) -> Tensor:
            torch.softmax(SCORES, -1)
            return F.scaled_dot_product_attention(given.q, given.q, given.q)

        forward(given.module)
        return given.attend().output

    with torch.no_grad(), watched(model, attention) as watch:
        model(**inputs)
    assert watch.gaps == ()


def test_of_several_passes_the_most_calls_of_one_are_kept() -> None:
    times = iter((1, 3, 2))
    model = Holder(lambda: [torch.softmax(SCORES, -1) for _ in range(next(times))], "OwnAttention")
    model.forward = lambda **named: model.part()  # type: ignore[method-assign]
    with watched(model, lambda given: given.attend().output) as watch:
        model(a=1)
        assert watch.gaps == (Gap("part", "softmax", None, 1),)
        model(b=1)
        model(c=1, d=None)
        times = iter((9,))
        model(c=1)  # of the same kind as the one before
    assert watch.gaps == (Gap("part", "softmax", None, 3),)


def test_results_are_what_they_were() -> None:
    model, inputs = made("bloom")
    with torch.no_grad():
        expected = model(**inputs).logits
        with watched(model, lambda given: given.attend().output):
            assert torch.equal(model(**inputs).logits, expected)
