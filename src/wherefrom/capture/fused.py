"""The kernels (floor 3): attention whose weights are never formed, with the log-sum-exp of each row beside the outputs.

`attend` is what the recorder, the cuts and their tests all call. On a CPU it runs torch's flash kernel; anywhere else,
and wherever that kernel cannot answer (a softcap, a bias that is trained), `attend_in_strips`, its slow twin in plain
lines, which holds a strip of rows at a time, in the backward pass too. Which of them ran is part of the result. Both
are tested against `wherefrom.attention`.

The flash kernel returns natural-log lse with scale and mask included, in float32 (float64 for float64), and has traps
that are handled here: silently wrong numbers for a last stride other than 1, for one text's keys under a batch of
queries and for a float32 bias on float64 scores; the end of the process where there are no keys, or no queries; lse = 0
for a row without a permitted source.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from wherefrom.attention import Mask
from wherefrom.capture.sinks import flash_with_sinks
from wherefrom.errors import InputError
from wherefrom.model.attention_function import permitted_tensor, strips

STRIP = 128
"""Rows that the slow twin holds at a time: 128 x S scores a head, small beside the keys themselves."""


@dataclass(frozen=True)
class Limits:
    """Who may read whom, and what is added to the scores, in the kernel's own form.

    Attributes:
        bias: what is added to the scores, [B or 1, H or 1, T or 1, S], -inf where a source is not permitted and a
            finite number, mostly 0, where it is; None: everything is permitted, and nothing added.
        causal: the kernel's own upper-left causal rule (source j for row i >= j), beside a bias or instead of one.
        dead: bool [B or 1, H or 1, T or 1], the rows that may read nothing; None: there are none.
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
    def of_permitted(cls, permitted: Tensor, like: Tensor, *, added: Tensor | None = None) -> Limits:
        """Return the kernel's form of a map of who may read whom.

        Args:
            permitted: bool [T, S], [H, T, S] or [B or 1, H or 1, T or 1, S].
            like: gives the number format and the device of a bias made from 0 and -inf alone.
            added: [B or 1, H or 1, T or 1, S], finite numbers that are added to the scores; it may require a gradient.
        """
        if permitted.ndim != 4:
            permitted = permitted.reshape(1, -1, *permitted.shape[-2:])  # 1 H|1 T S
        dead = ~permitted.any(dim=-1)  # B|1 H|1 T|1
        if added is None:
            added = torch.zeros((), dtype=like.dtype, device=like.device)
        bias = torch.where(permitted, added, -torch.inf)  # of the two shapes together
        return cls(bias=bias, dead=dead if bool(dead.any()) else None)


class Attended(NamedTuple):
    """Outputs y [B, H, T, V] in q's format, lse float32 [B, H, T] (-inf for a row without sources), and the kernel.

    The outputs have a gradient; lse, which is data about the run, has none.
    """

    output: Tensor
    lse: Tensor
    kernel: str


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    limits: Limits,
    scale: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Attended:
    """Return the outputs and lse of q [B, H, T, D] over k [B, K, S, D], v [B, K, S, V], by the fastest kernel that is
    right.

    The outputs can be differentiated with respect to q, k, v, the bias and the sinks. An array of a batch of 1 serves
    every text of the batch.

    Args:
        q: queries.
        k: keys.
        v: values.
        limits: who may read whom, and what is added to the scores.
        scale: of the scores.
        softcap: bound c on a score's size, s <- c tanh(s / c), before the bias.
        sinks: [H] logits that take a share of their head's rows and move nothing; lse counts them. A row that may read
            nothing stays one that is marked: output 0, lse -inf.

    Raises:
        InputError: no keys at all, or shapes that do not belong together.
    """
    _check_shapes(q, k, v)
    if not q.shape[0] == k.shape[0] == v.shape[0]:
        q, k, v = (x.expand(next(len(x) for x in (q, k, v) if len(x) != 1), -1, -1, -1) for x in (q, k, v))
    if limits.bias is not None or sinks is not None:
        limits = _checked(limits, sinks, q, k)
    if q.device.type == "cpu" and softcap is None and q.numel() and not _trained(limits.bias):
        output, lse = _flash(q, k, v, limits, scale, sinks)
        kernel = "torch flash, CPU"
    else:
        output, lse = attend_in_strips(q, k, v, limits=limits, scale=scale, softcap=softcap, sinks=sinks)
        kernel = f"plain strips, {q.device.type}"
    if limits.dead is not None:
        lse = lse.masked_fill(limits.dead, -torch.inf)
        output = output.masked_fill(limits.dead.unsqueeze(-1), 0.0)
    return Attended(output, lse.detach().float() if lse.requires_grad else lse.float(), kernel)


