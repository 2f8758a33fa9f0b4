"""Every number of a traced answer, computed again by a model written here: plain lines, n x n attention, autograd.

Nothing of `wherefrom.evidence` is used but the trace that is looked at: weights come from the checkpoint, gates are
logarithms added to scores, cuts are minus infinity, deletions texts without the tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.prompts import code, facts, indirect_object, key_value
from safetensors.torch import load_file
from scipy.stats import spearmanr, truncnorm
from torch import Tensor
from torch.nn import functional as F

import wherefrom
from wherefrom.model.store import default_folder

CLOSE = 1e-4
GATE = 0.6
ENOUGH = 8
"""Runs from which on they say how well each lens ranks them."""
FEW, MANY = 7.2, 11.0
FEW_ROWS, MANY_ROWS = 6.15, 6.35
"""Passes of a budget; where the answer's rows alone are run, each run is a small part of one."""
PAIRS = [(23, 4), (17, 2), (15, 8), (12, 1)]
IN_LAYERS = {"layers": (15, 17, 23), "heads": (2, 4, 8)}
CASES: list[tuple[Any, int, int, dict[str, Any]]] = [
    (facts, 0, 3, {"how": "deletion", "budget": MANY}),
    (facts, 1, 3, {"how": "total", "budget": FEW}),
    (facts, 2, 3, {"how": "direct", "budget": FEW_ROWS}),
    (facts, 3, 3, {"how": "total", "budget": FEW, "heads": PAIRS}),
    (facts, 4, 3, {"how": "deletion", "budget": FEW, "unit": "log-probability"}),
    (indirect_object, 0, 3, {"how": "deletion", "budget": FEW}),
    (indirect_object, 1, 3, {"how": "total", "budget": FEW}),
    (indirect_object, 2, 3, {"how": "direct", "budget": FEW_ROWS}),
    (indirect_object, 3, 3, {"how": "total", "budget": FEW, **IN_LAYERS}),
    (indirect_object, 4, 3, {"how": "deletion", "budget": FEW, "answer": " them, and left"}),
    (key_value, 0, 5, {"how": "deletion", "budget": MANY, "by": "line"}),
    (key_value, 1, 5, {"how": "total", "budget": MANY, "by": "line"}),
    (key_value, 2, 5, {"how": "direct", "budget": MANY_ROWS, "by": "line"}),
    (key_value, 3, 5, {"how": "direct", "budget": MANY_ROWS, "by": "line", **IN_LAYERS}),
    (key_value, 4, 5, {"how": "direct", "budget": 6.9, "by": "line", "answer": " red or\nblue"}),
    (code, 0, 2, {"how": "deletion", "budget": FEW, "by": "line"}),
    (code, 1, 2, {"how": "total", "budget": FEW, "by": "line", "answer": " 61 and", "words": (1,)}),
    (code, 2, 2, {"how": "direct", "budget": 6.3, "by": "line"}),
    (code, 3, 2, {"how": "deletion", "budget": FEW, "by": "line", "unit": "log-probability"}),
    (code, 4, 2, {"how": "total", "budget": FEW, "by": "line"}),
]
ALWAYS = (0, 3, 9, 12, 16)
"""Cases that have every way, a choice of heads and every kind of answer between them."""


@dataclass
class Call:
    """A layer's attention: a [B, H, n, n], v and y [B, H, n, V], float64; y has a gradient after the backward pass.

    Where rows are changed, a is what they were before.
    """

    a: Tensor
    v: Tensor
    y: Tensor


