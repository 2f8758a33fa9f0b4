import numpy as np
import pytest

from wherefrom.attention import Mask, attend, multi_head, project, scores, weights
from wherefrom.errors import InputError

H, K, T, S, D, V = 6, 3, 5, 7, 11, 13
Q, KEY = np.ones((H, T, D)), np.ones((K, S, D))
VALUE = np.ones((K, S, V))


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (
            lambda: attend([1, 2], KEY, VALUE),
            "q: expected numbers of shape [H, T, D], or [T, D] for one head, got int64 ",
        ),
        (
            lambda: attend(Q, [[1], [2, 3]], VALUE),
            "k: expected numbers of shape [K, S, D], or [S, D] for one head, got no",
        ),
        (
            lambda: attend(Q, KEY, [["a"]]),
            "v: expected numbers of shape [K, S, V], or [S, V] for one head, got <U1 of",
        ),
        (
            lambda: attend(np.ones((0, T, D)), KEY, VALUE),
            "got float64 of shape (0, 5, 11). Positions are rows",
        ),
        (
            lambda: attend(Q * np.nan, KEY, VALUE),
            "a number in q: expected a finite number, got nan at (0, 0, 0).",
        ),
        (
            lambda: attend(Q, KEY, np.where(VALUE.cumsum(1) > 6, np.inf, 0)),
            "in v: expected a finite number, got inf at (0, 6, 0)",
        ),
        (
            lambda: attend(Q * 1e300, KEY * 1e300, VALUE),
            "a score: expected a finite number, got inf at (0, 0, 0)",
        ),
        (
            lambda: attend(Q, KEY[..., 1:], VALUE),
            "one length, at least 1, in both, got q of shape (6, 5, 11), k of shape (3, 7, 10)",
        ),
        (lambda: attend(Q[..., :0], KEY[..., :0], VALUE), "vectors of one length, at least 1"),
        (
            lambda: attend(Q[:5], KEY, VALUE),
            "multiple of the key heads, got q of shape (5, 5, 11), k of shape (3, 7, 11)",
        ),
        (
            lambda: attend(Q, KEY, VALUE[:, 1:]),
            "k and v: expected as many heads and sources in v as in k, got k of shape (3, 7, 11), v of shape",
        ),
        (lambda: attend(Q, KEY, VALUE[:1]), "k and v: expected as many heads"),
        (
            lambda: attend(Q, KEY, VALUE, Mask(padding=[True])),
            "the mask's padding: expected one entry a source, 7, got 1",
        ),
        (
            lambda: attend(Q, KEY, VALUE, Mask(explicit=np.ones((2, T, S), bool))),
            "the mask: expected bool of shape (5, 7), or (6, 5, 7) when heads differ, got a bool mask of",
        ),
        (
            lambda: attend(Q, KEY, VALUE, scale=np.nan),
            "the scale: expected a finite number, got nan. Leave it out",
        ),
        (lambda: attend(Q, KEY, VALUE, scale="wide"), "the scale: expected a finite number, got 'wide'"),
        (
            lambda: attend(Q, KEY, VALUE, softcap=0.0),
            "the softcap: expected a finite number above 0, got 0.0",
        ),
        (
            lambda: attend(Q, KEY, VALUE, sinks=[0.0]),
            "the sinks: expected one logit a query head, 6, got sinks of shape (1,)",
        ),
        (
            lambda: attend(Q, KEY, VALUE, sinks=[np.inf] * H),
            "a number in the sinks: expected a finite number, got inf at (0,)",
        ),
        (
            lambda: attend(Q, KEY, VALUE, sinks=0.0),
            "the sinks: expected numbers of shape [H], got float64 of shape ()",
        ),
        (
            lambda: weights([[1.0]], [[1.0]]),
            "the mask: expected bool of shape (1, 1), or (1, 1, 1) when heads differ, got a float64 mask",
        ),
        (
            lambda: weights([[-np.inf]], [[False]]),
            "a number in scores: expected a finite number, got -inf at (0, 0)",
        ),
        (lambda: project([[1, 2]], [[1]]), "x and w: expected as many columns in w (out, in) as x is wide"),
        (
            lambda: project([[[1.0]]], [[1.0]]),
            "x: expected numbers of shape [T, M], got float64 of shape (1, 1, 1)",
        ),
        (
            lambda: project([[1e300]], [[1e300]]),
            "a projected number: expected a finite number, got inf at (0, 0)",
        ),
        (
            lambda: multi_head(*[np.eye(4)] * 6, heads=3),
            "w_q: expected a number of rows that 3 heads can share evenly, got 4",
        ),
        (
            lambda: multi_head(*[np.eye(4)] * 6, heads=0),
            "the number of heads: expected a whole number from 1 up, got 0",
        ),
    ],
)
def test_what_means_nothing_is_refused(ask, sentence):
    with pytest.raises(InputError) as error:
        ask()
    assert sentence in str(error.value)
    assert error.value.way_out


def test_a_number_that_is_not_finite_is_found_by_its_place():
    q = Q.copy()
    q[2, 3, 5] = np.inf
    with pytest.raises(InputError) as error:
        scores(q, KEY)
    assert error.value.facts["where"] == (2, 3, 5)
