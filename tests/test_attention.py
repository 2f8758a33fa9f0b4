import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from plain_attention import plain_head
from wherefrom.attention import Mask, attend, multi_head, project, scores, weights

CLOSE = {"rtol": 0, "atol": 1e-12}  # double precision on numbers of size 1, with room for the order of sums
H, K, T, S, D, V, M = 6, 3, 5, 7, 11, 13, 17  # K divides H; the others are primes, all distinct


def numbers(seed, **shapes):
    generator = np.random.default_rng(seed)
    return {name: generator.normal(size=shape) for name, shape in shapes.items()}


def qkv(seed=0, *, heads=H, groups=K, destinations=T, sources=S):
    shapes = {"q": (heads, destinations, D), "k": (groups, sources, D), "v": (groups, sources, V)}
    return numbers(seed, **shapes).values()


MASKS = {
    "causal": Mask(),
    "bidirectional": Mask.bidirectional(),
    "offset": Mask(offset=S - T),
    "window": Mask(window=3),
    "window both ways": Mask.bidirectional(window=2),
    "padding": Mask.bidirectional(padding=np.arange(S) != 4),
    "empty rows": Mask(padding=np.arange(S) > 1),
    "explicit": Mask(causal=False, explicit=np.random.default_rng(1).random((T, S)) < 0.5),
    "explicit per head": Mask(explicit=np.random.default_rng(2).random((H, T, S)) < 0.5),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("extras", [{}, {"scale": 0.3}, {"softcap": 0.7}, {"sinks": [0.0, -2, 3, 0.5, 9, 1]}], ids=str)
def test_attend_is_what_plain_lists_compute(name, extras):
    q, k, v = qkv()
    got = attend(q, k, v, MASKS[name], **extras)
    permitted = np.broadcast_to(MASKS[name].dense(T, S), (H, T, S)).tolist()
    assert got.permitted.tolist() == permitted
    sinks = extras.get("sinks", [None] * H)
    plain = {key: value for key, value in extras.items() if key != "sinks"}
    for head in range(H):
        key, value = k[head // 2].tolist(), v[head // 2].tolist()
        twin = plain_head(q[head].tolist(), key, value, permitted[head], sink=sinks[head], **plain)
        for row, expected in enumerate(twin):
            assert got.empty[head, row] == (expected is None)
            if expected is not None:
                np.testing.assert_allclose(got.weights[head, row], expected[0], **CLOSE)
                np.testing.assert_allclose(got.lse[head, row], expected[2], **CLOSE)
                np.testing.assert_allclose(got.output[head, row], expected[3], **CLOSE)
                if got.sink_share is not None:
                    np.testing.assert_allclose(got.sink_share[head, row], expected[1], **CLOSE)
    assert (got.sink_share is None) == ("sinks" not in extras)


@pytest.mark.parametrize("name", [name for name in MASKS if name not in {"empty rows", "explicit per head"}])
@pytest.mark.parametrize("groups", [1, 3, 6])
def test_attend_is_what_torch_computes(name, groups):
    q, k, v = qkv(3, groups=groups)
    allowed = MASKS[name].dense(T, S)
    rows = allowed.any(axis=-1)  # torch fills empty rows in its own way: they are left out, and few
    assert rows.sum() >= T - 1
    got = attend(q, k, v, MASKS[name], scale=0.31).output
    tensors = [torch.from_numpy(a)[None] for a in (q, k, v)]
    torchs = scaled_dot_product_attention(*tensors, attn_mask=torch.from_numpy(allowed), scale=0.31, enable_gqa=True)
    np.testing.assert_allclose(got[:, rows].data, torchs[0].numpy()[:, rows], **CLOSE)


def test_two_keys_and_e():
    """Scores 1 and 0 give weights e / (e + 1) and 1 / (e + 1), on paper."""
    got = attend([[1.0]], [[1.0], [0.0]], [[10.0], [20.0]], Mask.bidirectional())
    e = math.e
    np.testing.assert_allclose(got.weights[0, 0], [e / (e + 1), 1 / (e + 1)], **CLOSE)
    np.testing.assert_allclose(got.output[0, 0], [(10 * e + 20) / (e + 1)], **CLOSE)
    np.testing.assert_allclose(got.lse[0, 0], math.log(e + 1), **CLOSE)


def test_equal_keys_share_evenly():
    got = attend(np.zeros((4, 3)), np.ones((4, 3)), np.arange(4.0)[:, None])
    assert got.weights[0, 3].tolist() == [0.25] * 4
    assert got.output[0, :, 0].tolist() == [0.0, 0.5, 1.0, 1.5]


def test_a_mask_that_leaves_one_key_gives_it_exactly_one():
    q, k, v = qkv()
    got = attend(q, k, v, Mask(window=1))
    assert (got.weights[:, range(T), range(T)] == 1.0).all()
    assert np.asarray(got.output).tolist() == np.repeat(v, 2, axis=0)[:, :T].tolist()


def test_a_window_of_w_keys_ends_exactly_before_distance_w():
    q, k, v = qkv()
    for window in (1, 2, 3):
        row = attend(q, k, v, Mask(window=window)).weights[:, 4]
        assert (row[:, 4 - window] == 0.0).all()
        assert (row[:, 4 - window + 1] > 0.0).all()


def test_grouped_heads_are_repeated_heads():
    q, k, v = qkv()
    grouped = attend(q, k, v)
    repeated = attend(q, np.repeat(k, 2, axis=0), np.repeat(v, 2, axis=0))
    np.testing.assert_array_equal(grouped.weights, repeated.weights)
    np.testing.assert_array_equal(grouped.output, repeated.output)
    alone = attend(q[3], k[1], v[1])  # head 3 reads key/value head 3 // (6 // 3) = 1
    np.testing.assert_allclose(alone.output[0], grouped.output[3], **CLOSE)


def test_two_dimensions_mean_one_head():
    q, k, v = qkv(heads=1, groups=1)
    flat = attend(q[0], k[0].tolist(), v[0])
    assert flat.weights.shape == (1, T, S)
    assert flat.output.tolist() == attend(q, k, v).output.tolist()


def test_softcap_bounds_the_scores_and_a_large_one_changes_nothing():
    q, k, _ = qkv()
    raw = scores(q, k)
    capped = scores(q, k, softcap=0.5)
    assert np.abs(capped).max() < 0.5
    np.testing.assert_allclose(capped, 0.5 * np.tanh(raw / 0.5), **CLOSE)
    np.testing.assert_allclose(scores(q, k, softcap=1e9), raw, **CLOSE)
    assert scores([[1e200]], [[1e100]], softcap=1e-30).tolist() == [[[1e-30]]]  # no overflow on the way


def test_a_row_and_its_sink_share_are_one_and_the_sink_is_a_key_of_no_value():
    q, k, v = qkv(groups=H)
    sinks = np.array([0.0, -2, 3, 0.5, 9, 1])
    got = attend(q, k, v, sinks=sinks)
    np.testing.assert_allclose(got.weights.sum(axis=-1) + got.sink_share, np.ones((H, T)), **CLOSE)
    # the same with a new first key whose score is the sink logit, and whose value is zero
    q2 = np.concatenate([q, np.ones((H, T, 1))], axis=-1)
    first = np.concatenate([np.zeros((H, 1, D)), sinks[:, None, None] * math.sqrt(D)], axis=-1)
    k2 = np.concatenate([first, np.concatenate([k, np.zeros((H, S, 1))], axis=-1)], axis=1)
    v2 = np.concatenate([np.zeros((H, 1, V)), v], axis=1)
    twin = attend(q2, k2, v2, Mask(offset=1), scale=1 / math.sqrt(D))
    np.testing.assert_allclose(twin.weights[..., 0], got.sink_share, **CLOSE)
    np.testing.assert_allclose(twin.weights[..., 1:], got.weights, **CLOSE)
    np.testing.assert_allclose(twin.output, got.output, **CLOSE)
    np.testing.assert_allclose(twin.lse, got.lse, **CLOSE)


@pytest.mark.parametrize("sinks", [None, np.zeros(H)])
def test_a_destination_with_no_permitted_source_is_marked_everywhere(sinks):
    q, k, v = qkv()
    got = attend(q, k, v, Mask(padding=np.arange(S) > 1), sinks=sinks)  # rows 0 and 1 could read padding only
    assert got.empty.tolist() == [[True, True, False, False, False]] * H
    marked = [got.weights, got.output, got.lse] + ([] if sinks is None else [got.sink_share])
    for array in marked:
        assert np.ma.getmaskarray(array)[:, :2].all()
        assert not np.ma.getmaskarray(array)[:, 2:].any()
        assert np.isnan(array.data[:, :2]).all()  # whoever drops the mask reads no number
        assert np.isfinite(array.data[:, 2:]).all()
    assert (got.weights[:, 2:, :2] == 0.0).all()  # in a row that has sources, padding weighs exactly 0


def test_no_sources_at_all_makes_every_row_empty():
    got = attend(np.ones((T, D)), np.ones((0, D)), np.ones((0, V)))
    assert got.weights.shape == (1, T, 0)
    assert got.empty.all()
    assert got.output.mask.all()
    assert attend(np.ones((0, D)), np.ones((3, D)), np.ones((3, V))).output.shape == (1, 0, V)


def test_huge_scores_stay_safe():
    got = attend([[1.0]], [[800.0], [801.0], [-1e306]], [[1.0], [2.0], [3.0]], Mask.bidirectional())
    e = math.e
    np.testing.assert_allclose(got.weights[0, 0], [1 / (1 + e), e / (1 + e), 0.0], **CLOSE)
    np.testing.assert_allclose(got.lse[0, 0], 801 + math.log(1 + 1 / e), rtol=1e-15)
    sunk = weights([[[0.0, 1.0]]], [[True, True]], sinks=[1000.0])
    assert (sunk.weights.tolist(), sunk.sink_share.tolist(), sunk.lse.tolist()) == (
        [[[0.0, 0.0]]],
        [[1.0]],
        [[1000.0]],
    )
    extremes = weights([[[1.7e308, -1.7e308]]], [[True, True]])
    assert extremes.weights.tolist() == [[[1.0, 0.0]]]


def test_a_score_that_is_not_permitted_has_no_influence():
    s = np.array([[[0.0, 5.0], [0.0, 1e300]]])
    allowed = [[True, False], [True, False]]
    assert weights(s, allowed).weights.tolist() == [[[1.0, 0.0], [1.0, 0.0]]]


def test_nothing_that_was_given_is_changed():
    q, k, v = qkv()
    before = [a.copy() for a in (q, k, v)]
    attend(q, k, v, Mask(padding=np.arange(S) > 1), softcap=1.0, sinks=np.ones(H))
    for now, then in zip((q, k, v), before, strict=True):
        np.testing.assert_array_equal(now, then)


@given(
    st.integers(0, 2**32),
    st.integers(1, 9),
    st.integers(1, 9),
    st.none() | st.integers(1, 5),
    st.booleans(),
    st.none() | st.floats(-50, 50),
)
def test_rows_sum_to_one(seed, destinations, sources, window, causal, sink):
    q, k, v = qkv(seed, heads=1, groups=1, destinations=destinations, sources=sources)
    sinks = None if sink is None else [sink]
    got = attend(q, k, v, Mask(causal=causal, window=window), sinks=sinks)
    totals = got.weights.sum(axis=-1) + (0 if got.sink_share is None else got.sink_share)
    full = ~got.empty
    np.testing.assert_allclose(totals[full], np.ones(full.sum()), **CLOSE)
    assert (got.weights[full] >= 0).all()
    assert (got.weights.data[full][~got.permitted[full]] == 0.0).all()
    # the design's first fact: any weight is one dot product and the row's log-sum-exp
    rebuilt = np.where(got.permitted, np.exp(got.scores - got.lse.data[..., None]), 0.0)
    np.testing.assert_allclose(rebuilt[full], got.weights[full], **CLOSE)


@given(st.integers(0, 2**32), st.permutations(range(S)))
def test_the_order_of_the_sources_does_not_matter(seed, order):
    q, k, v = qkv(seed)
    padding = np.arange(S) != 2
    got = attend(q, k, v, Mask.bidirectional(padding=padding))
    moved = attend(q, k[:, order], v[:, order], Mask.bidirectional(padding=padding[order]))
    np.testing.assert_allclose(moved.weights, got.weights[..., order], **CLOSE)
    np.testing.assert_allclose(moved.output, got.output, **CLOSE)


@given(st.integers(0, 2**32), st.integers(1, S - 1))
def test_decoding_from_a_cache_gives_the_same_rows(seed, past):
    q, k, v = qkv(seed, destinations=S)
    whole = attend(q, k, v, Mask(window=4))
    later = attend(q[:, past:], k, v, Mask(window=4, offset=past))
    np.testing.assert_allclose(later.weights, whole.weights[:, past:], **CLOSE)
    np.testing.assert_allclose(later.lse, whole.lse[:, past:], **CLOSE)


def test_removing_an_edge_is_the_closed_form():
    """The design's third fact: y' - y = -a / (1 - a) * (v_j - y)."""
    q, k, v = qkv(groups=H)
    without = Mask(explicit=np.arange(T * S).reshape(T, S) != 4 * S + 2)  # the edge from 2 to 4
    before, after = attend(q, k, v), attend(q, k, v, without)
    a, y = before.weights[:, 4, 2][:, None], before.output[:, 4]
    np.testing.assert_allclose(after.output[:, 4] - y, -a / (1 - a) * (v[:, 2] - y), **CLOSE)


def test_multi_head_is_what_torchs_layer_computes():
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(21, 3, bias=False, batch_first=True, dtype=torch.float64)
    x = torch.randn(1, T, 21, dtype=torch.float64)
    causal = torch.ones(T, T, dtype=torch.bool).triu(1)  # True where reading is forbidden
    with torch.no_grad():
        output, shares = layer(x, x, x, attn_mask=causal, average_attn_weights=False)
        w_q, w_k, w_v = layer.in_proj_weight.numpy().reshape(3, 21, 21)
        w_o = layer.out_proj.weight.numpy()
    got = multi_head(x[0].numpy(), x[0].numpy(), w_q, w_k, w_v, w_o, heads=3)
    np.testing.assert_allclose(got.output, output[0].numpy(), **CLOSE)
    np.testing.assert_allclose(got.heads.weights, shares[0].numpy(), **CLOSE)


def test_multi_head_reads_another_text_with_grouped_heads():
    sizes = {
        "x": (T, M),
        "x2": (S, 5),
        "w_q": (H * D, M),
        "w_k": (K * D, 5),
        "w_v": (K * V, 5),
        "w_o": (M, H * V),
    }
    x, x2, w_q, w_k, w_v, w_o = numbers(4, **sizes).values()
    got = multi_head(x, x2, w_q, w_k, w_v, w_o, heads=H, kv_heads=K, mask=Mask.bidirectional(), scale=0.01)
    head = attend(
        x @ w_q[3 * D : 4 * D].T,
        x2 @ w_k[D : 2 * D].T,
        x2 @ w_v[V : 2 * V].T,
        Mask.bidirectional(),
        scale=0.01,
    )
    np.testing.assert_allclose(got.heads.output[3], head.output[0], **CLOSE)
    np.testing.assert_array_equal(got.concatenated[:, 3 * V : 4 * V], got.heads.output[3])
    np.testing.assert_array_equal(got.output, got.concatenated.data @ w_o.T)


def test_multi_head_marks_a_row_with_an_empty_head():
    x, w = np.ones((2, 4)), np.eye(4)
    explicit = np.ones((2, 2, 2), dtype=bool)
    explicit[1, 0] = False
    got = multi_head(x, x, w, w, w, w, heads=2, mask=Mask(explicit=explicit))
    assert got.heads.empty.tolist() == [[False, False], [True, False]]
    assert got.output.mask.tolist() == got.concatenated.mask.tolist() == [[True] * 4, [False] * 4]
    assert got.output.data[1].tolist() == [1.0] * 4


def test_project_is_the_lessons_matrix_times_vector():
    assert project([[1, 2, 3]], [[1, 0, 0], [0, 1, 1]]).tolist() == [[1.0, 5.0]]