class Dense:
    """SmolLM2 in plain lines."""

    def __init__(self) -> None:
        folder = default_folder()
        self.weights = load_file(folder / "model.safetensors")
        self.config = json.loads((folder / "config.json").read_text())
        self.layers, self.heads = self.config["num_hidden_layers"], self.config["num_attention_heads"]
        self.size = self.config["head_dim"]

    def of(self, layer: int, name: str) -> Tensor:
        return self.weights[f"model.layers.{layer}.{name}.weight"]

    def stream(
        self,
        ids: Tensor,
        added: Callable[[int], Tensor],
        changed: Callable[[int, Tensor, Tensor], Tensor] | None = None,
    ) -> tuple[Tensor, list[Call]]:
        """Return the residual stream [B, n, M] after the last layer; `added` [B, H, n, n] goes onto its scores.

        `changed` is given a layer, its scores and its weights, and returns other weights.
        """
        x = self.weights["model.embed_tokens.weight"][ids].requires_grad_(torch.is_grad_enabled())
        calls = []
        for layer in range(self.layers):
            h = self.norm(x, self.of(layer, "input_layernorm"))
            q, k, v = (self.split(h @ self.of(layer, f"self_attn.{name}_proj").T) for name in "qkv")
            q, k = self.turned(q), self.turned(k)
            k, v = (one.repeat_interleave(self.heads // one.shape[1], dim=1) for one in (k, v))
            scores = q @ k.transpose(-1, -2) / self.size**0.5 + added(layer)
            later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
            a = torch.softmax(scores, dim=-1)
            y = (a if changed is None else changed(layer, scores, a)) @ v
            if y.requires_grad:
                y.retain_grad()
            calls.append(Call(a, v, y))
            x = x + y.transpose(1, 2).flatten(2).float() @ self.of(layer, "self_attn.o_proj").T
            h = self.norm(x, self.of(layer, "post_attention_layernorm"))
            gate, up = (h @ self.of(layer, f"mlp.{name}_proj").T for name in ("gate", "up"))
            x = x + (F.silu(gate) * up) @ self.of(layer, "mlp.down_proj").T
        return x, calls

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.size)).transpose(1, 2).double()  # B H n D

    def turned(self, x: Tensor) -> Tensor:
        half = self.size // 2
        angles = torch.arange(x.shape[2])[:, None] * self.config["rope_theta"] ** (-torch.arange(half).double() / half)
        cos, sin = angles.cos(), angles.sin()
        one, other = x[..., :half], x[..., half:]
        return torch.cat((one * cos - other * sin, other * cos + one * sin), dim=-1)

    def norm(self, x: Tensor, weight: Tensor, r: Tensor | None = None) -> Tensor:
        r = (x.square().mean(dim=-1, keepdim=True) + self.config["rms_norm_eps"]).rsqrt() if r is None else r
        return x * r * weight

    def logits(self, x: Tensor, r: Tensor | None = None) -> Tensor:
        return self.norm(x, self.weights["model.norm.weight"], r) @ self.weights["model.embed_tokens.weight"].T


@pytest.fixture(scope="module")
def dense() -> Dense:
    return Dense()


def nothing(layer: int) -> Tensor:
    return torch.zeros(())


@dataclass
class Asked:
    """A traced answer, as JSON, and what was asked."""

    found: dict[str, Any]
    ids: tuple[int, ...]
    unit: str
    how: str
    chosen: torch.Tensor  # bool [layers, heads]

    def __post_init__(self) -> None:
        self.spans = [range(*one["tokens"]) for one in self.found["passages"]]
        self.rows = [one["position"] - 1 for one in self.found["answer"]["tokens"]]
        self.targets = torch.tensor([one["id"] for one in self.found["answer"]["tokens"]])
        self.first, self.n = self.found["answer"]["first"], len(self.ids)
        self.reads = torch.zeros(len(self.spans), self.n, self.n, dtype=torch.bool)  # i outside a passage, j inside
        for place, span in enumerate(self.spans):
            outside = [i for i in range(self.n) if i not in span]
            self.reads[place][np.ix_(outside, list(span))] = True

    def nats(self, logits: Tensor) -> Tensor:
        """Return the log-probabilities of the answer's tokens, [R], of logits [R, N]."""
        return torch.log_softmax(logits.double(), dim=-1)[torch.arange(len(self.targets)), self.targets]

    def value(self, logits: Tensor) -> Tensor:
        log_p = self.nats(logits).sum()
        return log_p if self.unit == "log-probability" else log_p - torch.log(-torch.expm1(log_p))

    def column(self, lens: str) -> list[float]:
        return [one[lens] for one in self.found["passages"]]


