"""The numbers of a config.json: what is read, and each refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from wherefrom.errors import ModelError
from wherefrom.model.config import Config

WHERE = Path("some/config.json")
LEAST: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 12,
    "num_attention_heads": 3,
    "intermediate_size": 10,
    "vocab_size": 50,
}


def test_what_is_not_said_is_what_transformers_takes() -> None:
    theirs = LlamaConfig(**{name: value for name, value in LEAST.items() if name != "model_type"})
    config = Config.from_hf(LEAST, WHERE)
    assert config == Config(
        architecture="llama",
        layers=2,
        width=12,
        heads=3,
        kv_heads=theirs.num_key_value_heads or 0,
        head_size=theirs.head_dim or 0,
        feed_forward=10,
        vocabulary=50,
        context=theirs.max_position_embeddings,
        rope_base=10_000.0,
        norm_epsilon=theirs.rms_norm_eps,
        tied=theirs.tie_word_embeddings,
        bos_id=None,
        eos_ids=(),
        attention_bias=theirs.attention_bias,
        mlp_bias=theirs.mlp_bias,
    )


def test_all_that_can_be_said() -> None:
    said = {
        "num_key_value_heads": 1,
        "head_dim": 6,
        "max_position_embeddings": 77,
        "rope_theta": 500000,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": [2, 7],
        "attention_bias": True,
        "mlp_bias": True,
        "rope_scaling": None,
        "hidden_act": "silu",
    }
    config = Config.from_hf(LEAST | said, WHERE)
    assert (config.kv_heads, config.head_size, config.context, config.rope_base) == (1, 6, 77, 500000.0)
    assert (config.norm_epsilon, config.tied, config.bos_id, config.eos_ids) == (1e-5, True, 0, (2, 7))
    assert (config.attention_bias, config.mlp_bias) == (True, True)


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 5e5},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
        {"rope_parameters": {"rope_theta": 5e5}, "rope_theta": 5e5, "rope_scaling": {"type": "default"}},
    ],
)
def test_both_spellings_of_the_rotation(spelling: dict[str, Any]) -> None:
    assert Config.from_hf(LEAST | spelling, WHERE).rope_base == 5e5


@pytest.mark.parametrize("more", [{}, {"eos_token_id": 3}, {"eos_token_id": [3, 4], "bos_token_id": 1}])
def test_writing_is_undone_by_reading(more: dict[str, Any]) -> None:
    config = Config.from_hf(LEAST | {"num_key_value_heads": 1, "rope_theta": 5e5} | more, WHERE)
    assert Config.from_hf(config.to_hf(), WHERE) == config


def test_transformers_reads_what_is_written() -> None:
    config = Config.from_hf(LEAST | {"head_dim": 6, "rope_theta": 5e5, "tie_word_embeddings": True}, WHERE)
    fields = {name: value for name, value in config.to_hf().items() if name != "model_type"}
    theirs = LlamaConfig(**fields)
    assert theirs.rope_parameters == {"rope_type": "default", "rope_theta": 5e5}
    assert (theirs.head_dim, theirs.tie_word_embeddings, theirs.num_hidden_layers) == (6, True, 2)


@pytest.mark.parametrize(
    ("change", "field", "sentence"),
    [
        ({"model_type": "gpt2"}, "model_type", "expected a supported architecture (llama), got 'gpt2'"),
        ({"model_type": None}, "model_type", "expected a supported architecture (llama), got nothing"),
        ({"hidden_act": "gelu"}, "hidden_act", "expected 'silu', the only supported value, got 'gelu'"),
        (
            {"rope_interleaved": True},
            "rope_interleaved",
            "expected False, the only supported value, got True",
        ),
        (
            {"partial_rotary_factor": 0.5},
            "partial_rotary_factor",
            "expected 1.0, the only supported value, got 0.5",
        ),
        ({"quantization_config": {"bits": 4}}, "quantization_config", "expected none, got {'bits': 4}"),
        ({"vocab_size": None}, "vocab_size", "expected a whole number of at least 1, got nothing"),
        ({"num_hidden_layers": 0}, "num_hidden_layers", "expected a whole number of at least 1, got 0"),
        ({"hidden_size": 12.5}, "hidden_size", "expected a whole number of at least 1, got 12.5"),
        ({"intermediate_size": True}, "intermediate_size", "expected a whole number of at least 1, got True"),
        ({"num_key_value_heads": 2}, "num_key_value_heads", "expected a divisor of num_attention_heads, 3, got 2"),
        ({"head_dim": 5}, "head_dim", "expected an even number, since the rotation turns pairs, got 5"),
        (
            {"hidden_size": 13},
            "hidden_size",
            "expected a multiple of the 3 heads, as head_dim is not given, got 13",
        ),
        ({"rms_norm_eps": 0}, "rms_norm_eps", "expected a number above 0, got 0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps", "expected a number above 0, got nan"),
        ({"rope_theta": "big"}, "rope_theta", "expected a number above 0, got 'big'"),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
            "rope_scaling",
            "expected the plain rotation (rope_type 'default'), got {'rope_type': 'llama3', 'factor': 8.0}",
        ),
        (
            {"rope_scaling": {"type": "linear"}},
            "rope_scaling",
            "expected the plain rotation (rope_type 'default'), got {'type': 'linear'}",
        ),
        (
            {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            "rope_parameters",
            "expected the plain rotation (rope_type 'default'), got "
            "{'rope_theta': 10000.0, 'partial_rotary_factor': 0.5}",
        ),
        ({"rope_parameters": 3}, "rope_parameters", "expected an object, got 3"),
        (
            {"rope_parameters": {"rope_theta": 1e4}, "rope_theta": 1e5},
            "rope_theta",
            "expected the same base in both spellings, got [100000.0, 10000.0]",
        ),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings", "expected true or false, got 1"),
        ({"eos_token_id": "2"}, "eos_token_id", "expected a token id or a list of token ids, got '2'"),
        ({"bos_token_id": -1}, "bos_token_id", "expected a token id or a list of token ids, got -1"),
    ],
)
def test_refusals_name_the_field_and_what_is_supported(change: dict[str, Any], field: str, sentence: str) -> None:
    with pytest.raises(ModelError) as caught:
        Config.from_hf(LEAST | change, WHERE)
    assert str(caught.value).startswith(f"some/config.json: the field {field}: {sentence}. ")
    assert (caught.value.facts["field"], caught.value.facts["path"]) == (field, WHERE)
