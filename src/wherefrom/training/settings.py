"""How a model is trained (floor 5): every knob of a run, checked at the door, and the learning rate of each step.

Takes checks and errors from below. Gives `Settings` to the trainer, and to the run's checkpoints, which keep them. No
torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from wherefrom.checks import check_items, whole
from wherefrom.errors import InputError

PRECISIONS = ("auto", "float32", "bfloat16")
WARMUP_SHARE, MOST_WARMUP = 10, 100  # unless told, a tenth of the run, at most 100 steps
LEAST = {"steps": 1, "batch": 1, "accumulate": 1, "seed": 0, "validate_every": 1, "checkpoint_every": 1, "keep": 1}
MOST_STEPS = 10**8 - 1  # a checkpoint's name has eight digits
MOST_SEED = 2**63 - 1
MOST_WINDOWS = 10**9  # no memory holds so many, but their number can be computed with
MAY_CHANGE = ("validate_every", "validate_windows", "checkpoint_every", "keep")
"""What a resumed run may set anew: when it looks and what it keeps does not change where it goes."""


@dataclass(frozen=True)
class Settings:
    """The knobs of a run; the defaults suit a model of some million weights on a text of some megabytes.

    Attributes:
        steps: updates of the weights in the whole run.
        batch: windows that are read side by side.
        context: tokens of a window; None is the model's context, which it cannot exceed.
        accumulate: such batches per update; their gradients are averaged, so 4 x 8 windows teach what 1 x 32 do.
        learning_rate: its peak.
        warmup: steps before the peak; unless given a tenth of the run, at most 100.
        final_share: of the peak, at the last step.
        weight_decay: on the matrices of the linear maps; embeddings, norms and biases have none.
        betas: AdamW's two averages.
        clip: the gradient's norm over all weights is cut to this; None leaves it.
        seed: of the drawn windows, and of the first weights where a configuration is trained from nothing.
        precision: "float32"; "bfloat16" (matrix products alone, by autocast); "auto" is bfloat16 on a CUDA
            device that has it, else float32.
        device: a torch device ("cpu", "cuda", "cuda:1", "mps"); "auto" is cuda if there is one, else cpu.
        validate_every: steps between two validation losses; the last step always has one.
        validate_windows: how many windows of the validation text are read for it; None is all.
        checkpoint_every: steps between two checkpoints; the last step always has one.
        keep: how many checkpoints stay: the newest, then the one with the lowest validation loss, then newer ones.

    Raises:
        InputError: a value out of range; ``field`` and ``value`` say which.
    """

    steps: int = 2000
    batch: int = 32
    context: int | None = None
    accumulate: int = 1
    learning_rate: float = 1e-3
    warmup: int | None = None
    final_share: float = 0.1
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.99)
    clip: float | None = 1.0
    seed: int = 0
    precision: str = "auto"
    device: str = "auto"
    validate_every: int = 250
    validate_windows: int | None = None
    checkpoint_every: int = 250
    keep: int = 2

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            self._whole(name, least)
        self._require("steps", self.steps <= MOST_STEPS, f"at most {MOST_STEPS:,}")
        self._require("seed", self.seed <= MOST_SEED, "a whole number from 0 to 2^63 - 1")
        for name in ("batch", "accumulate"):
            self._require(name, getattr(self, name) <= MOST_WINDOWS, f"at most {MOST_WINDOWS:,}")
        if self.warmup is not None:
            self._whole("warmup", 0)
            self._require("warmup", self.warmup < self.steps, f"fewer than the {self.steps} steps")
        for name in ("context", "validate_windows"):
            if getattr(self, name) is not None:
                self._whole(name, 1)
        self._number("learning_rate", "a number above 0", lambda value: value > 0)
        self._number("final_share", "a share from 0 to 1", lambda value: 0 <= value <= 1)
        self._number("weight_decay", "a number from 0 up", lambda value: value >= 0)
        if self.clip is not None:
            self._number("clip", "a number above 0, or None", lambda value: value > 0)
        way_out = "(0.9, 0.99) is the default."
        betas = check_items("betas", self.betas, expected="two shares", way_out=way_out)
        self._require("betas", len(betas) == 2 and all(_share(beta) for beta in betas), "two shares from 0 to below 1")
        object.__setattr__(self, "betas", betas)
        self._require("precision", self.precision in PRECISIONS, f"one of {', '.join(PRECISIONS)}")
        self._require("device", isinstance(self.device, str) and self.device != "", 'a device, such as "auto" or "cpu"')

    def _whole(self, name: str, least: int) -> None:
        way_out = f"The default is {self._default(name)}."
        object.__setattr__(self, name, whole(name, getattr(self, name), least=least, way_out=way_out))

    def _number(self, name: str, expected: str, holds: Any) -> None:
        value = getattr(self, name)
        self._require(name, _finite(value) and holds(value), expected)

    def _require(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            value, way_out = getattr(self, name), f"The default is {self._default(name)}."
            raise InputError(name, expected=expected, given=repr(value), way_out=way_out, field=name, value=value)

    @classmethod
    def _default(cls, name: str) -> str:
        if name == "warmup":
            return f"a tenth of the steps, at most {MOST_WARMUP}"
        return repr(next(field.default for field in fields(cls) if field.name == name))

    @property
    def warmup_steps(self) -> int:
        """Steps before the peak of the learning rate."""
        return min(MOST_WARMUP, self.steps // WARMUP_SHARE) if self.warmup is None else self.warmup

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of the update numbered `step`, from 0.

        It rises in a straight line to its peak at step `warmup`, then falls along half a cosine to its final share at
        the last step (Loshchilov and Hutter 2017, one cycle without restarts).
        """
        warmup = self.warmup_steps
        if step < warmup:
            return self.learning_rate * (step + 1) / (warmup + 1)
        done = min(1.0, (step - warmup) / max(1, self.steps - 1 - warmup))
        share = self.final_share + (1 - self.final_share) * (1 + math.cos(math.pi * done)) / 2
        return self.learning_rate * share

    def validates_after(self, step: int) -> bool:
        """Whether the validation loss is measured after so many updates."""
        return step % self.validate_every == 0 or step == self.steps

    def checkpoints_after(self, step: int) -> bool:
        """Whether a checkpoint is written after so many updates."""
        return step % self.checkpoint_every == 0 or step == self.steps

    def course(self) -> dict[str, Any]:
        """Return the settings that the weights depend on; device and precision only as they were asked for."""
        return {
            **{name: value for name, value in asdict(self).items() if name not in MAY_CHANGE},
            "warmup": self.warmup_steps,
            "betas": list(self.betas),
        }

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON has them, for `from_json` to read."""
        return {**asdict(self), "betas": list(self.betas)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Settings:
        """Return the settings that `to_json` gave.

        Raises:
            InputError: a name that is no setting, or a value out of range.
        """
        known = {field.name for field in fields(cls)}
        for name in content:
            if name not in known:
                raise InputError(
                    "the settings",
                    expected=f"names among {', '.join(sorted(known))}",
                    given=repr(name),
                    way_out="Leave it out.",
                    field=name,
                )
        return cls(**content)


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _share(value: object) -> bool:
    return _finite(value) and isinstance(value, int | float) and 0 <= value < 1
