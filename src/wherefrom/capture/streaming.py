"""Recording call by call (floor 3): each call is checked and handed on while the model runs, and then forgotten.

What a `Stream` holds never grows with the number of layers: it is the attention function that a file is written by, and
the one that keeps only some layers, heads or positions. The recorder beside it keeps everything in memory and checks
the calls of a pass side by side, which is quicker for short texts; the numbers are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from wherefrom.attention import Mask
from wherefrom.capture.fused import attend_masked
from wherefrom.capture.selfcheck import Sample, check_samples, require_finite
from wherefrom.errors import RecordingError
from wherefrom.model.attention_function import Site
from wherefrom.recording import Array, Call, Kept


@dataclass(frozen=True)
class Keep:
    """What of a pass is kept; None is everything.

    Attributes:
        layers: layer numbers within a part, ascending.
        heads: head numbers of each layer, ascending; the keys and values that they read are kept with them.
        positions: destinations of the part that predicts, ascending. Every source's key and value stays: a
            destination's row of weights needs them all.
        part: the part that predicts.
    """

    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    positions: tuple[int, ...] | None = None
    part: str = "decoder"

    @property
    def everything(self) -> bool:
        """True where nothing is left out."""
        return self.layers is self.heads is self.positions is None

    def of(self, call: Call) -> Call | None:
        """Return a whole call without what is not kept, as views where that is possible; None for its layer."""
        if self.layers is not None and call.layer not in self.layers:
            return None
        own_rows = None if call.part != self.part else self.positions
        if self.heads is None and own_rows is None:
            return call
        heads = tuple(range(call.heads)) if self.heads is None else self.heads
        read = sorted({call.key_heads[head] for head in heads})
        rows = np.arange(call.destinations) if own_rows is None else np.array(own_rows)
        kept = Kept(heads, tuple(read.index(call.key_heads[h]) for h in heads), rows, call.heads, call.destinations)
        all_heads, all_rows = len(heads) == call.heads, len(rows) == call.destinations
        of_heads = slice(None) if all_heads else list(heads)
        of_rows = slice(None) if all_rows else rows
        keys = slice(None) if len(read) == len(call.k) else read
        return replace(
            call,
            q=call.q[of_heads][:, of_rows],
            k=call.k[keys],
            v=call.v[keys],
            lse=call.lse[of_heads][:, of_rows],
            output=None if call.output is None else call.output[of_heads],
            kept=None if all_heads and all_rows else kept,
        )


class Stream:
    """An `AttentionFunction` that hands on every call of one pass over a text, a batch of one, once it is checked.

    Args:
        take: given each call that is kept, in the order of computation. Its arrays look into the model's own
            memory: who keeps them copies them.
        keep: what is kept.
        output: gives the output projection of a call, [M, H * V]; None leaves it out.
        on_call: told the layer after each call.

    Raises:
        RecordingError: a self-check failed, or it was handed a batch, or a text in several pieces.
    """

    def __init__(
        self,
        take: Callable[[Call], None],
        *,
        keep: Keep | None = None,
        output: Callable[[Site], Array] | None = None,
        on_call: Callable[[int], None] | None = None,
    ) -> None:
        self._take, self._keep, self._output, self._on_call = take, keep or Keep(), output, on_call

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Mask, scale: float, site: Site) -> Tensor:
        """Return y [1, H, T, V] by the fused kernel; hand on q, k, v and lse if they rebuild it."""
        if len(q) != 1 or mask.offset:
            raise RecordingError(
                f"a call of layer {site.layer} ({site.name})",
                expected="one whole text",
                given=f"a batch of {len(q)}, from position {mask.offset} on",
                way_out="Record one text at a time, without a cache.",
                layer=site.layer,
            )
        q, k, v = q.detach(), k.detach(), v.detach()
        if mask.padding is not None and mask.padding.ndim == 2:
            mask = replace(mask, padding=mask.padding[0])  # that of a batch of one
        attended = attend_masked(q, k, v, mask=mask, scale=scale)
        require_finite(site, mask, q[0], k[0], attended.lse[0])
        sample = Sample.of(attended, mask=mask, scale=scale, site=site)
        rows = list(sample.rows)
        (check,) = check_samples([sample], q[:, :, rows], k, v, attended.lse[:, :, rows])
        output = None if self._output is None else by_head(self._output(site), q.shape[1])
        call = Call(
            layer=site.layer,
            name=site.name,
            kind=site.kind,
            q=_plain(q),
            k=_plain(k),
            v=_plain(v),
            lse=attended.lse[0].cpu().numpy(),
            mask=mask,
            scale=scale,
            kernel=attended.kernel,
            checks=(check,),
            part=site.part,
            output=output,
        )
        kept = self._keep.of(call)
        if kept is not None:
            self._take(kept)
        if self._on_call is not None:
            self._on_call(site.layer)
        return attended.output


def copied(call: Call) -> Call:
    """Return a call with read-only copies of its arrays, which the model's next layers cannot change."""
    q, k, v, lse = (np.array(array) for array in (call.q, call.k, call.v, call.lse))
    output = None if call.output is None else np.array(call.output)
    for array in (q, k, v, lse, *(() if output is None else (output,))):
        array.setflags(write=False)
    return replace(call, q=q, k=k, v=v, lse=lse, output=output)


def _plain(x: Tensor) -> Array:
    """Return [1, H, T, D] as numpy's [H, T, D]; bfloat16, which numpy lacks, as float32, which holds all of it."""
    own = x[0].cpu()
    return (own.float() if own.dtype == torch.bfloat16 else own).numpy()


def by_head(output: Array, heads: int) -> Array:
    """Return an output projection [M, H * V] as each head's slice, [H, M, V], a view."""
    return output.reshape(len(output), heads, -1).transpose(1, 0, 2)
