"""Marian's checkpoints (floor 2): the original encoder-decoder Transformer, as the OPUS translation models have it.

Those are published with pickled weights and sentencepiece files: docs/models.md says what has to be converted.
"""

from __future__ import annotations

import re
from typing import Any

from wherefrom.model.config import Config
from wherefrom.model.fields import Fields, never_written
from wherefrom.model.layouts.layout import Layout, Stored, renamed

ACTIVATIONS = {"gelu": "gelu", "relu": "relu", "swish": "silu", "silu": "silu", "gelu_new": "gelu_tanh"}
WRITTEN = {"gelu": "gelu", "relu": "relu", "silu": "swish", "gelu_tanh": "gelu_new"}
ONLY = {
    "share_encoder_decoder_embeddings": True,
    "static_position_embeddings": True,
    "tie_word_embeddings": True,  # without it, each side has an embedding of its own
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "quantization_config": None,
}
DEFAULT_START = 58_100  # transformers' own, where a config.json is silent
EPSILON = 1e-5  # torch.nn.LayerNorm's own, which transformers leaves as it is
BOTH = ("weight", "bias")


def read(fields: Fields) -> Config:
    """Return the shape that a config.json of Marian asks for."""
    fields.require(ONLY)
    width, heads = fields.count("d_model", 1024), fields.count("decoder_attention_heads", 16)
    vocabulary, inner = fields.count("vocab_size", 58_101), fields.count("decoder_ffn_dim", 4096)
    same = {
        "encoder_attention_heads": (16, heads),
        "encoder_ffn_dim": (4096, inner),
        "decoder_vocab_size": (vocabulary,) * 2,
    }
    for name, (default, other) in same.items():
        if fields.count(name, default) != other:
            fields.refuse(name, fields.get(name, default), f"{other}, as on the other side")
    start = fields.one_id("decoder_start_token_id")
    start = DEFAULT_START if start is None else start
    if start >= vocabulary:
        fields.refuse("decoder_start_token_id", start, f"a token id below vocab_size, {vocabulary}")
    return Config(
        architecture="marian",
        layers=fields.count("decoder_layers", 12),
        encoder_layers=fields.count("encoder_layers", 12),
        width=width,
        heads=heads,
        kv_heads=heads,
        head_size=fields.head_size("head_dim", "d_model", width, heads),
        feed_forward=inner,
        vocabulary=vocabulary,
        context=fields.count("max_position_embeddings", 1024),
        positions="sinusoidal",
        norm="layer",
        norm_first=False,
        final_norm=False,
        norm_epsilon=EPSILON,
        activation=fields.choice("activation_function", ACTIVATIONS, "gelu"),
        gated=False,
        attention_bias=True,
        output_bias=True,
        mlp_bias=True,
        embedding_scale=width**0.5 if fields.switch("scale_embedding") else 1.0,
        head_bias=True,
        eos_ids=fields.ids("eos_token_id"),
        never_ids=fields.never_ids(fields.ids("eos_token_id")),
        start_id=start,
    )


def write(config: Config) -> dict[str, Any]:
    """Return the shape as a config.json has it."""
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("attention_heads", config.heads), ("ffn_dim", config.feed_forward))
    }
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.layers,
        "d_model": config.width,
        "vocab_size": config.vocabulary,
        "decoder_vocab_size": config.vocabulary,
        "max_position_embeddings": config.context,
        "activation_function": WRITTEN[config.activation],
        "scale_embedding": config.embedding_scale != 1.0,
        "share_encoder_decoder_embeddings": True,
        "static_position_embeddings": True,
        "tie_word_embeddings": True,
        "decoder_start_token_id": config.start_id,
        "pad_token_id": config.start_id,
        "eos_token_id": list(config.eos_ids) or None,
        **never_written(config.never_ids),
        "forced_eos_token_id": None,
        **sides,
    }


def stored(config: Config) -> dict[str, Stored]:
    """Return where each parameter stands."""
    both = {
        **_attention("attention", "self_attn"),
        "attention_norm": ("self_attn_layer_norm", BOTH),
        "feed_forward.up": ("fc1", BOTH),
        "feed_forward.down": ("fc2", BOTH),
        "feed_forward_norm": ("final_layer_norm", BOTH),
    }
    cross = {**_attention("cross_attention", "encoder_attn"), "cross_attention_norm": ("encoder_attn_layer_norm", BOTH)}
    own = {
        "embedding.weight": Stored("model.shared.weight"),
        "head.weight": Stored("lm_head.weight"),
        "head.bias": Stored("final_logits_bias", row=True),
    }
    for layer in range(config.encoder_layers):
        own |= renamed(f"encoder.blocks.{layer}", f"model.encoder.layers.{layer}", both)
    for layer in range(config.layers):
        own |= renamed(f"blocks.{layer}", f"model.decoder.layers.{layer}", both | cross)
    return own


def _attention(own: str, theirs: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
    return {f"{own}.{name}": (f"{theirs}.{theirs_name}", BOTH) for name, theirs_name in names.items()}


COPIES = {f"model.{side}.embed_tokens.weight": "model.shared.weight" for side in ("encoder", "decoder")}
UNUSED = re.compile(r"model\.(encoder|decoder)\.embed_positions\.weight")  # the sinusoids, which every reader computes
LAYOUTS = (Layout("marian", read, write, stored, unused=UNUSED, copies=COPIES),)
