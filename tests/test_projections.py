"""Which matrix takes an attention's output: found in models of many families, and refused where it is none."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hf_small
from wherefrom.capture.huggingface.interface import watched
from wherefrom.capture.huggingface.projections import Projection, Projections
from wherefrom.capture.huggingface.seen import Given
from wherefrom.capture.plain_modules import watched_plain
from wherefrom.errors import InputError


def seen_in(model: nn.Module, inputs: dict[str, Tensor]) -> tuple[dict[str, Projection], dict[str, tuple[int, int]]]:
    """Return the projections of a model, and the number of heads and the value size of each attention."""
    projections, sizes = Projections(model), {}

    def attention(given: Given) -> Tensor:
        output = given.attend().output
        sizes[given.name] = output.shape[1], output.shape[3]
        projections.note(given.name, output, heads=output.shape[1])
        return output

    with torch.no_grad(), projections, watched(model, attention):
        model(**inputs)
    return projections.found(), sizes


RIGHT = {
    "llama": {r"model\.layers\.\d\.self_attn": "o_proj"},
    "gpt2": {r"transformer\.h\.\d\.attn": "c_proj"},
    "bert": {r"bert\.encoder\.layer\.\d\.attention\.self": "../output.dense"},
    "bert cross": {
        r"bert\.encoder\.layer\.\d\.attention\.self": "../output.dense",
        r"bert\.encoder\.layer\.\d\.crossattention\.self": "../output.dense",
    },
    "albert": {r"albert\.encoder\.albert_layer_groups\.0\.albert_layers\.0\.attention": "dense"},
    "t5": {r"(en|de)coder\.block\.\d\.layer\.\d\.\w+Attention": "o"},
    "whisper": {r"model\.(en|de)coder\.layers\.\d\.(self|encoder)_attn": "out_proj"},
    "gemma2": {r"model\.layers\.\d\.self_attn": "o_proj"},
    "gpt_oss": {r"model\.layers\.\d\.self_attn": "o_proj"},
    "deepseek_v3": {r"model\.layers\.\d\.self_attn": "o_proj"},
    "swin": {r"encoder\.layers\.\d\.blocks\.\d\.attention": "o_proj"},
    "clip": {r"(text|vision)_model\.encoder\.layers\.\d\.self_attn": "out_proj"},
    "qwen2_vl": {
        r"model\.visual\.blocks\.\d\.attn": "proj",  # two executions, one for each image, and one projection
        r"model\.language_model\.layers\.\d\.self_attn": "o_proj",
    },
    "zamba2": {r"model\.layers\.\d\.shared_transformer\.self_attn": "o_proj"},
}


def module_named(name: str, projects: str) -> str:
    return f"{name.rpartition('.')[0]}.{projects[3:]}" if projects.startswith("../") else f"{name}.{projects}"


@pytest.mark.parametrize("name", RIGHT)
def test_the_projection_is_found(name: str) -> None:
    model, inputs = hf_small.made(name)
    found, sizes = seen_in(model, inputs)
    assert set(found) == set(sizes) != set()
    for module, projection in found.items():
        (projects,) = [right for pattern, right in RIGHT[name].items() if re.fullmatch(pattern, module)]
        assert projection.reason is None
        assert projection.module == module_named(module, projects)
        weight = model.get_submodule(projection.module).weight
        right = weight.T if name == "gpt2" else weight
        assert projection.weight is not None
        assert torch.equal(projection.weight, right)
        assert projection.weight.data_ptr() == weight.data_ptr()  # a view
        heads, value_size = sizes[module]
        assert projection.weight.shape[1] == heads * value_size
        assert not projection.weight.requires_grad


def test_what_the_projection_gives_is_what_the_layer_adds() -> None:
    """GPT-2's, whose matrix lies the other way round: output @ weight.T is what its own module returns."""
    model, inputs = hf_small.made("gpt2")
    given, kept = {}, {}
    projections = Projections(model)

    def attention(one: Given) -> Tensor:
        given[one.name] = one.attend().output
        projections.note(one.name, given[one.name], heads=4)
        return given[one.name]

    def keep(module: nn.Module, _: Any, result: Tensor) -> None:
        kept[module] = result

    for block in model.transformer.h:
        block.attn.c_proj.register_forward_hook(keep)
    with torch.no_grad(), projections, watched(model, attention):
        model(**inputs)
    for name, one in projections.found().items():
        assert one.weight is not None
        assert one.module is not None
        module = model.get_submodule(one.module)
        moved = given[name].transpose(1, 2).flatten(-2) @ one.weight.T + module.bias
        assert float((moved - kept[module]).detach().abs().max()) <= 1e-5


