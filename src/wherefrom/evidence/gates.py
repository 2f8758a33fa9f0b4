r"""Gates on passages (floor 5): what leaving each of them out would do, by one forward and one backward pass.

Each passage p has a gate m in (0, 1]. The scores of all destinations outside it that read it, later ones in a decoder,
grow by log m in every layer and head, so that its weights there shrink as if only m of it were there::

    s_ij <- s_ij + log m     j in p, i not in p

Inside a passage tokens read one another as ever, and tokens of no passage are read as ever. With m = 1 this is the
model as it is, towards 0 a total knock-out of every passage at once. The derivative of a goal by each gate, taken where
the model is half cut (m near 0.15), says what a passage does when things are really missing. With g_i = dgoal/dy_i,

    dgoal/dlog m = sum over i not in p, j in p of  a_ij g_i . (v_j - y_i)        added up over layers and heads

The fast way takes linear memory, on a CPU, where a call is causal and nothing else: torch's flash kernel with one more
coordinate, 1 / scale in q and log m in k, reads all sources gated (part A). Inside a passage it then reads m e^s where
e^s is right, so the passages' own blocks are read once more with the rest, (1 - m) e^s (part B), and the two are joined
by their log-sum-exps. The kernel's own backward pass, given the joined output and log-sum-exp, finds each part's share
of the gradient exactly, as its weights are then exp(s - lse) of the joined rows; the last coordinate of k gets the
column sums of the score gradients. Every other call goes in strips of rows in plain lines (`attend_gated_in_strips`),
its slow twin. Takes running and goal from beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from wherefrom.capture.fused import STRIP, Limits, attend, merge
from wherefrom.checks import check_items, check_kind
from wherefrom.errors import InputError, RecordingError
from wherefrom.evidence.goal import Goal, log1mexp
from wherefrom.evidence.running import Executed, Runner, require_room, runner_of
from wherefrom.evidence.where import EVERYWHERE, Where
from wherefrom.passages import Passage

Progress: TypeAlias = Callable[[int, int], None]
Floats: TypeAlias = NDArray[np.float64]
AT = (0.15,)
"""The gate at which the derivative is taken unless another is asked for."""
SIZES = 8
"""The kernel is fastest on heads whose size is a multiple of this."""
SHOWN = 10
"""Passages that a printed answer shows."""


# -- passages with gates


class Block(NamedTuple):
    """Passages of about one length, side by side.

    Attributes:
        places: [P'], which passages they are.
        rows: [P', L], positions of their tokens; behind a shorter one's last token that token again.
        real: bool [P', L], False for those.
    """

    places: Tensor
    rows: Tensor
    real: Tensor


@dataclass(frozen=True)
class Gates:
    """Passages of a text that have a gate each.

    Attributes:
        passages: in any order; tokens that are in none have no gate.
        length: tokens of the text.

    Raises:
        InputError: no passages, one that is empty or reaches beyond the text, or two that overlap.
    """

    passages: tuple[Passage, ...]
    length: int

    def __post_init__(self) -> None:
        way_out = "Divide the text with wherefrom.passages(tokens, by='sentence')."
        given = check_items("the passages", self.passages, expected="passages of the text", way_out=way_out)
        if not given:
            raise InputError("the passages", expected="at least one", given="none", way_out=way_out)
        object.__setattr__(self, "passages", given)
        for one in given:
            check_kind("a passage", one, Passage, way_out=way_out)
            if not 0 <= one.start < one.stop <= self.length:
                raise InputError(
                    "a passage",
                    expected=f"at least one token, of the {self.length} of the text",
                    given=f"tokens {one.start} to {one.stop - 1}",
                    way_out=way_out,
                    passage=one,
                )
        ordered = sorted(given, key=lambda one: one.start)
        for before, after in pairwise(ordered):
            if after.start < before.stop:
                raise InputError(
                    "the passages",
                    expected="passages that do not overlap, as a token has one gate",
                    given=f"tokens {before.start} to {before.stop - 1} and {after.start} to {after.stop - 1}",
                    way_out="Leave one of the two out, or ask about them one after the other.",
                    passages=(before, after),
                )

    def __len__(self) -> int:
        return len(self.passages)

    @cached_property
    def index(self) -> NDArray[np.int64]:
        """The passage of each token, [S]; -1 for a token in none. Read-only."""
        found = np.full(self.length, -1, dtype=np.int64)
        for place, one in enumerate(self.passages):
            found[one.start : one.stop] = place
        found.setflags(write=False)
        return found

    @cached_property
    def columns(self) -> Tensor:
        """The same for indexing, [S]: the number of passages stands for no passage."""
        return torch.from_numpy(np.where(self.index < 0, len(self), self.index))

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The passages side by side, in groups whose lengths differ by half at most."""
        groups: list[list[int]] = []
        shortest = 0
        for place in sorted(range(len(self)), key=lambda place: len(self._range(place))):
            length = len(self._range(place))
            if not groups or 2 * length > 3 * shortest:
                groups.append([])
                shortest = length
            groups[-1].append(place)
        return tuple(self._block(group) for group in groups)

    def _range(self, place: int) -> range:
        return range(self.passages[place].start, self.passages[place].stop)

    def _block(self, places: Sequence[int]) -> Block:
        first = torch.tensor([self._range(place).start for place in places])[:, None]
        length = torch.tensor([len(self._range(place)) for place in places])[:, None]
        step = torch.arange(int(length.max()))
        return Block(torch.tensor(places), first + torch.minimum(step, length - 1), step < length)


# -- one call of attention


def attend_gated(one: Executed, gates: Gates, m: float | Tensor) -> Tensor:
    """Return the outputs [B, H, T, V] of an execution whose destinations read passages through gates.

    They can be differentiated with respect to q, k, v and the gates. Cross-attention, which does not read the text,
    is returned as it is.

    Args:
        one: the execution, of self-attention.
        gates: of the text's passages; of each text of a batch.
        m: in (0, 1]: one number for all, or a tensor [], [P], or [1 or H, P] for heads that have their own.

    Raises:
        InputError: a gate that is not in (0, 1], or another number of gates; a text of another length.
    """
    if one.kind == "cross":
        return one.attend().output
    logs = torch.log(_checked_gates(m, gates, one))  # H|1 P, float64
    return attend_gated_fast(one, gates, logs) if is_fast(one) else attend_gated_in_strips(one, gates, logs)


def is_fast(one: Executed) -> bool:
    """Whether the fast way can take an execution: a causal one on a CPU, nothing else done to its scores."""
    return one.is_causal_alone and one.q.device.type == "cpu"


def attend_gated_fast(one: Executed, gates: Gates, logs: Tensor) -> Tensor:
    """Return the outputs of an execution that `is_fast`, by the flash kernel; `logs` are log m, float64 [1 or H, P]."""
    q, k, v = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (one.q, one.k, one.v))
    if len(logs) > 1:  # a coordinate of k is shared by the query heads that share k
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    output: Tensor = _Gated.apply(q, k, v, logs, gates, one.scale)  # type: ignore[no-untyped-call]
    return output.to(one.q.dtype)


def attend_gated_in_strips(one: Executed, gates: Gates, logs: Tensor, *, strip: int = STRIP) -> Tensor:
    """Return the outputs of any execution, some rows at a time in plain lines; `logs` are log m, float64 [1 or H, P].

    The backward pass computes each strip again, so that no more than one is held.
    """
    wide = torch.promote_types(one.q.dtype, torch.float32)
    own = F.pad(logs.to(device=one.q.device, dtype=wide), (0, 1))  # H|1 P+1, the last for tokens in no passage
    outputs = []
    for start in range(0, one.q.shape[2], strip):
        rows = range(start, min(start + strip, one.q.shape[2]))
        given = (one, gates, own, rows)
        if torch.is_grad_enabled():
            outputs.append(checkpoint(_strip, *given, use_reentrant=False, preserve_rng_state=False))
        else:
            outputs.append(_strip(*given))
    return torch.cat(outputs, dim=2)


def _strip(one: Executed, gates: Gates, own: Tensor, rows: range) -> Tensor:
    """Return the outputs [B, H, R, V] of some rows; `own` has log m of each passage and 0 behind them."""
    reached = [mask.reach(row, gates.length) for mask in one.masks for row in (rows[0], rows[-1])]
    columns = range(min(reach.start for reach in reached), max(1, *(reach.stop for reach in reached)))
    permitted = one.permitted((rows, columns))  # B|1 H|1 R S'
    along, down = slice(columns.start, columns.stop), slice(rows.start, rows.stop)
    passage = gates.columns.to(one.q.device)
    inside = (passage[down, None] == passage[None, along]) & (passage[along] < len(gates))  # R S'
    added = own[:, passage[along]][None, :, None].masked_fill(inside, 0.0)  # 1 H|1 R S'
    if one.bias is not None:
        bias = one.bias[..., along] if one.bias.shape[-1] > 1 else one.bias
        added = added + (bias[..., down, :] if bias.shape[-2] > 1 else bias)
    q, k, v = one.q[:, :, down], one.k[:, :, along], one.v[:, :, along]
    limits = Limits.of_permitted(permitted, q, added=added)
    return attend(q, k, v, limits=limits, scale=one.scale, softcap=one.softcap, sinks=one.sinks).output


class _Gated(torch.autograd.Function):
    """The fast way; logs is float64 [1, P], or [H, P] where k and v have all H heads."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, logs: Tensor, gates: Gates, scale: float) -> Tensor:
        y, lse = _flash(*_with_coordinate(q, k, v, _biases(logs, gates, k), scale), scale)
        y = y[..., : v.shape[-1]].contiguous()
        rest = log1mexp(logs).to(lse.dtype)  # H|1 P, log(1 - m)
        for block in gates.blocks:
            within = _flash(*_one_size(*(_taken(x, block) for x in (q, k, v))), scale)
            own, own_lse = _put_back(within[0][..., : v.shape[-1]], block), _put_back(within[1], block)
            rows = block.rows[block.real]
            own_lse = own_lse + rest[:, gates.columns[rows]]  # B H R
            y[:, :, rows], lse[:, :, rows] = merge((y[:, :, rows], lse[:, :, rows]), (own, own_lse))
        ctx.save_for_backward(q, k, v, logs, y, lse)
        ctx.gates, ctx.scale = gates, scale
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, logs, y, lse = ctx.saved_tensors
        gates, scale = ctx.gates, ctx.scale
        inputs = _with_coordinate(q, k, v, _biases(logs, gates, k), scale)
        *found, columns = _gradients(g, inputs, y, lse, scale, k.shape[-1])
        for block in gates.blocks:
            rows = block.rows[block.real]
            gate = logs[:, gates.columns[rows]].exp().to(q.dtype)  # H|1 R, m
            own_q, own_k, own_v, own_y, own_g = (_taken(x, block) for x in (q, k, v, y, g))
            own_g = own_g * block.real.repeat(len(q), 1)[:, None, :, None]
            own_lse = _taken(lse.unsqueeze(-1), block)[..., 0]
            inputs = _with_coordinate(own_q, own_k, own_v, own_k.new_zeros(()), scale)
            *inside, own_columns = _gradients(own_g, inputs, own_y, own_lse, scale, k.shape[-1])
            for whole, part in zip(found, inside, strict=True):  # what part A left of it, 1 - m
                whole.index_add_(2, rows, _put_back(part, block) * (1 - gate).unsqueeze(-1))
            columns.index_add_(2, rows, -_put_back(own_columns, block) * gate)  # what part A has of it, m
        summed = columns.double().sum(dim=0)  # K|H S
        summed = summed if len(logs) > 1 else summed.sum(dim=0, keepdim=True)
        of_logs = logs.new_zeros(len(logs), len(gates) + 1).index_add_(1, gates.columns, summed)[:, :-1]
        return *found, of_logs, None, None


def _biases(logs: Tensor, gates: Gates, k: Tensor) -> Tensor:
    """Return log m of each column, 0 for one in no passage, [1 or K, S]."""
    return F.pad(logs, (0, 1))[:, gates.columns].to(k.dtype)


def _with_coordinate(q: Tensor, k: Tensor, v: Tensor, biases: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v in one size for the kernel, with one more coordinate after k's own that adds the biases."""
    size = -(-(max(k.shape[-1] + 1, v.shape[-1])) // SIZES) * SIZES
    q_more, k_more = (F.pad(x, (0, size - x.shape[-1])) for x in (q, k))
    q_more[..., q.shape[-1]] = 1 / scale
    k_more[..., k.shape[-1]] = biases
    return q_more, k_more, F.pad(v, (0, size - v.shape[-1]))


def _one_size(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    size = max(k.shape[-1], v.shape[-1])
    q, k, v = (F.pad(x, (0, size - x.shape[-1])) if x.shape[-1] < size else x for x in (q, k, v))
    return q, k, v


def _flash(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return outputs and lse of the kernel's causal rule."""
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    y, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True, scale=scale)
    return y, lse


def _gradients(
    g: Tensor, inputs: tuple[Tensor, Tensor, Tensor], y: Tensor, lse: Tensor, scale: float, head_size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return a part's share of the gradients by q, k and v, and the column sums [B, K, S] of its score gradients.

    Args:
        g: the gradient by the joined outputs.
        inputs: of the part, from `_with_coordinate`.
        y: the joined outputs.
        lse: their log-sum-exps.
        scale: of the scores.
        head_size: D, that of q and k without the coordinate.
    """
    more = (0, inputs[0].shape[-1] - g.shape[-1])
    of_q, of_k, of_v = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        F.pad(g, more), *inputs, F.pad(y, more), lse, 0.0, True, scale=scale
    )
    own = slice(0, head_size)
    return of_q[..., own], of_k[..., own], of_v[..., : g.shape[-1]], of_k[..., head_size]


def _taken(x: Tensor, block: Block) -> Tensor:
    """Return the rows of a block's passages of x [B, H, T, D] as texts of their own, [B P', H, L, D]."""
    return x[:, :, block.rows].transpose(1, 2).flatten(0, 1)


def _put_back(x: Tensor, block: Block) -> Tensor:
    """Return what belongs to the real rows of a block, [B, H, R, ...], of [B P', H, L, ...]."""
    return x.reshape(-1, len(block.rows), *x.shape[1:]).transpose(1, 2)[:, :, block.real]


def _checked_gates(m: float | Tensor, gates: Gates, one: Executed) -> Tensor:
    """Return the gates as float64 [1 or H, P]."""
    if one.q.shape[2] != gates.length or one.k.shape[2] != gates.length:
        raise InputError(
            "an attention with gates",
            expected=f"{gates.length} tokens that read one another, as many as the text has",
            given=f"{one.q.shape[2]} that read {one.k.shape[2]} in {one.name}",
            way_out="Gates are for a whole text that is read at once, by attention over its tokens.",
            name=one.name,
        )
    given = m if isinstance(m, Tensor) else torch.tensor(float(m), dtype=torch.float64)
    forms = ((), (len(gates),), (1, len(gates)), (one.q.shape[1], len(gates)))
    if tuple(given.shape) not in forms:
        raise InputError(
            "the gates",
            expected=f"one number, or one a passage, {len(gates)}, or that for each head",
            given=f"shape {tuple(given.shape)}",
            way_out="Give one number for all: 0.15.",
        )
    if not bool(((given > 0) & (given <= 1)).all()):
        raise _no_gate(given.detach().flatten().tolist())
    return given.double().expand(len(gates)).unsqueeze(0) if given.ndim < 2 else given.double()


def _no_gate(values: Sequence[Any]) -> InputError:
    wrong = next((value for value in values if not 0 < value <= 1), values)
    return InputError(
        "a gate",
        expected="a number above 0, up to 1 (1 reads as ever, near 0 is cut)",
        given=repr(wrong),
        way_out="0.15 serves: at=(0.15,). What is cut entirely has no score to differentiate.",
    )


# -- a whole text


class Passes(NamedTuple):
    """What something cost, in passes over the whole text."""

    forward: int
    backward: int

    def __str__(self) -> str:
        return f"{self.forward} forward + {self.backward} backward"


@dataclass(frozen=True, eq=False)
class GateGradients:
    """What the goal gains by each passage, to first order, where all gates are at a number.

    Attributes:
        passages: those asked about.
        at: the gates, one after the other.
        gradients: [len(at), P], the goal's change per unit of a passage's gate, all gates at `at`; positive where the
            passage helps the goal.
        scores: [P], the sum over `at`, which ranks the passages.
        values: [len(at)], the goal while the gates were at `at`.
        unit: of the goal; that of a gradient is the same per unit of gate.
        cost: in passes over the text.
        seconds: it took.
        calls: (layer, module, execution) of each execution of attention, in order.
        per_call: [calls, H, P], what each head of each execution adds to `scores`; None unless asked for. A call with
            fewer heads than others has zeros behind them.
    """

    passages: tuple[Passage, ...]
    at: tuple[float, ...]
    gradients: Floats
    scores: Floats
    values: Floats
    unit: str
    cost: Passes
    seconds: float
    calls: tuple[tuple[int, str, int], ...]
    per_call: Floats | None = field(default=None, repr=False)

    @property
    def order(self) -> tuple[int, ...]:
        """The passages' places, what helps most first."""
        return tuple(np.argsort(-self.scores, kind="stable").tolist())

    def __len__(self) -> int:
        return len(self.passages)

    def __str__(self) -> str:
        where = " and ".join(f"{m:g}" for m in self.at)
        lines = [f"gate gradients, {self.unit} per unit of gate, all gates at {where}; positive: the passage helps"]
        order = self.order
        shown = order if len(order) <= SHOWN else order[: SHOWN // 2] + order[-SHOWN // 2 :]
        for place in shown:
            if len(shown) < len(order) and place == shown[SHOWN // 2]:
                lines.append(f"{'...':>10}  {len(order) - len(shown)} between")
            one = self.passages[place]
            lines.append(f"{self.scores[place]:+10.4f}  {one.start}..{one.stop - 1}  {one.name or one.label}")
        lines.append(f"estimated, to first order; {self.cost}, {self.seconds:.2f} s")
        return "\n".join(lines)


def gate_gradients(
    runner: Runner,
    goal: Goal,
    passages: Sequence[Passage],
    *,
    at: Sequence[float] = AT,
    per_head: bool = False,
    where: Where = EVERYWHERE,
    progress: Progress | None = None,
) -> GateGradients:
    """Return what each passage does for a goal, by one forward and one backward pass for each gate.

    The model's weights get no gradients, and stay as they are.

    Args:
        runner: runs the model: `runner_of(model)`.
        goal: what is asked about.
        passages: of the prompt, without overlap; tokens in none are read as ever.
        at: gates in (0, 1], one after the other; `scores` adds their gradients up.
        per_head: also what each head of each call adds.
        where: which layers and heads have gates; the others read as ever.
        progress: told after each gate.

    Raises:
        InputError: a gate out of range, no passages, overlapping ones, or one that reaches into the answer; more tokens
            than the model reads; a layer or head that is not there.
        RecordingError: gradients that are not finite.
    """
    begin = time.perf_counter()
    runner = runner_of(runner)
    steps = _checked_at(at)
    gates = Gates(tuple(passages), len(goal.ids))
    _require_askable(runner, goal, gates)
    rounds: list[_Round] = []
    for done, m in enumerate(steps, start=1):
        rounds.append(_one_round(runner, goal, gates, m, per_head, where))
        if progress is not None:
            progress(done, len(steps))
    gradients = np.stack([one.gradients for one in rounds])  # A P
    return GateGradients(
        passages=gates.passages,
        at=steps,
        gradients=gradients,
        scores=gradients.sum(axis=0),
        values=np.array([one.value for one in rounds]),
        unit=goal.unit,
        cost=Passes(len(steps), len(steps)),
        seconds=time.perf_counter() - begin,
        calls=rounds[0].calls,
        per_call=sum((one.per_call for one in rounds), start=np.zeros(())) if per_head else None,
    )


class _Round(NamedTuple):
    """One forward and one backward pass: gradients [P], which are the sum of [calls, H, P], and the goal's value."""

    gradients: Floats
    value: float
    calls: tuple[tuple[int, str, int], ...]
    per_call: Floats


def _one_round(runner: Runner, goal: Goal, gates: Gates, m: float, per_head: bool, where: Where) -> _Round:
    shared = torch.full((1, len(gates)), m, dtype=torch.float64, requires_grad=True)
    own: list[Tensor] = []  # by call, [H, P]
    calls: list[tuple[int, str, int]] = []
    sizes: dict[int, int] = {}

    def attention(one: Executed) -> Tensor:
        calls.append((one.layer, one.name, one.repeat))
        heads = sizes[one.layer] = one.q.shape[1]
        if per_head:
            own.append(torch.full((heads, len(gates)), m, dtype=torch.float64, requires_grad=True))
        given = own[-1] if per_head else shared
        if where.everywhere:
            return attend_gated(one, gates, given)
        if not where.has_layer(one.layer):
            return one.attend().output
        return attend_gated(one, gates, torch.where(where.mask(one.layer, heads)[:, None], given, 1.0))

    with torch.inference_mode(False), torch.enable_grad():
        logits = runner.logits(torch.tensor([goal.ids]), goal.rows, attention=attention)
        value = goal.value(logits).sum()
        # Only what lies between the gates and the goal is differentiated: no weights, nothing below the first call.
        leaves = own if per_head else [shared]
        where.require(sizes)
        found = torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)
    if not all(bool(torch.isfinite(x).all()) for x in (value, *found)):
        raise RecordingError(
            "the gradient by the gates",
            expected="finite numbers",
            given="NaN or an infinity",
            way_out="The model's numbers overflow on this text; nothing was measured.",
        )
    heads = max(len(x) for x in found)
    shares = torch.stack([F.pad(x, (0, 0, 0, heads - len(x))) for x in found]).numpy()  # calls H P
    return _Round(shares.sum(axis=(0, 1)), float(value.detach()), tuple(calls), shares)


def _checked_at(at: Any) -> tuple[float, ...]:
    how = {"expected": "numbers above 0, up to 1, such as (0.15,)", "way_out": "A single one is (0.15,)."}
    given = check_items("the gates", at, **how)
    if not given:
        raise InputError("the gates", given="none", **how)
    for one in given:
        if isinstance(one, bool) or not isinstance(one, int | float | np.number) or not 0 < one <= 1:
            raise (
                _no_gate([one])
                if isinstance(one, int | float | np.number)
                else InputError("a gate", given=repr(one), **how)
            )
    return tuple(float(one) for one in given)


def _require_askable(runner: Runner, goal: Goal, gates: Gates) -> None:
    require_room(runner, len(goal.ids), goal.prompt)
    for one in gates.passages:
        if one.stop > goal.prompt:
            raise InputError(
                "a passage",
                expected=f"one of the prompt, whose sources are tokens 0 to {goal.prompt - 1}",
                given=f"tokens {one.start} to {one.stop - 1}",
                way_out="Divide the prompt alone: passages(tokens, by, within=range(prompt)).",
                passage=one,
            )
