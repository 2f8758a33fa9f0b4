"""Where an attention module of a transformers model stands: part, kind and layer, of many kinds of models."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor, nn

from hf_small import made
from wherefrom.capture.huggingface.interface import Watch, watched
from wherefrom.capture.huggingface.seen import Given
from wherefrom.capture.huggingface.sites import Place, as_written, layers_without, numbers_of, places
from wherefrom.errors import InputError
from wherefrom.recording import Gap

STACK = [("decoder", "self", 0), ("decoder", "self", 1)]
ENCODER = [("encoder", "self", 0), ("encoder", "self", 1)]
VISION = [("vision", "self", 0), ("vision", "self", 1)]
CROSSED = [("decoder", "self", 0), ("decoder", "cross", 0), ("decoder", "self", 1), ("decoder", "cross", 1)]
FOUND: dict[str, list[tuple[str, str, int]]] = {
    "albert": [("encoder", "self", 0)],
    "bamba": [("decoder", "self", 1), ("decoder", "self", 3)],
    "bart": ENCODER + CROSSED,
    "bert": ENCODER,
    "bert cross": CROSSED,
    "blip2": [
        *VISION,
        ("qformer", "self", 0),
        ("qformer", "cross", 0),
        ("qformer", "self", 1),
        *STACK,
    ],
    "clip": ENCODER + VISION,
    "diffllama": STACK,
    "falcon_h1": STACK,
    "gpt2": STACK,
    "jamba": [("decoder", "self", 2), ("decoder", "self", 5)],
    "lfm2": [("decoder", "self", 1), ("decoder", "self", 3)],
    "llama": STACK,
    "llava": VISION + STACK,
    "longt5": CROSSED,
    "mllama": [("decoder", "self", 0), ("decoder", "cross", 1), ("decoder", "self", 2), ("decoder", "cross", 3)],
    "qwen2_vl": VISION + STACK,
    "qwen3_next": [("decoder", "self", 3)],
    "swin": [*ENCODER, ("encoder", "self", 2)],
    "t5": ENCODER + CROSSED,
    "t5 encoder": ENCODER,
    "whisper": ENCODER + CROSSED,
    "zamba2": [("decoder", "self", 1), ("decoder", "self", 4)],
}
WITHOUT = {
    "bamba": [0, 2],
    "jamba": [0, 1, 3, 4],
    "lfm2": [0, 2],
    "qwen3_next": [0, 1, 2],
    "zamba2": [0, 2, 3, 5],
}


def seen(name: str) -> tuple[nn.Module, list[str], Watch]:
    """Run a model, and return the names of the attention modules that ran."""
    model, inputs = made(name)
    names: list[str] = []

    def attention(given: Given) -> Tensor:
        names.append(given.name)
        return given.attend().output

    with torch.no_grad(), watched(model, attention) as watch:
        model(**inputs)
    return model, list(dict.fromkeys(names)), watch


def as_tuples(found: Iterable[Place]) -> list[tuple[str, str, int]]:
    return [(place.part, place.kind, place.layer) for place in found]


@pytest.mark.parametrize("name", FOUND)
def test_a_models_attention_stands_where_it_is(name: str) -> None:
    model, names, watch = seen(name)
    found = places(model, names[::-1])
    assert as_tuples(found.values()) == FOUND[name]
    assert list(found) == [own for own, _ in model.named_modules() if own in names]
    without = layers_without(model, found, watch.gaps)
    assert [gap.layer for gap in without] == WITHOUT.get(name, [])
    for gap in without:
        assert gap == Gap(name=f"model.layers.{gap.layer}", what="no attention", layer=gap.layer, calls=0)


def tree(*paths: str, **attributes: object) -> nn.Module:
    """Return a module that has modules at these paths; each is of the class `nn.Module`."""
    root = nn.Module()
    for path in paths:
        module = root
        for piece in path.split("."):
            if piece not in dict(module.named_children()):
                module.add_module(piece, nn.Module())
            module = module.get_submodule(piece)
    for name, value in attributes.items():
        setattr(root, name, value)
    return root


def found_in(*paths: str, cross: tuple[str, ...] = (), **attributes: object) -> list[tuple[str, str, int]]:
    return as_tuples(places(tree(*paths, **attributes), paths, cross).values())


class Config:
    """Says what a config says."""

    def __init__(self, **said: object) -> None:
        vars(self).update(said)


def test_the_layer_is_the_number_that_varies() -> None:
    paths = [f"encoder.block.{block}.layer.0.SelfAttention" for block in (1, 3, 7)]
    assert [layer for _, _, layer in found_in(*paths)] == [1, 3, 7]
    assert found_in("model.layers.5.self_attn") == [("encoder", "self", 5)]
    assert found_in("model.attention") == [("encoder", "self", 0)]
    pyramid = [f"stages.{stage}.blocks.{block}.attn" for stage, block in ((0, 0), (1, 0), (1, 1))]
    assert [layer for _, _, layer in found_in(*pyramid)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("model.vision_tower.encoder.layers.0.self_attn", "vision"),
        ("visual.blocks.0.attn", "vision"),
        ("image_encoder.layers.0.attn", "vision"),
        ("patch_encoder.layers.0.attn", "vision"),
        ("audio_tower.layers.0.self_attn", "audio"),
        ("speech_encoder.encoder.layers.0.self_attn", "audio"),
        ("model.connector.perceiver_resampler.layers.0.self_attn", "perceiver_resampler"),
        ("depth_Decoder-2.model.layers.0.self_attn", "depth_decoder_2"),
        ("text_decoder.bert.encoder.layer.0.attention.self", "decoder"),
        ("text_encoder.encoder.layer.0.attention.self", "encoder"),
    ],
)
def test_a_tower_is_called_by_its_path(path: str, part: str) -> None:
    assert found_in(path, "model.layers.0.self_attn")[0] == (part, "self", 0)


def test_what_a_model_calls_its_base_tells_no_part() -> None:
    paths = ["own.layers.0.attn", "helper.layers.0.attn", "helper.layers.1.attn"]
    parts = [part for part, _, _ in found_in(*paths, base_model_prefix="own")]
    assert parts == ["encoder", "helper", "helper"]
    assert [part for part, _, _ in found_in(*paths)] == ["own", "encoder", "encoder"]


def test_encoder_and_decoder_are_told_apart_in_a_pair() -> None:
    pair = ["model.encoder.layers.0.self_attn", "model.decoder.layers.0.self_attn"]
    expected = [("encoder", "self", 0), ("decoder", "self", 0)]
    assert found_in(*pair) == expected  # they stand in the same place
    assert found_in(*pair[1:], config=Config(is_encoder_decoder=True)) == expected[1:]
    inner = ["qformer.encoder.layers.0.attn", "language_model.decoder.layers.0.attn"]
    for said in (True, False):  # what is called an encoder within another part is that part
        found = found_in(*inner, config=Config(is_encoder_decoder=said, is_decoder=True))
        assert found == [("qformer", "self", 0), ("decoder", "self", 0)]
    assert found_in(*inner) == [
        ("qformer", "self", 0),
        ("encoder", "self", 0),
    ]  # they stand apart, and nobody says pair
    apart = ["vision_model.encoder.layers.0.attn", "model.decoder.layers.0.attn"]
    assert found_in(*apart, config=Config(is_decoder=True)) == [("vision", "self", 0), ("decoder", "self", 0)]


def test_the_main_stack_is_a_decoder_where_it_is_causal() -> None:
    path = "model.layers.0.self_attn"
    assert found_in(path) == [("encoder", "self", 0)]
    assert found_in(path, config=Config(is_decoder=True)) == [("decoder", "self", 0)]
    assert found_in(path, can_generate=lambda: True) == [("decoder", "self", 0)]
    causal = tree(path)
    causal.get_submodule(path).is_causal = True
    assert as_tuples(places(causal, [path]).values()) == [("decoder", "self", 0)]


def test_a_stack_of_its_own_name_is_the_main_one_where_there_is_no_other() -> None:
    paths = [f"thinker.layers.{layer}.attn" for layer in (0, 1)] + ["helper.layers.0.attn"]
    assert found_in(*paths) == [("encoder", "self", 0), ("encoder", "self", 1), ("helper", "self", 0)]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("EncDecAttention", "cross"),
        ("encoder_attn", "cross"),
        ("crossattention", "cross"),
        ("cross_attn", "cross"),
        ("cross_modal_attention", "cross"),
        ("multihead_attn", "cross"),
        ("cross_attn_token_to_image", "cross"),
        ("final_attn_token_to_image", "cross"),
        ("self_attn", "self"),
        ("SelfAttention", "self"),
        ("attention", "self"),
        ("across.attention", "self"),
        ("encoder.attn", "self"),
    ],
)
def test_cross_attention_is_known_by_its_name(name: str, kind: str) -> None:
    paths = [f"layers.{layer}.{name}" for layer in (0, 1)]
    assert [found for _, found, _ in found_in(*paths)] == [kind, kind]


class LayerCrossAttention(nn.Module):
    """Is known by its class."""


def test_cross_attention_is_known_by_what_the_module_says() -> None:
    paths = ["layers.0.cross_attn", "layers.0.attn"]
    model = tree(*paths)
    model.get_submodule(paths[0]).is_cross_attention = False
    model.get_submodule(paths[1]).is_cross_attention = True
    assert [place.kind for place in places(model, paths).values()] == ["self", "cross"]
    model = tree("layers.0.norm")
    model.get_submodule("layers.0").add_module("attend", LayerCrossAttention())
    assert [place.kind for place in places(model, ["layers.0.attend"]).values()] == ["cross"]
    assert found_in("layers.0.attn", cross=("layers.0.attn",)) == [("encoder", "cross", 0)]


def test_no_two_stand_in_one_place() -> None:
    paths = ["vision.layers.0.attn", "vision.layers.1.attn", "vision.pooler.attn", "vision.head.attn"]
    assert found_in(*paths) == [
        ("vision", "self", 0),
        ("vision", "self", 1),
        ("vision.pooler", "self", 0),
        ("vision.head", "self", 0),
    ]
    paths = [f"layers.{layer}.{name}" for layer in (0, 1) for name in ("Temporal_Attn", "attn")]
    assert found_in(*paths) == [
        ("encoder", "self", 0),
        ("encoder.attn", "self", 0),
        ("encoder", "self", 1),
        ("encoder.attn", "self", 1),
    ]
    paths = ["a.layers.0.attn", "layers.0.attn", "a.attn.layers.0.attn"]  # nothing tells them apart but where they are
    found = [
        (part, layer) for part, _, layer in found_in("model.layers.0.attn", "layers.0.attn", "layers.0.model.attn")
    ]
    assert found == [("encoder", 0), ("encoder.2", 0), ("encoder.3", 0)]
    assert len(set(found_in(*paths))) == 3


def test_names_that_the_model_has_not_are_refused() -> None:
    with pytest.raises(InputError, match=r"expected paths from model.named_modules\(\), got layers.1.attn"):
        places(tree("layers.0.attn"), ["layers.0.attn", "layers.1.attn"])


def test_a_layer_whose_attention_ran_unseen_is_not_without() -> None:
    model = tree(*(f"layers.{layer}.{name}" for layer in range(12) for name in ("attn", "conv")))
    found = places(model, ["layers.3.attn", "layers.11.attn"])
    gaps = [Gap(name="layers.1.attn", what="softmax", layer=1, calls=1)]
    expected = [0, 2, 4, 5, 6, 7, 8, 9, 10]
    assert [gap.layer for gap in layers_without(model, found, gaps)] == expected
    assert [gap.layer for gap in layers_without(model, found)] == sorted([1, *expected])


def test_layers_are_counted_once_where_they_have_several_attentions() -> None:
    paths = ["layers.0.attn", "layers.1.cross_attn", "layers.2.attn"]
    model = tree(*paths, "layers.3.conv", "others.0.conv")
    assert [gap.name for gap in layers_without(model, places(model, paths))] == ["layers.3"]
    pyramid = ["stages.0.0.attn", "stages.1.0.attn", "stages.1.1.attn"]
    model = tree(*pyramid, "stages.1.2.conv", "stages.2.0.conv")
    assert layers_without(model, places(model, pyramid)) == ()  # stages and blocks: no one stack
    assert layers_without(tree("attn"), places(tree("attn"), ["attn"])) == ()
    assert [gap.name for gap in layers_without(tree("0.attn", "1.conv"), places(tree("0.attn"), ["0.attn"]))] == ["1"]


def test_numbers_of_names_alone() -> None:
    names = ["h.0.attn", "h.4.attn", "head", "stages.0.blocks.0.attn", "stages.1.blocks.2.attn", "other.7.layer.2.attn"]
    expected = {**dict.fromkeys(names), "h.0.attn": 0, "h.4.attn": 4, "other.7.layer.2.attn": 7}
    assert numbers_of(names) == expected


@pytest.mark.filterwarnings("ignore")  # torch.compile imports what is deprecated
def test_a_compiled_model_is_that_which_was_written() -> None:
    model = tree("layers.0.attn", "layers.1.conv")
    compiled = torch.compile(model)
    assert as_written(compiled) is model
    assert as_written(model) is model
    found = places(compiled, ["layers.0.attn"])
    assert as_tuples(found.values()) == [("encoder", "self", 0)]
    assert [gap.name for gap in layers_without(compiled, found)] == ["layers.1"]
