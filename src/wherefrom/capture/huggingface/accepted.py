"""Which keywords a model takes (floor 3): those that its forward names, and those that it hands on to who reads them.

Most models of transformers take any keyword, and hand what they do not know to their attention function, where a
mistyped one is found late and blamed on the attention. Here each is looked for before anything runs, in all that the
code of the model's modules names: parameters of their methods, and texts such as that of ``kwargs.get("name")``. So a
keyword that is said to be unknown is named nowhere; one that is let through may still be none.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from functools import cache
from types import CodeType
from typing import Any

from torch import nn

from wherefrom.capture.huggingface.arguments import IGNORED, READ
from wherefrom.capture.huggingface.sites import as_written
from wherefrom.errors import InputError

ANYWHERE = READ | IGNORED
"""What transformers reads of any call, whichever model it is of."""
FEW = 12
"""So many of the keywords that a model takes are listed, then counted."""


def parameters_of(model: nn.Module) -> tuple[str, ...]:
    """Return the keywords that a model's forward names, in their order."""
    every = inspect.signature(as_written(model).forward).parameters.values()
    return tuple(one.name for one in every if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD))


def unknown_to(model: nn.Module, names: Iterable[str]) -> tuple[str, ...]:
    """Return which keywords a model certainly does not take, in their order.

    Args:
        model: of transformers, or any other module.
        names: of keywords.
    """
    model = as_written(model)
    left = [name for name in names if name not in parameters_of(model)]
    every = inspect.signature(model.forward).parameters.values()
    if any(one.kind is one.VAR_KEYWORD for one in every):
        if not _is_of_transformers(type(model)) or "forward" in vars(model):
            return ()  # it may hand them to anything
        kinds: set[Any] = {type(module) for module in model.modules()}
        known = ANYWHERE.union(*(_named_in(kind) for kind in kinds))
    else:
        known = ANYWHERE.union(_named_by(model.forward)) if _is_of_transformers(type(model)) else frozenset()
    return tuple(name for name in left if name not in known)


def require_known(model: nn.Module, name: str, given: Iterable[str]) -> None:
    """Refuse keywords that a model does not take.

    Args:
        model: that they are for.
        name: what it is called in the sentence.
        given: the keywords.

    Raises:
        InputError: some are unknown; a keyword that is written much alike is suggested.
    """
    unknown = unknown_to(model, given)
    if not unknown:
        return
    taken = parameters_of(model)
    close = [(one, get_close_matches(one, taken, n=1, cutoff=0.75)) for one in unknown]
    meant = ", ".join(f"{likely[0]}" for _, likely in close if likely)
    way_out = f"Perhaps you meant {meant}: " if meant else ""
    raise InputError(
        "the inputs",
        expected=f"keywords that {name} takes",
        given=" and ".join(unknown),
        way_out=f"{way_out}{takes(model, name)}.",
        keywords=unknown,
    )


def takes(model: nn.Module, name: str) -> str:
    """Return what a model's forward takes, in words."""
    taken = parameters_of(model)
    more = f" and {len(taken) - FEW} more" if len(taken) > FEW else ""
    return f"{name} takes {', '.join(taken[:FEW]) or 'what it hands on'}{more}"


def _is_of_transformers(kind: type) -> bool:
    return kind.__module__.startswith("transformers.")


@cache
def _named_in(kind: Any) -> frozenset[str]:
    """Return all that the methods of a kind of module name."""
    classes = [one for one in kind.__mro__ if not one.__module__.startswith(("torch.", "builtins"))]
    methods = [value for one in classes for value in vars(one).values()]
    functions = [getattr(value, "__func__", value) for value in methods]
    return frozenset(name for function in functions if callable(function) for name in _named_by(function))


def _named_by(function: Callable[..., Any]) -> Iterator[str]:
    """Yield the parameters and the texts in a function's code, and in that of what decorates it."""
    seen: set[int] = set()
    left: list[Any] = [getattr(function, "__func__", function)]
    while left:
        one = left.pop()
        if id(one) in seen or not hasattr(one, "__code__"):
            continue
        seen.add(id(one))
        yield from _texts_in(one.__code__)
        cells = [value for cell in one.__closure__ or () for value in _content(cell)]
        yield from (value for value in cells if isinstance(value, str))
        left += [value for value in (getattr(one, "__wrapped__", None), *cells) if callable(value)]


def _texts_in(code: CodeType) -> Iterator[str]:
    yield from code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, (tuple, frozenset)):
            yield from (one for one in constant if isinstance(one, str))
        elif isinstance(constant, CodeType):
            yield from _texts_in(constant)


def _content(cell: Any) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # a name that its function has not set yet
        return ()
