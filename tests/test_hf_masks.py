"""Masks of transformers models: the rules that are read from them, against the tensors that transformers makes."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from wherefrom.attention import Mask
from wherefrom.capture.huggingface import maker
from wherefrom.capture.huggingface.masks import HELD, LazyMask, Readable, mask_maker, readable
from wherefrom.capture.huggingface.recognised import recognised
from wherefrom.errors import InputError

transformers = pytest.importorskip("transformers")
masking = pytest.importorskip("transformers.masking_utils")

Permitted = np.ndarray[Any, np.dtype[np.bool_]]
LOWEST = torch.finfo(torch.float32).min
make = mask_maker(masking.sdpa_mask)
make_float = mask_maker(masking.eager_mask)


def arrays(texts: int, rows: int, columns: int, *, heads: int = 4, key_heads: int = 2) -> tuple[Tensor, Tensor]:
    """Queries and keys, of which the shapes matter."""
    return torch.zeros(texts, heads, rows, 8), torch.zeros(texts, key_heads, columns, 8)


def of(given: Any, texts: int = 1, rows: int = 5, columns: int = 5, heads: int = 4, **more: Any) -> Readable:
    return readable(given, *arrays(texts, rows, columns, heads=heads), **more)


def stock(**settings: Any) -> Tensor:
    """What transformers' own function makes, never left out."""
    settings |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    made: Tensor = masking.sdpa_mask(**settings)
    return made


def require_same(read: Readable, expected: Tensor, *, bias: Tensor | float = 0.0) -> None:
    """Both forms of what was read say what a bool [B|1, H|1, T, S] says."""
    texts, heads, rows, columns = read.sizes
    expected = expected.expand(texts, heads, rows, columns)
    assert torch.equal(read.permitted().expand(expected.shape), expected)
    assert len(read.masks) == texts
    for mask, own in zip(read.masks, expected.numpy(), strict=True):
        assert np.array_equal(np.broadcast_to(mask.dense(rows, columns), own.shape), own)
    if read.shared is not None:
        assert np.array_equal(read.shared.dense(rows, columns), expected[0, 0].numpy())
    limits = read.limits(torch.zeros(1))
    added = torch.zeros(()) if limits.bias is None else limits.bias
    causal = torch.ones(rows, columns, dtype=torch.bool).tril() if limits.causal else torch.tensor(True)
    wanted = torch.where(expected, torch.as_tensor(bias, dtype=torch.float32), -torch.inf)
    assert torch.equal(torch.where(causal, added, -torch.inf).expand(expected.shape), wanted)
    dead = torch.tensor(False) if limits.dead is None else limits.dead
    assert torch.equal(dead.expand(expected.shape[:3]), ~expected.any(dim=-1))


RULES: dict[str, Callable[[], Any]] = {
    "causal": lambda: masking.causal_mask_function,
    "window": lambda: masking.sliding_window_causal_mask_function(3),
    "wide window": lambda: masking.sliding_window_causal_mask_function(50),
    "bidirectional": lambda: masking.bidirectional_mask_function,
    "bidirectional window": lambda: masking.sliding_window_bidirectional_mask_function(2),
    "both windows": lambda: masking.and_masks(
        masking.causal_mask_function,
        masking.sliding_window_bidirectional_overlay(1),
        masking.sliding_window_overlay(4),
    ),
}
SIZES = [
    (7, 7, 0, 0),
    (1, 1, 0, 0),
    (1, 9, 8, 0),
    (3, 9, 6, 0),
    (4, 12, 0, 0),
    (1, 4, 9, 6),
    (2, 6, 9, 5),
    (6, 3, 0, 0),
    (2, 9, 0, 0),
]
"""Rows, columns, absolute positions of the first row and key: prefill, one token, steps, a static cache, windows."""
PADS = ["none", "full", "left", "right", "holes", "short", "all"]


