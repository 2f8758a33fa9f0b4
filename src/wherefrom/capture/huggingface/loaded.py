"""A transformers model and its tokenizer, loaded from a folder, a GGUF file or the hub's cache (floor 3).

Takes errors from below. Gives a model that is ready to be recorded: in evaluation mode, on the CPU, in float32 unless
another number format is asked for, with every weight read from the checkpoint. What transformers would only warn of
(weights that it makes up, or leaves out of the middle of the model) is refused here, so that nobody records half a
model; code that comes with a checkpoint is never run. transformers is imported inside the calls.
"""

from __future__ import annotations

import json
import os
import pickle
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wherefrom.errors import InputError, ModelError
from wherefrom.readable import readable

if TYPE_CHECKING:
    import torch

KINDS = {
    "causal": "AutoModelForCausalLM",
    "masked": "AutoModelForMaskedLM",
    "seq2seq": "AutoModelForSeq2SeqLM",
    "image-text": "AutoModelForImageTextToText",
    "speech": "AutoModelForSpeechSeq2Seq",
    "base": "AutoModel",
}
"""What a model may be loaded as, and which of transformers' classes that is."""
OLDEST = (5, 24)
INSTALL = 'pip install "wherefrom[hf]"'
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?")
CHOOSE = 'Give a folder with config.json and its weights, a GGUF file, or a name on the hub, such as "org/name".'
TOKENIZER_FILES = ("tokenizer*", "tekken.json", "vocab*", "merges.txt", "bpe.*", "*.model", "*.spm", "*.tiktoken")
COPY_AGAIN = "Copy the model's folder again."


def load(
    source: str | os.PathLike[str],
    *,
    kind: str | None = None,
    dtype: str | torch.dtype = "float32",
    tokenizer: bool | str | os.PathLike[str] = True,
) -> tuple[Any, Any]:
    """Return a transformers model, in evaluation mode on the CPU, and its tokenizer.

    Args:
        source: a folder with config.json and weights (safetensors, or pickled ones that hold tensors only); a GGUF
            file of an architecture that transformers reads, whose weights become plain numbers; or a model's name on
            the hub, which transformers downloads into its cache, or finds there (HF_HUB_OFFLINE=1).
        kind: what to load it as, one of `KINDS`; unless given, the class that the checkpoint was saved from, or, where
            config.json names none, the one with the head that predicts tokens.
        dtype: "float32"; "auto", that of the checkpoint; or a torch dtype. float32 is the default, since every answer
            about a recording is given in it, and a CPU computes nothing faster.
        tokenizer: whether to load the tokenizer too, or where from, if not from the same place.

    Returns:
        (model, tokenizer); None for the tokenizer where none was wanted, or where the model reads no text.

    Raises:
        InputError: a source, a kind or a dtype of the wrong form.
        ModelError: transformers is missing or too old; the model's files are missing, incomplete, damaged or do not fit
            its configuration; a model type that this transformers does not know, or that needs code of its own; a name
            that is not in the cache while nothing may be downloaded; no tokenizer where the model reads text.
    """
    _require_form(source, kind, dtype, tokenizer)
    library = transformers_library()
    place = _place(library, source)
    with _quiet(library, bars=place.on_hub):  # what is downloaded may take minutes
        config = _config(library, place)
        chosen = _chosen(library, config, kind, place)
        model = _model(library, place, config, chosen, dtype)
        return model, _tokenizer(library, place, config, tokenizer)


def transformers_library() -> Any:
    """Return the transformers module.

    Raises:
        ModelError: it is not installed, or older than this package can record.
    """
    try:
        import transformers
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "transformers"
        raise ModelError(
            "a transformers model",
            expected="the Python package transformers",
            given="none" if missing else f"one that cannot be imported ({_first_line(error)})",
            way_out=f"Run: {INSTALL}",
            package="transformers",
        ) from error
    version = str(transformers.__version__)
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST:
        raise ModelError(
            "a transformers model",
            expected=f"the Python package transformers, {'.'.join(map(str, OLDEST))} or newer",
            given=version,
            way_out=f"Run: {INSTALL} --upgrade",
            package="transformers",
        )
    return transformers


@dataclass(frozen=True)
class _Place:
    """Where a model's files are.

    Attributes:
        name: what transformers is told: a folder, or a name on the hub.
        shown: what an error calls it.
        folder: the folder that holds config.json.
        gguf: the GGUF file's name in that folder, instead of config.json and weights.
    """

    name: str
    shown: str
    folder: Path
    gguf: str | None = None

    @property
    def on_hub(self) -> bool:
        """Whether it is a name on the hub, not a folder."""
        return self.name != str(self.folder)

    @property
    def files(self) -> dict[str, Any]:
        """What every call of transformers is told beside the name; code from the model's folder is never run."""
        return {"trust_remote_code": False} | ({} if self.gguf is None else {"gguf_file": self.gguf})


