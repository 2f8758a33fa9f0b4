"""What a checkpoint says beyond what is computed: refused by name where it counts, passed over where it does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from families import OURS, VOCABULARY, WRITTEN, write_theirs
from wherefrom.errors import InputError, ModelError
from wherefrom.model.checkpoint import read_folder, write_folder
from wherefrom.model.config import Config
from wherefrom.model.layouts import LAYOUTS, config_fields, read_config
from wherefrom.model.transformer import Transformer
from wherefrom.training.text import byte_tokenizer

Tensors = dict[str, Tensor]
WHERE = Path("some/config.json")


def said(architecture: str) -> dict[str, Any]:
    """The least that a config.json of a family says."""
    return next(config_fields(config) for config in WRITTEN.values() if config.architecture == architecture)


ROPE = {"rope_type": "yarn", "factor": 4.0}
REFUSED = [
    *((name, {"quantization_config": {"bits": 4}}) for name in LAYOUTS if name != "wherefrom"),
    *((name, {"hidden_act": "gelu"}) for name in ("llama", "mistral", "qwen3")),
    *((name, {"rope_interleaved": True}) for name in ("llama", "mistral", "qwen3")),
    *((name, {"partial_rotary_factor": 0.5}) for name in ("llama", "mistral", "qwen3")),
    *((name, {"rope_scaling": ROPE}) for name in ("llama", "mistral", "qwen3")),
    *((name, {"rope_parameters": ROPE}) for name in ("llama", "mistral", "qwen3")),
    *((name, {"head_dim": 9}) for name in ("llama", "mistral", "qwen3")),
    *((name, {"num_key_value_heads": 4}) for name in ("llama", "mistral", "qwen3")),
    ("llama", {"attention_bias": "yes"}),
    ("mistral", {"sliding_window": 0}),
    ("mistral", {"sliding_window": "all"}),
    ("qwen3", {"use_sliding_window": True}),
    ("qwen3", {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}),
    ("qwen3", {"layer_types": "full_attention"}),
    ("gpt2", {"scale_attn_weights": False}),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    ("gpt2", {"add_cross_attention": True}),
    ("gpt2", {"activation_function": "gelu_fast"}),
    ("gpt2", {"activation_function": ["gelu"]}),
    ("gpt2", {"n_embd": 36}),
    ("gpt2", {"n_head": "5"}),
    ("gpt2", {"layer_norm_epsilon": 0}),
    ("gpt2", {"tie_word_embeddings": 1}),
    ("bert", {"position_embedding_type": "relative_key"}),
    ("bert", {"is_decoder": True}),
    ("bert", {"add_cross_attention": True}),
    ("bert", {"hidden_act": "tanh"}),
    ("bert", {"hidden_size": 36}),
    ("bert", {"type_vocab_size": 0}),
    ("marian", {"share_encoder_decoder_embeddings": False}),
    ("marian", {"static_position_embeddings": False}),
    ("marian", {"tie_word_embeddings": False}),
    ("marian", {"normalize_before": True}),
    ("marian", {"normalize_embedding": True}),
    ("marian", {"add_final_layer_norm": True}),
    ("marian", {"encoder_attention_heads": 7}),
    ("marian", {"encoder_ffn_dim": 66}),
    ("marian", {"decoder_vocab_size": 256}),
    ("marian", {"decoder_start_token_id": VOCABULARY}),
    ("marian", {"activation_function": "tanh"}),
    ("marian", {"d_model": 36}),
    ("wherefrom", {"format": 2}),
    ("wherefrom", {"dropout": 0.1}),
    ("wherefrom", {"norm": "batch"}),
    ("wherefrom", {"layers": 0}),
    ("wherefrom", {"head_size": 9}),
    ("wherefrom", {"tied": "yes"}),
    ("wherefrom", {"norm_epsilon": None}),
    ("wherefrom", {"bos_id": -1}),
    ("wherefrom", {"eos_ids": "2"}),
    ("wherefrom", {"window": 0}),
]


@pytest.mark.parametrize(("architecture", "change"), REFUSED, ids=str)
def test_a_field_that_would_change_the_result_is_refused_by_name(architecture: str, change: dict[str, Any]) -> None:
    read_config(said(architecture), WHERE)  # as it stands it is read
    [(field, value)] = change.items()
    with pytest.raises(ModelError) as caught:
        read_config(said(architecture) | change, WHERE)
    assert str(caught.value).startswith(f"some/config.json: the field {field}: expected ")
    assert (caught.value.facts["field"], caught.value.facts["path"]) == (field, WHERE)
    assert value is None or str(value if isinstance(value, int) else repr(value)) in caught.value.given


@pytest.mark.parametrize("missing", ["layers", "vocabulary"])
def test_our_own_layout_says_all_its_sizes(missing: str) -> None:
    fields = said("wherefrom")
    del fields[missing]
    with pytest.raises(ModelError, match=f"the field {missing}: expected a value, got nothing"):
        read_config(fields, WHERE)


@pytest.mark.parametrize("name", ["t5", None, ["gpt2"], 3])
def test_another_family_is_refused(name: Any) -> None:
    listed = "expected a supported architecture (llama, mistral, qwen3, gpt2, bert, marian, wherefrom), got "
    with pytest.raises(ModelError) as caught:
        read_config(said("gpt2") | {"model_type": name}, WHERE)
    assert listed + ("nothing" if name is None else repr(name)) in str(caught.value)


THEIR_DEFAULTS = {
    "llama": (transformers.LlamaConfig, {}),
    "mistral": (transformers.MistralConfig, {}),
    "qwen3": (transformers.Qwen3Config, {}),
    "gpt2": (transformers.GPT2Config, {}),
    "bert": (transformers.BertConfig, {}),
    "marian": (transformers.MarianConfig, {}),
}
REQUIRED = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")


@pytest.mark.parametrize("name", THEIR_DEFAULTS)
def test_what_a_config_does_not_say_is_what_transformers_takes(name: str) -> None:
    theirs = THEIR_DEFAULTS[name][0]()
    least = {field: getattr(theirs, field) for field in REQUIRED} if name in ("llama", "mistral", "qwen3") else {}
    read = config_fields(read_config({"model_type": name, **least}, WHERE))
    # transformers' marks of beginning and end are those of some one tokenizer
    ours = {field: value for field, value in read.items() if not field.endswith("token_id")}
    absent = {"architectures", "rope_theta", "position_embedding_type", "static_position_embeddings"}
    assert {field for field in ours if not hasattr(theirs, field)} <= absent
    for field in ours.keys() - absent:
        expected = getattr(theirs, field)
        if field == "n_inner":
            expected = 4 * theirs.n_embd  # None stands for it
        if field == "head_dim" and expected is None:
            expected = theirs.hidden_size // theirs.num_attention_heads
        if field == "decoder_vocab_size" and expected is None:
            expected = theirs.vocab_size
        assert ours[field] == expected, field


@pytest.mark.parametrize(
    ("config", "field", "sentence"),
    [
        (
            replace(OURS["llama"], positions="learned"),
            "positions",
            "expected 'rotary', all that files of llama can say, got 'learned'",
        ),
        (replace(OURS["llama"], attention_bias=True), "output_bias", "expected True, all that files of llama"),
        (replace(OURS["llama"], window=4), "window", "expected None, all that files of llama can say, got 4"),
        (replace(OURS["llama"], query_key_norm=True), "query_key_norm", "expected False, all that files of llama"),
        (replace(OURS["mistral"], mlp_bias=True), "mlp_bias", "expected False, all that files of mistral"),
        (replace(OURS["qwen3"], query_key_norm=False), "query_key_norm", "expected True, all that files of qwen3"),
        (OURS["gpt2"], "n_embd", "expected a multiple of the 6 heads, as head_dim is not given (in files of gpt2), g"),
        (replace(WRITTEN["gpt2, relu"], head_size=9), "head_size", "expected 7, all that files of gpt2 can say, got 9"),
        (replace(WRITTEN["gpt2, relu"], head_bias=True), "head_bias", "expected False, all that files of gpt2"),
        (replace(WRITTEN["gpt2, relu"], kv_heads=1), "kv_heads", "expected 5, all that files of gpt2 can say, got 1"),
        (replace(WRITTEN["bert, gelu"], head="linear"), "head", "expected 'none', all that files of bert can say"),
        (replace(WRITTEN["bert, gelu"], segments=0), "type_vocab_size", "expected a whole number of at least 1 (in f"),
        (replace(WRITTEN["bert, gelu"], window=3), "window", "expected None, all that files of bert can say, got 3"),
        (replace(WRITTEN["marian, relu"], tied=False), "tied", "expected True, all that files of marian can say"),
        (replace(WRITTEN["marian, relu"], norm_first=True), "norm_first", "expected False, all that files of marian"),
        (replace(WRITTEN["marian, relu"], embedding_scale=3.0), "embedding_scale", "can say, got 3.0"),
        (replace(WRITTEN["marian, relu"], norm_epsilon=1e-3), "norm_epsilon", "can say, got 0.001"),
        (replace(OURS["llama"], architecture="t5"), "architecture", "expected one of llama, mistral, qwen3, gpt2, "),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 20 else "",
)  # fmt: skip
def test_a_layout_writes_nothing_that_it_would_read_as_another_model(
    config: Config, field: str, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        write_folder(tmp_path, Transformer(config), byte_tokenizer())
    assert str(caught.value).startswith(f"the configuration's {field}: expected ")
    assert sentence in str(caught.value)
    assert str(caught.value).endswith('Give architecture="wherefrom", whose files hold any configuration.')
    assert caught.value.facts["field"] == field
    assert list(tmp_path.iterdir()) == []
    assert read_config(config_fields(replace(config, architecture="wherefrom")), WHERE) == replace(
        config, architecture="wherefrom"
    )


def rewrite(folder: Path, change: Callable[[Tensors], object]) -> None:
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


COPIES = [
    ("bert, head", "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
    ("bert, head", "cls.predictions.decoder.bias", "cls.predictions.bias"),
    ("gpt2", "lm_head.weight", "transformer.wte.weight"),
    ("marian", "lm_head.weight", "model.shared.weight"),
    ("marian", "model.encoder.embed_tokens.weight", "model.shared.weight"),
    ("marian", "model.decoder.embed_tokens.weight", "model.shared.weight"),
]


@pytest.mark.parametrize(("name", "copy", "original"), COPIES)
def test_a_second_copy_is_passed_over_and_must_be_one(name: str, copy: str, original: str, tmp_path: Path) -> None:
    write_theirs(name, tmp_path)
    before = read_folder(tmp_path).tensors
    rewrite(tmp_path, lambda tensors: tensors.update({copy: tensors[original].clone()}))
    assert read_folder(tmp_path).tensors.keys() == before.keys()
    rewrite(tmp_path, lambda tensors: tensors[copy].view(-1)[3].add_(1))
    sentence = f"the tensor {copy}: expected {original} itself, since config.json says tie_word_embeddings, got other"
    with pytest.raises(ModelError, match=sentence) as caught:
        read_folder(tmp_path)
    assert caught.value.facts["tensor"] == copy
    rewrite(tmp_path, lambda tensors: tensors.update({copy: tensors[original][:7].clone()}))
    with pytest.raises(ModelError, match=f"the tensor {copy}: expected shape "):
        read_folder(tmp_path)


UNUSED = [
    ("gpt2", "transformer.h.1.attn.bias"),
    ("gpt2, without prefix", "h.1.attn.bias"),
    ("gpt2, without prefix", "h.1.attn.masked_bias"),
    ("bert", "embeddings.position_ids"),
    ("bert, head", "bert.embeddings.position_ids"),
    ("bert, head", "bert.embeddings.token_type_ids"),
    ("bert, head", "bert.pooler.dense.weight"),
    ("bert, head", "cls.seq_relationship.bias"),
    ("marian", "model.encoder.embed_positions.weight"),
    ("marian", "model.decoder.embed_positions.weight"),
    ("mistral", "model.layers.0.self_attn.rotary_emb.inv_freq"),
]


@pytest.mark.parametrize(("name", "tensor"), UNUSED)
def test_a_tensor_that_changes_nothing_is_passed_over(name: str, tensor: str, tmp_path: Path) -> None:
    write_theirs(name, tmp_path)
    before = read_folder(tmp_path).tensors.keys()
    rewrite(tmp_path, lambda tensors: tensors.update({tensor: torch.ones(3)}))
    assert read_folder(tmp_path).tensors.keys() == before


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt2, without prefix", "bert", "bert, head", "marian"])
def test_any_other_tensor_is_refused(name: str, tmp_path: Path) -> None:
    write_theirs(name, tmp_path)
    for more in ("adapter.weight", "classifier.bias"):
        rewrite(tmp_path, lambda tensors, more=more: tensors.update({more: torch.ones(3)}))
        with pytest.raises(ModelError, match=f"the tensor {more}: expected one that the .* uses"):
            read_folder(tmp_path)
        rewrite(tmp_path, lambda tensors, more=more: tensors.pop(more))


@pytest.mark.parametrize("name", ["bert", "bert, head"])
def test_the_first_names_of_berts_norms(name: str, tmp_path: Path) -> None:
    theirs = write_theirs(name, tmp_path)
    new = dict(read_folder(tmp_path).tensors)
    ends = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))

    def older(tensors: Tensors) -> None:
        for now in list(tensors):
            old = now
            for end, first in ends:
                old = old.replace(end, first)
            tensors[old] = tensors.pop(now)

    rewrite(tmp_path, older)
    assert sum(key.endswith((".gamma", ".beta")) for key in load_file(tmp_path / "model.safetensors")) >= 14
    read = read_folder(tmp_path).tensors
    assert read.keys() == new.keys()
    assert all(torch.equal(read[key], new[key]) for key in new)
    again = type(theirs).from_pretrained(tmp_path, dtype=torch.float32)  # transformers knows the names too
    assert torch.equal(
        again.get_parameter(
            "bert.embeddings.LayerNorm.weight" if name == "bert, head" else "embeddings.LayerNorm.weight"
        ),
        new["bert.embeddings.LayerNorm.weight"],
    )
