"""GGUF into a Hugging Face folder: the default model's own file, and small ones written here."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

from wherefrom.errors import ModelError
from wherefrom.model import store
from wherefrom.model.config import Config
from wherefrom.model.gguf import convert, halved
from wherefrom.model.layouts import read_config
from wherefrom.tokens import Tokenizer

Array = npt.NDArray[Any]

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
SMALL: Mapping[str, Any] = {
    "block_count": 1,
    "context_length": 32,
    "embedding_length": 12,
    "feed_forward_length": 10,
    "attention.head_count": 3,
    "attention.head_count_kv": 1,
    "rope.freq_base": 10000.0,
    "attention.layer_norm_rms_epsilon": 1e-5,
}


@pytest.fixture(scope="session")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The default model, converted by the code under test, not by the one that filled the user's cache."""
    folder = tmp_path_factory.mktemp("converted")
    convert(store.find_source().path, folder)
    yield folder
    shutil.rmtree(folder)  # half a gigabyte


@pytest.fixture(scope="session")
def raw() -> dict[str, Array]:
    """The bytes of each tensor in the file."""
    reader = gguf.GGUFReader(store.find_source().path)
    return {tensor.name: np.asarray(tensor.data) for tensor in reader.tensors}


@pytest.fixture(scope="session")
def weights(converted: Path) -> dict[str, Array]:
    return load_file(converted / "model.safetensors")


def q4_1(rows: Array) -> Array:
    """Blocks of 20 bytes: scale d and least m in float16, then 32 four-bit numbers q, low halves first."""
    blocks = rows.reshape(rows.shape[0], -1, 20)
    d = blocks[..., 0:2].copy().view(np.float16).astype(np.float32)
    m = blocks[..., 2:4].copy().view(np.float16).astype(np.float32)
    nibbles = blocks[..., 4:]
    q = np.concatenate([nibbles & 15, nibbles >> 4], axis=-1).astype(np.float32)
    return (d * q + m).reshape(rows.shape[0], -1)


def q8_0(rows: Array) -> Array:
    """Blocks of 34 bytes: scale d in float16, then 32 signed bytes q."""
    blocks = rows.reshape(rows.shape[0], -1, 34)
    d = blocks[..., 0:2].copy().view(np.float16).astype(np.float32)
    return (d * blocks[..., 2:].copy().view(np.int8).astype(np.float32)).reshape(rows.shape[0], -1)


def by_hand(rows: Array, heads: int) -> Array:
    """Row 2r of a head goes to row r, row 2r + 1 to row r + D/2."""
    size = rows.shape[0] // heads
    moved = np.empty_like(rows)
    for head in range(heads):
        for pair in range(size // 2):
            moved[head * size + pair] = rows[head * size + 2 * pair]
            moved[head * size + pair + size // 2] = rows[head * size + 2 * pair + 1]
    return moved


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("model.layers.0.mlp.down_proj.weight", "blk.0.ffn_down.weight"),
        ("model.layers.29.mlp.up_proj.weight", "blk.29.ffn_up.weight"),
        ("model.layers.3.mlp.gate_proj.weight", "blk.3.ffn_gate.weight"),
        ("model.layers.7.self_attn.v_proj.weight", "blk.7.attn_v.weight"),
        ("model.layers.7.self_attn.o_proj.weight", "blk.7.attn_output.weight"),
    ],
)
def test_weights_are_the_files_numbers_to_the_bit(
    weights: dict[str, Array], raw: dict[str, Array], ours: str, theirs: str
) -> None:
    np.testing.assert_array_equal(weights[ours].view(np.uint32), q4_1(raw[theirs]).view(np.uint32))


def test_the_embedding_and_the_norms(weights: dict[str, Array], raw: dict[str, Array]) -> None:
    np.testing.assert_array_equal(weights["model.embed_tokens.weight"], q8_0(raw["token_embd.weight"]))
    np.testing.assert_array_equal(weights["model.norm.weight"], raw["output_norm.weight"])
    np.testing.assert_array_equal(weights["model.layers.5.input_layernorm.weight"], raw["blk.5.attn_norm.weight"])
    np.testing.assert_array_equal(
        weights["model.layers.5.post_attention_layernorm.weight"], raw["blk.5.ffn_norm.weight"]
    )


