"""A transformers model as people hold it here (floor 3): the module, its tokenizer, and what a recording says of it.

The module stays what it is; nothing of it is copied or changed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from wherefrom.capture.huggingface.accepted import parameters_of, takes, unknown_to
from wherefrom.capture.huggingface.sites import as_written
from wherefrom.checks import check_kind
from wherefrom.errors import InputError
from wherefrom.recording import Call, ModelFacts

SAMPLE = 2**16
"""Numbers of a parameter that its fingerprint looks at, evenly spaced; of a smaller one all."""
CONTEXTS = ("max_position_embeddings", "n_positions", "max_target_positions", "max_seq_len", "seq_length", "n_ctx")
"""What configurations call the most tokens that a model reads."""

POSITIONS = re.compile("pos|wpe")
"""In the names of tables of learnt positions."""
MORE = 16
"""So many rows more than positions a table may have: some begin to count at two."""


@dataclass(frozen=True, eq=False)
class TransformersModel:
    """A model of the transformers library (or any module that is called like one) and its tokenizer.

    Attributes:
        module: the model itself, as transformers made it.
        tokenizer: its tokenizer or processor; None where only ids are read.
    """

    module: nn.Module
    tokenizer: Any = None

    def __post_init__(self) -> None:
        check_kind(
            "the model", self.module, nn.Module, way_out="Load it: AutoModelForCausalLM.from_pretrained(FOLDER)."
        )

    @property
    def name(self) -> str:
        """What it is called: the folder or hub id that it was loaded from, else its class."""
        given = str(getattr(self.config, "_name_or_path", "") or "").rstrip("/")
        return given.rsplit("/", 1)[-1] if given else type(self.module).__name__

    @property
    def config(self) -> Any:
        """The configuration of transformers; of another module an empty one."""
        return getattr(self.module, "config", None)

    @property
    def text_config(self) -> Any:
        """The configuration of the part that reads text."""
        get = getattr(self.config, "get_text_config", None)
        return self.config if get is None else get(decoder=True)

    @property
    def accepted(self) -> tuple[str, ...]:
        """The keywords that its forward names, in their order."""
        return parameters_of(self.module)

    def accepts(self, name: str) -> bool:
        """Return whether its forward names a keyword."""
        return name in self.accepted

    def unknown(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return which keywords it certainly does not take: neither its forward nor what that hands them to."""
        return unknown_to(self.module, names)

    @property
    def takes(self) -> str:
        """What its forward takes, in words."""
        return takes(self.module, type(self.module).__name__)

    @property
    def headless(self) -> bool:
        """Whether it is certainly a model of transformers without a head that predicts tokens."""
        own = as_written(self.module)
        head = getattr(own, "get_output_embeddings", None)
        return getattr(own, "base_model", None) is own and head is not None and head() is None

    @property
    def in_pairs(self) -> bool:
        """Whether an encoder reads one text and a decoder writes another."""
        return bool(getattr(self.config, "is_encoder_decoder", False))

    @property
    def vocabulary(self) -> int:
        """How many tokens it chooses among; 0 where the configuration does not say."""
        return int(getattr(self.text_config, "vocab_size", 0) or 0)

    @property
    def context(self) -> int:
        """The most tokens that it reads; 0 where the configuration does not say."""
        sizes = [getattr(self.text_config, name, None) for name in CONTEXTS]
        return next((size for size in sizes if isinstance(size, int) and size > 0), 0)

    @property
    def learnt_positions(self) -> int:
        """For how many positions it has learnt vectors; 0 where positions are computed, for any length."""
        context = self.context
        for name, module in self.module.named_modules():
            own = name.rpartition(".")[2]
            is_table = isinstance(module, nn.Embedding) and POSITIONS.search(own) and "relative" not in name
            if is_table and context <= module.num_embeddings <= context + MORE:
                # those with a row for padding begin to count behind it
                pad = module.padding_idx
                return context if pad is None else min(context, module.num_embeddings - pad - 1)
        return 0

    @property
    def device(self) -> torch.device:
        """Where its first parameter lies."""
        first = next(self.module.parameters(), None)
        return torch.device("cpu") if first is None else first.device

    @property
    def fingerprint(self) -> str:
        """A checksum of the configuration and of the weights: of a large parameter evenly spaced numbers are read.

        It is computed once, and again when a parameter was changed in place or replaced.
        """
        state = tuple((p.data_ptr(), p._version) for p in self.module.parameters())
        known = _FINGERPRINTS.get(self.module)
        if known is None or known[0] != state:
            known = _FINGERPRINTS[self.module] = state, _checksum(self.config, self.module.named_parameters())
        return known[1]

    def beyond_training(self, tokens: int, room: int = 0) -> str:
        """Return a sentence on a text that is longer than those of its training; none where it is not.

        Args:
            tokens: of the text.
            room: how many are written behind it at most.
        """
        if not 0 < self.context < tokens + room or self.learnt_positions:  # which are refused
            return ""
        reads = f"may read {tokens + room:,}" if room else f"reads {tokens:,}"
        return (
            f"{self.name} was trained on up to {self.context:,} tokens and {reads}: beyond its training its "
            "predictions get worse."
        )

    def facts(self, calls: Sequence[Call], kind: str) -> ModelFacts:
        """Return what a recording keeps about it, after its calls; sizes are those of the part that predicts."""
        part = "encoder" if kind == "encoder" else "decoder"
        own = [call for call in calls if call.part == part] or list(calls)
        windows = {call.mask.window for call in own if call.kind == "self"}
        encoder = [call.layer for call in calls if call.part == "encoder"] if kind == "encoder-decoder" else []
        return ModelFacts(
            name=self.name,
            fingerprint=self.fingerprint,
            layers=max((call.layer + 1 for call in own), default=0),
            heads=max((call.all_heads for call in own), default=0),
            kv_heads=max((len(call.k) for call in own), default=0),
            head_size=max((call.q.shape[-1] for call in own), default=0),
            context=self.context,
            kind=kind,
            encoder_layers=max(encoder, default=-1) + 1,
            window=windows.pop() if len(windows) == 1 else None,
        )

    def __repr__(self) -> str:
        tokenizer = "no tokenizer" if self.tokenizer is None else type(self.tokenizer).__name__
        return f"TransformersModel({self.name}, {type(self.module).__name__}, {tokenizer})"


