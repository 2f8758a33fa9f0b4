"""Attention of any plain torch module (floor 3): one built on `nn.MultiheadAttention` or on
`F.scaled_dot_product_attention`, led through one function.

Takes the calls from `plain_calls` beside it, and gives `watched_plain` to a recorder. Nothing of the model is changed.
Which module a call belongs to is known from hooks on the model's modules, but for torch's own that have nothing in
them (a linear layer asks for no attention); they heed this thread, and are there while the model is watched. The fast
paths of torch's encoder layers compute all in one kernel that tells nobody; torch does not take them while a mode looks
on, which changes outputs by rounding only, except at padded positions: there a fast path returns 0, and the plain path
what the layer computes of them.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from wherefrom.capture.huggingface.masks import readable
from wherefrom.capture.huggingface.replaced import in_backward
from wherefrom.capture.huggingface.seen import AttentionFunction, Given
from wherefrom.capture.plain_calls import PlainCall, PlainCalls, What
from wherefrom.checks import check_kind
from wherefrom.errors import ModelError


@contextmanager
def watched_plain(model: nn.Module, attention: AttentionFunction) -> Iterator[PlainWatch]:
    """Lead every call of torch's attention by a model's modules, in this thread, through a function.

    On leaving, after an exception too, everything is as before. Several may be open at once, in one another or in
    several threads; of those on the same model the innermost has it. Weights that `nn.MultiheadAttention` returns are
    torch's own, computed beside it. The calls of a model's own softmax over scores are not seen.

    Args:
        model: any module.
        attention: given each execution, it returns the outputs [B, H, T, V]; `Given.attend` computes them.

    Raises:
        InputError: no module; when attention runs: dropout, or nested tensors.
        ModelError: a module that is compiled or scripted, whose calls nobody sees.
    """
    watch = PlainWatch(model, attention)
    with ExitStack() as stack:
        for module in watch._hooked:
            stack.callback(module.register_forward_pre_hook(watch._enter, prepend=True).remove)
            stack.callback(module.register_forward_hook(watch._leave, always_call=True).remove)
        stack.callback(watch._forget)
        stack.enter_context(watch._mode)
        yield watch


class PlainWatch:
    """One module that is watched in one thread.

    A pass is one outermost forward of the model or of a module in it.

    Attributes:
        names: the path of each module, as in `model.named_modules()`, by the module's id.
        passes: how many passes have begun.
        calls: how often each module asked for attention in the last pass, by its path, in the order of the first calls.
        asked: what those modules called, by path.
    """

    def __init__(self, model: nn.Module, attention: AttentionFunction) -> None:
        check_kind("the model", model, nn.Module, way_out="Give a torch.nn.Module.")
        self.names: dict[int, str] = {}
        for name, module in model.named_modules():
            _refuse_compiled(name, module)
            self.names[id(module)] = name
        self._hooked = [module for module in model.modules() if module is model or not _is_leaf(module)]
        self.passes = 0
        self.calls: dict[str, int] = defaultdict(int)
        self.asked: dict[str, What] = {}
        self._model, self._attention = model, attention
        self._replayed: dict[str, int] = defaultdict(int)
        self._thread = threading.get_ident()
        self._running: list[nn.Module] = []
        self._mode = PlainCalls(self._innermost, self._attend)

    def _forget(self) -> None:
        """Let go of the mode and of what it calls: a circle would keep all that was recorded until it is looked for."""
        del self._mode, self._attention

    def _enter(self, module: nn.Module, _: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        if module is self._model:
            self._running.clear()  # what an interrupt left behind
        if not self._running and in_backward():
            # torch has left the mode to go backward
            self._mode.__enter__()  # type: ignore[no-untyped-call]
        elif not self._running:
            self.passes += 1
            for counts in (self.calls, self.asked, self._replayed):
                counts.clear()
        self._running.append(module)

    def _leave(self, module: nn.Module, _: Any, __: Any) -> None:
        if threading.get_ident() == self._thread and module in self._running:
            while self._running.pop() is not module:
                pass
            if not self._running and in_backward():
                self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def _innermost(self) -> nn.Module | None:
        return self._running[-1] if self._running else None

    def _attend(self, module: nn.Module, call: PlainCall) -> Tensor:
        name, replay = self.names[id(module)], in_backward()
        self.asked[name] = call.what
        given = Given(
            name=name,
            turn=self._turn(name, replay=replay),
            module=module,
            q=call.q,
            k=call.k,
            v=call.v,
            readable=readable(call.mask, call.q, call.k, causal=call.causal),
            scale=call.scale,
            replay=replay,
        )
        return self._attention(given)

    def _turn(self, name: str, *, replay: bool) -> int:
        """Return how often a module had run before in this pass; replays come back to front."""
        if replay:
            self._replayed[name] += 1
            return (-self._replayed[name]) % max(1, self.calls[name])
        self.calls[name] += 1
        return self.calls[name] - 1


def _is_leaf(module: nn.Module) -> bool:
    """Return whether a module is one of torch's own with nothing in it, such as a linear layer or a norm."""
    return type(module).__module__.startswith("torch.nn.") and not module._modules


def _refuse_compiled(name: str, module: nn.Module) -> None:
    scripted = isinstance(module, torch.jit.ScriptModule)
    if scripted or hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
        raise ModelError(
            f"the module {name or 'itself'} ({type(module).__name__})",
            expected="one that Python runs",
            given="scripted code" if scripted else "compiled code",
            way_out="Watch the module that it was made from.",
        )
