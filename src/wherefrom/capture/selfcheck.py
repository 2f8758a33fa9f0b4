"""The self-check (floor 3): no call is recorded unless its own numbers rebuild what its kernel returned.

Kernels have returned wrong log-sum-exps in public releases (off by ln 2, all zeros, padded). A weight recomputed from a
wrong lse looks like a weight. So for some rows of every head, at every call, the weights exp(s - lse) must sum to one
and their weighted sum of the values must be the kernel's own output; otherwise the recorder refuses. The calls of one
pass are alike and are checked side by side, which costs a third of checking them one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wherefrom.attention import Mask
from wherefrom.capture.fused import Attended
from wherefrom.errors import RecordingError
from wherefrom.model.attention_function import Site
from wherefrom.recording import Check

CEILING = 0.05
"""No tolerance grows beyond this: a lse that is off by ln 2 makes the weights sum to 2, and must never pass."""
LOWEST = -80.0
"""A weight below exp(-80) counts for nothing in float32, but as a denormal number it would take the processor longer
than all the others together; exponents end here."""
NUMBERS_AT_ONCE = 2**19
"""Weights rebuilt together, so that a check needs little memory at any length: 2 MB in float32."""
TINY = torch.finfo(torch.float32).tiny


def rows_to_check(destinations: int, layer: int) -> list[int]:
    """Return up to three destinations: the ends, where kernels pad, and one that differs from layer to layer."""
    wandering = (destinations // 2 + 101 * layer) % destinations
    return sorted({0, wandering, destinations - 1})


@dataclass(frozen=True)
class Sample:
    """Which rows of one call are checked, and what its kernel returned for them.

    Attributes:
        site: which call.
        kernel: which kernel.
        mask: who may read whom, seen from the call's first row.
        scale: of the scores.
        rows: destinations, counted from the call's first row.
        y: the outputs [H, R, V], in float32, in CPU memory like the rest of a recording.
        precision: the step of the outputs' own number format at 1.
        softcap: bound on the scores' size, or None.
        bias: [H or 1, R, S], what is added to these rows' scores after the softcap, or None.
        sinks: [H], logits that take a share of each row, or None.
    """

    site: Site
    kernel: str
    mask: Mask
    scale: float
    rows: tuple[int, ...]
    y: Tensor
    precision: float
    softcap: float | None = None
    bias: Tensor | None = None
    sinks: Tensor | None = None

    @classmethod
    def of(
        cls,
        attended: Attended,
        *,
        mask: Mask,
        scale: float,
        site: Site,
        text: int = 0,
        softcap: float | None = None,
        bias: Tensor | None = None,
        sinks: Tensor | None = None,
    ) -> Sample:
        """Return the sample of one text of a call that gave outputs [B, H, T, V]; its bias is [H or 1, T, S]."""
        output = attended.output[text]
        rows = rows_to_check(output.shape[1], site.layer)
        y = torch.stack([output[:, row] for row in rows], dim=1).float().cpu()  # H R V
        bias = None if bias is None else bias[:, rows]
        eps = torch.finfo(output.dtype).eps
        return cls(site, attended.kernel, mask, scale, tuple(rows), y, eps, softcap, bias, sinks)

    def alike(self, other: Sample) -> bool:
        """Whether two samples can be checked side by side."""
        if any(one is not None for one in (self.bias, self.sinks, other.bias, other.sinks)):
            return self is other
        own, theirs = ((one.y.shape, one.scale, one.kernel, one.softcap) for one in (self, other))
        return own == theirs and (self.mask is other.mask or self.mask == other.mask)


def check_samples(samples: Sequence[Sample], q: Tensor, k: Tensor, v: Tensor, lse: Tensor) -> list[Check]:
    """Return what the check found for each of some calls that are alike, or refuse.

    Args:
        samples: of L calls.
        q: [L, H, R, D], the queries of the sampled rows.
        k: [L, K, S, D], the keys that each call read.
        v: [L, K, S, V], the values.
        lse: [L, H, R], what the kernel returned for the rows.

    Raises:
        RecordingError: the weights of a row do not sum to one, do not rebuild the output, or are not finite;
            the first such call is named.
    """
    together = max(1, NUMBERS_AT_ONCE // (lse[0].numel() * k.shape[2]))
    checks: list[Check] = []
    for first in range(0, len(samples), together):
        part = slice(first, first + together)
        checks += _check_together(samples[part], q[part].float(), k[part].float(), v[part].float(), lse[part])
    return checks


def require_finite(site: Site, mask: Mask, q: Tensor, k: Tensor, lse: Tensor) -> None:
    """Refuse a call whose queries or keys are not finite, by head and position.

    Args:
        site: which call.
        mask: who may read whom.
        q: [H, T, D], looked at where a row's lse shows that something is wrong.
        k: [K, S, D], of which one that is infinite may show in no lse.
        lse: [H, T].

    Raises:
        RecordingError: a number is NaN or infinite; ``head`` and ``position`` say where.
    """
    wrong = ~torch.isfinite(lse)
    if not (mask.only_causal or mask.all_permitted):
        wrong &= lse != -torch.inf  # a row that may read nothing
    low, high = torch.aminmax(k)
    if bool(wrong.any()) or not bool(torch.isfinite(low) & torch.isfinite(high)):
        for name, values in (("query", q), ("key", k)):
            _require_finite(site, name, values)


def _require_finite(site: Site, name: str, values: Tensor) -> None:
    """Refuse queries or keys [H, T, D] of which one is not finite."""
    wrong = ~torch.isfinite(values).all(dim=-1)  # H T
    if bool(wrong.any()):
        head, position = (int(n) for n in torch.nonzero(wrong)[0])
        raise RecordingError(
            f"the {name} of layer {site.layer} ({site.name}), {'head' if name == 'query' else 'key head'} {head}, "
            f"position {position}",
            expected="finite numbers",
            given="NaN or an infinity",
            way_out="The model's numbers overflow on this text, so nothing was recorded; try a wider number format.",
            layer=site.layer,
            head=head,
            position=position,
        )


def _check_together(samples: Sequence[Sample], q: Tensor, k: Tensor, v: Tensor, lse: Tensor) -> list[Check]:
    (calls, kv_heads, sources), (heads, rows) = k.shape[:3], q.shape[1:3]
    y = torch.stack([sample.y for sample in samples])  # L H R V
    unread = _unread(samples, sources).to(q.device)  # L H|1 R S
    first = samples[0]
    scores = first.scale * q.reshape(calls, kv_heads, -1, q.shape[-1]) @ k.transpose(-1, -2)  # L K G*R S
    if first.softcap is not None:
        scores = first.softcap * torch.tanh(scores / first.softcap)
    weights = scores.view(calls, heads, rows, sources)
    if first.bias is not None:  # of a call that is checked alone
        weights.add_(first.bias.float())
    weights = weights.sub_(lse.unsqueeze(-1))  # L H R S
    weights = weights.clamp_(min=LOWEST).exp_().masked_fill_(unread, 0.0)
    dead = unread.all(dim=-1).expand(lse.shape)  # L H R, rows that may read nothing
    share = torch.zeros_like(lse) if first.sinks is None else torch.exp(first.sinks.float()[None, :, None] - lse)
    expected = (1.0 - dead.float() - share.masked_fill(dead, 0.0)).masked_fill(
        dead & (lse != -torch.inf),
        torch.inf,  # a row that may read nothing must say so
    )
    rebuilt = (weights.view(calls, kv_heads, -1, sources) @ v).view_as(y)  # L H R V
    largest = torch.stack([_size(own) for own in v]).clamp_min(TINY)  # L
    sum_errors = (weights.sum(dim=-1) - expected).abs().amax(dim=(1, 2)).tolist()
    output_errors = ((rebuilt - y).abs().amax(dim=(1, 2, 3)) / largest).tolist()
    q_length, k_length = (torch.linalg.vector_norm(x, dim=-1).amax(dim=(1, 2)) for x in (q, k))  # L
    products = (q_length * k_length * samples[0].scale).tolist()
    checks = []
    for sample, sum_error, output_error, product in zip(samples, sum_errors, output_errors, products, strict=True):
        tolerance = _tolerance(product, q.shape[-1], sample.precision)
        if not (sum_error <= tolerance and output_error <= tolerance):  # so that NaN refuses, too
            raise _refusal(sample, sum_error, output_error, tolerance)
        checks.append(Check(sample.rows, sum_error, output_error, tolerance))
    return checks


def _size(v: Tensor) -> Tensor:
    """Return the largest size of a number of some values; NaN if one is."""
    low, high = torch.aminmax(v)  # a tenth of the time of vector_norm over several axes, and no copy is made
    return torch.maximum(high, -low)


def _unread(samples: Sequence[Sample], sources: int) -> Tensor:
    """Return which sources the rows may not read, bool [L, H or 1, R, S]."""
    mask, every = samples[0].mask, [row for sample in samples for row in sample.rows]
    permitted = torch.from_numpy(mask.permitted(every, np.arange(sources)))  # [H] L*R S
    return ~permitted.view(-1, len(samples), len(samples[0].rows), sources).transpose(0, 1)


def _tolerance(largest_product: float, head_size: int, precision: float) -> float:
    """Return how far apart two honest computations may be.

    A float32 dot product of length D errs by at most about D eps |q||k|, in practice by sqrt(D); an error of the
    score is the relative error of its weight. Outputs are also rounded to their own format.
    """
    of_scores: float = torch.finfo(torch.float32).eps * head_size**0.5 * (1.0 + largest_product)
    return min(CEILING, 1e-5 + 2.0 * of_scores + 2.0 * precision)


def _refusal(sample: Sample, sum_error: float, output_error: float, tolerance: float) -> RecordingError:
    site = sample.site
    return RecordingError(
        f"the self-check of layer {site.layer} ({site.name}, kernel {sample.kernel})",
        expected=f"weights that sum to one and rebuild the kernel's output within {tolerance:.1e}",
        given=f"sums off by up to {sum_error:.3g} and outputs off by up to {output_error:.3g}",
        way_out="The kernel's log-sum-exp or the model's numbers are wrong, so nothing was recorded; "
        "try another torch version, and report the kernel.",
        layer=site.layer,
        name=site.name,
        kernel=sample.kernel,
        sum_error=sum_error,
        output_error=output_error,
        tolerance=tolerance,
    )
