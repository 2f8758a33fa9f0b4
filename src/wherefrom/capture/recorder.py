"""The recorder (floor 3): an attention function that computes what the model asks for and keeps what it was given.

Handed to a model as its attention, it runs the fused kernel and copies q, k, v and lse into memory
set aside before: in one piece, so that the model's own memory is used as if nobody watched (kept in between, it drove
the allocator to give memory back and fetch it again at every layer, a tenth of the time). With a key/value cache a
layer calls once for each chunk or token; each call adds its rows. The calls of a pass are checked when the next pass
begins and before anything is handed out: what failed is never seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from wherefrom.attention import Mask
from wherefrom.capture.fused import Attended, attend_masked
from wherefrom.capture.memory import SPARE
from wherefrom.capture.selfcheck import Sample, check_samples, require_finite
from wherefrom.errors import RecordingError
from wherefrom.model.attention_function import Site
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


class Recorder:
    """An `AttentionFunction` that records every call of one text, a batch of one.

    Args:
        layers: how many layers will call.
        positions: the length of the text, at most.
        on_call: told the layer after each call.
        encoder_layers: how many layers of an encoder will call beside them; 0 where there is one stack.
        sources: the length of the encoder's text.

    Raises:
        RecordingError: a self-check failed, or calls do not follow one another (another text in between).
    """

    def __init__(
        self,
        layers: int,
        positions: int,
        on_call: Callable[[int], None] | None = None,
        *,
        encoder_layers: int = 0,
        sources: int = 0,
    ) -> None:
        self._main = (layers, positions, positions)
        self._encoder = (encoder_layers, sources, sources)
        self._shelves: dict[tuple[str, str], _Shelf] = {}  # in the order of the first calls
        self._on_call = on_call

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Mask, scale: float, site: Site) -> Tensor:
        """Return y [1, H, T, V] by the fused kernel; keep q, k, v and lse if they rebuild it."""
        q, k, v = q.detach(), k.detach(), v.detach()
        if mask.padding is not None and mask.padding.ndim == 2 and len(mask.padding) == 1:
            mask = replace(mask, padding=mask.padding[0])  # that of a batch of one
        shelf = self._shelves.get((site.part, site.kind)) or _Shelf(site, *self._room(site))
        layer = shelf.layer(q, mask, scale, site)
        attended = attend_masked(q, k, v, mask=mask, scale=scale)
        shelf.keep(layer, q, k, v, attended, mask)
        self._shelves[site.part, site.kind] = shelf
        if self._on_call is not None:
            self._on_call(site.layer)
        return attended.output

    def calls(self) -> tuple[Call, ...]:
        """Return what was recorded, as views of the recorder's memory: one call a layer in the order of the layers.

        With an encoder, its calls come first, then the decoder's self-attention and its cross-attention.

        Raises:
            RecordingError: a self-check of the last pass failed.
        """
        return tuple(call for shelf in self._shelves.values() for call in shelf.calls())

    def _room(self, site: Site) -> tuple[int, int, int]:
        """Return how many layers, destinations and sources the calls of a site's kind have, at most."""
        if site.kind == "cross":
            return (*self._main[:2], self._encoder[2])
        return self._encoder if site.part == "encoder" and self._encoder[0] else self._main


