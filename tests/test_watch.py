"""Watching a run: its figures are those of a recording, its table that of an unbroken run, and it changes nothing."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import wherefrom
from training_small import CORPUS, TEXT, TOKENIZER, StopError, bits, run, stopped
from wherefrom import Config, Corpus, InputError, TrainingError
from wherefrom.model.transformer import Transformer
from wherefrom.questions.figures import FIGURES
from wherefrom.training.log import LogRow
from wherefrom.training.loop import Trained, resume
from wherefrom.training.run import checkpoints
from wherefrom.training.watch import Watch, repeated_probe
from wherefrom.training.watched import COLUMNS, NAME, NAMES, Watched, read_rows, read_watched, rows_of

PROBE = repeated_probe(CORPUS, 14)
EVERY = 4
CONFIG = Config.decoder(layers=2, width=16, heads=2, vocabulary=257, context=16)
HOW: dict[str, Any] = {"model": CONFIG, "steps": 21, "checkpoint_every": 8, "keep": 9}
LOOKS = [1, 4, 8, 12, 16, 20]


def watched(folder: Path, *, every: int = EVERY, **how: Any) -> Trained:
    return run(folder, **HOW, how={"on_step": Watch(folder, PROBE, every), **how})


def table(folder: Path) -> str:
    return (folder / NAME).read_text()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return watched(tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture(scope="module")
def seen(whole: Trained) -> Watched:
    return read_watched(whole.checkpoint.parent)


@pytest.mark.parametrize("step", [8, 16])
def test_the_figures_are_those_of_a_recording(whole: Trained, seen: Watched, step: int) -> None:
    model = wherefrom.load(whole.checkpoint.parent / f"step-{step:08d}")
    recording = wherefrom.record(model, TOKENIZER.tokens_of(PROBE.tolist()))
    answer = wherefrom.heads(recording)
    asked = [row[2:-1] for row in answer.rows]
    at = LOOKS.index(step)
    assert tuple(column.name for column in answer.columns[2:-1]) == NAMES  # one name for a figure everywhere
    found = [[seen.figures[name][at, layer, head] for name in NAMES] for layer in (0, 1) for head in (0, 1)]
    np.testing.assert_allclose(found, asked, rtol=1e-6)
    assert len({round(value, 6) for value in seen.figures["entropy"][at].ravel()}) == 4  # of four heads


@pytest.mark.parametrize("step", [8, 16])
def test_the_losses_are_the_means_of_the_two_halves(whole: Trained, seen: Watched, step: int) -> None:
    model, half = wherefrom.load(whole.checkpoint.parent / f"step-{step:08d}"), len(PROBE) // 2
    with torch.inference_mode():
        logs = torch.log_softmax(model.transformer(torch.from_numpy(PROBE)[None])[0].double(), dim=-1)
    nats = [-float(logs[t - 1, PROBE[t]]) for t in range(1, 2 * half)]  # row t - 1 predicts token t
    at = LOOKS.index(step)
    assert seen.new_nats[at] == pytest.approx(np.mean(nats[: half - 1]), rel=1e-6)  # tokens 1 to half - 1
    assert seen.again_nats[at] == pytest.approx(np.mean(nats[half:]), rel=1e-6)  # tokens half + 1 to the last
    assert seen.new_nats[at] != pytest.approx(seen.again_nats[at], rel=1e-6)


def test_it_looks_at_the_first_step_and_then_every_so_many(seen: Watched) -> None:
    assert seen.steps.tolist() == LOOKS
    assert all(values.shape == (6, 2, 2) for values in seen.figures.values())
    assert tuple(seen.figures) == NAMES
    assert seen.new_nats.shape == seen.again_nats.shape == (6,)
    assert seen.new_nats[-1] < seen.new_nats[0]  # it learnt something meanwhile


def test_it_changes_nothing(tmp_path: Path, whole: Trained) -> None:
    alone = run(tmp_path, **HOW)
    assert bits(alone.checkpoint) == bits(whole.checkpoint)
    assert alone.validation_loss == whole.validation_loss
    assert not (tmp_path / NAME).exists()


def test_it_leaves_the_model_as_it_was_given() -> None:
    model = wherefrom.draw(CONFIG, 0)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    state = torch.get_rng_state()
    Watch(Path("nowhere"), PROBE).look(3, model)
    assert model.training
    assert all(weight.requires_grad and weight.grad is None for weight in model.parameters())
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("step", [9, 11, 13, 16, 20])
def test_a_resumed_run_has_the_table_of_an_unbroken_one(tmp_path: Path, whole: Trained, step: int) -> None:
    def on_step(row: LogRow, transformer: Transformer) -> None:
        look(row, transformer)
        if row.step == step:
            raise StopError

    look = Watch(tmp_path, PROBE, EVERY)
    with pytest.raises(StopError):
        run(tmp_path, **HOW, how={"on_step": on_step})
    assert read_watched(tmp_path).steps[-1] == max(at for at in LOOKS if at <= step)
    watched(tmp_path, resume=True)
    assert table(tmp_path) == table(whole.checkpoint.parent)


def test_the_very_first_step_of_a_resumed_run_may_be_looked_at(tmp_path: Path) -> None:
    """Step 9, behind the checkpoint of step 8, was looked at before the run was stopped."""
    look = Watch(tmp_path, PROBE, 3)

    def on_step(row: LogRow, transformer: Transformer) -> None:
        look(row, transformer)
        if row.step == 10:
            raise StopError

    with pytest.raises(StopError):
        run(tmp_path, **HOW, how={"on_step": on_step})
    watched(tmp_path, every=3, resume=True)
    assert read_watched(tmp_path).steps.tolist() == [1, 3, 6, 9, 12, 15, 18, 21]


def test_the_same_watch_may_go_on(tmp_path: Path, whole: Trained) -> None:
    """As in a notebook: stopped, and resumed with what was made before."""
    look, stops = Watch(tmp_path, PROBE, EVERY), [13, 20]

    def on_step(row: LogRow, transformer: Transformer) -> None:
        look(row, transformer)
        if row.step in stops:
            stops.remove(row.step)
            raise StopError

    for number in range(3):
        if number < 2:
            with pytest.raises(StopError):
                run(tmp_path, **HOW, how={"on_step": on_step, "resume": number > 0})
        else:
            resume(tmp_path, TEXT, on_step=on_step)
    assert table(tmp_path) == table(whole.checkpoint.parent)


LEFT = {
    "inside a line": lambda lines: [*lines[:-2], lines[-2][:31]],
    "inside a number's line end": lambda lines: [*lines[:-1], lines[-1].rstrip("\n")],
    "between two heads": lambda lines: lines[:-2],
    "between two layers": lambda lines: [*lines[:-3], lines[-3][:1]],
    "before the look at the checkpoint": lambda lines: lines[:-4],
}


@pytest.mark.parametrize("how", LEFT)
def test_a_killed_run_leaves_no_gap_and_nothing_twice(tmp_path: Path, whole: Trained, how: str) -> None:
    """As SIGKILL leaves it: step 16's checkpoint is there, of its look only a part."""
    look = Watch(tmp_path, PROBE, EVERY)

    def on_step(row: LogRow, transformer: Transformer) -> None:
        look(row, transformer)
        if row.step == 16:
            raise StopError

    with pytest.raises(StopError):
        run(tmp_path, **HOW, how={"on_step": on_step})
    lines = table(tmp_path).splitlines(keepends=True)
    assert len(lines) == 1 + 5 * 4
    (tmp_path / NAME).write_text("".join(LEFT[how](lines)))
    assert read_watched(tmp_path).steps.tolist() == [1, 4, 8, 12]  # a half-written step is not shown
    assert checkpoints(tmp_path)[-1].name == "step-00000016"
    watched(tmp_path, resume=True)
    assert table(tmp_path) == table(whole.checkpoint.parent)


