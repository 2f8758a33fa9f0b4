"""A GGUF file turned into a folder in the usual Hugging Face layout (floor 2).

Takes config from beside it. Gives `convert` to the store, which runs it once and keeps the result: reading
the GGUF again takes seconds, mapping the folder's float32 weights a tenth of one.

Sources: the format, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; how llama.cpp wrote the file,
convert_hf_to_gguf.py in https://github.com/ggml-org/llama.cpp.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from wherefrom.errors import ModelError
from wherefrom.model.config import Config
from wherefrom.model.layouts import config_fields, read_config

Array = npt.NDArray[Any]

TENSOR_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
BLOCK_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
CONTROL, USER_DEFINED = 3, 4  # of tokenizer.ggml.token_type
# Marks that end a text or a turn of a conversation, whichever of them the file calls the end.
END_MARKS = ("<|endoftext|>", "<|im_end|>")
CACHE_LINE = 64


def convert(source: Path, folder: Path) -> None:
    """Write configuration, model.safetensors and tokenizer, five files, into a folder.

    Weights become float32 under their Hugging Face names. One tensor is in memory at a time.

    Args:
        source: a GGUF file of the llama architecture with a byte-level BPE vocabulary.
        folder: an existing folder; files of these names in it are replaced.

    Raises:
        ModelError: the file is missing, damaged, or of a kind that is not supported.
        OSError: the folder cannot be written.
    """
    with _sound(source):
        reader = gguf.GGUFReader(source)
        fields = _Metadata(reader, source)
        config = _config(fields, reader)
        tokenizer = _tokenizer(fields, config)
        tensors = {_hf_name(tensor.name, source): tensor for tensor in reader.tensors}
        shapes = {name: tuple(int(size) for size in tensor.shape[::-1]) for name, tensor in tensors.items()}
    end_ids = {"bos_token_id": config.bos_id, "eos_token_id": list(config.eos_ids)}
    _write_json(folder / "config.json", config_fields(config) | {"dtype": "float32"})
    _write_json(folder / "generation_config.json", end_ids)
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(fields, config, tokenizer))
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    _write_safetensors(folder / "model.safetensors", shapes, _weights(tensors, config, source))


@contextmanager
def _sound(source: Path) -> Iterator[None]:
    """Turn whatever the gguf library trips over in a damaged file into one sentence."""
    try:
        yield
    except (
        ValueError,
        IndexError,
        KeyError,
        TypeError,
        OverflowError,
        NotImplementedError,
        OSError,
    ) as error:
        raise ModelError(
            f"{source}",
            expected="a whole GGUF file",
            given=f"one that is missing, cut short or damaged ({type(error).__name__}: {error})",
            way_out="Copy or install the file again.",
            path=source,
        ) from error


class _Metadata:
    """The key-value part of a GGUF file."""

    def __init__(self, reader: Any, source: Path) -> None:
        self.reader = reader
        self.source = source
        self.read: dict[str, Any] = {}  # decoding 49,152 tokens takes a tenth of a second: once is enough

    def get(self, name: str, default: Any = None) -> Any:
        if name not in self.read:
            field = self.reader.get_field(name)
            self.read[name] = None if field is None else field.contents()
        return default if self.read[name] is None else self.read[name]

    def number(self, name: str, default: float | None = None) -> float | None:
        """Return a float32 field as the shortest decimal that means it: 1e-05, not 9.999999747378752e-06."""
        value = self.get(name)
        return default if value is None else float(str(np.float32(value)))

    def refuse(self, name: str, expected: str, value: Any) -> ModelError:
        return ModelError(
            f"{self.source}: {name}",
            expected=expected,
            given="nothing" if value is None else f"{value!r}",
            way_out="Choose another file, or the model's folder in Hugging Face layout.",
            path=self.source,
            field=name,
            value=value,
        )


def _config(fields: _Metadata, reader: Any) -> Config:
    architecture = fields.get("general.architecture")
    if architecture != "llama":
        raise fields.refuse("general.architecture", "the supported architecture, llama", architecture)
    scaling = fields.get("llama.rope.scaling.type", "none")
    if scaling != "none":
        raise fields.refuse("llama.rope.scaling.type", "the plain rotation ('none')", scaling)
    names = {tensor.name for tensor in reader.tensors}
    hf = {
        "model_type": architecture,
        "num_hidden_layers": fields.get("llama.block_count"),
        "hidden_size": fields.get("llama.embedding_length"),
        "num_attention_heads": fields.get("llama.attention.head_count"),
        "num_key_value_heads": fields.get("llama.attention.head_count_kv"),
        "head_dim": fields.get("llama.attention.key_length"),
        "intermediate_size": fields.get("llama.feed_forward_length"),
        "vocab_size": len(fields.get("tokenizer.ggml.tokens", ())),
        "max_position_embeddings": fields.get("llama.context_length"),
        "rope_theta": fields.number("llama.rope.freq_base"),
        "rms_norm_eps": fields.number("llama.attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in names,
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _end_ids(fields),
        "attention_bias": "blk.0.attn_q.bias" in names,
        "mlp_bias": "blk.0.ffn_gate.bias" in names,
    }
    config = read_config(hf, fields.source)
    rotated = fields.get("llama.rope.dimension_count", config.head_size)
    if rotated != config.head_size:
        raise fields.refuse("llama.rope.dimension_count", f"the whole head ({config.head_size})", rotated)
    return config


def _end_ids(fields: _Metadata) -> list[int]:
    tokens = fields.get("tokenizer.ggml.tokens", [])
    kinds = fields.get("tokenizer.ggml.token_type", [])
    named = [fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    marked = [
        number
        for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind == CONTROL and token in END_MARKS
    ]
    return list(dict.fromkeys(number for number in named + marked if number is not None))


def _hf_name(name: str, source: Path) -> str:
    block = BLOCK_TENSOR.fullmatch(name)
    if name in TENSOR_NAMES:
        return TENSOR_NAMES[name]
    if block and block[2] in BLOCK_NAMES:
        return f"model.layers.{block[1]}.{BLOCK_NAMES[block[2]]}.{block[3]}"
    raise ModelError(
        f"{source}: the tensor {name}",
        expected="one that the llama decoder uses",
        given="a name it does not know",
        way_out="Choose a model without it: leaving it out would give other results.",
        path=source,
        tensor=name,
    )


def _weights(tensors: dict[str, Any], config: Config, source: Path) -> Iterator[Array]:
    """Each tensor in float32, in the file's order, rows of queries and keys in Hugging Face's order."""
    for name, tensor in tensors.items():
        with _sound(source):
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
            if ".q_proj." in name:
                values = halved(values, config.heads)
            elif ".k_proj." in name:
                values = halved(values, config.kv_heads)
        yield values


def halved(values: Array, heads: int) -> Array:
    """Rows of a query or key matrix in Hugging Face's order, from llama.cpp's.

    The rotation turns numbers in pairs. llama.cpp stores the partners side by side (0, 1), (2, 3), ...;
    Hugging Face half a head apart (0, D/2), (1, D/2 + 1), ... This undoes ``permute`` of
    convert_hf_to_gguf.py.
    """
    rows = values.shape[0]
    paired = values.reshape(heads, rows // heads // 2, 2, *values.shape[1:])  # H, D/2, 2, ...
    return np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(values.shape)  # H * D, ...


def _write_safetensors(path: Path, shapes: dict[str, tuple[int, ...]], weights: Iterator[Array]) -> None:
    """Write the format by hand, since the library wants all tensors in memory, twice.

    https://huggingface.co/docs/safetensors: a little-endian uint64, so many bytes of JSON, then the numbers.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    described = json.dumps(header).encode()
    described += b" " * (-(8 + len(described)) % CACHE_LINE)  # so that rows start on one
    with path.open("wb") as file:
        file.write(len(described).to_bytes(8, "little") + described)
        for shape, values in zip(shapes.values(), weights, strict=True):
            file.write(np.ascontiguousarray(values, dtype="<f4").reshape(shape).data)


