"""The key/value cache (floor 2): what has been read stays, so that nothing is computed twice."""

from __future__ import annotations

import torch
from torch import Tensor

from wherefrom.attention import Mask
from wherefrom.errors import InputError
from wherefrom.model.config import Config


class KeyValueCache:
    """The keys and values of what has been read so far, one buffer a layer; and those of an encoder's output, made
    once.

    Args:
        config: the model's.
        capacity: how many positions fit; asking for more is an `InputError`.
        batch: rows read side by side.
        dtype: of the buffers.
        device: of the buffers.
    """

    def __init__(
        self,
        config: Config,
        capacity: int,
        batch: int = 1,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        shape = (batch, config.kv_heads, capacity, config.head_size)
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.layers)]
        self.of_memory: dict[int, tuple[Tensor, Tensor]] = {}  # layer to cross-attention's keys and values, B K S D
        self.memory_mask: Mask | None = None  # which of the encoder's output may be read
        self.capacity, self.length = capacity, 0

    def extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write k, v [B, K, T, D] behind what is there; return views [B, K, S, D] of all so far."""
        end = self.length + k.shape[2]
        if end > self.capacity:
            raise InputError(
                "the key/value cache",
                expected=f"at most {self.capacity} positions",
                given=str(end),
                way_out="Make the cache with a larger capacity.",
            )
        keys, values = self.keys[layer], self.values[layer]
        keys.narrow(2, self.length, k.shape[2]).copy_(k)
        values.narrow(2, self.length, v.shape[2]).copy_(v)
        return keys.narrow(2, 0, end), values.narrow(2, 0, end)
