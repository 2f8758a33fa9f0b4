"""The watched interface of transformers: every attention seen once, exactly, and everything as it was afterwards."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AttentionMaskInterface

from hf_small import GROUPED, IDS, made, tensors_of
from wherefrom.attention import attend as dense
from wherefrom.capture.fused import Attended
from wherefrom.capture.huggingface.interface import watched
from wherefrom.capture.huggingface.seen import Given, Seen
from wherefrom.errors import InputError, ModelError
from wherefrom.mask import CAUSAL, Mask

EXACT = [
    ("albert", "sdpa"),
    ("bart", "eager"),
    ("bert cross", "sdpa"),
    ("deepseek_v3", "sdpa"),
    ("deepseek_v4", "eager"),
    ("gemma2", "eager"),
    ("gpt2", "sdpa"),
    ("gpt_oss", "eager"),
    ("llama", "eager"),
    ("mistral", "eager"),
    ("qwen2_vl", "sdpa"),
    ("swin", "eager"),
    ("t5", "eager"),
]


def outputs_of(model: nn.Module, inputs: dict[str, Tensor]) -> list[Tensor]:
    with torch.no_grad():
        return tensors_of(model(**inputs))


def alike(found: list[Tensor], expected: list[Tensor]) -> bool:
    """Whether each tensor differs from the other by rounding alone."""
    assert len(found) == len(expected) > 0
    return all(
        float((a - b).abs().max()) <= 2e-5 * max(1.0, float(b.abs().max()))
        for a, b in zip(found, expected, strict=False)
    )


def same(found: list[Tensor], expected: list[Tensor]) -> bool:
    """Whether each tensor is the other, bit by bit."""
    return len(found) == len(expected) > 0 and all(map(torch.equal, found, expected))


class Kept:
    """An attention function that computes what it is given, and keeps it."""

    def __init__(self) -> None:
        self.given: list[Given] = []
        self.seen: list[Seen] = []

    def __call__(self, given: Given) -> Tensor:
        self.given.append(given)  # at once: a replay is broken off when it has what it was for
        attended = given.attend()
        self.seen.append(Seen.of(given, attended))
        return attended.output

    @property
    def turns(self) -> list[tuple[str, int]]:
        return [(given.name, given.turn) for given in self.given]


def state_of(model: nn.Module) -> dict[str, Any]:
    """Everything that watching may not leave changed."""
    hooks = [name for name in vars(model) if name.endswith(("_hooks", "_with_kwargs", "_always_called"))]
    configs = [(module.config, copy.deepcopy(vars(module.config))) for module in model.modules() if has_config(module)]
    return {
        "functions": list(AttentionInterface._global_mapping.items()),
        "makers": list(AttentionMaskInterface._global_mapping.items()),
        "property": vars(hf.PreTrainedConfig)["_attn_implementation"],
        "hooks": [{name: list(getattr(module, name)) for name in hooks} for module in model.modules()],
        "modules": [(name, id(module)) for name, module in model.named_modules()],
        "configs": configs,
        "implementations": [config._attn_implementation for config, _ in configs],
        "modes": torch._C._len_torch_function_stack(),
        "compiler": torch._dynamo.eval_frame._stance,
    }


def has_config(module: nn.Module) -> bool:
    return isinstance(getattr(module, "config", None), hf.PreTrainedConfig)


@pytest.fixture
def unchanged() -> Iterator[Callable[[nn.Module], None]]:
    """Remembers the state of models, and looks at the end whether it is still the same."""
    kept: list[tuple[nn.Module, dict[str, Any]]] = []
    yield lambda model: kept.append((model, state_of(model)))
    for model, before in kept:
        assert state_of(model) == before


@contextmanager
def registered(name: str, function: Callable[..., Any]) -> Iterator[None]:
    """An attention implementation of the user's own, for a while."""
    table = AttentionInterface._global_mapping
    before = dict(table)
    AttentionInterface.register(name, function)
    try:
        yield
    finally:
        table.clear()
        table.update(before)


class Toy(nn.Module):
    """One attention module that hands over what it is told to, in a model of transformers."""

    def __init__(self, implementation: str = "sdpa") -> None:
        super().__init__()
        self.config = hf.LlamaConfig(**GROUPED, attn_implementation=implementation)
        generator = torch.Generator().manual_seed(11)
        self.arrays = [torch.randn(2, heads, 7, 8, generator=generator) for heads in (4, 2, 2)]
        self.num_key_value_groups, self.is_causal = 2, False

    def forward(self, mask: Any = None, **named: Any) -> Any:
        interface = AttentionInterface().get_interface(self.config._attn_implementation, eager)
        return interface(self, *self.arrays, mask, **named)


