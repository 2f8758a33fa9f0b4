"""All attention of a module that can be led through one function (floor 3): transformers' interface and torch's own.

Most models of transformers hand their attention to the interface; some modules among them, and plain models, call
`torch.nn.functional.scaled_dot_product_attention` or `torch.nn.MultiheadAttention`. Whoever records or cuts sees both.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn

from wherefrom.capture.huggingface.interface import Watch, watched
from wherefrom.capture.huggingface.seen import AttentionFunction, Given
from wherefrom.capture.huggingface.sites import as_written
from wherefrom.capture.plain_calls import handled
from wherefrom.capture.plain_modules import watched_plain
from wherefrom.errors import ModelError
from wherefrom.recording import Gap


class Everywhere:
    """A module that is watched.

    Attributes:
        seen: the paths of the modules whose attention was led through the function.
    """

    def __init__(self, watch: Watch, seen: set[str]) -> None:
        self._watch, self.seen = watch, seen

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """The attention that has passed by both so far."""
        return tuple(gap for gap in self._watch.gaps if gap.what == "softmax" or gap.name not in self.seen)


@contextmanager
def watched_everywhere(model: nn.Module, attention: AttentionFunction) -> Iterator[Everywhere]:
    """Lead every execution of attention by a module's modules, in this thread, through a function.

    On leaving, after an exception too, everything is as before.

    Args:
        model: a model of transformers, or any other module.
        attention: given each execution, it returns the outputs [B, H, T, V]; `Given.attend` computes them.

    Raises:
        InputError: no module; weights are asked for; when attention runs: dropout.
        ModelError: a module that is scripted, or whose attention cannot be switched.
    """
    seen: set[str] = set()

    def through(given: Given) -> Tensor:
        seen.add(given.name)
        with handled():
            return attention(given)

    with ExitStack() as stack:
        watch = stack.enter_context(watched(model, through))
        try:
            stack.enter_context(watched_plain(model, through))
        except ModelError:  # a compiled one: what does not pass the interface is then a gap
            if not hasattr(as_written(model), "config"):
                raise
        yield Everywhere(watch, seen)
