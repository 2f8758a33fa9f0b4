"""Where in a transformers model an attention module stands (floor 3): its part, its kind and its layer, from its path.

Models name their modules as they like; what they share is that layers are numbered. Modules whose paths are the same
but for their numbers are one group, and the number that varies within it is the layer.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from wherefrom.errors import InputError
from wherefrom.recording import Gap

VISION = re.compile("vision|visual|image|patch|video")
AUDIO = re.compile("audio|speech")
CROSS = re.compile(
    r"cross_?(modal_?)?att|enc_?dec_?att|encoder_decoder_att|^encoder_att|^enc_att|^multihead_attn$|att(n|ention)_\w+_to_",
    re.I,
)
"""A module on the path of which one component is called so reads something else than it writes."""
PLAIN = frozenset(
    {
        "model",
        "base_model",
        "module",
        "transformer",
        "encoder",
        "decoder",
        "layers",
        "layer",
        "h",
        "blocks",
        "block",
        "stages",
        "stage",
        "backbone",
        "language_model",
        "text_model",
        "text",
        "lm",
        "llm",
        "network",
        "body",
        "trunk",
        "groups",
        "resblocks",
    }
)
"""What containers are called everywhere: it tells no part from another."""
PAIR = ("encoder", "decoder")
SIDES = {"text_encoder": "encoder", "text_decoder": "decoder"}


@dataclass(frozen=True)
class Place:
    """Where an attention module stands.

    Attributes:
        part: "decoder", "encoder", or a tower's name, such as "vision".
        kind: "self" or "cross".
        layer: its layer's true number within the part, from 0.
    """

    part: str
    kind: str
    layer: int


def places(model: nn.Module, names: Sequence[str], cross: Collection[str] = ()) -> dict[str, Place]:
    """Return where each of some attention modules stands, in the order of `model.named_modules()`.

    No two have the same place: of two groups that would, the second has its own name in its part, as "vision.pooler".

    Args:
        model: a transformers model.
        names: paths of attention modules.
        cross: those of them that are known to be cross-attention, beside the ones that say so themselves.

    Raises:
        InputError: the model has no module of that name.
    """
    model = as_written(model)
    ordered = _ordered(model, names)
    groups = _groups(ordered)
    parts = _parts(model, groups)
    found: dict[str, Place] = {}
    taken: dict[tuple[str, str, int], str] = {}  # place -> pattern
    for pattern, group in groups.items():
        kind = "cross" if any(name in cross or _is_cross(model, name) for name in group) else "self"
        layers = _layers(group)
        part = _free(parts[pattern], kind, layers.values(), pattern, taken)
        for name, layer in layers.items():
            taken[part, kind, layer] = pattern
            found[name] = Place(part, kind, layer)
    return {name: found[name] for name in ordered}


def layers_without(model: nn.Module, places: Mapping[str, Place], gaps: Iterable[Gap] = ()) -> tuple[Gap, ...]:
    """Return the layers that ran no attention, of every stack that has some layer which did.

    Args:
        model: the model.
        places: of all attention modules that ran.
        gaps: attention that ran unseen; a layer that holds one is not without.
    """
    model = as_written(model)
    numbered: dict[str, set[int]] = defaultdict(set)  # container -> the layers that ran attention
    for group in _groups(list(places)).values():
        place = _varying(group)
        for name in group:
            pieces = name.split(".")
            if place is not None and len(place) == 1:
                numbered[".".join(pieces[: place[0]])].add(int(pieces[place[0]]))
    unseen = [f"{gap.name}." for gap in gaps]
    missing = []
    for container, layers in numbered.items():
        for child in _numbers(model, container):
            name = f"{container}.{child}" if container else str(child)
            if child not in layers and not any(gap.startswith(f"{name}.") for gap in unseen):
                missing.append(Gap(name=name, what="no attention", layer=child, calls=0))
    return tuple(missing)


def as_written(model: nn.Module) -> nn.Module:
    """Return the model that `torch.compile` was given, or the model itself: its names are those of its modules."""
    own = getattr(model, "_orig_mod", model)
    return own if isinstance(own, nn.Module) else model


def numbers_of(names: Collection[str]) -> dict[str, int | None]:
    """Return the layers of modules that are known by name only: the number that varies among paths alike.

    None where the path has no number, or several vary.
    """
    found: dict[str, int | None] = dict.fromkeys(names)
    for group in _groups(names).values():
        place = _varying(group)
        if place is not None and len(place) == 1:
            found.update({name: int(name.split(".")[place[0]]) for name in group})
    return found


def _ordered(model: nn.Module, names: Iterable[str]) -> list[str]:
    wanted = set(names)
    ordered = [name for name, _ in model.named_modules() if name in wanted]
    if len(ordered) != len(wanted):
        raise InputError(
            "the names of attention modules",
            expected="paths from model.named_modules()",
            given=", ".join(sorted(wanted - set(ordered))),
            way_out="Give them as the model names them.",
        )
    return ordered


def _groups(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the names by their pattern, the path with every number replaced."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        groups[".".join("*" if piece.isdigit() else piece for piece in name.split("."))].append(name)
    return groups


def _varying(group: Sequence[str]) -> list[int] | None:
    """Return at which places of the paths the layer's number stands: those that vary; if none does, the first number.

    None where the paths have no number at all.
    """
    paths = [name.split(".") for name in group]
    numbers = [place for place, piece in enumerate(paths[0]) if piece.isdigit()]
    varying = [place for place in numbers if len({path[place] for path in paths}) > 1]
    return varying or numbers[:1] or None


def _layers(group: Sequence[str]) -> dict[str, int]:
    place = _varying(group)
    if place is None:
        return dict.fromkeys(group, 0)
    if len(place) > 1:  # stages and blocks of a pyramid
        return {name: ordinal for ordinal, name in enumerate(group)}
    return {name: int(name.split(".")[place[0]]) for name in group}


def _is_cross(model: nn.Module, name: str) -> bool:
    module = model.get_submodule(name)
    said = getattr(module, "is_cross_attention", None)
    if isinstance(said, bool):
        return said
    return "CrossAttention" in type(module).__name__ or any(CROSS.search(piece) for piece in name.split("."))


def _parts(model: nn.Module, groups: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the part of each pattern."""
    heads = {pattern: _head(pattern) for pattern in groups}
    pair = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False)) or _side_by_side(heads.values())
    parts = {pattern: _tower(model, head, pair) for pattern, head in heads.items()}
    own = {pattern: _own_name(model, heads[pattern]) for pattern, part in parts.items() if part is None}
    main = "" if set(PAIR) & set(parts.values()) else _main(own, groups)
    for pattern, name in own.items():
        parts[pattern] = name if name not in ("", main) else _side(model, groups[pattern][0], pair)
    return {pattern: part for pattern, part in parts.items() if part is not None}


