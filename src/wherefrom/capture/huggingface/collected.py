"""What is kept of a transformers model's attention (floor 3): each execution's arrays, copied and checked.

`Collector` is told of every execution that `wherefrom.capture.huggingface.interface.watched` shows, and keeps what the
kernel was given. Every text of every execution passes the self-check before it is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wherefrom.capture.fused import Attended
from wherefrom.capture.huggingface.seen import Given
from wherefrom.capture.memory import SPARE
from wherefrom.capture.plain_calls import unseen
from wherefrom.capture.selfcheck import Sample, check_samples, require_finite
from wherefrom.errors import RecordingError
from wherefrom.mask import Mask
from wherefrom.model.attention_function import Site
from wherefrom.recording import Array, Check


@dataclass(eq=False)
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
        checks: what the self-check found, one a text; none before it was done.
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
    checks: tuple[Check, ...] = ()


class Collector:
    """Keeps every execution that it is told of.

    Those of one shape lie side by side in memory, and are checked together when a few have come or the pass has ended.

    Args:
        on_call: told the number of executions kept so far.

    Attributes:
        executions: what was kept, in the order of computation; checked once `finish` was called.
    """

    def __init__(self, on_call: Callable[[int], None] | None = None) -> None:
        self._on_call = on_call
        self.executions: list[Execution] = []
        self._slabs: dict[Hashable, _Slab] = {}  # the one of each shape that has room
        self._made = 0
        self._biases: dict[int, tuple[Tensor, Tensor]] = {}

    @torch.no_grad()
    def __call__(self, given: Given, attended: Attended) -> None:
        """Keep what an execution was computed of.

        Raises:
            RecordingError: a self-check failed of executions that had come before, or a query or key is not finite.
        """
        with unseen():
            self.executions.append(self._kept(given, attended))
        if self._on_call is not None:
            self._on_call(len(self.executions))

    @torch.no_grad()
    def finish(self) -> None:
        """Check what was not checked yet.

        Raises:
            RecordingError: a self-check failed, or a query or key is not finite.
        """
        with unseen():
            for slab in self._slabs.values():
                slab.check()

    def _kept(self, given: Given, attended: Attended) -> Execution:
        batch = len(attended.output)
        arrays = {"q": given.q, "k": given.k, "v": given.v, "lse": attended.lse}
        arrays = {name: x.detach().expand(batch, *x.shape[1:]) for name, x in arrays.items()}
        kind = tuple((x.shape, x.dtype) for x in arrays.values())
        slab = self._slabs.get(kind)
        if slab is None or slab.full:
            slab = self._slabs[kind] = _Slab(f"slab {self._made}", arrays)
            self._made += 1
        q, k, v, lse = slab.put(arrays)
        sinks = None if given.sinks is None else given.sinks.detach().float().cpu()
        bias = self._bias(given.readable.bias, q.shape[2], k.shape[2])
        execution = Execution(
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
        )
        slab.wait(execution, samples_of(given, attended, bias, sinks))
        return execution

    def _bias(self, bias: Tensor | None, destinations: int, sources: int) -> Tensor | None:
        """Return a bias in CPU memory, once for all layers that add the same."""
        if bias is None:
            return None
        if id(bias) not in self._biases:
            whole = bias.detach().float().cpu().expand(*bias.shape[:2], destinations, sources).contiguous()
            self._biases[id(bias)] = bias, whole  # held, so that no other gets its number
        return self._biases[id(bias)][1]


class _Slab:
    """Memory for some executions of one shape, and those of them that are not checked yet.

    Args:
        label: the name of the memory, by which a later recording takes it again.
        like: q, k, v and lse by name, of the shapes that are to come.
    """

    ROOM = 8

    def __init__(self, label: str, like: Mapping[str, Tensor]) -> None:
        self._arrays = {name: _memory(f"{label} {name}", x) for name, x in like.items()}
        self._used = 0
        self._waiting: list[tuple[Execution, list[Sample]]] = []

    @property
    def full(self) -> bool:
        """Whether nothing more can be put."""
        return self._used == self.ROOM

    def put(self, arrays: Mapping[str, Tensor]) -> list[Tensor]:
        """Copy q, k, v and lse of one execution, and return the copies."""
        copies = [self._arrays[name][self._used] for name in arrays]
        for copy, x in zip(copies, arrays.values(), strict=True):
            copy.copy_(x)
        self._used += 1
        return copies

    def wait(self, execution: Execution, samples: list[Sample]) -> None:
        """Have the execution that was put last checked, now if there is no more room."""
        self._waiting.append((execution, samples))
        if self.full:
            self.check()

    def check(self) -> None:
        """Check what waits, what is alike side by side.

        Raises:
            RecordingError: a self-check failed, or a query or key is not finite.
        """
        waiting, self._waiting = self._waiting, []
        first = self._used - len(waiting)
        for text in range(self._arrays["q"].shape[1] if waiting else 0):
            left = [(first + at, samples[text]) for at, (_, samples) in enumerate(waiting)]
            while left:
                alike = [one for one in left if one[1].alike(left[0][1])]
                left = [one for one in left if not one[1].alike(alike[0][1])]
                for (slot, _), check in zip(alike, self._checked(alike, text), strict=True):
                    waiting[slot - first][0].checks += (check,)

    def _checked(self, alike: list[tuple[int, Sample]], text: int) -> list[Check]:
        slots, samples = [slot for slot, _ in alike], [sample for _, sample in alike]
        adjoining = slots == list(range(slots[0], slots[-1] + 1))
        chosen = slice(slots[0], slots[-1] + 1) if adjoining else slots
        q, k, v, lse = (x[chosen, text] for x in self._arrays.values())  # L H T D, ..., L H T
        rows = torch.tensor([sample.rows for sample in samples])  # L R
        every = torch.arange(len(samples))[:, None]
        try:
            checks = check_samples(
                samples, q[every, :, rows].transpose(1, 2), k, v, lse[every, :, rows].transpose(1, 2)
            )
        except RecordingError as error:  # which a number that is not finite explains better
            for at, sample in enumerate(samples):
                if sample.site.name == error.facts["name"]:
                    require_finite(sample.site, sample.mask, q[at], k[at], lse[at])
            raise
        for at, sample in enumerate(samples):
            require_finite(sample.site, sample.mask, q[at], k[at], lse[at])
        return checks


def samples_of(given: Given, attended: Attended, bias: Tensor | None, sinks: Tensor | None) -> list[Sample]:
    """Return what is to be checked of each text of an execution.

    Args:
        given: what was computed.
        attended: what came of it.
        bias: [B or 1, H or 1, T, S], in CPU memory.
        sinks: [H], likewise.
    """
    site = Site(_first_number(given.name), given.name)
    return [
        Sample.of(
            attended,
            mask=mask,
            scale=given.scale,
            site=site,
            text=text,
            softcap=given.softcap,
            bias=None if bias is None else bias[text if len(bias) > 1 else 0],
            sinks=sinks,
        )
        for text, mask in enumerate(given.readable.masks)
    ]


def checked(samples: Sequence[Sample], q: Tensor, k: Tensor, v: Tensor, lse: Tensor) -> tuple[Check, ...]:
    """Return what the self-check found of each text of an execution.

    Args:
        samples: of `samples_of`, one a text.
        q: [B, H, T, D], in CPU memory like the others.
        k: [B, K, S, D].
        v: [B, K, S, V].
        lse: [B, H, T].

    Raises:
        RecordingError: a self-check failed, or a query or key is not finite.
    """
    found: list[Check] = []
    for text, sample in enumerate(samples):
        require_finite(sample.site, sample.mask, q[text], k[text], lse[text])
        own, rows = slice(text, text + 1), list(sample.rows)
        found += check_samples([sample], q[own, :, rows], k[own], v[own], lse[own, :, rows])
    return tuple(found)


def _memory(name: str, x: Tensor) -> Tensor:
    """Return memory for `_Slab.ROOM` arrays like one, which recordings use in turn.

    bfloat16, which numpy lacks, is kept as float32, which holds it.
    """
    kind = torch.float32 if x.dtype == torch.bfloat16 else x.dtype
    numpy_kind = np.dtype(str(kind).removeprefix("torch."))
    return torch.from_numpy(SPARE.take(name, (_Slab.ROOM, *x.shape), numpy_kind))


def _frozen(x: Tensor) -> Array:
    array: Array = x.numpy()
    array.setflags(write=False)
    return array


def _first_number(name: str) -> int:
    return next((int(part) for part in name.split(".") if part.isdigit()), 0)
