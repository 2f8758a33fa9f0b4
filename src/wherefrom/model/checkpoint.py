"""A checkpoint folder in the usual Hugging Face layout (floor 2): configuration, weights, tokenizer.

Takes config and the store's sums from beside it. Gives a `Checkpoint` to the transformer. Weights are memory-
mapped: reading 540 MB that the system holds in memory takes a tenth of a second. What does not fit is refused
at this door, tensor by tensor, so that no model runs on half of its weights.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from wherefrom.errors import InputError, ModelError
from wherefrom.model import store
from wherefrom.model.chat import ChatTemplate, template_of
from wherefrom.model.config import Config
from wherefrom.model.fields import Fields
from wherefrom.model.layouts import (
    LAYOUTS,
    SUPPORTED_ARCHITECTURES,
    checkpoint_tensors,
    config_fields,
    copies,
    expected_shapes,
    read_config,
)
from wherefrom.model.transformer import Transformer
from wherefrom.readable import readable
from wherefrom.tokens import Tokenizer

WEIGHTS, INDEX, TOKENIZER = "model.safetensors", "model.safetensors.index.json", "tokenizer.json"
TOKENIZER_CONFIG, CHAT_TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
FLOATING = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
# What folders of any model may be called: "model", and the checkpoints of a training run.
GENERIC = re.compile(r"step-\d{8}|model|checkpoint")
COPY_AGAIN = "Copy the model's folder again."
# How a vocabulary comes without a tokenizer.json, the first two with the OPUS translation models.
PIECES = ("source.spm", "target.spm", "tokenizer.model", "spiece.model", "vocab.json", "merges.txt", "vocab.txt")
CONVERT = "Make a tokenizer.json of them first; docs/models.md says what it must hold."
CHOOSE = (
    'Nothing is downloaded from a hub: give "smollm2", the built-in model, or a local folder that holds config.json '
    f"(model_type {', '.join(SUPPORTED_ARCHITECTURES)}), model.safetensors and tokenizer.json."
)


@dataclass(frozen=True)
class ModelIdentity:
    """Which model it was.

    Attributes:
        name: the folder's name; of a training run's checkpoint with the run's ("run/step-00000800").
        path: the folder.
    """

    name: str
    path: Path

    @cached_property
    def checksum(self) -> str:
        """The SHA-256 over the sums of config.json and every weight file, as ``sha256sum`` prints them.

        The cache's own folder was summed when it was verified; any other is read now (1.5 GB a second).
        """
        names = ["config.json", *(file.name for file in self.path.glob("*.safetensors"))]
        sums = store.recorded_sums(self.path) or {}
        lines = [f"{sums.get(name) or store.file_sum(self.path / name)}  {name}\n" for name in sorted(names)]
        return hashlib.sha256("".join(lines).encode()).hexdigest()


@dataclass(frozen=True)
class Checkpoint:
    """A model as it was read: everything needed to run it.

    Attributes:
        config: its shape.
        tensors: float32 weights under their names in the files (with the family's prefix); views of the files, not
            to be written to. Where the embedding is tied, it is not there a second time.
        tokenizer: its vocabulary.
        identity: its name and checksum.
        chat: how its conversations are written, where its files say so.
    """

    config: Config
    tensors: dict[str, torch.Tensor]
    tokenizer: Tokenizer
    identity: ModelIdentity
    chat: ChatTemplate | None = None


def read_folder(folder: Path, *, check_values: bool = True) -> Checkpoint:
    """Return the model in a folder: config.json, model.safetensors (or shards and index), tokenizer.json.

    A folder of a training run (`wherefrom train`) stands for its newest checkpoint.

    Args:
        folder: a local folder; nothing is downloaded. A "~" at its beginning is the user's home.
        check_values: whether to look for NaN and infinities, which reads every weight once.

    Raises:
        ModelError: something is missing, damaged, of the wrong shape, not a number, or more than the model
            uses. ``path``, ``tensor`` or ``field`` say what.
    """
    folder = _newest(_existing_folder(folder))
    config = _read_config(folder)
    layout = LAYOUTS[config.architecture]
    tensors: dict[str, torch.Tensor] = {}
    for file in _weight_files(folder):
        tensors |= _read_tensors(file)
    tensors = {full: tensors[name] for name, full in layout.full_names(tensors, config).items()}
    _check_names_and_shapes(tensors, config, folder)
    _drop_copies(tensors, config, folder)
    for name, tensor in tensors.items():
        tensors[name] = _floats(name, tensor, folder, check_values=check_values)
    tokenizer = Tokenizer.from_file(_existing(folder / TOKENIZER), rows=config.vocabulary)
    if tokenizer.vocabulary_size > config.vocabulary:
        given = f"{tokenizer.vocabulary_size} of them"
        expected = f"at most {config.vocabulary} tokens, the rows of the embedding"
        raise _refusal(f"{folder / TOKENIZER}", expected, given, path=folder / TOKENIZER)
    return Checkpoint(config, tensors, tokenizer, ModelIdentity(_name(folder), folder), _template(folder))


def write_folder(folder: str | Path, transformer: Transformer, tokenizer: Tokenizer) -> None:
    """Write a model as a checkpoint folder, in the layout of its configuration's architecture, for `read_folder` to
    read.

    Args:
        folder: an existing folder (a "~" at its beginning is the user's home); files of these names in it are replaced.
        transformer: the model, on any device.
        tokenizer: its vocabulary.

    Raises:
        ModelError: there is no such folder.
        InputError: the layout cannot say what the configuration asks for.
        OSError: the folder cannot be written, as with the next.
        SafetensorError: a file of weights cannot be written.
    """
    way_out = "Make the folder first: Path(folder).mkdir(parents=True)."
    folder = _existing_folder(folder, "a folder to write the model into", way_out)
    config = transformer.config
    fields = config_fields(config) | {"dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
    own = {name: parameter.detach().float().cpu() for name, parameter in transformer.named_parameters()}
    tensors = {name: tensor.contiguous() for name, tensor in checkpoint_tensors(config, own).items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / TOKENIZER).write_text(tokenizer.inner.to_str(), encoding="utf-8")


def _template(folder: Path) -> ChatTemplate | None:
    """Return the chat template of a folder, which either of two files may hold."""
    config, apart = folder / TOKENIZER_CONFIG, folder / CHAT_TEMPLATE
    try:
        source = apart.read_text(encoding="utf-8") if apart.exists() else None
    except (OSError, ValueError) as error:
        raise _refusal(f"{apart}", "a template as text", f"something else ({error})", path=apart) from error
    return template_of(_read_json(config) if config.exists() else {}, source)


def _name(folder: Path) -> str:
    """Return what a model is called: its folder's name, behind the outer folder's where it says nothing alone.

    What does not print in it is escaped: it goes into headlines, pages and files.
    """
    place = folder.resolve()
    says_nothing = GENERIC.fullmatch(place.name) and place.parent.name
    return readable(f"{place.parent.name}/{place.name}" if says_nothing else place.name)


def _read_config(folder: Path) -> Config:
    """Return the configuration, joined with the end marks, and tokens never written, of generation_config.json."""
    config = read_config(_read_json(_existing(folder / "config.json")), folder / "config.json")
    generation = folder / "generation_config.json"
    if not generation.exists():
        return config
    more = Fields(_read_json(generation), generation)
    ends = tuple(dict.fromkeys((*config.eos_ids, *more.ids("eos_token_id"))))
    never = tuple(dict.fromkeys((*config.never_ids, *more.never_ids(ends))))
    never = tuple(number for number in never if number not in ends)
    try:
        return replace(config, eos_ids=ends, never_ids=never)
    except InputError as error:
        more.refuse("bad_words_ids", more.get("bad_words_ids"), error.expected)


def _newest(folder: Path) -> Path:
    """Return the folder, or its newest whole checkpoint if it is that of a training run; the newest, if none is."""
    if (folder / "config.json").exists():
        return folder
    found = sorted(folder.glob("step-" + "[0-9]" * 8), reverse=True)
    return next(filter(_is_whole, found), found[0] if found else folder)


def _is_whole(checkpoint: Path) -> bool:
    """Whether a run's checkpoint has all the files that its training.json lists, in their sizes."""
    try:
        files = json.loads((checkpoint / "training.json").read_text(encoding="utf-8"))["files"]
        return has_files(checkpoint, files)
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return False


def has_files(folder: Path, sizes: Mapping[str, int]) -> bool:
    """Whether a folder has all files of some names, in their sizes: what tells a copy that was cut short."""
    try:
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except OSError:
        return False


def _weight_files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS).exists() or not (folder / INDEX).exists():
        return [_existing(folder / WEIGHTS)]
    shards = _read_json(folder / INDEX).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise _refusal(f"{folder / INDEX}", "a weight_map of tensor to file", "none", path=folder / INDEX)
    for name in shards.values():
        if Path(name).name != name:
            given = f"the path {name!r}"
            raise _refusal(f"{folder / INDEX}", "names of files beside it", given, path=folder / INDEX)
    return [_existing(folder / name) for name in sorted(set(shards.values()))]


def _existing_folder(folder: Any, expected: str = "a folder", way_out: str = CHOOSE) -> Path:
    try:
        place = Path(folder).expanduser()
        if place.is_dir():
            return place
        given = "a file" if place.exists() else "nothing there"
    except (OSError, RuntimeError, TypeError, ValueError) as error:  # too long, nobody's home, a number, a zero byte
        given = f"{error}".rstrip(".")
    raise ModelError(f"{folder}", expected=expected, given=given, way_out=way_out, path=folder)


def _existing(path: Path) -> Path:
    if path.is_file():
        return path
    if path.name == "config.json":  # not a damaged model, most likely: no model at all
        raise ModelError(f"{path.parent}", expected="a config.json in it", given="none", way_out=CHOOSE, path=path)
    pickled = path.name == WEIGHTS and any(path.parent.glob("pytorch_model*.bin"))
    pieces = [name for name in PIECES if (path.parent / name).exists()] if path.name == TOKENIZER else []
    given = f"only {', '.join(pieces)}" if pieces else "none"
    raise ModelError(
        f"{path.parent}",
        expected=f"a {path.name} in it",
        given="only a pickled pytorch_model.bin, which could run code" if pickled else given,
        way_out="Save the model as safetensors first." if pickled else CONVERT if pieces else COPY_AGAIN,
        path=path,
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _refusal(f"{path}", "JSON", f"something else ({error})", path=path) from error
    if not isinstance(content, dict):
        raise _refusal(f"{path}", "a JSON object", f"a {type(content).__name__}", path=path)
    return content


def _read_tensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is not a dict
    except (SafetensorError, OSError, ValueError) as error:
        raise _refusal(f"{path}", "a whole safetensors file", f"a cut or damaged one ({error})", path=path) from error


def _check_names_and_shapes(tensors: dict[str, torch.Tensor], config: Config, folder: Path) -> None:
    shapes = expected_shapes(config)
    missing = [name for name in shapes if name not in tensors]
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise _refusal(f"{folder}: the tensor {missing[0]}", "one", f"none{others}", tensor=missing[0])
    shapes |= {copy: shapes[original] for copy, original in copies(config).items()}
    for name, tensor in tensors.items():
        if name not in shapes:
            raise ModelError(
                f"{folder}: the tensor {name}",
                expected=f"one that the {config.architecture} {config.kind} uses",
                given=f"a name that its config.json has no place for, shape {list(tensor.shape)}",
                way_out="Choose a model without it: leaving it out would give other results.",
                tensor=name,
            )
        if tuple(tensor.shape) != shapes[name]:
            expected = f"shape {list(shapes[name])} as config.json has it"
            raise _refusal(f"{folder}: the tensor {name}", expected, f"{list(tensor.shape)}", tensor=name)


def _drop_copies(tensors: dict[str, torch.Tensor], config: Config, folder: Path) -> None:
    """Drop a stored copy of a tied matrix; one that differs contradicts config.json."""
    for copy, original in copies(config).items():
        stored = tensors.pop(copy, None)
        if stored is not None and not torch.equal(stored, tensors[original]):
            expected = f"{original} itself, since config.json says tie_word_embeddings"
            raise _refusal(f"{folder}: the tensor {copy}", expected, "other values", tensor=copy)


def _floats(name: str, tensor: torch.Tensor, folder: Path, *, check_values: bool) -> torch.Tensor:
    if tensor.dtype not in FLOATING:
        kinds = ", ".join(str(kind).removeprefix("torch.") for kind in FLOATING)
        raise ModelError(
            f"{folder}: the tensor {name}",
            expected=f"floating-point numbers ({kinds})",
            given=str(tensor.dtype).removeprefix("torch."),
            way_out="Choose a copy of the model that is not quantised.",
            tensor=name,
        )
    tensor = tensor.to(torch.float32)  # the same tensor where it is float32 already
    # A sum with NaN or infinity in it is never finite (17 ms for 540 MB, where isfinite takes 225). A sum of
    # finite numbers can overflow too, so only then is each one asked.
    if check_values and not math.isfinite(tensor.sum().item()):
        wrong = int((~torch.isfinite(tensor)).sum())
        if wrong:
            given = f"{wrong} that are NaN or infinite"
            raise _refusal(f"{folder}: the tensor {name}", "finite numbers", given, tensor=name)
    return tensor


def _refusal(what: str, expected: str, given: str, **facts: Any) -> ModelError:
    return ModelError(what, expected=expected, given=given, way_out=COPY_AGAIN, **facts)
