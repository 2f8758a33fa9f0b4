"""The masks that transformers asks for (floor 3): the rule read from its tree of functions, or the stock tensor.

transformers asks a mask maker for a tensor of who may read whom, and hands it the rule as a tree of small functions.
`mask_maker` reads that tree. Where it knows every function in it, and probes of the tree agree, the answer is a
`LazyMask`; where the rule is not known, it is the tensor that transformers would have made.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wherefrom.attention import Mask
from wherefrom.capture.huggingface.lazy import LazyMask, Note, interned, keep_note, unreached

MaskFunction = Callable[..., Any]
"""transformers' form of a rule: (text, head, row, column), all of them index tensors, gives True where permitted."""
SPREAD = 32
"""Columns, evenly spread, that are probed in every row, beside those around the rule's edges."""


def mask_maker(stock: Callable[..., Tensor | None]) -> Callable[..., Tensor | None]:
    """Return what is registered in AttentionMaskInterface in place of a stock mask function.

    It answers a `LazyMask` where it knows the rule, else the stock tensor; never None for a rule that hides something,
    as a causal one does: None means that everything may be read.

    Args:
        stock: transformers' `sdpa_mask` (bool) or `eager_mask` (float); the rule of any other is not looked for.
    """

    def make(
        batch_size: int,
        q_length: int,
        kv_length: int,
        q_offset: int | Tensor = 0,
        kv_offset: int | Tensor = 0,
        mask_function: MaskFunction | None = None,
        attention_mask: Tensor | None = None,
        allow_is_causal_skip: bool = True,
        allow_is_bidirectional_skip: bool = False,
        **settings: Any,
    ) -> Tensor | None:
        from transformers import masking_utils

        function = masking_utils.causal_mask_function if mask_function is None else mask_function
        given = dict(
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,
            kv_offset=kv_offset,
            mask_function=function,
            attention_mask=attention_mask,
            allow_is_causal_skip=False,
            **settings,
        )
        device = torch.device(settings.get("device", "cpu"))
        if device.type == "meta" or _tracing(attention_mask, q_offset, kv_offset):
            return stock(**given)
        # A static cache hands over a tensor that it changes later, and anyone may write into the padding.
        offsets = int(q_offset), int(kv_offset)
        padding = None if attention_mask is None else attention_mask.clone()
        given.update(q_offset=offsets[0], kv_offset=offsets[1], attention_mask=padding)
        theirs = stock in (masking_utils.sdpa_mask, masking_utils.eager_mask)
        rule = _rule(function, offsets, (q_length, kv_length)) if theirs else None
        known = Note(offsets, _tokens(padding, (batch_size, kv_length), offsets[1]))
        if rule is None or not _plain_padding(padding, batch_size):
            full = stock(**given)
            if full is not None:
                keep_note(full, known)
            return full
        if allow_is_bidirectional_skip and not rule.causal and _hides_nothing(padding, kv_length, offsets[1], settings):
            return None  # so does the stock function
        masks = _of_texts(rule, known.tokens, (batch_size, q_length, kv_length))
        floats = stock is masking_utils.eager_mask
        dtype = settings.get("dtype", torch.float32) if floats else torch.bool
        return LazyMask(masks, known, (q_length, kv_length), partial(stock, **given), dtype, device)  # type: ignore[arg-type]

    return make


class _Edges(NamedTuple):
    """What a tree of mask functions says: j <= i; i - j < behind; |i - j| < within."""

    causal: bool = False
    behind: int | None = None
    within: int | None = None

    def both(self, other: _Edges) -> _Edges:
        """Return what the two say together."""
        return _Edges(
            self.causal or other.causal,
            min((n for n in (self.behind, other.behind) if n is not None), default=None),
            min((n for n in (self.within, other.within) if n is not None), default=None),
        )


def _rule(function: MaskFunction, offsets: tuple[int, int], sizes: tuple[int, int]) -> Mask | None:
    """Return the rule of a tree of mask functions for rows and columns, None where it is not known, or none of ours."""
    edges, offset, (rows, columns) = _edges(function), offsets[0] - offsets[1], sizes
    if edges is None or offset < 0 or rows < 1 or columns < 1:
        return None
    if edges.behind is not None and not edges.causal:
        return None  # a window without an end
    window = (edges.both(_Edges(within=edges.behind))).within
    if window is not None and window < 1:
        return None
    last = offset + rows - 1
    if window is not None and last < window and (edges.causal or columns - 1 - offset < window):
        window = None  # no pair of this size is outside
    mask = Mask(causal=edges.causal, window=window, offset=offset)
    return mask if _probed(function, mask, offsets, sizes) else None