def test_a_look_that_was_cut_short_at_the_first_step(tmp_path: Path) -> None:
    """With a single step in the table, only the model says how many heads a look has."""
    how = {**HOW, "checkpoint_every": 1}

    def on_step(row: LogRow, transformer: Transformer) -> None:
        look(row, transformer)
        raise StopError

    look = Watch(tmp_path, PROBE, EVERY)
    with pytest.raises(StopError):
        run(tmp_path, **how, how={"on_step": on_step})
    right = table(tmp_path)
    (tmp_path / NAME).write_text("".join(right.splitlines(keepends=True)[:3]))
    run(tmp_path, **how, how={"on_step": Watch(tmp_path, PROBE, EVERY), "resume": True})
    assert table(tmp_path).startswith(right)
    assert read_watched(tmp_path).steps.tolist() == LOOKS


def test_a_run_may_be_watched_from_its_middle_on(tmp_path: Path, whole: Trained) -> None:
    stopped(tmp_path, 13, **HOW)
    watched(tmp_path, resume=True)
    header, *lines = table(whole.checkpoint.parent).splitlines()
    assert table(tmp_path).splitlines() == [header, *(line for line in lines if int(line.split(",")[0]) >= 8)]


def test_a_new_run_begins_a_new_table(tmp_path: Path, whole: Trained) -> None:
    (tmp_path / NAME).write_text(table(whole.checkpoint.parent).replace("0.", "0.1"))  # of a run that was taken away
    watched(tmp_path)
    assert table(tmp_path) == table(whole.checkpoint.parent)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_new_run_leaves_no_table_of_another_and_what_is_foreign(tmp_path: Path, whole: Trained) -> None:
    (tmp_path / NAME).write_text(table(whole.checkpoint.parent)[:500])  # damaged further down, ours all the same
    run(tmp_path, steps=1)
    assert not (tmp_path / NAME).exists()
    other = tmp_path / "other"
    other.mkdir()
    (other / NAME).write_text("name,price\nsugar,3\n")
    run(other, steps=1)
    assert (other / NAME).read_text() == "name,price\nsugar,3\n"