def values_without(dense: Dense, asked: Asked, kept: np.ndarray) -> list[float]:
    """Return the answer's value without the passages that each run lost, all of a kind side by side."""
    gone = [[span for span, own in zip(asked.spans, choice, strict=True) if not own] for choice in kept]
    if asked.how == "deletion":
        texts = [[t for i, t in enumerate(asked.ids) if not any(i in span for span in spans)] for spans in gone]
        ids = torch.tensor([text + [0] * (asked.n - len(text)) for text in texts])  # what stands behind is not read
        x, _ = dense.stream(ids, nothing)
        rows = [[row - (asked.n - len(text)) for row in asked.rows] for text in texts]
    else:
        cut = torch.zeros(len(kept), 1, asked.n, asked.n, dtype=torch.float64)
        for run, choice in enumerate(kept):
            for place in np.flatnonzero(~choice):
                cut[run, 0][asked.reads[place]] = -torch.inf
        if asked.how == "direct":
            cut[:, :, : asked.rows[0]] = 0.0
        heads = asked.chosen[:, None, :, None, None]
        ids = torch.tensor([asked.ids]).expand(len(kept), -1)
        x, _ = dense.stream(ids, lambda layer: torch.where(heads[layer], cut, 0.0))
        rows = [asked.rows] * len(kept)
    return [float(asked.value(dense.logits(own[at]))) for own, at in zip(x, rows, strict=True)]


@dataclass
class Edges:
    """What every edge is worth, [layers, H, n, n], float64; and the gradient of each head's gates, [layers, H, P]."""

    prices: dict[str, Tensor]
    gates: Tensor
    logits: Tensor


def edges(dense: Dense, asked: Asked) -> Edges:
    """Return prices, of the text as it is and of one behind gates, the two side by side in one backward pass."""
    reads = asked.reads.clone()
    reads[:, :, 0] = False  # the first token has no gate

    def half_shut(layer: int, scores: Tensor, a: Tensor) -> Tensor:
        """The second text's rows: m of them as they are, the rest of what they are without gated sources."""
        rest = torch.softmax(scores[1].masked_fill(reads.any(dim=0), -torch.inf), dim=-1)
        shut = torch.where(asked.chosen[layer][:, None, None], GATE * a[1] + (1 - GATE) * rest, a[1])
        return torch.stack([a[0], shut])

    x, calls = dense.stream(torch.tensor([asked.ids, asked.ids]), nothing, half_shut)
    logits = dense.logits(x[:, asked.rows])
    (asked.value(logits[0]) + asked.value(logits[1])).backward()
    stream = x[0, asked.rows].detach().requires_grad_()
    held = (stream.square().mean(dim=-1, keepdim=True) + dense.config["rms_norm_eps"]).rsqrt().detach()
    (u,) = torch.autograd.grad(asked.value(dense.logits(stream, held)), stream)
    found: dict[str, list[Tensor]] = {"weight": [], "moved": [], "attribution": [], "closed form": [], "direct": []}
    gates = []
    for layer, call in enumerate(calls):
        shut = (one[1].detach() for one in (call.a, call.v, call.y, call.y.grad))
        own = score_gradients(*shut) * asked.chosen[layer][:, None, None]
        gates.append(torch.einsum("hij,pij->hp", own, reads.double()))
        a, v, y, g = (one[0].detach() for one in (call.a, call.v, call.y, call.y.grad))
        projection = dense.of(layer, "self_attn.o_proj").double().unflatten(1, (dense.heads, -1))  # M H V
        moved = torch.einsum("mhv,hjv->hjm", projection, v).norm(dim=-1)  # H n
        score = score_gradients(a, v, y, g)
        direct = torch.zeros_like(a)
        direct[:, asked.rows] = torch.einsum("rm,mhv,hjv->hrj", u.double(), projection, v)
        each = [a, a * moved[:, None], score, torch.where(a < 1, score / (1 - a), 0.0), a * direct]
        for own, prices in zip(found.values(), each, strict=True):
            own.append(prices * asked.chosen[layer][:, None, None])
    return Edges({name: torch.stack(own) for name, own in found.items()}, torch.stack(gates), logits[0].detach())


def score_gradients(a: Tensor, v: Tensor, y: Tensor, g: Tensor) -> Tensor:
    """Return a_ij g_i . (v_j - y_i), [H, n, n]."""
    return a * (g @ v.transpose(-1, -2) - (g * y).sum(dim=-1, keepdim=True))


