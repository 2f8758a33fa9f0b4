"""What a training run says of itself (floor 7): before it, during it and at its end, for people and for programs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # nothing heavy before the options are understood
    from wherefrom.cli.train import Plan
    from wherefrom.training.baselines import Baselines
    from wherefrom.training.log import LogRow
    from wherefrom.training.loop import Trained


def opening(plan: Plan, count: int) -> str:
    """Return what is said before the first step."""
    config, corpus = plan.config, plan.corpus
    layers = f"{config.layers} layer{'s' * (config.layers > 1)} of {config.heads} head{'s' * (config.heads > 1)}"
    return (
        f"{count:,} parameters: {layers}, width {config.width}, context {plan.context}\n"
        f"{len(corpus.train):,} tokens to train on, {len(corpus.validation):,} held out, "
        f"of {corpus.vocabulary:,} kinds\n"
    )


def step_line(row: LogRow) -> str:
    """Return what is said of a step that was validated."""
    return (
        f"step {row.step:>7,}  train loss {row.train_loss:.4f}  validation loss {row.validation_loss:.4f}  "
        f"{row.tokens_per_second:>9,.0f} tokens/s"
    )


def _bits_a_byte(plan: Plan) -> float:
    """Return the factor from nats a token to bits a byte: of the tokens that the loss is the mean of.

    A mark (between two documents) is a token that is predicted, but no byte of the text.
    """
    import numpy as np

    marks = plan.tokenizer.special_ids
    numbers = range(plan.corpus.vocabulary)
    lengths = np.array([0 if number in marks else len(plan.tokenizer.token_bytes(number)) for number in numbers])
    predicted = plan.corpus.windows(plan.context, plan.settings.validate_windows)[:, 1:]
    return float(predicted.size / (max(1, lengths[predicted].sum()) * np.log(2)))


def closing(trained: Trained, counted: Baselines, plan: Plan, out: Path, *, watched: bool) -> str:
    """Return what is said at the end: the loss beside what counting gives, and what to do next."""
    factor = _bits_a_byte(plan)
    rows = [
        ("this model", trained.validation_loss),
        ("bigram: pairs counted", counted.bigram),
        ("unigram: tokens counted", counted.unigram),
        ("uniform: nothing known", counted.uniform),
    ]
    lines = ["", f"{'validation loss':<26}{'nats a token':>12}  {'bits a byte':>12}"]
    lines += [f"{label:<26}{value:>12.4f}  {value * factor:>12.4f}" for label, value in rows]
    lines += ["", f"model: {trained.checkpoint}", f'try:   wherefrom generate "..." --model {quote(str(out))}']
    if trained.best_step != trained.step:
        lines.append(f"lowest validation loss: {trained.best_validation_loss:.4f} at step {trained.best_step:,}")
    if watched:
        lines.append(f"heads: wherefrom watch {quote(str(out))}")
    return "\n".join(lines)


def result(trained: Trained, counted: Baselines, plan: Plan, out: Path) -> dict[str, Any]:
    """Return the same for programs."""
    return {
        "folder": str(out),
        "checkpoint": str(trained.checkpoint),
        "step": trained.step,
        "tokens": trained.tokens,
        "train_loss": trained.train_loss,
        "validation_loss": trained.validation_loss,
        "best_validation_loss": trained.best_validation_loss,
        "best_step": trained.best_step,
        "baselines": asdict(counted),
        "bits_a_byte": trained.validation_loss * _bits_a_byte(plan),
        "seconds": trained.seconds,
        "units": {"loss": "nats a token"},
    }
