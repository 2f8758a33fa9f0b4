"""What a checkpoint layout is (floor 2): where each of the transformer's parameters stands in somebody's files.

Takes config and fields from beside it. One file here holds one family: it reads the family's config.json, writes it,
and names its tensors. Adding a family means adding a file and a line in `wherefrom.model.layouts`; what it computes is
the transformer's business.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from wherefrom.model.config import Config
from wherefrom.model.fields import Fields


@dataclass(frozen=True)
class Stored:
    """Where a parameter is stored: a tensor's name, and how the parameter lies in it.

    Attributes:
        name: of the tensor.
        transposed: stored as [inputs, outputs].
        part: which of `parts` equal pieces along the outputs; for projections that are stored side by side.
        parts: see part.
        row: a vector that is stored as a matrix of one row.
    """

    name: str
    transposed: bool = False
    part: int = 0
    parts: int = 1
    row: bool = False

    def take(self, tensor: Tensor) -> Tensor:
        """Return the parameter, a view of what is stored."""
        own = tensor.T if self.transposed else tensor[0] if self.row else tensor
        return own if self.parts == 1 else own.chunk(self.parts)[self.part]

    def shape(self, own: tuple[int, ...]) -> tuple[int, ...]:
        """Return the stored shape of a parameter of a given shape."""
        whole = (own[0] * self.parts, *own[1:])
        return whole[::-1] if self.transposed else (1, *whole) if self.row else whole

    def put(self, pieces: list[Tensor]) -> Tensor:
        """Return what is stored of the pieces in their order: the inverse of `take`."""
        whole = torch.cat(pieces) if self.parts > 1 else pieces[0]
        return (whole.T if self.transposed else whole[None] if self.row else whole).contiguous()


@dataclass(frozen=True)
class Layout:
    """How a family writes its checkpoints.

    Attributes:
        architecture: the model_type in its config.json.
        read: its config.json as a `Config`; a `ModelError` where it asks for what is not computed.
        write: a `Config` as the fields of a config.json that `read`, and transformers, read.
        stored: where each parameter stands, under its name in our transformer; the output matrix too where it is tied.
        prefix: an outer name that checkpoints of the family carry or leave out.
        unused: tensors that may be there and change nothing that is computed here, as a pattern.
        old: how names ended in earlier files, to how they end now.
        copies: tensors that files of a tied model may hold a second time, to what each is a copy of; the output matrix,
            whose name `stored` gives, is not among them.
    """

    architecture: str
    read: Callable[[Fields], Config]
    write: Callable[[Config], dict[str, Any]]
    stored: Callable[[Config], dict[str, Stored]]
    prefix: str = ""
    unused: re.Pattern[str] = re.compile(r"(?!)")
    old: Mapping[str, str] = field(default_factory=dict)
    copies: Mapping[str, str] = field(default_factory=dict)

    def full_names(self, names: Iterable[str], config: Config) -> dict[str, str]:
        """Return the names that count, to their full form: without those that nothing here depends on.

        Some checkpoints of a family leave its outer prefix out; then no name begins with it.
        """
        known = {at.name for at in self.stored(config).values()} | self.copies.keys()
        listed = list(names)
        bare = bool(self.prefix) and not any(name.startswith(self.prefix) for name in listed)
        found = {}
        for name in listed:
            now = self._renewed(name)
            full = self.prefix + now if bare and self.prefix + now in known else now
            if full in known or not self.unused.fullmatch(name):
                found[name] = full
        return found

    def _renewed(self, name: str) -> str:
        ended = next((end for end in self.old if name.endswith(end)), "")
        return name.removesuffix(ended) + self.old.get(ended, "")


Modules: TypeAlias = Mapping[str, tuple[str, tuple[str, ...]]]
"""Own module name to (its name in the file, its parameters' names, "weight" and "bias")."""


def parts(biased: bool) -> tuple[str, ...]:
    """Return the names of a linear layer's parameters."""
    return ("weight", "bias") if biased else ("weight",)


def renamed(own: str, theirs: str, modules: Modules) -> dict[str, Stored]:
    """Return where the parameters of a block's modules stand, whose parameters are stored as they are."""
    return {
        f"{own}.{name}.{kind}": Stored(f"{theirs}.{their_name}.{kind}")
        for name, (their_name, kinds) in modules.items()
        for kind in kinds
    }
