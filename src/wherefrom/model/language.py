"""A language model as people hold it (floor 2): weights, tokenizer and name, loaded by one call.

Nothing heavy is imported at the top: the default model's file is checked in a thread while torch is being imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeGuard

from wherefrom.checks import check_kind, whole
from wherefrom.errors import InputError
from wherefrom.model import store
from wherefrom.model.chat import check_messages, without_template
from wherefrom.model.config import Config
from wherefrom.tokens import Tokenizer, Tokens

if TYPE_CHECKING:
    from wherefrom.model.checkpoint import Checkpoint
    from wherefrom.model.transformer import Transformer

DEFAULT = "smollm2"


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A language model, ready to read text: a decoder, an encoder, or both.

    Attributes:
        transformer: the module: token ids in, logits out.
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


def load(
    source: str | Path | None = None, *, context: int | None = None, say: Callable[[str], None] | None = None
) -> LanguageModel:
    """Return a language model, on the CPU, in float32.

    Args:
        source: a checkpoint folder in the usual Hugging Face layout (config.json, safetensors, tokenizer.json; llama,
            mistral, qwen3, gpt2, bert or marian), the folder of a training run, or "smollm2", the default:
            SmolLM2-135M-Instruct, converted once into the user's cache.
        context: read up to so many tokens, also beyond what the model was trained for, where its positions can be
            computed for any length (rotary, sinusoidal). Its predictions get worse there; its attention is recorded as
            it is.
        say: told a sentence when something takes a while, such as the first conversion, or is beyond the training.

    Raises:
        InputError: a source that is neither a name nor a path; a context that is no whole number above 0, or beyond
            that of a model with learnt positions.
        ModelError: the folder or its files are missing, incomplete, damaged, or of an unknown architecture.
    """
    _require_source(source)
    if source is None or source == DEFAULT:
        found: list[Sequence[str]] = []
        cached = store.default_folder()
        check = Thread(target=lambda: found.append(store.verify(cached)))
        check.start()
        # importing torch takes a second, in which the thread reads
        from wherefrom.model.checkpoint import read_folder

        check.join()
        folder = store.default_model(say=say, verified=found[0] if found else None)
        checkpoint = read_folder(folder, check_values=False)  # checked when converted, unchanged since
    else:
        from wherefrom.model.checkpoint import read_folder

        checkpoint = read_folder(Path(source), check_values=True)
    from wherefrom.model.layouts import parameters
    from wherefrom.model.transformer import Transformer

    if context is not None:
        checkpoint = _with_context(checkpoint, context, say)
    _keep_freed_memory()
    own = parameters(checkpoint.config, checkpoint.tensors)
    return LanguageModel(Transformer.from_parameters(checkpoint.config, own), checkpoint)


def _with_context(checkpoint: Checkpoint, context: int, say: Callable[[str], None] | None) -> Checkpoint:
    """Return a checkpoint whose model reads another number of tokens."""
    config, name = checkpoint.config, checkpoint.identity.name
    tokens = whole("the context", context, least=1, way_out="It is a number of tokens.")
    if tokens != config.context and config.positions == "learned":
        raise InputError(
            "the context",
            expected=f"the {config.context:,} tokens for which {name} has learnt positions",
            given=f"{tokens:,}",
            way_out="Only a model whose positions are computed can be read beyond its training.",
            context=config.context,
        )
    if tokens > config.context and say is not None:
        say(
            f"{name} was trained on up to {config.context:,} tokens and may read {tokens:,}: beyond its training its "
            "predictions get worse."
        )
    return replace(checkpoint, config=replace(config, context=tokens))


def _require_source(source: object) -> None:
    if not isinstance(source, str | os.PathLike | None):
        way_out = 'Give "smollm2", or a model\'s folder.'
        given = f"a value of type {type(source).__name__}"
        raise InputError("the model to load", expected="a name or a path", given=given, way_out=way_out)


def _keep_freed_memory() -> None:
    """Have the C library keep what a forward pass frees, so that the next layer need not fetch the same pages again.

    glibc returns freed blocks larger than a threshold to the system, and the threshold follows the largest block freed
    so far, up to 32 MiB (mallopt(3), M_MMAP_THRESHOLD). Freeing one such block, never written to, settles it: a pass
    over 2,048 tokens is a tenth faster. With other allocators nothing happens.
    """
    import torch

    torch.empty(2**25 - 2**20, dtype=torch.uint8)


def read_prompt(model: LanguageModel, text: str | Sequence[Mapping[str, Any]], *, room: int = 0) -> Tokens:
    """Return a prompt's tokens, if the model can read them.

    Args:
        model: whose tokenizer and context.
        text: the prompt; or chat messages, which the model's template writes out: its marks are then part of the text,
            and none are put around it.
        room: how many tokens are to be generated behind it.

    Raises:
        InputError: the text is no str, is empty or blank, is not UTF-8, or does not fit into the model's context;
            messages of a wrong form, or to a model without a chat template.
    """
    require_model(model)
    if _is_chat(text):
        return _fitting(model, model.tokenizer.encode(_chat(model, text), marks=False), room)
    require_text(text)
    return _fitting(model, model.tokenizer.encode(str(text)), room)


def _is_chat(text: object) -> TypeGuard[Sequence[Mapping[str, Any]]]:
    """Whether something is meant as chat messages: a list without any, or with one."""
    return isinstance(text, list | tuple) and (not text or any(isinstance(one, Mapping) for one in text))


def _chat(model: LanguageModel, messages: Sequence[Mapping[str, Any]]) -> str:
    """Return a conversation as the model's template writes it."""
    if model.checkpoint.chat is None:
        check_messages(messages)
        raise without_template(f"{model.name}, whose files have none")
    text = model.checkpoint.chat.text(messages)
    require_text(text, "the chat")
    return text


