"""Loading a model by one name (floor 3): by the project's own transformer where it computes it, else by transformers.

Nothing heavy is imported at the top: a model of the project's own is being checked while torch is imported.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from wherefrom.errors import InputError, ModelError
from wherefrom.model import language
from wherefrom.model.language import DEFAULT, LanguageModel

if TYPE_CHECKING:
    from wherefrom.capture.huggingface.model import TransformersModel

Library: TypeAlias = Literal["wherefrom", "transformers"]
INSTALL = 'pip install "wherefrom[hf]"'
HUB = re.compile(r"[\w.-]+(/[\w.-]+)?")


@overload
def load(
    source: None = None, *, context: int | None = None, library: None = None, say: Callable[[str], None] | None = None
) -> LanguageModel: ...
@overload
def load(
    source: str | Path | None = None,
    *,
    context: int | None = None,
    library: Literal["wherefrom"],
    say: Callable[[str], None] | None = None,
) -> LanguageModel: ...
@overload
def load(
    source: str | Path | None = None,
    *,
    context: int | None = None,
    library: Library | None = None,
    say: Callable[[str], None] | None = None,
) -> LanguageModel | TransformersModel: ...
def load(
    source: str | Path | None = None,
    *,
    context: int | None = None,
    library: Library | None = None,
    say: Callable[[str], None] | None = None,
) -> LanguageModel | TransformersModel:
    """Return a language model, on the CPU, in float32.

    The project's own transformer computes llama, mistral, qwen3, gpt2, bert and marian; every other architecture is
    loaded by transformers (``pip install "wherefrom[hf]"``), and so is one of these with a field that ours does not
    compute. What is recorded, and every answer, is the same either way.

    Args:
        source: a checkpoint folder in the usual Hugging Face layout (config.json, safetensors, tokenizer.json), the
            folder of a training run, or "smollm2", the default: SmolLM2-135M-Instruct, converted once into the user's
            cache. For transformers also a GGUF file, or a model's name on the hub ("org/name").
        context: read up to so many tokens, also beyond what the model was trained for, where its positions can be
            computed for any length (rotary, sinusoidal). Its predictions get worse there; its attention is recorded as
            it is. For a model of the project's own.
        library: "wherefrom" or "transformers", which computes the model; chosen as said above unless given.
        say: told a sentence when something takes a while, such as the first conversion, or is beyond the training.

    Raises:
        InputError: a source that is neither a name nor a path; a context that is no whole number above 0, or beyond
            that of a model with learnt positions; a library that there is not.
        ModelError: the folder or its files are missing, incomplete, damaged, or of an architecture that neither
            library knows; a name on the hub that is not in the cache while nothing may be downloaded.
    """
    if library not in (None, "wherefrom", "transformers"):
        way_out = "Leave it out to have it chosen."
        raise InputError("the library", expected='"wherefrom" or "transformers"', given=repr(library), way_out=way_out)
    if library is None:
        library = "wherefrom" if _is_own(source, say) else "transformers"
    if library == "wherefrom":
        try:
            return language.load(source, context=context, say=say)
        except ModelError as error:
            raise _with_the_other(error) from error.__cause__
    if context is not None:
        raise InputError(
            "the context",
            expected="none for a model that transformers computes",
            given=str(context),
            way_out="Leave it out: how many tokens it reads is a matter of its configuration.",
        )
    from wherefrom.capture.huggingface.loaded import load as load_other
    from wherefrom.capture.huggingface.model import TransformersModel
    from wherefrom.model import store

    if source is None or source == DEFAULT:
        source = store.default_model(say=say)
    return TransformersModel(*load_other(source))


def _is_own(source: Any, say: Callable[[str], None] | None) -> bool:
    """Whether the project's own transformer computes a model, or would say best what is wrong with it."""
    if source is None or source == DEFAULT or not isinstance(source, str | os.PathLike):
        return True
    try:
        place = Path(source).expanduser()
        there, is_file, file = place.exists(), place.is_file(), place / "config.json"
    except (OSError, RuntimeError, ValueError):
        return True
    if not there:  # a name on the hub, unless it is the path of something that is not there
        return HUB.fullmatch(str(source)) is None or find_spec("transformers") is None
    if is_file:
        return place.suffix != ".gguf"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return True
    kind = content.get("model_type") if isinstance(content, dict) else None
    if not isinstance(kind, str) or find_spec("transformers") is None:
        return True
    from wherefrom.model.fields import UNCOMPUTED
    from wherefrom.model.layouts import read_config

    try:
        read_config(content, file)
    except ModelError as error:
        if error.way_out != UNCOMPUTED:
            return error.facts.get("field") != "model_type" or not _is_known(kind)
        if say is not None:
            say(f"Transformers computes {place.name}: ours does not compute {error.facts['field']}.")
        return not _is_known(kind)
    return True


def _with_the_other(error: ModelError) -> ModelError:
    """Return an error of a model that ours does not compute with the library that does, if that is what it says."""
    from wherefrom.model.fields import UNCOMPUTED

    uncomputed, kind = error.way_out == UNCOMPUTED, error.facts.get("value")
    if not uncomputed and error.facts.get("field") != "model_type":
        return error
    if find_spec("transformers") is None:
        others = f"Any other needs the transformers library: {INSTALL}"
    elif uncomputed or (isinstance(kind, str) and _is_known(kind)):
        others = 'Transformers computes this one: library="transformers" (--library transformers).'
    else:
        from transformers import __version__

        others = f"Of its own types transformers {__version__} knows it neither: pip install --upgrade transformers."
    return error.with_way_out(f"{error.way_out} {others}")


def _is_known(kind: str) -> bool:
    from transformers import CONFIG_MAPPING

    return kind in CONFIG_MAPPING
