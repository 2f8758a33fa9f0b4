"""Where a run stands at a checkpoint (floor 5): its ``training.json``, checked when it is read. No torch."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from wherefrom.errors import TrainingError

FORMAT = 1
STATE = "training.json"


@dataclass(frozen=True)
class State:
    """Where a run stands at a checkpoint, and what it must go on with: the content of ``training.json``.

    Attributes:
        step: how many updates have been made.
        settings: all of them, as `Settings.to_json` gives them.
        device: what "auto" came to: the kind of device.
        precision: what "auto" came to.
        corpus: the checksum of the tokens.
        train_tokens: how many of them are trained on.
        validation_tokens: how many are held out.
        config: the model's.
        validation_loss: in nats per token, if it was measured at this very step.
        best_validation_loss: the lowest one of the run so far.
        best_step: when that was.
        torch: the version that computed it; another may round otherwise.
        files: every other file's size in bytes, which tells a copy that is cut short.
        format: of this file.
    """

    step: int
    settings: dict[str, Any]
    device: str
    precision: str
    corpus: str
    train_tokens: int
    validation_tokens: int
    config: dict[str, Any]
    validation_loss: float | None
    best_validation_loss: float | None
    best_step: int | None
    torch: str
    files: dict[str, int] = field(default_factory=dict)
    format: int = FORMAT


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _loss(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


FIELDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("step", "train_tokens", "validation_tokens"), ("a whole number from 1 up", _whole)),
    **dict.fromkeys(("settings", "config", "files"), ("an object", lambda value: isinstance(value, dict))),
    **dict.fromkeys(("device", "precision", "corpus", "torch"), ("a text", lambda value: isinstance(value, str))),
    **dict.fromkeys(("validation_loss", "best_validation_loss"), ("a number, or null", _loss)),
    "best_step": ("a whole number, or null", lambda value: value is None or _whole(value)),
}
"""What a field of ``training.json`` is, and whether a value is that."""


def read_state(checkpoint: Path) -> State:
    """Return the state that a checkpoint was written with.

    Raises:
        TrainingError: ``training.json`` is missing, damaged, or of another format.
    """
    path = checkpoint / STATE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _no_state(path, "the state of a training run", f"none that can be read ({error})") from error
    names = {part.name for part in fields(State)}
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        given = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise _no_state(path, f"format {FORMAT}", f"{given!r}")
    if set(content) != names:
        raise _no_state(path, "its own fields", f"others ({', '.join(sorted(set(content) ^ names))})")
    for name, (expected, holds) in FIELDS.items():
        if not holds(content[name]):
            raise _no_state(path, f"{expected} as {name}", f"{content[name]!r}"[:60])
    if f"step-{content['step']:08}" != checkpoint.name:
        raise _no_state(path, f"the state of {checkpoint.name}", f"that of step {content['step']}")
    return State(**content)


def _no_state(path: Path, expected: str, given: str) -> TrainingError:
    way_out = "Move this checkpoint away; an older one may be whole."
    return TrainingError(f"{path}", expected=expected, given=given, way_out=way_out, path=path)
