r"""Gates on weights (floor 5): through a gate m on a passage destinations outside it read it with m of their weight.

What that leaves of a row goes to the sources without a gate, a passage's own tokens among them for its destinations, in
the proportion that they have. With a_ij the row as it is, y_i its output, and z_i that without any gated source, all
gates at m, the row's output is half-way between::

    y'_i = m y_i + (1 - m) z_i

With m = 1 this is the model as it is, with 0 a total knock-out of every passage at once. A gate on scores does nothing
to a row that reads one source alone, however small it is; this one lets through m of it. The derivative by a passage's
gate is that by its share of these rows, in which everything else keeps its proportion; with g_i = dgoal/dy'_i ::

    dgoal/dm_p = sum over i not in p, j in p of  a_ij g_i . (v_j - y'_i)

The fast way takes linear memory, on a CPU, where a call is causal and nothing else: torch's flash kernel reads the row
as it is, and once more with the gated columns shut, by one more coordinate; the passages' own blocks are read beside it
and joined by their log-sum-exps. The derivative needs sums over destinations of a_ij g_i and of a_ij (g_i . y'_i): the
kernel's own backward pass gives both as gradients by the values, which get one more coordinate for the second. Every
other call, and gates that differ, go in strips of rows in plain lines (`attend_by_weights_in_strips`), its slow twin.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from wherefrom.capture.fused import STRIP, merge
from wherefrom.evidence.gated import (
    SIZES,
    Gates,
    by_passage,
    checked_gates,
    flash,
    gradients_of,
    in_strips,
    is_fast,
    one_size,
    piece_of,
    put_back,
    taken,
    wide,
    with_coordinate,
)
from wherefrom.evidence.running import Executed, scores_of

SHUT = -1e4
"""Added to the scores of shut columns: their weights are then exactly 0 in float32."""


def attend_by_weights(one: Executed, gates: Gates, m: float | Tensor) -> Tensor:
    """Return the outputs [B, H, T, V] of an execution whose destinations read passages through gates on weights.

    They can be differentiated with respect to q, k, v and the gates. Cross-attention, which does not read the text,
    is returned as it is.

    Args:
        one: the execution, of self-attention.
        gates: of the text's passages; of each text of a batch.
        m: from 1e-30 to 1: one number for all, or a tensor [], [P], or [1 or H, P] for heads that have their own.

    Raises:
        InputError: a gate below 1e-30 or above 1, or another number of gates; a text of another length.
    """
    if one.kind == "cross":
        return one.attend().output
    given = checked_gates(m, gates, one)  # H|1 P, float64
    alike = bool((given.detach() == given.detach()[:, :1]).all())
    return (attend_by_weights_fast if alike and is_fast(one) else attend_by_weights_in_strips)(one, gates, given)


def attend_by_weights_fast(one: Executed, gates: Gates, m: Tensor) -> Tensor:
    """Return the outputs of an execution that `is_fast`, by the flash kernel; m is [1 or H, P], alike in a head."""
    q, k, v = wide(one, per_head=len(m) > 1)
    output: Tensor = _Weighted.apply(q, k, v, m, gates, one.scale)  # type: ignore[no-untyped-call]
    return output.to(one.q.dtype)


def attend_by_weights_in_strips(one: Executed, gates: Gates, m: Tensor, *, strip: int = STRIP) -> Tensor:
    """Return the outputs of any execution, some rows at a time in plain lines; m is float64 [1 or H, P]."""
    return in_strips(_strip, one, gates, m, strip)


def _strip(one: Executed, gates: Gates, m: Tensor, rows: range) -> Tensor:
    """Return the outputs [B, H, R, V] of some rows."""
    piece = piece_of(one, gates, rows)
    permitted, shut = piece.permitted, piece.gated
    scores = scores_of(piece.q, piece.k, one.scale, one.softcap)  # B H R C
    if piece.bias is not None:
        scores = scores + piece.bias
    v = piece.v.to(scores.dtype).repeat_interleave(one.q.shape[1] // one.v.shape[1], dim=1)
    a, without = (_weights(scores, readable, one.sinks) for readable in (permitted, permitted & ~shut))
    alone = ~(permitted & ~shut).any(dim=-1, keepdim=True)  # nothing else to read: read as ever
    if one.sinks is not None:
        alone = torch.zeros_like(alone)
    opened = F.pad(m.to(device=scores.device, dtype=scores.dtype), (0, 1), value=1.0)[:, piece.passage][None, :, None]
    gated = shut & ~alone  # B|1 H|1 R C
    through = torch.where(gated, opened.detach() * a, 0.0)
    rest = torch.where(alone, a, without) * (1.0 - through.sum(dim=-1, keepdim=True))
    change = torch.where(gated, opened / opened.detach(), 1.0)  # 1, whose derivative is that by log m
    shares = (through + rest) * change
    sunk = 0.0 if one.sinks is None else 1.0 - (through + rest).sum(dim=-1, keepdim=True)
    total = shares.sum(dim=-1, keepdim=True) + sunk
    empty = total == 0
    return ((shares @ v) / torch.where(empty, 1.0, total)).to(one.q.dtype)


def _weights(scores: Tensor, permitted: Tensor, sinks: Tensor | None) -> Tensor:
    """Return the weights of rows [B, H, R, C], 0 where nothing may be read; a sink takes its share."""
    scores = scores.masked_fill(~permitted, -torch.inf)
    if sinks is None:
        empty = ~permitted.any(dim=-1, keepdim=True)
        return torch.softmax(scores.masked_fill(empty, 0.0), dim=-1).masked_fill(empty, 0.0)
    column = sinks.to(scores.dtype)[None, :, None, None].expand(len(scores), -1, scores.shape[2], 1)
    return torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1]


class _Weighted(torch.autograd.Function):
    """The fast way; m is float64 [1, P], or [H, P] where k and v have all H heads, alike along a row."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, m: Tensor, gates: Gates, scale: float) -> Tensor:
        size = v.shape[-1]
        y, lse = flash(*one_size(q, k, v), scale)
        y = y[..., :size].contiguous()
        z, z_lse = flash(*with_coordinate(q, k, v, _shut(gates, k), scale), scale)
        z = z[..., :size].contiguous()
        for block in gates.blocks:
            within = flash(*one_size(*(taken(x, block) for x in (q, k, v))), scale)
            own = put_back(within[0][..., :size], block), put_back(within[1], block)
            rows = block.rows[block.real]
            z[:, :, rows], z_lse[:, :, rows] = merge((z[:, :, rows], z_lse[:, :, rows]), own)
        ctx.save_for_backward(q, k, v, m, y, lse, z, z_lse)
        ctx.gates, ctx.scale = gates, scale
        return z + _opened(m, q) * (y - z)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, m, y, lse, z, z_lse = ctx.saved_tensors
        gates, scale = ctx.gates, ctx.scale
        opened = _opened(m, q)
        beside = (g * (z + opened * (y - z))).sum(dim=-1, keepdim=True)
        *found, columns = _as_it_is(g, beside, q, k, v, y, lse, scale)
        found = [opened * x for x in found]
        less = (1 - opened) * g
        inputs = with_coordinate(q, k, v, _shut(gates, k), scale)
        for whole, part in zip(found, gradients_of(less, inputs, z, z_lse, scale, k.shape[-1]), strict=False):
            whole += part
        for block in gates.blocks:
            rows, real = block.rows[block.real], block.real.repeat(len(q), 1)[:, None, :, None]
            own_q, own_k, own_v, own_y, own_z = (taken(x, block) for x in (q, k, v, y, z))
            own_g, own_beside, own_less = (taken(x, block) * real for x in (g, beside, less))
            own_lse, own_z_lse = (taken(x.unsqueeze(-1), block)[..., 0] for x in (lse, z_lse))
            inside = _as_it_is(own_g, own_beside, own_q, own_k, own_v, own_y, own_lse, scale)[-1]
            columns.index_add_(2, rows, -put_back(inside, block))  # inside its passage nothing has a gate
            inputs = with_coordinate(own_q, own_k, own_v, own_k.new_zeros(()), scale)
            parts = gradients_of(own_less, inputs, own_z, own_z_lse, scale, k.shape[-1])
            for whole, part in zip(found, parts, strict=False):
                whole.index_add_(2, rows, put_back(part, block))
        return *found, by_passage(columns, gates, m), None, None