def attend_masked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask,
    scale: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Attended:
    """Return the same under a mask's rule; a window costs what it lets be read, not n x n.

    Raises:
        InputError: as `attend`.
    """
    parts = []
    for rows, columns, rule in strips(mask, q.shape[2], k.shape[2]):
        own = q[:, :, rows], k[:, :, columns], v[:, :, columns]
        limits = Limits.of_mask(rule, own[0].shape[2], own[1].shape[2], q)
        parts.append(attend(*own, limits=limits, scale=scale, softcap=softcap, sinks=sinks))
    if len(parts) == 1:
        return parts[0]
    outputs, sums, kernels = zip(*parts, strict=True)
    return Attended(torch.cat(outputs, dim=2), torch.cat(sums, dim=2), kernels[0])


def attend_in_strips(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    limits: Limits,
    scale: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    strip: int = STRIP,
) -> tuple[Tensor, Tensor]:
    """Return outputs and lse in plain lines, a strip of destinations at a time, computed in float32 at least.

    Where a gradient is wanted, a strip keeps nothing: the backward pass computes it again, so that its memory grows
    with the length and not with its square. All arguments are those of `attend`, of one batch size; lse has a gradient
    here.
    """
    (batch, heads, destinations, head_size), (kv_heads, sources) = q.shape, k.shape[1:3]
    wide = torch.promote_types(q.dtype, torch.float32)
    q_wide = q.to(wide) * (scale if softcap is None else scale / softcap)
    q_wide = q_wide.reshape(batch, kv_heads, heads // kv_heads, destinations, head_size)  # B K G T D
    k_wide, v_wide = k.to(wide).unsqueeze(2), v.to(wide).unsqueeze(2)  # B K 1 S D|V
    sink = None if sinks is None else sinks.to(wide)[:, None]  # H 1
    again = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, limits.bias, sinks))
    outputs, sums = [], []
    for start in range(0, max(destinations, 1), strip):
        rows = slice(start, min(start + strip, destinations))
        read = slice(
            0, max(1, min(rows.stop, sources)) if limits.causal else sources
        )  # the rest is later than the rows
        bias = None if limits.bias is None else limits.bias[..., read]
        if bias is not None and bias.shape[2] > 1:
            bias = bias[:, :, rows]
        own = q_wide[:, :, :, rows], k_wide[:, :, :, read], v_wide[:, :, :, read]
        given = (*own, bias, sink, softcap, start if limits.causal else None)
        output, lse = (
            checkpoint(_strip, *given, use_reentrant=False, preserve_rng_state=False) if again else _strip(*given)
        )
        outputs.append(output)
        sums.append(lse)
    return torch.cat(outputs, dim=2).to(q.dtype), torch.cat(sums, dim=2)


def _strip(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    sink: Tensor | None,
    softcap: float | None,
    first: int | None,
) -> tuple[Tensor, Tensor]:
    """Return outputs [B, H, R, V] and lse [B, H, R] of a strip of R rows; `first` is its first row if it is causal."""
    scores = (q @ k.transpose(-1, -2)).flatten(1, 2)  # B H R S
    if softcap is not None:
        scores = scores.tanh_()
        scores = scores * softcap if scores.requires_grad else scores.mul_(softcap)  # tanh's gradient needs its result
    if bias is not None:
        scores = scores.add_(bias)
    if first is not None:
        columns = torch.arange(k.shape[-2], device=q.device)
        own = torch.arange(first, first + q.shape[3], device=q.device)
        scores = scores.masked_fill_(columns > own[:, None], -torch.inf)
    # The largest logit leaves the exponent. An empty row has none; any finite number serves it, as exp(-inf) is 0.
    largest = scores.detach().amax(dim=-1)  # B H R
    empty = largest == -torch.inf
    pivot = largest.masked_fill(empty, 0.0)
    pivot = pivot if sink is None else torch.maximum(pivot, sink.detach())
    weights = scores.sub_(pivot.unsqueeze(-1)).exp_()
    total = weights.sum(dim=-1)  # B H R
    total = total if sink is None else total + torch.exp(sink - pivot)
    total = total.masked_fill(empty, 1.0)  # a division by 0 and its gradient would be NaN
    sums = (weights.view(*q.shape[:-1], k.shape[-2]) @ v).flatten(1, 2)  # B H R V
    lse = (pivot + torch.log(total)).masked_fill(empty, -torch.inf)
    return sums / total.unsqueeze(-1), lse


