"""The training loop (floor 5): from a text and a model's shape to trained weights, step by step.

Takes the trainer, which makes the steps, and the run, which keeps them, from beside it. Gives `train` and `resume` to
the command line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from wherefrom.checks import check_kind
from wherefrom.errors import InputError, TrainingError
from wherefrom.model.checkpoint import Checkpoint, read_folder
from wherefrom.model.config import Config
from wherefrom.model.cost import parameters
from wherefrom.model.initial import draw
from wherefrom.model.layouts import config_fields
from wherefrom.model.transformer import Transformer
from wherefrom.tokens import Tokenizer
from wherefrom.training import run as runs
from wherefrom.training.interrupt import held_back
from wherefrom.training.log import LogRow
from wherefrom.training.memory import room_for
from wherefrom.training.place import run_folder
from wherefrom.training.run import Run
from wherefrom.training.settings import Settings
from wherefrom.training.state import State, read_state
from wherefrom.training.text import Corpus
from wherefrom.training.trainer import Hardware, NotFiniteError, Task, Trainer, own_copy

OnStep: TypeAlias = Callable[[LogRow, Transformer], None]
"""Called after each step, its log row and its checkpoint, with the model in training: it may look, not touch."""
Progress: TypeAlias = Callable[[int, int], None]
"""Called with (steps done, steps in all) after each step, and once before the first."""


@dataclass(frozen=True, eq=False)
class Trained:
    """A finished run.

    Attributes:
        transformer: the model after the last step, in evaluation mode, on the device it was trained on.
        checkpoint: its folder, for `wherefrom.load`.
        best: the checkpoint with the lowest validation loss among those that were kept; often the same.
        step: how many updates the model has seen.
        tokens: how many tokens.
        train_loss: of the last step's windows, in nats per token.
        validation_loss: after the last step, in nats per token.
        best_validation_loss: the lowest that was measured, whether or not its checkpoint was kept.
        best_step: when that was.
        seconds: wall clock of this part of the run.
    """

    transformer: Transformer
    checkpoint: Path
    best: Path
    step: int
    tokens: int
    train_loss: float
    validation_loss: float
    best_validation_loss: float
    best_step: int
    seconds: float

    def __repr__(self) -> str:
        loss = f"train loss {self.train_loss:.4f}, validation loss {self.validation_loss:.4f} nats per token"
        return f"Trained(step {self.step}, {loss}, {self.checkpoint})"


def train(
    model: Config | Transformer,
    corpus: Corpus,
    tokenizer: Tokenizer,
    settings: Settings,
    folder: str | Path,
    *,
    resume: bool = False,
    on_step: OnStep | None = None,
    progress: Progress | None = None,
) -> Trained:
    """Train a causal language model on a text, and return it; the run's folder holds its checkpoints and its log.

    Args:
        model: a configuration, whose weights are drawn with the settings' seed, or a transformer to go on from, which
            is copied, not changed. To resume, either says only what the shape must be.
        corpus: the text's tokens.
        tokenizer: what made them; it goes into every checkpoint.
        settings: how to train.
        folder: of the run; made if it is not there. A "~" at its beginning is the user's home.
        resume: go on from the newest checkpoint in the folder.
        on_step: see `OnStep`. What it raises ends the run; its last checkpoint stays. Ctrl-C waits for the end of the
            step and leaves a checkpoint of it; pressed again, it ends the run at once.
        progress: see `Progress`.

    Raises:
        InputError: the model is none that reads from left to right, the text does not suit it, or the folder is no
            path.
        TrainingError: the folder holds another run, or none to resume; the loss is no number any more; a checkpoint or
            the log cannot be written; ``checkpoint`` is the last one that is whole, if any. Or memory ran out.
        ModelError: the checkpoint to resume from is damaged.
    """
    settings = check_kind("the settings", settings, Settings, way_out="Make them: Settings(steps=1000).")
    place = run_folder(folder)
    task = Task(require_decoder(model), corpus, tokenizer, settings, Hardware.of(settings))
    _check(task)
    began = time.perf_counter()
    with Run(place, keep=settings.keep, resume=resume) as run, held_back() as interrupted:
        trainer = _trainer(model, task, run)
        run.begin(trainer.step)
        if progress is not None:
            progress(trainer.step, settings.steps)
        while trainer.step < settings.steps:
            row = _step(trainer, run)
            if on_step is not None:
                on_step(row, trainer.transformer)
            if progress is not None:
                progress(trainer.step, settings.steps)
            if interrupted():
                if not settings.checkpoints_after(row.step):
                    _save(trainer, run, row)
                raise KeyboardInterrupt
        return _trained(trainer, row, run, time.perf_counter() - began)


@dataclass(frozen=True, eq=False)
class Begun:
    """A run that can be gone on with.

    Attributes:
        state: where it stands.
        checkpoint: its newest whole one: the model and its vocabulary.
    """

    state: State
    checkpoint: Checkpoint

    @classmethod
    def of(cls, folder: Path) -> Begun:
        """Return what a run's folder says.

        Raises:
            TrainingError: there is no whole checkpoint in it.
            ModelError: the checkpoint is damaged.
        """
        place = runs.latest(folder)
        return cls(read_state(place), read_folder(place))

    def again(self, texts: str | Sequence[str], **changes: Any) -> tuple[Corpus, Settings]:
        """Return the run's text, given again and split as it was, and its settings, some of them changed.

        Raises:
            InputError: a text that cannot be read, or a setting that cannot be.
        """
        held_out = self.state.validation_tokens / (self.state.train_tokens + self.state.validation_tokens)
        corpus = Corpus.of(texts, self.checkpoint.tokenizer, held_out=held_out)
        return corpus, Settings.from_json({**self.state.settings, **changes})


def resume(
    folder: str | Path,
    texts: str | Sequence[str],
    *,
    on_step: OnStep | None = None,
    progress: Progress | None = None,
    **changes: Any,
) -> Trained:
    """Go on with a run from its newest checkpoint, given its text again; all else is in its folder.

    Args:
        folder: of the run.
        texts: the same documents as before.
        on_step: see `OnStep`.
        progress: see `Progress`.
        changes: settings that a resumed run may change, such as ``keep``.

    Raises:
        TrainingError: as `train`; or the text is another.
    """
    folder = run_folder(folder)
    begun = Begun.of(folder)
    corpus, settings = begun.again(texts, **changes)
    return train(
        begun.checkpoint.config,
        corpus,
        begun.checkpoint.tokenizer,
        settings,
        folder,
        resume=True,
        on_step=on_step,
        progress=progress,
    )


def _trainer(model: Config | Transformer, task: Task, run: Run) -> Trainer:
    """Return the model in training: drawn, copied, or as the run left it."""
    what = f"a model of {parameters(task.config):,} parameters, their gradients and two averages of each"
    with room_for(what, "Choose a smaller width, fewer layers, or a smaller vocabulary."):
        if run.begun_at is not None:
            return Trainer.resumed(run.begun_at, task)
        return Trainer(draw(task.config, task.settings.seed) if isinstance(model, Config) else own_copy(model), task)


def _step(trainer: Trainer, run: Run) -> LogRow:
    """Make one update, write its row, and its checkpoint if one is due."""
    settings = trainer.settings
    what = f"{settings.batch:,} windows of {trainer.context:,} tokens side by side"
    try:
        with room_for(what, "Lower batch, and raise accumulate by as much; or choose a shorter context."):
            row = trainer.advance()
    except NotFiniteError as error:
        raise _diverged(error, trainer, run) from None
    run.append(row)
    if settings.checkpoints_after(row.step):
        _save(trainer, run, row)
    return row


def _save(trainer: Trainer, run: Run, row: LogRow) -> None:
    try:
        trainer.check_weights()
    except NotFiniteError as error:
        raise _diverged(error, trainer, run) from None
    run.save(trainer.state(row.validation_loss), trainer.write)


def _diverged(error: NotFiniteError, trainer: Trainer, run: Run) -> TrainingError:
    newest, settings = run.newest(), trainer.settings
    survives = f"The last good checkpoint is {newest}." if newest else "No checkpoint had been written before."
    return TrainingError(
        error.what,
        expected="a finite number",
        given=f"{error.value}",
        way_out=f"Lower learning_rate (now {settings.learning_rate:g}) or clip (now {settings.clip}). {survives}",
        step=trainer.step,
        checkpoint=newest,
    )


def _trained(trainer: Trainer, last: LogRow, run: Run, seconds: float) -> Trained:
    assert trainer.best is not None, "the last step is always validated"
    assert last.validation_loss is not None, "the last step is always validated"
    kept = runs.checkpoints(run.folder)
    return Trained(
        transformer=trainer.transformer.eval().requires_grad_(False),
        checkpoint=kept[-1],
        best=runs.best(kept),
        step=trainer.step,
        tokens=last.tokens,
        train_loss=last.train_loss,
        validation_loss=last.validation_loss,
        best_validation_loss=trainer.best[0],
        best_step=trainer.best[1],
        seconds=seconds,
    )


def require_decoder(model: object) -> Config:
    """Return the shape of what can be trained here.

    Raises:
        InputError: it is no model, or none that predicts the next token.
    """
    if isinstance(model, Config):
        config = model
    else:
        way_out = "Give a Config, or a model's transformer to go on from."
        config = check_kind("the model", model, Transformer, way_out=way_out).config
    if config.kind != "decoder" or config.head != "linear":
        raise InputError(
            "the model",
            expected="a decoder, which predicts the next token from those before it",
            given=f"an {config.kind}" if config.kind != "decoder" else f"one whose head is {config.head!r}",
            way_out="Make one with Config.decoder(...).",
        )
    return config


def _check(task: Task) -> None:
    """Refuse a window, a text or a tokenizer that does not suit the model."""
    corpus = check_kind("the text", task.corpus, Corpus, way_out="Make a corpus of it: Corpus.of(text, tokenizer).")
    tokenizer = check_kind("the tokenizer", task.tokenizer, Tokenizer, way_out="Give the one that made the corpus.")
    if task.context > task.config.context:
        raise InputError(
            "context",
            expected=f"at most {task.config.context}, the model's",
            given=f"{task.context}",
            way_out="Leave it out to use all of it.",
            field="context",
            value=task.context,
        )
    corpus.require(task.context, task.config.vocabulary)
    config_fields(task.config)  # a shape that its layout cannot write is refused now, not at the first checkpoint
    if tokenizer.vocabulary_size != corpus.vocabulary:
        raise InputError(
            "the tokenizer",
            expected=f"the one that made the corpus, of {corpus.vocabulary} tokens",
            given=f"one of {tokenizer.vocabulary_size}",
            way_out="Make the corpus again: Corpus.of(text, tokenizer).",
        )