def padding(kind: str, columns: int, first: int) -> Tensor | None:
    """Two texts, of which the second has pads; over the keys that a cache no longer holds, too."""
    if kind == "none":
        return None
    tokens = torch.ones(2, first + columns, dtype=torch.bool)
    if kind == "short":  # the keys beyond are slots of a static cache that are not written yet
        return tokens[:, : first + columns - columns // 2]
    where = {"full": [], "left": slice(0, 3), "right": slice(-2, None), "holes": slice(1, None, 3), "all": slice(None)}
    tokens[1, where[kind]] = False
    return tokens


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("pads", PADS)
def test_a_known_rule_is_read_and_says_what_the_stock_tensor_says(
    name: str, sizes: tuple[int, int, int, int], pads: str
) -> None:
    rows, columns, q_offset, kv_offset = sizes
    settings = {"batch_size": 2, "q_length": rows, "kv_length": columns, "q_offset": q_offset, "kv_offset": kv_offset}
    settings |= {"mask_function": RULES[name](), "attention_mask": padding(pads, columns, kv_offset)}
    mask, as_float = make(**settings), make_float(**settings)
    expected = stock(**settings)
    assert isinstance(mask, LazyMask)
    assert isinstance(as_float, LazyMask)
    assert (mask.shape, mask.dtype, as_float.dtype) == (expected.shape, torch.bool, torch.float32)
    for given in (mask, as_float):
        read = of(given, 2, rows, columns)
        require_same(read, expected)
        assert not given.made  # none of it needed n x n numbers from transformers
        assert read.offsets == (q_offset, kv_offset)
        assert all(own.offset == q_offset - kv_offset and own.explicit is None for own in read.masks)
        assert all(own.causal == ("bidirectional" not in name) for own in read.masks)
    assert torch.equal(mask & True, expected)
    assert torch.equal(as_float == 0, expected)
    require_same(of(mask, 2, rows, columns), expected)  # now from the tensor


def test_no_rule_without_arrays_needs_an_array() -> None:
    full = make(batch_size=3, q_length=4000, kv_length=4000)
    read = of(full, 3, 4000, 4000)
    assert read.shared == Mask()
    assert read.limits(torch.zeros(1)).causal
    window = make(batch_size=1, q_length=4000, kv_length=4000, mask_function=RULES["window"]())
    assert of(window, 1, 4000, 4000).shared == Mask(window=3)
    assert not full.made
    assert not window.made
    step = make(batch_size=1, q_length=1, kv_length=9, q_offset=8)
    assert of(step, 1, 1, 9).shared == Mask(offset=8)
    assert of(step, 1, 1, 9).limits(torch.zeros(1)).bias is None
    sliding = make(batch_size=1, q_length=1, kv_length=3, q_offset=8, kv_offset=6, mask_function=RULES["window"]())
    assert of(sliding, 1, 1, 3).shared == Mask(offset=2)
    assert of(sliding, 1, 1, 3).limits(torch.zeros(1)).bias is None
    written = torch.ones(1, 4, dtype=torch.bool)  # of a static cache's 9 slots
    static = make(batch_size=1, q_length=4, kv_length=9, attention_mask=written)
    assert of(static, 1, 4, 9).shared == Mask()
    # rows that stand beyond the columns: strips of a window would not see them
    beyond = make(batch_size=1, q_length=6, kv_length=3, mask_function=RULES["window"]())
    assert of(beyond, 1, 6, 3).shared is None
    assert of(beyond, 1, 6, 3).masks[0] == Mask(window=3)


def test_texts_and_layers_share_their_masks() -> None:
    tokens = torch.ones(4, 6, dtype=torch.bool)
    tokens[1, :2] = tokens[3, :2] = False
    settings = {"batch_size": 4, "q_length": 6, "kv_length": 6, "attention_mask": tokens}
    mask = make(**settings)
    read = of(mask, 4, 6, 6)
    assert read.masks[1] is read.masks[3]
    assert read.masks[0] is read.masks[2] is not read.masks[1]
    assert read.masks[1].padding is not None
    assert read.masks[0] == Mask()
    assert of(mask, 4, 6, 6) is read
    assert read.shared is None
    assert of(make(**settings | {"batch_size": 1, "attention_mask": tokens[1:2]}), 1, 6, 6).shared is None
    assert of(make(**settings), 4, 6, 6).masks[1] is read.masks[1]  # made anew by the next layer
    limits = read.limits(torch.zeros(1))
    assert read.limits(torch.zeros(2)) is limits is not read.limits(torch.zeros(1, dtype=torch.float64))
    assert of(make(batch_size=1, q_length=6, kv_length=6), 3, 6, 6).masks == (Mask(),) * 3  # one mask for all texts


def test_a_static_cache_may_change_its_offset_and_anyone_the_padding() -> None:
    offset, tokens = torch.tensor(2), torch.ones(1, 8, dtype=torch.bool)
    tokens[0, 0] = False
    settings: dict[str, Any] = {
        "batch_size": 1,
        "q_length": 2,
        "kv_length": 8,
        "q_offset": offset,
        "attention_mask": tokens,
    }
    expected = stock(**settings)
    mask = make(**settings)
    offset.add_(3)
    tokens.fill_(True)
    require_same(of(mask, 1, 2, 8), expected)
    assert torch.equal(mask & True, expected)  # type: ignore[operator]
    assert of(mask, 1, 2, 8).offsets == (2, 0)


IMAGE = torch.tensor([[-1, 0, 0, 0, -1, 1, 1]])
PACKED = torch.tensor([[0, 1, 2, 0, 1, 2, 3]])
UNKNOWN: dict[str, Callable[[], Any]] = {
    "chunks": lambda: masking.chunked_causal_mask_function(3, torch.zeros(1, dtype=torch.long)),
    "image blocks": lambda: masking.or_masks(masking.causal_mask_function, masking.blockwise_overlay(IMAGE)),
    "packed": lambda: masking.and_masks(
        masking.remap_positions_for_packed_sequence(masking.causal_mask_function, PACKED),
        masking.packed_sequence_mask_function((PACKED == 0).cumsum(-1)),
    ),
    "a window without an end": lambda: masking.sliding_window_overlay(3),
    "a window of nothing": lambda: masking.sliding_window_causal_mask_function(0),
    "one's own": lambda: lambda text, head, i, j: (j <= i) & (j != 2),
    "one's own among known ones": lambda: masking.and_masks(
        masking.causal_mask_function, lambda text, head, i, j: j % 2 == 0
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_any_other_rule_is_the_stock_tensor(name: str) -> None:
    settings = {"batch_size": 1, "q_length": 7, "kv_length": 7, "mask_function": UNKNOWN[name]()}
    mask = make(**settings, allow_is_causal_skip=True, allow_is_bidirectional_skip=True)
    assert type(mask) is Tensor
    require_same(of(mask, 1, 7, 7), stock(**settings))
    as_float = make_float(**settings)
    assert type(as_float) is Tensor
    require_same(of(as_float, 1, 7, 7), stock(**settings))


def test_a_stock_tensor_keeps_its_offsets() -> None:
    settings = {
        "batch_size": 1,
        "q_length": 2,
        "kv_length": 6,
        "q_offset": 7,
        "kv_offset": 3,
        "mask_function": UNKNOWN["chunks"](),
    }
    read = of(make(**settings), 1, 2, 6)
    assert read.offsets == (7, 3)
    assert read.masks[0].causal
    assert read.masks[0].offset == 4
    assert read.masks[0].explicit is not None
    require_same(read, stock(**settings))
    lazily = make(**settings | {"mask_function": masking.causal_mask_function})
    assert lazily is not None
    assert of(lazily & True, 1, 2, 6).masks == (Mask(offset=4),)
    assert lazily.made
    assert of(lazily, 1, 2, 6).offsets == (7, 3)


def test_tokens_that_one_row_does_not_read_are_no_pads() -> None:
    tokens = torch.tensor([[False, True, True, True, True, True, True]])
    settings: dict[str, Any] = {"batch_size": 1, "q_length": 1, "kv_length": 7, "q_offset": 6, "attention_mask": tokens}
    chunks = make(**settings, mask_function=masking.chunked_causal_mask_function(4, torch.zeros(1, dtype=torch.long)))
    (mask,) = of(chunks, 1, 1, 7).masks
    assert mask.padding is None
    assert mask == Mask(offset=6, explicit=mask.explicit)
    assert mask.dense(1, 7).tolist() == [[False, False, False, False, True, True, True]]
    whole = make(**settings, mask_function=masking.chunked_causal_mask_function(9, torch.zeros(1, dtype=torch.long)))
    assert of(whole, 1, 1, 7).masks == (Mask(offset=6, padding=tokens[0].numpy()),)
    assert of(lazily(), 2, 5, 5).masks[1].explicit is None
    rule = make(**settings)
    assert of(rule, 1, 1, 7, indices=torch.tensor([[[4, 5, 6]]])).masks == (mask,)
    assert of(rule, 1, 1, 7, indices=torch.arange(7)[None, None]).masks == of(rule, 1, 1, 7).masks
    assert of(rule + 0 > 0, 1, 1, 7).masks[0].padding is not None  # whose nobody knows
    encoder = make(**settings | {"q_offset": 0}, mask_function=masking.or_masks(masking.bidirectional_mask_function))
    assert of(encoder, 1, 1, 7).masks == (Mask.bidirectional(padding=tokens[0].numpy()),)


def test_rows_before_the_first_key_are_not_a_rule_of_ours() -> None:
    settings = {"batch_size": 1, "q_length": 3, "kv_length": 3, "q_offset": 1, "kv_offset": 2}
    mask = make(**settings)
    assert type(mask) is Tensor
    require_same(of(mask, 1, 3, 3), stock(**settings))


def test_a_tree_that_its_probes_contradict_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {
        "batch_size": 1,
        "q_length": 9,
        "kv_length": 9,
        "mask_function": masking.sliding_window_causal_mask_function(3),
    }
    for wrong in (2, 4):
        monkeypatch.setattr(maker, "_captured", misread(maker._captured, wrong))
        assert type(make(**settings)) is Tensor
        monkeypatch.undo()
    assert isinstance(make(**settings), LazyMask)
    with monkeypatch.context() as believing:
        believing.setattr(maker, "_probed", lambda *of: True)
        assert type(make(**settings | {"mask_function": UNKNOWN["a window without an end"]()})) is Tensor
    # a version of transformers that means something else by a name: every function known, and the sum of them wrong
    monkeypatch.setattr(maker, "_edges", lambda function: maker._Edges(causal=True))
    assert type(make(**settings | {"mask_function": masking.bidirectional_mask_function})) is Tensor


def misread(captured: Callable[[Any, str], Any], window: int) -> Callable[[Any, str], Any]:
    return lambda function, name: window if name == "sliding_window" else captured(function, name)


def test_none_is_answered_for_nothing_hidden_and_for_nothing_else() -> None:
    both: dict[str, Any] = {"allow_is_causal_skip": True, "allow_is_bidirectional_skip": True}
    sizes: dict[str, Any] = {"batch_size": 1, "q_length": 4, "kv_length": 4}
    encoder = {"mask_function": masking.bidirectional_mask_function}
    for ask in (make, make_float):
        assert ask(**sizes, **both) is not None  # causal, where transformers answers None
        assert ask(**sizes, **both, **encoder) is None
        full = torch.ones(1, 4, dtype=torch.bool)
        assert ask(**sizes, **both, **encoder, attention_mask=full) is None
        assert ask(**sizes, **encoder) is not None
        window = {"mask_function": masking.sliding_window_bidirectional_mask_function(9), "local_size": 9}
        assert ask(**sizes, **both, **window) is None
        window = {"mask_function": masking.sliding_window_bidirectional_mask_function(1), "local_size": 1}
        assert ask(**sizes, **both, **window) is not None
        for tokens in (full.clone().fill_(False), full[:, :3]):
            hiding = ask(**sizes, **both, **encoder, attention_mask=tokens)
            assert hiding is not None
            require_same(of(hiding, 1, 4, 4), stock(**sizes, **encoder, attention_mask=tokens))
    read = of(None)
    assert read.shared == Mask.bidirectional()
    assert read.bias is None
    assert read.offsets == (0, 0)
    require_same(read, torch.tensor(True))


def test_a_mask_function_of_someone_else_is_left_alone() -> None:
    def theirs(**settings: Any) -> Tensor:
        return torch.zeros(1, 1, settings["q_length"], settings["kv_length"], dtype=torch.bool)

    mask = mask_maker(theirs)(batch_size=1, q_length=3, kv_length=3)
    assert type(mask) is Tensor
    assert not mask.any()


def test_padding_of_another_form_is_left_to_transformers() -> None:
    numbers = torch.tensor([[0, 1, 1]])
    mask = make(batch_size=1, q_length=3, kv_length=3, attention_mask=numbers)
    assert type(mask) is Tensor


LEAVING: dict[str, Callable[[Tensor], Tensor]] = {
    "slice": lambda mask: mask[:, :, :, :5],
    "wide slice": lambda mask: mask[:, :, :, :999],
    "dots": lambda mask: mask[..., :5],
    "dots before": lambda mask: mask[:, ..., 0:],
    "short": lambda mask: mask[:],
    "to": lambda mask: mask.to(torch.bool),
    "to device": lambda mask: mask.to("cpu", torch.bool, non_blocking=True),
    "to other": lambda mask: mask.to(torch.ones(1, dtype=torch.bool)),
    "contiguous": lambda mask: mask.contiguous(),
    "expand": lambda mask: mask.expand(2, -1, 5, 5),
}
USING: dict[str, Callable[[Any], Any]] = {
    "cut": lambda mask: mask[:, :, :, :4],
    "cut rows": lambda mask: mask[:, :, 1:],
    "step": lambda mask: mask[:, :, ::2],
    "from the end": lambda mask: mask[..., -3:],
    "up to the end": lambda mask: mask[..., :-1],
    "one": lambda mask: mask[0],
    "new axis": lambda mask: mask[:, None],
    "too many": lambda mask: mask[..., None, :],
    "a tensor": lambda mask: mask[torch.tensor([1, 0])],
    "numbers": lambda mask: mask.to(torch.float32),
    "copy": lambda mask: mask.to(torch.bool, copy=True),
    "expand heads": lambda mask: mask.expand(2, 3, 5, 5),
    "add": lambda mask: mask + 1,
    "added": lambda mask: torch.zeros(5, 5) + mask,
    "not": lambda mask: ~mask,
    "and": lambda mask: torch.ones(5, 5, dtype=torch.bool) & mask,
    "cat": lambda mask: torch.cat([mask, mask], dim=-1),
    "where": lambda mask: torch.where(mask, 0.0, -1.0),
    "filled": lambda mask: torch.zeros(2, 1, 5, 5).masked_fill(mask, 1.0),
    "equal": lambda mask: mask == True,  # noqa: E712
    "torch.equal": lambda mask: torch.equal(mask, torch.ones(2, 1, 5, 5, dtype=torch.bool)),
    "sum": lambda mask: mask.sum(dim=-1),
    "all": lambda mask: bool(mask.all()),
    "list": lambda mask: mask.tolist(),
    "print": lambda mask: f"{mask} {mask!r}",
    "numpy": lambda mask: mask.numpy(),
    "array": lambda mask: np.asarray(mask),
    "iteration": lambda mask: list(mask),
    "deepcopy": lambda mask: copy.deepcopy(mask),
    "copy of it": lambda mask: copy.copy(mask),
    "pickle": lambda mask: pickle.loads(pickle.dumps(mask)),
    "clone": lambda mask: mask.clone(),
    "view": lambda mask: mask.view(2, 25),
    "stride": lambda mask: mask.stride(),
    "split": lambda mask: mask.chunk(2),
    "out": lambda mask: torch.zeros(2, 1, 5, 5).add_(mask),
    "vmap": lambda mask: torch.vmap(lambda row: row.float().sum())(mask),
    "attention": lambda mask: nn.functional.scaled_dot_product_attention(*[torch.ones(2, 1, 5, 3)] * 3, attn_mask=mask),
    "an operator": lambda mask: torch.ops.aten.logical_not.default(mask),
    "below torch's functions": lambda mask: below(torch.logical_not, mask),
}


def below(function: Callable[[Any], Any], mask: Any) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        return function(mask)


def lazily() -> LazyMask:
    """A mask of two texts, of which one begins with two pads, so that its first rows are dead."""
    mask = make(batch_size=2, q_length=5, kv_length=5, attention_mask=EXAMPLE_PADDING)
    assert isinstance(mask, LazyMask)
    return mask


EXAMPLE_PADDING = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]], dtype=torch.bool)


