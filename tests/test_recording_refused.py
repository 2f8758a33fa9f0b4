"""What could not be opened again is not written: each refusal has a sentence, and leaves nothing behind."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from by_hand import call_of
from recordings import exact_call, facts_of, plain, tokens_of, uneven, with_everything, with_rows
from wherefrom.attention import Mask
from wherefrom.errors import InputError, RecordingError
from wherefrom.recording import Call, Check, Gap, Prediction, Recording, Writer, open_recording, save_recording
from wherefrom.spans import Token, Tokens

SELF = "calls/decoder-self-000.safetensors"


def with_number(call: Call, array: str, at: tuple[int, ...], number: float) -> Call:
    changed = getattr(call, array).copy()
    changed[at] = number
    return replace(call, **{array: changed})


def recorded(call: Call, **others: Any) -> Recording:
    return replace(plain(), calls=(call,), **others)


NOT_FINITE = [
    ("q", (5, 1, 3), np.nan, {"head": 5, "position": 1}),
    ("k", (1, 4, 0), np.inf, {"head": 1, "position": 4}),
    ("v", (0, 6, 2), -np.inf, {"head": 0, "position": 6}),
    ("lse", (2, 3), np.nan, {"head": 2, "position": 3}),
    ("lse", (2, 3), np.inf, {"head": 2, "position": 3}),
    ("bias", (0, 2, 5), np.nan, {"head": 0, "position": 2}),
    ("sinks", (4,), np.inf, {"head": 4}),
    ("output", (3, 10, 2), np.nan, {"head": 3}),
]


@pytest.mark.parametrize("store", [None, "float16", "bfloat16"])
@pytest.mark.parametrize(("array", "at", "number", "facts"), NOT_FINITE)
def test_a_number_that_is_not_finite(array, at, number, facts, store, tmp_path: Path) -> None:
    call = with_number(with_everything(layer=1), array, at, number)
    with pytest.raises(RecordingError, match=rf"{array} of layer 1 \(self of the decoder\): expected ") as caught:
        save_recording(recorded(call), tmp_path / "a", store=store)
    assert f"got {number:.6g} at " in str(caught.value)
    for name, fact in ({"layer": 1, "array": array} | facts).items():
        assert getattr(caught.value, name) == fact
    assert list(tmp_path.iterdir()) == []


def test_a_number_that_is_not_finite_in_a_part(tmp_path: Path) -> None:
    """Head and position are the true numbers, not places among those that were kept."""
    call = with_number(with_rows(exact_call(Mask()), (1, 5), (0, 2, 4, 6)), "q", (1, 2, 0), np.nan)
    with pytest.raises(RecordingError, match="expected finite numbers, got nan at head 5, position 4"):
        save_recording(recorded(call), tmp_path / "a")


def test_minus_infinity_where_it_has_a_meaning(tmp_path: Path) -> None:
    call = with_number(with_number(with_everything(), "sinks", (4,), -np.inf), "bias", (0, 2, 5), -np.inf)
    opened = open_recording(save_recording(recorded(call), tmp_path / "a"))
    assert opened.calls[0].sinks[4] == opened.calls[0].bias[0, 2, 5] == -np.inf


@pytest.mark.parametrize(
    ("store", "number", "sentence"),
    [
        (
            "float16",
            65520.0,
            "numbers that float16 holds, at most 65,504, got 65520 at key head 1, position 4. Store them",
        ),
        (
            "bfloat16",
            3.4e38,
            "numbers that bfloat16 holds, at most 3.38953e+38, got 3.4e+38 at key head 1, position 4. Store",
        ),
    ],
)
def test_a_number_beyond_the_format(store: str, number: float, sentence: str, tmp_path: Path) -> None:
    call = with_number(exact_call(Mask()), "k", (1, 4, 0), number)
    with pytest.raises(RecordingError, match=re.escape(f"k of layer 0 (self of the decoder): expected {sentence}")):
        save_recording(recorded(call), tmp_path / "a", store=store)
    largest = with_number(exact_call(Mask()), "v", (1, 4, 0), 65519.0 if store == "float16" else 3.39e38)
    assert save_recording(recorded(largest), tmp_path / "a", store=store).is_dir()


def test_numbers_that_are_not_of_their_format(tmp_path: Path) -> None:
    opened = open_recording(save_recording(uneven(), tmp_path / "a", store="bfloat16"))
    changed = with_number(replace(opened.calls[0], scale=1.0), "q", (2, 3, 1), 1.0001)
    with pytest.raises(RecordingError, match=r"expected numbers of bfloat16, .* got 1.0001 at head 2, position 3"):
        save_recording(replace(opened, calls=(changed,)), tmp_path / "b")
    with pytest.raises(RecordingError, match="expected numbers to round to float16, got numbers in bfloat16 already"):
        save_recording(opened, tmp_path / "b", store="float16")


def _tokens(*items: Token, text: str = "ab") -> Tokens:
    return Tokens(text, items)


A = Token(0, 1, "a", b"a", (0, 1), "a")
UNFIT: dict[str, tuple[Recording, str]] = {
    "another format": (
        recorded(replace(exact_call(Mask()), q=np.ones((6, 7, 5), int))),
        "q of layer 0: expected a numpy arr",
    ),
    "a wide lse": (
        recorded(replace(exact_call(Mask()), lse=np.ones((6, 7)))),
        "lse of layer 0: expected a numpy array of flo",
    ),
    "k of other sizes": (
        recorded(replace(exact_call(Mask()), k=np.ones((2, 7, 4)))),
        f"k in {SELF}: expected F16 or BF16 or",
    ),
    "a batch of masks": (
        recorded(replace(exact_call(Mask()), mask=Mask(padding=np.ones((1, 7), bool)))),
        f"padding in {SELF}: expected BOOL of shape [7], got BOOL of shape [1, 7]. Mend the call",
    ),
    "a scale that is none": (
        recorded(replace(exact_call(Mask()), scale=np.nan)),
        "recording.json: expected finite numbers",
    ),
    "a check that is none": (
        recorded(replace(exact_call(Mask()), checks=(Check((0,), np.nan, 0.0, 0.0),))),
        "checks.found of layer 0",
    ),
    "a kind that is none": (
        recorded(replace(exact_call(Mask()), kind="both")),
        "the kind of layer 0: expected self or cross, got 'both'. Mend the call",
    ),
    "a part that is none": (
        recorded(replace(exact_call(Mask()), part="Vision Tower")),
        'the part of layer 0: expected small letters, digits, "_" and ".", a letter first',
    ),
    "an execution twice": (
        replace(plain(), calls=(replace(plain().calls[0], repeat=2),) * 2),
        "the call of layer 0 (self of the decoder, execution 2): expected it once, got it twice.",
    ),
    "an execution that is none": (
        recorded(replace(exact_call(Mask()), repeat=-1)),
        "calls[0].repeat: expected a whole number from 0, got -1.",
    ),
    "a gap of another kind": (
        replace(plain(), gaps=(Gap("a", "convolution"),)),
        'gaps[0].what: expected "softmax" or',
    ),
    "a call twice": (
        replace(plain(), calls=(plain().calls[0],) * 2),
        "the call of layer 0 (self of the decoder): expected it",
    ),
    "another place": (
        replace(plain(), tokens=_tokens(replace(A, position=1))),
        "token 0: expected position 0, and the text",
    ),
    "another text": (
        replace(plain(), tokens=_tokens(replace(A, text="b"))),
        "token 0: expected position 0, and the text of it",
    ),
    "a lone surrogate": (
        replace(plain(), tokens=_tokens(A, text="\ud800")),
        "the text: expected text that UTF-8 can hold, got",
    ),
    "a label that is none": (
        replace(plain(), tokens=_tokens(replace(A, label="\udc80"))),
        "the label of token 0: expected te",
    ),
    "a huge id": (
        replace(plain(), tokens=_tokens(replace(A, id=2**63))),
        "ids: expected numbers of 64 bits, got larger ones",
    ),
    "a span beyond": (
        replace(plain(), tokens=_tokens(replace(A, span=(0, 3)))),
        "ids and spans in tokens.safetensors: expect",
    ),
    "ragged predictions": (
        replace(plain(), predictions=(Prediction(1, (1,), (-1.0,)), Prediction(2, (1, 2), (-1.0, -2.0)))),
        "the predictions: expected as many ids as log-probabilities in each, the same number",
    ),
    "labels of some": (
        replace(plain(), predictions=(Prediction(1, (1,), (-1.0,), labels=("a",)), Prediction(2, (1,), (-1.0,)))),
        "the labels of the predictions: expected a label for every id or for none",
    ),
    "two labels of one": (
        replace(plain(), predictions=(Prediction(1, (1, 1), (-1.0, -2.0), labels=("a", "b")),)),
        "the labels of the predictions: expected a label for every id or for none",
    ),
    "a next token alone": (
        replace(plain(), predictions=(Prediction(1, (), (), 5),)),
        "the predictions: expected as many ids",
    ),
    "a prediction beyond": (
        replace(plain(), predictions=(Prediction(7, (), ()),)),
        "the numbers in predictions.safetensors:",
    ),
    "written from beyond": (replace(plain(), written_from=8), "written_from: expected one of 7 tokens, got 8"),
    "facts that are none": (
        replace(plain(), model=facts_of(layers="two")),
        "model.layers: expected a whole number from 0 to 100000, g",
    ),
    "a name without end": (
        replace(plain(), model=facts_of(name="a" * 2**24)),
        "recording.json: expected at most 16,777,2",
    ),
    "a strange name": (
        replace(plain(), model=facts_of(name=b"x")),
        "recording.json: expected finite numbers and texts",
    ),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_could_not_be_opened_is_not_written(name: str, tmp_path: Path) -> None:
    recording, sentence = UNFIT[name]
    with pytest.raises(RecordingError) as caught:
        save_recording(recording, tmp_path / "a")
    assert str(caught.value).startswith(f"{tmp_path / 'a'}: {sentence}")
    assert list(tmp_path.iterdir()) == []


def test_no_recording_no_format_no_call(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the recording: expected a Recording"):
        save_recording("a text", tmp_path / "a")  # type: ignore[arg-type]
    with pytest.raises(InputError, match='expected "float16", "bfloat16" or None, got \'int8\''):
        save_recording(plain(), tmp_path / "a", store="int8")
    with Writer(tmp_path / "a", model=facts_of(), tokens=tokens_of("a")) as writer:
        with pytest.raises(InputError, match="the call: expected a Call"):
            writer.add("a call")  # type: ignore[arg-type]
        writer.add(call_of(np.ones((1, 1, 1)), np.ones((1, 1, 1))))  # a refused call does not end the writer
        writer.finish(predictions=())
    assert len(open_recording(tmp_path / "a").calls) == 1
