"""The self-check: a recorder that was given a wrong number refuses, and one that was given right ones does not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import wherefrom
from wherefrom.attention import Mask
from wherefrom.capture import fused, selfcheck
from wherefrom.capture.fused import Attended, Limits, attend
from wherefrom.capture.recorder import Recorder
from wherefrom.capture.selfcheck import CEILING, Sample, check_samples, rows_to_check
from wherefrom.errors import RecordingError
from wherefrom.model.attention_function import Site
from wherefrom.recording import Call

TEXT = "A kernel that returns a wrong sum must not be believed."
Fault = Callable[[Attended], Attended]


def shifted(by: float) -> Fault:
    return lambda right: right._replace(lse=right.lse + by)


def with_lse(change: Callable[[Tensor], Tensor]) -> Fault:
    return lambda right: right._replace(lse=change(right.lse))


def with_row(row: int, factor: float) -> Fault:
    def change(right: Attended) -> Attended:
        output = right.output.clone()
        output[:, :, row] *= factor
        return right._replace(output=output)

    return change


def one_head_shifted(right: Attended) -> Attended:
    lse = right.lse.clone()
    lse[:, 4] += math.log(2)
    return right._replace(lse=lse)


FAULTS: dict[str, Fault] = {
    "lse in another base: ln 2 more": shifted(math.log(2)),
    "lse ln 2 less": shifted(-math.log(2)),
    "lse in bits": with_lse(lambda lse: lse / math.log(2)),
    "lse all zero": with_lse(torch.zeros_like),
    "lse NaN": with_lse(lambda lse: torch.full_like(lse, torch.nan)),
    "lse NaN in the last row": with_lse(lambda lse: torch.cat([lse[..., :-1], lse[..., -1:] * torch.nan], dim=-1)),
    "lse infinite": with_lse(lambda lse: torch.full_like(lse, torch.inf)),
    "lse of dead rows": with_lse(lambda lse: torch.full_like(lse, -torch.inf)),
    "lse of the row before": with_lse(lambda lse: torch.roll(lse, 1, dims=-1)),
    "lse padded in front": with_lse(lambda lse: torch.cat([torch.zeros_like(lse[..., :1]), lse[..., :-1]], dim=-1)),
    "lse padded behind": with_lse(lambda lse: torch.cat([lse[..., :-1], torch.zeros_like(lse[..., :1])], dim=-1)),
    "lse a little off": shifted(1e-3),
    "lse a little off, downward": shifted(-1e-3),
    "lse of one head": one_head_shifted,
    "lse of the next head": with_lse(lambda lse: torch.roll(lse, 1, dims=1)),
    "output of the first row": with_row(0, 1.05),
    "output of the last row": with_row(-1, 0.95),
    "output NaN": with_row(-1, math.nan),
    "output of the next head": lambda right: right._replace(output=torch.roll(right.output, 1, dims=1)),
}


def install(monkeypatch: pytest.MonkeyPatch, fault: Fault, *, calls: tuple[int, ...] | None = None) -> list[int]:
    """Put a faulty kernel in the recorder's place, for the given calls only; return the list of calls made."""
    made: list[int] = []

    def faulty(q: Tensor, k: Tensor, v: Tensor, *, limits: Limits, scale: float, **also: Any) -> Attended:
        made.append(len(made))
        right = attend(q, k, v, limits=limits, scale=scale, **also)
        return fault(right) if calls is None or made[-1] in calls else right

    monkeypatch.setattr(fused, "attend", faulty)
    return made


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_kernel_is_refused(small: wherefrom.LanguageModel, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    install(monkeypatch, FAULTS[name])
    with pytest.raises(RecordingError, match="the self-check of layer 0") as caught:
        wherefrom.record(small, TEXT)
    facts = caught.value.facts
    assert (facts["layer"], facts["name"], facts["kernel"]) == (0, "blocks.0.attention", "torch flash, CPU")
    worst = max(facts["sum_error"], facts["output_error"], key=lambda error: math.inf if error != error else error)
    assert not worst <= facts["tolerance"]
    assert caught.value.layer == 0  # facts are attributes, too


def test_the_error_is_the_size_of_the_fault(small: wherefrom.LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    for shift in (math.log(2), -math.log(2), 1e-3):
        install(monkeypatch, shifted(shift))
        with pytest.raises(RecordingError) as caught:
            wherefrom.record(small, TEXT)
        assert caught.value.facts["sum_error"] == pytest.approx(abs(math.exp(-shift) - 1), rel=0.02)
        assert caught.value.facts["tolerance"] < 1e-4


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_a_fault_in_one_layer_only(small: wherefrom.LanguageModel, monkeypatch: pytest.MonkeyPatch, layer: int) -> None:
    made = install(monkeypatch, shifted(math.log(2)), calls=(layer,))
    with pytest.raises(RecordingError) as caught:
        wherefrom.record(small, TEXT)
    assert made == [0, 1, 2]
    assert caught.value.facts["layer"] == layer
    assert caught.value.facts["name"] == f"blocks.{layer}.attention"


def test_a_fault_while_writing(small: wherefrom.LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, shifted(math.log(2)), calls=(3 * 5 + 1,))  # of the prompt and four tokens all is well
    with pytest.raises(RecordingError) as caught:
        wherefrom.record_generation(small, TEXT, max_tokens=9, stop_ids=())
    assert caught.value.facts["layer"] == 1


def test_a_wrapper_that_changes_nothing_passes(small: wherefrom.LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    made = install(monkeypatch, shifted(0.0))
    recording = wherefrom.record(small, TEXT)
    assert made == [0, 1, 2]
    for call in recording.calls:
        (check,) = call.checks
        assert 0 < max(check.sum_error, check.output_error) <= check.tolerance < 1e-4
        assert check.rows == tuple(rows_to_check(len(recording), call.layer))


SITE = Site(5, "blocks.5.attention")


def arrays(dtype: torch.dtype, *, rows: int = 41, factor: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(8)
    shapes = (6, rows, 64), (2, rows, 64), (2, rows, 64)
    q, k, v = (torch.randn(1, *shape, generator=generator) for shape in shapes)
    return (factor * q).to(dtype), k.to(dtype), v.to(dtype)


def recorded(q: Tensor, k: Tensor, v: Tensor) -> Call:
    """One call, recorded; what fails its check is refused before it is handed out."""
    recorder = Recorder(1, q.shape[2])
    recorder(q, k, v, mask=Mask(), scale=0.125, site=SITE)
    (call,) = recorder.calls()
    return call


@pytest.mark.parametrize("factor", [0.0, 1.0, 30.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rows", [1, 2, 41, 700])
def test_honest_numbers_pass_in_any_format(dtype: torch.dtype, factor: float, rows: int) -> None:
    (check,) = recorded(*arrays(dtype, rows=rows, factor=factor)).checks
    assert check.sum_error <= check.tolerance
    assert check.output_error <= check.tolerance <= CEILING


@pytest.mark.parametrize("factor", [1.0, 30.0, 1e4, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shift", [math.log(2), -math.log(2)])
def test_ln_2_never_passes(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, factor: float, shift: float) -> None:
    install(monkeypatch, shifted(shift))
    with pytest.raises(RecordingError) as caught:
        recorded(*arrays(dtype, factor=factor))
    assert caught.value.facts["layer"] == 5
    infinite = factor == 1e6 and dtype == torch.float16  # whose largest number is 65,504
    assert ("position" in caught.value.facts) == infinite
    assert infinite or caught.value.facts["tolerance"] <= 0.05  # however large the scores are


def test_a_small_shift_is_refused_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, shifted(1e-3))
    with pytest.raises(RecordingError):
        recorded(*arrays(torch.float32))


@pytest.mark.parametrize("destinations", [1, 2, 3, 4, 1000])
def test_rows_to_check(destinations: int) -> None:
    chosen = [rows_to_check(destinations, layer) for layer in range(60)]
    for rows in chosen:
        assert rows == sorted(set(rows))
        assert set(rows) <= set(range(destinations))
        assert {0, destinations - 1} <= set(rows)
        assert len(rows) <= 3
    if destinations == 1000:
        assert len({row for rows in chosen for row in rows}) > 50  # the layers look at different rows


def dead_row() -> tuple[dict[str, Tensor], Mask]:
    """A call whose last destination may read nothing in heads 1 and 3."""
    allowed = np.tril(np.ones((4, 7, 7), dtype=bool))
    allowed[1, 6] = allowed[3, 6] = False
    generator = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(1, heads, 7, 8, generator=generator) for heads in (4, 2, 2))
    mask = Mask(causal=False, explicit=allowed)
    y, lse, _ = attend(q, k, v, limits=Limits.of_mask(mask, 7, 7, q), scale=0.3)
    return {"q": q, "k": k, "v": v, "y": y, "lse": lse}, mask


def check(given: dict[str, Tensor], mask: Mask) -> None:
    check_scaled(given, mask, 0.3)


def check_scaled(given: dict[str, Tensor], mask: Mask, scale: float) -> None:
    """Check one call, all of it at hand."""
    q, k, v, y, lse = (given[name] for name in ("q", "k", "v", "y", "lse"))
    sample = Sample.of(Attended(y, lse, "a kernel"), mask=mask, scale=scale, site=SITE)
    rows = list(sample.rows)
    check_samples([sample], q[:, :, rows], k, v, lse[:, :, rows])


def test_a_dead_row_is_accepted_when_it_is_marked() -> None:
    given, mask = dead_row()
    assert given["lse"][0, 1, 6] == -torch.inf
    check(given, mask)


@pytest.mark.parametrize("value", [0.0, 1.0, math.nan, math.inf])
def test_a_dead_row_that_is_not_marked(value: float) -> None:
    given, mask = dead_row()
    given["lse"][0, 3, 6] = value
    with pytest.raises(RecordingError, match="layer 5"):
        check(given, mask)


def test_a_dead_row_with_an_output() -> None:
    given, mask = dead_row()
    given["y"][0, 3, 6, 2] = 0.5
    with pytest.raises(RecordingError):
        check(given, mask)


def test_a_living_row_that_is_marked_dead() -> None:
    given, mask = dead_row()
    given["lse"][0, 2, 6] = -torch.inf
    with pytest.raises(RecordingError):
        check(given, mask)


def test_another_mask_than_the_kernel_used() -> None:
    given, mask = dead_row()
    assert mask.explicit is not None
    allowed = mask.explicit.copy()
    allowed[0, 6, 3] = False
    with pytest.raises(RecordingError):
        check(given, replace(mask, explicit=allowed))
    check(given, replace(mask, explicit=mask.explicit))


def test_another_scale_than_the_kernel_used() -> None:
    given, mask = dead_row()
    with pytest.raises(RecordingError):
        check_scaled(given, mask, 0.31)


@pytest.mark.parametrize("which", ["q", "k", "v"])
def test_a_model_that_computes_nan(which: str) -> None:
    numbers = dict(zip("qkv", arrays(torch.float32), strict=True))
    numbers[which][0, 1, 0, 3] = torch.nan
    with pytest.raises(RecordingError):
        recorded(**numbers)


@pytest.mark.parametrize("numbers", [1, 400, 2**19])
@pytest.mark.parametrize("faulty", [None, 0, 1, 2])
def test_calls_side_by_side_are_each_checked(
    small: wherefrom.LanguageModel, monkeypatch: pytest.MonkeyPatch, numbers: int, faulty: int | None
) -> None:
    monkeypatch.setattr(selfcheck, "NUMBERS_AT_ONCE", numbers)  # one call at a time, some, all
    install(monkeypatch, shifted(0.01), calls=() if faulty is None else (faulty,))
    if faulty is None:
        checks = [call.checks for call in wherefrom.record(small, TEXT).calls]
        assert [len(found) for found in checks] == [1, 1, 1]
        errors = {(found[0].sum_error, found[0].output_error) for found in checks}
        assert len(errors) > 1  # each has errors of its own
        return
    with pytest.raises(RecordingError, match=f"layer {faulty} "):
        wherefrom.record(small, TEXT)


def test_layers_with_other_masks_are_checked_with_their_own() -> None:
    q, k, v = arrays(torch.float32)
    recorder = Recorder(3, 41)
    for layer, mask in ((4, Mask()), (6, Mask(window=5)), (9, Mask())):
        recorder(q, k, v, mask=mask, scale=0.125, site=Site(layer, f"l{layer}"))
    assert [(call.layer, call.mask.window, len(call.checks)) for call in recorder.calls()] == [
        (4, None, 1),
        (6, 5, 1),
        (9, None, 1),
    ]


class Elsewhere(Tensor):
    """A tensor on another device: what is made of it is there too, until it is brought here."""

    def cpu(self) -> Tensor:
        return self.as_subclass(Tensor)


def test_outputs_on_another_device_are_checked_in_cpu_memory() -> None:
    """Where q, k, v and lse are by then: a check that mixed devices would end a watched run on a GPU."""
    y = torch.randn(1, 2, 5, 3, generator=torch.Generator().manual_seed(1))
    there = Attended(y.as_subclass(Elsewhere), torch.zeros(1, 2, 5).as_subclass(Elsewhere), "a kernel")
    assert type(there.output[0][:, 1].float()) is Elsewhere
    sample = Sample.of(there, mask=Mask(), scale=1.0, site=SITE)
    assert type(sample.y) is Tensor
    assert torch.equal(sample.y, y[0][:, list(sample.rows)])
