"""What a scan refuses, in a sentence each."""

import dataclasses

import numpy as np
import pytest

from scans_made import made
from wherefrom.attention import Mask
from wherefrom.errors import InputError
from wherefrom.scans import NAMES, Scan, scan
from wherefrom.scans.device import scan_on_device

AT = made(rows=5, heads=2, kv_heads=1, sinks=True).attention


def with_nan(array):
    array = array.copy()
    array[0, 0] = np.nan
    return array


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": AT.q[0]}, r"q: expected an array of numbers \[H, T, D\], got float32 of shape \(5, 3\)"),
        ({"q": AT.q[:, :0]}, r"q: .* got float32 of shape \(2, 0, 3\)"),
        ({"q": AT.q.astype(complex)}, "q: .* got complex128"),
        ({"q": AT.q.tolist()}, "q: .* got no array of numbers"),
        ({"k": AT.k[..., :2]}, r"k: expected an array of numbers \[K, S, D\], 3, got float32 of shape \(1, 5, 2\)"),
        ({"lse": AT.lse[:, :4]}, r"lse: expected an array of numbers \[H, T\], 2, 5, got float32 of shape \(2, 4\)"),
        ({"sinks": AT.sinks[:1]}, r"sinks: expected an array of numbers \[H\], 2, got float32 of shape \(1,\)"),
        ({"bias": np.zeros((3, 5, 5))}, r"bias: expected .* \[H, T, S\] or \[1, T, S\], 2, 5, 5"),
        ({"bias": np.full((1, 5, 5), np.nan)}, "the bias of head 0, row 0: expected no NaN"),
        ({"bias": np.full((1, 5, 5), np.inf)}, "the bias of head 0, row 0: expected no NaN and no [+]inf"),
        ({"q": with_nan(AT.q)}, r"a number in q: expected a finite number, got one that is not at \(0, 0, 0\)"),
        ({"k": with_nan(AT.k)}, "a number in k: expected a finite number"),
        ({"lse": with_nan(AT.lse)}, r"a number in lse: .* at \(0, 0\)"),
        ({"lse": AT.lse + np.inf}, "a number in lse: expected a finite number"),
        ({"mask": None}, "the mask: expected a Mask, got None"),
        ({"mask": Mask(padding=np.ones(4, bool))}, r"the mask's padding: expected \[S\], 5, got shape \(4,\)"),
        ({"mask": Mask(padding=np.ones((2, 5), bool))}, r"the mask's padding: expected \[S\], 5, got shape \(2, 5\)"),
        (
            {"mask": Mask(explicit=np.ones((3, 5, 5), bool))},
            r"the explicit mask: expected shape \(5, 5\) or \(2, 5, 5\)",
        ),
        ({"key_heads": (0, 1)}, r"the key heads: expected 2 whole numbers from 0 to 0, got \(0, 1\)"),
        ({"key_heads": (0,)}, r"the key heads: expected 2 whole numbers from 0 to 0, got \(0,\)"),
        ({"k": np.repeat(AT.k, 3, axis=0)}, "q: expected a number of heads that is a multiple of 3, got 2"),
        ({"codes": np.zeros(4, int)}, r"codes: expected an array of numbers \[S\], 5"),
        ({"codes": np.zeros(5)}, "the codes: expected whole numbers, got float64"),
        ({"scale": np.nan}, "the scale and the softcap: expected finite numbers, got nan and None"),
        ({"softcap": 0.0}, "the softcap: expected a number above 0, got 0.0"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        dataclasses.replace(AT, **{"key_heads": (), **changes})


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (
            ("entropy", "entropie"),
            f"expected a name that a scan knows, got 'entropie'. The names are {', '.join(NAMES)}",
        ),
        ("entropy", "what is wanted: expected a collection of names, got 'entropy'"),
        ((), "what is wanted: expected at least one name, got none"),
    ],
)
def test_unknown_names_are_refused_with_the_list(wanted, message):
    with pytest.raises(InputError, match=message):
        scan(AT, wanted)
    with pytest.raises(InputError, match=message):
        scan_on_device(AT, wanted, device="cpu")


@pytest.mark.parametrize("name", ["duplicate", "induction"])
def test_same_tokens_need_the_codes_of_a_text_that_reads_itself(name):
    with pytest.raises(InputError, match=f'a scan for "{name}": expected a text .* got no codes'):
        scan(dataclasses.replace(AT, codes=None), (name,))
    later = made(Mask(offset=2), rows=3, columns=5).attention
    with pytest.raises(InputError, match="got 3 destinations over 5 sources, the first at position 2"):
        scan(dataclasses.replace(later, codes=np.arange(5)), (name,))
    assert name not in later.names


def test_a_sink_is_not_asked_for_where_there_is_none():
    without = made(rows=5).attention
    with pytest.raises(InputError, match='a scan for "sink": expected a call with sink logits, got one without'):
        scan(without, ("sink",))
    assert "sink" in AT.names
    assert "sink" not in without.names


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": 0}, "the threshold: expected a number above 0 and at most 1, got 0"),
        ({"threshold": np.nan}, "the threshold: expected a number above 0 and at most 1, got nan"),
        ({"top": 0}, "the number of strongest sources: expected a whole number from 1 up, got 0"),
        ({"strip": 0}, "the strip: expected a whole number from 1 up, got 0"),
        ({"threads": 0}, "the number of threads: expected a whole number from 1 up, got 0"),
        ({"block": 0}, "the block: expected a whole number from 1 up, got 0"),
        ({"block": 6}, "the block: expected a power of two, got 6"),
        ({"engine": "gpu"}, "the engine: expected one of auto, reference, cpu, got 'gpu'"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        scan(AT, ("entropy",), **options)


def test_a_scan_says_what_it_does_not_hold():
    found = scan(AT, ("entropy", "received"))
    for ask, name in ((lambda: found["first"], "'first'"), (lambda: found["zoom"], "'zoom'")):
        with pytest.raises(InputError, match=f"expected one of what it holds, entropy, received, got {name}"):
            ask()
    with pytest.raises(InputError, match="got 'top'"):
        _ = found.strongest
    with pytest.raises(InputError, match="got 'zoom'"):
        _ = found.zoom
    with pytest.raises(InputError, match='expected "empty" and "size" among them, got none'):
        Scan.from_arrays({}, threshold=0.05, top=8)


def test_a_number_is_not_attention():
    with pytest.raises(InputError, match="the attention: expected a Attention, got 3"):
        scan(3, ("entropy",))
