"""The recorder (floor 3): an attention function that computes what the model asks for and keeps what it was given.

Handed to a model as its attention, it runs the fused kernel and copies q, k, v and lse into memory
set aside before: in one piece, so that the model's own memory is used as if nobody watched (kept in between, it drove
the allocator to give memory back and fetch it again at every layer, a tenth of the time). With a key/value cache a
layer calls once for each chunk or token; each call adds its rows. The calls of a pass are checked when the next pass
begins and before anything is handed out: what failed is never seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from sys import getrefcount
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wherefrom.attention import Mask
from wherefrom.capture.fused import Limits, attend
from wherefrom.capture.selfcheck import Sample, check_samples
from wherefrom.errors import RecordingError
from wherefrom.model.transformer import Site
from wherefrom.recording import Array, Call, Check


@dataclass
class _Layer:
    """What has been seen of one layer so far, and its place in the memory set aside."""

    slot: int
    site: Site
    mask: Mask
    scale: float
    kernel: str = ""
    rows: int = 0
    checks: list[Check] = field(default_factory=list)


class _Spare:
    """The memory of the last recording, used again once nobody holds any part of it.

    Pages fresh from the system cost as much as writing to them does; a model's own temporaries are reused in the same
    way, by the allocator. One recording's memory is kept, and none that is larger than `MOST`.
    """

    MOST = 2**28

    def __init__(self) -> None:
        self._arrays: dict[str, Array] = {}
        self._lock = Lock()

    def take(self, name: str, shape: tuple[int, ...], kind: np.dtype[Any]) -> Array:
        """Return an array that nobody else holds; what it contains is left over."""
        with self._lock:
            array = self._arrays.pop(name, None)
            fits = array is not None and array.shape == shape and array.dtype == kind
            if array is None or not fits or getrefcount(array) > HELD_HERE:
                array = np.empty(shape, kind)
            if array.nbytes <= self.MOST:
                self._arrays[name] = array
            return array


HELD_HERE = 2
"""What `getrefcount` says of an array that only the asking line holds: its variable, and the call's own argument."""
_SPARE = _Spare()


class Recorder:
    """An `AttentionFunction` that records every call of one text, a batch of one.

    Args:
        layers: how many layers will call.
        positions: the length of the text, at most.
        on_call: told the layer after each call.

    Raises:
        RecordingError: a self-check failed, or calls do not follow one another (another text in between).
    """

    def __init__(self, layers: int, positions: int, on_call: Callable[[int], None] | None = None) -> None:
        self.shape = (layers, positions)
        self._layers: dict[int, _Layer] = {}
        self._memory: dict[str, Array] = {}
        self._unchecked: dict[int, Sample] = {}
        self._on_call = on_call

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Mask, scale: float, site: Site) -> Tensor:
        """Return y [1, H, T, V] by the fused kernel; keep q, k, v and lse if they rebuild it."""
        q, k, v = q.detach(), k.detach(), v.detach()
        layer = self._layers.get(site.layer) or _Layer(len(self._layers), site, mask, scale)
        self._require_next(layer, q, mask)
        if site.layer in self._unchecked:  # a new pass: the last one's calls are complete
            self._check()
        attended = attend(q, k, v, limits=Limits.of_mask(mask, q.shape[2], k.shape[2], q), scale=scale)
        self._unchecked[site.layer] = Sample.of(attended, mask=mask, scale=scale, site=site)
        self._layers[site.layer] = layer
        layer.kernel = attended.kernel
        start, stop = layer.rows, layer.rows + q.shape[2]
        new = {"q": q, "k": k[:, :, start:stop], "v": v[:, :, start:stop], "lse": attended.lse}
        for name, rows in new.items():
            torch.from_numpy(self._kept(name, rows)[layer.slot, :, start:stop]).copy_(rows[0])
        layer.rows = stop
        if self._on_call is not None:
            self._on_call(site.layer)
        return attended.output

    def calls(self) -> tuple[Call, ...]:
        """Return what was recorded, one call a layer in the order of the layers, as views of the recorder's memory.

        Raises:
            RecordingError: a self-check of the last pass failed.
        """
        self._check()
        return tuple(self._call(layer) for _, layer in sorted(self._layers.items()))

    def _check(self) -> None:
        """Check the calls of the pass that just ended, those that are alike side by side."""
        unchecked, self._unchecked = list(self._unchecked.values()), {}
        while unchecked:
            alike = [sample for sample in unchecked if sample.alike(unchecked[0])]
            layers = [self._layers[sample.site.layer] for sample in alike]
            slots = np.array([layer.slot for layer in layers])
            rows = np.array([sample.rows for sample in alike]) + alike[0].mask.offset  # L R
            q, lse = (self._memory[name][slots[:, None], :, rows].swapaxes(1, 2) for name in ("q", "lse"))  # L H R ...
            k, v = (self._read(name, slots, layers[0].rows) for name in ("k", "v"))  # L K S ...
            checks = check_samples(alike, torch.from_numpy(q), k, v, torch.from_numpy(lse))
            for layer, check in zip(layers, checks, strict=True):
                layer.checks.append(check)
            unchecked = [sample for sample in unchecked if not sample.alike(unchecked[0])]

    def _read(self, name: str, slots: Array, rows: int) -> Tensor:
        """Return the keys or values that some layers read, [L, K, S, ...]: a view where the layers adjoin."""
        adjoining = bool((np.diff(slots) == 1).all())
        chosen = slice(int(slots[0]), int(slots[-1]) + 1) if adjoining else slots
        return torch.from_numpy(self._memory[name][chosen, :, :rows])

    def _kept(self, name: str, like: Tensor) -> Array:
        """Return the memory of q, k, v or lse, [layers, heads, positions, ...], set aside at the first call."""
        if name not in self._memory:
            layers, positions = self.shape
            wide = like.dtype == torch.bfloat16  # numpy has no bfloat16; float32 holds every bfloat16 exactly
            kind = np.dtype(np.float32 if wide else str(like.dtype).removeprefix("torch."))
            shape = (layers, like.shape[1], positions, *like.shape[3:])
            self._memory[name] = _SPARE.take(name, shape, kind)
        return self._memory[name]

    def _require_next(self, layer: _Layer, q: Tensor, mask: Mask) -> None:
        layers, positions = self.shape
        follows = mask.offset == layer.rows and replace(mask, offset=0) == replace(layer.mask, offset=0)
        if q.shape[0] != 1 or not follows or layer.rows + q.shape[2] > positions or layer.slot >= layers:
            raise RecordingError(
                f"a call of layer {layer.site.layer} ({layer.site.name})",
                expected=f"one text of at most {positions} positions in {layers} layers, next row {layer.rows}",
                given=f"{q.shape[2]} rows from position {mask.offset} on, a batch of {q.shape[0]} ({mask.describe()})",
                way_out="Use one recorder for each text, from its beginning.",
                layer=layer.site.layer,
            )

    def _call(self, layer: _Layer) -> Call:
        q, k, v, lse = (self._memory[name][layer.slot, :, : layer.rows] for name in ("q", "k", "v", "lse"))
        for array in (q, k, v, lse):
            array.setflags(write=False)  # what was checked stays as it was checked
        return Call(
            layer=layer.site.layer,
            name=layer.site.name,
            kind=layer.site.kind,
            q=q,
            k=k,
            v=v,
            lse=lse,
            mask=layer.mask,
            scale=layer.scale,
            kernel=layer.kernel,
            checks=tuple(layer.checks),
        )
