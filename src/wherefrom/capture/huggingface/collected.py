"""What is kept of a transformers model's attention (floor 3): each execution's arrays, copied and checked.

`Collector` is told of every execution that `wherefrom.capture.huggingface.interface.watched` shows, and keeps what the
kernel was given. Every text of every execution passes the self-check before it is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from wherefrom.capture.fused import Attended
from wherefrom.capture.huggingface.seen import Given
from wherefrom.capture.memory import SPARE
from wherefrom.capture.selfcheck import Sample, check_samples, require_finite
from wherefrom.mask import Mask
from wherefrom.model.attention_function import Site
from wherefrom.recording import Array, Check


@dataclass(frozen=True, eq=False)
class Execution:
    """One execution of a module's attention, for every text of the batch.

    Attributes:
        name: the module's path in the model.
        turn: how often the module had run before in the pass.
        q: [B, H, T, D], as the kernel was given them; k [B, K, S, D] and v [B, K, S, V] likewise.
        k: see q.
        v: see q.
        lse: float32 [B, H, T].
        masks: one a text, of this execution's own rows and columns.
        bias: [B or 1, H or 1, T, S], or None.
        sinks: [H], or None.
        scale: of the scores.
        softcap: of the scores, or None.
        kernel: the kernel that computed it.
        checks: what the self-check found, one a text.
    """

    name: str
    turn: int
    q: Array
    k: Array
    v: Array
    lse: Array
    masks: tuple[Mask, ...]
    bias: Array | None
    sinks: Array | None
    scale: float
    softcap: float | None
    kernel: str
    checks: tuple[Check, ...]


@dataclass
class Collector:
    """Keeps every execution that it is told of.

    Attributes:
        on_call: told the number of executions kept so far.
        executions: what was kept, in the order of computation.
    """

    on_call: Callable[[int], None] | None = None
    executions: list[Execution] = field(default_factory=list)
    _biases: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False)

    @torch.no_grad()
    def __call__(self, given: Given, attended: Attended) -> None:
        """Keep what an execution was computed of, if that rebuilds its output.

        Raises:
            RecordingError: a self-check failed, or a query or key is not finite.
        """
        self.executions.append(self._kept(given, attended))
        if self.on_call is not None:
            self.on_call(len(self.executions))

    def _kept(self, given: Given, attended: Attended) -> Execution:
        label, batch = f"{given.name} {given.turn}", len(attended.output)
        q, k, v, lse = (
            _copied(f"{label} {name}", x.expand(batch, *x.shape[1:]))
            for name, x in (("q", given.q), ("k", given.k), ("v", given.v), ("lse", attended.lse))
        )
        sinks = None if given.sinks is None else given.sinks.detach().float().cpu()
        bias = self._bias(given.readable.bias, q.shape[2], k.shape[2])
        checks = checked(given, attended, (q, k, v, lse), bias, sinks)
        return Execution(
            name=given.name,
            turn=given.turn,
            q=_frozen(q),
            k=_frozen(k),
            v=_frozen(v),
            lse=_frozen(lse),
            masks=given.readable.masks,
            bias=None if bias is None else _frozen(bias),
            sinks=None if sinks is None else _frozen(sinks),
            scale=given.scale,
            softcap=given.softcap,
            kernel=attended.kernel,
            checks=checks,
        )

    def _bias(self, bias: Tensor | None, destinations: int, sources: int) -> Tensor | None:
        """Return a bias in CPU memory, once for all layers that add the same."""
        if bias is None:
            return None
        if id(bias) not in self._biases:
            whole = bias.detach().float().cpu().expand(*bias.shape[:2], destinations, sources).contiguous()
            self._biases[id(bias)] = bias, whole  # held, so that no other gets its number
        return self._biases[id(bias)][1]


def checked(
    given: Given,
    attended: Attended,
    arrays: tuple[Tensor, Tensor, Tensor, Tensor],
    bias: Tensor | None,
    sinks: Tensor | None,
) -> tuple[Check, ...]:
    """Return what the self-check found of each text of an execution.

    Args:
        given: what was computed.
        attended: what came of it.
        arrays: q [B, H, T, D], k [B, K, S, D], v [B, K, S, V] and lse [B, H, T], in CPU memory.
        bias: [B or 1, H or 1, T, S], likewise.
        sinks: [H], likewise.

    Raises:
        RecordingError: a self-check failed, or a query or key is not finite.
    """
    q, k, v, lse = arrays
    site = Site(_first_number(given.name), given.name)
    found: list[Check] = []
    for text, mask in enumerate(given.readable.masks):
        require_finite(site, mask, q[text], k[text], lse[text])
        sample = Sample.of(
            attended,
            mask=mask,
            scale=given.scale,
            site=site,
            text=text,
            softcap=given.softcap,
            bias=None if bias is None else bias[text if len(bias) > 1 else 0],
            sinks=sinks,
        )
        own, rows = slice(text, text + 1), list(sample.rows)
        found += check_samples([sample], q[own, :, rows], k[own], v[own], lse[own, :, rows])
    return tuple(found)


def _copied(name: str, x: Tensor) -> Tensor:
    """Return a copy in memory that recordings use in turn; bfloat16, which numpy lacks, as float32, which holds it."""
    kind = torch.float32 if x.dtype == torch.bfloat16 else x.dtype
    numpy_kind = np.dtype(str(kind).removeprefix("torch."))
    into = torch.from_numpy(SPARE.take(name, tuple(x.shape), numpy_kind))
    into.copy_(x.detach())
    return into


def _frozen(x: Tensor) -> Array:
    array: Array = x.numpy()
    array.setflags(write=False)
    return array


def _first_number(name: str) -> int:
    return next((int(part) for part in name.split(".") if part.isdigit()), 0)