@pytest.mark.parametrize(("kind", "heads"), [("q", 9), ("k", 3)])
def test_rows_of_queries_and_keys_are_reordered(
    weights: dict[str, Array], raw: dict[str, Array], kind: str, heads: int
) -> None:
    stored = q4_1(raw[f"blk.4.attn_{kind}.weight"])
    ours = weights[f"model.layers.4.self_attn.{kind}_proj.weight"]
    np.testing.assert_array_equal(ours, by_hand(stored, heads))
    assert not np.array_equal(ours, stored)


def test_reordering_one_head_on_paper() -> None:
    np.testing.assert_array_equal(halved(np.array([0, 3, 1, 4, 2, 5]), 1), [0, 1, 2, 3, 4, 5])
    np.testing.assert_array_equal(halved(np.array([0, 2, 1, 3, 4, 6, 5, 7]), 2), [0, 1, 2, 3, 4, 5, 6, 7])


def test_the_configuration_is_the_models(converted: Path) -> None:
    fields = json.loads((converted / "config.json").read_text())
    assert read_config(fields, converted) == Config(
        architecture="llama",
        layers=30,
        width=576,
        heads=9,
        kv_heads=3,
        head_size=64,
        feed_forward=1536,
        vocabulary=49152,
        context=8192,
        rope_base=100_000.0,
        norm_epsilon=1e-5,
        tied=True,
        bos_id=1,
        eos_ids=(2, 0),
    )


def test_numbers_start_on_a_cache_line(converted: Path) -> None:
    with (converted / "model.safetensors").open("rb") as file:
        assert (8 + int.from_bytes(file.read(8), "little")) % 64 == 0


def test_digits_stand_alone(converted: Path) -> None:
    tokens = Tokenizer.from_file(converted / "tokenizer.json").encode("in  2024")
    assert [token.label for token in tokens] == ["in", "  ", "2", "0", "2", "4"]


def test_transformers_reads_the_same_tokens(converted: Path) -> None:
    text = "In  2024 don't  split\n 中🙂 <|im_end|>x"
    theirs = AutoTokenizer.from_pretrained(converted)
    ours = Tokenizer.from_file(converted / "tokenizer.json")
    assert tuple(theirs(text)["input_ids"]) == ours.encode(text).ids
    assert theirs.eos_token == "<|im_end|>"


def small_tensors(seed: int = 11) -> dict[str, Array]:
    shapes = {
        "token_embd.weight": (258, 12),
        "output_norm.weight": (12,),
        "output.weight": (258, 12),
        "blk.0.attn_norm.weight": (12,),
        "blk.0.ffn_norm.weight": (12,),
        "blk.0.attn_q.weight": (12, 12),
        "blk.0.attn_k.weight": (4, 12),
        "blk.0.attn_v.weight": (4, 12),
        "blk.0.attn_output.weight": (12, 12),
        "blk.0.ffn_gate.weight": (10, 12),
        "blk.0.ffn_up.weight": (10, 12),
        "blk.0.ffn_down.weight": (12, 10),
    }
    random = np.random.default_rng(seed)
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def write_small(
    path: Path,
    tensors: Mapping[str, Array],
    architecture: str = "llama",
    vocabulary: str = "gpt2",
    merges: tuple[str, ...] = ("a b",),
    **fields: Any,
) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in {**SMALL, **fields}.items():
        full = name if name.startswith("tokenizer.") else f"{architecture}.{name}"
        if isinstance(value, bool):
            writer.add_bool(full, value)
        elif isinstance(value, str):
            writer.add_string(full, value)
        elif isinstance(value, int):
            writer.add_uint32(full, value)
        else:
            writer.add_float32(full, value)
    writer.add_tokenizer_model(vocabulary)
    if "tokenizer.ggml.pre" not in fields:
        writer.add_tokenizer_pre("smollm")
    writer.add_token_list(["<s>", *LETTERS, "ab"])
    writer.add_token_types([3] + [1] * 257)
    writer.add_token_merges(list(merges))
    writer.add_bos_token_id(0)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_any_llama_file_is_converted(tmp_path: Path) -> None:
    tensors = small_tensors()
    tensors["blk.0.attn_v.weight"] = tensors["blk.0.attn_v.weight"].astype(np.float16)
    convert(write_small(tmp_path / "small.gguf", tensors), tmp_path)
    config = read_config(json.loads((tmp_path / "config.json").read_text()), tmp_path)
    assert (config.width, config.heads, config.kv_heads, config.head_size) == (12, 3, 1, 4)
    assert (config.tied, config.vocabulary, config.bos_id, config.eos_ids) == (False, 258, 0, ())
    read = load_file(tmp_path / "model.safetensors")
    assert {values.dtype for values in read.values()} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(read["lm_head.weight"], tensors["output.weight"])
    np.testing.assert_array_equal(
        read["model.layers.0.self_attn.v_proj.weight"], tensors["blk.0.attn_v.weight"].astype(np.float32)
    )
    np.testing.assert_array_equal(
        read["model.layers.0.self_attn.q_proj.weight"], by_hand(tensors["blk.0.attn_q.weight"], 3)
    )