def eager(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any = None, **named: Any) -> tuple[Tensor, None]:
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    scores = q @ k.transpose(-1, -2) * named.get("scaling", q.shape[-1] ** -0.5)
    return (torch.softmax(scores if mask is None else scores + mask, -1) @ v).transpose(1, 2), None


# --- exact -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "implementation"), EXACT)
def test_a_watched_model_computes_what_it_always_does(
    name: str, implementation: str, unchanged: Callable[[nn.Module], None]
) -> None:
    model, inputs = made(name, implementation)
    expected, kept = outputs_of(model, inputs), Kept()
    unchanged(model)
    with watched(model, kept) as watch:
        found = outputs_of(model, inputs)
    assert alike(found, expected)
    assert watch.gaps == ()
    assert watch.passes == 1
    for seen in kept.seen:
        assert watch.names[id(model.get_submodule(seen.name))] == seen.name
        assert len(seen.masks) == max(len(seen.q), len(seen.k))
        assert seen.lse.shape == seen.output.shape[:3] == (len(seen.masks), *seen.q.shape[1:3])


def test_what_is_seen_rebuilds_the_weights_of_eager_attention() -> None:
    model, inputs = made("gpt2", "eager")
    with torch.no_grad():
        expected = model(**inputs, output_attentions=True).attentions
    kept = Kept()
    with watched(model, kept):
        outputs_of(model, inputs)
    assert [seen.name for seen in kept.seen] == ["transformer.h.0.attn", "transformer.h.1.attn"]
    for seen, weights in zip(kept.seen, expected, strict=True):
        for text in range(2):
            own = dense(seen.q[text].numpy(), seen.k[text].numpy(), seen.v[text].numpy(), seen.masks[text])
            assert abs(own.weights.filled(0.0) - weights[text].numpy()).max() < 1e-5
            assert abs(own.lse - seen.lse[text].numpy()).max() < 1e-5


def test_padding_is_seen_of_each_text() -> None:
    model, inputs = made("llama", "sdpa")
    mask = torch.ones_like(inputs["input_ids"])
    mask[1, :3] = 0
    expected, kept = outputs_of(model, inputs | {"attention_mask": mask}), Kept()
    with watched(model, kept):
        found = outputs_of(model, inputs | {"attention_mask": mask})
    assert alike([x[mask.bool()] for x in found], [x[mask.bool()] for x in expected])
    permitted = [one.dense(9, 9) for one in kept.seen[0].masks]
    assert permitted[0].sum() == 45
    assert not permitted[1][:, :3].any()
    assert permitted[1].sum() == 21


def test_outputs_are_what_transformers_functions_return() -> None:
    model = Toy()
    with watched(model, Kept()):
        output, weights = model(None)
    assert output.shape == (2, 7, 4, 8)
    assert output.is_contiguous()
    assert weights is None


def test_an_attention_function_may_compute_something_else() -> None:
    model = Toy()
    with watched(model, lambda given: torch.zeros_like(given.attend().output)):
        assert not model(None)[0].any()


# --- turns and passes ------------------------------------------------------------------------------------------------


def test_a_shared_module_has_turns_that_begin_again_with_each_pass() -> None:
    model, inputs = made("albert")
    name, kept = "albert.encoder.albert_layer_groups.0.albert_layers.0.attention", Kept()
    with watched(model, kept) as watch:
        for _ in range(2):
            outputs_of(model, inputs)
        outputs_of(model.albert, inputs)  # an inner model that is called by itself
    assert kept.turns == [(name, 0), (name, 1), (name, 2)] * 3
    assert watch.passes == 3


def test_a_module_that_is_called_by_itself_has_no_turns() -> None:
    model, kept = nn.Sequential(Toy()), Kept()
    with watched(model, kept) as watch:
        for _ in range(2):
            model[0](None)
    assert kept.turns == [("0", 0), ("0", 0)]
    assert watch.passes == 0


def test_a_tower_that_loops_over_images_has_a_turn_for_each() -> None:
    model, inputs = made("qwen2_vl")
    kept = Kept()
    with watched(model, kept):
        outputs_of(model, inputs)
    vision = [turn for turn in kept.turns if "visual" in turn[0]]
    assert vision == [(f"model.visual.blocks.{layer}.attn", turn) for layer in (0, 1) for turn in (0, 1)]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_pass_that_is_broken_off_leaves_no_turns(error: type[BaseException]) -> None:
    model, inputs = made("albert")
    kept, failing = Kept(), [False, True, False]

    def attention(given: Given) -> Tensor:
        if failing and failing.pop(0):
            raise error
        return kept(given)

    with watched(model, attention):
        with pytest.raises(error):
            outputs_of(model, inputs)
        outputs_of(model, inputs)
    assert [turn for _, turn in kept.turns] == [0, 0, 1, 2]
    assert torch._C._len_torch_function_stack() == 0


