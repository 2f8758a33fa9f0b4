"""How a ratio is measured: two ways of doing one thing, in turn, in one process, on one machine that is named."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path


@dataclass(frozen=True)
class Result:
    """One line of the table: what was measured, the figure, the bound it is held to, and how it was checked."""

    what: str
    figure: str
    bound: str
    holds: bool
    checked: str


def machine() -> str:
    """Name the machine and the versions, for the header."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        cpu = names[0] if names else cpu
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "numpy"))
    return f"{cpu}, {os.cpu_count()} cores, Python {platform.python_version()}, {packages}"


def paired(first: Callable[[], object], second: Callable[[], object], *, rounds: int) -> list[float]:
    """Run both in turn, A B A B, after one warm-up each; return the ratio A / B of each round."""
    first()
    second()
    ratios = []
    for number in range(rounds):
        order = (first, second) if number % 2 == 0 else (second, first)  # neither profits from going last
        seconds = {}
        for run in order:
            start = time.perf_counter()
            run()
            seconds[run] = time.perf_counter() - start
        ratios.append(seconds[first] / seconds[second])
    return ratios


def spread(ratios: list[float]) -> str:
    """Return the median and the range."""
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}, {len(ratios)} pairs)"


def at_most(what: str, ratios: list[float], bound: float, checked: str) -> Result:
    """Return the line of a ratio whose median must not exceed a bound."""
    return Result(what, spread(ratios), f"<= {bound:g}", statistics.median(ratios) <= bound, checked)


def at_least(what: str, ratios: list[float], bound: float, checked: str) -> Result:
    """Return the line of a ratio whose median must not fall below a bound."""
    return Result(what, spread(ratios), f">= {bound:g}", statistics.median(ratios) >= bound, checked)


def in_fresh_process(module: str, *arguments: str) -> dict[str, float]:
    """Run `python -m module arguments` by itself and return the JSON that it prints last."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], check=True, capture_output=True, text=True, env=os.environ
    )
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def require(holds: bool, sentence: str) -> None:
    """Stop the benchmark if the result that it times is wrong: no speed is stated for a wrong answer."""
    if not holds:
        raise SystemExit(f"benchmark stopped, wrong result: {sentence}")
