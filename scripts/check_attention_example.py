"""Recompute every number of the lesson's example and compare it with a file, to three decimals.

Usage: python scripts/check_attention_example.py [FILE]       (default: tests/data/worked_example.json)

Exit status 0: all agree. 1: a number is off, and the first is named. 2: the file cannot be checked.
The order is scores, weights, outputs; destinations and sources count from 1, as the lesson counts.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from wherefrom.attention import attend

DEFAULT = Path(__file__).resolve().parent.parent / "tests" / "data" / "worked_example.json"
HALF_STEP = 0.0005  # a number rounded to three decimals is at most this far from the true one
SLACK = 1e-9  # 0.1235 may be the rounding of 0.1235 +- 0.0005, which binary fractions miss by a little
KEYS = ("tokens", "q", "k", "v", "scores", "weights", "outputs")


class Entry(NamedTuple):
    """One entry of a table, None where it is masked."""

    where: str
    expected: float | None
    computed: float | None

    @property
    def off(self) -> bool:
        """True where the two differ by more than rounding, or one masks what the other does not."""
        if self.expected is None or self.computed is None:
            return self.expected is not self.computed
        return not abs(self.expected - self.computed) <= HALF_STEP + SLACK  # so written, a NaN is off

    def sentence(self) -> str:
        """Return where the entry stands, what the file says and what was computed."""
        expected, computed = (
            "masked" if number is None else f"{number:.{digits}g}"
            for number, digits in ((self.expected, 12), (self.computed, 6))
        )
        return f"{self.where}: the file says {expected}, computed {computed}"


def load(path: Path) -> dict[str, Any]:
    """Return the example in the file, every table of the right size; a ValueError says what is wrong."""
    example = json.loads(path.read_text(encoding="utf-8"))
    missing = [key for key in KEYS if not isinstance(example, dict) or not isinstance(example.get(key), list)]
    if missing:
        raise ValueError(f"it has no list named {missing[0]!r}")
    count = len(example["tokens"])
    for name in KEYS[1:]:
        width = count if name in {"scores", "weights"} else None
        _check_table(name, example[name], count, width, masked=width is not None)
    if len(example["outputs"][0]) != len(example["v"][0]):
        raise ValueError("the rows of 'outputs' are not as long as those of 'v'")
    return example


def _check_table(name: str, table: list[Any], rows: int, width: int | None, *, masked: bool) -> None:
    if len(table) != rows or not rows:
        raise ValueError(f"{name!r} has {len(table)} rows for {rows} tokens")
    for number, row in enumerate(table, start=1):
        size = width if width is not None else len(table[0]) if isinstance(table[0], list) else 0
        if not isinstance(row, list) or len(row) != size:
            raise ValueError(f"row {number} of {name!r} is not a list of {size}")
        if not all(_is_number(cell) or (masked and cell is None) for cell in row):
            raise ValueError(f"row {number} of {name!r} holds something that is not a number")


def _is_number(cell: Any) -> bool:
    whole = isinstance(cell, int) and not isinstance(cell, bool) and abs(cell) < 10**300  # that a float can hold
    return isinstance(cell, float) or whole


def entries(example: dict[str, Any]) -> list[Entry]:
    """Return every entry of the three tables beside its recomputed value."""
    result = attend(example["q"], example["k"], example["v"])
    found = []
    for table, values in (("scores", result.scores[0]), ("weights", result.weights[0])):
        for i, row in enumerate(example[table]):
            for j, expected in enumerate(row):
                computed = float(values[i, j]) if result.permitted[0, i, j] else None
                found.append(Entry(f"{table}, destination {i + 1}, source {j + 1}", expected, computed))
    for i, row in enumerate(example["outputs"]):
        for n, expected in enumerate(row):
            computed = float(result.output[0, i, n])
            found.append(Entry(f"outputs, destination {i + 1}, component {n + 1}", expected, computed))
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Recompute the lesson's example and compare it with a file.")
    parser.add_argument("file", nargs="?", type=Path, default=DEFAULT, help="JSON (default: %(default)s)")
    path = parser.parse_args(arguments).file
    try:
        found = entries(load(path))
    except (OSError, ValueError) as error:  # errors of JSON, UTF-8 and `attend` are ValueErrors
        print(f"cannot check {path}: {error}", file=sys.stderr)
        return 2
    first = next((entry for entry in found if entry.off), None)
    if first is not None:
        print(first.sentence())
        return 1
    masked = sum(entry.expected is None for entry in found)
    print(f"OK: {len(found) - masked} numbers and {masked} masked entries agree to three decimals")
    return 0


if __name__ == "__main__":
    sys.exit(main())
