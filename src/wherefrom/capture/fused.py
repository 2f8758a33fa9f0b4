"""The kernels (floor 3): attention whose weights are never formed, with the log-sum-exp of each row beside the outputs.

`attend` is what the recorder, the cuts and their tests all call. On a CPU it runs torch's flash kernel; anywhere else,
and wherever that kernel would answer wrongly, `attend_in_strips`, its slow twin in plain lines, which holds a strip of
rows at a time. Which of them ran is part of the result. Both are tested against `wherefrom.attention`.

The flash kernel returns natural-log lse with scale and mask included, in float32 (float64 for float64), and has traps
that are handled here: a last stride other than 1 gives silently wrong numbers, an empty key axis ends the process, a
row without a permitted source comes back as lse = 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from wherefrom.attention import Mask
from wherefrom.errors import InputError
from wherefrom.model.attention_function import permitted_tensor, strips

STRIP = 128
"""Rows that the slow twin holds at a time: 128 x S scores a head, small beside the keys themselves."""


@dataclass(frozen=True)
class Limits:
    """Who may read whom, in the kernel's own form.

    Attributes:
        bias: what is added to the scores, [1, H or 1, T, S], 0 where permitted and -inf where not; None: everything is.
        causal: the kernel's own upper-left causal rule, used instead of a bias where it says the same.
        dead: bool [1, H or 1, T], the rows that may read nothing; None: there are none.
    """

    bias: Tensor | None = None
    causal: bool = False
    dead: Tensor | None = None

    @classmethod
    def of_mask(cls, mask: Mask, destinations: int, sources: int, like: Tensor) -> Limits:
        """Return the kernel's form of a mask rule, in the number format and on the device of `like`."""
        if mask.only_causal and mask.offset == 0 and destinations == sources:
            return cls(causal=destinations > 1)
        permitted = permitted_tensor(mask, destinations, sources, like.device)
        return cls() if permitted is None else cls.of_permitted(permitted, like)

    @classmethod
    def of_permitted(cls, permitted: Tensor, like: Tensor) -> Limits:
        """Return the kernel's form of bool [T, S] or [H, T, S]."""
        permitted = permitted.reshape(1, -1, *permitted.shape[-2:])  # 1 H|1 T S
        bias = torch.zeros(permitted.shape, dtype=like.dtype, device=like.device)
        bias.masked_fill_(~permitted, -torch.inf)
        dead = ~permitted.any(dim=-1)  # 1 H|1 T
        return cls(bias=bias, dead=dead if bool(dead.any()) else None)


class Attended(NamedTuple):
    """Outputs y [B, H, T, V] in q's format, lse float32 [B, H, T] (-inf for a row without sources), and the kernel."""

    output: Tensor
    lse: Tensor
    kernel: str


def attend(q: Tensor, k: Tensor, v: Tensor, *, limits: Limits, scale: float) -> Attended:
    """Return the outputs and lse of q [B, H, T, D] over k [B, K, S, D], v [B, K, S, V], by the fastest kernel that is
    right.

    Raises:
        InputError: no keys at all, or shapes that do not belong together.
    """
    _check_shapes(q, k, v)
    if q.device.type == "cpu" and k.shape[-1] == v.shape[-1]:
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
        output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, limits.causal, attn_mask=limits.bias, scale=scale
        )
        kernel = "torch flash, CPU"
    else:
        output, lse = attend_in_strips(q, k, v, limits=limits, scale=scale)
        kernel = f"plain strips, {q.device.type}"
    if limits.dead is not None:
        lse = lse.masked_fill(limits.dead, -torch.inf)
        output = output.masked_fill(limits.dead.unsqueeze(-1), 0.0)
    return Attended(output, lse.float(), kernel)


