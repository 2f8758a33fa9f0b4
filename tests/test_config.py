"""The shape of a model: its presets, what goes together, and what a Llama's config.json says of it."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import LlamaConfig

from wherefrom.errors import InputError, ModelError
from wherefrom.model.config import Config
from wherefrom.model.layouts import config_fields, read_config

WHERE = Path("some/config.json")
SUPPORTED = "llama, mistral, qwen3, gpt2, bert, marian, wherefrom"
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
    config = read_config(LEAST, WHERE)
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
    config = read_config(LEAST | said, WHERE)
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
    assert read_config(LEAST | spelling, WHERE).rope_base == 5e5


@pytest.mark.parametrize("more", [{}, {"eos_token_id": 3}, {"eos_token_id": [3, 4], "bos_token_id": 1}])
def test_writing_is_undone_by_reading(more: dict[str, Any]) -> None:
    config = read_config(LEAST | {"num_key_value_heads": 1, "rope_theta": 5e5} | more, WHERE)
    assert read_config(config_fields(config), WHERE) == config


def test_transformers_reads_what_is_written() -> None:
    config = read_config(LEAST | {"head_dim": 6, "rope_theta": 5e5, "tie_word_embeddings": True}, WHERE)
    fields = {name: value for name, value in config_fields(config).items() if name != "model_type"}
    theirs = LlamaConfig(**fields)
    assert theirs.rope_parameters == {"rope_type": "default", "rope_theta": 5e5}
    assert (theirs.head_dim, theirs.tie_word_embeddings, theirs.num_hidden_layers) == (6, True, 2)


@pytest.mark.parametrize(
    ("change", "field", "sentence"),
    [
        ({"model_type": "t5"}, "model_type", f"expected a supported architecture ({SUPPORTED}), got 't5'"),
        ({"model_type": None}, "model_type", f"expected a supported architecture ({SUPPORTED}), got nothing"),
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
        read_config(LEAST | change, WHERE)
    assert str(caught.value).startswith(f"some/config.json: the field {field}: {sentence}. ")
    assert (caught.value.facts["field"], caught.value.facts["path"]) == (field, WHERE)


SIZES: dict[str, Any] = {"layers": 2, "width": 12, "heads": 3, "vocabulary": 50, "context": 20}
LEFT_TO_RIGHT = Config.decoder(**SIZES)
PAIR = Config.encoder_decoder(**SIZES, start_id=1)
BOOLS = (
    *("causal", "norm_first", "final_norm", "gated", "attention_bias", "output_bias", "mlp_bias", "query_key_norm"),
    *("embedding_norm", "head_bias", "tied", "shared_embedding"),
)


def test_a_decoder_is_a_llama_unless_told_otherwise() -> None:
    assert Config.decoder(**SIZES) == Config(
        **SIZES,
        architecture="llama",
        kv_heads=3,
        head_size=4,
        feed_forward=32,  # three of 8/3 of the width
    )
    assert Config.decoder(**(SIZES | {"width": 576, "heads": 9})).feed_forward == 1536  # SmolLM2's, which is a Llama


def test_a_decoder_in_the_style_of_gpt2() -> None:
    assert Config.decoder(**SIZES, style="gpt2") == Config(
        **SIZES,
        architecture="gpt2",
        kv_heads=3,
        head_size=4,
        feed_forward=48,
        positions="learned",
        norm="layer",
        activation="gelu_tanh",
        gated=False,
        attention_bias=True,
        output_bias=True,
        mlp_bias=True,
    )


POST_NORM: dict[str, Any] = {
    "norm": "layer",
    "norm_first": False,
    "final_norm": False,
    "gated": False,
    "attention_bias": True,
    "output_bias": True,
    "mlp_bias": True,
}


def test_an_encoder_is_a_bert() -> None:
    bert = Config(
        **SIZES,
        **POST_NORM,
        architecture="bert",
        kv_heads=3,
        head_size=4,
        feed_forward=48,
        causal=False,
        positions="learned",
        norm_epsilon=1e-12,
        activation="gelu",
        embedding_norm=True,
        segments=2,
        head="masked",
        head_bias=True,
    )
    assert Config.encoder(**SIZES) == bert
    assert Config.encoder(**SIZES, head="none") == replace(bert, head="none", head_bias=False, tied=False)


def test_an_encoder_decoder_is_the_original() -> None:
    original = Config(
        **SIZES,
        **POST_NORM,
        architecture="wherefrom",
        kv_heads=3,
        head_size=4,
        feed_forward=48,
        encoder_layers=2,
        positions="sinusoidal",
        activation="relu",
        embedding_scale=12**0.5,
        start_id=1,
    )
    assert Config.encoder_decoder(**SIZES, start_id=1) == original
    assert Config.encoder_decoder(**SIZES, start_id=1, encoder_layers=7) == replace(original, encoder_layers=7)


def test_changes_go_over_a_preset() -> None:
    changes = {
        "kv_heads": 1,
        "head_size": 10,
        "feed_forward": 7,
        "architecture": "wherefrom",
        "norm": "layer",
        "window": 3,
    }
    for made in (
        Config.decoder(**SIZES, **changes),
        Config.decoder(**SIZES, style="gpt2", **changes),
        Config.encoder(**SIZES, **changes),
        Config.encoder_decoder(**SIZES, start_id=1, **changes),
    ):
        assert {name: getattr(made, name) for name in changes} == changes
    assert Config.decoder(**(SIZES | {"width": 13}), head_size=4).width == 13  # no head size follows from it


def test_kinds() -> None:
    assert [LEFT_TO_RIGHT.kind, Config.encoder(**SIZES).kind, PAIR.kind] == ["decoder", "encoder", "encoder-decoder"]


def test_numbers_of_numpy_become_pythons() -> None:
    config = Config.decoder(**{name: np.int64(value) for name, value in SIZES.items()}, eos_ids=[1], bos_id=np.int64(3))
    assert config == replace(LEFT_TO_RIGHT, eos_ids=(1,), bos_id=3)
    assert {type(getattr(config, name)) for name in (*SIZES, "kv_heads", "head_size", "bos_id")} == {int}
    with pytest.raises(FrozenInstanceError):
        config.layers = 3  # type: ignore[misc]  # what is tried here


@pytest.mark.parametrize(
    ("config", "change", "sentence"),
    [
        *(
            (
                LEFT_TO_RIGHT,
                {name: value},
                f"the configuration's {name}: expected a whole number from 1 up, got {value!r}",
            )
            for name in ("layers", "width", "heads", "kv_heads", "head_size", "feed_forward", "vocabulary", "context")
            for value in (0, 1.0, True, None, "2")
        ),
        *(
            (LEFT_TO_RIGHT, {name: -1}, f"the configuration's {name}: expected a whole number from 0 up, got -1")
            for name in ("encoder_layers", "segments", "bos_id", "start_id")
        ),
        *(
            (LEFT_TO_RIGHT, {name: value}, f"the configuration's {name}: expected a number above 0, got {value!r}")
            for name in ("rope_base", "norm_epsilon", "embedding_scale")
            for value in (0, -1.0, float("inf"), float("nan"), True, "1", None)
        ),
        *(
            (LEFT_TO_RIGHT, {name: value}, f"the configuration's {name}: expected True or False, got {value!r}")
            for name in BOOLS
            for value in (1, None, "yes")
        ),
        (
            LEFT_TO_RIGHT,
            {"window": 0},
            "the configuration's window: expected a whole number from 1 up, got 0. None is no",
        ),
        (LEFT_TO_RIGHT, {"positions": "relative"}, "expected one of rotary, learned, sinusoidal, got 'relative'"),
        (LEFT_TO_RIGHT, {"norm": None}, "the configuration's norm: expected one of rms, layer, got None"),
        (LEFT_TO_RIGHT, {"activation": "tanh"}, "expected one of silu, gelu, gelu_tanh, relu, got 'tanh'"),
        (
            LEFT_TO_RIGHT,
            {"head": "pooled"},
            "the configuration's head: expected one of linear, masked, none, got 'pooled'",
        ),
        (LEFT_TO_RIGHT, {"kv_heads": 2}, "the configuration's kv_heads: expected a divisor of heads, 3, got 2"),
        (LEFT_TO_RIGHT, {"kv_heads": 6}, "the configuration's kv_heads: expected a divisor of heads, 3, got 6"),
        (LEFT_TO_RIGHT, {"head_size": 5}, "expected an even number, since the rotation turns pairs, got 5"),
        (LEFT_TO_RIGHT, {"eos_ids": 3}, "the configuration's eos_ids: expected token ids, got 3"),
        (LEFT_TO_RIGHT, {"eos_ids": "3"}, "the configuration's eos_ids: expected token ids, got '3'"),
        (
            LEFT_TO_RIGHT,
            {"eos_ids": (3, -1)},
            "an id among the configuration's eos_ids: expected a whole number from 0 up",
        ),
        (LEFT_TO_RIGHT, {"never_ids": 3}, "the configuration's never_ids: expected token ids, got 3"),
        (LEFT_TO_RIGHT, {"never_ids": (1, 50)}, "never_ids: expected token ids below vocabulary, 50, got (1, 50)"),
        (LEFT_TO_RIGHT, {"never_ids": range(50)}, "never_ids: expected some token that may be written, got 'all of"),
        (LEFT_TO_RIGHT, {"layers": 10**8}, "the configuration's layers: expected at most 10,000, got 100000000"),
        (PAIR, {"encoder_layers": 10_001}, "the configuration's encoder_layers: expected at most 10,000, got 10001"),
        (LEFT_TO_RIGHT, {"width": 2**31}, "the configuration's width: expected at most 1,073,741,824, got 2147483648"),
        (LEFT_TO_RIGHT, {"heads": 10**9, "kv_heads": 7}, "kv_heads: expected a divisor of heads, 1000000000, got 7"),
        (LEFT_TO_RIGHT, {"head_size": 2**30}, "head_size: expected at most 1,073,741,824 in all 3 heads, got 1073"),
        (LEFT_TO_RIGHT, {"head": "none"}, "the configuration's tied: expected False where there is no head, got True"),
        (
            LEFT_TO_RIGHT,
            {"head": "none", "tied": False, "head_bias": True},
            "the configuration's head_bias: expected False where there is no head, got True",
        ),
        (PAIR, {"causal": False}, "the configuration's causal: expected True for a decoder that reads an encoder"),
        (PAIR, {"start_id": None}, "expected a token id below 50, with which the decoder begins, got None"),
        (PAIR, {"start_id": 50}, "expected a token id below 50, with which the decoder begins, got 50"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_what_makes_no_sense_is_refused(config: Config, change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        replace(config, **change)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("preset", [Config.decoder, Config.encoder, Config.encoder_decoder])
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"width": 13}, "width: expected a multiple of the 3 heads, as head_size is not given, got 13"),
        ({"width": "12"}, "the configuration's width: expected a whole number from 1 up, got '12'"),
        ({"width": None}, "the configuration's width: expected a whole number from 1 up, got None"),
        ({"heads": 0}, "the configuration's heads: expected a whole number from 1 up, got 0"),
        ({"layers": 0}, "the configuration's layers: expected a whole number from 1 up, got 0"),
    ],
    ids=str,
)
def test_presets_refuse_sizes_that_make_no_sense(preset: Any, change: dict[str, Any], sentence: str) -> None:
    start = {"start_id": 1} if preset == Config.encoder_decoder else {}
    with pytest.raises(InputError) as caught:
        preset(**(SIZES | change), **start)
    assert sentence in str(caught.value)


def test_a_style_that_there_is_not() -> None:
    with pytest.raises(InputError, match="the configuration's style: expected llama or gpt2, got 'bert'"):
        Config.decoder(**SIZES, style="bert")  # type: ignore[arg-type]  # what is tried here