def summed(asked: Asked, lens: str, prices: Tensor) -> np.ndarray:
    """Return what passages are worth by the prices of edges."""
    if lens in ("weight", "moved"):  # all that the answer's rows read
        each = torch.stack([prices[:, :, asked.rows][..., list(span)].sum() for span in asked.spans])
        return (each / (asked.chosen.sum() * len(asked.rows)) if lens == "weight" else each).numpy()
    return torch.stack([(prices * reads).sum() for reads in asked.reads]).numpy()


def cancels(by_head: Tensor) -> float:
    """Return what float32 may make of the largest passage's numbers, when heads [layers, H, P] are added up.

    Much cancels: 84 nats of closed forms either way to 0.4 in all. A hundred thousandth of what is added is rounding.
    """
    return 1e-5 * float(by_head.abs().sum(dim=(0, 1)).max())


def fitted(x: np.ndarray, y: np.ndarray, prior: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the weights of runs and the prior's factor: generalised least squares, a mean over strengths.

    y is normal around b + c X p with covariance K + alpha I, K the products of the centred choices; c is cut off at 0.
    """
    n, centred = len(y), x - x.mean(axis=0)
    free = np.column_stack([np.ones(n), x @ prior])
    if n <= 2:
        scale = float(np.linalg.lstsq(free, y, rcond=None)[0][1])
        return scale * prior, scale
    unit = np.trace(centred @ centred.T) / n
    logs, weights, scales = [], [], []
    for strength in np.logspace(-4, 4, 33):
        covariance = centred @ centred.T + strength * unit * np.eye(n)
        inverse = np.linalg.inv(covariance)
        normal = free.T @ inverse @ free
        best = np.linalg.inv(normal) @ free.T @ inverse @ y
        left = y - free @ best
        spread = float(left @ inverse @ left)
        error = np.sqrt(spread / (n - 2) * np.linalg.inv(normal)[1, 1])
        scale = float(truncnorm(-best[1] / error, np.inf, loc=best[1], scale=error).mean())
        rest = y - scale * free[:, 1]
        rest = rest - (inverse @ rest).sum() / inverse.sum()
        scales.append(scale)
        weights.append(scale * prior + centred.T @ inverse @ rest)
        sizes = np.linalg.slogdet(covariance)[1] + np.linalg.slogdet(normal)[1]
        logs.append(-(sizes + (n - 2) * np.log(spread) + np.log(strength / 3) ** 2) / 2)
    shares = np.exp(np.array(logs) - max(logs))
    shares /= shares.sum()
    return shares @ np.array(weights), float(shares @ np.array(scales))


def close(found: Any, expected: Any, largest: float | None = None, rounding: float = 0.0) -> bool:
    """Whether numbers are equal to 1e-4 of the largest, and what is rounding beside it."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    size = np.abs(expected).max() if largest is None else largest
    return bool(np.abs(found - expected).max() <= CLOSE * size + rounding)


@pytest.mark.parametrize(
    ("family", "seed", "sources", "how"),
    [case if number in ALWAYS else pytest.param(*case, marks=pytest.mark.long) for number, case in enumerate(CASES)],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_every_number_of_a_trace(
    smollm: wherefrom.LanguageModel,
    dense: Dense,
    family: Callable[..., Any],
    seed: int,
    sources: int,
    how: dict[str, Any],
) -> None:
    prompt = family(seed, sources)
    options = {name: own for name, own in how.items() if name != "answer"}
    trace = wherefrom.trace_answer(smollm, prompt.text, how.get("answer", prompt.answer), direct=True, **options)
    chosen = torch.zeros(dense.layers, dense.heads, dtype=torch.bool)
    if how.get("heads") == PAIRS:
        chosen[tuple(zip(*PAIRS, strict=True))] = True
    else:
        chosen[np.ix_(how.get("layers", range(dense.layers)), how.get("heads", range(dense.heads)))] = True
    asked = Asked(trace.to_json(), trace.tokens.ids, how.get("unit", "log-odds"), how["how"], chosen)
    own = edges(dense, asked)
    assert close(asked.found["answer"]["value"], float(asked.value(own.logits)))
    assert close([one["nats"] for one in asked.found["answer"]["tokens"]], asked.nats(own.logits).numpy())
    lenses = require_lenses(asked, own)
    require_heads(asked, own.prices["attribution"])
    assert trace.ablations is not None
    assert trace.runs >= (ENOUGH if how["budget"] in (MANY, MANY_ROWS) else 1)
    with torch.no_grad():
        values = np.array(values_without(dense, asked, trace.ablations.kept))
    scale = max(1.0, float(np.ptp(np.append(values, float(asked.value(own.logits))))))
    assert close(trace.ablations.values, values, scale)
    require_runs(asked, own, lenses, trace.ablations.kept, values, scale)
    require_verdicts(asked, own.logits)


def require_lenses(asked: Asked, own: Edges) -> dict[str, np.ndarray]:
    """Require that every lens is right, and return them."""
    lenses = {name: summed(asked, name, prices) for name, prices in own.prices.items()}
    lenses["gate"] = own.gates.sum(dim=(0, 1)).numpy()
    by_head = {name: torch.einsum("lhij,pij->lhp", x, asked.reads.double()) for name, x in own.prices.items()}
    by_head["gate"] = own.gates
    assert set(asked.found["lenses"]) == set(lenses)
    for name, expected in lenses.items():
        rounding = 0.0 if name in ("weight", "moved") else cancels(by_head[name])
        assert close(asked.column(name), expected, rounding=rounding), name
    return lenses


def require_runs(
    asked: Asked, own: Edges, lenses: dict[str, np.ndarray], kept: np.ndarray, values: np.ndarray, scale: float
) -> None:
    """Require what is made of the measured values: effects of passages alone, the evidence, and agreements."""
    whole = float(asked.value(own.logits))
    alone = {
        int(np.flatnonzero(~each)[0]): value for each, value in zip(kept, values, strict=True) if (~each).sum() == 1
    }
    assert {place for place, value in enumerate(asked.column("measured")) if value is not None} == set(alone)
    measured = [asked.column("measured")[place] for place in alone]
    assert close(measured, whole - np.array(list(alone.values())), scale)
    choices = np.concatenate([kept, np.ones((1, len(asked.spans)), dtype=bool)]).astype(np.float64)
    weights, factor = fitted(choices, np.append(values, whole), lenses["gate"])
    best = weights if len(kept) >= ENOUGH else (factor if factor > 0 else 1.0) * lenses["gate"]
    assert close(asked.column("evidence"), best, scale, factor * cancels(own.gates))
    assert asked.found["runs"] == len(kept)
    assert len(asked.found["agreements"]) == (6 if len(kept) >= ENOUGH else 0)
    for one in asked.found["agreements"]:
        expected = spearmanr(kept @ lenses[one["lens"]], values).statistic
        assert one["correlation"] == pytest.approx(expected, abs=CLOSE)


def require_heads(asked: Asked, prices: Tensor) -> None:
    """Require that the heads of each passage are its three strongest, with their prices."""
    each = torch.stack([(prices * reads).sum(dim=(-1, -2)) for reads in asked.reads]).numpy()  # P L H
    size = float(np.abs(each).max())
    named = asked.found["heads"]
    assert close([one["price"] for one in named], [each[one["passage"], one["layer"], one["head"]] for one in named])
    for place, own in enumerate(each):
        listed = [abs(one["price"]) for one in named if one["passage"] == place]
        assert close(listed, np.sort(np.abs(own), axis=None)[::-1][:3], size)


def require_verdicts(asked: Asked, logits: Tensor) -> None:
    """Require what is said of the numbers: which passages mattered, and from which size on a number is no rounding."""
    logits = logits.double().requires_grad_()
    (gradient,) = torch.autograd.grad(asked.value(logits), logits)
    noise = float(np.finfo(np.float32).eps * (gradient * logits.detach()).norm())
    least = max(1e-5, noise)  # and how far rows that are run alone are from the whole text, which is rounding too
    assert least * (1 - 1e-3) - 1e-6 <= asked.found["noise"] <= 10 * least
    pairs = list(zip(asked.column("measured"), asked.column("evidence"), strict=True))
    best = np.abs([estimate if measured is None else measured for measured, estimate in pairs])
    order: Sequence[int] = np.argsort(-best, kind="stable").tolist()
    large = [place for place in order if best[place] >= max(0.1 * best.max(), asked.found["noise"])]
    assert asked.found["mattered"] == [place for place in large if pairs[place][0] is not None]
    assert asked.found["suspected"] == [place for place in large if pairs[place][0] is None]