def test_a_beginning_mark_is_added_where_the_file_asks(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.pre": "gpt-2"}
    convert(write_small(tmp_path / "small.gguf", small_tensors(), **fields), tmp_path)
    tokens = Tokenizer.from_file(tmp_path / "tokenizer.json").encode("ab1")
    assert [token.label for token in tokens] == ["<s>", "ab", "1"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"architecture": "gpt2"},
            r"general\.architecture: expected the supported architecture, llama, got 'gpt2'",
        ),
        ({"vocabulary": "llama"}, r"tokenizer\.ggml\.model: expected byte-level BPE \('gpt2'\), got 'llama'"),
        ({"tokenizer.ggml.pre": "qwen2"}, r"tokenizer\.ggml\.pre: expected 'smollm' or 'gpt-2', got 'qwen2'"),
        (
            {"rope.scaling.type": "yarn"},
            r"llama\.rope\.scaling\.type: expected the plain rotation .* got 'yarn'",
        ),
        ({"rope.dimension_count": 2}, r"rope\.dimension_count: expected the whole head \(4\), got 2"),
        (
            {"attention.head_count_kv": 2},
            r"num_key_value_heads: expected a divisor of num_attention_heads, 3, got 2",
        ),
        ({"merges": ("a zz",)}, r"tokenizer\.ggml\.merges: expected pairs of the file's own tokens, got "),
        ({"merges": ("ab",)}, r"tokenizer\.ggml\.merges: expected pairs of the file's own tokens, got "),
    ],
)
def test_what_is_not_supported_is_named(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    path = write_small(tmp_path / "small.gguf", small_tensors(), **change)
    with pytest.raises(ModelError, match=sentence) as caught:
        convert(path, tmp_path)
    assert caught.value.facts["path"] == path


def test_a_tensor_that_would_be_left_out_is_refused(tmp_path: Path) -> None:
    tensors = small_tensors() | {"rope_freqs.weight": np.ones(2, np.float32)}
    with pytest.raises(ModelError, match=r"the tensor rope_freqs\.weight: expected one that the llama decoder uses"):
        convert(write_small(tmp_path / "small.gguf", tensors), tmp_path)


@pytest.mark.parametrize("kept", [0, 3, 20, 400, 5000, -64])
def test_a_file_that_ends_early_is_damaged(tmp_path: Path, kept: int) -> None:
    path = write_small(tmp_path / "small.gguf", small_tensors())
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ModelError, match="expected a whole GGUF file, got one that is missing, cut short or damaged"):
        convert(path, tmp_path)


def test_a_missing_or_foreign_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="Copy or install the file again"):
        convert(tmp_path / "none.gguf", tmp_path)
    (tmp_path / "text.gguf").write_text("not a model, but long enough to have a header in it")
    with pytest.raises(ModelError, match="expected a whole GGUF file"):
        convert(tmp_path / "text.gguf", tmp_path)
