"""The self-check (floor 3): no call is recorded before its own numbers have rebuilt what its kernel returned.

Kernels have returned wrong log-sum-exps in public releases (off by ln 2, all zeros, padded). A weight recomputed from a
wrong lse looks like a weight. So for some rows of every head, at every call, the weights exp(s - lse) must sum to one
and their weighted sum of the values must be the kernel's own output; otherwise the recorder refuses.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wherefrom.attention import Mask
from wherefrom.errors import RecordingError
from wherefrom.model.transformer import Site
from wherefrom.recording import Check

CEILING = 0.05
"""No tolerance grows beyond this: a lse that is off by ln 2 makes the weights sum to 2, and must never pass."""


TINY = torch.finfo(torch.float32).tiny


def rows_to_check(destinations: int, layer: int) -> list[int]:
    """Return up to three destinations: the ends, where kernels pad, and one that differs from layer to layer."""
    wandering = (destinations // 2 + 101 * layer) % destinations
    return sorted({0, wandering, destinations - 1})


def check_call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    y: Tensor,
    lse: Tensor,
    *,
    mask: Mask,
    scale: float,
    site: Site,
    kernel: str,
) -> Check:
    """Return what the check found, or refuse.

    Args:
        q: [1, H, T, D]; k: [1, K, S, D]; v: [1, K, S, V]: what the kernel was given.
        k: see q.
        v: see q.
        y: [1, H, T, V] and lse [1, H, T]: what it returned.
        lse: see y.
        mask: who may read whom.
        scale: of the scores.
        site: named in the error.
        kernel: named in the error.

    Raises:
        RecordingError: the weights of a row do not sum to one, do not rebuild the output, or are not finite.
    """
    heads, kv_heads, sources = q.shape[1], k.shape[1], k.shape[2]
    rows = rows_to_check(q.shape[2], site.layer)
    permitted = mask.permitted(rows, range(sources))  # [H] R S
    some, keys, values = q[0, :, rows].float(), k[0].float(), v[0].float()  # H R D, K S D, K S V
    returned, kept = y[0, :, rows].float(), lse[0, :, rows]  # H R V, H R
    scores = scale * some.reshape(kv_heads, -1, q.shape[-1]) @ keys.transpose(-1, -2)  # K G*R S
    scores = scores.view(heads, len(rows), sources)  # H R S
    scores.masked_fill_(torch.from_numpy(~permitted).to(q.device), -torch.inf)
    expected = torch.from_numpy(permitted.any(axis=-1)).to(q.device).float().expand(kept.shape)  # H R, 0 for a dead row
    if not bool(expected.all()):  # a dead row's weights are exp(-inf) = 0 if its lse is -inf, and NaN, refused, if not
        kept = torch.where(expected == 0, torch.where(kept == -torch.inf, 0.0, torch.nan), kept)
    weights = scores.sub_(kept.unsqueeze(-1)).exp_()  # H R S
    rebuilt = (weights.view(kv_heads, -1, sources) @ values).view_as(returned)  # H R V
    sum_error = float((weights.sum(dim=-1) - expected).abs().amax())
    output_error = float((rebuilt - returned).abs().amax() / values.abs().amax().clamp_min(TINY))
    tolerance = _tolerance(some, keys, scale, y.dtype)
    if not (sum_error <= tolerance and output_error <= tolerance):  # so that NaN refuses, too
        raise _refusal(site, kernel, sum_error, output_error, tolerance)
    return Check(tuple(rows), sum_error, output_error, tolerance)


def _tolerance(q: Tensor, k: Tensor, scale: float, dtype: torch.dtype) -> float:
    """Return how far apart two honest computations may be.

    A float32 dot product of length D errs by at most about D eps |q||k|, in practice by sqrt(D); an error of the
    score is the relative error of its weight. Outputs are also rounded to their own format.
    """
    largest = float(q.norm(dim=-1).amax() * k.norm(dim=-1).amax()) * scale
    of_scores: float = torch.finfo(torch.float32).eps * q.shape[-1] ** 0.5 * (1.0 + largest)
    return min(CEILING, 1e-5 + 2.0 * of_scores + 2.0 * torch.finfo(dtype).eps)


def _refusal(site: Site, kernel: str, sum_error: float, output_error: float, tolerance: float) -> RecordingError:
    return RecordingError(
        f"the self-check of layer {site.layer} ({site.name}, kernel {kernel})",
        expected=f"weights that sum to one and rebuild the kernel's output within {tolerance:.1e}",
        given=f"sums off by up to {sum_error:.3g} and outputs off by up to {output_error:.3g}",
        way_out="The kernel's log-sum-exp or the model's numbers are wrong, so nothing was recorded; "
        "try another torch version, and report the kernel.",
        layer=site.layer,
        name=site.name,
        kernel=kernel,
        sum_error=sum_error,
        output_error=output_error,
        tolerance=tolerance,
    )