def _head(pattern: str) -> list[str]:
    """Return the path as far as the first number: what a layer's own modules are called tells no part."""
    pieces = pattern.split(".")
    return pieces[: pieces.index("*")] if "*" in pieces else pieces[:-1]


def _side_by_side(heads: Iterable[Sequence[str]]) -> bool:
    """Return whether an encoder and a decoder stand in the same place."""
    places = {side: {tuple(head[: head.index(side)]) for head in heads if side in head} for side in PAIR}
    return bool(places["encoder"] & places["decoder"])


def _tower(model: nn.Module, head: Sequence[str], pair: bool) -> str | None:
    """Return the part that a path names, None where it names none: the first component that says anything decides."""
    for piece, plain in _with_plain(model, head):
        if pair and piece in PAIR:
            return piece
        if piece in SIDES:
            return SIDES[piece]
        if VISION.search(piece):
            return "vision"
        if AUDIO.search(piece):
            return "audio"
        if not plain:
            return None
    return None


def _own_name(model: nn.Module, head: Sequence[str]) -> str:
    """Return the last component that is not called as everywhere, made a part's name; "" where all are."""
    own = [piece for piece, plain in _with_plain(model, head) if not plain]
    return re.sub("[^a-z0-9_]", "_", own[-1].lower()).lstrip("_0123456789") if own else ""


def _with_plain(model: nn.Module, head: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Yield the components of a path, and whether each is called as everywhere, or as a model calls its base."""
    module = model
    for piece in head:
        yield piece, piece in PLAIN or piece == getattr(module, "base_model_prefix", None)
        module = module.get_submodule(piece)


def _main(own: Mapping[str, str], groups: Mapping[str, Sequence[str]]) -> str:
    """Return the own name of the main stack: none at all where some stack has none, else that of the most layers."""
    sizes: dict[str, int] = defaultdict(int)
    for pattern, name in own.items():
        sizes[name] = max(sizes[name], len(groups[pattern]))
    return "" if "" in sizes or not sizes else max(sizes, key=lambda name: sizes[name])


def _side(model: nn.Module, name: str, pair: bool) -> str:
    """Return whether the main stack is a "decoder", causal, or an "encoder"."""
    config: Any = getattr(model, "config", None)
    writes = getattr(model, "can_generate", None)
    causal = (
        getattr(config, "is_decoder", False) is True or getattr(model.get_submodule(name), "is_causal", False) is True
    )
    return "decoder" if causal or (writes is not None and not pair and writes()) else "encoder"


def _free(part: str, kind: str, layers: Iterable[int], pattern: str, taken: Mapping[tuple[str, str, int], str]) -> str:
    """Return the part, or a name of its own in it where others have its places already."""
    layers = list(layers)
    others = {taken[part, kind, layer] for layer in layers if (part, kind, layer) in taken}
    if not others:
        return part
    known = {piece for other in others for piece in other.split(".")}
    new = [piece.lower() for piece in pattern.split(".") if piece not in known and piece not in PLAIN]
    names = [f"{part}.{re.sub('[^a-z0-9_]', '_', piece)}" for piece in new]
    names += [f"{part}.{number}" for number in range(2, len(taken) + 3)]
    return next(name for name in names if not any((name, kind, layer) in taken for layer in layers))


def _numbers(model: nn.Module, container: str) -> list[int]:
    """Return the numbers of a container's children."""
    return [int(name) for name, _ in model.get_submodule(container).named_children() if name.isdigit()]
