"""What goes to the goal along the residual stream alone (floor 5): d goal / d y past all later layers.

In a pre-norm model each attention adds W_O y to a stream that all later layers read through norms, and the last norm
hands it to the vocabulary matrix. One pass more gives the gradient of that straight way: the outputs of all norms are
constants in it, but for the final one, which is linear, its statistics held at what they are. What a later layer makes
of it is then no part of the gradient. The idea is direct logit attribution (Elhage et al. 2021, "A Mathematical
Framework for Transformer Circuits"; nostalgebraist 2020, "the logit lens").

Nothing is believed by name. The final norm is the one whose output the vocabulary matrix takes, number by number, and
outside the numbered layers; its linear form must give its own output again; and the gradient found must be that of the
stream through the output projection, and 0 in every row that does not predict the goal. Else the model is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from wherefrom.errors import InputError
from wherefrom.evidence.edges import PricedCall
from wherefrom.evidence.goal import Goal
from wherefrom.evidence.running import Executed, OwnRunner, Runner, TransformersRunner

PROBE = 4
"""Tokens of the pass that shows which norm is the final one."""
CLOSE = 1e-3
"""How far, relatively, two ways to one gradient may be apart in float32."""
WAY_OUT = 'Ask for how="closed form", which goes through all layers.'


def module_of(runner: Runner) -> nn.Module:
    """Return the module that a runner runs.

    Raises:
        InputError: a runner of another kind.
    """
    if isinstance(runner, OwnRunner):
        return runner.model.transformer
    if isinstance(runner, TransformersRunner):
        return runner.model.module
    raise InputError(
        "the runner",
        expected="one of a model of wherefrom.load or of transformers",
        given=type(runner).__name__,
        way_out="Make it with runner_of(model).",
    )


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Have no parameter of a module ask for a gradient; on leaving, they do again that did before."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    try:
        for parameter in trained:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


def direct_gradients(runner: Runner, goal: Goal, calls: Sequence[PricedCall]) -> tuple[Tensor, ...]:
    """Return for each call d goal / d y along the residual stream alone, [H, R, V], R the goal's rows in order.

    Args:
        runner: that ran the calls.
        goal: what is asked about.
        calls: those that were priced.

    Raises:
        InputError: a model whose attention is not added to a stream that one final norm hands to the vocabulary
            matrix, or whose weights have changed since the calls were priced.
    """
    module = module_of(runner)
    final = final_norm(runner, goal)
    held = _Held(final, calls)
    with frozen(module), ExitStack() as stack, torch.inference_mode(False), torch.enable_grad():
        for name, norm in _norms(module):
            stack.callback(norm.register_forward_hook(held.final if name == final else _constant).remove)
        logits = runner.logits(torch.tensor([goal.ids]), goal.rows, attention=held.attention)
        found = torch.autograd.grad(goal.value(logits).sum(), [held.stream, *held.outputs], allow_unused=True)
    of_stream, rows = found[0], list(goal.rows)
    if of_stream is None or len(held.outputs) != len(calls):
        raise _refusal(runner.name, "what its attention gives does not reach the final norm")
    normed = of_stream.shape[1]  # all positions, the last of them, or the goal's rows alone
    first = len(goal.ids) - normed
    u = of_stream[0] if normed == len(rows) else of_stream[0, [row - first for row in rows]]  # R M
    return tuple(_proven(call, g, u, rows, runner.name) for call, g in zip(calls, found[1:], strict=True))


@torch.no_grad()
def final_norm(runner: Runner, goal: Goal) -> str:
    """Return the path of the norm whose output the vocabulary matrix takes.

    Raises:
        InputError: there is none, or it is a part of a layer.
    """
    module, latest, taken = module_of(runner), dict[str, Tensor](), list[str]()

    def note(name: str) -> Any:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            latest.clear()
            latest[name] = output

        return hook

    def compare(_: nn.Module, args: tuple[Any, ...]) -> None:
        for name, output in latest.items():
            alike = args and isinstance(output, Tensor) and output.shape == args[0].shape
            if alike and torch.equal(output, args[0]):
                taken.append(name)

    ids = goal.ids[:PROBE]
    with ExitStack() as stack:
        stack.callback(_head(runner).register_forward_pre_hook(compare).remove)
        for name, norm in _norms(module):
            stack.callback(norm.register_forward_hook(note(name)).remove)
        runner.logits(torch.tensor([ids]), range(len(ids)))
    if not taken:
        raise _refusal(runner.name, "its vocabulary matrix does not take the output of a norm as it is")
    if any(part.isdigit() for part in taken[0].split(".")):
        raise _refusal(
            runner.name, f"it is post-norm: its last norm ({taken[0]}) is a part of a layer, and each layer normalises "
            "the stream itself"
        )  # fmt: skip
    return taken[0]


def linear_norm(norm: nn.Module, x: Tensor, output: Tensor) -> Tensor | None:
    """Return a norm's output [.., M] as a linear function of x [.., M], its statistics held; None if it is not that.

    Of a LayerNorm, an RMSNorm or one whose weight is stored less 1: the output is r (x - mean x) w + b, or r x w + b
    without the mean, with one r a row, which is measured here.
    """
    kind = torch.promote_types(output.dtype, torch.float32)
    wide, given = x.to(kind), output.detach().to(kind)
    weight, bias = (getattr(norm, name, None) for name in ("weight", "bias"))
    factors = [given.new_ones(())] if weight is None else [weight.detach().to(kind), 1 + weight.detach().to(kind)]
    added = given.new_zeros(()) if bias is None else bias.detach().to(kind)
    near = max(1e-5, 4 * torch.finfo(output.dtype).eps) * float(given.abs().max())
    for centred in (True, False) if isinstance(norm, nn.LayerNorm) else (False, True):
        from_mean = wide - wide.mean(dim=-1, keepdim=True) if centred else wide
        for factor in factors:
            shape = from_mean * factor
            size = shape.detach().square().sum(dim=-1, keepdim=True).clamp_min(torch.finfo(kind).tiny)
            r = (shape.detach() * (given - added)).sum(dim=-1, keepdim=True) / size
            found: Tensor = shape * r + added
            if float((found.detach() - given).abs().max()) <= near:
                return found.to(output.dtype)
    return None


@dataclass
class _Held:
    """A pass in which all norms but the final one are constants.

    Attributes:
        name: the final norm's path.
        calls: those that were priced, in order.
        outputs: y [1, H, T, V] of each execution, where graphs begin.
        stream: what the final norm was given.
    """

    name: str
    calls: Sequence[PricedCall]
    outputs: list[Tensor] = field(default_factory=list)
    stream: Tensor = field(default_factory=lambda: torch.zeros((), requires_grad=True))

    def attention(self, one: Executed) -> Tensor:
        """Return the outputs of an execution; they must be those that were priced."""
        with torch.no_grad():
            y = one.attend().output
        call = self.calls[len(self.outputs)] if len(self.outputs) < len(self.calls) else None
        size = 0.0 if call is None else float(call.y.abs().max())
        if call is None or call.name != one.name or float((y[0].cpu() - call.y).abs().max()) > 1e-4 * size:
            raise InputError(
                "the model",
                expected="the one that was priced, unchanged",
                given=f"other outputs of layer {one.layer} ({one.name})",
                way_out="Price the text again.",
            )
        y.requires_grad_()
        self.outputs.append(y)
        return y

    def final(self, norm: nn.Module, args: tuple[Any, ...], output: Any) -> Tensor:
        """Return the final norm's output, linear in what it was given."""
        self.stream = args[0] if args[0].requires_grad else args[0].detach().requires_grad_()
        found = linear_norm(norm, self.stream, output)
        if found is None:
            raise _refusal(self.name, "as a linear function of what it is given it does not give its own output again")
        return found


