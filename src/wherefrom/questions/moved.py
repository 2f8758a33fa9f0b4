"""How much a source moves to a destination (floor 4): |a_ij W_O v_j|, the norm-based measure of Kobayashi et al. 2020.

"Attention is Not Only a Weight", arXiv:2004.10102. It needs each head's slice of the output projection, which a
recording keeps where the model has one. The length of W_O v_j is that of v_j under the matrix W_O^T W_O, [V, V], so
that no vector of the model's width is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from wherefrom.errors import InputError
from wherefrom.questions.exact import Masked, row_of_weights
from wherefrom.recording import Call
from wherefrom.recording.call import call_named

Floats: TypeAlias = NDArray[np.float64]
AT_ONCE = 4096
"""Sources whose values are turned into double precision together."""


def lengths_of(call: Call, head: int) -> Floats:
    """Return |W_O v_j| of every source in one head, float64 [S].

    Args:
        call: of a recording.
        head: its number.

    Raises:
        InputError: the recording does not keep the head, or the layer's output projection.
    """
    place = call.place_of_head(head)
    if call.output is None:
        raise InputError(
            "moved",
            expected="a recording that keeps the layers' output projections",
            given=f"none in {call_named(call)}",
            way_out="Record the text again into a file, which keeps them unless output=False or --no-output says no, "
            "if the model has one matrix for it.",
        )
    projection = call.output[place].astype(np.float64)  # M V
    square = projection.T @ projection  # V V
    values = call.v[call.key_heads[place]]  # S V
    found = np.empty(len(values))
    for start in range(0, len(values), AT_ONCE):
        some = values[start : start + AT_ONCE].astype(np.float64)
        found[start : start + AT_ONCE] = np.einsum("sv,sv->s", some @ square, some)
    return np.sqrt(np.maximum(found, 0.0))


def moved(weights: Masked, lengths: Floats) -> Masked:
    """Return what is moved [..., S]: weights times the lengths of the sources' values; masked where there is no row."""
    return np.ma.MaskedArray(weights.filled(0.0) * lengths, mask=np.ma.getmaskarray(weights))


def moved_in_all(calls: Iterable[tuple[Call, Sequence[int]]], destination: int) -> Floats:
    """Return what a destination is moved of every source, added up over heads, float64 [S].

    A head in which it may read nothing adds nothing.

    Args:
        calls: calls over the same positions, each with the numbers of some of its heads.
        destination: that reads.

    Raises:
        InputError: as `lengths_of`; the recording does not keep the destination.
    """
    total: Floats = np.zeros(())
    for call, heads in calls:
        weights = row_of_weights(call, destination)
        for head in heads:
            total = total + moved(weights[call.place_of_head(head)], lengths_of(call, head)).filled(0.0)
    return total
