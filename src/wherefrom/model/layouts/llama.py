"""The Llama family's checkpoints (floor 2), and two a switch away: Mistral (a window), Qwen3 (norms of q and k)."""

from __future__ import annotations

import re
from typing import Any

from wherefrom.model.config import Config
from wherefrom.model.fields import Fields, never_written
from wherefrom.model.layouts.layout import Layout, Stored, parts, renamed

ONLY = {
    "hidden_act": "silu",
    "rope_interleaved": False,
    "partial_rotary_factor": 1.0,
    "quantization_config": None,
    "use_sliding_window": False,
}
# What transformers takes where a config.json is silent (its configuration files of each family).
CONTEXTS = {"llama": 2048, "mistral": 131_072, "qwen3": 32_768}
MISTRAL_WINDOW = 4096
NAMES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def read(fields: Fields) -> Config:
    """Return the shape that a config.json of the family asks for."""
    fields.require(ONLY)
    family = str(fields.get("model_type"))
    width, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    default_heads = {"mistral": 8, "qwen3": 32}.get(family, heads)
    default_size = 128 if family == "qwen3" else None
    bias = fields.switch("attention_bias") if family != "mistral" else False
    return Config(
        architecture=family,
        layers=fields.count("num_hidden_layers"),
        width=width,
        heads=heads,
        kv_heads=fields.divisor("num_key_value_heads", default_heads, "num_attention_heads", heads),
        head_size=fields.head_size("head_dim", "hidden_size", width, heads, even=True, default=default_size),
        feed_forward=fields.count("intermediate_size"),
        vocabulary=fields.count("vocab_size"),
        context=fields.count("max_position_embeddings", CONTEXTS[family]),
        rope_base=fields.rope_base(),
        window=_window(fields, family),
        norm_epsilon=fields.positive("rms_norm_eps", 1e-6),
        tied=fields.switch("tie_word_embeddings"),
        bos_id=fields.one_id("bos_token_id"),
        eos_ids=fields.ids("eos_token_id"),
        never_ids=fields.never_ids(fields.ids("eos_token_id")),
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=fields.switch("mlp_bias") if family == "llama" else False,
        query_key_norm=family == "qwen3",
    )


def _window(fields: Fields, family: str) -> int | None:
    """Return Mistral's window: what is written, null included; where nothing is written, transformers' own."""
    if family == "mistral":
        written = fields.fields.get("sliding_window", MISTRAL_WINDOW)
        return None if written is None else fields.count("sliding_window", MISTRAL_WINDOW)
    kinds = fields.get("layer_types", [])
    if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
        fields.refuse("layer_types", kinds, "full_attention in every layer")
    return None


def write(config: Config) -> dict[str, Any]:
    """Return the shape as a config.json has it."""
    family = config.architecture
    own: dict[str, Any] = {"attention_bias": config.attention_bias} if family != "mistral" else {}
    if family == "llama":
        own["mlp_bias"] = config.mlp_bias
    if family == "mistral":
        own["sliding_window"] = config.window
    return {
        "architectures": [NAMES[family]],
        "model_type": family,
        "num_hidden_layers": config.layers,
        "hidden_size": config.width,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_size,
        "intermediate_size": config.feed_forward,
        "vocab_size": config.vocabulary,
        "max_position_embeddings": config.context,
        # transformers 5 reads the first spelling, earlier versions the second.
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_base},
        "rope_theta": config.rope_base,
        "rms_norm_eps": config.norm_epsilon,
        "tie_word_embeddings": config.tied,
        "bos_token_id": config.bos_id,
        "eos_token_id": list(config.eos_ids) or None,
        **never_written(config.never_ids),
        "hidden_act": "silu",
        **own,
    }


def stored(config: Config) -> dict[str, Stored]:
    """Return where each parameter stands."""
    attention, mlp = parts(config.attention_bias), parts(config.mlp_bias)
    modules = {
        "attention_norm": ("input_layernorm", ("weight",)),
        "feed_forward_norm": ("post_attention_layernorm", ("weight",)),
        "attention.query": ("self_attn.q_proj", attention),
        "attention.key": ("self_attn.k_proj", attention),
        "attention.value": ("self_attn.v_proj", attention),
        "attention.output": ("self_attn.o_proj", parts(config.output_bias)),
        "feed_forward.gate": ("mlp.gate_proj", mlp),
        "feed_forward.up": ("mlp.up_proj", mlp),
        "feed_forward.down": ("mlp.down_proj", mlp),
    }
    if config.query_key_norm:
        modules["attention.query_norm"] = ("self_attn.q_norm", ("weight",))
        modules["attention.key_norm"] = ("self_attn.k_norm", ("weight",))
    own = {"embedding.weight": Stored("model.embed_tokens.weight")}
    for layer in range(config.layers):
        own |= renamed(f"blocks.{layer}", f"model.layers.{layer}", modules)
    return own | {"norm.weight": Stored("model.norm.weight"), "head.weight": Stored("lm_head.weight")}


# Older files carry the rotation's wavelengths, which every reader computes from the base.
UNUSED = re.compile(r".*\.rotary_emb\.inv_freq")
LAYOUTS = tuple(Layout(family, read, write, stored, unused=UNUSED) for family in NAMES)
