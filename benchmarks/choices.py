"""Which parts of a prompt are taken away in the comparison of lenses, and what is fitted to the runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.baselines import lasso
from wherefrom.errors import InputError
from wherefrom.evidence.ablations import subsets
from wherefrom.evidence.surrogate import fit

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
RUNS = 32
"""Random halves to test on, and as many others to learn from."""
TEST, TRAIN = 1_000_000, 2_000_000
"""Their seeds, to which a prompt's own is added."""
STEPS = 5
"""Of a deletion curve, at most."""
TOP = (1, 3)
"""So many of the strongest are taken away besides."""
BUDGETS = (2, 4, 8, 12, 16, 24, 32)
"""Ablations that a fit learns from."""
LASSO = (8, 16, 32)
"""Those of the sparse surrogate."""
ALONE = 3
"""Of them so many take the strongest parts away alone, as `wherefrom.trace_answer` does."""


def choices_to_test(parts: int, seed: int) -> Bools:
    """Return the parts that the runs keep on which lenses are judged, bool [n, P]."""
    return _drawn(parts, TEST + seed)


def choices_to_learn(parts: int, seed: int) -> Bools:
    """Return those that lenses learn from, bool [n, P]."""
    return _drawn(parts, TRAIN + seed)


@lru_cache(maxsize=64)  # every lens of a prompt asks for them
def _drawn(parts: int, seed: int) -> Bools:
    drawn = subsets(parts, RUNS, seed=seed)
    drawn.flags.writeable = False
    return drawn


def learned(row: Mapping[str, Any]) -> dict[str, Floats]:
    """Return the fits of a prompt's own runs, by name: ours, with the gates' scores as a prior, and the lasso."""
    parts, found = len(row["loo"]), dict[str, Floats]()
    loo, train = np.array(row["loo"]), np.array(row["train"])
    priors = {"1 + 1": gate_of(row, "0.6"), "3 + 3": three_gates(row)}
    for runs in LASSO:
        weights, _ = lasso(choices_to_learn(parts, row["seed"])[:runs], train[:runs], tokens=row["answer"])
        found[f"lasso, {runs} runs"] = weights
    for name, prior in priors.items():
        alone = np.argsort(-np.abs(prior), kind="stable")[:ALONE]
        kept = np.concatenate([np.arange(parts) != alone[:, None], choices_to_learn(parts, row["seed"])])
        values = np.concatenate([row["whole"] - loo[alone], train])
        for runs in BUDGETS:
            every = np.concatenate([kept[:runs], np.ones((1, parts), np.bool_)])
            found[f"gates {name} and {runs} runs"] = fit(every, [*values[:runs], row["whole"]], prior=prior).weights
    return found


def three_gates(row: Mapping[str, Any]) -> Floats:
    """Return the scores of gates at 0.4, 0.7 and 0.9, added."""
    return np.sum([gate_of(row, m) for m in ("0.4", "0.7", "0.9")], axis=0)


def gate_of(row: Mapping[str, Any], m: str) -> Floats:
    """Return what a gate says of a prompt's parts.

    Raises:
        InputError: the line was measured before there was such a gate.
    """
    if f"gate {m}" not in row["lenses"]:
        raise InputError(
            f"the line of {row['family']} {row['seed']}",
            expected=f'the lens "gate {m}"',
            given="none of that name",
            way_out="Have it measured: python -m benchmarks.faithfulness renew FILE.",
        )
    return np.array(row["lenses"][f"gate {m}"], dtype=np.float64)


def order_of(scores: Sequence[float] | Floats) -> NDArray[np.int64]:
    """Return the parts, the strongest first."""
    found: NDArray[np.int64] = np.argsort(-np.asarray(scores, dtype=np.float64), kind="stable")
    return found


def steps_of(scores: Sequence[float] | Floats) -> Iterator[tuple[int, Bools]]:
    """Yield how many of the strongest are gone, and what is kept then, at each step of a curve, none first."""
    order = order_of(scores)
    for gone in sorted({round(x) for x in np.linspace(0, len(order), min(STEPS, len(order)) + 1)} | set(TOP)):
        if gone <= len(order):
            kept = np.ones(len(order), np.bool_)
            kept[order[:gone]] = False
            yield gone, kept