def example() -> Tensor:
    return stock(batch_size=2, q_length=5, kv_length=5, attention_mask=EXAMPLE_PADDING)


@pytest.mark.parametrize("name", LEAVING)
def test_what_leaves_a_mask_as_it_is_leaves_the_rule(name: str) -> None:
    mask = lazily()
    assert LEAVING[name](mask) is mask
    assert not mask.made
    assert torch.equal(LEAVING[name](example()), example())  # and so it is with the tensor


def test_the_shape_costs_nothing() -> None:
    mask = lazily()
    assert mask.shape == (2, 1, 5, 5)
    assert mask.size() == mask.shape
    assert mask.size(-1) == 5
    assert mask.numel() == 50
    assert (mask.ndim, mask.dim(), len(mask), mask.dtype, mask.device.type) == (4, 4, 2, torch.bool, "cpu")
    assert not mask.is_floating_point()
    assert not mask.requires_grad
    assert isinstance(mask, Tensor)
    held = {mask: 1}
    assert held[mask] == 1
    assert not mask.made
    assert mask.any()
    assert mask.made
    assert held[mask] == 1
    assert mask.shape == (2, 1, 5, 5)
    trained = make_float(batch_size=1, q_length=3, kv_length=3)
    assert trained is not None
    trained.requires_grad_()
    assert trained.requires_grad
    wide = make_float(batch_size=1, q_length=3, kv_length=3, dtype=torch.bfloat16)
    assert wide is not None
    assert wide.dtype == torch.bfloat16
    assert wide.is_floating_point()
    assert torch.equal(wide + 0, masking.eager_mask(batch_size=1, q_length=3, kv_length=3, dtype=torch.bfloat16))


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return type(one) is Tensor and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(np.array_equal(one, other))


