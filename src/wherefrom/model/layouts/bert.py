"""BERT's checkpoints (floor 2): a bidirectional encoder, with or without the head that fills in masks."""

from __future__ import annotations

import re
from typing import Any

from wherefrom.model.config import Config
from wherefrom.model.fields import Fields
from wherefrom.model.layouts.layout import Layout, Stored, renamed

ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
WRITTEN = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "silu": "silu"}
ONLY = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "quantization_config": None,
}
WITH_HEAD = ("BertForMaskedLM", "BertForPreTraining")
BOTH = ("weight", "bias")


def read(fields: Fields) -> Config:
    """Return the shape that a config.json of BERT asks for; its ``architectures`` say whether there is a head."""
    fields.require(ONLY)
    width, heads = fields.count("hidden_size", 768), fields.count("num_attention_heads", 12)
    named = fields.get("architectures", [])
    masked = any(name in WITH_HEAD for name in named) if isinstance(named, list) else False
    return Config(
        architecture="bert",
        layers=fields.count("num_hidden_layers", 12),
        width=width,
        heads=heads,
        kv_heads=heads,
        head_size=fields.head_size("head_dim", "hidden_size", width, heads),
        feed_forward=fields.count("intermediate_size", 3072),
        vocabulary=fields.count("vocab_size", 30_522),
        context=fields.count("max_position_embeddings", 512),
        causal=False,
        positions="learned",
        norm="layer",
        norm_first=False,
        final_norm=False,
        norm_epsilon=fields.positive("layer_norm_eps", 1e-12),
        activation=fields.choice("hidden_act", ACTIVATIONS, "gelu"),
        gated=False,
        attention_bias=True,
        output_bias=True,
        mlp_bias=True,
        embedding_norm=True,
        segments=fields.count("type_vocab_size", 2),
        head="masked" if masked else "none",
        head_bias=masked,
        tied=fields.switch("tie_word_embeddings", default=True) and masked,
        bos_id=fields.one_id("bos_token_id"),
        eos_ids=fields.ids("eos_token_id"),
    )


def write(config: Config) -> dict[str, Any]:
    """Return the shape as a config.json has it."""
    return {
        "architectures": ["BertForMaskedLM" if config.head == "masked" else "BertModel"],
        "model_type": "bert",
        "num_hidden_layers": config.layers,
        "hidden_size": config.width,
        "num_attention_heads": config.heads,
        "intermediate_size": config.feed_forward,
        "vocab_size": config.vocabulary,
        "max_position_embeddings": config.context,
        "layer_norm_eps": config.norm_epsilon,
        "hidden_act": WRITTEN[config.activation],
        "type_vocab_size": config.segments,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": config.tied or config.head == "none",
        "bos_token_id": config.bos_id,
        "eos_token_id": list(config.eos_ids) or None,
    }


def stored(config: Config) -> dict[str, Stored]:
    """Return where each parameter stands."""
    modules = {
        "attention.query": ("attention.self.query", BOTH),
        "attention.key": ("attention.self.key", BOTH),
        "attention.value": ("attention.self.value", BOTH),
        "attention.output": ("attention.output.dense", BOTH),
        "attention_norm": ("attention.output.LayerNorm", BOTH),
        "feed_forward.up": ("intermediate.dense", BOTH),
        "feed_forward.down": ("output.dense", BOTH),
        "feed_forward_norm": ("output.LayerNorm", BOTH),
    }
    own = {
        "embedding.weight": Stored("bert.embeddings.word_embeddings.weight"),
        "position_embedding.weight": Stored("bert.embeddings.position_embeddings.weight"),
        "segment_embedding.weight": Stored("bert.embeddings.token_type_embeddings.weight"),
        "embedding_norm.weight": Stored("bert.embeddings.LayerNorm.weight"),
        "embedding_norm.bias": Stored("bert.embeddings.LayerNorm.bias"),
    }
    for layer in range(config.layers):
        own |= renamed(f"blocks.{layer}", f"bert.encoder.layer.{layer}", modules)
    if config.head == "masked":
        own["head.weight"] = Stored("cls.predictions.decoder.weight")
        # Where the matrix is tied the bias is too, to a parameter beside it.
        own["head.bias"] = Stored("cls.predictions.bias" if config.tied else "cls.predictions.decoder.bias")
        transform = {"dense": ("dense", BOTH), "norm": ("LayerNorm", BOTH)}
        own |= renamed("transform", "cls.predictions.transform", transform)
    return own


# Row numbers, heads for whole texts, an untied model's second bias: nothing that an output at a position depends on.
UNUSED = re.compile(
    r"(bert\.)?(embeddings\.position_ids|embeddings\.token_type_ids|pooler\..*)"
    r"|cls\.seq_relationship\..*|cls\.predictions\.bias"
)
COPIES = {"cls.predictions.decoder.bias": "cls.predictions.bias"}
OLD = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}  # as the first files have them
LAYOUTS = (Layout("bert", read, write, stored, prefix="bert.", unused=UNUSED, old=OLD, copies=COPIES),)
