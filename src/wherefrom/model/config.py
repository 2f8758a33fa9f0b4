"""The shape of a model (floor 2): the numbers of a Hugging Face ``config.json``, checked at the door.

Takes errors from below. Gives `Config` to the transformer, and to whoever reads or writes a checkpoint. A
field that would change what the model computes, and that the transformer does not have, is refused by its
name: a model that runs a little differently from what its makers meant is worse than none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from wherefrom.errors import ModelError

SUPPORTED_ARCHITECTURES = ("llama",)
# What transformers takes where a llama config.json is silent (its configuration_llama.py).
DEFAULT_ROPE_BASE = 10_000.0
DEFAULT_NORM_EPSILON = 1e-6
DEFAULT_CONTEXT = 2048
# Fields that change the result, with the only value that the transformer computes.
FIXED_FIELDS: Mapping[str, Any] = {
    "hidden_act": "silu",
    "rope_interleaved": False,
    "partial_rotary_factor": 1.0,
    "quantization_config": None,
}


@dataclass(frozen=True)
class Config:
    """What a decoder of the llama family is made of.

    Attributes:
        architecture: ``llama``.
        layers: blocks of attention and feed-forward.
        width: numbers that stand for a token between blocks.
        heads: query heads of a layer, H.
        kv_heads: key and value heads, K; H / K query heads share one.
        head_size: numbers of a query or key, D; even, since the rotation turns them in pairs.
        feed_forward: inner width of the feed-forward part.
        vocabulary: rows of the embedding.
        context: the most tokens the model was made for.
        rope_base: base of the rotation's wavelengths.
        norm_epsilon: added to the mean square before its root.
        tied: whether the embedding is the output matrix too.
        bos_id: the mark a text begins with, if any.
        eos_ids: the marks a text may end with.
        attention_bias: whether the four attention matrices have biases.
        mlp_bias: whether the three feed-forward matrices have biases.
    """

    architecture: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_size: int
    feed_forward: int
    vocabulary: int
    context: int
    rope_base: float
    norm_epsilon: float
    tied: bool
    bos_id: int | None
    eos_ids: tuple[int, ...]
    attention_bias: bool = False
    mlp_bias: bool = False

    @classmethod
    def from_hf(cls, fields: Mapping[str, Any], where: Path) -> Config:
        """Return the configuration of a Hugging Face ``config.json``.

        Args:
            fields: the file's content.
            where: the file, for messages.

        Raises:
            ModelError: a field is missing, makes no sense, or asks for something that the transformer does
                not compute. ``path``, ``field`` and ``value`` say which.
        """
        read = _Fields(fields, where)
        architecture = read.architecture()
        read.refuse_unsupported()
        width, heads = read.count("hidden_size"), read.count("num_attention_heads")
        config = cls(
            architecture=architecture,
            layers=read.count("num_hidden_layers"),
            width=width,
            heads=heads,
            kv_heads=read.count("num_key_value_heads", heads),
            head_size=read.head_size(width, heads),
            feed_forward=read.count("intermediate_size"),
            vocabulary=read.count("vocab_size"),
            context=read.count("max_position_embeddings", DEFAULT_CONTEXT),
            rope_base=read.rope_base(),
            norm_epsilon=read.positive("rms_norm_eps", read.get("rms_norm_eps", DEFAULT_NORM_EPSILON)),
            tied=read.switch("tie_word_embeddings"),
            bos_id=next(iter(read.ids("bos_token_id")), None),
            eos_ids=read.ids("eos_token_id"),
            attention_bias=read.switch("attention_bias"),
            mlp_bias=read.switch("mlp_bias"),
        )
        if heads % config.kv_heads:
            read.refuse("num_key_value_heads", config.kv_heads, f"a divisor of num_attention_heads, {heads}")
        return config

    def to_hf(self) -> dict[str, Any]:
        """Return the same numbers as a Hugging Face ``config.json`` has them, for `from_hf` to read."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": self.architecture,
            "num_hidden_layers": self.layers,
            "hidden_size": self.width,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_size,
            "intermediate_size": self.feed_forward,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": self.context,
            # transformers 5 reads the first spelling, earlier versions the second.
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_base},
            "rope_theta": self.rope_base,
            "rms_norm_eps": self.norm_epsilon,
            "tie_word_embeddings": self.tied,
            "bos_token_id": self.bos_id,
            "eos_token_id": list(self.eos_ids) or None,
            "attention_bias": self.attention_bias,
            "mlp_bias": self.mlp_bias,
            "hidden_act": "silu",
        }


