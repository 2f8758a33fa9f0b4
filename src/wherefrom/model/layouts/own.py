"""Our own layout (floor 2), for what no other family's files can say: every field under its own name."""

from __future__ import annotations

from dataclasses import MISSING, asdict, fields
from typing import Any

import torch

from wherefrom.errors import InputError
from wherefrom.model.config import Config
from wherefrom.model.fields import Fields
from wherefrom.model.layouts.layout import Layout, Stored

FORMAT = 1


def read(found: Fields) -> Config:
    """Return the shape that a config.json of ours asks for."""
    if found.get("format", FORMAT) != FORMAT:
        found.refuse(
            "format", found.get("format"), f"{FORMAT}, the only one there is", "Install a newer version of wherefrom."
        )
    known = {field.name: field for field in fields(Config)}
    for name in found.fields:
        if name not in known and name not in ("model_type", "format", "dtype", "transformers_version"):
            found.refuse(name, found.fields[name], "a field of a configuration")
    missing = [name for name, field in known.items() if field.default is MISSING and name not in found.fields]
    missing = [name for name in missing if name != "architecture"]
    if missing:
        found.refuse(missing[0], None, "a value")
    values = {name: value for name, value in found.fields.items() if name in known}
    try:
        lists = {name: found.ids(name) for name in ("eos_ids", "never_ids")}
        return Config(**values | {"architecture": "wherefrom"} | lists)
    except InputError as error:
        name = str(error.facts.get("field", "")) or error.what.removeprefix("the configuration's ")
        found.refuse(name, found.get(name), error.expected)


def write(config: Config) -> dict[str, Any]:
    """Return the shape as a config.json has it."""
    values = asdict(config) | {"eos_ids": list(config.eos_ids), "never_ids": list(config.never_ids)}
    return {"model_type": "wherefrom", "format": FORMAT} | {k: v for k, v in values.items() if k != "architecture"}


def stored(config: Config) -> dict[str, Stored]:
    """Return where each parameter stands: under its own name, a matrix that two modules share under its first."""
    from wherefrom.model.transformer import Transformer  # the names are the module's; it does not know of layouts

    with torch.device("meta"):  # names and shapes without memory
        return {name: Stored(name) for name, _ in Transformer(config).named_parameters()}


LAYOUTS = (Layout("wherefrom", read, write, stored),)
