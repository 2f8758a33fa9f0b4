"""Checkpoint folders: written by transformers, read here; and every way in which one can be unusable."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from tokenizers import decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

import wherefrom
from wherefrom.errors import InputError, ModelError
from wherefrom.model.checkpoint import read_folder
from wherefrom.model.layouts import expected_shapes
from wherefrom.training.text import byte_tokenizer

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
    assert "the field eos_token_id: expected a token id or a list of token ids, got 'x'" in str(refusal(tmp_path))


def test_tokens_that_are_never_written_are_read_from_both_files(tmp_path: Path) -> None:
    write_folder(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | {"bad_words_ids": [[9], [5]]}))
    assert read_folder(tmp_path).config.never_ids == (9,)  # 5 ends a text, which transformers lets it do
    more = tmp_path / "generation_config.json"
    for said, expected in ({"bad_words_ids": [[9], [7]]}, (9, 7)), ({"eos_token_id": 9}, ()), ({}, (9,)):
        more.write_text(json.dumps(said))
        assert read_folder(tmp_path).config.never_ids == expected
    for wrong in ([[3, 4]], [3], 3, [["x"]], [[-1]], [[True]]):
        more.write_text(json.dumps({"bad_words_ids": wrong}))
        assert f"{more}: the field bad_words_ids: expected a list of lists of one" in str(refusal(tmp_path))
    more.write_text('{"bad_words_ids": [[263]]}')
    assert "the field bad_words_ids: expected token ids below vocabulary, 263" in str(refusal(tmp_path))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"hidden_size": 2**29}, "expected shape [263, 536870912] as config.json has it, got [263, 15]"),
        ({"hidden_size": 10**30}, "config.json: the configuration's width: expected at most 1,073,741,824, got 1000"),
        ({"num_attention_heads": 10**9}, "head_size: expected at most 1,073,741,824 in all 1000000000 heads, got 6"),
        ({"num_hidden_layers": 10**8}, "config.json: the configuration's layers: expected at most 10,000, got 100"),
    ],
)
def test_sizes_beyond_any_memory_are_refused_at_once(tmp_path: Path, change: dict[str, int], sentence: str) -> None:
    write_folder(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | change))
    assert sentence in str(refusal(tmp_path))


def test_a_vocabulary_in_other_files_is_named(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    for name in ("source.spm", "target.spm", "vocab.json"):
        (tmp_path / name).touch()
    told = "expected a tokenizer.json in it, got only source.spm, target.spm, vocab.json. Make a tokenizer.json of"
    assert told in str(refusal(tmp_path))


def test_a_run_stands_for_its_newest_whole_checkpoint(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        folder = tmp_path / f"step-{step:08}"
        write_folder(folder)
        sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
        (folder / "training.json").write_text(json.dumps({"files": sizes}))
    used = [read_folder(tmp_path).identity.path.name]
    with (folder / "model.safetensors").open("ab") as file:
        file.truncate(200)
    used.append(read_folder(tmp_path).identity.path.name)
    (tmp_path / "step-00000002" / "training.json").write_text("[" * 100_000)
    used.append(read_folder(tmp_path).identity.path.name)
    assert used == ["step-00000003", "step-00000002", "step-00000001"]
    (tmp_path / "step-00000001" / "tokenizer.json").unlink()
    assert f"{folder / 'model.safetensors'}: expected a whole safetensors file" in str(refusal(tmp_path))


def test_what_is_no_place_of_a_model() -> None:
    with pytest.raises(InputError, match="the model to load: expected a name or a path, got a value of type int"):
        wherefrom.load(5)


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
        (b"[" * 100_000, "config.json: expected JSON, got something else ("),
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


@pytest.mark.parametrize(
    ("folder", "given"),
    [
        ("missing", "nothing there"),
        ("file", "a file"),
        ("x" * 300, "[Errno 36] File name too long"),
        (5, "expected str, bytes or os.PathLike object, not int"),
        ("~nobody-here/model", "Could not determine home directory"),
    ],
)
def test_a_model_is_written_into_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Any, given: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    model = wherefrom.draw(wherefrom.Config.decoder(layers=1, width=8, heads=2, vocabulary=257, context=8), 0)
    with pytest.raises(ModelError, match=re.escape(f"expected a folder to write the model into, got {given}")):
        wherefrom.write_folder(folder, model, byte_tokenizer())
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    wherefrom.write_folder("~/model", model, byte_tokenizer())
    assert wherefrom.load(tmp_path / "model").config == model.config