class _Fields:
    """The fields of a config.json, each read with its check."""

    def __init__(self, fields: Mapping[str, Any], where: Path) -> None:
        self.fields = fields
        self.where = where

    def get(self, name: str, default: Any = None) -> Any:
        """Return the field's value; null counts as absent, as it does in transformers."""
        value = self.fields.get(name)
        return default if value is None else value

    def refuse(self, name: str, value: Any, supported: str, way_out: str = "") -> NoReturn:
        raise ModelError(
            f"{self.where}: the field {name}",
            expected=supported,
            given="nothing" if value is None else f"{value!r}",
            way_out=way_out or "Copy the model's config.json again, or choose another model.",
            path=self.where,
            field=name,
            value=value,
        )

    def architecture(self) -> str:
        name = self.get("model_type")
        if name not in SUPPORTED_ARCHITECTURES:
            supported = ", ".join(SUPPORTED_ARCHITECTURES)
            self.refuse(
                "model_type",
                name,
                f"a supported architecture ({supported})",
                f"Choose a model whose config.json says one of: {supported}.",
            )
        return str(name)

    def refuse_unsupported(self) -> None:
        for name, only in FIXED_FIELDS.items():
            value = self.get(name, only)
            if value != only:
                self.refuse(
                    name,
                    value,
                    "none" if only is None else f"{only!r}, the only supported value",
                    "Choose a model without it: running it otherwise would give other results.",
                )

    def count(self, name: str, default: int | None = None) -> int:
        value = self.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            self.refuse(name, value, "a whole number of at least 1")
        return value

    def positive(self, name: str, value: Any) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value < float("inf"):
            self.refuse(name, value, "a number above 0")
        return float(value)

    def switch(self, name: str) -> bool:
        value = self.get(name, False)
        if not isinstance(value, bool):
            self.refuse(name, value, "true or false")
        return value

    def ids(self, name: str) -> tuple[int, ...]:
        value = self.get(name, [])
        listed = value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in listed):
            self.refuse(name, value, "a token id or a list of token ids")
        return tuple(listed)

    def head_size(self, width: int, heads: int) -> int:
        if self.get("head_dim") is None and width % heads:
            self.refuse("hidden_size", width, f"a multiple of the {heads} heads, as head_dim is not given")
        size = self.count("head_dim", width // heads)
        if size % 2:
            self.refuse("head_dim", size, "an even number, since the rotation turns pairs")
        return size

    def rope_base(self) -> float:
        """Return the rotation's base, under the old spelling (rope_theta) or the new (rope_parameters)."""
        bases = [self.get("rope_theta")]
        for name in ("rope_parameters", "rope_scaling"):
            rope = self.get(name, {})
            if not isinstance(rope, Mapping):
                self.refuse(name, rope, "an object")
            kind = rope.get("rope_type", rope.get("type", "default"))
            if kind != "default" or rope.get("partial_rotary_factor", 1.0) != 1.0:
                self.refuse(
                    name,
                    dict(rope),
                    "the plain rotation (rope_type 'default')",
                    "Choose a model whose rotation is not scaled.",
                )
            bases.append(rope.get("rope_theta"))
        given = [self.positive("rope_theta", base) for base in bases if base is not None]
        if len(set(given)) > 1:
            self.refuse("rope_theta", given, "the same base in both spellings")
        return given[0] if given else DEFAULT_ROPE_BASE
