"""What goes to the page (floor 6): facts as JSON, and arrays as the very bytes that the page computes with.

A message with arrays is a safetensors file: eight bytes with the length of its header, the header as JSON, the arrays.
Its facts stand in the header's metadata. So one byte layout goes from disk to browser, and no number becomes text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

FACTS = "facts"
TYPES = {"float32", "int32", "uint8"}
"""What arrays are sent as: the page has a typed array for each."""
ARRAYS_TYPE, FACTS_TYPE = "application/octet-stream", "application/json"


@dataclass(frozen=True)
class Message:
    """An answer to the page.

    Attributes:
        facts: what `json.dumps` takes, no infinities.
        arrays: by name, each float32, int32 or uint8.
    """

    facts: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def packed(self) -> tuple[str, bytes]:
        """Return its media type and its bytes."""
        facts = json.dumps(self.facts, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        if not self.arrays:
            return FACTS_TYPE, facts.encode()
        arrays = {name: np.ascontiguousarray(array) for name, array in self.arrays.items()}
        wrong = {name: str(array.dtype) for name, array in arrays.items() if str(array.dtype) not in TYPES}
        assert not wrong, f"arrays are float32, int32 or uint8, not {wrong}"
        return ARRAYS_TYPE, save(arrays, metadata={FACTS: facts})
