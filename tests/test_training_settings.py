"""The settings of a run: the learning rate by hand, what is refused, what a resumed run may change."""

from __future__ import annotations

import json
import math
import re
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wherefrom.errors import InputError
from wherefrom.training.settings import MAY_CHANGE, Settings


def test_the_learning_rate_by_hand() -> None:
    settings = Settings(steps=13, warmup=4, learning_rate=1.0, final_share=0.2)
    rates = [settings.learning_rate_at(step) for step in range(13)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0], abs=1e-15)
    # half a cosine from 1 to 0.2 over the eight steps from 4 to 12: its quarters
    high, low = 0.6 + 0.4 * math.sqrt(0.5), 0.6 - 0.4 * math.sqrt(0.5)
    assert [rates[6], rates[8], rates[10], rates[12]] == pytest.approx([high, 0.6, low, 0.2], abs=1e-15)
    assert settings.learning_rate_at(99) == pytest.approx(0.2, abs=1e-15)


@given(st.integers(1, 300), st.integers(0, 299), st.floats(0, 1))
def test_the_learning_rate_rises_then_falls(steps: int, warmup: int, final_share: float) -> None:
    warmup %= steps
    settings = Settings(steps=steps, warmup=warmup, learning_rate=3e-4, final_share=final_share)
    rates = [settings.learning_rate_at(step) for step in range(steps)]
    assert rates[: warmup + 1] == sorted(rates[: warmup + 1])
    assert rates[warmup:] == sorted(rates[warmup:], reverse=True)
    assert rates[warmup] == pytest.approx(3e-4, abs=1e-18)
    if warmup < steps - 1:
        assert rates[-1] == pytest.approx(3e-4 * final_share, abs=1e-18)


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (9, 0), (10, 1), (999, 99), (1000, 100), (50_000, 100)])
def test_the_warmup_unless_given(steps: int, warmup: int) -> None:
    assert Settings(steps=steps).warmup_steps == warmup
    assert Settings(steps=steps, warmup=0).warmup_steps == 0


def test_the_last_step_is_always_looked_at_and_kept() -> None:
    settings = Settings(steps=10, validate_every=4, checkpoint_every=3)
    assert [step for step in range(1, 11) if settings.validates_after(step)] == [4, 8, 10]
    assert [step for step in range(1, 11) if settings.checkpoints_after(step)] == [3, 6, 9, 10]


WRONG: list[tuple[str, Any, str]] = [
    ("steps", 0, "steps: expected a whole number from 1 up, got 0. The default is 2000."),
    ("steps", 10**8, "steps: expected at most 99,999,999, got 100000000."),
    ("batch", 1.5, "batch: expected a whole number from 1 up, got 1.5. The default is 32."),
    ("accumulate", True, "accumulate: expected a whole number from 1 up, got True."),
    ("context", 0, "context: expected a whole number from 1 up, got 0. The default is None."),
    ("seed", 2**63, "seed: expected a whole number from 0 to 2^63 - 1, got 9223372036854775808. The default is 0."),
    ("batch", 10**9 + 1, "batch: expected at most 1,000,000,000, got 1000000001. The default is 32."),
    ("accumulate", 10**20, "accumulate: expected at most 1,000,000,000, got 100000000000000000000."),
    ("seed", -1, "seed: expected a whole number from 0 up, got -1. The default is 0."),
    ("validate_every", 0, "validate_every: expected a whole number from 1 up, got 0. The default is 250."),
    ("validate_windows", 0, "validate_windows: expected a whole number from 1 up, got 0. The default is None."),
    ("checkpoint_every", "7", "checkpoint_every: expected a whole number from 1 up, got '7'."),
    ("keep", 0, "keep: expected a whole number from 1 up, got 0. The default is 2."),
    ("warmup", 2000, "warmup: expected fewer than the 2000 steps, got 2000. The default is a tenth of the steps, at"),
    ("warmup", -1, "warmup: expected a whole number from 0 up, got -1."),
    ("learning_rate", 0, "learning_rate: expected a number above 0, got 0. The default is 0.001."),
    ("learning_rate", float("nan"), "learning_rate: expected a number above 0, got nan."),
    ("learning_rate", "1e-3", "learning_rate: expected a number above 0, got '1e-3'."),
    ("final_share", 1.1, "final_share: expected a share from 0 to 1, got 1.1. The default is 0.1."),
    ("weight_decay", -0.1, "weight_decay: expected a number from 0 up, got -0.1. The default is 0.1."),
    ("weight_decay", float("inf"), "weight_decay: expected a number from 0 up, got inf."),
    ("betas", (0.9,), "betas: expected two shares from 0 to below 1, got (0.9,). The default is (0.9, 0.99)."),
    ("betas", (0.9, 1.0), "betas: expected two shares from 0 to below 1, got (0.9, 1.0)."),
    ("betas", 0.9, "betas: expected two shares, got 0.9."),
    ("clip", 0, "clip: expected a number above 0, or None, got 0. The default is 1.0."),
    (
        "precision",
        "float16",
        "precision: expected one of auto, float32, bfloat16, got 'float16'. The default is 'auto'.",
    ),
    ("device", "", "device: expected a device, such as \"auto\" or \"cpu\", got ''. The default is 'auto'."),
    ("device", None, 'device: expected a device, such as "auto" or "cpu", got None.'),
]


@pytest.mark.parametrize(("name", "value", "sentence"), WRONG, ids=[f"{name}={value}" for name, value, _ in WRONG])
def test_a_setting_out_of_range(name: str, value: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)) as caught:
        Settings(**{name: value})
    assert caught.value.facts["value"] == value or value != value


def test_settings_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().steps = 3


def test_settings_survive_json() -> None:
    settings = Settings(steps=7, betas=[0.5, 0.6], clip=None, warmup=3, validate_windows=4)
    assert settings.betas == (0.5, 0.6)
    assert Settings.from_json(json.loads(json.dumps(settings.to_json()))) == settings
    with pytest.raises(InputError, match=r"the settings: expected names among accumulate, .*, got 'dropout'"):
        Settings.from_json({"steps": 7, "dropout": 0.1})


def test_the_course_is_every_setting_but_those_that_may_change() -> None:
    assert set(Settings().course()) == {field.name for field in fields(Settings)} - set(MAY_CHANGE)
    assert Settings(steps=500).course() == Settings(steps=500, warmup=50, keep=9, validate_every=3).course()
    assert Settings(steps=500).course() != Settings(steps=500, warmup=51).course()
    assert json.loads(json.dumps(Settings().course())) == Settings().course()
