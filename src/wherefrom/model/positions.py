"""How a transformer knows order (floor 2): vectors added to the tokens, or angles by which queries and keys turn.

Sources: Vaswani et al. 2017, section 3.5 (sinusoids); Su et al. 2021 (RoPE). T positions, M width, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """Return the original's position vectors [T, M]: sines and cosines of wavelengths from 2 pi to 10,000 * 2 pi.

    The sines stand in the first half, the cosines in the second (as in the authors' own code; the paper interleaves
    them).
    """
    even = torch.arange(0, width, 2, dtype=torch.float32, device=positions.device)
    angle = torch.outer(positions.float(), 10_000.0 ** (-even / width))  # T M/2
    return torch.cat((angle.sin(), angle.cos()), dim=-1)[:, :width]  # T M


class Rotary(nn.Module):
    """Rotary positions: pairs of coordinates of q and k turn by an angle proportional to the position.

    The score of a rotated query and key then depends on their contents and on their distance alone. Coordinate c is
    paired with c + D/2 (the layout of Hugging Face checkpoints; the paper pairs neighbours).
    """

    def __init__(self, head_size: int, base: float) -> None:
        super().__init__()
        self.head_size, self.base = head_size, base

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin [T, D] of the angles at `positions` [T], in float32 whatever the weights are."""
        even = torch.arange(0, self.head_size, 2, dtype=torch.float32, device=positions.device)
        frequency = 1.0 / self.base ** (even / self.head_size)  # D/2
        angle = torch.outer(positions.float(), frequency)  # T D/2
        angle = torch.cat((angle, angle), dim=-1)  # T D
        return angle.cos(), angle.sin()


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn q or k [B, H, T, D] by the angles of its positions."""
    cos, sin = rotation
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
