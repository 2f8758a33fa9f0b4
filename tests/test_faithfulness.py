"""The comparison of lenses: every score by hand, every baseline against its formula written out densely."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import faithfulness, report
from benchmarks.baselines import lasso
from benchmarks.choices import BUDGETS, LASSO, RUNS, choices_to_learn, choices_to_test, learned, steps_of
from benchmarks.lenses import gradient_by_input, rollout, scored
from benchmarks.prompts import FAMILIES, Prompt
from benchmarks.scores import DRAWS, Judged, Mean, areas, drop, judge, lds, log_p, mean_of
from scipy import stats

from kinds import small_model
from wherefrom.errors import InputError
from wherefrom.evidence.goal import AnswerGoal
from wherefrom.evidence.gradients import price
from wherefrom.evidence.running import OwnRunner
from wherefrom.passages import passages

PARTS = 6


@pytest.fixture(scope="module")
def asked():
    """A runner, a goal and passages: a small random model in double precision."""
    model = copy.deepcopy(small_model("llama"))
    model.transformer.double()
    tokens = model.tokenizer.encode("ab cd ef gh ij kl")
    return OwnRunner(model), AnswerGoal(tokens.ids, len(tokens) - 3), passages(tokens, "word", within=range(12))


def row_of(curve, scores, **more):
    """A measured row with one lens and its curve, in log-probabilities."""
    odds = [p - np.log1p(-np.exp(p)) for p in curve]
    curve = {"order": np.argsort(-scores, kind="stable").tolist(), "values": odds}
    return {"curves": {"own": curve}, "lenses": {"own": scores}, "loo": scores, "seed": 0, "family": "facts", **more}


# -- the scores


def test_a_log_probability_is_that_of_its_log_odds():
    p = np.array([1e-9, 0.2, 0.5, 0.999])
    np.testing.assert_allclose(log_p(np.log(p) - np.log1p(-p)), np.log(p), rtol=1e-12)


def test_lds_is_the_rank_correlation_over_the_runs():
    scores = np.random.default_rng(0).normal(size=PARTS)
    values = np.random.default_rng(1).normal(size=RUNS)
    row = {"seed": 3, "test": values}
    expected = stats.spearmanr(choices_to_test(PARTS, 3) @ scores, values).statistic
    assert lds(row, scores) == pytest.approx(expected, abs=1e-12)
    assert lds({"seed": 3, "test": choices_to_test(PARTS, 3) @ scores}, scores) == pytest.approx(1.0)


def test_a_curve_takes_the_strongest_away_first():
    steps = dict(steps_of([0.0, 3.0, -1.0, 2.0]))
    assert list(steps) == [0, 1, 2, 3, 4]
    assert steps[1].tolist() == [True, False, True, True]
    assert steps[3].tolist() == [False, False, True, False]


def test_areas_of_a_curve_drawn_by_hand():
    scores = np.array([3.0, 1.0, 0.0, -1.0])
    # log p at 0 .. 4 gone: scaled (p + 4) / 3 it is 1, 1/3, 2/3 -> 1/3 as it never rises, 0, 0
    row = row_of([-1.0, -3.0, -2.0, -4.0, -4.0], scores)
    response = np.array([1, 1 / 3, 1 / 3, 0, 0])
    density = np.array([1, 1 / 4, 0, 0, 0])
    rise, mas = areas(row, "own", scores)
    assert rise == pytest.approx(np.trapezoid(response, dx=0.25))
    assert mas == pytest.approx(np.trapezoid(response + np.abs(response - density), dx=0.25))
    assert drop(row, "own", scores, 1) == pytest.approx(2.0)
    assert drop(row, "own", scores, 3) == pytest.approx(3.0)


def test_a_prompt_whose_answer_needs_nothing_has_no_areas():
    row = row_of([-2.0, -3.0, -1.0, -1.5, -1.0], np.array([1.0, 0.0, 0.0, 0.0]))
    assert np.isnan(areas(row, "own", np.array([1.0, 0.0, 0.0, 0.0]))).all()


def test_a_curve_of_another_order_is_not_taken():
    row = row_of([-1.0, -3.0, -2.0, -4.0, -4.0], np.array([3.0, 1.0, 0.0, -1.0]))
    assert np.isnan(drop(row, "own", np.array([1.0, 3.0, 0.0, -1.0]), 1))
    assert np.isnan(areas(row, "own", np.array([1.0, 3.0, 0.0, -1.0]))).all()


def test_a_mean_is_over_families_and_its_interval_holds_it():
    facts, code = np.array([0.0, 0.2, 0.4]), np.array([0.7, 0.9])
    rows = [judged("facts", value) for value in facts] + [judged("code", value) for value in (*code, np.nan)]
    mean = mean_of(rows, "LDS", "own")
    assert mean.value == pytest.approx((0.2 + 0.8) / 2)
    assert mean.count == 5
    assert mean_of(rows, "LDS", "own", above="other").value == pytest.approx((0.2 + 0.8) / 2 - 0.1)
    drawn = np.random.default_rng(0)
    means = sum(own[drawn.integers(len(own), size=(DRAWS, len(own)))].mean(axis=1) / 2 for own in (facts, code))
    np.testing.assert_allclose((mean.low, mean.high), np.quantile(means, (0.025, 0.975)))
    assert f"{mean}" == f"0.500 ({mean.low:.3f} to {mean.high:.3f})"


@pytest.mark.parametrize(
    ("facts", "code", "shown"),
    [
        ((-0.201,), (), "-0.201 (1 prompt, no interval)"),
        ((0.0, 0.1, 0.2, 0.3), (), "0.150 (4 prompts, no interval)"),
        ((0.0, 0.1), (0.2, 0.3), "0.150 (4 prompts, no interval)"),
        ((0.0, 0.1, 0.2, 0.3), (0.2,), "0.175 (5 prompts, no interval)"),  # one says nothing of its family's spread
        ((np.nan,), (), "none"),
    ],
)
def test_too_few_prompts_have_no_interval(facts, code, shown):
    rows = [judged("facts", value) for value in facts] + [judged("code", value) for value in code]
    mean = mean_of(rows, "LDS", "own")
    assert np.isnan([mean.low, mean.high]).all()
    assert str(mean) == shown


def test_a_mean_is_shown_as_it_is_asked():
    assert f"{Mean(0.5, 0.25, 0.75, 9):+.2f}" == "+0.50 (+0.25 to +0.75)"


def judged(family, value):
    return Judged(family, PARTS, {"LDS": {"own": value, "other": 0.1}})


# -- the lenses


def test_rollout_is_the_product_of_dense_maps(asked):
    runner, goal, _ = asked
    priced = price(runner, goal)
    length, whole = len(goal.ids), np.eye(len(goal.ids))
    for call in priced.calls:
        maps = [[priced.row(call.layer, head, i, "weight") for i in range(length)] for head in range(call.heads)]
        whole = (np.mean(maps, axis=0) + np.eye(length)) / 2 @ whole
    np.testing.assert_allclose(rollout(priced), whole[list(goal.rows)].mean(axis=0), atol=1e-6)
    assert rollout(priced).sum() == pytest.approx(1.0, abs=1e-6)


def test_gradient_by_input_is_the_change_by_a_tokens_size(asked):
    runner, goal, _ = asked
    found = gradient_by_input(runner, goal, steps=None)
    for place in (0, 5, len(goal.ids) - 2):
        values = [value_with(runner, goal, place, 1 + h) for h in (1e-5, -1e-5)]
        assert found[place] == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-5, abs=1e-9)


def value_with(runner, goal, place, size):
    """The goal where one token's embedding has another size."""

    def scale(_, __, output):
        factor = torch.ones(output.shape[1], 1, dtype=output.dtype)
        factor[place] = size
        return output * factor

    hook = runner.model.transformer.embedding.register_forward_hook(scale)
    try:
        with torch.no_grad():
            return float(goal.value(runner.logits(torch.tensor([goal.ids]), goal.rows))[0])
    finally:
        hook.remove()


def test_integrated_gradients_add_up_to_the_change_on_the_way(asked):
    """Over all tokens: the mean, at the midpoints, of the goal's derivative by the share of the embeddings."""
    runner, goal, _ = asked
    shares, h = (np.arange(4) + 0.5) / 4, 1e-6
    slopes = [(value_at(runner, goal, share + h) - value_at(runner, goal, share - h)) / (2 * h) for share in shares]
    assert gradient_by_input(runner, goal, steps=4).sum() == pytest.approx(float(np.mean(slopes)), rel=1e-5)


def value_at(runner, goal, share):
    """The goal where all embeddings are shrunk to a share."""
    hook = runner.model.transformer.embedding.register_forward_hook(lambda _, __, output: share * output)
    try:
        with torch.no_grad():
            return float(goal.value(runner.logits(torch.tensor([goal.ids]), goal.rows))[0])
    finally:
        hook.remove()


def test_every_lens_speaks_of_every_part(asked):
    runner, goal, parts = asked
    found = scored(runner, goal, parts)
    assert {len(one.scores) for one in found.values()} == {len(parts)}
    assert all(np.isfinite(one.scores).all() for one in found.values())
    weight = price(runner, goal).passages(parts, "weight", rows=goal.rows)
    np.testing.assert_allclose(found["mean weight"].scores, weight)


# -- what is fitted


def test_the_lasso_is_the_solution_of_its_own_conditions():
    """Of (1 / 2n) |y - Z w|^2 + alpha |w|_1: the gradient is alpha where w is not 0, and at most alpha elsewhere."""
    kept = choices_to_learn(PARTS, 1)
    values = kept @ np.array([3.0, 0, 0, -1.0, 0, 0.02]) + 0.01 * np.random.default_rng(0).normal(size=RUNS)
    weights, intercept = lasso(kept, values, tokens=2, alpha=0.05)
    size = kept.std(axis=0)
    z, y, w = (kept - kept.mean(axis=0)) / size, values / 2, weights * size / 2
    residual = y - y.mean() - z @ w
    slope = z.T @ residual / RUNS
    assert (w != 0).sum() == 2
    np.testing.assert_allclose(slope[w != 0], 0.05 * np.sign(w[w != 0]), atol=1e-4)
    assert (np.abs(slope[w == 0]) <= 0.05 + 1e-4).all()
    assert intercept == pytest.approx(float(values.mean() - kept.mean(axis=0) @ weights))


def test_what_is_learned_finds_the_parts_that_matter():
    true = np.array([4.0, 0.0, 0.0, 1.0, 0.0, 0.0])
    prior = true + 0.3 * np.random.default_rng(0).normal(size=PARTS)
    lenses = {name: prior.tolist() for name in ("gate 0.6", "gate 0.4", "gate 0.7", "gate 0.9")}
    runs = choices_to_learn(PARTS, 0)
    row = {"seed": 0, "whole": 5.0, "loo": true, "train": runs @ true, "lenses": lenses, "answer": 1}
    found = learned(row)
    assert set(found) >= {f"gates 3 + 3 and {n} runs" for n in BUDGETS} | {f"lasso, {n} runs" for n in LASSO}
    np.testing.assert_allclose(found["gates 1 + 1 and 32 runs"], true, atol=0.05)


def test_runs_to_learn_from_are_not_those_to_test_on():
    ours = {choice.tobytes() for choice in choices_to_learn(15, 0)}
    assert not ours & {choice.tobytes() for choice in choices_to_test(15, 0)}
    assert len(ours) == RUNS


# -- the whole of it


def load_small(monkeypatch):
    """Have the small model loaded in place of SmolLM2."""
    model = small_model("llama")  # made first: it is loaded itself
    monkeypatch.setattr(faithfulness.wherefrom, "load", lambda: model)


def test_a_prompt_is_measured_kept_and_told(tmp_path, capsys, monkeypatch):
    load_small(monkeypatch)
    monkeypatch.setitem(FAMILIES, "code", short)
    file = tmp_path / "measured.jsonl"
    command = ["measure", str(file), "--family", "code", "--count", "2"]
    assert faithfulness.main(command) == 0
    assert faithfulness.main(command) == 0  # what is there is not measured again
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["seed"] for row in rows] == [0, 1]
    own = judge(rows[0])
    assert set(own.figures) == {"LDS", "LDS within", "RISE", "MAS", "top-1 drop", "top-3 drop"}
    assert own.figures["top-1 drop"]["leave one out"] == pytest.approx(
        float(log_p([rows[0]["whole"]])[0] - log_p([rows[0]["whole"] - max(rows[0]["loo"])])[0]), abs=1e-4
    )
    whole = file.read_text()
    turned = copy.deepcopy(rows)
    turned[1]["curves"]["gates 1 + 1 and 32 runs"] = {
        name: own[::-1] for name, own in rows[1]["curves"]["gates 1 + 1 and 32 runs"].items()
    }
    file.write_text("".join(json.dumps(row) + "\n" for row in turned))
    assert np.isnan(judge(turned[1]).figures["top-1 drop"]["gates 1 + 1 and 32 runs"])
    assert faithfulness.main(["renew", str(file)]) == 0
    assert file.read_text() == whole
    capsys.readouterr()
    assert faithfulness.main(["table", str(file)]) == 0
    table = capsys.readouterr().out
    assert "| leave one out | 5 forward (mean) |" in table
    assert faithfulness.main(["plot", str(file), "--to", str(tmp_path / "drawn.png")]) == 0
    assert (tmp_path / "drawn.png").read_bytes().startswith(b"\x89PNG")


def short(seed):
    """A prompt that fits into a small model's context."""
    sources = tuple(f"{letter} = {(seed + number) % 10}" for number, letter in enumerate("abcd"))
    return Prompt("code", seed, "\n".join(sources) + "\n\nassert b ==", f" {seed + 1}", sources, (1,))


# -- files, and whose lines they hold


def line_of(**more):
    """A line as `measure` writes it, of any numbers."""
    drawn = np.random.default_rng(abs(more.get("seed", 0)))
    loo = drawn.normal(size=PARTS).tolist()
    lenses = {f"gate {m}": drawn.normal(size=PARTS).tolist() for m in ("0.6", "0.4", "0.7", "0.9")}
    row = {"family": "code", "seed": 0, "by": "part", "model": "small", "tokens": 30, "answer": 1, "holds": [1]}
    runs = {name: drawn.normal(size=RUNS).tolist() for name in ("test", "train")}
    return {**row, "whole": 1.0, "loo": loo, **runs, "lenses": lenses, **more}


@pytest.fixture
def written(tmp_path):
    """Writes lines into a file."""

    def write(*rows):
        file = tmp_path / "lines.jsonl"
        file.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
        return file

    return write


def refused(capsys, *command):
    """The sentence that a command ends with."""
    assert faithfulness.main([*map(str, command)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("benchmarks.faithfulness: ")
    assert shown.err.count("\n") == 1
    return shown.err


def test_lines_are_read_as_they_were_written(written):
    rows = [line_of(seed=0), line_of(seed=1), line_of(seed=0, by="token"), line_of(seed=0, model="other")]
    assert faithfulness.rows_of([written(*rows)]) == rows


def test_the_lines_of_the_page_are_read():
    kept = Path(faithfulness.__file__).parent / "measured" / "smollm2.jsonl"
    assert {row["by"] for row in faithfulness.rows_of([kept])} == {"part"}


@pytest.mark.parametrize(
    ("second", "given"),
    [
        ("\n", "got a blank line"),
        ("{}\n", 'got one without "family"'),
        ("[1, 2]\n", "got a JSON value of another kind ([1, 2])"),
        ("not JSON\n", "got no JSON"),
        ("[" * 100_000, "got no JSON"),
        (line_of(seed=-1), 'got one whose "seed" is of another form'),
        (line_of(seed=True), 'got one whose "seed" is of another form'),
        (line_of(by="word"), 'got one whose "by" is of another form'),
        (line_of(loo=[]), 'got one whose "loo" is of another form'),
        (line_of(test=[0.0] * (RUNS - 1)), 'got one whose "test" is of another form'),
        (line_of(train=[float("nan")] * RUNS), 'got one whose "train" is of another form'),
        (line_of(whole=10**400), 'got one whose "whole" is of another form'),
        (line_of(holds=[PARTS]), 'got one whose "holds" is of another form'),
        (line_of(lenses={"gate 0.6": [0.0]}), 'got one whose "lenses" is of another form'),
        (line_of(curves={"own": {"order": [0] * PARTS, "values": [0.0] * 6}}), 'got one whose "curves" is of another'),
        (line_of(fingerprint=None), 'got one whose "fingerprint" is of another form'),
    ],
)
def test_a_broken_line_is_named(written, capsys, second, given):
    file = written(line_of(seed=7), second)
    sentence = refused(capsys, "table", file)
    assert f"line 2 of {file}" in sentence
    assert given in sentence


def test_files_that_cannot_be_read_are_refused(written, tmp_path, capsys):
    assert "No such file" in refused(capsys, "table", tmp_path / "none.jsonl")
    assert "No such file" in refused(capsys, "renew", tmp_path / "none.jsonl")
    assert "Is a directory" in refused(capsys, "measure", tmp_path)
    (tmp_path / "latin.jsonl").write_bytes(b"{\xe9}")
    assert "whose byte 1 is not" in refused(capsys, "table", tmp_path / "latin.jsonl")
    assert "got no prompt in" in refused(capsys, "table", written())
    assert "expected prompts of facts, got code in" in refused(capsys, "table", written(line_of()), "--family", "facts")


def test_what_cannot_be_measured_is_refused_at_once(tmp_path, capsys, monkeypatch):
    file = tmp_path / "new.jsonl"
    assert f"{tmp_path / 'no'}: expected a folder" in refused(capsys, "measure", file, "--model", tmp_path / "no")
    assert "--count: expected a whole number from 1 up, got 0" in refused(capsys, "measure", file, "--count", "0")
    assert "--first: expected a whole number from 0 up, got -1" in refused(capsys, "measure", file, "--first", "-1")
    load_small(monkeypatch)
    assert "expected room and permission" in refused(capsys, "measure", tmp_path / "no" / "new.jsonl")
    assert "expected room and permission" in refused(capsys, "measure", tmp_path / ("a" * 300))
    assert not file.exists()


def test_a_picture_of_an_unknown_kind_is_refused(written, tmp_path, capsys):
    file = written(line_of())
    assert "ends in .png, .svg or .pdf" in refused(capsys, "plot", file, "--to", tmp_path / "x.zzz")
    assert "ends in .png, .svg or .pdf" in refused(capsys, "plot", file, "--to", tmp_path / "x")
    assert "expected a folder that is there" in refused(capsys, "plot", file, "--to", tmp_path / "no" / "x.png")
    (tmp_path / "x.png").mkdir()
    assert "got a folder" in refused(capsys, "plot", file, "--to", tmp_path / "x.png")


def test_a_prompt_that_comes_twice_is_refused(written, capsys):
    file = written(line_of(seed=3), line_of(seed=4), line_of(seed=3, fingerprint="ab"))
    sentence = refused(capsys, "table", file)
    assert f"line 3 of {file}: expected each prompt once, got code 3 of small by part, as on line 1 of" in sentence
    other = line_of(seed=3, fingerprint="cd"), line_of(seed=3, fingerprint="ab", model="renamed")
    assert len(faithfulness.rows_of([written(line_of(seed=3, fingerprint="ab"), other[0])])) == 2
    with pytest.raises(InputError, match="each prompt once"):
        faithfulness.rows_of([written(line_of(seed=3, fingerprint="ab"), other[1])])


def test_a_lens_that_is_not_measured_yet_is_asked_for(written, capsys):
    row = line_of()
    del row["lenses"]["gate 0.6"]
    assert faithfulness.main(["table", str(written(row))]) == 2
    assert 'the line of code 0: expected the lens "gate 0.6"' in capsys.readouterr().err
    curve = {"order": [*range(PARTS)], "values": [0.0] * 7}
    assert faithfulness.main(["table", str(written(line_of(curves={"old": curve})))]) == 2
    assert 'expected curves of its lenses alone, got one of "old"' in capsys.readouterr().err


def test_a_lens_of_some_prompts_alone_is_named_not_shown(monkeypatch):
    monkeypatch.setattr(report, "EVERY", 2)
    rows = [line_of(seed=seed) for seed in range(3)]
    rows[0]["lenses"]["moved"] = [0.0] * PARTS
    said = []
    lines = list(report.table(rows, said.append))
    assert "Not shown: moved, measured for 1 of 3 prompts." in lines
    assert not any(line.startswith("| **moved**") for line in lines)
    assert said[0].startswith("judging 3 prompts")
    assert said[1:] == ["judged 2 of 3 prompts"]


def test_lines_of_another_model_are_neither_done_nor_renewed(written, capsys, monkeypatch):
    load_small(monkeypatch)
    monkeypatch.setitem(FAMILIES, "code", short)
    runner = OwnRunner(small_model("llama"))
    others = [line_of(model="other"), line_of(model=runner.name, fingerprint="another's")]
    file = written(*others)
    file.write_text(file.read_text().rstrip("\n"))  # its last line has no end
    before = file.read_text()
    assert f"line 1 of {file}: expected one of {runner.name}, which was to renew it, got one of other" in refused(
        capsys, "renew", file
    )
    assert file.read_text() == before
    command = ["measure", str(file), "--family", "code", "--count", "1"]
    assert faithfulness.main(command) == 0
    rows = faithfulness.rows_of([file])
    assert rows[:2] == others
    assert [(row["model"], row.get("fingerprint")) for row in rows[2:]] == [(runner.name, runner.fingerprint)]
    assert faithfulness.main(command) == 0  # its own line is done
    assert faithfulness.rows_of([file]) == rows
    file, before = written(others[1]), json.dumps(others[1]) + "\n"
    capsys.readouterr()
    assert "got one of another model of that name (another's)" in refused(capsys, "renew", file)
    assert file.read_text() == before


def test_a_line_without_a_checksum_is_known_by_its_name(written, monkeypatch):
    load_small(monkeypatch)
    monkeypatch.setitem(FAMILIES, "code", short)
    runner = OwnRunner(small_model("llama"))
    file = written(line_of(model=runner.name))
    before = file.read_text()
    assert faithfulness.main(["measure", str(file), "--family", "code", "--count", "1"]) == 0
    assert file.read_text() == before


def test_a_prompt_that_is_made_in_another_way_is_not_renewed(written, capsys, monkeypatch):
    load_small(monkeypatch)
    monkeypatch.setitem(FAMILIES, "code", short)
    name = OwnRunner(small_model("llama")).name
    file = written(line_of(model=name))
    assert "the prompt code 0: expected 30 tokens in 6 parts, as its line has it" in refused(capsys, "renew", file)
    file = written(line_of(model=name, family="old"))
    assert "the prompt old 0: expected one of facts" in refused(capsys, "renew", file)
