import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len

from plain_attention import plain_head
from wherefrom.attention import Mask, attend
from wherefrom.errors import InputError
from wherefrom.views.example_input import parse_matrix
from wherefrom.views.lesson import LESSON, example_json, example_tables

DATA = Path(__file__).parent / "data" / "worked_example.json"
SCRIPT = Path(__file__).parent.parent / "scripts" / "check_attention_example.py"
CAUSAL = [[j <= i for j in range(3)] for i in range(3)]

LESSON_TEXT = """\
Positions count from 1 here, as in the lesson; elsewhere they count from 0.
Mask: causal.
d_k = 2, d_v = 2.  Scale: 1 / √2 = 0.707.
Pairs that the mask does not permit are shown as —.
Numbers are rounded to three decimals.

Queries, keys and values
position  token   q       k       v
       1  The     (1, 0)  (1, 0)  (2, 0)
       2  bridge  (0, 2)  (0, 1)  (0, 2)
       3  was     (2, 1)  (1, 1)  (1, 1)

Scores  s_ij = q_i · k_j / 1.414
destination  token    s_i1   s_i2   s_i3
          1  The     0.707      —      —
          2  bridge  0.000  1.414      —
          3  was     1.414  0.707  2.121

Weights  a_ij = exp(s_ij) / sum of exp(s_ij') over the permitted sources j'
destination  token    a_i1   a_i2   a_i3
          1  The     1.000      —      —
          2  bridge  0.196  0.804      —
          3  was     0.284  0.140  0.576

Outputs  y_i = sum of a_ij v_j
destination  token   y_i
          1  The     (2.000, 0.000)
          2  bridge  (0.391, 1.609)
          3  was     (1.144, 0.856)

Destination 3 (was) written out
  s_31 = (2 · 1 + 1 · 0) / 1.414 = 1.414
  s_32 = (2 · 0 + 1 · 1) / 1.414 = 0.707
  s_33 = (2 · 1 + 1 · 1) / 1.414 = 2.121
  sum = exp(1.414) + exp(0.707) + exp(2.121) = 14.484
  a_31 = exp(1.414) / sum = 0.284
  a_32 = exp(0.707) / sum = 0.140
  a_33 = exp(2.121) / sum = 0.576
  y_3 = 0.284 · (2, 0) + 0.140 · (0, 2) + 0.576 · (1, 1) = (1.144, 0.856)
"""


def tables(**options):
    return example_tables(LESSON.tokens, LESSON.q, LESSON.k, LESSON.v, **options)


def test_the_lessons_numbers_to_three_decimals():
    lesson = json.loads(DATA.read_text())
    got = attend(lesson["q"], lesson["k"], lesson["v"])
    shown = np.where(got.permitted[0], got.scores[0].round(3), None).tolist()
    assert shown == lesson["scores"]
    assert np.where(got.permitted[0], got.weights[0].data.round(3), None).tolist() == lesson["weights"]
    assert got.output[0].round(3).tolist() == lesson["outputs"]
    assert [list(row) for row in LESSON.q] == lesson["q"]
    assert [list(row) for row in LESSON.k] == lesson["k"]
    assert [list(row) for row in LESSON.v] == lesson["v"]
    assert list(LESSON.tokens) == lesson["tokens"]


def test_the_lessons_numbers_as_plain_lists_compute_them():
    got = attend(LESSON.q, LESSON.k, LESSON.v)
    for row, expected in enumerate(plain_head(LESSON.q, LESSON.k, LESSON.v, CAUSAL)):
        np.testing.assert_allclose(got.weights[0, row], expected[0], rtol=0, atol=1e-12)
        np.testing.assert_allclose(got.lse[0, row], expected[2], rtol=0, atol=1e-12)
        np.testing.assert_allclose(got.output[0, row], expected[3], rtol=0, atol=1e-12)


def test_the_lessons_tables():
    assert tables() == LESSON_TEXT
    assert max(map(cell_len, LESSON_TEXT.splitlines())) <= 80


def test_the_tables_of_other_masks():
    both = tables(mask=Mask.bidirectional())
    assert "Mask: bidirectional." in both
    assert "          1  The     0.707  0.000  0.707\n" in both
    assert both.count("—") == 1  # only in the line that explains the mark
    window = tables(mask=Mask(window=2))
    assert "Mask: causal, window of 2 keys." in window
    assert "          3  was         —  0.707  2.121\n" in window
    assert "s_31" not in window  # the sum is over what is permitted
    assert "  y_3 = 0.196 · (0, 2) + 0.804 · (1, 1) = (0.804, 1.196)\n" in window


def test_a_given_scale_is_a_factor():
    text = tables(scale=-0.5)
    assert "Scale: -0.500." in text
    assert "  s_31 = (2 · 1 + 1 · 0) · (-0.500) = -1.000\n" in text
    assert "          2  bridge   0.000  -1.000       —\n" in text  # 0 * -0.5 is no negative zero here