def attend_masked(q: Tensor, k: Tensor, v: Tensor, *, mask: Mask, scale: float) -> Attended:
    """Return the same under a mask's rule; a window costs what it lets be read, not n x n.

    Raises:
        InputError: as `attend`.
    """
    parts = []
    for rows, columns, rule in strips(mask, q.shape[2], k.shape[2]):
        own = q[:, :, rows], k[:, :, columns], v[:, :, columns]
        limits = Limits.of_mask(rule, own[0].shape[2], own[1].shape[2], q)
        parts.append(attend(*own, limits=limits, scale=scale))
    if len(parts) == 1:
        return parts[0]
    outputs, sums, kernels = zip(*parts, strict=True)
    return Attended(torch.cat(outputs, dim=2), torch.cat(sums, dim=2), kernels[0])


def attend_in_strips(
    q: Tensor, k: Tensor, v: Tensor, *, limits: Limits, scale: float, strip: int = STRIP
) -> tuple[Tensor, Tensor]:
    """Return outputs and lse in plain lines, a strip of destinations at a time, computed in float32 at least."""
    batch, heads, destinations, head_size = q.shape
    kv_heads, sources = k.shape[1], k.shape[2]
    wide = torch.promote_types(q.dtype, torch.float32)
    grouped = q.to(wide).reshape(batch, kv_heads, -1, destinations, head_size)  # B K G T D
    index = torch.arange(max(destinations, sources), device=q.device)
    k, v = k.to(wide).unsqueeze(2), v.to(wide).unsqueeze(2)  # B K 1 S D|V
    outputs, sums = [], []
    for start in range(0, destinations, strip):
        rows = slice(start, min(start + strip, destinations))
        scores = scale * (grouped[:, :, :, rows] @ k.transpose(-1, -2))  # B K G strip S
        scores = scores.flatten(1, 2)  # B H strip S
        if limits.bias is not None:
            scores = scores + limits.bias[:, :, rows]
        if limits.causal:
            later = index[None, :sources] > index[rows, None]  # strip S
            scores = scores.masked_fill(later, -torch.inf)
        lse = torch.logsumexp(scores, dim=-1)  # B H strip
        pivot = lse.masked_fill(lse == -torch.inf, 0.0)  # finite for a row without sources: exp(-inf) = 0, no NaN
        weights = torch.exp(scores - pivot.unsqueeze(-1))  # B H strip S
        weights = weights.view(batch, kv_heads, heads // kv_heads, -1, sources)  # B K G strip S
        outputs.append((weights @ v).flatten(1, 2))  # B H strip V
        sums.append(lse)
    return torch.cat(outputs, dim=2).to(q.dtype), torch.cat(sums, dim=2)


def merge(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Join two parts of the same rows that read disjoint sources: each is (outputs [..., V], lse [...]).

    With L = log(exp(l1) + exp(l2)) the joined output is exp(l1 - L) y1 + exp(l2 - L) y2, and its lse is L; a part
    that may read nothing has lse = -inf and counts for nothing. If neither may, the output is 0 and lse -inf: a row
    that is marked.
    """
    (y1, lse1), (y2, lse2) = first, second
    lse = torch.logaddexp(lse1, lse2)
    pivot = lse.masked_fill(lse == -torch.inf, 0.0)
    y = torch.exp(lse1 - pivot).unsqueeze(-1) * y1 + torch.exp(lse2 - pivot).unsqueeze(-1) * y2
    return y, lse


def _check_shapes(q: Tensor, k: Tensor, v: Tensor) -> None:
    fits = q.ndim == k.ndim == v.ndim == 4 and k.shape[2] > 0
    fits = fits and q.shape[0] == k.shape[0] == v.shape[0] and q.shape[3] == k.shape[3]
    fits = fits and k.shape[1:3] == v.shape[1:3] and k.shape[1] > 0 and q.shape[1] % k.shape[1] == 0
    if not fits:
        raise InputError(
            "the arrays of an attention call",
            expected="q [B, H, T, D], k [B, K, S, D], v [B, K, S, V] with S at least 1 and H a multiple of K",
            given=f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}",
            way_out="Check the order of the axes.",
        )