def test_generation_is_one_pass_a_step() -> None:
    model, inputs = made("bart")
    expected = model.generate(inputs["input_ids"], max_new_tokens=4, min_new_tokens=4, do_sample=False)
    kept = Kept()
    with watched(model, kept) as watch:
        found = model.generate(inputs["input_ids"], max_new_tokens=4, min_new_tokens=4, do_sample=False)
    assert torch.equal(found, expected)
    assert watch.passes == 5  # the encoder's, and four steps
    assert {turn for _, turn in kept.turns} == {0}
    own = [seen for seen in kept.seen if seen.name == "model.decoder.layers.0.self_attn"]
    assert [seen.offsets for seen in own] == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert [seen.k.shape[2] for seen in own] == [1, 2, 3, 4]


def test_only_the_first_pass_of_a_kind_is_searched_for_other_attention() -> None:
    model, inputs = made("llama")
    modes: list[int] = []

    def attention(given: Given) -> Tensor:
        modes.append(torch._C._len_torch_function_stack())
        return given.attend().output

    with watched(model, attention):
        for changed in ({}, {}, {"attention_mask": torch.ones_like(IDS)}, {}):
            outputs_of(model, inputs | changed)
    assert modes == [1, 1, 0, 0, 1, 1, 0, 0]


# --- as it was -------------------------------------------------------------------------------------------------------


def test_everything_is_restored_after_an_exception(unchanged: Callable[[nn.Module], None]) -> None:
    model, inputs = made("t5", "eager")
    unchanged(model)
    with pytest.raises(ZeroDivisionError), watched(model, lambda _: 1 / 0):  # type: ignore[arg-type, return-value]
        outputs_of(model, inputs)


def test_configs_are_never_written_to() -> None:
    model, inputs = made("llama", "eager")
    internal: set[str] = set()

    def attention(given: Given) -> Tensor:
        internal.add(model.config._attn_implementation_internal)
        assert model.config._attn_implementation == "sdpa"
        return given.attend().output

    with watched(model, attention):
        outputs_of(model, inputs)
    assert internal == {"eager"}


def test_the_innermost_of_one_model_has_it(unchanged: Callable[[nn.Module], None]) -> None:
    model, inputs = made("llama")
    unchanged(model)
    outer, inner = Kept(), Kept()
    with watched(model, outer):
        with watched(model, inner):
            outputs_of(model, inputs)
        assert (len(outer.seen), len(inner.seen)) == (0, 2)
        outputs_of(model, inputs)
    assert (len(outer.seen), len(inner.seen)) == (2, 2)


def test_two_models_in_one_another(unchanged: Callable[[nn.Module], None]) -> None:
    first, inputs = made("llama", "eager")
    second, others = made("gemma2")
    expected = outputs_of(first, inputs), outputs_of(second, others)
    unchanged(first)
    unchanged(second)
    outer, inner = Kept(), Kept()
    with watched(first, outer), watched(second, inner):
        found = outputs_of(first, inputs), outputs_of(second, others)
    assert alike(found[0], expected[0])
    assert alike(found[1], expected[1])
    assert (len(outer.seen), len(inner.seen)) == (2, 2)
    assert {seen.softcap for seen in outer.seen} == {None}
    assert {seen.softcap for seen in inner.seen} == {50.0}


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_another_model_meanwhile_is_what_it_always_is(implementation: str) -> None:
    model, inputs = made("llama")
    other, others = made("mistral", implementation)
    padded = others | {"attention_mask": torch.tensor([[1] * 9, [0] * 2 + [1] * 7])}
    expected, kept, run = outputs_of(other, padded), Kept(), []

    def attention(given: Given) -> Tensor:
        run.append(outputs_of(other, padded))
        return kept(given)

    with watched(model, attention):
        outputs_of(model, inputs)
        run.append(outputs_of(other, padded))
    assert all(same(found, expected) for found in run)
    assert len(run) == 3
    assert len(kept.seen) == 2


def test_a_mask_that_nobody_watches_is_the_stock_one() -> None:
    model, _ = made("llama")
    other, others = made("mistral", "sdpa")
    makers = AttentionMaskInterface()
    handed: list[Any] = []
    for part in other.model.layers:
        part.self_attn.register_forward_pre_hook(
            lambda _, __, named: handed.append(named["attention_mask"]), with_kwargs=True
        )
    with watched(model, Kept()):
        outputs_of(other, {"input_ids": others["input_ids"][:, :3]})  # shorter than the window: no mask at all
        outputs_of(other, others)
        direct = makers["sdpa"](batch_size=1, q_length=3, kv_length=3)
    assert handed[:2] == [None, None]
    assert {type(mask) for mask in handed[2:]} == {Tensor}
    assert direct is None


