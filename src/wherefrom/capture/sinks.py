"""The flash kernel with sinks (floor 3): a logit a head that takes a share of every row and moves nothing.

The kernel knows no sinks, and needs none: with L = log(exp(lse) + exp(sink)) its output times exp(lse - L) is the
output with a sink, and L is its lse. For the gradients that rescaling is a trap, as the kernel's lse has none. But the
weights of the sources are exp(s - L), so the kernel's own backward pass, given the new output and L in place of the old
ones, gives those of q, k and v. The sink's share is exp(sink - L), and its gradient -exp(sink - L) (g . y) a row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def flash_with_sinks(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, *, bias: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Return outputs [B, H, T, V] and lse [B, H, T] of q [B, H, T, D] over k [B, K, S, D] and v [B, K, S, D], on a CPU.

    They can be differentiated with respect to q, k, v and the sinks, once; lse has no gradient. In a row without a
    permitted source the output is 0 and lse any finite number.

    Args:
        q: queries.
        k: keys.
        v: values, of the size of the keys.
        sinks: [H] logits.
        bias: what is added to the scores, as the kernel takes it; None for nothing.
        causal: the kernel's own causal rule.
        scale: of the scores.
    """
    output, lse = _FlashWithSinks.apply(q, k, v, sinks, bias, causal, scale)  # type: ignore[no-untyped-call]
    return output, lse


class _FlashWithSinks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, bias: Tensor | None, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor]:
        output, own = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, causal, attn_mask=bias, scale=scale
        )
        lse = torch.logaddexp(own, sinks.to(own.dtype)[:, None])  # B H T
        output = (output * torch.exp(own - lse).unsqueeze(-1)).to(q.dtype)
        ctx.save_for_backward(q, k, v, sinks, bias, output, lse)
        ctx.causal, ctx.scale = causal, scale
        ctx.mark_non_differentiable(lse)
        return output, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_output: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, sinks, bias, output, lse = ctx.saved_tensors
        of_inputs = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            of_output, q, k, v, output, lse, 0.0, ctx.causal, attn_mask=bias, scale=ctx.scale
        )
        share = torch.exp(sinks.to(lse.dtype)[:, None] - lse)  # B H T
        of_rows = (of_output.to(lse.dtype) * output.to(lse.dtype)).sum(dim=-1)  # B H T
        return (*of_inputs, -(share * of_rows).sum(dim=(0, 2)).to(sinks.dtype), None, None, None)