def _require_form(source: object, kind: object, dtype: object, tokenizer: object) -> None:
    if not isinstance(source, str | os.PathLike) or not str(source).strip():
        given = "an empty name" if isinstance(source, str) else f"a value of type {type(source).__name__}"
        raise InputError("the model to load", expected="a name or a path", given=given, way_out=CHOOSE)
    if kind is not None and kind not in KINDS:
        raise InputError(
            "what to load the model as",
            expected=f"one of {', '.join(KINDS)}",
            given=repr(kind),
            way_out="Leave it out to load the model as it was saved.",
            kind=kind,
        )
    # a torch dtype is told by its name, so that torch need not be imported to refuse anything else
    if dtype not in ("float32", "auto") and not str(dtype).startswith("torch."):
        raise InputError(
            "the dtype",
            expected='"float32", "auto" or a torch dtype',
            given=repr(dtype),
            way_out="Leave it out for float32.",
            dtype=dtype,
        )
    if not isinstance(tokenizer, bool | str | os.PathLike):
        raise InputError(
            "the tokenizer",
            expected="True, False or the path of a folder",
            given=f"a value of type {type(tokenizer).__name__}",
            way_out="With False, the model is loaded without one.",
        )


def _place(library: Any, source: str | os.PathLike[str]) -> _Place:
    """Return where a model's files are; config.json of one on the hub is fetched here."""
    given = os.fspath(source)
    try:
        path = Path(given).expanduser()
        is_file, is_folder = path.is_file(), path.is_dir()
    except (OSError, RuntimeError, ValueError) as error:  # too long, nobody's home, a zero byte
        raise _unusable(given, CHOOSE, given=_first_line(error), path=given) from error
    if is_file:
        if path.suffix.lower() != ".gguf":
            raise _unusable(f"{path}", CHOOSE, given="a file that is none", path=path)
        return _Place(str(path.parent), str(path), path.parent, path.name)
    if not is_folder:
        return _on_hub(library, given)
    if not (path / "config.json").is_file():
        found = sorted(file.name for file in path.glob("*.gguf"))
        way_out = f"Give the file: {path / found[0]}." if found else CHOOSE
        given = f"only {found[0]}" if found else "none"
        raise ModelError(f"{path}", expected="a config.json in it", given=given, way_out=way_out, path=path)
    return _Place(str(path), str(path), path)


def _on_hub(library: Any, name: str) -> _Place:
    """Return where a model of the hub is cached, downloading its config.json where that is allowed."""
    from huggingface_hub import constants, is_offline_mode

    if not HUB_ID.fullmatch(name):
        raise _unusable(name, CHOOSE, given="nothing there", path=name)
    offline = is_offline_mode()
    try:
        found = library.utils.cached_file(name, "config.json", local_files_only=offline)
    except Exception as error:  # its own kinds, the hub's, the network's
        cached = Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"
        if offline:
            raise ModelError(
                f"the model {name}",
                expected="a folder of this name here, or the model in the hub's cache",
                given=f"neither: {cached} holds no config.json, and nothing is downloaded (HF_HUB_OFFLINE is set)",
                way_out="Give a model's folder; or unset HF_HUB_OFFLINE once, so that it is downloaded; or set HF_HOME "
                "to the folder whose cache holds it.",
                path=cached,
            ) from error
        raise ModelError(
            f"the model {name}",
            expected="a folder of this name here, or a model on the hub that can be downloaded",
            given=f"neither ({_first_line(error)})",
            way_out=CHOOSE,
            path=cached,
        ) from error
    return _Place(name, f"the model {name}", Path(found).parent)


def _config(library: Any, place: _Place) -> Any:
    """Return a model's configuration, if this transformers knows its type without code of the model's own."""
    if place.gguf is None:
        _check_type(library, place)
    try:
        return library.AutoConfig.from_pretrained(place.name, **place.files)
    except Exception as error:  # whatever is wrong in the file comes as another kind
        what = "a GGUF file" if place.gguf else "a config.json"
        newer = "If the model is newer than it, run: pip install --upgrade transformers."
        raise ModelError(
            place.shown,
            expected=f"{what} that transformers {library.__version__} reads",
            given=f"one that it refuses ({_first_line(error)})",
            way_out=f"Copy the file again. {newer}" if place.gguf else COPY_AGAIN,
            path=place.folder,
        ) from error


