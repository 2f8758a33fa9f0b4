"""Checkpoint folders: written by transformers, read here; and every way in which one can be unusable."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from tokenizers import decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from wherefrom.errors import ModelError
from wherefrom.model.checkpoint import read_folder
from wherefrom.model.layouts import expected_shapes

Tensors = dict[str, torch.Tensor]
EMBEDDING, LAST_NORM, OUTPUT = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
KEYS = "model.layers.1.self_attn.k_proj.weight"
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())


def write_folder(folder: Path, shard: str = "5GB", **changes: Any) -> Tensors:
    """A random model of primes in a folder; what its tensors were."""
    sizes: dict[str, Any] = {
        "vocab_size": 263,
        "hidden_size": 15,
        "intermediate_size": 11,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 6,
        "max_position_embeddings": 37,
        "eos_token_id": 5,
    }
    torch.manual_seed(3)
    model = LlamaForCausalLM(LlamaConfig(**(sizes | changes)))
    model.save_pretrained(folder, max_shard_size=shard)
    inner = tokenizers.Tokenizer(models.BPE({letter: number for number, letter in enumerate(LETTERS)}, []))
    inner.decoder = decoders.ByteLevel()
    inner.save(str(folder / "tokenizer.json"))
    return dict(model.state_dict())


def rewrite(folder: Path, change: Callable[[Tensors], object]) -> None:
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def refusal(folder: Path) -> ModelError:
    with pytest.raises(ModelError) as caught:
        read_folder(folder)
    return caught.value


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": True},
        {"attention_bias": True, "mlp_bias": True},
        {"shard": "10KB"},
        {"shard": "10KB", "tie_word_embeddings": True},
    ],
)
def test_a_folder_of_transformers_is_read_as_it_is(tmp_path: Path, changes: dict[str, Any]) -> None:
    written = write_folder(tmp_path, **changes)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == ("shard" in changes)
    if changes.get("tie_word_embeddings"):
        del written[OUTPUT]
    checkpoint = read_folder(tmp_path)
    assert set(checkpoint.tensors) == set(written) == set(expected_shapes(checkpoint.config))
    for name, shape in expected_shapes(checkpoint.config).items():
        assert tuple(written[name].shape) == shape
        assert torch.equal(checkpoint.tensors[name], written[name])
        assert checkpoint.tensors[name].dtype == torch.float32
    assert (checkpoint.config.layers, checkpoint.config.head_size, checkpoint.config.width) == (2, 6, 15)
    assert checkpoint.tokenizer.vocabulary_size == 256
    assert (checkpoint.identity.name, checkpoint.identity.path) == (tmp_path.name, tmp_path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions_become_float32(tmp_path: Path, dtype: torch.dtype) -> None:
    write_folder(tmp_path)
    rewrite(tmp_path, lambda tensors: tensors.update({KEYS: tensors[KEYS].to(dtype)}))
    stored = load_file(tmp_path / "model.safetensors")[KEYS]
    assert stored.dtype == dtype
    assert torch.equal(read_folder(tmp_path).tensors[KEYS], stored.float())


def test_end_marks_of_generation_are_added(tmp_path: Path) -> None:
    write_folder(tmp_path)
    for more, expected in (([5, 7], (5, 7)), (9, (5, 9)), (None, (5,))):
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": more}))
        assert read_folder(tmp_path).config.eos_ids == expected
    (tmp_path / "generation_config.json").unlink()
    assert read_folder(tmp_path).config.eos_ids == (5,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": "x"}')
    assert "the field eos_token_id: expected token ids, got 'x'" in str(refusal(tmp_path))


def test_a_computed_tensor_of_older_files_is_passed_over(tmp_path: Path) -> None:
    write_folder(tmp_path)
    old = "model.layers.0.self_attn.rotary_emb.inv_freq"
    rewrite(tmp_path, lambda tensors: tensors.update({old: torch.ones(3)}))
    assert old not in read_folder(tmp_path).tensors


def test_a_stored_copy_of_a_tied_output_must_be_the_embedding(tmp_path: Path) -> None:
    write_folder(tmp_path, tie_word_embeddings=True)
    rewrite(tmp_path, lambda tensors: tensors.update({OUTPUT: tensors[EMBEDDING].clone()}))
    assert OUTPUT not in read_folder(tmp_path).tensors
    rewrite(tmp_path, lambda tensors: tensors[OUTPUT][3, 4].add_(1))
    assert "lm_head.weight: expected model.embed_tokens.weight itself, since config.json says" in str(refusal(tmp_path))


def test_the_checksum_is_of_configuration_and_weights(tmp_path: Path) -> None:
    write_folder(tmp_path)
    lines = [
        f"{hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()}  {name}\n"
        for name in ("config.json", "model.safetensors")
    ]
    assert read_folder(tmp_path).identity.checksum == hashlib.sha256("".join(lines).encode()).hexdigest()
    before = read_folder(tmp_path).identity.checksum
    (tmp_path / "notes.txt").write_text("no part of the model")
    assert read_folder(tmp_path).identity.checksum == before
    rewrite(tmp_path, lambda tensors: tensors[KEYS].add_(1))
    assert read_folder(tmp_path).identity.checksum != before


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_no_numbers_are_named(tmp_path: Path, value: float) -> None:
    write_folder(tmp_path)
    rewrite(tmp_path, lambda tensors: tensors[KEYS][2, 3:5].fill_(value))
    error = refusal(tmp_path)
    assert error.facts["tensor"] == KEYS
    assert f"the tensor {KEYS}: expected finite numbers, got 2 that are NaN or infinite" in str(error)
    read_folder(tmp_path, check_values=False)


def test_two_infinities_do_not_cancel(tmp_path: Path) -> None:
    write_folder(tmp_path)

    def change(tensors: Tensors) -> None:
        tensors[KEYS][0, 0], tensors[KEYS][0, 1] = float("inf"), -float("inf")

    rewrite(tmp_path, change)
    assert "2 that are NaN or infinite" in str(refusal(tmp_path))


def test_large_numbers_are_numbers(tmp_path: Path) -> None:
    write_folder(tmp_path)
    rewrite(tmp_path, lambda tensors: tensors[KEYS].fill_(3e38))  # their sum is infinite
    assert torch.all(read_folder(tmp_path).tensors[KEYS] == 3e38)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda t: t.pop(KEYS), f"the tensor {KEYS}: expected one, got none."),
        (
            lambda t: (t.pop(KEYS), t.pop(LAST_NORM)),
            f"the tensor {KEYS}: expected one, got none and 1 more.",
        ),
        (lambda t: t.pop(OUTPUT), f"the tensor {OUTPUT}: expected one, got none."),
        (
            lambda t: t.update({KEYS: t[KEYS].T.contiguous()}),
            f"the tensor {KEYS}: expected shape [6, 15] as config.json has it, got [15, 6].",
        ),
        (
            lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(18)}),
            "the tensor model.layers.0.self_attn.q_proj.bias: expected one that the llama decoder uses, "
            "got a name that its config.json has no place for, shape [18].",
        ),
        (
            lambda t: t.update({KEYS: t[KEYS].to(torch.int8)}),
            f"the tensor {KEYS}: expected floating-point numbers (float32, bfloat16, float16, float64), got int8.",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path: Path, change: Callable[[Tensors], object], sentence: str) -> None:
    write_folder(tmp_path)
    rewrite(tmp_path, change)
    error = refusal(tmp_path)
    assert f"{tmp_path}: {sentence}" in str(error)
    assert error.facts["tensor"] in sentence


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    write_folder(tmp_path)
    (tmp_path / name).unlink()
    error = refusal(tmp_path)
    assert str(error).startswith(f"{tmp_path}: expected a {name} in it, got none.")
    assert error.facts["path"] == tmp_path / name


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_folder(tmp_path, shard="10KB")
    shard = max(tmp_path.glob("model-*.safetensors"))
    shard.unlink()
    assert str(refusal(tmp_path)).startswith(f"{tmp_path}: expected a {shard.name} in it, got none.")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('{"weight_map": 3}', "expected a weight_map of tensor to file, got none"),
        ("{}", "expected a weight_map of tensor to file, got none"),
        (
            '{"weight_map": {"a": "../elsewhere.safetensors"}}',
            "expected names of files beside it, got the path '../elsewhere.safetensors'",
        ),
    ],
)
def test_an_index_that_makes_no_sense(tmp_path: Path, content: str, sentence: str) -> None:
    write_folder(tmp_path, shard="10KB")
    (tmp_path / "model.safetensors.index.json").write_text(content)
    assert sentence in str(refusal(tmp_path))


def test_pickled_weights_are_not_opened(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    assert "got only a pickled pytorch_model.bin, which could run code. Save the model" in str(refusal(tmp_path))


def test_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "home" / "model")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert read_folder(Path("~/model")).identity.path == tmp_path / "home" / "model"
    told = 'Nothing is downloaded from a hub: give "smollm2", the built-in model, or a local folder that holds'
    for folder in (tmp_path / "none", tmp_path, Path("~nobodyx/model"), tmp_path / ("x" * 300)):
        assert told in str(refusal(folder))
    assert "none: expected a folder, got nothing there." in str(refusal(tmp_path / "none"))
    (tmp_path / "file").write_text("x")
    assert "file: expected a folder, got a file." in str(refusal(tmp_path / "file"))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"{", "config.json: expected JSON, got something else ("),
        (b"\xff\xfe", "config.json: expected JSON, got something else ("),
        (b"[1]", "config.json: expected a JSON object, got a list."),
    ],
)
def test_a_configuration_that_is_not_json(tmp_path: Path, content: bytes, sentence: str) -> None:
    write_folder(tmp_path)
    (tmp_path / "config.json").write_bytes(content)
    assert sentence in str(refusal(tmp_path))


@pytest.mark.parametrize("kept", [0, 5, 300, -1])
def test_weights_that_end_early(tmp_path: Path, kept: int) -> None:
    write_folder(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    assert f"{path}: expected a whole safetensors file, got a cut or damaged one (" in str(refusal(tmp_path))


def test_more_tokens_than_the_embedding_has_rows(tmp_path: Path) -> None:
    write_folder(tmp_path, vocab_size=251)
    sentence = "tokenizer.json: expected at most 251 tokens, the rows of the embedding, got 256 of them."
    assert sentence in str(refusal(tmp_path))