# --- threads ---------------------------------------------------------------------------------------------------------


def in_threads(*tasks: Callable[[], None]) -> None:
    """Run tasks at the same time, and raise what they raise."""
    errors: list[BaseException] = []

    def run(task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def test_two_threads_watch_two_models(unchanged: Callable[[nn.Module], None]) -> None:
    models = [made("llama", "eager"), made("gpt_oss")]
    expected, kept, barrier = [outputs_of(*one) for one in models], [Kept(), Kept()], threading.Barrier(2, timeout=60)
    for model, _ in models:
        unchanged(model)

    def task(number: int) -> Callable[[], None]:
        def attention(given: Given) -> Tensor:
            barrier.wait()
            return kept[number](given)

        def run() -> None:
            for _ in range(3):
                with watched(models[number][0], attention):
                    assert alike(outputs_of(*models[number]), expected[number])

        return run

    in_threads(task(0), task(1))
    assert [len(one.seen) for one in kept] == [6, 6]
    assert {seen.sinks is None for seen in kept[0].seen} == {True}
    assert {seen.sinks is None for seen in kept[1].seen} == {False}


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_the_same_model_unwatched_in_another_thread_is_stock(implementation: str) -> None:
    model, inputs = made("mistral", implementation)
    padded = inputs | {"attention_mask": torch.tensor([[1] * 9, [0] * 2 + [1] * 7])}
    expected, kept = outputs_of(model, padded), Kept()
    inside, done, found = threading.Event(), threading.Event(), []

    def attention(given: Given) -> Tensor:
        inside.set()
        assert done.wait(60)
        return kept(given)

    def watching() -> None:
        with watched(model, attention) as watch:
            outputs_of(model, padded)
        assert watch.passes == 1

    def unwatched() -> None:
        assert inside.wait(60)
        try:
            found.append(outputs_of(model, padded))
            assert model.config._attn_implementation == implementation
        finally:
            done.set()

    in_threads(watching, unwatched)
    assert same(found[0], expected)
    assert kept.turns == [("model.layers.0.self_attn", 0), ("model.layers.1.self_attn", 0)]


def test_one_thread_leaves_while_another_still_watches() -> None:
    first, second = made("llama"), made("gpt2")
    entered, left, kept = threading.Event(), threading.Event(), Kept()

    def short() -> None:
        with watched(first[0], Kept()):
            assert entered.wait(60)
        left.set()

    def long() -> None:
        with watched(second[0], kept):
            entered.set()
            assert left.wait(60)
            outputs_of(*second)

    before = list(AttentionInterface._global_mapping.items())
    in_threads(short, long)
    assert len(kept.seen) == 2
    assert list(AttentionInterface._global_mapping.items()) == before


# --- which implementation --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["flash_attention_2", "flex_attention", "paged|sdpa", "kernels-community/flash-attn2", None]
)
def test_other_kernels_are_switched_for_the_pass(name: str | None, unchanged: Callable[[nn.Module], None]) -> None:
    model, inputs = made("llama", "sdpa")
    expected, kept = outputs_of(model, inputs), Kept()
    model.config._attn_implementation_internal = name
    unchanged(model)
    with watched(model, kept):
        assert alike(outputs_of(model, inputs), expected)
    assert len(kept.seen) == 2
    assert model.config._attn_implementation == name


def test_a_copied_config_is_reached_too() -> None:
    model, inputs = made("llama", "eager")
    stray = model.model.layers[1].self_attn
    stray.config = copy.copy(stray.config)
    kept = Kept()
    with watched(model, kept):
        outputs_of(model, inputs)
    assert len(kept.seen) == 2
    assert stray.config._attn_implementation == "eager"


def test_a_config_within_a_config_is_reached_too() -> None:
    model, kept = Toy(), Kept()
    inner = hf.LlamaConfig(**GROUPED, attn_implementation="eager")
    model.config = hf.LlavaConfig(text_config=inner, attn_implementation="eager")

    def forward() -> Any:
        name = model.config.text_config._attn_implementation
        return AttentionInterface().get_interface(name, eager)(model, *model.arrays, None)

    model.forward = forward  # type: ignore[method-assign]
    with watched(model, kept):
        model()
    assert len(kept.seen) == 1


class OwnProperty(hf.LlamaConfig):
    """A config that reads its implementation in a way of its own, as some do."""

    @property
    def _attn_implementation(self) -> str:
        return self._attn_implementation_internal

    @_attn_implementation.setter
    def _attn_implementation(self, value: str) -> None:
        hf.PreTrainedConfig._attn_implementation.fset(self, value)


class Fixed(hf.LlamaConfig):
    """A config that cannot be switched."""

    _attn_implementation = "eager"