REASONS = {
    "qwen3_next": ("o_proj", "the output is changed before it is projected"),  # a gate
    "diffllama": ("o_proj", "the output is changed before it is projected"),  # the difference of two outputs
    "deepseek_v4": (None, "no linear module takes the output as it is"),  # rotated back, and in groups
}


@pytest.mark.parametrize("name", REASONS)
def test_where_there_is_no_single_matrix_the_reason_is_told(name: str) -> None:
    found, sizes = seen_in(*hf_small.made(name))
    assert set(found) == set(sizes) != set()
    projects, reason = REASONS[name]
    for module, projection in found.items():
        assert projection == Projection(None, projects and f"{module}.{projects}", reason)


def test_experts_that_project() -> None:
    import transformers as hf

    config = hf.JetMoeConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_key_value_heads=2,
        kv_channels=8,
        intermediate_size=40,
        vocab_size=101,
        num_local_experts=4,
        num_experts_per_tok=2,
    )
    found, sizes = seen_in(hf.JetMoeForCausalLM(config).eval(), {"input_ids": hf_small.IDS})
    assert set(found) == set(sizes) != set()
    assert set(found.values()) == {Projection(None, None, "no linear module takes the output as it is")}


class Attends(nn.Module):
    """A module whose attention gave `output` [B, H, T, V], and what it then does with it."""

    def __init__(self, *modules: nn.Module, times: int = 1) -> None:
        super().__init__()
        self.inner = nn.ModuleList(modules)
        self.projections = Projections(self)
        self.times = times

    def outputs(self) -> Iterator[Tensor]:
        for _ in range(self.times):
            output = torch.randn(2, 3, 5, 4)
            self.projections.note("attention", output, heads=3)
            yield output

    def found(self) -> Projection:
        with self.projections:
            self()
        return self.projections.found()["attention"]


def joined(output: Tensor) -> Tensor:
    return output.transpose(1, 2).flatten(-2)


class Once(Attends):
    def forward(self) -> None:
        for output in self.outputs():
            self.inner[-1](joined(output))


def test_linear_modules_of_other_inputs_are_passed_by() -> None:
    class Gated(Attends):
        def forward(self) -> None:
            (output,) = self.outputs()
            self.inner[0](torch.randn(2, 5, 12))  # as large as the output
            self.inner[1](torch.randn(2, 5, 7))
            self.inner[2](joined(output))

    own = Gated(nn.Linear(12, 12), nn.Linear(7, 7), nn.Linear(12, 8))
    found = own.found()
    assert (found.module, found.reason) == ("inner.2", None)
    assert found.weight is not None
    assert torch.equal(found.weight, own.inner[2].weight)


@pytest.mark.parametrize("form", ["view", "copy", "positions first", "rows", "bfloat16"])
def test_the_forms_in_which_an_output_arrives(form: str) -> None:
    class Formed(Attends):
        def forward(self) -> None:
            (output,) = self.outputs()
            x = joined(output)
            forms = {
                "view": lambda: output.transpose(1, 2).contiguous().flatten(-2),
                "copy": lambda: x.clone(),
                "positions first": lambda: x.transpose(0, 1),
                "rows": lambda: x.reshape(10, 12),
                "bfloat16": lambda: x.bfloat16(),
            }
            self.inner[0](forms[form]())

    assert Formed(nn.Linear(12, 8).bfloat16() if form == "bfloat16" else nn.Linear(12, 8)).found().module == "inner.0"