_FINGERPRINTS: WeakKeyDictionary[nn.Module, tuple[tuple[tuple[int, int], ...], str]] = WeakKeyDictionary()


def _checksum(config: Any, parameters: Iterable[tuple[str, Tensor]]) -> str:
    found = hashlib.sha256()
    described = config.to_dict() if hasattr(config, "to_dict") else {}
    described = {name: value for name, value in described.items() if not name.startswith("_")}
    found.update(json.dumps(described, sort_keys=True, default=str).encode())
    for name, parameter in parameters:
        found.update(f"{name} {parameter.dtype} {tuple(parameter.shape)}".encode())
        if parameter.device.type == "meta":
            continue
        flat = parameter.detach().reshape(-1)
        step = max(1, flat.numel() // SAMPLE)
        found.update(flat[::step].contiguous().cpu().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def as_transformers_model(model: Any, tokenizer: Any = None) -> TransformersModel:
    """Return a model with its tokenizer, whether it came with one or not.

    Raises:
        InputError: no model, or two tokenizers.
    """
    if not isinstance(model, TransformersModel):
        return TransformersModel(model, tokenizer)
    if tokenizer is not None and tokenizer is not model.tokenizer:
        way_out = "Leave it out: the model was given with a tokenizer already."
        raise InputError("the tokenizer", expected="none beside the model's own", given="another", way_out=way_out)
    return model
