"""What of transformers is replaced while a model is watched (floor 3), and put back when nobody watches any more.

Several may want the same replacement, in one another or in several threads: the first puts it in, the last takes it
out. Each replacement stands for everybody in the process, so what is put in asks who is calling.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch

Function: TypeAlias = Callable[..., Any]
Undo: TypeAlias = Callable[[], None]
MISSING: Any = object()


class Replacements:
    """Replacements that are in force, each with a count of those who want it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[Hashable, tuple[int, Undo]] = {}

    @contextmanager
    def held(self, key: Hashable, put: Callable[[], Undo]) -> Iterator[None]:
        """Hold a replacement.

        Args:
            key: which.
            put: puts it in, called if nobody holds it, and returns what takes it out again.
        """
        with self._lock:
            count, undo = self._held[key] if key in self._held else (0, put())
            self._held[key] = count + 1, undo
        try:
            yield
        finally:
            with self._lock:
                count, undo = self._held.pop(key)
                if count > 1:
                    self._held[key] = count - 1, undo
                else:
                    undo()


def in_table(table: dict[str, Function], name: str, make: Callable[[Any], Function]) -> Undo:
    """Replace an entry by what is made of it, of `MISSING` where there is none; return what puts it back."""
    stock = table.get(name, MISSING)
    own = table[name] = make(stock)

    def undo() -> None:
        if table.get(name) is not own:  # somebody else registered another meanwhile, and keeps it
            return
        if stock is MISSING:
            del table[name]
        else:
            table[name] = stock

    return undo


def in_class(owner: type, name: str, read: Callable[[Any, Function], Any]) -> Undo:
    """Replace how a property of a class is read; return what puts it back.

    Args:
        owner: the class that defines it.
        name: of the property.
        read: given an object and the property's own getter.
    """
    stock: property = vars(owner)[name]
    getter: Any = stock.fget
    own = property(lambda of: read(of, getter), stock.fset, stock.fdel, stock.__doc__)
    setattr(owner, name, own)

    def undo() -> None:
        if vars(owner).get(name) is own:
            setattr(owner, name, stock)

    return undo


def compiler_off() -> Undo:
    """Let compiled modules run as they were written; return what lets them be compiled again."""
    stance = torch.compiler.set_stance("force_eager")
    return lambda: stance.__exit__(None, None, None)


def in_backward() -> bool:
    """Return whether this thread is in a backward pass, where only replays run a model's forward."""
    return bool(torch._C._current_graph_task_id() != -1)
