"""The transformer's small parts (floor 2): linear layers and embeddings, activations and norms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wherefrom.model.config import Activation, Config

ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}

SMALL = 2**18
"""Numbers of a matrix below which the product is over before a second thread has begun."""
PIECES = 8


class Linear(nn.Linear):
    """`torch.nn.Linear` whose weights are not drawn when it is made: `wherefrom.model.initial` draws them, or they are
    loaded.
    """

    def reset_parameters(self) -> None:
        """Leave the memory as it is."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x W^T + b, [..., outputs]."""
        alone = x.numel() == self.in_features and x.device.type == "cpu" and not torch.is_grad_enabled()
        if alone and self.weight.numel() >= SMALL and self.out_features % PIECES == 0 and self.weight.is_contiguous():
            return one_row(x, self.weight, self.bias)
        return F.linear(x, self.weight, self.bias)


def one_row(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the product of one vector [..., inputs] and a matrix [outputs, inputs], in pieces that threads share.

    Reading the matrix is all the work there is. As a batch of pieces, which torch hands to its threads one by one, it
    is read about twice as fast as through the general product, which keeps it to one thread.
    `torch.nn.functional.linear` is the twin.
    """
    outputs, inputs = weight.shape
    column = x.reshape(-1).as_strided((PIECES, inputs, 1), (0, 1, inputs))  # these strides pick the fast kernel
    pieces = weight.view(PIECES, outputs // PIECES, inputs)
    y = torch.bmm(pieces, column).view(*x.shape[:-1], -1)
    return y if bias is None else y + bias


class Embedding(nn.Embedding):
    """`torch.nn.Embedding` whose rows are not drawn when it is made."""

    def reset_parameters(self) -> None:
        """Leave the memory as it is."""


class RMSNorm(nn.RMSNorm):
    """`torch.nn.RMSNorm` in plain lines: the same numbers, and on a CPU, for a long text, three times as fast."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x / sqrt(mean of x^2 + epsilon) * weight, [..., M]; computed in float32 at least."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        assert self.eps is not None, "every configuration has an epsilon"
        normed = wide * (wide.square().mean(dim=-1, keepdim=True) + self.eps).rsqrt()
        return normed.to(x.dtype) * self.weight


def norm(config: Config) -> nn.Module:
    """Return a normalization over the M numbers of each position."""
    made = RMSNorm if config.norm == "rms" else nn.LayerNorm
    return made(config.width, eps=config.norm_epsilon)


class MaskedHead(nn.Module):
    """What BERT does before the vocabulary matrix: a linear map, the nonlinearity, a norm."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.dense, self.norm = Linear(config.width, config.width), norm(config)
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., M] of [..., M]."""
        out: Tensor = self.norm(self.activation(self.dense(x)))
        return out
