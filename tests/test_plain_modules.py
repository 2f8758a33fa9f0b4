"""Plain torch modules, watched: outputs as without, every call seen once with what it was given, all put back."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as hooks
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from wherefrom.capture import plain_calls
from wherefrom.capture.fused import Attended
from wherefrom.capture.huggingface.seen import Given
from wherefrom.capture.plain_modules import watched_plain
from wherefrom.errors import InputError, ModelError


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@dataclass
class Kept:
    """An attention function that computes and keeps."""

    seen: list[tuple[Given, Attended]] = field(default_factory=list)

    def __call__(self, given: Given) -> Tensor:
        attended = given.attend()
        self.seen.append((given, attended))
        return attended.output

    @property
    def turns(self) -> list[tuple[str, int]]:
        return [(given.name, given.turn) for given, _ in self.seen]


def weights_of(given: Given, attended: Attended) -> Tensor:
    """The weights [B, H, T, S], rebuilt from what was seen."""
    k = given.k.repeat_interleave(given.q.shape[1] // given.k.shape[1], dim=1)
    scores = given.scale * (given.q.double() @ k.double().transpose(-1, -2))
    bias = given.readable.limits(given.q.double()).bias
    if given.readable.limits(given.q).causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    scores = scores if bias is None else scores + bias
    weights = torch.exp(scores - attended.lse.double().unsqueeze(-1))
    return weights.masked_fill((attended.lse == -torch.inf).unsqueeze(-1), 0.0)


def hooked() -> tuple[int, int, int]:
    """What a watch puts into the process."""
    return (
        len(hooks._global_forward_pre_hooks),
        len(hooks._global_forward_hooks),
        len(hooks._global_forward_hooks_always_called),
    )


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    before = hooked()
    yield
    assert hooked() == before
    assert torch._C._len_torch_function_stack() == 0


class Attention(nn.Module):
    """Self-attention that asks torch outright."""

    def __init__(self, width: int = 12, heads: int = 4, kv_heads: int | None = None, **named: Any) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.named = heads, kv_heads or heads, named
        size = width // heads
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * self.kv_heads * size)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, **named: Any) -> Tensor:
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(-2, -3)
        k, v = (part.unflatten(-1, (self.kv_heads, -1)).transpose(-2, -3) for part in self.kv(x).chunk(2, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, **{**self.named, **named})
        return self.out(y.transpose(-2, -3).flatten(-2))


class Stack(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, **named: Any) -> Tensor:
        for layer in self.layers:
            x = x + layer(x, **named)
        return x


def model(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    own = layers or (Attention(), Attention(kv_heads=2, enable_gqa=True), Attention(scale=0.3))
    return Stack(*own).eval()


CAUSAL = torch.ones(5, 5, dtype=torch.bool).tril()
PADDED = torch.tensor([[True] * 5, [False, False, True, True, True]])[:, None, None, :]
OUTRIGHT: dict[str, dict[str, Any]] = {
    "everything": {},
    "causal": {"is_causal": True},
    "bool mask": {"attn_mask": CAUSAL},
    "bool mask of texts": {"attn_mask": PADDED & CAUSAL},
    "padding alone": {"attn_mask": PADDED},
    "numbers": {"attn_mask": drawn(1, 4, 5, 5, seed=7)},
    "numbers and -inf": {"attn_mask": drawn(5, 5, seed=7).masked_fill(~CAUSAL, -torch.inf)},
    "mask and causal": {"attn_mask": PADDED, "is_causal": True},
    "a column for all": {"attn_mask": drawn(2, 1, 5, 1, seed=7)},
}


@pytest.mark.parametrize("name", OUTRIGHT)
@pytest.mark.parametrize("grad", [False, True])
def test_calls_outright(name: str, grad: bool) -> None:
    own, x, kept = model(), drawn(2, 5, 12), Kept()
    with torch.set_grad_enabled(grad):
        right = own(x, **OUTRIGHT[name])
        with watched_plain(own, kept) as watch:
            found = own(x, **OUTRIGHT[name])
    assert float((found - right).detach().abs().max()) <= 2e-6
    assert kept.turns == [("layers.0", 0), ("layers.1", 0), ("layers.2", 0)]
    assert watch.calls == dict.fromkeys(("layers.0", "layers.1", "layers.2"), 1)
    assert set(watch.asked.values()) == {"scaled_dot_product_attention"}
    assert [given.k.shape[1] for given, _ in kept.seen] == [4, 2, 4]
    assert [given.scale for given, _ in kept.seen] == [3**-0.5, 3**-0.5, 0.3]
    assert all(given.module is own.layers[layer] for layer, (given, _) in enumerate(kept.seen))
    for given, attended in kept.seen:
        assert len(given.readable.masks) == 2
        weights = weights_of(given, attended)
        rows = (attended.lse > -torch.inf).double()
        assert float((weights.sum(dim=-1) - rows).detach().abs().max()) <= 1e-5
        v = given.v.repeat_interleave(4 // given.v.shape[1], dim=1).double()
        assert float((weights @ v - attended.output.double()).detach().abs().max()) <= 1e-5
    if grad:
        wanted = list(own.parameters())
        pairs = zip(torch.autograd.grad(right.sum(), wanted), torch.autograd.grad(found.sum(), wanted), strict=True)
        assert max(float((one - other).abs().max()) for one, other in pairs) <= 2e-5


def test_the_plain_causal_call_needs_no_mask_array() -> None:
    own, kept = model(), Kept()
    with watched_plain(own, kept):
        own(drawn(2, 5, 12), is_causal=True)
    (mask, other) = kept.seen[0][0].readable.masks
    assert mask is other
    assert mask.only_causal
    assert kept.seen[0][0].readable.limits(kept.seen[0][0].q).bias is None


SHAPES = [
    ((5, 4), (6, 4), (6, 3), None, {}),
    ((3, 5, 4), (3, 6, 4), (3, 6, 3), None, {}),
    ((3, 5, 4), (3, 6, 4), (3, 6, 3), (3, 5, 6), {}),
    ((3, 5, 4), (3, 6, 4), (3, 6, 3), (5, 6), {}),
    ((3, 5, 4), (1, 6, 4), (1, 6, 3), (3, 1, 6), {}),
    ((3, 5, 4), (6, 4), (6, 3), None, {}),
    ((1, 5, 4), (3, 6, 4), (3, 6, 3), None, {}),
    ((2, 4, 5, 4), (1, 4, 6, 4), (1, 4, 6, 3), None, {}),
    ((2, 4, 5, 4), (2, 1, 6, 4), (2, 1, 6, 3), None, {}),
    ((2, 1, 5, 4), (2, 4, 6, 4), (2, 4, 6, 3), None, {}),
    ((2, 4, 5, 4), (2, 4, 6, 4), (2, 1, 6, 3), (4, 5, 6), {}),
    ((2, 4, 5, 4), (4, 6, 4), (4, 6, 3), (6,), {}),
    ((2, 4, 5, 4), (2, 2, 6, 4), (2, 2, 6, 3), (2, 4, 1, 6), {"enable_gqa": True}),
    ((2, 4, 5, 4), (2, 2, 6, 4), (2, 1, 6, 3), None, {"enable_gqa": True}),
    ((2, 3, 4, 5, 4), (2, 3, 4, 6, 4), (2, 3, 4, 6, 3), None, {}),
    ((2, 3, 4, 5, 4), (2, 3, 4, 6, 4), (2, 3, 4, 6, 3), (3, 1, 5, 6), {}),
    ((2, 1, 4, 5, 4), (1, 3, 4, 6, 4), (3, 4, 6, 3), (2, 1, 1, 1, 6), {}),
    ((2, 3, 4, 5, 4), (2, 3, 2, 6, 4), (2, 3, 2, 6, 3), (6,), {"enable_gqa": True}),
]


class Outright(nn.Module):
    def forward(self, *args: Any, **named: Any) -> Tensor:
        return F.scaled_dot_product_attention(*args, **named)


@pytest.mark.parametrize(("q", "k", "v", "mask", "named"), SHAPES)
def test_every_shape_that_torch_takes(q: Any, k: Any, v: Any, mask: Any, named: dict[str, Any]) -> None:
    arrays = [drawn(*shape, seed=i) for i, shape in enumerate((q, k, v))]
    arrays += [] if mask is None else [drawn(*mask, seed=9)]
    own, kept = Outright(), Kept()
    right = own(*arrays, **named)
    with watched_plain(own, kept):
        found = own(*arrays, **named)
    assert found.shape == right.shape
    assert float((found - right).abs().max()) <= 2e-6
    ((given, _),) = kept.seen
    assert given.name == ""
    assert given.q.ndim == given.k.ndim == given.v.ndim == 4


@pytest.mark.parametrize(
    ("q", "k", "v", "named"),
    [
        ((2, 4, 5, 4), (2, 2, 6, 4), (2, 2, 6, 4), {}),
        ((2, 4, 5, 4), (2, 4, 6, 3), (2, 4, 6, 4), {}),
        ((2, 4, 5, 4), (3, 4, 6, 4), (3, 4, 6, 4), {}),
        ((2, 4, 5, 4), (2, 4, 6, 4), (2, 4, 6, 4), {"attn_mask": torch.zeros(3, 1, 5, 6)}),
    ],
)
def test_what_torch_refuses_it_still_refuses_in_its_own_words(q: Any, k: Any, v: Any, named: dict[str, Any]) -> None:
    arrays, own = [drawn(*shape) for shape in (q, k, v)], Outright()
    with pytest.raises(RuntimeError) as right:
        own(*arrays, **named)
    with watched_plain(own, Kept()), pytest.raises(RuntimeError) as found:
        own(*arrays, **named)
    assert str(found.value) == str(right.value)


class Multi(nn.Module):
    """Attention by `nn.MultiheadAttention`, called in a given way."""

    def __init__(self, call: dict[str, Any], sources: int = 0, **made: Any) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.attention = nn.MultiheadAttention(12, 4, **made)
        self.call, self.sources, self.made = call, sources, made

    def forward(self, x: Tensor) -> Any:
        first = self.made.get("batch_first", False)
        x = x.transpose(0, 1) if x.ndim == 3 and not first else x
        axis = 1 if x.ndim == 3 and first else 0
        read = x if not self.sources else torch.cat([x, x], dim=axis).narrow(axis, 0, self.sources)
        if "kdim" in self.made:
            read = read[..., : self.made["kdim"]]
        return self.attention(x, read, read, **self.call)


KEYS = torch.tensor([[False] * 5, [True, True, False, False, False]])
PER_HEAD = drawn(8, 5, 5, seed=3) < -1.0
MULTI: dict[str, Callable[[], Multi]] = {
    "by default": lambda: Multi({}),
    "batch first": lambda: Multi({}, batch_first=True),
    "batch first, no weights": lambda: Multi({"need_weights": False}, batch_first=True),
    "no weights": lambda: Multi({"need_weights": False}),
    "weights of heads": lambda: Multi({"average_attn_weights": False}),
    "causal": lambda: Multi({"attn_mask": ~CAUSAL, "need_weights": False}),
    "causal, as a hint": lambda: Multi({"attn_mask": ~CAUSAL, "need_weights": False, "is_causal": True}),
    "causal, as a hint, weights": lambda: Multi({"attn_mask": ~CAUSAL, "is_causal": True}),
    "a hint that is wrong, weights": lambda: Multi({"attn_mask": drawn(5, 5, seed=3) < -1.0, "is_causal": True}),
    "causal, as a hint, padding": lambda: Multi(
        {"attn_mask": ~CAUSAL, "is_causal": True, "need_weights": False, "key_padding_mask": KEYS.flip(1)}
    ),
    "padding": lambda: Multi({"key_padding_mask": KEYS}, batch_first=True),
    "padding, no weights": lambda: Multi({"key_padding_mask": KEYS, "need_weights": False}),
    "a mask of each head": lambda: Multi({"attn_mask": PER_HEAD, "need_weights": False}),
    "a bias of each head": lambda: Multi({"attn_mask": drawn(8, 5, 5, seed=3)}),
    "cross-attention": lambda: Multi({"need_weights": False}, sources=7, kdim=5, vdim=5, batch_first=True),
    "without biases": lambda: Multi({}, bias=False),
    "biases as a key": lambda: Multi({"key_padding_mask": KEYS}, add_bias_kv=True),
    "a key of zeros": lambda: Multi({"attn_mask": ~CAUSAL, "need_weights": False}, add_zero_attn=True),
    "dropout in eval mode": lambda: Multi({}, dropout=0.4),
}


@pytest.mark.parametrize("name", MULTI)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("batched", [True, False])
def test_multi_head_attention(name: str, grad: bool, batched: bool) -> None:
    own, kept = MULTI[name]().eval(), Kept()
    if not batched:
        masks = {key: own.call[key] for key in ("key_padding_mask", "attn_mask") if key in own.call}
        own.call |= {key: mask[:4] if mask.ndim == 3 else mask for key, mask in masks.items()}
        if "key_padding_mask" in own.call:
            own.call["key_padding_mask"] = own.call["key_padding_mask"][1]
    x = drawn(2, 5, 12) if batched else drawn(5, 12)
    with torch.set_grad_enabled(grad):
        right, right_weights = own(x)
        with watched_plain(own, kept) as watch:
            found, found_weights = own(x)
    assert found.shape == right.shape
    assert float((found - right).detach().abs().max()) <= 2e-6
    assert (found_weights is None) == (right_weights is None)
    if right_weights is not None:
        assert found_weights.shape == right_weights.shape
        assert float((found_weights - right_weights).detach().abs().max()) <= 2e-6
        weights = weights_of(*kept.seen[0])
        weights = weights.mean(dim=1) if own.call.get("average_attn_weights", True) else weights
        weights = weights if batched else weights[0]
        assert float((weights - right_weights.double()).detach().abs().max()) <= 2e-6
    assert kept.turns == [("attention", 0)]
    assert watch.asked == {"attention": "multi_head_attention"}
    assert kept.seen[0][0].module is own.attention


ENCODERS: dict[str, Callable[[], nn.Module]] = {
    "a layer": lambda: nn.TransformerEncoderLayer(12, 4, 16, batch_first=True),
    "norm first": lambda: nn.TransformerEncoderLayer(12, 4, 16, batch_first=True, norm_first=True),
    "a stack": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 4, 16, batch_first=True), 3),
}


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("padded", [False, True])
def test_encoders_whose_fast_path_tells_nobody(name: str, padded: bool) -> None:
    torch.manual_seed(2)
    own, kept, x = ENCODERS[name]().eval(), Kept(), drawn(2, 5, 12)
    named = {"src_key_padding_mask": KEYS.flip(1)} if padded else {}
    with torch.no_grad():
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The PyTorch API of nested tensors")
            right = own(x, **named)
        with watched_plain(own, kept):
            found = own(x, **named)
    assert len(kept.seen) == (3 if name == "a stack" else 1)
    real = ~KEYS.flip(1) if padded else torch.ones(2, 5, dtype=torch.bool)
    assert float((found - right)[real].abs().max()) <= 4e-6


def test_a_whole_transformer() -> None:
    torch.manual_seed(2)
    own = nn.Transformer(12, 4, 2, 2, 16, batch_first=True).eval()
    kept, hint = Kept(), nn.Transformer.generate_square_subsequent_mask(4)
    given = drawn(2, 5, 12), drawn(2, 4, 12, seed=1)
    with torch.no_grad():
        right = own(*given, tgt_mask=hint, tgt_is_causal=True)
        with watched_plain(own, kept):
            found = own(*given, tgt_mask=hint, tgt_is_causal=True)
    assert float((found - right).abs().max()) <= 4e-6
    assert [name for name, _ in kept.turns] == [
        "encoder.layers.0.self_attn",
        "encoder.layers.1.self_attn",
        "decoder.layers.0.self_attn",
        "decoder.layers.0.multihead_attn",
        "decoder.layers.1.self_attn",
        "decoder.layers.1.multihead_attn",
    ]


def test_what_is_changed_reaches_the_outputs() -> None:
    for own, x in ((model(), drawn(2, 5, 12)), (Multi({}).eval(), drawn(2, 5, 12))):

        def halved(given: Given) -> Tensor:
            return 0.5 * given.attend().output

        right = own(x)
        with watched_plain(own, halved):
            found = own(x)
        outputs = [one if isinstance(one, Tensor) else one[0] for one in (found, right)]
        assert float((outputs[0] - outputs[1]).detach().abs().max()) > 1e-3


def test_turns_begin_anew_with_each_pass() -> None:
    shared = Attention()
    own, kept = model(shared, shared, Attention()), Kept()
    with watched_plain(own, kept) as watch:
        for _ in range(2):
            own(drawn(1, 5, 12))
            assert watch.calls == {"layers.0": 2, "layers.2": 1}
        shared(drawn(1, 5, 12))  # by itself: a pass of its own
        assert watch.calls == {"layers.0": 1}
    assert watch.passes == 3
    assert kept.turns == [*[("layers.0", 0), ("layers.0", 1), ("layers.2", 0)] * 2, ("layers.0", 0)]


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_replays(reentrant: bool) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Attention()

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(2):
                x = checkpoint(self.inner, x, use_reentrant=reentrant)
            return x

    torch.manual_seed(3)
    own, kept, x = Twice().eval(), Kept(), drawn(1, 5, 12).requires_grad_()
    (right,) = torch.autograd.grad(own.inner(own.inner(x)).sum(), [x])
    with watched_plain(own, kept) as watch:
        own(x).sum().backward()
    assert [(given.turn, given.replay) for given, _ in kept.seen] == [(0, False), (1, False), (1, True), (0, True)]
    assert watch.passes == 1
    assert float((x.grad - right).abs().max()) <= 1e-5


@pytest.mark.parametrize("where", ["attention", "module", "hook"])
def test_an_exception_puts_all_back(where: str) -> None:
    own, kept, x = model(), Kept(), drawn(1, 5, 12)

    def fails(*_: Any) -> None:
        raise KeyError("lost")

    handle = own.layers[1].out.register_forward_pre_hook(fails) if where == "hook" else None
    with pytest.raises((KeyError, RuntimeError)), watched_plain(own, fails if where == "attention" else kept):
        own(x[..., :7] if where == "module" else x)
    if handle is not None:
        handle.remove()
        with watched_plain(own, kept) as watch:  # the same watch goes on after an exception within it
            handle = own.layers[1].out.register_forward_pre_hook(fails)
            with pytest.raises(KeyError):
                own(x)
            handle.remove()
            kept.seen.clear()
            own(x)
        assert watch.passes == 2
        assert [name for name, _ in kept.turns] == ["layers.0", "layers.1", "layers.2"]


def test_a_pass_after_one_that_was_interrupted() -> None:
    own, kept = model(), Kept()

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with watched_plain(own, kept) as watch:
        handle = own.layers[1].out.register_forward_pre_hook(interrupted)
        with pytest.raises(KeyboardInterrupt):
            own(drawn(1, 5, 12))
        handle.remove()
        kept.seen.clear()
        own(drawn(1, 5, 12))
    assert watch.passes == 2
    assert kept.turns == [("layers.0", 0), ("layers.1", 0), ("layers.2", 0)]


def test_a_module_that_is_not_of_the_model_is_left_alone() -> None:
    own, other, kept = model(), model(), Kept()
    dropping, q = Multi({}, dropout=0.5).train(), drawn(1, 4, 5, 3)
    with watched_plain(own, kept):
        other(drawn(1, 5, 12))
        dropping(drawn(2, 5, 12))
        F.scaled_dot_product_attention(q, q, q)
    assert kept.seen == []


def test_one_watch_in_another() -> None:
    inner, outer, last = Kept(), Kept(), Kept()
    part, other = model(), model()
    whole = Stack(part, other).eval()
    x = drawn(1, 5, 12)
    with watched_plain(whole, outer):
        with watched_plain(part, inner):
            right = whole(x)
        whole(x)
        with watched_plain(whole, last):
            found = whole(x)
    assert [name for name, _ in inner.turns] == ["layers.0", "layers.1", "layers.2"]
    names = [f"layers.{i}.layers.{j}" for i in range(2) for j in range(3)]
    assert [name for name, _ in outer.turns] == [*names[3:], *names]
    assert [name for name, _ in last.turns] == names
    assert torch.equal(found, right)


def test_threads_do_not_see_one_another() -> None:
    own, x = model(), drawn(1, 5, 12)
    right, found, meeting = own(x), {}, threading.Barrier(3)

    def run(number: int) -> None:
        kept = Kept()
        if number == 2:
            meeting.wait(10)
            found[number] = (own(x), kept.turns)
            meeting.wait(10)
            return
        with watched_plain(own, kept):
            meeting.wait(10)
            found[number] = (own(x), kept.turns)
            meeting.wait(10)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert [len(found[number][1]) for number in range(3)] == [3, 3, 0]
    assert all(float((output - right).detach().abs().max()) <= 2e-6 for output, _ in found.values())


def test_what_is_handled_is_not_taken_twice() -> None:
    own, x = model(), drawn(1, 5, 12)
    taken = []

    def by_torch(given: Given) -> Tensor:
        taken.append(given.name)
        with watched_plain(given.module, Kept()):  # nor by another watch inside
            return F.scaled_dot_product_attention(given.q, given.k, given.v, scale=given.scale, enable_gqa=True)

    right = own(x)
    with watched_plain(own, by_torch):
        found = own(x)
        with plain_calls.handled():
            own(x)
    assert taken == ["layers.0", "layers.1", "layers.2"]
    assert float((found - right).detach().abs().max()) <= 2e-6
    assert not plain_calls.is_handled()


def test_other_modes_see_what_they_saw() -> None:
    class Count(TorchFunctionMode):
        linear = 0

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.linear += func is F.linear
            return func(*args, **(kwargs or {}))

    own, x = model(), drawn(2, 5, 12)
    with Count() as plain:
        own(x)
    with Count() as watched, watched_plain(own, Kept()):
        own(x)
    assert watched.linear == plain.linear > 0


@pytest.mark.parametrize("own", [Attention(dropout_p=0.25), Multi({}, dropout=0.25)])
def test_dropout_is_refused(own: nn.Module) -> None:
    with (
        watched_plain(own.train(), Kept()),
        pytest.raises(InputError, match=r"expected no dropout, got a dropout of 0\.25"),
    ):
        own(drawn(2, 5, 12))


@pytest.mark.parametrize("kind", ["scripted", "compiled", "compiled in place"])
def test_code_that_tells_nobody_is_refused(kind: str) -> None:
    part = nn.Linear(2, 2)
    if kind == "compiled in place":
        part.compile(backend="eager")
    elif kind == "compiled":
        part = torch.compile(part, backend="eager")
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            part = torch.jit.script(part)
    own = nn.Sequential(nn.Linear(2, 2), part)
    with pytest.raises(ModelError, match=r"the module 1 .*: expected one that Python runs"), watched_plain(own, Kept()):
        pass


def test_nested_tensors_are_refused() -> None:
    x = torch.nested.nested_tensor([drawn(2, 3, 4), drawn(2, 5, 4)], layout=torch.jagged)
    own = Outright()
    with watched_plain(own, Kept()), pytest.raises(InputError, match="got nested tensors"):
        own(x, x, x)


def test_a_torch_whose_code_changed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(F, "multi_head_attention_forward", lambda *_, **__: None)
    with pytest.raises(ModelError, match="expected a call of scaled_dot_product_attention in it"):
        plain_calls.PlainCalls(lambda: None, lambda *_: torch.zeros(1))


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(InputError, match="the model: expected a Module"), watched_plain("model", Kept()):  # type: ignore[arg-type]
        pass
