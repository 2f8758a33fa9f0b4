"""The census: every config type of the installed transformers, each as cases that are made, run and compared."""

from __future__ import annotations

import gc
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor
from transformers import CONFIG_MAPPING, PreTrainedModel

from .compared import Recorded, apart, difference, record
from .configs import CannotBuildError, build, model_classes, short
from .inputs import Found, find
from .reference import Reference, eager, run

WEIGHTS_AGREE = 2e-5
OUTPUTS_AGREE = 1e-4
"""Of the largest number of an output: what two kernels may differ by after some layers."""
SECONDS = 60

NO_SHARE = "its eager function returns weights as if there were no sink; the sink's share is in its outputs"
BOOL_ADDED = "under eager attention its bool mask is added to the scores, as 1 and 0; sdpa reads it as a mask"
NOT_OF_FLOATS = "under eager attention it takes the logical_not of a mask of floats, and computes NaN; sdpa is right"
UNSOUND = {
    "granite_swa": NO_SHARE,
    "granitemoe_swa": NO_SHARE,
    "grounding-dino": BOOL_ADDED,
    "mm-grounding-dino": BOOL_ADDED,
    "nemotron_asr_streaming": NOT_OF_FLOATS,
    "nemotron_asr_streaming_encoder": NOT_OF_FLOATS,
    "nemotron3_5_asr": NOT_OF_FLOATS,
}
"""Types whose eager weights are no reference, and why. Their outputs are compared alone: with those of sdpa, and with
eager's where only the weights are wrong."""
READS_A_PAD = {("pe_audio", "left"): "it reads a text off at its first token, here a pad that may read nothing"}
"""Outputs that say nothing: of rows that two implementations may fill as they like."""


@dataclass(frozen=True)
class Case:
    """One model class of a config type.

    Attributes:
        type_name: the config's type.
        part: the model's class; "" where there is none.
        make: builds the model and finds its inputs; raises CannotBuildError with the reason why not.
        reference: runs it with eager attention on some inputs, and returns its weights call by call.
        unsound: why its eager weights are no reference; None where they are.
    """

    type_name: str
    part: str
    make: Callable[[], tuple[PreTrainedModel, Found]]
    reference: Callable[[PreTrainedModel, dict[str, Any]], Reference]
    unsound: str | None = None


@dataclass(frozen=True)
class Result:
    """What came of a case.

    Attributes:
        type_name: the config's type.
        part: the model's class.
        calls: executions that were recorded, of one text.
        eager: executions of eager attention functions in the same pass.
        weights: the largest difference of a weight, over all inputs; None where it was not compared.
        output: how far the outputs lie apart, relative to their largest number; None where there are none.
        inputs: the names of the inputs, and the sides on which two texts were padded.
        past: attention that passes by the interface: its kind, by the module's path with numbers replaced.
        unsound: why eager weights are no reference.
        note: what is to be known beside, such as that eager attention and sdpa compute different things.
        failure: what is wrong with the recording, or why it was refused; "" if nothing.
        missing: why the model was not built, or does not run; "" if it was and does.
    """

    type_name: str
    part: str
    calls: int = 0
    eager: int = 0
    weights: float | None = None
    output: float | None = None
    inputs: tuple[str, ...] = ()
    past: dict[str, str] = field(default_factory=dict)
    unsound: str = ""
    note: str = ""
    failure: str = ""
    missing: str = ""

    @property
    def exact(self) -> bool:
        """Whether every recorded weight is that of eager attention, and so is the output."""
        return not self.failure and not self.missing and self.calls > 0 and self.weights is not None


def types() -> list[str]:
    """Return all config types, in the order of the alphabet."""
    return sorted(CONFIG_MAPPING.keys())


def cases(names: Sequence[str] | None = None) -> Iterator[Case]:
    """Yield the cases of some config types, of all unless given."""
    for name in types() if names is None else names:
        try:
            classes = model_classes(name)
        except CannotBuildError as error:
            yield Case(name, "", partial(_refuse, error), eager)
            continue
        for cls in classes:
            yield Case(name, cls.__name__, partial(_make, name, cls), eager, UNSOUND.get(name))


def _refuse(error: CannotBuildError) -> tuple[PreTrainedModel, Found]:
    raise error


def _make(name: str, cls: type[PreTrainedModel]) -> tuple[PreTrainedModel, Found]:
    """Return a model and its inputs, with grouped heads if it can have them."""
    try:
        model = build(name, cls)
        return model, find(model, partial(run, model))
    except CannotBuildError:
        model = build(name, cls, grouped=False)
        return model, find(model, partial(run, model))