def _tokenizer(fields: _Metadata, config: Config) -> tokenizers.Tokenizer:
    model, rules = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
    if model != "gpt2":
        raise fields.refuse("tokenizer.ggml.model", "byte-level BPE ('gpt2')", model)
    if rules not in ("smollm", "gpt-2"):
        raise fields.refuse("tokenizer.ggml.pre", "'smollm' or 'gpt-2'", rules)
    tokens = fields.get("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in fields.get("tokenizer.ggml.merges")]
    numbers = {token: number for number, token in enumerate(tokens)}
    try:
        tokenizer = tokenizers.Tokenizer(models.BPE(numbers, merges))
    except Exception as error:  # the library raises bare Exception for a merge of unknown tokens
        raise fields.refuse("tokenizer.ggml.merges", "pairs of the file's own tokens", str(error)) from error
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words]) if rules == "smollm" else words
    tokenizer.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, fields.get("tokenizer.ggml.token_type"), strict=True):
        added = tokenizers.AddedToken(token, normalized=False, special=kind == CONTROL)
        if kind == CONTROL:
            tokenizer.add_special_tokens([added])
        elif kind == USER_DEFINED:
            tokenizer.add_tokens([added])
    if fields.get("tokenizer.ggml.add_bos_token", False) and config.bos_id is not None:
        mark = tokens[config.bos_id]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{mark} $A", special_tokens=[(mark, config.bos_id)]
        )
    return tokenizer


def _tokenizer_config(fields: _Metadata, config: Config, tokenizer: tokenizers.Tokenizer) -> dict[str, Any]:
    """Return what tokenizer.json leaves unsaid and transformers asks for: its class, its marks, the chat template."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None if config.bos_id is None else tokenizer.id_to_token(config.bos_id),
        "eos_token": tokenizer.id_to_token(config.eos_ids[0]) if config.eos_ids else None,
        "chat_template": fields.get("tokenizer.chat_template"),
        "model_max_length": config.context,
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
