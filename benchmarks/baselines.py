"""Baselines of other projects, for comparison alone.

ContextCite: Cohen-Wang, Shah, Georgiev and Madry 2024, "ContextCite: Attributing Model Generation to Context",
https://github.com/MadryLab/context-cite. Its fit is written down here from its description, over scikit-learn.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

ROUNDS = 100_000
"""Of coordinate descent, at most."""


def lasso(
    kept: ArrayLike, values: ArrayLike, *, tokens: int = 1, alpha: float = 0.01
) -> tuple[NDArray[np.float64], float]:
    """Return the weights [P] and the intercept of the sparse linear surrogate of ContextCite.

    Choices are standardised, column by column; the values, log-odds of an answer, are divided by its number of tokens
    before the fit and multiplied by it after, as in the authors' own code. Theirs stops after 1,000 rounds; here it
    goes on until the optimum is found.

    Args:
        kept: bool [n, P], the passages that each run kept.
        values: [n], log-odds of the answer in each.
        tokens: how many the answer has.
        alpha: the lasso's strength; 0.01 is the authors'.

    Raises:
        ImportError: scikit-learn is not installed.
    """
    from sklearn.linear_model import Lasso
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler()
    scaled = scaler.fit_transform(np.asarray(kept, dtype=np.float64))
    each = np.asarray(values, dtype=np.float64) / tokens
    fitted = Lasso(alpha=alpha, max_iter=ROUNDS, random_state=0).fit(scaled, each)
    weights = fitted.coef_ / scaler.scale_
    intercept = float(fitted.intercept_ - scaler.mean_ @ weights)
    return weights * tokens, intercept * tokens