@contextmanager
def _limited(seconds: int) -> Iterator[None]:
    """Raise CannotBuildError where what is inside takes longer."""

    def stop(*_: object) -> None:
        raise CannotBuildError(f"took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def examine(case: Case, *, seconds: int = SECONDS) -> Result:
    """Return what comes of a case: built, run, recorded, compared with its eager attention and with sdpa.

    Args:
        case: the case.
        seconds: the time that it may take; beyond that it counts as one that cannot be run.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with _limited(seconds):
                model, found = case.make()
                return _compared(case, model, found)
        except CannotBuildError as error:
            return Result(case.type_name, case.part, missing=str(error))
        finally:
            gc.collect()


class _Findings:
    """What comparing a case's recordings finds, one input after the other."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.weights: list[float] = []
        self.outputs: list[float] = []
        self.failures: list[str] = []
        self.note = ""

    def with_weights(self, what: str, recorded: Recorded, reference: Reference, padding: Any = None) -> None:
        """Compare weights, where eager weights are a reference."""
        if self.case.unsound is None:
            self.weights.append(difference(recorded, reference, padding))
            if not self.weights[-1] <= WEIGHTS_AGREE:
                self.failures.append(f"{what}: weights differ by {self.weights[-1]:.1e}")

    def with_output(self, what: str, recorded: Recorded, output: tuple[Tensor, ...], padding: Any = None) -> None:
        """Compare outputs, where both say something."""
        if (self.case.type_name, what) not in READS_A_PAD:
            self.outputs.append(apart(recorded.output, output, padding))
            if not self.outputs[-1] <= OUTPUTS_AGREE:
                self.failures.append(f"{what}: outputs differ by {self.outputs[-1]:.1e}")

    def with_eager(self, what: str, recorded: Recorded, reference: Reference, padding: Any = None) -> None:
        """Compare a recording with eager attention."""
        self.with_weights(what, recorded, reference, padding)
        if self.case.unsound in (None, NO_SHARE):
            self.with_output(what, recorded, reference.output, padding)

    def with_sdpa(self, model: PreTrainedModel, inputs: dict[str, Any], reference: Reference) -> None:
        """Record once more as users load models, with sdpa where a model supports it, and compare with that."""
        try:
            model.set_attn_implementation("sdpa")
            expected = run(model, inputs)
        except Exception:
            return
        recorded = record(model, inputs)
        far = apart(expected, reference.output)
        if self.case.unsound is None and not far <= OUTPUTS_AGREE:
            self.note = f"eager attention and sdpa compute different things (outputs differ by {far:.2f}); "
            as_sdpa = apart(recorded.output, expected) <= OUTPUTS_AGREE
            self.note += "a model loaded with sdpa is recorded as " + ("it is" if as_sdpa else "eager attention has it")
            if not as_sdpa:
                self.with_eager("sdpa", recorded, reference)
            return
        self.with_output("sdpa", recorded, expected)
        self.with_weights("sdpa", recorded, reference)


def _compared(case: Case, model: PreTrainedModel, found: Found) -> Result:
    names = (*found.alone, *(f"padded {side}" for side in found.padded))
    reference = case.reference(model, found.alone)
    findings = _Findings(case)
    try:
        recorded = record(model, found.alone)
        findings.with_eager("alone", recorded, reference)
        for side, inputs in found.padded.items():
            findings.with_eager(
                side, record(model, inputs), case.reference(model, inputs), padding=inputs["attention_mask"]
            )
        findings.with_sdpa(model, found.alone, reference)
        if recorded.calls and not findings.outputs:
            findings.failures.append("nothing that it could be compared with")
    except CannotBuildError:  # it took too long
        raise
    except Exception as error:  # a case says what is wrong with it, and the census goes on
        return Result(
            case.type_name, case.part, eager=len(reference.calls), inputs=names, failure=short(error, most=400)
        )
    return Result(
        case.type_name,
        case.part,
        calls=len(recorded.calls),
        eager=len(reference.calls),
        weights=max(findings.weights) if findings.weights and recorded.calls else None,
        output=max(findings.outputs, default=None),
        inputs=names,
        past={
            ".".join("*" if one.isdigit() else one for one in gap.name.split(".")): gap.what for gap in recorded.gaps
        },
        unsound=case.unsound or "",
        note=findings.note,
        failure="; ".join(findings.failures),
    )
