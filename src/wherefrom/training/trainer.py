"""A model between two steps (floor 5): its weights, its optimizer, how far it is, and what makes it one step further.

Takes the transformer from the model room, the corpus, settings and optimizer from beside it. Gives `Trainer` to the
loop, and `next_token_loss` to whoever wants a text's loss.

A step reads some windows of the text, predicts at every position the token after it in one causal pass, and moves the
weights against the gradient of the mean cross-entropy. Which windows, how far, in what order: all of it follows from
the settings and the number of the step, and nothing is drawn on the way. So a run that was stopped at a checkpoint and
resumed ends in the same weights, bit for bit, as one that was not: on the same kind of machine, with the same torch
and number of threads; on CUDA only under `torch.use_deterministic_algorithms(True)`, since some of its kernels add in
any order.
"""

from __future__ import annotations

import copy
import hashlib
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from wherefrom.errors import InputError, TrainingError
from wherefrom.model.checkpoint import Checkpoint, read_folder, write_folder
from wherefrom.model.config import Config
from wherefrom.model.layouts import parameters
from wherefrom.model.transformer import Transformer
from wherefrom.tokens import Tokenizer
from wherefrom.training import run as runs
from wherefrom.training.log import LogRow
from wherefrom.training.optimizer import make_optimizer, optimizer_tensors, restore_optimizer
from wherefrom.training.settings import Settings
from wherefrom.training.state import State, read_state
from wherefrom.training.text import Corpus


@dataclass(frozen=True)
class Hardware:
    """Where a run computes: a device, and whether its matrix products are in bfloat16."""

    device: torch.device
    bfloat16: bool

    @classmethod
    def of(cls, settings: Settings) -> Hardware:
        """Return what the settings ask for, with "auto" decided.

        Raises:
            InputError: this machine has no such device.
        """
        found = "cuda" if torch.cuda.is_available() else "cpu"
        asked = found if settings.device == "auto" else settings.device
        try:
            device = torch.empty(0, device=asked).device
        except (RuntimeError, AssertionError, NotImplementedError) as error:  # a build without it asserts
            raise InputError(
                "device",
                expected='"cpu", or another device of this machine',
                given=f"{asked!r} ({str(error).splitlines()[0].rstrip('.')})",
                way_out='"auto" takes what there is.',
                field="device",
                value=asked,
            ) from error
        able = device.type == "cuda" and torch.cuda.is_bf16_supported()
        return cls(device, settings.precision == "bfloat16" or (settings.precision == "auto" and able))

    @property
    def precision(self) -> str:
        """The precision of the matrix products."""
        return "bfloat16" if self.bfloat16 else "float32"


@dataclass(frozen=True, eq=False)
class Task:
    """What a run is to do: train a model of this shape, on this text, in this way, on this device."""

    config: Config
    corpus: Corpus
    tokenizer: Tokenizer
    settings: Settings
    hardware: Hardware

    @property
    def context(self) -> int:
        """Tokens of a window."""
        return self.settings.context or self.config.context

    def course(self) -> dict[str, Any]:
        """Return all that the trained weights depend on, by name."""
        resolved = {"device": self.hardware.device.type, "precision": self.hardware.precision, "context": self.context}
        subject = _subject(self.corpus.checksum, self.config, self.tokenizer)
        return {**self.settings.course(), **resolved, **subject}