def test_the_memory_of_the_output_itself_is_known_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Flash(Attends):
        def forward(self) -> None:
            output = torch.randn(2, 5, 3, 4).transpose(1, 2)  # as the flash kernel lays it out
            self.projections.note("attention", output, heads=3)
            self.inner[0](joined(output))

    monkeypatch.setattr(torch, "equal", None)
    assert Flash(nn.Linear(12, 8)).found().module == "inner.0"


def test_the_same_memory_read_in_another_order_is_not_the_output() -> None:
    class Misread(Attends):
        def forward(self) -> None:
            (output,) = self.outputs()
            self.inner[0](output.reshape(2, 5, 12))

    assert Misread(nn.Linear(12, 8)).found().weight is None


@pytest.mark.parametrize("changed", ["a number in the middle", "the last row", "the order of heads"])
def test_a_changed_output_is_seen(changed: str) -> None:
    class Changes(Attends):
        def forward(self) -> None:
            (output,) = self.outputs()
            x = joined(output).clone()
            if changed == "the order of heads":
                x = joined(output.flip(1))
            else:
                x[(1, 4) if changed == "the last row" else (0, 2)] += 1e-3
            self.inner[0](x)

    own = Changes(nn.Linear(12, 8))
    assert own.found() == Projection(None, None, "no linear module takes the output as it is")
    # within the module that attends it is told which
    own.add_module("attention", own.inner)
    del own.inner
    own.projections, own.inner = Projections(own), own.attention
    assert own.found() == Projection(None, "attention.0", "the output is changed before it is projected")


def test_chunks_that_are_projected_together() -> None:
    class Chunks(Attends):
        def forward(self) -> None:
            self.inner[0](torch.cat([joined(output) for output in self.outputs()], dim=1))

    own = Chunks(nn.Linear(12, 8), times=3)
    assert own.found().module == "inner.0"

    class Swapped(Attends):
        def forward(self) -> None:
            self.inner[0](torch.cat([joined(output) for output in self.outputs()][::-1], dim=1))

    assert Swapped(nn.Linear(12, 8), times=3).found().weight is None


def test_a_module_that_runs_often_and_is_projected_each_time() -> None:
    assert Once(nn.Linear(12, 8), times=4).found().module == "inner.0"


def test_several_that_project_in_turn() -> None:
    class Turns(Attends):
        def forward(self) -> None:
            for module, output in zip(self.inner, self.outputs(), strict=True):
                module(joined(output))

    own = Turns(nn.Linear(12, 8), nn.Linear(12, 8), times=2)
    assert own.found() == Projection(None, None, "several modules project it in turn")


def test_an_execution_that_nothing_takes_beside_one_that_is_projected() -> None:
    own = Once(nn.Linear(12, 8))
    for name in ("attention", "one", "two", "three"):
        own.projections.note(name, torch.ones(2, 3, 5, 4), heads=3)
    assert own.found().module == "inner.0"


