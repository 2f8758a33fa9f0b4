"""Attention in lists and `math`: the slow twin of `wherefrom.attention`, which shares not a line with it."""

import math


def plain_head(q, k, v, permitted, scale=None, softcap=None, sink=None):
    """One head: returns (weights, sink_share, lse, output) a destination, and None for an empty row."""
    scale = 1 / math.sqrt(len(q[0])) if scale is None else scale
    rows = []
    for i, query in enumerate(q):
        logits = {}
        for j, key in enumerate(k):
            if permitted[i][j]:
                score = scale * math.fsum(a * b for a, b in zip(query, key, strict=True))
                logits[j] = score if softcap is None else softcap * math.tanh(score / softcap)
        if not logits:
            rows.append(None)
            continue
        own = 0.0 if sink is None else math.exp(sink)
        total = math.fsum([own, *map(math.exp, logits.values())])
        weights = [math.exp(logits[j]) / total if j in logits else 0.0 for j in range(len(k))]
        output = [math.fsum(w * value[n] for w, value in zip(weights, v, strict=True)) for n in range(len(v[0]))]
        rows.append((weights, own / total, math.log(total), output))
    return rows