def course_of(state: State, checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the same of a run that began earlier."""
    began = Settings.from_json(state.settings)
    context = began.context or checkpoint.config.context
    resolved = {"device": state.device, "precision": state.precision, "context": context}
    subject = _subject(state.corpus, checkpoint.config, checkpoint.tokenizer)
    return {**began.course(), **resolved, **subject}


def _subject(text: str, config: Config, tokenizer: Tokenizer) -> dict[str, Any]:
    shape = {f"the model's {name}": value for name, value in asdict(config).items()}
    # Read back first, so that a tokenizer from a file and one from memory are written alike.
    vocabulary = type(tokenizer.inner).from_str(tokenizer.inner.to_str()).to_str()
    return {"text": text, "tokenizer": hashlib.sha256(vocabulary.encode()).hexdigest(), **shape}


class NotFiniteError(ArithmeticError):
    """A number of the run that is NaN or infinite: which, and its value."""

    def __init__(self, what: str, value: float) -> None:
        super().__init__(what)
        self.what, self.value = what, value


def next_token_loss(transformer: Transformer, ids: Tensor, *, bfloat16: bool = False) -> Tensor:
    """Return the mean cross-entropy of every next token, in nats: a scalar with a gradient.

    Args:
        transformer: causal, on the device of the ids.
        ids: int64 [B, T + 1]; row t of a window predicts its token t + 1, all of them in one pass.
        bfloat16: compute matrix products in it; the cross-entropy is float32 in any case.
    """
    with torch.autocast(ids.device.type, dtype=torch.bfloat16, enabled=bfloat16):
        logits: Tensor = transformer(ids[:, :-1])  # B T N
    return F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())


class Trainer:
    """A model in training.

    Args:
        transformer: begins with these weights, and is changed; see `own_copy`.
        task: what to do.

    Attributes:
        step: how many updates have been made.
        best: the lowest validation loss so far, and at which step.
    """

    def __init__(self, transformer: Transformer, task: Task) -> None:
        self.transformer = transformer.to(task.hardware.device).train().requires_grad_(True)
        self.task, self.settings, self.context = task, task.settings, task.context
        self.optimizer = make_optimizer(self.transformer, task.settings)
        self.step = 0
        self.best: tuple[float, int] | None = None

    @classmethod
    def resumed(cls, place: Path, task: Task) -> Trainer:
        """Return the model of a run's checkpoint as it was when that was written.

        Raises:
            TrainingError: the run is finished, or began with other settings, another text, model or tokenizer.
            ModelError: the checkpoint is damaged.
        """
        state, checkpoint = read_state(place), read_folder(place)
        runs.refuse_another_course(place.parent, course_of(state, checkpoint), task.course())
        if state.step >= task.settings.steps:
            raise TrainingError(
                f"the run in {place.parent}",
                expected="steps that are left",
                given=f"a finished run, {state.step} of {task.settings.steps} steps",
                way_out=f"Its model is {place}; to train it further, begin a new run from it (--from).",
                path=place.parent,
                step=state.step,
                checkpoint=place,
            )
        weights = parameters(checkpoint.config, checkpoint.tensors)
        trainer = cls(own_copy(Transformer.from_parameters(checkpoint.config, weights)), task)
        restore_optimizer(trainer.transformer, trainer.optimizer, _read_optimizer(place))
        trainer.step = state.step
        if state.best_validation_loss is not None and state.best_step is not None:
            trainer.best = state.best_validation_loss, state.best_step
        return trainer

    @property
    def tokens_a_step(self) -> int:
        """How many next tokens one update learns from."""
        return self.settings.batch * self.settings.accumulate * self.context

    def advance(self) -> LogRow:
        """Make one update and return its row.

        Raises:
            NotFiniteError: the loss, the gradient's norm or the validation loss is NaN or infinite.
        """
        began = time.perf_counter()
        rate = self.settings.learning_rate_at(self.step)
        loss, norm = self._update(rate)
        seconds = time.perf_counter() - began
        self.step += 1
        validation = self.validation_loss() if self.settings.validates_after(self.step) else None
        if validation is not None and (self.best is None or validation < self.best[0]):
            self.best = validation, self.step
        speed = round(self.tokens_a_step / seconds, 1)
        return LogRow(self.step, self.step * self.tokens_a_step, loss, validation, rate, norm, speed)

    def _update(self, rate: float) -> tuple[float, float]:
        """Move the weights once; return the loss before, and the norm of its gradient before it was clipped."""
        settings, device = self.settings, self.task.hardware.device
        ids = self.task.corpus.batch(self.step, settings.batch * settings.accumulate, self.context, settings.seed)
        total = torch.zeros((), device=device)
        for part in ids.reshape(settings.accumulate, settings.batch, -1):  # batch context+1
            loss = self._loss(torch.from_numpy(part)) / settings.accumulate
            torch.autograd.backward(loss)
            total += loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(self.transformer.parameters(), settings.clip or math.inf)
        loss_before, norm_before = torch.stack((total, norm)).tolist()  # one wait for the device
        for what, value in (("loss", loss_before), ("gradient's norm", norm_before)):
            if not math.isfinite(value):
                raise NotFiniteError(f"the {what} of step {self.step + 1}", value)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss_before, norm_before

    def _loss(self, ids: Tensor) -> Tensor:
        hardware = self.task.hardware
        return next_token_loss(self.transformer, ids.to(hardware.device), bfloat16=hardware.bfloat16)

    @torch.no_grad()
    def validation_loss(self) -> float:
        """Return the mean loss over the validation windows, in nats per token.

        Raises:
            NotFiniteError: it is NaN or infinite.
        """
        windows = self.task.corpus.windows(self.context, self.settings.validate_windows)
        total = 0.0
        for first in range(0, len(windows), self.settings.batch):
            part = windows[first : first + self.settings.batch].astype("int64")
            total += self._loss(torch.from_numpy(part)).item() * len(part)
        mean = total / len(windows)
        if not math.isfinite(mean):
            raise NotFiniteError(f"the validation loss of step {self.step}", mean)
        return mean

    def check_weights(self) -> None:
        """Refuse to keep weights that are no numbers: an update can overflow after a loss that did not.

        Raises:
            NotFiniteError: a weight is NaN or infinite.
        """
        for name, weight in self.transformer.named_parameters():
            largest = weight.detach().abs().amax().item()  # NaN if any is
            if not math.isfinite(largest):
                raise NotFiniteError(f"the weights {name} after step {self.step}", largest)

    def state(self, validation_loss: float | None) -> State:
        """Return where the run stands, for its checkpoint."""
        best_loss, best_step = self.best or (None, None)
        return State(
            step=self.step,
            settings=self.settings.to_json(),
            device=self.task.hardware.device.type,
            precision=self.task.hardware.precision,
            corpus=self.task.corpus.checksum,
            train_tokens=len(self.task.corpus.train),
            validation_tokens=len(self.task.corpus.validation),
            config=asdict(self.transformer.config),
            validation_loss=validation_loss,
            best_validation_loss=best_loss,
            best_step=best_step,
            torch=str(torch.__version__),
        )

    def write(self, folder: Path) -> None:
        """Write the model and the optimizer into a folder.

        Raises:
            OSError: the folder cannot be written, as with the next.
            SafetensorError: a file of weights cannot be written.
        """
        write_folder(folder, self.transformer, self.task.tokenizer)
        place = folder / runs.OPTIMIZER
        place.parent.mkdir()
        save_file(optimizer_tensors(self.transformer, self.optimizer), place)


def own_copy(transformer: Transformer) -> Transformer:
    """Return a copy in memory of its own: weights read from a file are views of it, and may be stored transposed."""
    copied = copy.deepcopy(transformer)
    for weight in copied.parameters():
        weight.data = weight.data.float().clone(memory_format=torch.contiguous_format)
    return copied


def _read_optimizer(checkpoint: Path) -> dict[str, Tensor]:
    path = checkpoint / runs.OPTIMIZER
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise TrainingError(
            f"{path}",
            expected="a whole safetensors file",
            given=f"a damaged one ({error})",
            way_out="Move this checkpoint away; an older one may be whole.",
            path=path,
        ) from error
