"""Checkpoint layouts: written and read back to the bit, read by transformers, and refused where they say too much."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

import wherefrom
from families import (
    CONTEXT,
    GELUS,
    OURS,
    START,
    THEIRS,
    WRITTEN,
    random_weights,
    right_padding,
    some_ids,
    worst,
    write_theirs,
)
from wherefrom.model.checkpoint import read_folder, write_folder
from wherefrom.model.config import Config
from wherefrom.model.layouts import (
    config_fields,
    expected_shapes,
    parameters,
    read_config,
    stored_parameters,
)
from wherefrom.model.transformer import Transformer
from wherefrom.training.text import byte_tokenizer

WHERE = Path("some/config.json")
TOKENIZER = byte_tokenizer()


def same(model: Transformer, folder: Path) -> Transformer:
    """Read a folder and hold it to be the model, to the bit."""
    checkpoint = read_folder(folder)
    assert checkpoint.config == model.config
    assert set(checkpoint.tensors) == set(expected_shapes(model.config))
    own = parameters(checkpoint.config, checkpoint.tensors)
    written = dict(model.named_parameters())
    assert own.keys() == written.keys()
    assert all(torch.equal(own[name], written[name]) for name in own)
    return Transformer.from_parameters(checkpoint.config, own)


def outputs(model: Transformer, ids: Tensor) -> Tensor:
    """Logits, or hidden states where there is no head; an encoder-decoder writes the ids reversed."""
    if model.head is None:
        return model.encode(ids)
    return model(ids) if model.encoder is None else model(ids.flip(1), memory=model.encode(ids))


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_is_read_to_the_bit(name: str, tmp_path: Path) -> None:
    model, ids = random_weights(WRITTEN[name]), some_ids(2, 13)
    write_folder(tmp_path, model, TOKENIZER)
    read = same(model, tmp_path)
    # A matrix that lies transposed is multiplied by another kernel: its sums are added up in another order.
    assert worst(outputs(read, ids), outputs(model, ids)) <= (1e-4 if name.startswith("gpt2") else 0.0)


@pytest.mark.parametrize("name", [name for name in WRITTEN if not name.startswith("own")])
def test_transformers_reads_what_is_written(name: str, tmp_path: Path) -> None:
    model, ids = random_weights(WRITTEN[name]), some_ids(2, 13)
    write_folder(tmp_path, model, TOKENIZER)
    [kind] = json.loads((tmp_path / "config.json").read_text())["architectures"]
    theirs, told = getattr(transformers, kind).from_pretrained(
        tmp_path,
        dtype=torch.float32,
        output_loading_info=True,
        **({"add_pooling_layer": False} if kind == "BertModel" else {}),
    )
    absent = {"missing_keys": ["cls.predictions.bias"]} if name == "bert, untied" else {}  # which nothing reads
    assert {key: sorted(names) for key, names in told.items() if names} == absent
    with torch.inference_mode():
        if kind == "MarianMTModel":
            expected = theirs(input_ids=ids, decoder_input_ids=ids.flip(1)).logits
        else:
            found = theirs(ids)
            expected = found.last_hidden_state if kind == "BertModel" else found.logits
    assert expected.std() > 0.5
    assert worst(outputs(model, ids), expected) <= 1e-4


def test_marian_never_writes_what_transformers_never_writes(tmp_path: Path) -> None:
    [found] = [config for config in WRITTEN.values() if config.architecture == "marian"][:1]
    model = random_weights(replace(found, never_ids=(7, 9), eos_ids=(3,)))
    with torch.no_grad():
        model.head.bias[[7, 9]] += 30.0
    write_folder(tmp_path, model, TOKENIZER)
    read = wherefrom.load(tmp_path)
    assert read.config.never_ids == (7, 9)
    theirs = transformers.MarianMTModel.from_pretrained(tmp_path, dtype=torch.float32)
    theirs.generation_config.bad_words_ids = [[7], [9], [3]]  # an end mark among them may be written
    source = read.tokenizer.encode("To be")
    how = {"max_new_tokens": 8, "num_beams": 1, "do_sample": False}
    expected = theirs.generate(input_ids=torch.tensor([source.ids]), **how)[0, 1:].tolist()
    written = list(wherefrom.generate(read, "To be", max_tokens=8).ids)
    assert written == expected
    assert not {7, 9} & set(written)


@pytest.mark.parametrize("name", [name for name in THEIRS if name != "gpt2, without prefix"])
def test_a_folder_of_transformers_is_written_as_it_was(name: str, tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    ours.mkdir()
    write_theirs(name, theirs)
    model = wherefrom.load(theirs)
    write_folder(ours, model.transformer, model.tokenizer)
    assert read_folder(ours).config == model.config
    written, unused = load_file(theirs / "model.safetensors"), ("pooler.", "seq_relationship")
    prefix = "bert." if name in ("bert", "bert, no pooler") else ""
    kept = {prefix + key: tensor for key, tensor in written.items() if not any(part in key for part in unused)}
    if name == "bert, untied":
        del kept["cls.predictions.bias"]  # no part of what it computes
    again = load_file(ours / "model.safetensors")
    assert again.keys() == kept.keys()
    assert all(torch.equal(again[key], kept[key]) for key in kept)


SWITCHES = {
    "positions": st.sampled_from(["rotary", "learned", "sinusoidal"]),
    "window": st.none() | st.integers(1, 9),
    "norm": st.sampled_from(["rms", "layer"]),
    "activation": st.sampled_from(GELUS),
    "kv_heads": st.sampled_from([1, 2, 3, 6]),
    "embedding_scale": st.sampled_from([1.0, 35**0.5]),
    "segments": st.sampled_from([0, 2]),
    "rope_base": st.sampled_from([1e4, 5e5]),
    "bos_id": st.none() | st.integers(0, 256),
    "eos_ids": st.lists(st.integers(0, 256), max_size=2, unique=True).map(tuple),
    **{
        name: st.booleans()
        for name in (
            *("norm_first", "final_norm", "gated", "attention_bias", "output_bias", "mlp_bias"),
            *("query_key_norm", "embedding_norm"),
        )
    },
}


@st.composite
def configs(draw: Any) -> Config:
    kind = draw(st.sampled_from(["decoder", "encoder", "encoder-decoder"]))
    changes: dict[str, Any] = {"causal": kind != "encoder", **draw(st.fixed_dictionaries(SWITCHES))}
    head = draw(st.sampled_from(["linear", "masked", "none"] if kind == "encoder" else ["linear", "masked"]))
    on = head != "none"
    changes |= {"head": head, "tied": on and draw(st.booleans()), "head_bias": on and draw(st.booleans())}
    if kind == "encoder-decoder":
        changes |= {"encoder_layers": 2, "start_id": START, "shared_embedding": draw(st.booleans())}
    return replace(OURS["llama"], architecture="wherefrom", layers=1, **changes)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(config=configs())
def test_our_own_layout_holds_any_combination(config: Config, tmp_path: Path) -> None:
    model, ids = random_weights(config), some_ids(2, 11)
    write_folder(tmp_path, model, TOKENIZER)
    found = outputs(same(model, tmp_path), ids)
    assert torch.equal(found, outputs(model, ids))
    assert found.isfinite().all()


@pytest.mark.parametrize("name", WRITTEN)
def test_every_parameter_has_one_place(name: str) -> None:
    config = WRITTEN[name]
    stored = stored_parameters(config)
    with torch.device("meta"):
        model = Transformer(config)
    assert stored.keys() == dict(model.named_parameters()).keys()
    places = [(at.name, at.part) for at in stored.values()]
    assert len(set(places)) == len(places)
    numbers = sum(torch.Size(shape).numel() for shape in expected_shapes(config).values())
    assert numbers == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (Config.decoder(layers=12, width=768, heads=12, vocabulary=50_257, context=1024, style="gpt2"), 124_439_808),
        (Config.encoder(layers=12, width=768, heads=12, vocabulary=30_522, context=512, head="none"), 108_891_648),
    ],
    ids=["gpt2 small", "bert base without pooler"],
)
def test_published_counts(config: Config, count: int) -> None:
    with torch.device("meta"):
        assert sum(parameter.numel() for parameter in Transformer(config).parameters()) == count


def test_the_smallest_config_of_gpt2_is_gpt2_small() -> None:
    config = read_config({"model_type": "gpt2"}, WHERE)
    assert config == Config.decoder(layers=12, width=768, heads=12, vocabulary=50_257, context=1024, style="gpt2")


def test_our_own_fields_are_those_of_the_configuration() -> None:
    config = replace(OURS["original"], eos_ids=(1, 2), never_ids=(3,))
    fields = config_fields(config)
    assert fields.pop("model_type") == "wherefrom"
    assert fields.pop("format") == 1
    expected = asdict(config) | {"eos_ids": [1, 2], "never_ids": [3]}
    del expected["architecture"]
    assert fields == expected
    assert json.loads(json.dumps(fields)) == fields


def test_a_padded_batch_of_what_was_read(tmp_path: Path) -> None:
    """Views of a file, some of them transposed, are weights like any other."""
    model = random_weights(WRITTEN["gpt2, gelu_tanh"])
    write_folder(tmp_path, model, TOKENIZER)
    read, padding = wherefrom.load(tmp_path).transformer, right_padding([CONTEXT, 5], CONTEXT)
    ids = some_ids(2, CONTEXT)
    assert worst(read(ids, padding=padding)[padding], model(ids, padding=padding)[padding]) <= 1e-4