def test_groups_of_heads() -> None:
    class Grouped(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            own = x.unflatten(-1, (3, 4)).unsqueeze(-2) @ self.weight.view(3, 2, 4).transpose(1, 2)
            return own.flatten(-3)

    class InGroups(Attends):
        def forward(self) -> None:
            (output,) = (output for output in self.outputs())
            self.inner[0](joined(output))

    found = InGroups(Grouped(4, 6)).found()
    assert found == Projection(None, "inner.0", "the output is projected in parts")

    class PerHead(Attends):
        def forward(self) -> None:
            output = torch.randn(2, 5, 3, 4).transpose(1, 2)
            self.projections.note("attention", output, heads=3)
            self.inner[0](output.transpose(1, 2))

    assert PerHead(nn.Linear(4, 6)).found() == Projection(None, "inner.0", "the output is projected in parts")


def test_an_adapter() -> None:
    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base_layer, self.down, self.up = nn.Linear(12, 8), nn.Linear(12, 2), nn.Linear(2, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.base_layer(x) + self.up(self.down(x))

    found = Once(Adapted()).found()
    assert found == Projection(None, "inner.0.base_layer", "an adapter adds to the matrix")


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Shortened(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[..., :3]


class Packed(nn.Module):
    def __init__(self, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.in_features, self.dtype = 12, dtype
        if dtype is not None:
            self.weight = nn.Parameter(torch.zeros(8, 12, dtype=dtype), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return x if self.dtype is None else nn.functional.linear(x, self.weight.float())


@pytest.mark.parametrize(
    "module", [Doubled(12, 8), Shortened(12, 8), Packed(torch.int8), Packed(torch.float8_e4m3fn), Packed(None)]
)
def test_numbers_that_are_not_the_matrix(module: nn.Module) -> None:
    assert Once(module).found() == Projection(None, "inner.0", "the matrix is not of plain numbers")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_linear_module_with_a_forward_of_its_own(bias: bool, dtype: torch.dtype) -> None:
    class Same(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.to(dtype))

    own = Once(Same(12, 8, bias=bias).to(dtype))
    assert own.found().weight is not None


def test_what_nothing_takes() -> None:
    class Lost(Attends):
        def forward(self) -> None:
            list(self.outputs())

    assert Lost(nn.Linear(12, 8), times=2).found() == Projection(
        None, None, "no linear module takes the output as it is"
    )


def test_two_attentions_before_their_projections() -> None:
    class Beside(Attends):
        def forward(self) -> None:
            (first,) = self.outputs()
            second = torch.randn(2, 3, 5, 4)
            self.projections.note("other", second, heads=3)
            for module, output in zip(self.inner, (first, second), strict=True):
                module(joined(output))

    own = Beside(nn.Linear(12, 8), nn.Linear(12, 8))
    assert own.found().module == "inner.0"
    assert own.projections.found()["other"].module == "inner.1"


def test_torchs_own_multi_head_attention() -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(12, 4, 16, batch_first=True).eval()
    projections = Projections(model)

    def attention(given: Given) -> Tensor:
        output = given.attend().output
        projections.note(given.name, output, heads=4)
        return output

    with projections, watched_plain(model, attention):
        model(torch.randn(2, 5, 12))
    (found,) = projections.found().items()
    assert (found[0], found[1].module, found[1].reason) == ("self_attn", "self_attn.out_proj", None)
    assert found[1].weight is not None
    assert torch.equal(found[1].weight, model.self_attn.out_proj.weight)


def hooks_of(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def test_the_hooks_are_taken_out() -> None:
    own = Once(nn.Linear(12, 8))
    own.found()
    assert hooks_of(own) == 0
    with own.projections:
        assert hooks_of(own) == 1
    with pytest.raises(RuntimeError), own.projections:
        own.inner[0](torch.ones(7))
    assert hooks_of(own) == 0
    own()  # nobody looks
    assert own.projections._waiting != {}


def test_another_thread_is_not_looked_at() -> None:
    own = Once(nn.Linear(12, 8))
    (output,) = own.outputs()
    with own.projections:
        thread = threading.Thread(target=lambda: own.inner[0](joined(output)))
        thread.start()
        thread.join(10)
        assert own.projections._waiting != {}
        own.inner[0](joined(output))
        assert own.projections._waiting == {}


def test_no_more_than_two_outputs_of_modules_are_held() -> None:
    own = Once(nn.Linear(12, 8))
    for number in range(5):
        own.projections.note(f"attention {number}", torch.ones(2, 3, 5, 4), heads=3)
    assert list(own.projections._waiting) == ["attention 3", "attention 4"]
    assert len(own.projections.found()) == 5


def test_an_output_without_numbers() -> None:
    own = Once(nn.Linear(12, 8))
    with own.projections:
        own.projections.note("attention", torch.ones(2, 3, 0, 4), heads=3)
        own.inner[0](torch.ones(2, 0, 12))
    assert own.projections.found()["attention"].reason == "no linear module takes the output as it is"


@pytest.mark.parametrize("shape", [(2, 5, 3, 4), (2, 3, 4), (6, 4)])
def test_an_output_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"the output of attention: expected \[B, H, T, V\] with 3 heads"):
        Once(nn.Linear(12, 8)).projections.note("attention", torch.ones(shape), heads=3)