@pytest.mark.parametrize("grad", [torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("name", USING)
def test_whatever_uses_a_mask_gets_what_the_stock_tensor_gives(name: str, grad: Callable[[], Any]) -> None:
    with grad():
        mask = lazily()
        assert alike(USING[name](mask), USING[name](example()))
        assert mask.made


WRITING: dict[str, Callable[[Any], Any]] = {
    "fill": lambda mask: mask.fill_(True),
    "item": lambda mask: mask.__setitem__((0, 0, 0, 4), True),
    "all of it": lambda mask: mask.__setitem__(slice(None), True),
    "through a view": lambda mask: mask[:, :, 0].fill_(True),
    "through the same": lambda mask: mask[:, :, :, :5].logical_not_(),
    "masked": lambda mask: mask.masked_fill_(torch.eye(5, dtype=torch.bool), False),
    "as out": lambda mask: torch.logical_not(mask, out=mask),
    "in place": lambda mask: mask.__ior__(torch.eye(5, dtype=torch.bool).flip(0)),
}


@pytest.mark.parametrize("grad", [torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("name", WRITING)
def test_what_is_written_into_a_mask_is_seen(name: str, grad: Callable[[], Any]) -> None:
    with grad():
        mask, expected = lazily(), example()
        require_same(of(mask, 2), expected)
        WRITING[name](mask)
        WRITING[name](expected)
        assert not torch.equal(expected, example())
        require_same(of(mask, 2), expected)
        assert torch.equal(mask & True, expected)
        mask.fill_(False)  # and once more, after it was read
        require_same(of(mask, 2), expected.fill_(False))


def test_a_model_that_is_compiled_gets_the_right_mask() -> None:
    hide = torch.compile(lambda scores, mask: scores.masked_fill(~mask, -1.0), backend="eager")
    assert torch.equal(hide(torch.zeros(2, 1, 5, 5), lazily()), -(~example()).float())

    def build(scores: Tensor) -> Tensor:
        mask = make(batch_size=2, q_length=5, kv_length=5, attention_mask=EXAMPLE_PADDING)
        assert type(mask) is not LazyMask
        return scores.masked_fill(~mask, -1.0)  # type: ignore[operator]

    compiled = torch.compile(build, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.zeros(2, 1, 5, 5)), -(~example()).float())


def test_on_the_meta_device_nothing_is_looked_at() -> None:
    tokens = torch.ones(1, 3, dtype=torch.bool, device="meta")
    mask = make(batch_size=1, q_length=3, kv_length=3, attention_mask=tokens, device="meta")
    assert type(mask) is Tensor
    assert mask.device.type == "meta"


# what arrives at an attention function, other than rules


def drawn(*shape: int, share: float = 0.5, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < share


def numbers(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(2, 4, 5, 6), (1, 4, 5, 6), (2, 1, 5, 6), (1, 1, 5, 6), (2, 1, 1, 6), (1, 4, 1, 6)])
@pytest.mark.parametrize("hidden", [None, LOWEST, -torch.inf, LOWEST * 0.6])
def test_explicit_masks_of_every_shape(shape: tuple[int, ...], hidden: float | None) -> None:
    allowed = drawn(*shape)
    allowed[-1, -1, -1] = False  # a dead row
    mask = allowed if hidden is None else torch.where(allowed, 0.0, hidden)
    read = of(mask, 2, 5, 6)
    require_same(read, allowed)
    assert read.bias is None


@pytest.mark.parametrize("shape", [(5, 6), (4, 5, 6), (1, 5, 6), (1, 6)])
def test_axes_that_are_left_out_stand_in_front(shape: tuple[int, ...]) -> None:
    values = numbers(*shape)
    require_same(of(values, 2, 5, 6), torch.tensor(True), bias=values)
    require_same(of(values > 0, 3, 5, 6), values > 0)
    require_same(of(None, 2, 5, 6, added=values), torch.tensor(True), bias=values)


def test_heads_that_differ_have_masks_of_their_own_and_equal_heads_do_not() -> None:
    allowed = drawn(1, 4, 5, 5)
    read = of(allowed, 2)
    assert read.masks[0].explicit is not None
    assert read.masks[0].explicit.shape == (4, 5, 5)
    assert read.masks[0] is read.masks[1]
    assert read.shared is None
    alike_heads = of(drawn(1, 1, 5, 5).repeat(1, 4, 1, 1)).masks[0]
    assert alike_heads.explicit is not None
    assert alike_heads.explicit.shape == (5, 5)
    assert of(Tensor.tril(torch.ones(1, 4, 5, 5)) > 0).shared == Mask()
    mixed = drawn(2, 4, 5, 5)
    mixed[0] = mixed[0, :1]
    require_same(of(mixed, 2), mixed)


def test_columns_beyond_the_keys_are_left_out() -> None:
    allowed = drawn(2, 1, 5, 9)
    require_same(of(allowed, 2, 5, 6), allowed[..., :6])
    settings = {"batch_size": 2, "q_length": 5, "kv_length": 9, "attention_mask": padding("left", 9, 0)}
    require_same(of(make(**settings), 2, 5, 6), stock(**settings)[..., :6])
    require_same(of(None, 1, 5, 6, added=numbers(1, 4, 5, 9)), torch.tensor(True), bias=numbers(1, 4, 5, 9)[..., :6])
    require_same(of(torch.tensor([[[[False]]]]), 1, 5, 6), torch.tensor(False))  # one number for all columns


def test_padding_alone() -> None:
    tokens = torch.tensor([[1, 1, 0], [0, 1, 1]])
    for given in (tokens, tokens.bool(), tokens.to(torch.int32) * 7):
        read = of(given, 2, 5, 3)
        require_same(read, tokens.bool()[:, None, None])
        assert read.masks[0] == Mask.bidirectional(padding=tokens[0].bool().numpy())
    with pytest.raises(InputError, match="4 axes, as there are 2 texts and 2 destinations"):
        of(tokens.bool(), 2, 2, 3)
    require_same(of(tokens.bool()[:1], 1, 1, 3), tokens.bool()[:1, None, None])


RECOGNISED: dict[str, Mask] = {
    "causal": Mask(),
    "step": Mask(offset=2),
    "static cache": Mask(),
    "window": Mask(window=2),
    "window of one": Mask(window=1),
    "window, step": Mask(window=3, offset=2),
    "left padding": Mask(padding=np.array([False, False, True, True, True, True, True])),
    "right padding": Mask(padding=np.array([True, True, True, False, False, True, True])),
    "window, padding": Mask(window=2, padding=np.array([False, True, True, True, False, True, True])),
    "encoder": Mask.bidirectional(),
    "padded encoder": Mask.bidirectional(padding=np.array([True, True, False, True, True, False, False])),
    "nothing": Mask.bidirectional(padding=np.zeros(7, dtype=np.bool_)),
}


@pytest.mark.parametrize("name", RECOGNISED)
@pytest.mark.parametrize("form", ["bool", "float", "half"])
def test_an_explicit_mask_that_is_a_rule_is_kept_as_one(name: str, form: str) -> None:
    mask = RECOGNISED[name]
    rows = 5
    columns = {"static cache": 9, "causal": 5, "window": 5, "window of one": 5}.get(name, 7)
    allowed = torch.from_numpy(mask.dense(rows, columns))[None, None]
    dtype = torch.float16 if form == "half" else torch.float32
    given = allowed if form == "bool" else torch.where(allowed, 0.0, torch.finfo(dtype).min).to(dtype)
    read = of(given, 1, rows, columns)
    require_same(read, allowed)
    assert read.masks[0].explicit is None
    # a pad that nobody may read anyway is not one
    assert (read.masks[0].causal, read.masks[0].window, read.masks[0].offset) == (mask.causal, mask.window, mask.offset)
    if mask.padding is None:
        assert read.masks[0].padding is None
        assert read.shared is read.masks[0]
        assert read.offsets == (mask.offset, 0)
    one_less = allowed.clone()
    one_less[0, 0, 3, 2] ^= True
    require_same(of(one_less, 1, rows, columns), one_less)


def test_one_pair_makes_a_mask_explicit() -> None:
    for row in range(1, 6):
        for column in range(row):
            allowed = torch.ones(6, 6, dtype=torch.bool).tril()
            allowed[row, column] = False
            read = recognised(allowed.numpy())
            assert np.array_equal(read.dense(6, 6), allowed.numpy())
            assert read.causal
            assert (read.explicit is None) == ((row, column) == (5, 0))  # which is a window of 5


def test_masks_that_are_drawn_come_back_as_they_are() -> None:
    for seed in range(200):
        generator = np.random.default_rng(seed)
        rows, columns = generator.integers(1, 7, size=2)
        allowed = generator.random((rows, columns)) < generator.choice([0.2, 0.5, 0.9])
        for hint in (None, 0, int(columns - rows), 2):
            assert np.array_equal(recognised(allowed, hint).dense(rows, columns), allowed)
        heads = generator.random((2, rows, columns)) < 0.5
        assert (recognised(heads).dense(rows, columns) == heads).all()


def test_a_rule_is_found_once_for_all_layers_and_forgotten_with_its_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    count = counted(monkeypatch)
    mask = drawn(1, 1, 6, 6)
    reads = [of(mask, 1, 6, 6) for _ in range(30)]
    assert len(count) == 1
    assert all(read is reads[0] for read in reads)
    assert of(mask.clone(), 1, 6, 6).masks[0] is reads[0].masks[0]  # an equal tensor: the same mask, not a copy
    assert len(count) == 2
    mask[0, 0, 0] ^= True
    require_same(of(mask, 1, 6, 6), mask)
    assert len(count) == 3
    with torch.inference_mode():  # where torch counts no changes
        inner = drawn(1, 1, 6, 6)
        assert of(inner, 1, 6, 6) is of(inner, 1, 6, 6)
        assert len(count) == 4
        inner[0, 0, 0] ^= True
        require_same(of(inner, 1, 6, 6), inner)
    gone = weakref.ref(reads[0])
    del reads, mask
    gc.collect()
    assert gone() is None


def counted(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Return what grows with every map that is looked at for a rule."""
    from wherefrom.capture.huggingface import masks

    seen: list[None] = []

    def counting(*args: Any) -> Mask:
        seen.append(None)
        return recognised(*args)

    monkeypatch.setattr(masks, "recognised", counting)
    return seen


def test_one_mask_serves_executions_of_other_sizes() -> None:
    mask = torch.tensor([[[[True, False, True]]]])
    assert of(mask, 1, 2, 3).sizes == (1, 4, 2, 3)
    assert of(mask, 1, 4, 3).sizes == (1, 4, 4, 3)
    require_same(of(mask, 1, 4, 3), mask)
    require_same(of(mask, 1, 4, 2), mask[..., :2])


def test_a_batch_of_one_query_reads_the_keys_of_all_texts() -> None:
    q, k = arrays(1, 3, 5)[0], arrays(2, 3, 5)[1]
    allowed = drawn(2, 1, 3, 5)
    require_same(readable(allowed, q, k), allowed)


# numbers that are added


def test_finite_numbers_are_a_bias() -> None:
    values = numbers(2, 4, 5, 6)
    values[0, 0, 2] = LOWEST
    values[1, 1, :, 3] = -torch.inf
    read = of(values, 2, 5, 6)
    allowed = values > LOWEST / 2
    require_same(read, allowed, bias=values.masked_fill(~allowed, 0.0))
    assert read.bias is not None
    assert torch.equal(read.bias, values.masked_fill(~allowed, 0.0))
    assert torch.equal(of(torch.full((1, 1, 5, 6), -1e4), 1, 5, 6).bias, torch.full((1, 1, 5, 6), -1e4))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_bias_keeps_its_precision(dtype: torch.dtype) -> None:
    values = numbers(1, 1, 3, 3).to(dtype)
    values[0, 0, 0, 0] = torch.finfo(dtype).min
    bias = of(values, 1, 3, 3).bias
    assert bias is not None
    assert bias.dtype == torch.promote_types(dtype, torch.float32)
    assert torch.equal(bias.to(dtype)[0, 0].flatten()[1:], values[0, 0].flatten()[1:])
    assert bias[0, 0, 0, 0] == 0
    assert of(values, 1, 3, 3).limits(torch.zeros(1, dtype=torch.bfloat16)).bias.dtype == torch.float32  # type: ignore[union-attr]


def test_a_position_bias_beside_every_kind_of_mask() -> None:
    added = numbers(1, 4, 5, 5)
    for given in (None, lazily(), example(), torch.where(example(), 0.0, LOWEST)):
        expected = torch.ones(2, 1, 5, 5, dtype=torch.bool) if given is None else example()
        read = of(given, 2, added=added)
        require_same(read, expected, bias=added)
        assert read.shared is None
        assert read.bias is not None
        assert torch.equal(read.bias.expand(2, 4, 5, 5), torch.where(expected, added, 0.0))
        assert all(mask.explicit is None for mask in read.masks)
        hiding = added.clone()
        hiding[0, 1, 3] = LOWEST
        hiding[0, 2, :, 1] = -torch.inf
        both = expected & (hiding > LOWEST / 2)
        require_same(of(given, 2, added=hiding), both, bias=torch.where(both, added, 0.0))
    require_same(of(added * 2, 2, added=added), torch.tensor(True), bias=added * 2 + added)
    assert of(lazily(), 2, added=torch.zeros(1, 4, 5, 5)).bias is None


def test_a_bias_is_made_once_and_dropped_with_its_tensor() -> None:
    added, mask = numbers(1, 4, 5, 5), lazily()
    read = of(mask, 2, added=added)
    assert of(mask, 2, added=added) is read
    assert of(None, 2, added=added) is not read
    assert of(mask, 2, added=added) is read
    assert of(lazily(), 2, added=added) is not read
    added[0, 0, 0, 0] = 5.0
    assert of(mask, 2, added=added).bias is not read.bias
    require_same(of(mask, 2, added=added), example(), bias=added)
    kept = []
    for step in range(40):  # a bias that outlives its masks keeps few of them, and takes no new one for an old one
        tokens = torch.ones(1, 5, dtype=torch.bool)
        tokens[0, step % 5] = False
        passing = of(make(batch_size=1, q_length=5, kv_length=5, attention_mask=tokens), added=added)
        require_same(passing, stock(batch_size=1, q_length=5, kv_length=5, attention_mask=tokens), bias=added)
        kept.append(weakref.ref(passing))
    gc.collect()
    assert sum(one() is not None for one in kept) <= HELD
    gone, made = weakref.ref(added), weakref.ref(read)
    del added, read, passing
    gc.collect()
    assert gone() is None
    assert made() is None


def test_a_mask_that_takes_the_place_of_another_in_memory_is_not_taken_for_it() -> None:
    added = numbers(1, 4, 5, 5)
    causal = torch.ones(5, 5, dtype=torch.bool).tril()
    found = 0
    for _ in range(200):
        mask: Any = lazily()
        place = id(mask)
        of(mask, 2, added=added)
        mask = None
        mask = make(batch_size=2, q_length=5, kv_length=5)
        if id(mask) == place:
            found += 1
            require_same(of(mask, 2, added=added), causal, bias=added)
    assert found > 0


def test_a_bias_keeps_its_graph() -> None:
    weight = numbers(1, 4, 5, 5).requires_grad_()
    for given, added in ((lazily(), weight), (weight, None), (None, weight), (torch.zeros(1, 1, 5, 5), weight)):
        mask, expected = given, example() if isinstance(given, LazyMask) else torch.ones(2, 1, 5, 5, dtype=torch.bool)
        read = of(mask, 2, added=added)
        assert read.bias is not None
        assert read.bias.requires_grad
        (gradient,) = torch.autograd.grad(read.bias.expand(2, 4, 5, 5).sum(), weight)
        assert torch.equal(gradient, expected.sum(dim=0, keepdim=True).expand_as(gradient).float())
        limits = of(mask, 2, added=added).limits(torch.zeros(1))
        assert limits.bias is not None
        assert limits.bias.requires_grad
    with torch.no_grad():
        bias = of(None, 2, added=weight).bias
        assert bias is not None
        assert not bias.requires_grad
    bias = of(None, 2, added=weight).bias
    assert bias is not None
    assert bias.requires_grad
    nought = torch.zeros(1, 4, 5, 5, requires_grad=True)
    assert of(None, 2, added=nought).bias is not None  # it may be trained
    gone = weakref.ref(weight)
    del weight, read, bias, limits, gradient, given, added, mask
    gc.collect()
    assert gone() is None


def test_a_mask_is_recognised_once_under_a_bias_with_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    count = counted(monkeypatch)
    mask, weight = example(), numbers(1, 4, 5, 5).requires_grad_()
    for _ in range(3):
        of(mask, 2, added=weight * 2)
    assert len(count) == 2  # one a text


def test_chosen_keys() -> None:
    indices = torch.tensor([[[0, 2], [1, -1], [4, 9], [-1, -7], [3, 3]], [[0, 1], [0, 1], [0, 1], [0, 1], [4, 4]]])
    chosen = torch.zeros(2, 1, 5, 5, dtype=torch.bool)
    for text, row in np.ndindex(2, 5):
        for column in indices[text, row].tolist():
            if 0 <= column < 5:
                chosen[text, 0, row, column] = True
    for form in (indices, indices.to(torch.int32), indices[:, None]):
        require_same(of(None, 2, indices=form), chosen)
        require_same(of(lazily(), 2, indices=form), chosen & example())
        require_same(of(torch.where(example(), 0.0, LOWEST), 2, indices=form), chosen & example())
    per_head = torch.stack([indices, indices.flip(0), indices, indices.flip(1)], dim=1)
    expected = torch.cat([chosen, chosen.flip(0), chosen, chosen.flip(2)], dim=1)
    require_same(of(lazily(), 2, indices=per_head), expected & example())
    added = numbers(1, 4, 5, 5)
    require_same(of(lazily(), 2, indices=indices, added=added), chosen & example(), bias=added)
    assert of(lazily(), 2, indices=torch.arange(5).expand(2, 5, 5)).masks[0] == Mask()  # all of them: the rule itself
    read = of(make(batch_size=1, q_length=1, kv_length=4, q_offset=9, kv_offset=6), 1, 1, 4, indices=indices[:1, :1])
    assert read.offsets == (9, 6)


def test_a_lower_triangle_that_a_caller_means() -> None:
    lower = torch.ones(5, 5, dtype=torch.bool).tril()
    assert of(None, causal=True).shared == Mask()
    require_same(of(None, 1, 3, 5, causal=True), lower[:3])  # counted from the upper left
    require_same(of(drawn(1, 1, 5, 5), causal=True), drawn(1, 1, 5, 5) & lower)
    encoder = make(batch_size=1, q_length=5, kv_length=5, mask_function=masking.bidirectional_mask_function)
    require_same(of(encoder, causal=True), lower)
    same = numbers(1, 1, 5, 5)
    require_same(of(same, causal=True), lower, bias=same)
    require_same(of(same), torch.tensor(True), bias=same)  # the same tensor meant without


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.ones(2, 1, 5, 4), r"the mask: expected the shape of the scores, \(2, 4, 5, 6\)"),
        (torch.ones(3, 1, 5, 6), r"got shape \(3, 1, 5, 6\)"),
        (torch.ones(2, 3, 5, 6), "the mask"),
        (torch.ones(2, 1, 9, 6), "the mask"),
        (torch.ones(1, 2, 1, 5, 6), "the mask"),
        (torch.ones(2, 5, 6), "the mask"),
        (torch.ones(2, 1, 5, 6, dtype=torch.long), "bool, True where a source may be read"),
        (torch.ones(3, 6, dtype=torch.long), "bool, True where a source may be read"),
        (torch.ones(5, 6, dtype=torch.complex64), "got torch.complex64"),
        (torch.full((1, 1, 5, 6), torch.nan), "NaN or"),
        (torch.full((1, 1, 5, 6), torch.inf), "numbers below infinity"),
        ([[True]], "expected a tensor, got a list"),
    ],
)
def test_a_mask_of_another_kind_is_refused(given: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        of(given, 2, 5, 6)


@pytest.mark.parametrize(
    "indices",
    [
        torch.zeros(2, 5, 3),
        torch.zeros(3, 5, 3, dtype=torch.long),
        torch.zeros(2, 4, 3, dtype=torch.long),
        torch.zeros(2, 3, 5, 3, dtype=torch.long),
        torch.zeros(5, 3, dtype=torch.long),
        torch.zeros(2, 5, 3, dtype=torch.bool),
    ],
)
def test_indices_of_another_kind_are_refused(indices: Tensor) -> None:
    with pytest.raises(InputError, match="the indices of chosen keys"):
        of(None, 2, 5, 6, indices=indices)


def test_a_bias_of_another_shape_is_refused() -> None:
    with pytest.raises(InputError, match="the bias: expected the shape of the scores"):
        of(None, 2, 5, 6, added=torch.ones(1, 4, 5, 5))


# real models: every execution's masks, against those that transformers' eager function makes


class Execution(NamedTuple):
    given: Tensor | None
    read: Readable


@pytest.fixture
def record() -> Iterator[Callable[..., list[Execution]]]:
    """Registers a mask maker and an attention function as transformers has them; gives what records a model's run."""
    interfaces = transformers.AttentionInterface, transformers.AttentionMaskInterface
    kept = [dict(interface._global_mapping) for interface in interfaces]
    held: list[Execution] = []

    def ours(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, **more: Any) -> tuple[Tensor, None]:
        added, indices = more.get("position_bias"), more.get("indices")
        read = readable(mask, q, k, added=added, indices=indices)
        held.append(Execution(mask, read))
        scale = more.get("scaling")
        scores = (q.shape[-1] ** -0.5 if scale is None else scale) * q @ repeated(k, q).transpose(-1, -2)
        softcap = more.get("softcap")
        scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
        limits = read.limits(q)
        scores = scores if limits.bias is None else scores + limits.bias
        if limits.causal:
            scores = scores.masked_fill(~torch.ones(scores.shape[2:], dtype=torch.bool).tril(), -torch.inf)
        weights = torch.softmax(scores, dim=-1).nan_to_num(0.0)
        return (weights @ repeated(v, q)).transpose(1, 2).contiguous(), None

    def repeated(x: Tensor, q: Tensor) -> Tensor:
        return x.repeat_interleave(q.shape[1] // x.shape[1], dim=1)

    for name, own in (("by rule", masking.sdpa_mask), ("by float rule", masking.eager_mask)):
        transformers.AttentionInterface.register(name, ours)
        transformers.AttentionMaskInterface.register(name, mask_maker(own))

    def run(model: nn.Module, name: str, call: Callable[[], Any]) -> tuple[list[Execution], Any]:
        model.set_attn_implementation(name)  # type: ignore[operator]
        held.clear()
        with torch.no_grad():
            out = call()
        return list(held), out

    yield run
    for interface, mapping in zip(interfaces, kept, strict=True):
        interface._global_mapping.clear()
        interface._global_mapping.update(mapping)


def eager_masks(model: nn.Module, monkeypatch: pytest.MonkeyPatch, call: Callable[[], Any]) -> tuple[list[Any], Any]:
    """The masks that transformers' own eager functions are given in a run, and the run's result."""
    masks: list[Any] = []
    mapping = transformers.AttentionInterface._global_mapping

    def eager(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, **more: Any) -> Any:
        masks.append(None if mask is None else mask.clone())
        own = __import__(type(module).__module__, fromlist=["eager_attention_forward"]).eager_attention_forward
        return own(module, q, k, v, mask, **more)

    monkeypatch.setitem(mapping, "their eager", eager)
    monkeypatch.setitem(transformers.AttentionMaskInterface._global_mapping, "their eager", masking.eager_mask)
    model.set_attn_implementation("their eager")  # type: ignore[operator]
    with torch.no_grad():
        out = call()
    return masks, out


SMALL = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MODELS: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**SMALL),
    "mistral": lambda: transformers.MistralConfig(**SMALL, sliding_window=4),
    "gemma2": lambda: transformers.Gemma2Config(**SMALL, sliding_window=4),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **SMALL, sliding_window=4, layer_types=["sliding_attention", "full_attention"]
    ),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64),
    "llama4": lambda: transformers.Llama4TextConfig(
        **SMALL,
        attention_chunk_size=4,
        num_local_experts=2,
        intermediate_size_mlp=32,
        layer_types=["chunked_attention", "full_attention"],
        no_rope_layers=[1, 0],
    ),
}


def small(name: str) -> Any:
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(MODELS[name]()).eval()


def tokens_of(columns: int, pads: str) -> dict[str, Tensor]:
    """Two texts, the second padded."""
    ids = torch.randint(3, 50, (2, columns), generator=torch.Generator().manual_seed(3))
    if pads == "none":
        return {"input_ids": ids}
    real = torch.ones_like(ids)
    real[1, slice(0, 3) if pads == "left" else slice(-3, None)] = 0
    return {"input_ids": ids, "attention_mask": real}


def require_as_eager(executions: list[Execution], masks: list[Any]) -> None:
    """In every execution, the same pairs are permitted that transformers' own float mask permits."""
    assert len(executions) == len(masks) > 0
    for execution, mask in zip(executions, masks, strict=True):
        columns = execution.read.sizes.columns
        permitted = torch.tensor(True) if mask is None else mask[..., :columns] > LOWEST / 2
        require_same(execution.read, permitted)


@pytest.mark.parametrize("pads", ["none", "left", "right"])
@pytest.mark.parametrize("model", MODELS)
def test_decoders(model: str, pads: str, record: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    built, texts = small(model), tokens_of(9, pads)
    masks, expected = eager_masks(built, monkeypatch, lambda: built(**texts).logits)
    for name in ("by rule", "by float rule"):
        executions, logits = record(built, name, lambda: built(**texts).logits)
        require_as_eager(executions, masks)
        real = texts.get("attention_mask", torch.ones(2, 9)).bool()
        assert torch.allclose(logits[real], expected[real], atol=1e-5)
        if model != "llama4":
            assert all(not execution.given.made for execution in executions)
            assert all(mask.explicit is None for execution in executions for mask in execution.read.masks)
        if pads == "none" and model != "llama4":
            assert all(execution.read.shared is not None for execution in executions)
    windows = [execution.read.masks[0].window for execution in executions]
    assert windows == {"mistral": [4, 4], "gemma2": [4, None], "gemma3": [4, None]}.get(model, [None, None])
    if model == "llama":
        assert executions[0].read is executions[1].read
    if model == "llama4":
        assert executions[0].read.masks[0].explicit is not None
        assert executions[1].read.masks[0].explicit is None


@pytest.mark.parametrize("pads", ["none", "left"])
@pytest.mark.parametrize(
    ("model", "kind"), [(m, k) for m in ("llama", "gemma3", "llama4") for k in ("dynamic", "static")]
)
def test_caches(model: str, kind: str, pads: str, record: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    built, texts = small(model), tokens_of(6, pads)
    more = {
        "max_new_tokens": 5,
        "do_sample": False,
        "pad_token_id": 0,
        "eos_token_id": None,
        "cache_implementation": kind,
    }

    def write() -> Tensor:
        ids: Tensor = built.generate(**texts, **more, disable_compile=True)
        return ids

    masks, expected = eager_masks(built, monkeypatch, write)
    executions, ids = record(built, "by rule", write)
    require_as_eager(executions, masks)
    assert torch.equal(ids, expected)
    assert len(executions) == 10
    # the full layer: row by row, behind one another
    firsts = [execution.read.offsets for execution in executions[1::2]]
    assert firsts == [(0, 0), (6, 0), (7, 0), (8, 0), (9, 0)]
    if model == "gemma3":  # a window of 4, of which a cache holds 3 keys beside the newest
        assert [execution.read.offsets for execution in executions[::2]] == [(0, 0), (6, 3), (7, 4), (8, 5), (9, 6)]
    if pads == "none" and kind == "dynamic":
        assert all(execution.read.limits(torch.zeros(1)).bias is None for execution in executions[3::2])


@pytest.mark.parametrize("pads", ["none", "left", "right"])
def test_an_encoder(pads: str, record: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32
    )
    model, texts = transformers.BertModel(config).eval(), tokens_of(7, pads)
    masks, expected = eager_masks(model, monkeypatch, lambda: model(**texts).last_hidden_state)
    executions, states = record(model, "by rule", lambda: model(**texts).last_hidden_state)
    require_as_eager(executions, masks)
    assert torch.allclose(states, expected, atol=1e-5)
    assert all(not mask.causal for execution in executions for mask in execution.read.masks)
    assert (executions[0].read.shared == Mask.bidirectional()) == (pads == "none")


@pytest.mark.parametrize("pads", ["none", "left", "right"])
def test_t5_adds_a_bias(pads: str, record: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=50, d_model=32, d_kv=8, d_ff=32, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    model, texts = transformers.T5ForConditionalGeneration(config).eval(), tokens_of(7, pads)

    def forward() -> Tensor:
        logits: Tensor = model(**texts, decoder_input_ids=torch.tensor([[0, 5, 6, 7]] * 2)).logits
        return logits

    masks, expected = eager_masks(model, monkeypatch, forward)
    executions, logits = record(model, "by rule", forward)
    assert torch.allclose(logits, expected, atol=1e-5)
    reads = [execution.read for execution in executions]
    encoder, (first, cross, second, _) = reads[:2], reads[2:]
    assert len(masks) == len(reads) == 6
    for read in (*encoder, first, second):
        assert read.bias is not None
        assert read.bias.shape[1] == 4
    assert encoder[0] is encoder[1]
    assert first is second
    assert first.masks == (Mask(),) * 2
    assert cross.bias is None
    for read, mask in zip(reads, masks, strict=True):
        permitted = torch.ones(read.sizes[2:], dtype=torch.bool) if mask is None else mask > LOWEST / 2
        assert torch.equal(read.permitted().expand(2, 1, -1, -1), permitted.expand(2, 1, *read.sizes[2:]))
    # under a gradient the bias still has its table behind it
    model.set_attn_implementation("by rule")
    forward().square().sum().backward()
    table = model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
    ours = table.grad.clone()
    model.set_attn_implementation("eager")
    model.zero_grad()
    forward().square().sum().backward()
    assert ours.abs().max() > 0
    assert torch.allclose(ours, table.grad, rtol=1e-3, atol=1e-5 * float(ours.abs().max()))


def test_keys_that_an_indexer_chooses(record: Any) -> None:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        "deepseek_v32",
        **SMALL | {"num_key_value_heads": 4},
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=4,
        qk_nope_head_dim=4,
        v_head_dim=8,
        index_topk=3,
        index_n_heads=2,
        index_head_dim=8,
        first_k_dense_replace=2,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        n_group=1,
        topk_group=1,
    )
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for pads in ("none", "left"):
        texts = tokens_of(7, pads)
        real = texts.get("attention_mask", torch.ones(2, 7)).bool()
        model.set_attn_implementation("eager")
        with torch.no_grad():
            expected = model(**texts).logits
        for name in ("by rule", "by float rule"):
            executions, logits = record(model, name, lambda: model(**texts).logits)  # noqa: B023
            assert torch.allclose(logits[real], expected[real], atol=1e-5)
            counts = executions[0].read.permitted().sum(dim=-1)[0, 0]
            assert counts.tolist() == [1, 2, 3, 3, 3, 3, 3]


def test_image_tokens_read_one_another(record: Any) -> None:
    config = MODELS["gemma3"]()
    embeds, blocks = torch.zeros(2, 7, 32), IMAGE.expand(2, -1)
    tokens = torch.ones(2, 7, dtype=torch.long)
    tokens[1, :2] = 0
    for build in (masking.create_causal_mask, masking.create_sliding_window_causal_mask):
        config._attn_implementation = "eager"
        expected = build(config, embeds, tokens, None, block_sequence_ids=blocks) > LOWEST / 2
        for name in ("by rule", "by float rule"):
            config._attn_implementation = name
            mask = build(config, embeds, tokens, None, block_sequence_ids=blocks)
            read = of(mask, 2, 7, 7)
            require_same(read, expected)
            assert read.masks[0].explicit is not None
            assert not read.masks[0].causal


def test_a_user_s_own_overlays(record: Any) -> None:
    config = MODELS["llama"]()
    embeds, tokens = torch.zeros(2, 6, 32), tokens_of(6, "left")["attention_mask"]
    calls: dict[str, dict[str, Any]] = {
        "or": {"or_mask_function": lambda text, head, i, j: (i < 3) & (j < 3)},
        "and": {"and_mask_function": lambda text, head, i, j: j != 1},
        "or all": {"or_mask_function": lambda *of: torch.tensor(True)},
        "known and": {"and_mask_function": masking.sliding_window_overlay(2)},
    }
    for name, overlay in calls.items():
        config._attn_implementation = "eager"
        expected = masking.create_causal_mask(config, embeds, tokens, None, **overlay) > LOWEST / 2
        config._attn_implementation = "by rule"
        mask = masking.create_causal_mask(config, embeds, tokens, None, **overlay)
        require_same(of(mask, 2, 6, 6), expected)
        assert isinstance(mask, LazyMask) == (name == "known and")
    packed = {"position_ids": PACKED}
    config._attn_implementation = "eager"
    expected = masking.create_causal_mask(config, torch.zeros(1, 7, 32), None, None, **packed) > LOWEST / 2
    config._attn_implementation = "by rule"
    mask = masking.create_causal_mask(config, torch.zeros(1, 7, 32), None, None, **packed)
    require_same(of(mask, 1, 7, 7), expected)


def test_a_sliding_encoder(record: Any) -> None:
    config = MODELS["mistral"]()
    config.is_causal = False
    embeds, tokens = torch.zeros(2, 9, 32), tokens_of(9, "right")["attention_mask"]
    for padded in (None, tokens):
        config._attn_implementation = "eager"
        expected = masking.create_sliding_window_causal_mask(config, embeds, padded, None) > LOWEST / 2
        config._attn_implementation = "by rule"
        read = of(masking.create_sliding_window_causal_mask(config, embeds, padded, None), 2, 9, 9)
        require_same(read, expected)
        assert read.masks[0] == Mask.bidirectional(window=5)  # 4 on either side, and the own one