def start_tokens(model: LanguageModel, written: str | None, *, room: int = 0) -> Tokens:
    """Return what the decoder of an encoder-decoder has read: its start mark, and a text that is written so far.

    Args:
        model: whose tokenizer and context.
        written: the text behind the mark; none unless given.
        room: how many tokens are to be generated behind it.

    Raises:
        InputError: the text is no str, is not UTF-8, or does not fit into the model's context.
    """
    if written is not None:
        require_text(written, "the written text")
    ids = () if written is None else model.tokenizer.encode(written, marks=False).ids
    what = "the prompt" if written is None else "the written text"
    return _fitting(model, model.tokenizer.tokens_of([model.config.start_id or 0, *ids]), room, what)


def check_tokens(model: LanguageModel, tokens: Tokens) -> Tokens:
    """Return tokens, if they are the model's own and it can read them.

    Raises:
        InputError: an id that this model does not have or that spells something else here, as with tokens of another
            model's tokenizer; or more tokens than the model's context.
    """
    require_model(model)
    spelled: dict[int, bytes | None] = {}  # by id; None for an id beyond the vocabulary
    for position, token in enumerate(tokens):
        if token.id not in spelled:
            known = 0 <= token.id < model.config.vocabulary
            spelled[token.id] = model.tokenizer.token_bytes(token.id) if known else None
        here = spelled[token.id]
        if here != token.data:
            raise InputError(
                "the tokens",
                expected=f"those of {model.name}",
                given=f'id {token.id} for "{token.label}" at position {position}, '
                + ("which is beyond its vocabulary" if here is None else f"which spells {here!r} there"),
                way_out="Read the text with this model's own tokenizer: model.tokenizer.encode(text).",
                position=position,
                id=token.id,
            )
    return _fitting(model, tokens, 0)


def _fitting(model: LanguageModel, tokens: Tokens, room: int, what: str = "the prompt") -> Tokens:
    if len(tokens) + room > model.config.context:
        behind = f" and room for {room} more" if room else ""
        raise InputError(
            what,
            expected=f"at most {model.config.context} tokens (the context of {model.name})",
            given=f"{len(tokens)} token{'' if len(tokens) == 1 else 's'}{behind}",
            way_out="Shorten the text, "
            + ("write fewer tokens, " if room > 1 else "")
            + ("or " if model.config.positions == "learned" else "")
            + ("use" if model.config.positions == "learned" else "load it with a larger context (--context), or use")
            + " a model with a longer one.",
            tokens=len(tokens),
            context=model.config.context,
        )
    return tokens


def require_model(model: Any) -> LanguageModel:
    """Return a language model; refuse anything else.

    Raises:
        InputError: such as a model's name, or its transformer.
    """
    return check_kind("the model", model, LanguageModel, way_out="Load it first: model = wherefrom.load().")


def require_text(text: object, what: str = "the prompt") -> None:
    """Refuse a text that has nothing to read.

    Args:
        text: whatever was given.
        what: which text it is, for the error.

    Raises:
        InputError: it is no str, or it is empty or blank.
    """
    if not isinstance(text, str):
        raise InputError(
            what,
            expected="a text (str)",
            given="None" if text is None else f"a value of type {type(text).__name__}",
            way_out='Bytes become a text by .decode("utf-8").'
            if isinstance(text, bytes | bytearray)
            else "Write the text that the model is to read.",
        )
    if not text.strip():
        raise InputError(
            what,
            expected="some text",
            given="nothing" if not text else f"only blanks ({text[:20]!r})",
            way_out="Write the text that the model is to read."
            if what == "the prompt"
            else "Leave it out where nothing is written yet.",
        )