def _flash(
    q: Tensor, k: Tensor, v: Tensor, limits: Limits, scale: float, sinks: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return outputs and lse by torch's flash kernel for a CPU, which wants one size of keys and values."""
    if not q.dtype == k.dtype == v.dtype:
        formats = [f"{name} {str(x.dtype).removeprefix('torch.')}" for name, x in {"q": q, "k": k, "v": v}.items()]
        raise InputError(
            "the arrays of an attention call",
            expected="one number format",
            given=", ".join(formats),
            way_out="Under torch.autocast they differ: run the model outside of it, in its own format.",
        )
    value_size, size = v.shape[-1], max(v.shape[-1], k.shape[-1])
    if value_size != k.shape[-1]:  # zeros change neither a product of q and k nor the values before them
        q, k, v = (F.pad(x, (0, size - x.shape[-1])) for x in (q, k, v))
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    bias = limits.bias
    if sinks is not None:
        output, lse = flash_with_sinks(q, k, v, sinks, bias=bias, causal=limits.causal, scale=scale)
    else:
        output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, limits.causal, attn_mask=bias, scale=scale
        )
    return (output if size == value_size else output[..., :value_size]), lse


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
    fits = fits and q.shape[3] == k.shape[3]
    fits = fits and (q.shape[0] == k.shape[0] == v.shape[0] or _one_batch(q, k, v))
    fits = fits and k.shape[1:3] == v.shape[1:3] and k.shape[1] > 0 and q.shape[1] % k.shape[1] == 0
    if not fits:
        raise InputError(
            "the arrays of an attention call",
            expected="q [B, H, T, D], k [B, K, S, D], v [B, K, S, V] with S at least 1 and H a multiple of K",
            given=f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}",
            way_out="Check the order of the axes.",
        )


def _one_batch(*arrays: Tensor) -> bool:
    """Return whether some arrays are of one batch, but for those that have a batch of 1."""
    return len({len(array) for array in arrays} - {1}) <= 1


def _trained(bias: Tensor | None) -> bool:
    """Return whether a bias wants a gradient, which the flash kernel does not give."""
    return bias is not None and bias.requires_grad and torch.is_grad_enabled()


def _checked(limits: Limits, sinks: Tensor | None, q: Tensor, k: Tensor) -> Limits:
    """Return the limits with their bias in a number format that the kernel reads; refuse other shapes."""
    bias, full = limits.bias, (*q.shape[:3], k.shape[2])
    if sinks is not None and sinks.shape != (q.shape[1],):
        raise InputError(
            "the sinks",
            expected=f"one logit a query head, ({q.shape[1]},)",
            given=f"shape {tuple(sinks.shape)}",
            way_out="A sink logit belongs to a head and is the same for all its rows.",
        )
    if bias is None:
        return limits
    sizes = bias.shape
    if (
        bias.ndim != 4
        or sizes[3] != full[3]
        or any(own not in (1, size) for own, size in zip(sizes, full, strict=True))
    ):
        raise InputError(
            "the bias of an attention call",
            expected=f"the shape of its scores, {full}, or 1 in place of any but the last",
            given=f"shape {tuple(sizes)}",
            way_out="Expand a mask of fewer dimensions to [B or 1, H or 1, T or 1, S].",
        )
    if bias.dtype == torch.bool:
        if limits.causal:
            rows, columns = (torch.arange(size, device=bias.device) for size in full[2:])
            bias = bias & (columns <= rows[:, None])
        return replace(Limits.of_permitted(bias, q), causal=limits.causal)
    if bias.dtype == q.dtype:
        return limits
    return replace(limits, bias=bias.to(torch.promote_types(q.dtype, torch.float32)))