def _check_type(library: Any, place: _Place) -> None:
    path = place.folder / "config.json"
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        given = f"something else ({_first_line(error)})"
        raise ModelError(f"{path}", expected="JSON", given=given, way_out=COPY_AGAIN, path=path) from error
    kind = fields.get("model_type") if isinstance(fields, dict) else None
    if not isinstance(kind, str):
        expected, given = "a model_type in it", "none"
        raise ModelError(f"{path}", expected=expected, given=given, way_out=CHOOSE, path=path)
    if kind in library.CONFIG_MAPPING:
        return
    if fields.get("auto_map"):
        raise ModelError(
            place.shown,
            expected="a model whose code is in transformers",
            given=f'the type "{kind}", which needs Python code of its own (auto_map in config.json), which is not run',
            way_out="Load it yourself, if you trust that code, and give the loaded model.",
            path=path,
            model_type=kind,
        )
    raise ModelError(
        place.shown,
        expected=f"a model type that transformers {library.__version__} knows",
        given=f'"{kind}"',
        way_out="Run: pip install --upgrade transformers, if the model is newer than it.",
        path=path,
        model_type=kind,
    )


def _chosen(library: Any, config: Any, kind: str | None, place: _Place) -> Any:
    """Return the class to load a model with."""
    if kind is not None:
        if not _has(library, config, kind):
            has = [name for name in KINDS if _has(library, config, name)]
            raise ModelError(
                place.shown,
                expected=f"a model that can be loaded as {kind}",
                given=f"the type {config.model_type}, for which transformers has {', '.join(has) or 'none'}",
                way_out="Leave the kind out to load the model as it was saved.",
                kind=kind,
            )
        return getattr(library, KINDS[kind])
    for name in getattr(config, "architectures", None) or ():
        own: Any = getattr(library, name, None) if isinstance(name, str) else None
        if isinstance(own, type) and issubclass(own, library.PreTrainedModel) and _is_of(own, config):
            return own
    pair, decoder = getattr(config, "is_encoder_decoder", False), getattr(config, "is_decoder", False)
    wanted = {"image-text": True, "speech": pair, "seq2seq": pair, "masked": not decoder, "causal": True, "base": True}
    found = [name for name, right in wanted.items() if right and _has(library, config, name)]
    return getattr(library, KINDS[found[0] if found else "base"])


def _is_of(own: Any, config: Any) -> bool:
    return own.config_class is type(config)


def _has(library: Any, config: Any, kind: str) -> bool:
    return type(config) in getattr(library, KINDS[kind])._model_mapping


def _model(library: Any, place: _Place, config: Any, chosen: Any, dtype: Any) -> Any:
    """Return the model with all of its weights, or refuse it."""
    import torch

    if place.gguf is not None and not library.utils.is_accelerate_available():
        raise ModelError(
            place.shown,
            expected="the Python package accelerate, with which transformers reads GGUF files",
            given="none",
            way_out=f"Run: {INSTALL}",
            package="accelerate",
        )
    numbers = torch.float32 if dtype == "float32" else dtype
    how: dict[str, Any] = {"config": config, "dtype": numbers, **place.files}
    try:
        model, told = chosen.from_pretrained(place.name, output_loading_info=True, ignore_mismatched_sizes=True, **how)
    except Exception as error:  # a missing or damaged file, a quantisation without its package: each its own kind
        raise _unread(library, place, error) from error
    _check_sizes(place, told["mismatched_keys"])
    missing = sorted(told["missing_keys"])
    if missing:
        headless = not any(name.startswith(f"{model.base_model_prefix}.") for name in missing)
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelError(
            f"{place.shown}: the tensor {missing[0]}",
            expected=f"one, for {type(model).__name__}",
            given=f"none{others}: transformers would make up numbers",
            way_out='It was saved without this head: load it with kind="base".' if headless else COPY_AGAIN,
            tensor=missing[0],
        )
    left = _left_out(model, told["unexpected_keys"])
    if left:
        others = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise ModelError(
            f"{place.shown}: the tensor {left[0]}",
            expected=f"one that {type(model).__name__} uses as config.json describes it",
            given=f"one that it has no place for{others}",
            way_out=f"{COPY_AGAIN} Leaving the tensor out would give other results.",
            tensor=left[0],
        )
    return model.eval()


def _check_sizes(place: _Place, mismatched: Collection[Any]) -> None:
    for name, stored, wanted in sorted(mismatched, key=lambda entry: str(entry[0])):
        others = f" (and {len(mismatched) - 1} more)" if len(mismatched) > 1 else ""
        raise ModelError(
            f"{place.shown}: the tensor {name}",
            expected=f"shape {list(wanted)} as config.json has it",
            given=f"{list(stored)}{others}",
            way_out=COPY_AGAIN,
            tensor=name,
        )


