"""What a model expected (floor 3): its logits as predictions, the likeliest tokens and the one that really came."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from wherefrom.model.generate import Step
from wherefrom.recording import Prediction

Label: TypeAlias = Callable[[int], str]
KEPT_PREDICTIONS = 5


def predictions_of_steps(
    written: Sequence[Step], last: Tensor, ids: Sequence[int], label: Label
) -> tuple[Prediction, ...]:
    """Return the predictions of a generation: what each step chose among, and `last` [1, N] after the last token."""
    kept: list[Prediction] = []
    for step in written:
        kept += predictions_of(step.logits[None], [step.position - 1], ids, label)
    return (*kept, *predictions_of(last, [len(ids) - 1], ids, label))


def predictions_of(logits: Tensor, positions: Iterable[int], ids: Sequence[int], label: Label) -> list[Prediction]:
    """Return the predictions of logits [R, N], one a position; `label` says what a person sees of a token."""
    normalizer = torch.logsumexp(logits.float(), dim=-1)  # R
    best, best_ids = torch.topk(logits, min(KEPT_PREDICTIONS, logits.shape[-1]), dim=-1)  # R 5
    kept = []
    for row, position in enumerate(positions):
        after = ids[position + 1] if position + 1 < len(ids) else None
        kept.append(
            Prediction(
                position=position,
                ids=tuple(best_ids[row].tolist()),
                log_probabilities=tuple((best[row].float() - normalizer[row]).tolist()),
                next_id=after,
                next_log_probability=None if after is None else float(logits[row, after].float() - normalizer[row]),
                labels=tuple(map(label, best_ids[row].tolist())),
            )
        )
    return kept
