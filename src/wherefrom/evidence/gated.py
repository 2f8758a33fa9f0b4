"""Passages that have gates, and the pieces that the ways of gating are made of (floor 5).

A passage's own rows and columns are a block on the map's diagonal. Blocks of about one length are read side by side, as
texts of their own, by the flash kernel of the CPU; what it finds is put back into the rows of the whole text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from wherefrom.checks import check_items, check_kind
from wherefrom.errors import InputError
from wherefrom.evidence.running import Executed
from wherefrom.passages import Passage

Strip: TypeAlias = Callable[[Executed, "Gates", Tensor, range], Tensor]
LEAST = 1e-30
"""The smallest gate: single precision, in which attention through gates is computed, has few numbers below it."""
SIZES = 8
"""The kernel is fastest on heads whose size is a multiple of this."""


class Block(NamedTuple):
    """Passages of about one length, side by side.

    Attributes:
        places: [P'], which passages they are.
        rows: [P', L], positions of their tokens; behind a shorter one's last token that token again.
        real: bool [P', L], False for those.
    """

    places: Tensor
    rows: Tensor
    real: Tensor


@dataclass(frozen=True)
class Gates:
    """Passages of a text that have a gate each.

    Attributes:
        passages: in any order; tokens that are in none have no gate.
        length: tokens of the text.

    Raises:
        InputError: no passages, one that is empty or reaches beyond the text, or two that overlap.
    """

    passages: tuple[Passage, ...]
    length: int

    def __post_init__(self) -> None:
        way_out = "Divide the text with wherefrom.passages(tokens, by='sentence')."
        given = check_items("the passages", self.passages, expected="passages of the text", way_out=way_out)
        if not given:
            raise InputError("the passages", expected="at least one", given="none", way_out=way_out)
        object.__setattr__(self, "passages", given)
        for one in given:
            check_kind("a passage", one, Passage, way_out=way_out)
            if not 0 <= one.start < one.stop <= self.length:
                raise InputError(
                    "a passage",
                    expected=f"at least one token, of the {self.length} of the text",
                    given=f"tokens {one.start} to {one.stop - 1}",
                    way_out=way_out,
                    passage=one,
                )
        ordered = sorted(given, key=lambda one: one.start)
        for before, after in pairwise(ordered):
            if after.start < before.stop:
                raise InputError(
                    "the passages",
                    expected="passages that do not overlap, as a token has one gate",
                    given=f"tokens {before.start} to {before.stop - 1} and {after.start} to {after.stop - 1}",
                    way_out="Leave one of the two out, or ask about them one after the other.",
                    passages=(before, after),
                )

    def __len__(self) -> int:
        return len(self.passages)

    @cached_property
    def index(self) -> NDArray[np.int64]:
        """The passage of each token, [S]; -1 for a token in none. Read-only."""
        found = np.full(self.length, -1, dtype=np.int64)
        for place, one in enumerate(self.passages):
            found[one.start : one.stop] = place
        found.setflags(write=False)
        return found

    @cached_property
    def columns(self) -> Tensor:
        """The same for indexing, [S]: the number of passages stands for no passage."""
        return torch.from_numpy(np.where(self.index < 0, len(self), self.index))

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The passages side by side, in groups whose lengths differ by half at most."""
        groups: list[list[int]] = []
        shortest = 0
        for place in sorted(range(len(self)), key=lambda place: len(self._range(place))):
            length = len(self._range(place))
            if not groups or 2 * length > 3 * shortest:
                groups.append([])
                shortest = length
            groups[-1].append(place)
        return tuple(self._block(group) for group in groups)

    def _range(self, place: int) -> range:
        return range(self.passages[place].start, self.passages[place].stop)

    def _block(self, places: Sequence[int]) -> Block:
        first = torch.tensor([self._range(place).start for place in places])[:, None]
        length = torch.tensor([len(self._range(place)) for place in places])[:, None]
        step = torch.arange(int(length.max()))
        return Block(torch.tensor(places), first + torch.minimum(step, length - 1), step < length)


# -- pieces


def is_fast(one: Executed) -> bool:
    """Whether the fast ways can take an execution: a causal one on a CPU, nothing else done to its scores."""
    return one.is_causal_alone and one.q.device.type == "cpu"


class Piece(NamedTuple):
    """Some rows of an execution, with the columns that they may reach.

    Attributes:
        q: [B, H, R, D].
        k: [B, K, C, D].
        v: [B, K, C, V].
        permitted: who may read whom, bool [B or 1, H or 1, R, C].
        bias: what is added to the scores, broadcastable to [B, H, R, C]; None without.
        passage: of each column, [C]; the number of passages stands for none.
        gated: bool [R, C], what is read through a gate: a passage's column by a row outside it.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    permitted: Tensor
    bias: Tensor | None
    passage: Tensor
    gated: Tensor


def piece_of(one: Executed, gates: Gates, rows: range) -> Piece:
    """Return some rows of an execution."""
    reached = [mask.reach(row, gates.length) for mask in one.masks for row in (rows[0], rows[-1])]
    columns = range(min(reach.start for reach in reached), max(1, *(reach.stop for reach in reached)))
    along, down = slice(columns.start, columns.stop), slice(rows.start, rows.stop)
    passage = gates.columns.to(one.q.device)
    gated = (passage[down, None] != passage[None, along]) & (passage[along] < len(gates))
    bias = one.bias
    if bias is not None:
        bias = bias[..., along] if bias.shape[-1] > 1 else bias
        bias = bias[..., down, :] if bias.shape[-2] > 1 else bias
    arrays = one.q[:, :, down], one.k[:, :, along], one.v[:, :, along]
    return Piece(*arrays, one.permitted((rows, columns)), bias, passage[along], gated)


def in_strips(strip: Strip, one: Executed, gates: Gates, own: Tensor, size: int) -> Tensor:
    """Return the outputs [B, H, T, V] of an execution, so many rows at a time.

    The backward pass computes each strip again, so that no more than one is held.

    Args:
        strip: computes the outputs of some rows, of the execution, its gates and `own`.
        one: the execution.
        gates: of the text's passages.
        own: what the strips need to know of the gates.
        size: rows of a strip.
    """
    outputs = []
    for start in range(0, one.q.shape[2], size):
        given = (one, gates, own, range(start, min(start + size, one.q.shape[2])))
        if torch.is_grad_enabled():
            outputs.append(checkpoint(strip, *given, use_reentrant=False, preserve_rng_state=False))
        else:
            outputs.append(strip(*given))
    return torch.cat(outputs, dim=2)


def wide(one: Executed, *, per_head: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v in float32 at least; where heads have gates of their own, k and v for each of them.

    What k and v get in a backward pass is summed over the heads that share them.
    """
    q, k, v = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (one.q, one.k, one.v))
    if per_head:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    return q, k, v


def by_passage(columns: Tensor, gates: Gates, like: Tensor) -> Tensor:
    """Return sums of columns [B, K or H, S] by passage, in the shape of the gates, [1 or H, P]."""
    summed = columns.double().sum(dim=0)  # K|H S
    summed = summed if len(like) > 1 else summed.sum(dim=0, keepdim=True)
    return like.new_zeros(len(like), len(gates) + 1).index_add_(1, gates.columns, summed)[:, :-1]


def with_coordinate(q: Tensor, k: Tensor, v: Tensor, biases: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v in one size for the kernel, with one more coordinate after k's own that adds the biases."""
    size = -(-(max(k.shape[-1] + 1, v.shape[-1])) // SIZES) * SIZES
    q_more, k_more = (F.pad(x, (0, size - x.shape[-1])) for x in (q, k))
    q_more[..., q.shape[-1]] = 1 / scale
    k_more[..., k.shape[-1]] = biases
    return q_more, k_more, F.pad(v, (0, size - v.shape[-1]))


def one_size(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v in one size for the kernel."""
    size = max(k.shape[-1], v.shape[-1])
    q, k, v = (F.pad(x, (0, size - x.shape[-1])) if x.shape[-1] < size else x for x in (q, k, v))
    return q, k, v


def flash(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return outputs and lse of the kernel's causal rule."""
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    y, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True, scale=scale)
    return y, lse


def gradients_of(
    g: Tensor, inputs: tuple[Tensor, Tensor, Tensor], y: Tensor, lse: Tensor, scale: float, head_size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return a part's share of the gradients by q, k and v, and the column sums [B, K, S] of its score gradients.

    Args:
        g: the gradient by the joined outputs.
        inputs: of the part, from `with_coordinate`.
        y: the joined outputs.
        lse: their log-sum-exps.
        scale: of the scores.
        head_size: D, that of q and k without the coordinate.
    """
    more = (0, inputs[0].shape[-1] - g.shape[-1])
    of_q, of_k, of_v = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        F.pad(g, more), *inputs, F.pad(y, more), lse, 0.0, True, scale=scale
    )
    own = slice(0, head_size)
    return of_q[..., own], of_k[..., own], of_v[..., : g.shape[-1]], of_k[..., head_size]


def taken(x: Tensor, block: Block) -> Tensor:
    """Return the rows of a block's passages of x [B, H, T, D] as texts of their own, [B P', H, L, D]."""
    return x[:, :, block.rows].transpose(1, 2).flatten(0, 1)


def put_back(x: Tensor, block: Block) -> Tensor:
    """Return what belongs to the real rows of a block, [B, H, R, ...], of [B P', H, L, ...]."""
    return x.reshape(-1, len(block.rows), *x.shape[1:]).transpose(1, 2)[:, :, block.real]


def checked_gates(m: float | Tensor, gates: Gates, one: Executed) -> Tensor:
    """Return the gates as float64 [1 or H, P]."""
    if one.q.shape[2] != gates.length or one.k.shape[2] != gates.length:
        raise InputError(
            "an attention with gates",
            expected=f"{gates.length} tokens that read one another, as many as the text has",
            given=f"{one.q.shape[2]} that read {one.k.shape[2]} in {one.name}",
            way_out="Gates are for a whole text that is read at once, by attention over its tokens.",
            name=one.name,
        )
    given = m if isinstance(m, Tensor) else torch.tensor(float(m), dtype=torch.float64)
    forms = ((), (len(gates),), (1, len(gates)), (one.q.shape[1], len(gates)))
    if tuple(given.shape) not in forms:
        raise InputError(
            "the gates",
            expected=f"one number, or one a passage, {len(gates)}, or that for each head",
            given=f"shape {tuple(given.shape)}",
            way_out="Give one number for all: 0.6.",
        )
    if not bool(((given >= LEAST) & (given <= 1)).all()):
        raise no_gate(given.detach().flatten().tolist())
    return given.double().expand(len(gates)).unsqueeze(0) if given.ndim < 2 else given.double()


def no_gate(values: Sequence[Any]) -> InputError:
    """Return why the first of some values that cannot be a gate is none."""
    wrong = next((value for value in values if not LEAST <= value <= 1), values)
    return InputError(
        "a gate",
        expected=f"a number from {LEAST:g} to 1 (1 reads as ever, near 0 is cut)",
        given=repr(wrong),
        way_out="0.6 serves: at=(0.6,). What is cut entirely has no score to differentiate.",
    )
