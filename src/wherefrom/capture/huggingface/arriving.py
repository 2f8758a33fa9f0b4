"""Tensors that arrive at an attention function (floor 3): masks, biases and chosen keys, in one form.

Each comes in several shapes and number formats; here it becomes a map of who may read whom, and finite numbers that are
added to the scores, both [B or 1, H or 1, T or 1, S].
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from wherefrom.errors import InputError


class Sizes(NamedTuple):
    """The shape [B, H, T, S] of one execution's scores."""

    texts: int
    heads: int
    rows: int
    columns: int


def parts(what: str, values: Tensor, sizes: Sizes) -> tuple[Tensor | None, Tensor | None]:
    """Return what a mask permits, [B|1, H|1, T|1, S], None for everything, and what it adds, None for nothing."""
    values = _in_four(what, values, sizes)
    if values.dtype == torch.bool:
        return values, None
    lowest = torch.finfo(values.dtype).min / 2
    wide = values if values.dtype == torch.float64 else values.float()  # the lowest of a half is one of float32 too
    if not bool((wide < torch.inf).all()):
        raise InputError(
            what,
            expected="numbers below infinity",
            given="NaN or +inf",
            way_out="A source is hidden by -inf or the lowest number of the format; find where the other came from.",
        )
    allowed = wide > lowest
    everything = bool(allowed.all())
    bias = wide + 0.0 if everything else torch.where(allowed, wide, 0.0)  # a tensor of its own either way
    return None if everything else allowed, bias if bias.requires_grad or bool((bias != 0).any()) else None


def _in_four(what: str, values: Tensor, sizes: Sizes) -> Tensor:
    """Return a mask or bias as [B|1, H|1, T|1, S], bool or of floating-point numbers."""
    if values.ndim == 2 and not values.is_floating_point() and not values.is_complex():
        values = _padding(what, values, sizes)
    if not (values.dtype == torch.bool or values.is_floating_point()):
        raise InputError(
            what,
            expected="bool, True where a source may be read, or floating-point numbers that are added to the scores",
            given=f"{values.dtype}",
            way_out="Write `mask != 0` for a mask of ones and zeros.",
        )
    shape = (1,) * (4 - values.ndim) + tuple(values.shape)
    wide = shape[-1] >= sizes.columns or shape[-1] == 1
    if len(shape) != 4 or not wide or any(a not in (1, b) for a, b in zip(shape[:3], sizes[:3], strict=True)):
        raise InputError(
            what,
            expected=f"the shape of the scores, {tuple(sizes)}, or 1 in place of any, or fewer axes from the left",
            given=f"shape {tuple(values.shape)}",
            way_out="Axes are texts, heads, destinations and sources; padding alone is bool [texts, sources].",
        )
    values = values.reshape(shape)[..., : sizes.columns]
    return values.expand(*values.shape[:3], sizes.columns)


def _padding(what: str, values: Tensor, sizes: Sizes) -> Tensor:
    """Return padding [B, S] as [B, 1, 1, S]; a bool map [T, S] as it is."""
    rows = values.shape[0]
    as_padding, as_map = rows == sizes.texts, values.dtype == torch.bool and rows == sizes.rows
    if as_padding and as_map and rows > 1:
        raise InputError(
            what,
            expected=f"4 axes, as there are {rows} texts and {rows} destinations",
            given=f"shape {tuple(values.shape)}, which may be either",
            way_out="Give padding as [texts, 1, 1, sources], a map of destinations as [1, 1, destinations, sources].",
        )
    if not as_padding:
        return values
    return (values != 0)[:, None, None]


def chosen(indices: Tensor, sizes: Sizes) -> Tensor:
    """Return which columns an indexer chose, bool [B|1, H|1, T, S]."""
    shape = tuple(indices.shape) if indices.ndim != 3 else (indices.shape[0], 1, *indices.shape[1:])
    whole = not (indices.is_floating_point() or indices.is_complex() or indices.dtype == torch.bool)
    fits = len(shape) == 4 and shape[0] in (1, sizes.texts) and shape[1] in (1, sizes.heads)
    if not (whole and fits and shape[2] == sizes.rows):
        raise InputError(
            "the indices of chosen keys",
            expected=f"whole numbers for {sizes.texts} texts (or 1), {sizes.heads} heads (or 1, or no such axis) "
            f"and {sizes.rows} destinations",
            given=f"{indices.dtype} of shape {tuple(indices.shape)}",
            way_out="Axes are texts, heads, destinations and the keys chosen.",
        )
    places = indices.reshape(shape).long()
    outside = (places < 0) | (places >= sizes.columns)
    places = places.masked_fill(outside, sizes.columns)  # one column more, for what stands for nothing
    allowed = torch.zeros((*shape[:3], sizes.columns + 1), dtype=torch.bool, device=indices.device)
    return allowed.scatter_(-1, places, True)[..., :-1]


def require_tensor(what: str, values: Any) -> None:
    """Refuse what is no tensor, such as the block mask of another implementation.

    Raises:
        InputError: it is none.
    """
    if not (values is None or isinstance(values, Tensor)):
        given = type(values).__name__
        raise InputError(what, expected="a tensor", given=f"a {given}", way_out="Use the masks of sdpa or eager.")
