"""The whole process of a short trace beside the import of torch, which it cannot do without."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import wherefrom
from benchmarks.measure import Result, at_most, paired, require
from benchmarks.texts import TWENTY


def run(rounds: int = 9) -> Iterator[Result]:
    """Yield the line of the table."""
    wherefrom.load()  # the cache is warm
    command = [str(Path(sys.executable).with_name("wherefrom")), "trace", TWENTY[0]]
    answer = subprocess.run([*command, "--json"], check=True, capture_output=True, text=True)
    strongest = max(json.loads(answer.stdout)["sources"], key=lambda source: source["knock_out"])
    require(strongest["token"] == " Mary", f"the strongest source is {strongest['token']}")
    torch = [sys.executable, "-c", "import torch"]
    yield at_most(
        "wherefrom trace of a short prompt, whole process / python -c 'import torch'",
        paired(
            lambda: subprocess.run(command, check=True, capture_output=True),
            lambda: subprocess.run(torch, check=True, capture_output=True),
            rounds=rounds,
        ),
        2.5,
        '" Mary" comes first',
    )
