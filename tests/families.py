"""A small random model of every family that transformers has too; sizes are primes where the family lets them be."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

from small import byte_tokenizer
from wherefrom.model.config import Config
from wherefrom.model.transformer import Transformer

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

VOCABULARY, CONTEXT, START = 257, 61, 256
LLAMA = {
    "vocab_size": VOCABULARY,
    "hidden_size": 42,
    "intermediate_size": 67,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,  # 6 heads of it are not 42
    "max_position_embeddings": CONTEXT,
}
GPT2 = {
    "vocab_size": VOCABULARY,
    "n_embd": 33,
    "n_layer": 3,
    "n_head": 3,
    "n_positions": CONTEXT,
    "bos_token_id": None,
    "eos_token_id": 0,
}
BERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 35,
    "intermediate_size": 67,
    "num_hidden_layers": 3,
    "num_attention_heads": 5,
    "max_position_embeddings": CONTEXT,
}
MARIAN = {
    "vocab_size": VOCABULARY,
    "d_model": 35,  # odd: one sine more than cosines
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_ffn_dim": 67,
    "decoder_ffn_dim": 67,
    "encoder_attention_heads": 5,
    "decoder_attention_heads": 5,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": START,
    "decoder_start_token_id": START,
    "eos_token_id": 0,
    "forced_eos_token_id": None,
}

SIZES: dict[str, Any] = {
    "layers": 3,
    "width": 35,
    "heads": 6,
    "head_size": 10,
    "feed_forward": 67,
    "vocabulary": VOCABULARY,
    "context": CONTEXT,
}
OURS = {
    "llama": Config.decoder(**(SIZES | {"width": 42}), kv_heads=2),  # transformers' Llama wants a multiple of the heads
    "mistral": Config.decoder(**SIZES, kv_heads=3, architecture="mistral", window=4),
    "qwen3": Config.decoder(**SIZES, kv_heads=1, architecture="qwen3", query_key_norm=True),
    "gpt2": Config.decoder(**SIZES, style="gpt2"),
    "post-norm decoder": Config.decoder(**SIZES, norm_first=False, positions="sinusoidal", tied=False),
    "bert": Config.encoder(**SIZES),
    "original": Config.encoder_decoder(**SIZES, encoder_layers=2, start_id=START),
    "windowed pair": Config.encoder_decoder(
        **SIZES, encoder_layers=2, start_id=START, norm_first=True, final_norm=True, positions="rotary", window=5
    ),
}
DECODERS = ("llama", "mistral", "qwen3", "gpt2", "post-norm decoder")
PAIRS = ("original", "windowed pair")
EVEN = SIZES | {"heads": 5, "head_size": 7}  # 5 heads of 7 are the width, where a family has no other
HEADLESS = {"head": "none", "tied": False, "head_bias": False}
PAIR = {**EVEN, "architecture": "marian", "encoder_layers": 2, "start_id": START, "head_bias": True}
GELUS = ("relu", "gelu", "silu", "gelu_tanh")
WRITTEN = {
    "llama": OURS["llama"],
    "llama, all said": replace(
        OURS["llama"], attention_bias=True, output_bias=True, mlp_bias=True, tied=False, rope_base=5e5,
        norm_epsilon=1e-3, bos_id=1, eos_ids=(2, 7),
    ),
    "mistral": OURS["mistral"],
    "mistral, no window": replace(OURS["mistral"], window=None),
    "qwen3": OURS["qwen3"],
    "qwen3, biases": replace(OURS["qwen3"], attention_bias=True, output_bias=True),
    **{f"gpt2, {name}": Config.decoder(**EVEN, style="gpt2", activation=name) for name in GELUS},
    "gpt2, untied": Config.decoder(**EVEN, style="gpt2", tied=False, bos_id=3, eos_ids=(3,), norm_epsilon=1e-3),
    **{f"bert, {name}": Config.encoder(**EVEN, activation=name) for name in GELUS},
    "bert, untied": Config.encoder(**EVEN, tied=False, segments=3),
    "bert, headless": Config.encoder(**EVEN, head="none"),
    **{f"marian, {name}": Config.encoder_decoder(**PAIR, activation=name) for name in GELUS},
    "marian, not scaled": Config.encoder_decoder(**PAIR, embedding_scale=1.0, eos_ids=(0, 3)),
    **{f"own, {name}": replace(config, architecture="wherefrom") for name, config in OURS.items()},
    "own, headless": replace(OURS["bert"], architecture="wherefrom", **HEADLESS),
    "own, two embeddings": replace(OURS["original"], shared_embedding=False),
    "own, output untied": replace(OURS["original"], tied=False),
}  # fmt: skip


# What writes to the residual stream: smaller, or after a layer or two all tokens would be alike.
WRITERS = ("o_proj", "out_proj", "c_proj", "output.dense", "fc2", "down_proj")


def _of(model: str, config: str, sizes: dict[str, Any], **changes: Any) -> Callable[[], PreTrainedModel]:
    return lambda: getattr(transformers, model)(getattr(transformers, config)(**(sizes | changes)))


THEIRS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": _of("LlamaForCausalLM", "LlamaConfig", LLAMA),
    "llama, biases, tied": _of(
        "LlamaForCausalLM", "LlamaConfig", LLAMA, attention_bias=True, mlp_bias=True, tie_word_embeddings=True
    ),
    "mistral": _of("MistralForCausalLM", "MistralConfig", LLAMA, sliding_window=5),
    "mistral, no window": _of("MistralForCausalLM", "MistralConfig", LLAMA, sliding_window=None),
    "qwen3": _of("Qwen3ForCausalLM", "Qwen3Config", LLAMA),
    "qwen3, biases": _of("Qwen3ForCausalLM", "Qwen3Config", LLAMA, attention_bias=True),
    "gpt2": _of("GPT2LMHeadModel", "GPT2Config", GPT2),
    "gpt2, without prefix": _of("GPT2Model", "GPT2Config", GPT2, architectures=["GPT2LMHeadModel"]),
    "gpt2, untied": _of("GPT2LMHeadModel", "GPT2Config", GPT2, tie_word_embeddings=False, n_inner=67),
    **{
        f"gpt2, {name}": _of("GPT2LMHeadModel", "GPT2Config", GPT2, activation_function=name)
        for name in ("gelu_pytorch_tanh", "gelu", "relu", "silu")
    },
    "bert": _of("BertModel", "BertConfig", BERT),
    "bert, no pooler": lambda: transformers.BertModel(transformers.BertConfig(**BERT), add_pooling_layer=False),
    "bert, head": _of("BertForMaskedLM", "BertConfig", BERT),
    "bert, untied": _of("BertForMaskedLM", "BertConfig", BERT, tie_word_embeddings=False),
    "bert, pretraining": _of("BertForPreTraining", "BertConfig", BERT),
    **{
        f"bert, {name}": _of("BertForMaskedLM", "BertConfig", BERT, hidden_act=name)
        for name in ("gelu_new", "relu", "silu")
    },
    "marian": _of("MarianMTModel", "MarianConfig", MARIAN, scale_embedding=True),
    **{
        f"marian, {name}": _of("MarianMTModel", "MarianConfig", MARIAN, activation_function=name)
        for name in ("relu", "swish", "gelu_new")
    },
}


def write_theirs(name: str, folder: Path, seed: int = 5) -> PreTrainedModel:
    """Write transformers' model, its weights large enough that attention is far from even, and return it."""
    generator = torch.Generator().manual_seed(seed)
    model = THEIRS[name]().eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "embed_positions" in parameter_name and name.startswith("marian"):
                continue  # sinusoids, which are no weights
            if parameter.ndim > 1:
                writes = any(part in parameter_name for part in WRITERS)
                parameter.normal_(0, 0.1 if writes else 0.4, generator=generator)
            elif "q_norm" in parameter_name:
                parameter.fill_(3.0).add_(0.1 * torch.randn(parameter.shape, generator=generator))
            else:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
        if name.startswith("marian"):
            model.final_logits_bias.normal_(generator=generator)
    model.save_pretrained(folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return model


def some_ids(*shape: int, seed: int = 3) -> Tensor:
    """Random tokens, the end mark of bytes not among them."""
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed))


def right_padding(lengths: list[int], length: int) -> Tensor:
    """True for the first so many tokens of each row, bool [B, T]."""
    return torch.arange(length) < torch.tensor(lengths)[:, None]


def worst(a: Tensor, b: Tensor) -> float:
    """The largest difference between two tensors of one shape."""
    assert a.shape == b.shape
    return float((a - b).detach().abs().max())


def random_weights(config: Config) -> Transformer:
    """Return a transformer, not read from files, every number of it drawn; attention is far from even."""
    model = Transformer(config).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(11)
    for name, parameter in model.named_parameters():
        spread = 1.7 / parameter.shape[-1] ** 0.5 if parameter.ndim > 1 else 0.1
        parameter.copy_(spread * torch.randn(parameter.shape, generator=generator) + name.endswith("norm.weight"))
    return model


@cache
def random_model(kind: str, **changes: Any) -> Transformer:
    """Return such a transformer of one of our shapes."""
    return random_weights(replace(OURS[kind], **changes))