class Renamed(hf.LlamaConfig):
    """A config that cannot be switched, as it looks for its implementation elsewhere."""

    attribute_map = {"_attn_implementation": "elsewhere"}  # noqa: RUF012


def test_a_config_with_a_property_of_its_own_is_reached() -> None:
    before = vars(OwnProperty)["_attn_implementation"]
    model, kept = hf.LlamaModel(OwnProperty(**GROUPED)).eval(), Kept()
    model.set_attn_implementation("eager")
    expected = outputs_of(model, {"input_ids": IDS})
    with watched(model, kept):
        assert alike(outputs_of(model, {"input_ids": IDS}), expected)
    assert len(kept.seen) == 2
    assert vars(OwnProperty)["_attn_implementation"] is before


@pytest.mark.parametrize("kind", [Fixed, Renamed])
def test_a_config_that_cannot_be_switched_is_refused(kind: type, unchanged: Callable[[nn.Module], None]) -> None:
    model, _ = made("llama", "eager")
    unchanged(model)
    model.mine = Toy()
    model.mine.config.__class__ = kind
    match = rf"expected one whose attention implementation can be switched, got {kind.__name__}, which stays at"
    with pytest.raises(ModelError, match=match), watched(model, Kept()):
        pass
    del model.mine


def own_kernel(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, **named: Any) -> tuple[Tensor, Tensor]:
    """A user's own attention: causal, with lse."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = q @ k.transpose(-1, -2) * named["scaling"]
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1 + k.shape[2] - q.shape[2])
    scores = scores.masked_fill(later, -torch.inf)
    own_kernel.masks.append(mask)  # type: ignore[attr-defined]
    return (torch.softmax(scores, -1) @ v).transpose(1, 2).contiguous(), scores.logsumexp(-1)


def test_an_implementation_of_the_users_own_is_kept_and_run() -> None:
    own_kernel.masks = []  # type: ignore[attr-defined]
    with registered("mine", own_kernel):
        model, inputs = made("llama")
        stock = outputs_of(model, inputs)
        model.set_attn_implementation("mine")
        before = state_of(model)
        expected, kept, inner = outputs_of(model, inputs), Kept(), Kept()
        with watched(model, kept):
            assert model.config._attn_implementation == "mine"
            assert same(outputs_of(model, inputs), expected)
            with watched(model, inner):
                assert same(outputs_of(model, inputs), expected)
        assert own_kernel.masks == [None] * 6  # type: ignore[attr-defined]
        assert state_of(model) == before
    assert alike(stock, expected)
    assert len(kept.seen) == len(inner.seen) == 2
    for seen, given in zip(kept.seen, kept.given, strict=True):
        assert seen.kernel == "mine, the user's own"
        assert seen.masks == (CAUSAL, CAUSAL)
        again = given.attend(v=given.v)  # anything changed is computed by our kernel
        assert again.kernel != seen.kernel
        assert alike([again.output, again.lse], [seen.output, seen.lse])


def test_an_own_implementation_with_a_cache_reads_to_the_last_key() -> None:
    own_kernel.masks = []  # type: ignore[attr-defined]
    with registered("mine", own_kernel):
        model, inputs = made("llama")
        model.set_attn_implementation("mine")
        kept = Kept()
        with torch.no_grad(), watched(model, kept):
            cache = model(inputs["input_ids"][:, :5]).cache
            model(inputs["input_ids"][:, 5:], cache=cache)
    later = kept.given[2]
    assert later.q.shape[2:] == (4, 8)
    assert later.k.shape[2] == 9
    assert later.readable.masks[0].dense(4, 9).tolist() == [[j <= i + 5 for j in range(9)] for i in range(4)]
    again = later.attend(v=later.v)
    assert alike([again.output, again.lse], [kept.seen[2].output, kept.seen[2].lse])


@pytest.mark.parametrize(
    ("second", "given"),
    [
        (lambda lse: None, "None"),
        (lambda lse: lse[..., None], r"shape \(2, 4, 9, 1\), torch.float32"),
        (lambda lse: lse.long(), r"shape \(2, 4, 9\), torch.int64"),
    ],
)
def test_an_own_implementation_without_lse_is_refused(second: Callable[[Tensor], Any], given: str) -> None:
    own_kernel.masks = []  # type: ignore[attr-defined]

    def bare(*args: Any, **named: Any) -> tuple[Tensor, Any]:
        output, lse = own_kernel(*args, **named)
        return output, second(lse)

    with registered("bare", bare):
        model, inputs = made("llama")
        model.set_attn_implementation("bare")
        where = r"the attention of model.layers.0.self_attn \(LlamaAttention\)"
        match = rf"{where}: expected 'bare', .*log-sum-exp.* got {given}"
        with pytest.raises(ModelError, match=match), watched(model, Kept()):
            outputs_of(model, inputs)


def test_sdpa_that_the_user_replaced_is_the_users_own() -> None:
    own_kernel.masks = []  # type: ignore[attr-defined]
    with registered("sdpa", own_kernel):
        model, inputs = made("llama", "sdpa")
        other, _ = made("llama", "eager")
        expected, kept = outputs_of(model, inputs), Kept()
        with watched(model, kept):
            assert same(outputs_of(model, inputs), expected)
        assert own_kernel.masks == [None] * 4  # type: ignore[attr-defined]
        eager_ones, others = outputs_of(other, inputs), Kept()
        with watched(other, others):
            assert alike(outputs_of(other, inputs), eager_ones)
        both, mixed = Kept(), model.model.layers[1].self_attn
        mixed.config = copy.copy(mixed.config)
        mixed.config._attn_implementation_internal = "eager"
        with watched(model, both):
            outputs_of(model, inputs)
    assert [seen.kernel for seen in both.seen] == ["sdpa, the user's own", "torch flash, CPU"]
    assert {seen.kernel for seen in kept.seen} == {"sdpa, the user's own"}
    assert {seen.kernel for seen in others.seen} == {"torch flash, CPU"}


def test_what_a_user_registers_meanwhile_stays() -> None:
    table = AttentionInterface._global_mapping
    before = dict(table)
    try:
        with watched(made("llama")[0], Kept()):
            AttentionInterface.register("sdpa", own_kernel)
        assert table["sdpa"] is own_kernel
    finally:
        table.clear()
        table.update(before)


def test_a_module_outside_of_the_model_is_not_taken_for_one_of_it() -> None:
    model, inputs = made("gemma2")
    stranger, _ = made("gemma2")
    stray = [stranger.model.layers[0].self_attn]
    stray[0].config = model.config
    layer = model.model.layers[0]
    own = layer.self_attn.forward
    layer.self_attn.forward = lambda *args, **named: own(*args, **named) and stray[0](*args, **named)
    match = r"Gemma2Attention.*shares its config.*Register it as a submodule"
    with pytest.raises(ModelError, match=match), watched(model, Kept()):
        outputs_of(model, inputs)


# --- arguments -------------------------------------------------------------------------------------------------------


def given_of(model: Toy, *args: Any, **named: Any) -> Given:
    kept = Kept()
    with watched(model, kept):
        model(*args, **named)
    return kept.given[0]


def test_the_scale_is_the_callers_or_that_of_the_head_size() -> None:
    assert given_of(Toy()).scale == pytest.approx(8**-0.5)
    assert given_of(Toy(), scaling=None).scale == pytest.approx(8**-0.5)
    assert given_of(Toy(), scaling=1.0).scale == 1.0
    assert given_of(Toy(), scaling=torch.tensor(0.25)).scale == 0.25


def test_softcap_and_sinks_are_read() -> None:
    sinks = torch.arange(4.0)
    given = given_of(Toy(), softcap=3, s_aux=sinks)
    assert given.softcap == 3.0
    assert given.sinks is sinks
    assert given_of(Toy(), sinks=sinks).sinks is sinks
    assert given_of(Toy(), sinks=None, softcap=None).sinks is None


def test_bias_and_indices_are_read() -> None:
    bias = torch.randn(1, 4, 7, 7, generator=torch.Generator().manual_seed(3))
    given = given_of(Toy(), position_bias=bias)
    assert torch.equal(given.readable.bias, bias)
    plain, biased = given_of(Toy()).attend(), given.attend()
    assert not torch.allclose(plain.output, biased.output)
    indices = torch.tensor([0, 3]).expand(2, 7, 2)
    chosen = given_of(Toy(), indices=indices).readable.masks[0].dense(7, 7)
    assert chosen.tolist() == [[j in (0, 3) for j in range(7)]] * 7


def test_no_mask_means_that_everything_may_be_read() -> None:
    for implementation in ("sdpa", "eager"):
        assert given_of(Toy(implementation)).readable.masks[0].dense(7, 7).all()
    causal = given_of(Toy(), is_causal=True).readable
    assert causal.masks == (CAUSAL, CAUSAL)
    assert given_of(Toy(), is_causal=False).readable.masks[0].dense(7, 7).all()
    assert given_of(Toy("eager"), is_causal=True).readable.masks[0].dense(7, 7).all()  # eager does not hear it
    mask = torch.zeros(1, 1, 7, 7)
    assert given_of(Toy(), mask, is_causal=True).readable.masks[0].dense(7, 7).all()  # nor does sdpa beside a mask


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("named", [{}, {"is_causal": True}, {"scaling": 0.5}])
def test_a_toy_watched_is_a_toy_unwatched(implementation: str, named: dict[str, Any]) -> None:
    model = Toy(implementation)
    with watched(model, Kept()):
        found = model(None, **named)[0]
    assert alike([found], [model(None, **named)[0]])


@pytest.mark.parametrize(
    "named", [{"block_indices": torch.zeros(1)}, {"head_mask": 1, "use_cache": True}, {"cache": 5}]
)
def test_arguments_that_are_not_known_are_refused_by_name(named: dict[str, Any]) -> None:
    name = next(iter(named))
    with pytest.raises(ModelError, match=rf"the attention of the model \(Toy\): .*got {name}\."):
        given_of(Toy(), **named)


def test_arguments_that_change_nothing_are_left_out() -> None:
    ignored = {"position_ids": IDS, "use_cache": True, "sliding_window": 3, "cu_seq_lens_q": IDS, "max_length_k": 4}
    assert given_of(Toy(), **ignored, block_indices=None, dropout=0.0, output_attentions=False).turn == 0


def test_sinks_that_are_not_one_a_head_are_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"expected sinks with one logit a head, \[4\], got shape \(2, 4, 7, 1\)"):
        given_of(Toy(), sinks=torch.zeros(2, 4, 7, 1))


def test_dropout_is_refused_with_the_way_on() -> None:
    model, inputs = made("gpt2")
    model.train()
    match = r"the attention of transformer.h.0.attn .*got a dropout of 0.1. Call model.eval\(\) first"
    with pytest.raises(InputError, match=match), watched(model, Kept()):
        model(**inputs)
    model.config.attn_pdrop = 0.0
    for block in model.transformer.h:
        block.attn.attn_dropout.p = 0.0
    with watched(model, Kept()):
        model(**inputs)  # training mode itself is no obstacle


def test_no_keys_are_refused_before_a_kernel_sees_them() -> None:
    model = Toy()
    model.arrays[1], model.arrays[2] = model.arrays[1][:, :, :0], model.arrays[2][:, :, :0]
    with pytest.raises(ModelError, match=r"the attention of the model \(Toy\): .*at least one key, got q"):
        given_of(model)


def test_weights_are_asked_of_the_recording_not_of_the_model() -> None:
    model, inputs = made("llama", "eager")
    match = r"the call of the model \(LlamaForCausalLM\): .*output_attentions=True. Leave output_attentions out"
    with watched(model, Kept()) as watch:
        with pytest.raises(InputError, match=match):
            model(**inputs, output_attentions=True)
        assert watch.passes == 1
    inner = nn.Sequential(Toy())
    inner.forward = lambda: inner[0](None, output_attentions=True)  # type: ignore[method-assign]
    match = r"the attention of 0 \(Toy\): .*output_attentions=True. Leave output_attentions out"
    with pytest.raises(InputError, match=match), watched(inner, Kept()):
        inner()
    model.config.output_attentions = True
    match = r"the model's config: .*LlamaConfig with output_attentions=True. Leave"
    with pytest.raises(InputError, match=match), watched(model, Kept()):
        pass


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(InputError, match="the model"), watched("llama", Kept()):  # type: ignore[arg-type]
        pass


def test_a_module_that_is_none_of_transformers_runs_as_it_is() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(1, 4, 8)
    with torch.no_grad(), watched(model, Kept()) as watch:
        model(x)
    assert [(gap.name, gap.what) for gap in watch.gaps] == [("self_attn", "multi_head_attention")]


# --- what a model may be ---------------------------------------------------------------------------------------------


def test_tensors_stay_on_their_device() -> None:
    model, devices = Toy(), []
    model.arrays = [x.to("meta") for x in model.arrays]

    def attention(given: Given) -> Tensor:
        devices.extend(x.device.type for x in (given.q, given.k, given.v))
        return torch.empty_like(given.q)

    with watched(model, attention):
        assert model(None)[0].device.type == "meta"
    assert devices == ["meta"] * 3


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["whole", "in place", "inner", "forward"])
def test_a_compiled_model_runs_uncompiled(how: str, unchanged: Callable[[nn.Module], None]) -> None:
    model, graphs = nn.Sequential(Toy()), []
    expected, name = model(None)[0], "0"

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled: Any = model
    if how == "whole":
        compiled = torch.compile(model, backend=backend)
    elif how == "in place":
        model.compile(backend=backend)
    elif how == "inner":
        model[0], name = torch.compile(model[0], backend=backend), "0._orig_mod"
    else:
        model[0].forward = torch.compile(model[0].forward, backend=backend)
    assert alike([compiled(None)[0]], [expected])
    count, kept = len(graphs), Kept()
    assert count
    unchanged(model)
    with watched(compiled, kept) as watch:
        for _ in range(2):
            assert alike([compiled(None)[0]], [expected])
    assert kept.turns == [(name, 0)] * 2
    assert watch.passes == 2
    assert alike([compiled(None)[0]], [expected])
    assert len(graphs) == count  # the compiled code is still there
    torch._dynamo.reset()


def gradients(model: nn.Module, inputs: dict[str, Tensor]) -> list[Tensor]:
    model.zero_grad()
    model(**inputs, labels=inputs["input_ids"], use_cache=False).loss.backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("name", ["llama", "gpt_oss"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_replays_without_counting(name: str, reentrant: bool) -> None:
    model, inputs = made(name)
    expected = gradients(model, inputs)
    model.activation_checkpointing_enable({"use_reentrant": reentrant})
    model.train()
    kept = Kept()
    with watched(model, kept) as watch:
        found = gradients(model, inputs)
    assert alike(found, expected)
    first = [(given.name, given.turn) for given in kept.given if not given.replay]
    again = [(given.name, given.turn) for given in kept.given if given.replay]
    assert len(set(first)) == len(first) == 2
    assert again == first[::-1]
    assert watch.passes == 1


def test_replays_of_a_shared_module_have_the_turns_of_what_they_replay() -> None:
    toy = Toy()
    model = nn.Sequential(toy)
    toy.arrays[0].requires_grad_()

    def forward(times: int) -> Tensor:
        return sum(checkpoint(toy, None, scaling=0.1 * n, use_reentrant=False)[0].sum() for n in range(times))

    model.forward = forward  # type: ignore[method-assign]
    kept = Kept()
    with watched(model, kept):
        for times in (3, 2):
            total = model(times)
            for _ in range(2):
                total.backward(retain_graph=True)
    scales = {(given.turn, round(given.scale, 3)) for given in kept.given}
    assert scales == {(0, 0.0), (1, 0.1), (2, 0.2)}
    assert [given.turn for given in kept.given if not given.replay] == [0, 1, 2, 0, 1]
    assert [given.turn for given in kept.given if given.replay] == [2, 1, 0] * 2 + [1, 0] * 2


class Deep(torch.autograd.Function):
    """A backward pass in a backward pass, so deep that torch goes on in a thread of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, left: int, run: Callable[[Tensor], None]) -> Tensor:
        ctx.left, ctx.run = left, run
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        with torch.enable_grad():
            x = grad.detach().requires_grad_()
            if ctx.left:
                Deep.apply(x, ctx.left - 1, ctx.run).backward(grad)
            else:
                ctx.run(x)
        return grad, None, None


