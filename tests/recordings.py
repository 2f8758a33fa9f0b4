"""Recordings by hand with everything that a file can hold, and what it is for two of them to be the same.

`python tests/recordings.py` writes those of tests/golden afresh, where their format is meant to change. Those of
version 1 are as its writer left them, and nothing can write them again.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from by_hand import PER_HEAD, call_of
from wherefrom.attention import Mask
from wherefrom.recording import (
    ARRAYS,
    Call,
    Check,
    Gap,
    Kept,
    ModelFacts,
    Prediction,
    Recording,
    save_recording,
)
from wherefrom.spans import Tokens, tokens_at

GOLDEN = Path(__file__).parent / "golden"


def tokens_of(*pieces: str) -> Tokens:
    """Tokens of pieces of text; of a smiling face two, neither of them a whole character."""
    text, data, spans = "".join(pieces), [], []
    for piece in pieces:
        at = spans[-1][1] if spans else 0
        for part in (piece.encode()[:2], piece.encode()[2:]) if piece == "🙂" else (piece.encode(),):
            data.append(part)
            spans.append((at, at + len(piece)))
    return tokens_at(text, [7 * place for place in range(len(data))], data, spans)


def numbers(*shape: int, step: int = 37) -> np.ndarray:
    """Numbers that every format holds exactly, the same on every machine."""
    return (((np.arange(np.prod(shape)) * step % 101) - 50) / 16).reshape(shape).astype(np.float32)


def exact_call(mask: Mask, *, layer: int = 0, by: float = 1.0, **kinds: object) -> Call:
    q, k, v = (np.float32(by) * x for x in (numbers(6, 7, 5), numbers(2, 7, 5, step=41), numbers(2, 7, 3, step=43)))
    return replace(call_of(q, k, v, mask=mask, scale=0.375, layer=layer), **kinds)


def checked(call: Call) -> Call:
    """The call with self-checks, one of them without rows."""
    return replace(call, checks=(Check((0, 3, 6), 1e-7, 2.5e-7, 1e-5), Check((), 0.0, 0.0, 1e-5)))


def with_everything(layer: int = 0) -> Call:
    """A call with a bias, sinks, a softcap, an output projection, and padding and an explicit mask."""
    q, k, v = numbers(6, 7, 5), numbers(2, 7, 5, step=41), numbers(2, 7, 3, step=43)
    mask = Mask(window=4, padding=np.arange(7) != 3, explicit=PER_HEAD)
    sinks, bias, softcap = numbers(6), numbers(1, 7, 7, step=11), 20.0
    scores = 0.375 * (q @ np.repeat(k, 3, axis=0).transpose(0, 2, 1)).astype(np.float64)
    scores = softcap * np.tanh(scores / softcap) + bias
    scores = np.where(mask.permitted(range(7), range(7)), scores, -np.inf)
    lse = np.logaddexp(np.logaddexp.reduce(scores, axis=-1), sinks[:, None]).astype(np.float32)
    made = Call(layer, "блок.0", "self", q, k, v, lse, mask, 0.375, "by hand", (), softcap=softcap)
    return checked(replace(made, bias=bias, sinks=sinks, output=numbers(6, 11, 3)))


def with_rows(call: Call, heads: tuple[int, ...], rows: tuple[int, ...]) -> Call:
    """What is left of a call when some heads and destinations are kept."""
    kept = Kept(heads, tuple(head // 3 for head in heads), np.array(rows), call.heads, call.destinations)
    some = {"q": call.q[list(heads)][:, list(rows)], "lse": call.lse[list(heads)][:, list(rows)]}
    if call.bias is not None:
        some["bias"] = (call.bias if len(call.bias) == 1 else call.bias[list(heads)])[:, list(rows)]
    some |= {name: getattr(call, name)[list(heads)] for name in ("sinks", "output") if getattr(call, name) is not None}
    return replace(call, kept=kept, **some)


def facts_of(**others: object) -> ModelFacts:
    return replace(ModelFacts("by hand", "0" * 64, 2, 6, 2, 5, 100), **others)


def plain(by: float = 1.0) -> Recording:
    """A decoder of two layers, its predictions with and without a next token; q, k and v times a number."""
    predictions = (
        Prediction(3, (7, 14), (-0.25, -1.5), 28, -3.125, ("b", "ü")),
        Prediction(6, (0, 7), (-0.5, float("-inf")), labels=("", "b")),
    )
    calls = (checked(exact_call(Mask(), by=by)), exact_call(Mask(window=3), by=by, layer=1))
    return Recording(facts_of(), tokens_of(*"abcdefg"), calls, predictions, 4, 0.125)


def everything() -> Recording:
    """An encoder and a decoder with all that is optional; two layers of three were kept, with some heads and rows."""
    words, source = tokens_of("Zoë", "\t", "🙂", "\0", "ﬁ", "\U0001f642\u200d"), tokens_of(*"ABCDEFG")
    encoder = exact_call(Mask.bidirectional(padding=np.arange(7) < 6), part="encoder")
    own = with_rows(with_everything(layer=1), (1, 5), (0, 2, 4, 6))
    cross = exact_call(Mask.bidirectional(), kind="cross", name="cross", layer=2)
    facts = facts_of(name="modèle", layers=3, kind="encoder-decoder", encoder_layers=1, window=4)
    return Recording(facts, words, (encoder, own, cross), (Prediction(6, (), ()),), None, 12.5, source)


def uneven() -> Recording:
    """Numbers that 16 bits do not hold."""
    return plain(by=1.1)


def sized_call(part: str, layer: int, heads: tuple[int, int], rows: int, sources: int, **others: object) -> Call:
    """A call with heads on key heads, keys of 5 numbers and values of 3; bidirectional unless another mask is given."""
    q, k, v = numbers(heads[0], rows, 5), numbers(heads[1], sources, 5, step=41), numbers(heads[1], sources, 3, step=43)
    also = {name: others.pop(name) for name in ("sinks",) if name in others}
    mask = others.pop("mask", Mask.bidirectional())
    call = call_of(q, k, v, mask=mask, scale=0.375, layer=layer, **also)
    return replace(call, part=part, **others)


GAPS = (
    Gap("model.layers.1.mixer", "no attention", 1),
    Gap("model.layers.4.attn", "softmax", 4, 1),
    Gap("vision.head", "multi_head_attention", None, 2),
)


def towers() -> Recording:
    """A decoder whose layers differ, one without attention and one with cross-attention alone, and a vision tower.

    The tower's layers ran twice, over images of 9 and of 4 patches; its pooler reads the first.
    """
    seen = [
        sized_call("vision", layer, (4, 4), size, size, repeat=repeat, name=f"vision.blocks.{layer}.attn")
        for layer in (0, 1)
        for repeat, size in enumerate((9, 4))
    ]
    pooled = sized_call("vision.pooler", 0, (2, 1), 1, 9, kind="cross", name="vision.pooler")
    read = [
        sized_call("decoder", 0, (6, 2), 7, 7, mask=Mask(window=3), name="model.layers.0.attn"),
        sized_call("decoder", 2, (4, 4), 7, 7, mask=Mask(), sinks=numbers(4), name="model.layers.2.attn"),
        sized_call("decoder", 3, (2, 1), 7, 9, kind="cross", name="model.layers.3.attn"),
    ]
    facts = facts_of(name="sighted", layers=5, context=0)
    calls = tuple(map(checked, (*seen, pooled, *read)))
    return Recording(facts, tokens_of(*"abcabca"), calls, (Prediction(6, (0,), (-1.0,)),), None, 0.5, gaps=GAPS)


FIRST = {  # of version 1
    "float32": (plain, None),
    "float16": (uneven, "float16"),
    "bfloat16": (uneven, "bfloat16"),
    "everything": (everything, None),
}
SECOND = {f"{name}-2": how for name, how in {**FIRST, "towers": (towers, None)}.items()}
GOLDENS = FIRST | SECOND


def assert_same(one: Recording, other: Recording) -> None:
    """Fail unless all that two recordings hold is equal; of arrays also the kind of number."""
    for name in ("model", "tokens", "source", "written_from", "seconds", "gaps"):
        assert getattr(one, name) == getattr(other, name), name
    assert tuple(one.predictions) == tuple(other.predictions)
    assert one.tokens.ids == other.tokens.ids
    assert len(one.calls) == len(other.calls)
    for left, right in zip(one.calls, other.calls, strict=True):
        assert_same_call(left, right)


def assert_same_call(left: Call, right: Call) -> None:
    plain_fields = ("layer", "name", "kind", "part", "repeat", "kernel", "scale", "softcap", "stored", "mask", "checks")
    for name in (*plain_fields, "shapes", "heads", "head_numbers", "sources", "destinations", "key_heads"):
        assert getattr(left, name) == getattr(right, name), name
    assert (left.kept is None) == (right.kept is None)
    np.testing.assert_array_equal(left.rows, right.rows)
    for name in ARRAYS:
        mine, yours = getattr(left, name), getattr(right, name)
        assert (mine is None) == (yours is None), name
        if mine is not None:
            assert mine.dtype == yours.dtype, name
            np.testing.assert_array_equal(mine, yours, name)


def bytes_of(folder: Path) -> dict[str, bytes]:
    """The files of a folder by their names."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def write_golden() -> None:
    """Write the recordings of tests/golden that are of the version that is written afresh."""
    for name, (make, store) in SECOND.items():
        place = GOLDEN / f"{name}.wherefrom"
        shutil.rmtree(place, ignore_errors=True)
        save_recording(make(), place, store=store)


if __name__ == "__main__":
    write_golden()