def test_an_empty_row_is_marked_and_the_sum_is_written_for_one_that_reads():
    text = tables(mask=Mask.bidirectional(explicit=np.array([[1, 0, 0], [0, 1, 0], [0, 0, 0]], dtype=bool)))
    assert "          3  was         —      —     —\n" in text
    assert "          3  was     — (no permitted source)\n" in text
    assert "Destination 2 (bridge) written out" in text
    nothing = tables(mask=Mask(padding=[False] * 3))
    assert nothing.endswith("No destination has a permitted source: there is no sum to write out.\n")
    assert "nan" not in nothing


def test_the_tables_of_other_sizes():
    rng = np.random.default_rng(5)
    q, k, v = rng.normal(size=(3, 5)), rng.normal(size=(11, 5)), rng.normal(size=(11, 1))
    text = example_tables([f"t{n}" for n in range(1, 12)], q, k, v, mask=Mask(offset=8, window=3))
    assert "d_k = 5, d_v = 1.  Scale: 1 / √5 = 0.447." in text
    assert "Mask: causal, window of 3 keys.\n" in text
    assert "Destination 11 (t11) written out" in text
    got = attend(q, k, v, Mask(offset=8, window=3))
    for j in (9, 10, 11):  # counted from 1
        assert f"a_11,{j} = exp({got.scores[0, 2, j - 1]:.3f}) / sum = {got.weights[0, 2, j - 1]:.3f}\n" in text
    worked = text[text.index("Destination 11 (t11)") :]
    assert max(map(cell_len, worked.splitlines())) <= 80
    assert f"= ({got.output[0, 2, 0]:.3f})" in worked


def test_wide_and_hidden_characters_stay_in_their_columns():
    text = example_tables(["橋は", "a\x1b[2J\n", " b"], LESSON.q, LESSON.k, LESSON.v)
    assert "\x1b" not in text
    assert "' b'" in text
    rows = [line for line in text.splitlines() if line.endswith(")") and line.count("(") == 3]
    assert len(rows) == 3
    assert {cell_len(row[: row.index("(")]) for row in rows} == {len(r"position  'a\x1b[2J\n'  ")}


def test_scores_whose_exponentials_no_column_holds():
    text = example_tables(["a", "b"], [[1.0], [800.0]], [[1.0], [1.0]], [[1.0], [3.0]])
    assert "  sum = exp(800.000) + exp(800.000) = exp(800.693)\n" in text
    assert "  y_2 = 0.500 · (1) + 0.500 · (3) = (2.000)\n" in text
    tiny = example_tables(["a"], [[-9.0]], [[1.0]], [[1.0]])
    assert "  sum = exp(-9.000) = exp(-9.000)\n  a_11 = exp(-9.000) / sum = 1.000\n" in tiny  # not 0.000


def test_the_example_as_data():
    data = json.loads(json.dumps(example_json(LESSON.tokens, LESSON.q, LESSON.k, LESSON.v), allow_nan=False))
    lesson = json.loads(DATA.read_text())
    for table in ("scores", "weights", "outputs"):
        assert [[x if x is None else round(x, 3) for x in row] for row in data[table]] == lesson[table]
    assert {name: data[name] for name in ("tokens", "q", "k", "v")} == {
        name: lesson[name] for name in ("tokens", "q", "k", "v")
    }
    assert (data["mask"], data["scale"]) == ("causal", 1 / math.sqrt(2))


def test_the_data_of_an_empty_row_is_none():
    data = example_json(LESSON.tokens, LESSON.q, LESSON.k, LESSON.v, mask=Mask(padding=[False, True, True]), scale=1)
    assert data["scores"][:2] == [[None] * 3, [None, 2.0, None]]
    assert data["weights"][:2] == [[None] * 3, [None, 1.0, None]]
    assert data["outputs"][:2] == [None, [0.0, 2.0]]
    assert data["lse"][:2] == [None, 2.0]


@pytest.mark.parametrize(
    ("tokens", "q", "mask", "sentence"),
    [
        (["one", "two"], LESSON.q, Mask(), "the token names: expected 3, one for each key, got 2."),
        (LESSON.tokens, LESSON.q, Mask(offset=1), "got keys: 3, queries: 3 from position 2 on, heads: 1."),
        (LESSON.tokens, [LESSON.q, LESSON.q], Mask(), "got keys: 3, queries: 3 from position 1 on, heads: 2."),
    ],
)
def test_an_example_that_does_not_fit_its_tokens_is_refused(tokens, q, mask, sentence):
    with pytest.raises(InputError, match=re.escape(sentence)):
        example_tables(tokens, q, LESSON.k, LESSON.v, mask=mask)


@pytest.mark.parametrize(
    "text", ["1,0; 0,2; 2,1", "1 0;0 2;2 1", " 1 , 0 ;\n0\t2; 2.0,1e0 ; ", "+1,-0;0,2;2,1;"], ids=repr
)
def test_a_matrix_can_be_typed(text):
    matrix = parse_matrix("--q", text)
    assert matrix.dtype == np.float64
    assert matrix.tolist() == [[1.0, 0.0], [0.0, 2.0], [2.0, 1.0]]