def _edges(function: MaskFunction) -> _Edges | None:
    """Return what a tree of transformers' own functions says, None where one of them is not known here."""
    kind = _known().get(getattr(function, "__code__", None))
    if kind == "causal_mask_function":
        return _Edges(causal=True)
    if kind == "bidirectional_mask_function":
        return _Edges()
    if kind == "and_masks":
        edges: _Edges | None = _Edges()
        for part in _captured(function, "mask_functions"):
            read = _edges(part)
            edges = None if edges is None or read is None else edges.both(read)
        return edges
    if kind is None or type(window := _captured(function, "sliding_window")) is not int:
        return None
    # j > i - w counts the own key; |i - j| <= w is one key more than w
    return _Edges(behind=window) if kind == "sliding_window_overlay" else _Edges(within=window + 1)


@cache
def _known() -> dict[Any, str]:
    """Return the code of the mask functions of transformers that are known here, each with its name."""
    from transformers import masking_utils as own

    known = {own.causal_mask_function.__code__: "causal_mask_function", own.and_masks().__code__: "and_masks"}
    for name in ("sliding_window_overlay", "sliding_window_bidirectional_overlay"):
        if hasattr(own, name):  # not in every version
            known[getattr(own, name)(1).__code__] = name
    if hasattr(own, "bidirectional_mask_function"):
        known[own.bidirectional_mask_function.__code__] = "bidirectional_mask_function"
    return known


def _captured(function: MaskFunction, name: str) -> Any:
    """Return what a closure holds under a name."""
    cells: dict[str, Any] = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    return cells[name].cell_contents


def _probed(function: MaskFunction, mask: Mask, offsets: tuple[int, int], sizes: tuple[int, int]) -> bool:
    """Return whether a mask function and a rule agree: in every row around the rule's edges and at spread columns."""
    rows, columns = sizes
    row = torch.arange(rows)[:, None]
    i = row + mask.offset
    reach = 1 if mask.window is None else mask.window
    edges = [i + away for edge in (-reach, 0, reach) for away in (-1, 0, 1)]
    spread = torch.linspace(0, columns - 1, min(columns, SPREAD)).long().expand(rows, -1)
    j = torch.cat([*edges, spread], dim=1).clamp(0, columns - 1)  # T x probes
    expected = torch.ones_like(j, dtype=torch.bool)
    if mask.causal:
        expected &= j <= i
    if mask.window is not None:
        expected &= (i - j).abs() < mask.window
    zero = torch.zeros((1, 1), dtype=torch.long)
    answer = function(zero, zero, row + offsets[0], j + offsets[1])
    return torch.equal(answer.expand(j.shape), expected)


def _tokens(padding: Tensor | None, sizes: tuple[int, int], first: int) -> NDArray[np.bool_] | None:
    """Return where texts have tokens, bool [B, S], of a padding that may be longer or shorter; None: everywhere."""
    if padding is None or not _plain_padding(padding, sizes[0]):
        return None
    tokens = np.zeros(sizes, dtype=np.bool_)  # beyond the padding's end there are no tokens
    own = padding[:, first : first + sizes[1]].cpu().numpy()
    tokens[:, : own.shape[1]] = own
    return tokens


def _of_texts(rule: Mask, tokens: NDArray[np.bool_] | None, sizes: tuple[int, int, int]) -> tuple[Mask, ...]:
    """Return the rule with each text's padding; a pad that no row would read anyway needs no mention."""
    if tokens is None:
        return (interned(rule),) * sizes[0]
    read = tokens | unreached(rule, *sizes[1:])
    return tuple(interned(Mask(rule.causal, rule.window, rule.offset, None if row.all() else row)) for row in read)


def _plain_padding(padding: Tensor | None, texts: int) -> bool:
    return padding is None or (padding.dtype == torch.bool and padding.ndim == 2 and padding.shape[0] == texts)


def _hides_nothing(padding: Tensor | None, columns: int, first: int, settings: dict[str, Any]) -> bool:
    """Whether transformers calls a bidirectional mask needless, which is where its own functions answer None."""
    local = settings.get("local_size")
    full = padding is None or (padding.shape[1] >= first + columns and bool(padding.all()))
    return full and (local is None or columns < local)


def _tracing(*values: Any) -> bool:
    """Whether torch is writing down what is done, and not doing it, so that no number can be looked at."""
    from transformers.utils.import_utils import is_tracing

    return any(is_tracing(value) for value in values)
