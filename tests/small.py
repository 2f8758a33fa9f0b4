"""A small random model of the Llama family, written as a checkpoint folder: fast enough for every test."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from wherefrom.model.layouts import expected_shapes, read_config

SIZES = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 3,
    "hidden_size": 42,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "intermediate_size": 67,
    "vocab_size": 257,
    "max_position_embeddings": 300,
    "rope_theta": 10_000.0,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": 256,
}


def write_small_model(folder: Path, *, seed: int = 7, **changes: Any) -> Path:
    """Write config.json, model.safetensors and tokenizer.json; `changes` are config fields."""
    folder.mkdir(parents=True, exist_ok=True)
    fields = {**SIZES, **changes}
    (folder / "config.json").write_text(json.dumps(fields))
    generator = torch.Generator().manual_seed(seed)
    shapes = expected_shapes(read_config(fields, folder / "config.json"))
    tensors = {}
    for name, shape in shapes.items():
        if name.endswith("norm.weight"):
            tensors[name] = 1.0 + 0.1 * torch.randn(shape, generator=generator)
        else:  # large enough that the weights of attention are far from even
            tensors[name] = 1.7 * torch.randn(shape, generator=generator) / shape[-1] ** 0.5
    save_file(tensors, folder / "model.safetensors")
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def byte_tokenizer() -> Tokenizer:
    """Each byte is a token; id 256 ends a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer
