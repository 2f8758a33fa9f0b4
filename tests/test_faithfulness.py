"""The comparison of lenses: every score by hand, every baseline against its formula written out densely."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch
from benchmarks import faithfulness
from benchmarks.baselines import lasso
from benchmarks.choices import BUDGETS, LASSO, RUNS, choices_to_learn, choices_to_test, learned, steps_of
from benchmarks.lenses import gradient_by_input, rollout, scored
from benchmarks.prompts import FAMILIES, Prompt
from benchmarks.scores import Judged, areas, drop, judge, lds, log_p, mean_of
from scipy import stats

from kinds import small_model
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
    rows = [judged("facts", value) for value in (0.0, 0.2, 0.4)] + [judged("code", 0.8), judged("code", np.nan)]
    mean = mean_of(rows, "LDS", "own")
    assert mean.value == pytest.approx((0.2 + 0.8) / 2)
    assert mean.count == 4
    assert mean.low < mean.value < mean.high
    assert mean_of(rows, "LDS", "own", above="other").value == pytest.approx((0.2 + 0.8) / 2 - 0.1)


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


def test_a_prompt_is_measured_kept_and_told(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(faithfulness.wherefrom, "load", lambda: small_model("llama"))
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


def test_files_without_such_a_prompt_are_refused(tmp_path, capsys):
    (tmp_path / "none.jsonl").write_text("")
    with pytest.raises(SystemExit):
        faithfulness.main(["table", str(tmp_path / "none.jsonl")])
    assert "hold no such prompt" in capsys.readouterr().err