def _proven(call: PricedCall, found: Tensor | None, u: Tensor, rows: list[int], model: str) -> Tensor:
    """Return a call's gradient [H, R, V] of the goal's rows, if it is that of the stream, u [R, M], through W_O.

    A model may scale what it adds: the two may differ by a factor.
    """
    if call.projection is None:
        raise _refusal(model, f"no single matrix projects the outputs of {call.name}")
    kind = call.g.dtype
    expected = (u.to(kind) @ call.projection.to(u.device, kind)).cpu()  # R H*V
    whole = torch.zeros_like(call.g) if found is None else found[0].to("cpu", kind)
    own = whole[:, rows]  # H R V
    flat = own.transpose(0, 1).flatten(1)  # R H*V
    size = float(torch.linalg.vector_norm(expected))
    factor = float((flat * expected).sum()) / size**2 if size else 1.0
    apart = float(torch.linalg.vector_norm(flat - factor * expected))
    close = max(CLOSE, 8 * torch.finfo(u.dtype).eps)
    elsewhere = float(whole.abs().sum() - own.abs().sum())
    if factor <= 0 or apart > close * factor * size or elsewhere > close * factor * size:
        raise _refusal(model, f"what {call.name} gives is not added to the stream as its projection makes it")
    return own


def _head(runner: Runner) -> nn.Module:
    """Return the module of the vocabulary matrix."""
    if isinstance(runner, OwnRunner):
        return runner.model.transformer.vocabulary_head
    head = getattr(module_of(runner), "get_output_embeddings", lambda: None)()
    if not isinstance(head, nn.Module):
        raise _refusal(runner.name, "it does not say which module makes its logits")
    return head


def _norms(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield what may be a norm: a module without parts whose weight has one dimension, or which is called a norm."""
    for name, one in module.named_modules():
        weight = getattr(one, "weight", None)
        alike = (isinstance(weight, Tensor) and weight.ndim == 1) or "norm" in type(one).__name__.lower()
        if alike and not any(True for _ in one.children()):
            yield name, one


def _constant(_: nn.Module, __: Any, output: Any) -> Any:
    return output.detach() if isinstance(output, Tensor) else output


def _refusal(model: str, why: str) -> InputError:
    return InputError(
        'how="direct"',
        expected="a model whose attention is added to one stream, which a final norm hands to the vocabulary matrix",
        given=f"{model}: {why}",
        way_out=WAY_OUT,
    )
