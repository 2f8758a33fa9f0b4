"""Checkpoint layouts (floor 2): a config.json and the names of tensors, for each family that people publish.

Takes config and the transformer's parameter names from beside it. Gives `read_config`, `config_fields` and the way
between stored tensors and parameters to whoever reads or writes a checkpoint.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wherefrom.errors import InputError, ModelError
from wherefrom.model.config import Config
from wherefrom.model.fields import Fields
from wherefrom.model.layouts import bert, gpt2, llama, marian, own
from wherefrom.model.layouts.layout import Layout, Stored

LAYOUTS: dict[str, Layout] = {
    layout.architecture: layout for module in (llama, gpt2, bert, marian, own) for layout in module.LAYOUTS
}
SUPPORTED_ARCHITECTURES = tuple(LAYOUTS)


def read_config(fields: Mapping[str, Any], where: Path) -> Config:
    """Return the configuration of a Hugging Face ``config.json``.

    Args:
        fields: the file's content.
        where: the file, for messages.

    Raises:
        ModelError: a field is missing, makes no sense, or asks for something that the transformer does
            not compute. ``path``, ``field`` and ``value`` say which.
    """
    read = Fields(fields, where)
    name = read.get("model_type")
    if not isinstance(name, str) or name not in LAYOUTS:
        supported = ", ".join(LAYOUTS)
        read.refuse(
            "model_type",
            name,
            f"a supported architecture ({supported})",
            f"Choose a model whose config.json says one of: {supported}.",
        )
    try:
        return LAYOUTS[name].read(read)
    except InputError as error:  # sizes that are numbers, and yet no model's
        raise ModelError(
            f"{where}: {error.what}",
            expected=error.expected,
            given=error.given,
            way_out="Copy the model's config.json again, or choose another model.",
            path=where,
            field=error.what.removeprefix("the configuration's "),
            value=error.given,
        ) from error


def config_fields(config: Config) -> dict[str, Any]:
    """Return the configuration as a config.json has it, for `read_config` and transformers to read.

    Raises:
        InputError: the family's files cannot say it, such as a Llama with learned positions; ``field`` says what. A
            folder that reads as another model than was written is worse than none.
    """
    if config.architecture not in LAYOUTS:
        raise _no_place("architecture", f"one of {', '.join(LAYOUTS)}", config.architecture)
    fields = LAYOUTS[config.architecture].write(config)
    try:
        read = read_config(fields, Path("config.json"))
    except ModelError as error:
        name = str(error.facts["field"])
        raise _no_place(name, f"{error.expected} (in files of {config.architecture})", error.facts["value"]) from error
    for field in dataclasses.fields(config):
        said, own = getattr(read, field.name), getattr(config, field.name)
        if said != own:
            raise _no_place(field.name, f"{said!r}, all that files of {config.architecture} can say", own)
    return fields


def _no_place(field: str, expected: str, given: Any) -> InputError:
    way_out = 'Give architecture="wherefrom", whose files hold any configuration.'
    return InputError(
        f"the configuration's {field}", expected=expected, given=repr(given), way_out=way_out, field=field
    )


def stored_parameters(config: Config) -> dict[str, Stored]:
    """Return where each parameter of the transformer stands in the family's files, a tied output matrix left out."""
    found = dict(LAYOUTS[config.architecture].stored(config))
    if config.tied:
        found.pop("head.weight", None)
    return found


def copies(config: Config) -> dict[str, str]:
    """Return the tensors that a file may hold a second time, to what each must be a copy of."""
    if not config.tied:
        return {}
    layout = LAYOUTS[config.architecture]
    stored = layout.stored(config)
    head = stored["head.weight"].name if "head.weight" in stored else "head.weight"
    return {head: stored["embedding.weight"].name, **layout.copies}


def parameters(config: Config, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the transformer's parameters by name, views of a checkpoint's tensors, a tied output matrix left out."""
    return {name: at.take(tensors[at.name]) for name, at in stored_parameters(config).items()}


def checkpoint_tensors(config: Config, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what the family's files hold for given parameters: the inverse of `parameters`."""
    pieces: dict[str, list[tuple[int, str, Stored]]] = {}
    for name, at in stored_parameters(config).items():
        pieces.setdefault(at.name, []).append((at.part, name, at))
    return {
        stored: found[0][2].put([parameters[name] for _, name, _ in sorted(found, key=lambda piece: piece[0])])
        for stored, found in pieces.items()
    }


def expected_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Return every tensor that the family's files must hold, with its shape."""
    from wherefrom.model.transformer import Transformer

    with torch.device("meta"):  # shapes without memory: a config.json may ask for more than there is
        own_shapes = {name: tuple(parameter.shape) for name, parameter in Transformer(config).state_dict().items()}
    return {at.name: at.shape(own_shapes[name]) for name, at in stored_parameters(config).items()}
