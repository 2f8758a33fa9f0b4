"""Recordings made by hand, without a model: any mask, any heads, weights that one can do on paper."""

from dataclasses import replace

import numpy as np

from wherefrom.attention import Mask, attend
from wherefrom.recording import Call, Kept, ModelFacts, Recording
from wherefrom.tokens import Token, Tokens

PER_HEAD = np.random.default_rng(5).random((6, 7, 7)) < 0.5
PER_HEAD[:, 4] = False  # a destination that may read nothing in any head
PER_HEAD[2, 5] = False  # and one that may read nothing in one head
MASKS = {
    "causal": Mask(),
    "window of 1": Mask(window=1),
    "window of 3": Mask(window=3),
    "bidirectional": Mask.bidirectional(),
    "bidirectional window": Mask.bidirectional(window=2),
    "padding before": Mask(padding=np.arange(7) >= 2),  # destinations 0 and 1 may read nothing
    "padding behind": Mask.bidirectional(padding=np.arange(7) < 4),
    "another map a head": Mask.bidirectional(explicit=PER_HEAD),
    "both": Mask(window=4, explicit=PER_HEAD),
}


def call_of(q, k, v=None, *, mask=None, scale=1.0, layer=0, **also):
    """The call that records q [H, T, D] over k [K, S, D], its lse from the double-precision page."""
    q, k = np.asarray(q, np.float32), np.asarray(k, np.float32)
    v = np.zeros_like(k) if v is None else np.asarray(v, np.float32)
    mask = Mask() if mask is None else mask
    lse = attend(q, k, v, mask, scale=scale, **also).lse.filled(-np.inf).astype(np.float32)
    return Call(layer, f"layer {layer}", "self", q, k, v, lse, mask, scale, "by hand", (), **also)


def keeping(call, heads, rows):
    """The same call of which only some heads and destinations were kept."""
    key_heads = sorted({call.key_heads[head] for head in heads})
    kept = Kept(
        tuple(heads),
        tuple(key_heads.index(call.key_heads[head]) for head in heads),
        np.array(rows),
        call.heads,
        call.destinations,
    )
    pairs = np.ix_(heads, rows)
    bias = call.bias if call.bias is None else call.bias[np.ix_([0] if len(call.bias) == 1 else heads, rows)]
    sinks = call.sinks if call.sinks is None else call.sinks[list(heads)]
    return replace(
        call,
        q=call.q[pairs],
        k=call.k[key_heads],
        v=call.v[key_heads],
        lse=call.lse[pairs],
        bias=bias,
        sinks=sinks,
        kept=kept,
    )


def random_call(mask, *, heads=6, kv_heads=2, length=7, head_size=5, layer=0, seed=11, **also):
    draw = np.random.default_rng(seed)
    q, k, v = (2 * draw.standard_normal((count, length, head_size)) for count in (heads, kv_heads, kv_heads))
    return call_of(q, k, v, mask=mask, scale=0.6, layer=layer, **also)


def recording_of(*calls, letters=None):
    """A recording of those calls, one a layer; its text is a letter a position."""
    heads, length, head_size = calls[0].q.shape
    text = letters or "abcdefghijklmnopqrstuvwxyz"[:length]
    items = tuple(Token(at, ord(x), x, x.encode(), (at, at + 1), x) for at, x in enumerate(text))
    facts = ModelFacts("by hand", "0" * 64, len(calls), heads, calls[0].k.shape[0], head_size, 100)
    return Recording(facts, Tokens(text, items), calls, (), None, 0.0)
