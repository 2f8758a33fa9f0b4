r"""Gates on scores (floor 5): a passage's gate m adds log m to the scores of all destinations outside it that read it.

Those, later ones in a decoder, then read it as if only m of it were there. Inside a passage tokens read one another as
ever, and tokens of no passage are read as ever::

    s_ij <- s_ij + log m     j in p, i not in p

With m = 1 this is the model as it is, towards 0 a total knock-out of every passage at once. With g_i = dgoal/dy_i,

    dgoal/dlog m = sum over i not in p, j in p of  a_ij g_i . (v_j - y_i)

The fast way takes linear memory, on a CPU, where a call is causal and nothing else: torch's flash kernel with one more
coordinate, 1 / scale in q and log m in k, reads all sources gated (part A). Inside a passage it then reads m e^s where
e^s is right, so the passages' own blocks are read once more with the rest, (1 - m) e^s (part B), and the two are joined
by their log-sum-exps. The kernel's own backward pass, given the joined output and log-sum-exp, finds each part's share
of the gradient exactly, as its weights are then exp(s - lse) of the joined rows; the last coordinate of k gets the
column sums of the score gradients. Every other call goes in strips of rows in plain lines
(`attend_by_scores_in_strips`), its slow twin.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from wherefrom.capture.fused import STRIP, Limits, attend, merge
from wherefrom.evidence.gated import (
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
from wherefrom.evidence.goal import log1mexp
from wherefrom.evidence.running import Executed


def attend_by_scores(one: Executed, gates: Gates, m: float | Tensor) -> Tensor:
    """Return the outputs [B, H, T, V] of an execution whose destinations read passages through gates.

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
    logs = torch.log(checked_gates(m, gates, one))  # H|1 P, float64
    return attend_by_scores_fast(one, gates, logs) if is_fast(one) else attend_by_scores_in_strips(one, gates, logs)


def attend_by_scores_fast(one: Executed, gates: Gates, logs: Tensor) -> Tensor:
    """Return the outputs of an execution that `is_fast`, by the flash kernel; `logs` are log m, float64 [1 or H, P]."""
    q, k, v = wide(one, per_head=len(logs) > 1)
    output: Tensor = _Gated.apply(q, k, v, logs, gates, one.scale)  # type: ignore[no-untyped-call]
    return output.to(one.q.dtype)


def attend_by_scores_in_strips(one: Executed, gates: Gates, logs: Tensor, *, strip: int = STRIP) -> Tensor:
    """Return the outputs of any execution, some rows at a time in plain lines; `logs` are log m, [1 or H, P]."""
    format_ = torch.promote_types(one.q.dtype, torch.float32)
    own = F.pad(logs.to(device=one.q.device, dtype=format_), (0, 1))  # H|1 P+1, the last for tokens in no passage
    return in_strips(_strip, one, gates, own, strip)


def _strip(one: Executed, gates: Gates, own: Tensor, rows: range) -> Tensor:
    """Return the outputs [B, H, R, V] of some rows; `own` has log m of each passage and 0 behind them."""
    piece = piece_of(one, gates, rows)
    added = own[:, piece.passage][None, :, None].masked_fill(~piece.gated, 0.0)  # 1 H|1 R S'
    if piece.bias is not None:
        added = added + piece.bias
    limits = Limits.of_permitted(piece.permitted, piece.q, added=added)
    q, k, v = piece.q, piece.k, piece.v
    return attend(q, k, v, limits=limits, scale=one.scale, softcap=one.softcap, sinks=one.sinks).output


class _Gated(torch.autograd.Function):
    """The fast way; logs is float64 [1, P], or [H, P] where k and v have all H heads."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, logs: Tensor, gates: Gates, scale: float) -> Tensor:
        y, lse = flash(*with_coordinate(q, k, v, _biases(logs, gates, k), scale), scale)
        y = y[..., : v.shape[-1]].contiguous()
        rest = log1mexp(logs).to(lse.dtype)  # H|1 P, log(1 - m)
        for block in gates.blocks:
            within = flash(*one_size(*(taken(x, block) for x in (q, k, v))), scale)
            own, own_lse = put_back(within[0][..., : v.shape[-1]], block), put_back(within[1], block)
            rows = block.rows[block.real]
            own_lse = own_lse + rest[:, gates.columns[rows]]  # B H R
            y[:, :, rows], lse[:, :, rows] = merge((y[:, :, rows], lse[:, :, rows]), (own, own_lse))
        ctx.save_for_backward(q, k, v, logs, y, lse)
        ctx.gates, ctx.scale = gates, scale
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, logs, y, lse = ctx.saved_tensors
        gates, scale = ctx.gates, ctx.scale
        inputs = with_coordinate(q, k, v, _biases(logs, gates, k), scale)
        *found, columns = gradients_of(g, inputs, y, lse, scale, k.shape[-1])
        for block in gates.blocks:
            rows = block.rows[block.real]
            gate = logs[:, gates.columns[rows]].exp().to(q.dtype)  # H|1 R, m
            own_q, own_k, own_v, own_y, own_g = (taken(x, block) for x in (q, k, v, y, g))
            own_g = own_g * block.real.repeat(len(q), 1)[:, None, :, None]
            own_lse = taken(lse.unsqueeze(-1), block)[..., 0]
            inputs = with_coordinate(own_q, own_k, own_v, own_k.new_zeros(()), scale)
            *inside, own_columns = gradients_of(own_g, inputs, own_y, own_lse, scale, k.shape[-1])
            for whole, part in zip(found, inside, strict=True):  # what part A left of it, 1 - m
                whole.index_add_(2, rows, put_back(part, block) * (1 - gate).unsqueeze(-1))
            columns.index_add_(2, rows, -put_back(own_columns, block) * gate)  # what part A has of it, m
        return *found, by_passage(columns, gates, logs), None, None


def _biases(logs: Tensor, gates: Gates, k: Tensor) -> Tensor:
    """Return log m of each column, 0 for one in no passage, [1 or K, S]."""
    return F.pad(logs, (0, 1))[:, gates.columns].to(k.dtype)
