"""A language model as people hold it (floor 2): weights, tokenizer and name, loaded by one call.

Nothing heavy is imported at the top: the default model's file is checked in a thread while torch is being imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from wherefrom.errors import InputError
from wherefrom.model import store
from wherefrom.model.config import Config
from wherefrom.tokens import Tokenizer, Tokens

if TYPE_CHECKING:
    from wherefrom.model.checkpoint import Checkpoint
    from wherefrom.model.transformer import Transformer

DEFAULT = "smollm2"


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A causal language model, ready to read text.

    Attributes:
        transformer: the module; token ids in, logits out.
        checkpoint: where it came from: its configuration, its tokenizer and its identity.
    """

    transformer: Transformer
    checkpoint: Checkpoint

    @property
    def config(self) -> Config:
        """The model's sizes."""
        return self.checkpoint.config

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to tokens and back."""
        return self.checkpoint.tokenizer

    @property
    def name(self) -> str:
        """The model's name."""
        return self.checkpoint.identity.name

    @property
    def fingerprint(self) -> str:
        """A checksum of configuration and weights: two models with one fingerprint compute the same."""
        return self.checkpoint.identity.checksum

    def __repr__(self) -> str:
        config = self.config
        return f"LanguageModel({self.name}, {config.layers} layers, {config.heads} heads, width {config.width})"


def load(source: str | Path | None = None, *, say: Callable[[str], None] | None = None) -> LanguageModel:
    """Return a language model, on the CPU, in float32.

    Args:
        source: a checkpoint folder in the usual Hugging Face layout (config.json, safetensors, tokenizer.json; Llama
            family), or "smollm2", the default: SmolLM2-135M-Instruct, converted once into the user's cache.
        say: told a sentence when something takes a while, such as the first conversion.

    Raises:
        ModelError: the folder or its files are missing, incomplete, damaged, or of an unknown architecture.
    """
    if source is None or source == DEFAULT:
        found: list[Sequence[str]] = []
        cached = store.default_folder()
        check = Thread(target=lambda: found.append(store.verify(cached)))
        check.start()
        from wherefrom.model.checkpoint import (
            read_folder,  # a second of importing torch, while the thread reads
        )

        check.join()
        folder = store.default_model(say=say, verified=found[0] if found else None)
        checkpoint = read_folder(folder, check_values=False)  # checked when converted, unchanged since
    else:
        from wherefrom.model.checkpoint import read_folder

        checkpoint = read_folder(Path(source), check_values=True)
    from wherefrom.model.transformer import Transformer

    return LanguageModel(Transformer.from_tensors(checkpoint.config, checkpoint.tensors), checkpoint)


def read_prompt(model: LanguageModel, text: str, *, room: int = 0) -> Tokens:
    """Return a prompt's tokens, if the model can read them.

    Args:
        model: whose tokenizer and context.
        text: the prompt.
        room: how many tokens are to be generated behind it.

    Raises:
        InputError: the text is empty or blank, is not UTF-8, or does not fit into the model's context.
    """
    require_text(text)
    tokens = model.tokenizer.encode(text)
    if len(tokens) + room > model.config.context:
        behind = f" and room for {room} more" if room else ""
        raise InputError(
            "the prompt",
            expected=f"at most {model.config.context} tokens (the context of {model.name})",
            given=f"{len(tokens)} tokens{behind}",
            way_out="Shorten the text, or use a model with a longer context.",
            tokens=len(tokens),
            context=model.config.context,
        )
    return tokens


def require_text(text: str) -> None:
    """Refuse a prompt that has nothing to read.

    Raises:
        InputError: it is empty or blank.
    """
    if not text.strip():
        raise InputError(
            "the prompt",
            expected="some text",
            given="nothing" if not text else f"only blanks ({text[:20]!r})",
            way_out="Write the text whose next token you want to trace.",
        )
