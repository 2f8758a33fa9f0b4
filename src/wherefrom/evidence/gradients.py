"""Every edge priced by one backward pass (floor 5): the forward pass is recorded, the gradient of each output kept.

No gradient is computed for a weight: the output of the first attention is where the graph begins, and while it runs no
parameter asks for one. The memory beside the pass's own graph is that of q, k, v, lse, y and g, linear in the length.
No call is priced whose own numbers do not rebuild what its kernel returned.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from wherefrom.capture.fused import Attended
from wherefrom.capture.plain_calls import unseen
from wherefrom.capture.selfcheck import Sample, check_samples, require_finite
from wherefrom.errors import InputError
from wherefrom.evidence.direct import direct_gradients, frozen, module_of
from wherefrom.evidence.edges import PricedCall
from wherefrom.evidence.goal import Goal
from wherefrom.evidence.priced import Priced
from wherefrom.evidence.running import Executed, Runner
from wherefrom.model.attention_function import Site

Progress: TypeAlias = Callable[[int, int], None]
"""Called with (passes done, passes in all) after each."""


def price(runner: Runner, goal: Goal, *, progress: Progress | None = None) -> Priced:
    """Return the prices of every edge for a goal, from one forward and one backward pass.

    Args:
        runner: of `wherefrom.evidence.running.runner_of`.
        goal: what is asked about.
        progress: told after each pass.

    Raises:
        InputError: a model whose logits have no gradient, or whose gradient is not finite.
        RecordingError: a self-check failed.
    """
    start = time.perf_counter()
    kept = _Kept(runner)
    with frozen(module_of(runner)), torch.inference_mode(False), torch.enable_grad():
        logits = runner.logits(torch.tensor([goal.ids]), goal.rows, attention=kept)
        value = goal.value(logits).sum()
        if progress is not None:
            progress(1, 2)
        if not value.requires_grad:
            raise InputError(
                "the model",
                expected="logits that can be differentiated by what its attention gives",
                given=f"{runner.name}, whose pass keeps no graph",
                way_out="A model that switches gradients off within its own code cannot be priced.",
            )
        logits = logits.detach()
        gradients = torch.autograd.grad(value, kept.outputs, allow_unused=True)
    calls = tuple(kept.priced(gradients))
    if progress is not None:
        progress(2, 2)
    directly = partial(direct_gradients, runner, goal, calls)
    seconds = time.perf_counter() - start
    return Priced(goal, float(value.detach()), calls, runner.name, runner.fingerprint, seconds, logits, directly)


class _Kept:
    """Keeps every execution of attention of a pass, and its outputs with their graph.

    Attributes:
        outputs: y [1, H, T, V] of each, in the order of computation.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._calls: dict[tuple[str, int], PricedCall] = {}
        self._biases: dict[int, tuple[Tensor, Tensor]] = {}
        self.outputs: list[Tensor] = []

    def __call__(self, one: Executed) -> Tensor:
        """Return the outputs of an execution."""
        attended = one.attend()
        y = attended.output
        if (one.name, one.repeat) in self._calls:  # the backward pass computes again what was not kept
            return y
        if not y.requires_grad:  # nothing before it has a gradient: here the graph begins
            y = y.detach().requires_grad_()
        with torch.no_grad(), unseen():
            self._calls[one.name, one.repeat] = self._recorded(one, attended)
        self.outputs.append(y)
        return y

    def priced(self, gradients: tuple[Tensor | None, ...]) -> Iterator[PricedCall]:
        """Yield the calls with their gradients.

        Raises:
            InputError: a gradient that is not finite.
        """
        for call, output, gradient in zip(self._calls.values(), self.outputs, gradients, strict=True):
            g = torch.zeros_like(output) if gradient is None else gradient  # an output that the goal does not feel
            own = g[0].to(device="cpu", dtype=torch.promote_types(g.dtype, torch.float32))
            low, high = torch.aminmax(own)
            if not bool(torch.isfinite(low) & torch.isfinite(high)):
                raise InputError(
                    "the gradient",
                    expected="finite numbers",
                    given=f"NaN or an infinity at the output of layer {call.layer} ({call.name})",
                    way_out="The model's numbers overflow on this text; try a wider number format.",
                    layer=call.layer,
                )
            yield replace(call, g=own)

    def _recorded(self, one: Executed, attended: Attended) -> PricedCall:
        """Return the call without its gradient, its arrays copied and checked."""
        site = Site(one.layer, one.name)
        q, k, v, lse, y = (_copied(x) for x in (one.q, one.k, one.v, attended.lse, attended.output))
        bias = self._bias(one.bias, one.q.shape[2], one.k.shape[2])
        sinks = None if one.sinks is None else one.sinks.detach().cpu().to(q.dtype)
        mask = one.masks[0].within(one.k.shape[2])
        sample = Sample.of(attended, mask=mask, scale=one.scale, site=site, softcap=one.softcap, bias=bias, sinks=sinks)
        require_finite(site, mask, q, k, lse)
        rows = list(sample.rows)
        check_samples([sample], q[None, :, rows], k[None], v[None], lse[None, :, rows])
        return PricedCall(
            one.layer,
            one.name,
            q,
            k,
            v,
            lse,
            y,
            torch.empty(0),
            mask,
            one.scale,
            one.softcap,
            bias,
            sinks,
            self._runner.projection(one.name),
            one.kind,
            one.part,
            one.repeat,
        )

    def _bias(self, bias: Tensor | None, rows: int, columns: int) -> Tensor | None:
        """Return a bias [H or 1, T, S] in CPU memory, once for all layers that add the same."""
        if bias is None:
            return None
        if id(bias) not in self._biases:
            whole = _copied(bias.expand(*bias.shape[:2], rows, columns))
            self._biases[id(bias)] = bias, whole  # held, so that no other gets its number
        return self._biases[id(bias)][1]


def _copied(x: Tensor) -> Tensor:
    """Return the first text of a batch in memory of its own, float32 at least."""
    kind = torch.promote_types(x.dtype, torch.float32)
    return torch.empty(x.shape[1:], dtype=kind).copy_(x[0])