class _Shelf:
    """The calls of one part and kind, such as the decoder's cross-attention, and the memory set aside for them."""

    def __init__(self, site: Site, layers: int, destinations: int, sources: int) -> None:
        self.name, self.cross = f"{site.part} {site.kind}", site.kind == "cross"
        self.size = (layers, destinations, sources)
        self._layers: dict[int, _Layer] = {}
        self._memory: dict[str, Array] = {}
        self._unchecked: dict[int, tuple[Sample, int]] = {}  # by layer: the sample, and the first row of its call

    def layer(self, q: Tensor, mask: Mask, scale: float, site: Site) -> _Layer:
        """Return what is known of the calling layer; a new pass has the last one's calls, now complete, checked."""
        layer = self._layers.get(site.layer) or _Layer(len(self._layers), site, mask, scale)
        self._require_next(layer, q, mask)
        if site.layer in self._unchecked:
            self._check()
        return layer

    def keep(self, layer: _Layer, q: Tensor, k: Tensor, v: Tensor, attended: Attended, mask: Mask) -> None:
        """Keep the rows of a call, and a sample of them for the check."""
        sample = Sample.of(attended, mask=mask, scale=layer.scale, site=layer.site)
        self._unchecked[layer.site.layer] = sample, layer.rows
        start, stop = layer.rows, layer.rows + q.shape[2]
        rows = slice(start, stop)
        self._put("q", layer, rows, q, self.size[1])
        self._put("lse", layer, rows, attended.lse, self.size[1])
        if not self.cross or start == 0:  # an encoder's keys and values are the same at every step
            columns = slice(0, k.shape[2]) if self.cross else rows
            self._put("k", layer, columns, k[:, :, columns], self.size[2])
            self._put("v", layer, columns, v[:, :, columns], self.size[2])
        layer.kernel, layer.rows = attended.kernel, stop
        self._layers[layer.site.layer] = layer

    def calls(self) -> list[Call]:
        """Return the calls in the order of the layers.

        Raises:
            RecordingError: a self-check of the last pass failed.
        """
        self._check()
        return [self._call(layer) for _, layer in sorted(self._layers.items())]

    def _check(self) -> None:
        """Check the calls of the pass that just ended, those that are alike side by side."""
        unchecked, self._unchecked = list(self._unchecked.values()), {}
        while unchecked:
            alike = [one for one in unchecked if one[0].alike(unchecked[0][0])]
            samples = [sample for sample, _ in alike]
            layers = [self._layers[sample.site.layer] for sample in samples]
            slots = np.array([layer.slot for layer in layers])
            rows = np.array([sample.rows for sample in samples]) + alike[0][1]  # L R
            q, lse = (self._memory[name][slots[:, None], :, rows].swapaxes(1, 2) for name in ("q", "lse"))  # L H R ...
            k, v = (self._read(name, slots, self._sources(layers[0])) for name in ("k", "v"))  # L K S ...
            try:
                checks = check_samples(samples, torch.from_numpy(q), k, v, torch.from_numpy(lse))
            except RecordingError as error:  # which a number that is not finite explains better
                self._require_finite([one for one in alike if one[0].site.layer == error.facts["layer"]])
                raise
            self._require_finite(alike)
            for layer, check in zip(layers, checks, strict=True):
                layer.checks.append(check)
            unchecked = [one for one in unchecked if not one[0].alike(unchecked[0][0])]

    def _require_finite(self, unchecked: Sequence[tuple[Sample, int]]) -> None:
        for sample, first in unchecked:
            layer = self._layers[sample.site.layer]
            rows, keys = slice(first, layer.rows), self._sources(layer)
            q, lse = (torch.from_numpy(self._memory[name][layer.slot, :, rows]) for name in ("q", "lse"))
            k = torch.from_numpy(self._memory["k"][layer.slot, :, 0 if self.cross else first : keys])
            require_finite(sample.site, sample.mask, q, k, lse)

    def _sources(self, layer: _Layer) -> int:
        """Return how many keys have been recorded."""
        return self.size[2] if self.cross else layer.rows

    def _read(self, name: str, slots: Array, rows: int) -> Tensor:
        """Return the keys or values that some layers read, [L, K, S, ...]: a view where the layers adjoin."""
        adjoining = bool((np.diff(slots) == 1).all())
        chosen = slice(int(slots[0]), int(slots[-1]) + 1) if adjoining else slots
        return torch.from_numpy(self._memory[name][chosen, :, :rows])

    def _put(self, name: str, layer: _Layer, rows: slice, values: Tensor, positions: int) -> None:
        """Copy rows of q, k, v or lse to their place in [layers, heads, positions, ...], made at the first call."""
        if name not in self._memory:
            wide = values.dtype == torch.bfloat16  # numpy has no bfloat16; float32 holds every bfloat16 exactly
            kind = np.dtype(np.float32 if wide else str(values.dtype).removeprefix("torch."))
            shape = (self.size[0], values.shape[1], positions, *values.shape[3:])
            self._memory[name] = SPARE.take(f"{self.name} {name}", shape, kind)
        torch.from_numpy(self._memory[name][layer.slot, :, rows]).copy_(values[0])

    def _require_next(self, layer: _Layer, q: Tensor, mask: Mask) -> None:
        layers, positions, _ = self.size
        follows = self.cross or mask.offset == layer.rows
        follows = follows and replace(mask, offset=0) == replace(layer.mask, offset=0)
        if q.shape[0] != 1 or not follows or layer.rows + q.shape[2] > positions or layer.slot >= layers:
            raise RecordingError(
                f"a call of layer {layer.site.layer} ({layer.site.name})",
                expected=f"one text of at most {positions} positions in {layers} layers, next row {layer.rows}",
                given=f"{q.shape[2]} rows from position {mask.offset} on, a batch of {q.shape[0]} ({mask.describe()})",
                way_out="Use one recorder for each text, from its beginning.",
                layer=layer.site.layer,
            )

    def _call(self, layer: _Layer) -> Call:
        q, lse = (self._memory[name][layer.slot, :, : layer.rows] for name in ("q", "lse"))
        k, v = (self._memory[name][layer.slot, :, : self._sources(layer)] for name in ("k", "v"))
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
            part=layer.site.part,
        )