def test_a_replay_in_a_thread_of_torchs_own_is_a_replay() -> None:
    model, kept, threads = Toy(), Kept(), []

    def run(x: Tensor) -> None:
        threads.append(threading.get_ident())
        model(None)

    with watched(model, kept):
        model(None)
        x = torch.ones(1, requires_grad=True)
        Deep.apply(x, 70, run).sum().backward()
    assert threads != [threading.get_ident()]
    assert [(given.turn, given.replay) for given in kept.given] == [(0, False), (0, True)]


def test_edges_can_be_removed_from_any_execution() -> None:
    bias = torch.randn(1, 4, 7, 7, generator=torch.Generator().manual_seed(3))
    cases = [given_of(Toy(), is_causal=True), given_of(Toy(), position_bias=bias), given_of(Toy())]
    for given in cases:
        removed = torch.zeros(7, 7, dtype=torch.bool)
        removed[5, 2] = removed[3, :] = True
        attended: Attended = given.attend(removed=removed)
        permitted = given.readable.masks[0].dense(7, 7) & ~removed.numpy()
        added = None if given.readable.bias is None else given.readable.bias[0].numpy()
        for text in range(2):
            own = dense(
                given.q[text].numpy(),
                given.k[text].numpy(),
                given.v[text].numpy(),
                Mask(causal=False, explicit=permitted),
                bias=added,
            )
            assert abs(own.output.filled(0.0) - attended.output[text].numpy()).max() < 1e-5
            assert (attended.lse[text][:, 3] == -torch.inf).all()
            assert abs(own.lse - attended.lse[text].numpy().astype(float)).max() < 1e-5


@pytest.mark.parametrize(
    "removed", [torch.zeros(7, 7), torch.zeros(3, 7, dtype=torch.bool), torch.zeros(2, 3, 7, 7).bool()]
)
def test_edges_that_do_not_fit_are_refused(removed: Tensor) -> None:
    with pytest.raises(
        InputError, match=r"the edges to remove: expected a bool tensor that fits \[B, H, T, S\] = \(2, 4, 7, 7\)"
    ):
        given_of(Toy()).attend(removed=removed)


def test_values_can_be_exchanged() -> None:
    given = given_of(Toy())
    other = torch.ones_like(given.v)
    assert torch.allclose(given.attend(v=other).output, torch.ones(()), atol=1e-5)
    assert not torch.allclose(given.attend(k=-given.k).output, given.attend().output)