@pytest.mark.parametrize(
    ("text", "sentence", "facts"),
    [
        ("1,0; 2", "row 2 of --q: expected 2 numbers, as in its first row, got 1: '2'.", {"row": 2}),
        ("1,0; x,2", "number 1 in row 2 of --q: expected a finite number, got 'x'.", {"row": 2, "column": 1}),
        ("1,nan", "number 2 in row 1 of --q: expected a finite number, got 'nan'.", {"row": 1, "column": 2}),
        (
            "1,2;3,1e999",
            "number 2 in row 2 of --q: expected a finite number, got '1e999'.",
            {"row": 2, "column": 2},
        ),
        (
            "1,,2",
            "number 2 in row 1 of --q: expected a finite number, got nothing between two",
            {"row": 1, "column": 2},
        ),
        ("", "row 1 of --q: expected at least one number, got nothing.", {"row": 1}),
        ("1;;2", "row 2 of --q: expected at least one number, got nothing.", {"row": 2}),
    ],
    ids=repr,
)
def test_a_matrix_with_a_slip_is_refused_at_its_place(text, sentence, facts):
    with pytest.raises(InputError, match=re.escape(sentence)) as error:
        parse_matrix("--q", text)
    assert error.value.facts == facts
    assert 'for example "1,0; 0,2; 2,1"' in error.value.way_out


def check(*arguments):
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False)


def altered(folder, change):
    example = json.loads(DATA.read_text())
    change(example)
    path = folder / "example.json"
    path.write_text(json.dumps(example))
    return path


def put(table, row, column, value):
    return lambda example: example[table][row].__setitem__(column, value)


def test_the_check_says_ok_on_the_lessons_own_file():
    done = check()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "OK: 18 numbers and 6 masked entries agree to three decimals\n"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (put("scores", 1, 0, 0.1), "scores, destination 2, source 1: the file says 0.1, computed 0\n"),
        (
            put("scores", 2, 2, 2.122),
            "scores, destination 3, source 3: the file says 2.122, computed 2.12132\n",
        ),
        (put("scores", 0, 1, 0.0), "scores, destination 1, source 2: the file says 0, computed masked\n"),
        (
            put("scores", 1, 1, None),
            "scores, destination 2, source 2: the file says masked, computed 1.41421\n",
        ),
        (
            put("weights", 2, 1, 0.141),
            "weights, destination 3, source 2: the file says 0.141, computed 0.140029\n",
        ),
        (
            put("weights", 0, 0, float("nan")),
            "weights, destination 1, source 1: the file says nan, computed 1\n",
        ),
        (
            put("outputs", 1, 1, 1.608),
            "outputs, destination 2, component 2: the file says 1.608, computed 1.60886\n",
        ),
        (put("q", 2, 0, 1), "scores, destination 3, source 1: the file says 1.414, computed 0.707107\n"),
        (put("k", 0, 0, 2), "scores, destination 1, source 1: the file says 0.707, computed 1.41421\n"),
        (put("v", 1, 1, 3), "outputs, destination 2, component 2: the file says 1.609, computed 2.41329\n"),
    ],
)
def test_the_check_names_the_first_number_that_is_off(tmp_path, change, sentence):
    done = check(altered(tmp_path, change))
    assert (done.stdout, done.stderr, done.returncode) == (sentence, "", 1)


def test_of_two_numbers_that_are_off_the_check_names_the_first(tmp_path):
    def both(example):
        put("outputs", 0, 0, 9)(example)
        put("weights", 2, 2, 9)(example)

    assert check(altered(tmp_path, both)).stdout.startswith("weights, destination 3, source 3: the file says 9,")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda example: example.pop("weights"), "it has no list named 'weights'"),
        (lambda example: example["q"].pop(), "'q' has 2 rows for 3 tokens"),
        (lambda example: example["scores"][1].pop(), "row 2 of 'scores' is not a list of 3"),
        (put("v", 0, 0, None), "row 1 of 'v' holds something that is not a number"),
        (put("weights", 0, 0, "1.0"), "row 1 of 'weights' holds something that is not a number"),
        (put("outputs", 0, 0, True), "row 1 of 'outputs' holds something that is not a number"),
        (put("outputs", 0, 0, 10**400), "row 1 of 'outputs' holds something that is not a number"),
        (
            lambda example: [row.pop() for row in example["outputs"]],
            "the rows of 'outputs' are not as long as",
        ),
        (put("q", 0, 0, float("inf")), "a number in q: expected a finite number, got inf at (0, 0)"),
    ],
)
def test_a_file_that_cannot_be_checked_is_status_two(tmp_path, change, sentence):
    path = altered(tmp_path, change)
    done = check(path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"cannot check {path}: {sentence}")


@pytest.mark.parametrize("content", [None, b"{", b"\xff", b"[]"], ids=repr)
def test_a_missing_or_broken_file_is_status_two(tmp_path, content):
    path = tmp_path / "example.json"
    if content is not None:
        path.write_bytes(content)
    done = check(path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"cannot check {path}: ")
    assert "Traceback" not in done.stderr