def _opened(m: Tensor, q: Tensor) -> Tensor:
    """Return the gates of heads, [1 or H, 1, 1]."""
    return m[:, :1, None].to(q.dtype)


def _shut(gates: Gates, k: Tensor) -> Tensor:
    """Return what is added to the scores of each column, [1, S]."""
    return torch.where(gates.columns < len(gates), SHUT, 0.0).to(k.dtype)[None]


def _as_it_is(
    g: Tensor, beside: Tensor, q: Tensor, k: Tensor, v: Tensor, y: Tensor, lse: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients by q, k and v of the row as it is, and the column sums [B, K, S] of a_ij (g_i . v_j - c_i).

    Args:
        g: the gradient by y, [B, H, T, V].
        beside: c, [B, H, T, 1].
        q: as the kernel was given it; so k, v and the scale.
        k: see there.
        v: see there.
        y: the kernel's output.
        lse: and its log-sum-exps.
        scale: of the scores.
    """
    head, value = q.shape[-1], v.shape[-1]
    size = -(-max(head, value + 1) // SIZES) * SIZES
    q, k, v_more, y = (F.pad(x, (0, size - x.shape[-1])).contiguous() for x in (q, k, v, y))
    g_more = F.pad(torch.cat([g, beside], dim=-1), (0, size - value - 1)).contiguous()
    of_q, of_k, of_v = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        g_more, q, k, v_more, y, lse, 0.0, True, scale=scale
    )
    columns = (v * of_v[..., :value]).sum(dim=-1) - of_v[..., value]
    return of_q[..., :head], of_k[..., :head], of_v[..., :value], columns