def test_a_table_may_have_the_line_ends_of_windows(tmp_path: Path, whole: Trained) -> None:
    before = table(whole.checkpoint.parent)
    (tmp_path / NAME).write_bytes(before.replace("\n", "\r\n").encode())
    assert [",".join(row) for row in read_rows(tmp_path / NAME)] == before.splitlines()[1:]


@pytest.mark.parametrize("folder", [5, None, "a\0b", "x" * 300])
def test_what_is_no_folder_of_a_run(folder: Any) -> None:
    for ask in (lambda: Watch(folder, PROBE), lambda: read_watched(folder)):
        with pytest.raises(InputError, match="the run's folder: expected a path that can be one, got "):
            ask()


def test_the_first_step_with_another_interval(tmp_path: Path) -> None:
    watched(tmp_path, every=10)
    assert read_watched(tmp_path).steps.tolist() == [1, 10, 20]
    watched(tmp_path / "each", every=1)
    assert read_watched(tmp_path / "each").steps.tolist() == list(range(1, 22))


def test_a_probe_is_different_tokens_twice() -> None:
    known = set(CORPUS.train.tolist())
    for length in (4, 5, 20, 21, 2 * len(known), 10_000):
        probe = repeated_probe(CORPUS, length)
        half = len(probe) // 2
        assert probe.dtype == np.int64
        assert half == min(length // 2, len(known))
        assert len(set(probe[:half].tolist())) == half
        assert set(probe.tolist()) <= known
        assert probe[half:].tolist() == probe[:half].tolist()
        assert len(probe) == 2 * half
    assert repeated_probe(CORPUS, 20, seed=3).tolist() == repeated_probe(CORPUS, 20, seed=3).tolist()
    assert repeated_probe(CORPUS, 20, seed=3).tolist() != repeated_probe(CORPUS, 20).tolist()
    assert repeated_probe(CORPUS, 20).tolist() != sorted(repeated_probe(CORPUS, 20).tolist())


def test_a_rare_token_is_as_likely_in_a_probe() -> None:
    corpus = Corpus(np.array([5] * 500 + [7, 9, 11], np.uint16), np.array([5], np.uint16), 12)
    counts = np.bincount([repeated_probe(corpus, 4, seed=seed)[0] for seed in range(400)], minlength=12)
    assert set(np.flatnonzero(counts)) == {5, 7, 9, 11}
    assert counts[[5, 7, 9, 11]].min() > 60  # 100 each on average, with a standard deviation of 9


@pytest.mark.parametrize("length", [3, 0, -4, 4.0, True, None])
def test_what_is_no_length_of_a_probe(length: Any) -> None:
    with pytest.raises(InputError, match=r"the probe's length: expected a whole number from 4 up, got"):
        repeated_probe(CORPUS, length)


def test_a_text_of_one_token_gives_no_probe() -> None:
    corpus = Corpus(np.array([3, 3, 3], np.uint16), np.array([3, 4], np.uint16), 5)
    with pytest.raises(InputError, match="the training text: expected at least two different tokens, got 1"):
        repeated_probe(corpus, 8)


@pytest.mark.parametrize("every", [0, -1, 1.5, True, None, "4"])
def test_what_is_no_interval(tmp_path: Path, every: Any) -> None:
    with pytest.raises(InputError, match="the steps between two looks: expected a whole number from 1 up, got"):
        Watch(tmp_path, PROBE, every)


HEADER = ",".join(COLUMNS)
ROW = ",".join(["0.5"] * (len(COLUMNS) - 4) + ["50"])
DAMAGED = {
    "foreign": ("name,price\nsugar,3\n", "expected a table whose columns are step, layer,"),
    "no text": (b"\xff\xfe\x00", r"expected a table, got no text \(the byte 0xFF\)"),
    "empty": ("", "got an empty file"),
    "half a header": (HEADER[:20], "got 'step,layer,head,entr'"),
    "another last column": (f"{HEADER[:-5]}often\n", "got 'step,.*,again_nats,often'"),
    "no whole number": (f"{HEADER}\n1.5,0,0,{ROW}\n", "expected 15 numbers in line 2, got '1.5,0,0"),
    "a word": (f"{HEADER}\n1,0,0,{ROW}\n2,0,0,{ROW.replace('0.5', 'bad', 1)}\n", "expected 15 numbers in line 3"),
    "half an interval": (f"{HEADER}\n1,0,0,{ROW}.5\n", "expected 15 numbers in line 2"),
    "a negative head": (f"{HEADER}\n1,0,-1,{ROW}\n", "expected 15 numbers in line 2"),
    "a cell too few": (f"{HEADER}\n1,0,0,{ROW[4:]}\n", "expected 15 numbers in line 2"),
    "a cell too many": (f"{HEADER}\n1,0,0,{ROW},1\n", "expected 15 numbers in line 2"),
    "a blank line": (f"{HEADER}\n1,0,0,{ROW}\n\n", "expected 15 numbers in line 3, got ''"),
}
DISORDERED = {
    "no rows": (f"{HEADER}\n", "expected at least one step, got none"),
    "a gap": (f"{HEADER}\n1,0,0,{ROW}\n1,0,2,{ROW}\n", "one row for every step, layer and head, in order, got 2 rows"),
    "twice": (f"{HEADER}\n1,0,0,{ROW}\n1,0,0,{ROW}\n", "in order, got 2 rows"),
    "backwards": (f"{HEADER}\n2,0,0,{ROW}\n1,0,0,{ROW}\n", "in order, got 2 rows"),
    "a head too large to be true": (f"{HEADER}\n1,0,999999999999,{ROW}\n", "in order, got 1 rows"),
    "a later step with a head more": (f"{HEADER}\n1,0,0,{ROW}\n2,0,0,{ROW}\n2,0,1,{ROW}\n", "in order, got 3 rows"),
}


@pytest.mark.parametrize("name", [*DAMAGED, *DISORDERED])
def test_a_damaged_table_is_refused(tmp_path: Path, name: str) -> None:
    content, said = {**DAMAGED, **DISORDERED}[name]
    path = tmp_path / NAME
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(TrainingError, match=said) as caught:
        read_watched(tmp_path)
    assert caught.value.facts["path"] == path
    assert str(caught.value).startswith(f"{path}: expected ")


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_table_is_not_written_over(tmp_path: Path, name: str) -> None:
    content, said = DAMAGED[name]
    path = tmp_path / NAME
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    before = path.read_bytes()
    with pytest.raises(TrainingError, match=said):
        Watch(tmp_path, PROBE)
    assert path.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_a_run_that_was_not_watched_has_no_table(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=rf"expected a watched run: its {NAME}, got none\. Train with --watch"):
        read_watched(tmp_path)
    with pytest.raises(TrainingError, match="got no such folder"):
        read_watched(tmp_path / "missing")
    (tmp_path / NAME).mkdir()
    with pytest.raises(TrainingError, match="got none"):
        read_watched(tmp_path)


def test_a_table_that_cannot_be_written_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk: what is refused there is refused by the system, so the device of that name stands in for it."""
    look = Watch(tmp_path, PROBE, EVERY)

    def on_step(row: LogRow, transformer: Transformer) -> None:
        if row.step == 12:
            look.path.rename(tmp_path / "kept.csv")
            look.path.symlink_to("/dev/full")
        look(row, transformer)

    with pytest.raises(TrainingError, match="expected a place that can be written, got No space left") as caught:
        run(tmp_path, **HOW, how={"on_step": on_step})
    assert caught.value.facts["path"] == tmp_path / NAME
    assert checkpoints(tmp_path)[-1].name == "step-00000008"


def test_a_folder_in_the_tables_place_is_refused_before_the_run(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    with pytest.raises(TrainingError, match="expected a table that can be read, got Is a directory"):
        Watch(tmp_path, PROBE)


def test_a_folder_that_is_not_there_ends_the_run() -> None:
    with pytest.raises(TrainingError, match="expected a place that can be written, got No such file or directory"):
        Watch(Path("nowhere"), PROBE)(LogRow(1, 1, 1.0, None, 1.0, 1.0, 1.0), wherefrom.draw(CONFIG, 0))


def test_a_figure_without_a_value_is_an_empty_cell_and_comes_back_as_nan(tmp_path: Path) -> None:
    model = wherefrom.draw(CONFIG, 0)
    unrepeated = np.arange(14)  # no token comes again, so nothing counts for two of the figures
    Watch(tmp_path, unrepeated, 1)(LogRow(1, 1, 1.0, None, 1.0, 1.0, 1.0), model)
    first = table(tmp_path).splitlines()[1].split(",")
    empty = {name for name, cell in zip(COLUMNS, first, strict=True) if cell == ""}
    assert empty == {"duplicate", "induction"}
    found = read_watched(tmp_path)
    assert all(np.isnan(found.figures[name]).all() == (name in empty) for name in NAMES)
    assert found.onset("induction", 0, 0, 0.0) is None
    assert [",".join(row) for row in read_rows(tmp_path / NAME)] == table(tmp_path).splitlines()[1:]


def test_every_digit_comes_back(tmp_path: Path) -> None:
    class Figures:
        def __init__(self) -> None:
            values = [0.1, 1 / 3, math.nextafter(1, 2)]
            for name in FIGURES:
                setattr(self, name, np.ma.masked_array(values, mask=[False, name == "induction", False]))

    rows = list(rows_of(7, [Figures()], 2 / 3, math.pi, 5))  # what it reads of figures is all that these have
    (tmp_path / NAME).write_text("\n".join([HEADER, *map(",".join, rows), ""]))
    found = read_watched(tmp_path)
    assert found.steps.tolist() == [7]
    assert found.of("entropy").tolist() == [[[0.1, 1 / 3, math.nextafter(1, 2)]]]
    assert np.isnan(found.of("induction")).tolist() == [[[False, True, False]]]
    assert (found.new_nats.tolist(), found.again_nats.tolist()) == ([2 / 3], [math.pi])


def by_hand() -> Watched:
    values = np.array([[[0.1, 0.9]], [[0.4, np.nan]], [[0.6, 0.2]], [[0.5, 0.95]]])
    figures = {**dict.fromkeys(NAMES, values), "first": np.zeros_like(values)}
    return Watched(np.array([1, 10, 20, 30]), figures, np.full(4, 5.0), np.array([5.0, 4.0, 2.0, 1.0]))


def test_onsets_by_hand() -> None:
    seen = by_hand()
    assert seen.onset("induction", 0, 0, 0.5) == 20
    assert seen.onset("induction", 0, 0, 0.4) == 10
    assert seen.onset("induction", 0, 0, 0.1) == 1
    assert seen.onset("induction", 0, 0, 0.7) is None
    assert seen.onset("induction", 0, 1, 0.92) == 30  # a value that is none reaches nothing
    assert seen.onset("first", 0, 1, 0.5) is None
    assert isinstance(seen.onset("induction", 0, 0, 0.5), int)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("luck", 0, 0), "the figure: expected one of entropy, .*, got 'luck'"),
        (("induction", 1, 0), "the layer: expected a whole number from 0 to 0, got 1"),
        (("induction", 0, 2), "the head: expected a whole number from 0 to 1, got 2"),
        (("induction", -1, 0), "the layer: expected a whole number from 0 to 0, got -1"),
    ],
)
def test_an_onset_that_cannot_be_asked_for(asked: tuple[str, int, int], said: str) -> None:
    with pytest.raises(InputError, match=said):
        by_hand().onset(*asked, 0.5)


def test_a_model_that_cannot_read_the_probe_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=re.escape("16")):
        run(tmp_path, **HOW, how={"on_step": Watch(tmp_path, np.tile(np.arange(10), 2))})


def test_the_losses_of_a_model_that_knows_nothing(tmp_path: Path) -> None:
    model = wherefrom.draw(replace(CONFIG, tied=False), 0)
    with torch.no_grad():
        model.head.weight.zero_()
    rows = Watch(tmp_path, PROBE).look(1, model)
    assert [float(row[-2]) for row in rows] == pytest.approx([math.log(257)] * 4)
    assert [float(row[-3]) for row in rows] == pytest.approx([math.log(257)] * 4)
    assert [row[-1] for row in rows] == ["50"] * 4  # the interval, for whoever goes on with the run
