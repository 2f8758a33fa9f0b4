"""GPT-2's checkpoints (floor 2): matrices lie transposed, those of queries, keys and values side by side."""

from __future__ import annotations

import re
from typing import Any

from wherefrom.model.config import Config
from wherefrom.model.fields import Fields, never_written
from wherefrom.model.layouts.layout import Layout, Stored, renamed

ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
}
WRITTEN = {"gelu_tanh": "gelu_new", "gelu": "gelu", "relu": "relu", "silu": "silu"}
ONLY = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "quantization_config": None,
}
BOTH = ("weight", "bias")


def read(fields: Fields) -> Config:
    """Return the shape that a config.json of GPT-2 asks for."""
    fields.require(ONLY)
    width, heads = fields.count("n_embd", 768), fields.count("n_head", 12)
    return Config(
        architecture="gpt2",
        layers=fields.count("n_layer", 12),
        width=width,
        heads=heads,
        kv_heads=heads,
        head_size=fields.head_size("head_dim", "n_embd", width, heads),
        feed_forward=fields.count("n_inner", 4 * width),
        vocabulary=fields.count("vocab_size", 50_257),
        context=fields.count("n_positions", 1024),
        positions="learned",
        norm="layer",
        norm_epsilon=fields.positive("layer_norm_epsilon", 1e-5),
        activation=fields.choice("activation_function", ACTIVATIONS, "gelu_new"),
        gated=False,
        attention_bias=True,
        output_bias=True,
        mlp_bias=True,
        tied=fields.switch("tie_word_embeddings", default=True),
        bos_id=fields.one_id("bos_token_id"),
        eos_ids=fields.ids("eos_token_id"),
        never_ids=fields.never_ids(fields.ids("eos_token_id")),
    )


def write(config: Config) -> dict[str, Any]:
    """Return the shape as a config.json has it."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_layer": config.layers,
        "n_embd": config.width,
        "n_head": config.heads,
        "n_inner": config.feed_forward,
        "vocab_size": config.vocabulary,
        "n_positions": config.context,
        "layer_norm_epsilon": config.norm_epsilon,
        "activation_function": WRITTEN[config.activation],
        "tie_word_embeddings": config.tied,
        "bos_token_id": config.bos_id,
        "eos_token_id": list(config.eos_ids) or None,
        **never_written(config.never_ids),
    }


def stored(config: Config) -> dict[str, Stored]:
    """Return where each parameter stands."""
    own = {
        "embedding.weight": Stored("transformer.wte.weight"),
        "position_embedding.weight": Stored("transformer.wpe.weight"),
        "norm.weight": Stored("transformer.ln_f.weight"),
        "norm.bias": Stored("transformer.ln_f.bias"),
        "head.weight": Stored("lm_head.weight"),
    }
    norms = {"attention_norm": ("ln_1", BOTH), "feed_forward_norm": ("ln_2", BOTH)}
    matrices = {"attention.output": "attn.c_proj", "feed_forward.up": "mlp.c_fc", "feed_forward.down": "mlp.c_proj"}
    for layer in range(config.layers):
        block, theirs = f"blocks.{layer}", f"transformer.h.{layer}"
        own |= renamed(block, theirs, norms)
        for part, name in enumerate(("query", "key", "value")):
            for kind in BOTH:
                at = Stored(f"{theirs}.attn.c_attn.{kind}", transposed=kind == "weight", part=part, parts=3)
                own[f"{block}.attention.{name}.{kind}"] = at
        for name, matrix in matrices.items():
            own[f"{block}.{name}.weight"] = Stored(f"{theirs}.{matrix}.weight", transposed=True)
            own[f"{block}.{name}.bias"] = Stored(f"{theirs}.{matrix}.bias")
    return own


# Early files carry the causal mask of each layer.
UNUSED = re.compile(r".*\.attn\.(bias|masked_bias)")
LAYOUTS = (Layout("gpt2", read, write, stored, prefix="transformer.", unused=UNUSED),)
