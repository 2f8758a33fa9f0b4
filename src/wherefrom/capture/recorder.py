"""The recorder (floor 3): an attention function that computes what the model asks for and keeps what it was given.

Handed to a model as its attention, it runs the fused kernel, checks the call, and keeps references to q, k, v and lse:
nothing is copied while the model runs. With a key/value cache a layer calls once for each chunk or token; the
rows of queries are joined, the keys and values of the last call hold all earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from wherefrom.attention import Mask
from wherefrom.capture.fused import Limits, attend
from wherefrom.capture.selfcheck import check_call
from wherefrom.errors import RecordingError
from wherefrom.model.transformer import Site
from wherefrom.recording import Array, Call, Check


@dataclass
class _Layer:
    """What has been seen of one layer so far."""

    site: Site
    mask: Mask
    scale: float
    kernel: str = ""
    queries: list[Tensor] = field(default_factory=list)  # each 1 H T D
    sums: list[Tensor] = field(default_factory=list)  # each 1 H T
    keys: Tensor | None = None  # 1 K S D
    values: Tensor | None = None  # 1 K S V
    checks: list[Check] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(q.shape[2] for q in self.queries)


class Recorder:
    """An `AttentionFunction` that records every call of one text, a batch of one.

    Args:
        on_call: told the layer after each call.

    Raises:
        RecordingError: a self-check failed, or calls do not follow one another (another text in between).
    """

    def __init__(self, on_call: Callable[[int], None] | None = None) -> None:
        self._layers: dict[int, _Layer] = {}
        self._on_call = on_call

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Mask, scale: float, site: Site) -> Tensor:
        """Return y [1, H, T, V] by the fused kernel; keep q, k, v and lse if they rebuild it."""
        q, k, v = q.detach(), k.detach(), v.detach()
        limits = Limits.of_mask(mask, q.shape[2], k.shape[2], q)
        y, lse, kernel = attend(q, k, v, limits=limits, scale=scale)
        check = check_call(q, k, v, y, lse, mask=mask, scale=scale, site=site, kernel=kernel)
        layer = self._layers.get(site.layer, _Layer(site, mask, scale))
        _require_next(layer, q, mask, site)
        self._layers[site.layer] = layer
        layer.queries.append(q)
        layer.sums.append(lse)
        layer.keys, layer.values, layer.kernel = k, v, kernel
        layer.checks.append(check)
        if self._on_call is not None:
            self._on_call(site.layer)
        return y

    def calls(self) -> tuple[Call, ...]:
        """Return what was recorded, one call a layer, as numpy views where a layer was called once."""
        return tuple(_call(layer) for _, layer in sorted(self._layers.items()))


def _require_next(layer: _Layer, q: Tensor, mask: Mask, site: Site) -> None:
    if q.shape[0] != 1 or mask.offset != layer.rows or replace(mask, offset=0) != replace(layer.mask, offset=0):
        raise RecordingError(
            f"a call of layer {site.layer} ({site.name})",
            expected=f"one text whose next row is position {layer.rows}",
            given=f"a batch of {q.shape[0]} from position {mask.offset} on ({mask.describe()})",
            way_out="Use one recorder for each text, from its beginning.",
            layer=site.layer,
        )


def _call(layer: _Layer) -> Call:
    if layer.keys is None or layer.values is None:
        raise AssertionError("a layer is entered together with its keys and values")
    return Call(
        layer=layer.site.layer,
        name=layer.site.name,
        kind=layer.site.kind,
        q=_numpy(layer.queries),
        k=_numpy([layer.keys]),
        v=_numpy([layer.values]),
        lse=_numpy(layer.sums),
        mask=layer.mask,
        scale=layer.scale,
        kernel=layer.kernel,
        checks=tuple(layer.checks),
    )


def _numpy(parts: list[Tensor]) -> Array:
    """Return the parts [1, H, T, ...], joined along T, as numpy [H, T, ...]: a view if there is one part."""
    whole = parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
    if whole.dtype == torch.bfloat16:  # numpy has no bfloat16; float32 holds every bfloat16 exactly
        whole = whole.float()
    array: Array = whole[0].cpu().numpy()
    return array
