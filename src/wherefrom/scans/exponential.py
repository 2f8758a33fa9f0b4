"""exp of many numbers in double precision (floor 2), in one compiled loop: several times as quick as numpy's.

e^x = 2^n e^f with n the whole number nearest to x / log 2, so that |f| <= log(2) / 2: e^f by its Taylor series, 2^n by
putting n into the bits of an exponent. It stands alone, since compiled code on disk is believed for as long as its file
is as old.
"""

# mypy: ignore-errors
# The types within are those that numba infers.
from __future__ import annotations

from math import factorial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from wherefrom.scans.kernels import exact

I = np.int64  # noqa: E741
_TO_WHOLE = 6755399441055744.0
"""1.5 x 2^52: adding it leaves the nearest whole number in the lowest bits."""
_PER_LOG_2 = float(np.log2(np.e))
_LOG_2_HIGH = float.fromhex("0x1.62e42fefa0000p-1")
"""log 2 in so few bits that its product with a whole number up to 2^15 is exact; `_LOG_2_LOW` is what is left."""
_LOG_2_LOW = float.fromhex("0x1.cf79abc9e3b3ap-40")
_LOWEST, _HIGHEST = -708.0, 709.0
"""Below, e^x is less than the smallest normal number, and is returned as 0; above, it is beyond every number."""
_C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9, _C10, _C11, _C12, _C13 = (1 / factorial(n) for n in range(2, 14))


@intrinsic
def _float_of(_: Any, bits: Any) -> Any:
    """Return the float64 that has these 64 bits."""
    return types.float64(types.int64), lambda context, build, signature, args: build.bitcast(args[0], ir.DoubleType())


@intrinsic
def _bits_of(_: Any, number: Any) -> Any:
    """Return the 64 bits of a float64 as a whole number."""
    return types.int64(types.float64), lambda context, build, signature, args: build.bitcast(args[0], ir.IntType(64))


@exact
def exp_over(x):
    """Put e^x over each number x of a float64 [N], with a relative error of at most 5e-16; NaN stays NaN.

    Below -708 it is 0, and above 709 infinite.
    """
    for place in range(x.size):
        given = x[place]
        y = _LOWEST if given < _LOWEST else given  # in this order a NaN goes through
        y = _HIGHEST if y > _HIGHEST else y
        shifted = y * _PER_LOG_2 + _TO_WHOLE
        n = shifted - _TO_WHOLE
        f = (y - n * _LOG_2_HIGH) - n * _LOG_2_LOW
        series = (((((_C13 * f + _C12) * f + _C11) * f + _C10) * f + _C9) * f + _C8) * f + _C7
        series = ((((((series * f + _C6) * f + _C5) * f + _C4) * f + _C3) * f + _C2) * f + 1.0) * f + 1.0
        value = series * _float_of(I(I(_bits_of(shifted) + I(1023)) << I(52)))
        value = 0.0 if given < _LOWEST else value
        x[place] = np.inf if given > _HIGHEST else value