def _left_out(model: Any, unexpected: Collection[str]) -> list[str]:
    """Return tensors that a model has no place for and yet depends on: a layer too many, a bias of a matrix that has
    none here.

    Others may be left out: the head of another task, a pooler, a buffer that is computed.
    """
    base = model.base_model
    modules = dict(base.named_modules())
    found = []
    for name in sorted(unexpected):
        path = name.removeprefix(f"{model.base_model_prefix}.").split(".")
        if path[-1] not in ("weight", "bias"):
            continue
        depth = next(depth for depth in range(len(path) - 1, -1, -1) if ".".join(path[:depth]) in modules)
        nearest = modules[".".join(path[:depth])]
        whole = depth == len(path) - 1
        leaf = whole and not any(True for _ in nearest.children())
        within = not whole and any(part.isdecimal() for part in path[: depth + 1])
        if leaf or within:
            found.append(name)
    return found


def _unread(library: Any, place: _Place, error: Exception) -> ModelError:
    pattern = ("*.safetensors", "*.bin", "*.safetensors.index.json")
    if place.gguf is None and not any(next(place.folder.glob(one), None) for one in pattern):
        given, way_out = "none", f"{COPY_AGAIN} They are model.safetensors, or several files and their index."
        return ModelError(place.shown, expected="weights in it", given=given, way_out=way_out, path=place.folder)
    if isinstance(error, pickle.UnpicklingError):
        return ModelError(
            place.shown,
            expected="weights without code",
            given="a pickled file that is damaged or holds more than tensors; nothing in it was run",
            way_out="Save the model as safetensors, if you trust it.",
            path=place.folder,
        )
    return ModelError(
        place.shown,
        expected=f"weights that transformers {library.__version__} reads",
        given=f"others ({type(error).__name__}: {_first_line(error)})",
        way_out=COPY_AGAIN,
        path=place.folder,
    )


def _tokenizer(library: Any, place: _Place, config: Any, wanted: bool | str | os.PathLike[str]) -> Any:
    """Return the tokenizer; None where none is wanted, or where the model reads no text."""
    reads_text = getattr(config.get_text_config(), "vocab_size", None) is not None
    if wanted is False or (wanted is True and not reads_text):
        return None
    if wanted is not True:
        folder = Path(wanted).expanduser()
        if not folder.is_dir() and not HUB_ID.fullmatch(str(wanted)):
            raise _no_tokenizer(_Place(str(folder), str(wanted), folder), "there is no such folder")
        place = _Place(str(folder if folder.is_dir() else wanted), str(wanted), folder)
    local = place.gguf is None and place.folder.is_dir() and not place.on_hub
    if local and not any(next(place.folder.glob(name), None) for name in TOKENIZER_FILES):
        raise _no_tokenizer(place, "there is no tokenizer.json, nor any other file of a tokenizer")
    try:
        if place.gguf is None:
            tokenizer = library.AutoTokenizer.from_pretrained(place.name, **place.files)
        else:  # the automatic class would first read the whole file once more
            tokenizer = library.PreTrainedTokenizerFast.from_pretrained(place.name, gguf_file=place.gguf)
    except Exception as error:  # missing files, code of its own, packages that are not installed
        raise _no_tokenizer(place, _first_line(error)) from error
    names = [str(name) for name in (getattr(tokenizer, "vocab_files_names", None) or {}).values()]
    # without files, transformers makes up a tokenizer that knows no words
    if local and names and not any((place.folder / name).exists() for name in ("tokenizer.json", *names)):
        raise _no_tokenizer(place, f"there is no {', no '.join(dict.fromkeys(('tokenizer.json', *names)))}")
    return tokenizer


def _no_tokenizer(place: _Place, given: str) -> ModelError:
    return ModelError(
        f"{place.shown}: its tokenizer",
        expected="one that transformers reads, without running code of the model's own",
        given=f"none ({given})",
        way_out="Put the tokenizer's files into the folder (tokenizer.json and tokenizer_config.json, from where the "
        "model comes from); or load the model yourself in Python, and give it ids.",
        path=place.folder,
    )


def _unusable(what: str, way_out: str, *, given: str, path: object) -> ModelError:
    expected = "a model's folder, a GGUF file or a name on the hub"
    return ModelError(what, expected=expected, given=given, way_out=way_out, path=path)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return readable(lines[0] if lines else type(error).__name__)[:300].rstrip(".:")


@contextmanager
def _quiet(library: Any, *, bars: bool) -> Iterator[None]:
    """Keep transformers from printing reports, and bars unless wanted: what matters in them is raised as an error."""
    log = library.utils.logging
    level, shown = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity(log.CRITICAL)
    if not bars:
        log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if shown:
            log.enable_progress_bar()
