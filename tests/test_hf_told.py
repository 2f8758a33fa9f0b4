"""What somebody is told who gives a model of transformers something else than it takes, and what is taken as it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers as hf
from tokenizers import decoders, models, pre_tokenizers, processors
from torch import nn
from transformers import PreTrainedTokenizerFast

import wherefrom
from command_line import typed
from hf_small import IDS, MODELS, VIT, made
from small import write_small_model
from wherefrom.capture.huggingface.model import TransformersModel
from wherefrom.capture.huggingface.texts import chat
from wherefrom.errors import InputError, ModelError
from wherefrom.evidence.huggingface import TransformersDestination
from wherefrom.mask import Mask
from wherefrom.recording import Recording
from wherefrom.tokens import BYTE_TO_LETTER

MARKS = ["<pad>", "<s>", "</s>", "<unk>"]


def letters(**named: Any) -> PreTrainedTokenizerFast:
    """A tokenizer of ids below 101: each printable character is a token."""
    vocabulary = {mark: number for number, mark in enumerate(MARKS)}
    vocabulary |= {BYTE_TO_LETTER[byte]: byte - 28 for byte in range(32, 127)}
    inner = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    given = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", **named}
    return PreTrainedTokenizerFast(tokenizer_object=inner, **given)


def folder_of(model: nn.Module, to: Path, tokenizer: Any = None) -> Path:
    """A model's folder, with a tokenizer's files where one is given."""
    save: Any = getattr(model, "save_pretrained")  # noqa: B009
    save(to)
    if tokenizer is not None:
        tokenizer.save_pretrained(to)
    return to


def sentence(text: str) -> str:
    return " ".join(text.split())


# -- padding


def padded(side: str) -> dict[str, torch.Tensor]:
    """Two texts of 9 and 6 tokens, the second filled up on a side."""
    short, pads = IDS[1, :6], torch.zeros(3, dtype=torch.long)
    filled = torch.cat((pads, short) if side == "left" else (short, pads))
    real = (torch.arange(9) >= 3 if side == "left" else torch.arange(9) < 6).long()
    return {
        "input_ids": torch.stack((IDS[0], filled)),
        "attention_mask": torch.stack((torch.ones(9, dtype=torch.long), real)),
    }


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "bert"])
def test_the_last_position_is_the_last_of_the_text(name: str, tmp_path: Path) -> None:
    model, _ = made(name)
    first, second = wherefrom.record_batch(model, padded("right"))
    alone = wherefrom.record(model, input_ids=IDS[1:, :6])
    assert "Which sources does position 8 " in wherefrom.sources(first).question
    found, expected = wherefrom.sources(second), wherefrom.sources(alone)
    assert "Which sources does position 5 " in found.question
    assert found.rows[0][0] == expected.rows[0][0]
    assert abs(found.rows[0][2] - expected.rows[0][2]) < 1e-5
    opened = wherefrom.open_recording(wherefrom.save_recording(second, tmp_path / "a.wherefrom"))
    assert wherefrom.sources(opened).question == found.question
    at = TransformersDestination(model, second)
    assert at.position == 5
    target = wherefrom.Target(7)
    nats = wherefrom.knock_out(at, target).nats
    assert np.abs(nats - wherefrom.knock_out(TransformersDestination(model, alone), target).nats).max() < 1e-3


def test_a_text_filled_up_on_the_left_is_cut_as_it_was_read() -> None:
    model, _ = made("llama")
    second = wherefrom.record_batch(model, padded("left"))[1]
    assert "position 8 " in wherefrom.sources(second).question
    alone, target = wherefrom.record(model, input_ids=IDS[1:, :6]), wherefrom.Target(7)
    at, lone = TransformersDestination(model, second), TransformersDestination(model, alone)
    assert (at.position, lone.position) == (8, 5)
    assert (at.logits() - lone.logits()).abs().max() < 1e-3
    assert np.abs(wherefrom.knock_out(at, target).nats - wherefrom.knock_out(lone, target).nats).max() < 1e-3


def test_a_padded_text_is_traced_at_its_end() -> None:
    model, _ = made("llama")
    only = {name: value[1:] for name, value in padded("right").items()}
    trace = wherefrom.trace(model, only, carried_sources=0)
    alone = wherefrom.trace(model, {"input_ids": IDS[1:, :6]}, carried_sources=0)
    assert (trace.position, len(trace.tokens), trace.actual_next) == (5, 6, None)
    assert np.abs(trace.nats - alone.nats).max() < 1e-3


def test_padding_in_a_map_of_its_own_is_padding() -> None:
    model, _ = made("llama")
    recording = wherefrom.record(model, input_ids=IDS[:1])
    assert recording.last_position() == 8
    explicit = np.tri(9, dtype=bool)
    explicit[:, 7:] = False
    calls = tuple(replace(call, mask=Mask(False, explicit=explicit)) for call in recording.calls)
    assert replace(recording, calls=calls).last_position() == 6
    explicit[:] = False
    calls = tuple(replace(call, mask=Mask(False, explicit=explicit)) for call in recording.calls)
    assert replace(recording, calls=calls).last_position() == 8  # nobody reads anything: then it tells nothing


TOGETHER = ["To be, or not", "To"]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("named", [{}, {"pad_token": "<pad>"}], ids=["no pad token", "a pad token"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_texts_are_recorded_together(name: str, named: dict[str, str], side: str) -> None:
    model, _ = made(name)
    tokenizer = letters(**named, padding_side=side)
    before = (tokenizer.pad_token, tokenizer.padding_side, len(tokenizer))
    found = wherefrom.record_batch(model, TOGETHER, tokenizer=tokenizer, predictions="all")
    assert (tokenizer.pad_token, tokenizer.padding_side, len(tokenizer)) == before
    assert [one.tokens.text for one in found] == TOGETHER
    for text, one in zip(TOGETHER, found, strict=True):
        alone = wherefrom.record(model, text, tokenizer=tokenizer, predictions="all")
        assert len(one.predictions) == len(alone)
        for ours, theirs in zip(one.predictions, alone.predictions, strict=True):
            assert ours.ids == theirs.ids
            assert np.abs(np.subtract(ours.log_probabilities, theirs.log_probabilities)).max() < 1e-4
    assert [token.label for token in found[1].tokens if "pad" in token.label]


def test_texts_of_a_pair_and_of_tokens_are_recorded_together() -> None:
    model, tokenizer = made("bart")[0], letters()
    found = wherefrom.record_batch(model, TOGETHER, tokenizer=tokenizer)
    assert [one.source.text for one in found if one.source is not None] == TOGETHER
    alone = [wherefrom.record(model, text, tokenizer=tokenizer) for text in TOGETHER]
    assert [one.predictions[0].ids for one in found] == [one.predictions[0].ids for one in alone]
    given = [one.tokens for one in wherefrom.record_batch(made("llama")[0], TOGETHER, tokenizer=tokenizer)]
    again = wherefrom.record_batch(made("llama")[0], (given[0], "To"), tokenizer=tokenizer)
    assert [one.tokens.text for one in again] == TOGETHER


def test_a_list_of_texts_is_a_batch() -> None:
    model, _ = made("llama")
    with pytest.raises(InputError, match=r"expected one text, got a list of 2. Use wherefrom.record_batch"):
        wherefrom.record(model, TOGETHER, tokenizer=letters())
    with pytest.raises(InputError, match="text 1: expected a text"):
        wherefrom.record_batch(model, ["a", 3], tokenizer=letters())
    with pytest.raises(InputError, match="text 1: expected some text, got nothing"):
        wherefrom.record_batch(model, ["a", ""], tokenizer=letters())
    with pytest.raises(InputError, match="expected a text or inputs, got an empty list"):
        wherefrom.record_batch(model, [], tokenizer=letters())


# -- what is refused, before anything runs

ONE = {"input_ids": IDS[:1]}
REFUSED: dict[str, tuple[str, Callable[[nn.Module], Any], str]] = {
    "unknown": ("llama", lambda m: wherefrom.record(m, ONE, foo=3), r"got foo\. .*LlamaForCausalLM takes input_ids"),
    "mistyped": ("bert", lambda m: wherefrom.record(m, ONE, token_types_ids=IDS[:1]), "meant token_type_ids"),
    "mistyped by itself": ("llama", lambda m: wherefrom.record(m, inputs_ids=IDS[:1]), "meant input"),
    "of no keywords": ("gemma2", lambda m: wherefrom.record(m.model, ONE, bar=1, foo=3), "got bar and foo"),
    "exact": ("mllama", lambda m: wherefrom.record(m, ONE, attention_masks=IDS[:1]), "meant .*attention_mask"),
    "into a file": ("llama", lambda m: wherefrom.record_batch(m, ONE, to="a"), "save_recording"),
    "written": ("t5", lambda m: wherefrom.record_batch(m, ONE, written="a"), "wherefrom.record alone"),
    "a plain module": ("plain", lambda m: wherefrom.record(m, src=torch.ones(1, 3, 8), foo=3), "takes src"),
    "headless": ("gemma2", lambda m: wherefrom.trace(m.model, ONE), "Gemma2Model, which has no language-model head"),
    "headless, how": ("llama", lambda m: wherefrom.trace(m.model, ONE), r"AutoModelForCausalLM.from_pretrained"),
    "headless encoder": ("bert", lambda m: wherefrom.trace(m.bert, ONE), r"AutoModelForMaskedLM.from_pretrained"),
    "headless pair": ("bart", lambda m: wherefrom.trace(m.model, ONE), r"AutoModelForSeq2SeqLM.from_pretrained"),
    "no attention": ("mamba", lambda m: wherefrom.record(m, ONE), "MambaForCausalLM, which has no attention"),
    "no pixels": (
        "clip",
        lambda m: wherefrom.record(m, ONE),
        r"what lets CLIPModel run, .*None.* takes input_ids, pix",
    ),
    "no ids": ("clip", lambda m: wherefrom.record(m.text_model, attention_mask=IDS[:1]), "have to specify input_ids"),
    "an option": (
        "llama",
        lambda m: wherefrom.record_generation(m, ONE, max_tokens=1, fooo=3),
        "what lets LlamaForCausalLM run, .*fooo",
    ),
}


def asked_model(name: str) -> nn.Module:
    if name == "mamba":
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 101, "state_size": 4}
        return hf.MambaForCausalLM(hf.MambaConfig(**sizes)).eval()
    if name == "plain":
        return nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
    return made(name)[0]


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_taken_is_said_in_a_sentence(what: str) -> None:
    name, ask, said = REFUSED[what]
    with pytest.raises(InputError, match=said) as caught:
        ask(asked_model(name))
    assert caught.value.way_out
    assert "attention cannot be recorded" not in str(caught.value)


def test_what_is_mistyped_is_refused_before_anything_runs() -> None:
    model, _ = made("llama")
    ran: list[Any] = []
    model.register_forward_pre_hook(lambda *_: ran.append(1))
    with pytest.raises(InputError, match="foo"):
        wherefrom.record(model, ONE, foo=3)
    assert not ran


def test_the_models_own_words_are_kept() -> None:
    model, _ = made("clip")
    with pytest.raises(InputError) as caught:
        wherefrom.record(model, ONE)
    assert isinstance(caught.value.__cause__, (TypeError, ValueError, AttributeError))
    assert str(caught.value.__cause__) in str(caught.value)


def test_errors_that_are_not_the_models_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = made("llama")

    monkeypatch.setattr("wherefrom.capture.huggingface.collected.samples_of", len)
    with pytest.raises(TypeError, match="exactly one argument"):
        wherefrom.record(model, ONE)


@pytest.mark.parametrize("name", MODELS)
def test_what_transformers_reads_is_taken(name: str) -> None:
    model = TransformersModel(made(name)[0])
    for given in made(name)[1]:
        assert given in model.accepted
    assert model.unknown(model.accepted) == ()
    read = ["output_hidden_states", "return_dict", "output_attentions"]
    assert model.unknown([*read, "foo", "attention_masks"]) == ("foo", "attention_masks")


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated")
def test_keywords_that_are_handed_on_are_taken() -> None:
    model, _ = made("llama")
    plain = wherefrom.record(model, ONE)
    for more in ({"output_hidden_states": True}, {"position_ids": torch.arange(9)[None]}, {"past_key_values": None}):
        found = wherefrom.record(model, ONE, **more)
        assert np.abs(found.calls[1].lse - plain.calls[1].lse).max() < 1e-5


def test_a_model_of_ones_own_takes_what_it_likes() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = made("llama")[0]

        def forward(self, **kwargs: Any) -> Any:
            return self.inner(input_ids=next(iter(kwargs.values())))

    assert len(wherefrom.record(Own().eval(), anything=IDS[:1]).calls) == 2


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"role": 3, "content": "a"}, 'a "role" of type int'),
        ({"role": "user", "content": 7}, 'a "content" of type int'),
        ({"role": "user", "content": b"a"}, 'a "content" of type bytes'),
        ({"role": "user", "content": [3]}, 'a "content" with a value of type int in it'),
    ],
)
def test_messages_of_wrong_types_are_refused(message: Any, said: str) -> None:
    with pytest.raises(InputError) as caught:
        chat(letters(chat_template="{{ messages[0].content }}"), [message])
    assert "message 0: expected " in str(caught.value)
    assert said in str(caught.value)


# -- knock-outs


def test_a_recording_of_the_other_library_is_told(small_folder: Path) -> None:
    ours, theirs = wherefrom.load(small_folder), wherefrom.load(small_folder, library="transformers")
    text = "To be, or not"
    of_ours, of_theirs = wherefrom.record(ours, text), wherefrom.record(theirs, text)
    with pytest.raises(InputError, match=r"other library.*load\(\.\.\., library=\"transformers\"\)"):
        wherefrom.Destination(ours, of_theirs)
    with pytest.raises(InputError, match=r"other library.*load\(\.\.\., library=\"wherefrom\"\)"):
        TransformersDestination(theirs, of_ours)
    changed = replace(of_theirs, model=replace(of_theirs.model, fingerprint="0" * 64))
    with pytest.raises(InputError, match="other weights or settings"):
        TransformersDestination(theirs, changed)


def last_of(recording: Recording, logits: torch.Tensor) -> float:
    """How far logits are from the recorded prediction, in nats."""
    (last,) = recording.predictions
    return float(np.abs(torch.log_softmax(logits, -1)[list(last.ids)].numpy() - last.log_probabilities).max())


def test_an_uncut_run_takes_the_path_of_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama import modeling_llama

    model, _ = made("llama", "eager")
    stock: Any = modeling_llama.eager_attention_forward
    ran: list[str] = []

    def eager(*given: Any, **named: Any) -> Any:
        ran.append("eager")
        return stock(*given, **named)

    monkeypatch.setattr(modeling_llama, "eager_attention_forward", eager)
    recording = wherefrom.record(model, ONE)
    assert last_of(recording, TransformersDestination(model, recording).logits()) < 1e-6
    assert not ran

    def own(module: nn.Module, q: Any, k: Any, v: Any, mask: Any, **named: Any) -> Any:
        ran.append("own")
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        scores = q @ k.transpose(-1, -2) * named["scaling"]
        ahead = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1 + k.shape[2] - q.shape[2])
        scores = scores.masked_fill(ahead, -torch.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2), scores.logsumexp(-1)

    monkeypatch.setitem(hf.AttentionInterface._global_mapping, "own", own)
    model.set_attn_implementation("own")
    recording = wherefrom.record(model, ONE)
    at = TransformersDestination(model, recording)
    ran.clear()
    at._logits = None
    assert last_of(recording, at.logits()) < 1e-6
    assert ran == ["own", "own"]


def test_a_trace_says_which_way_its_knock_outs_took(small: wherefrom.LanguageModel) -> None:
    from wherefrom.views.terminal import trace_lines

    def lines(trace: wherefrom.Trace) -> str:
        return sentence("\n".join(line.plain for line in trace_lines(trace)))

    llama = wherefrom.trace(made("llama")[0], ONE, carried_sources=0)
    assert "is cut in all 8 heads (way: recorded keys)" in lines(llama)
    pair = wherefrom.trace(made("t5")[0], {**ONE, "decoder_input_ids": IDS[:1, :3]}, carried_sources=0)
    assert "(way: full reruns)" in lines(pair)
    assert "way:" not in lines(wherefrom.trace(small, "To be", carried_sources=0))


def test_heads_that_run_several_times_are_counted_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    from wherefrom.views.terminal import trace_lines

    monkeypatch.setattr("wherefrom.evidence.carried_sources.CARRIED_FROM", 0.0)
    model, _ = made("albert")
    trace = wherefrom.trace(model, ONE, position=4, carried_sources=1)
    text = sentence("\n".join(line.plain for line in trace_lines(trace)))
    assert "1 layer of 4 heads" in text
    assert "weight: mean over 4 heads (1 layer x 4), run 3 times each" in text
    assert "is cut in all 4 heads, each time they run" in text
    (carried,) = trace.carried
    assert len(carried.carriers) + carried.others == 4
    first = carried.carriers[0]
    weights = [
        wherefrom.weights(trace.recording, layer=0, head=first.head, repeat=turn).values[4, carried.source]
        for turn in range(3)
    ]
    assert abs(first.weight - np.mean(weights)) < 1e-6
    alone = wherefrom.trace(model, ONE, position=4, layer=0, head=1, carried_sources=0)
    text = sentence("\n".join(line.plain for line in trace_lines(alone)))
    assert "weight: layer 0, head 1, run 3 times knock-out" in text
    assert "is cut in this head, each time it runs" in text


# -- files and the command line


def test_a_folder_without_a_tokenizer_is_told_what_it_lacks(tmp_path: Path) -> None:
    folder = folder_of(made("gemma2")[0], tmp_path / "bare")
    ended = typed(tmp_path, "trace", "To be", "--model", folder)
    assert ended.code == 2
    assert "its tokenizer: expected" in ended.err
    assert "tokenizer=" not in ended.err
    assert "tokenizer.json" in ended.err.split("got")[1].split(". ", 1)[1]
    seen = hf.ViTForImageClassification(hf.ViTConfig(**VIT))
    for command in (("trace", "To be"), ("record", "To be", "--out", "a.wherefrom")):
        ended = typed(tmp_path, *command, "--model", folder_of(seen, tmp_path / "seen"))
        assert ended.code == 2
        assert "expected one that reads text" in ended.err
        assert "tokenizer=" not in ended.err


def test_commands_that_compute_our_own_models_name_those_that_take_others(tmp_path: Path) -> None:
    folder = folder_of(made("gemma2")[0], tmp_path / "g", letters())
    for command in ("generate", "cost"):
        ended = typed(tmp_path, command, *(["To be"] if command == "generate" else []), "--model", folder)
        assert ended.code == 2
        assert f"wherefrom {command} computes models of our own transformer only" in ended.err
        assert "wherefrom trace and wherefrom record take any" in ended.err
    ended = typed(tmp_path, "trace", "To be", "--model", folder, "--library", "wherefrom")
    assert ended.code == 2
    assert "--library transformers" in ended.err
    with pytest.raises(ModelError, match='library="transformers"'):
        wherefrom.load(folder, library="wherefrom")


def test_a_type_that_nobody_knows_names_both_libraries(tmp_path: Path) -> None:
    folder = write_small_model(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "nomodel"}))
    with pytest.raises(ModelError, match=r"got 'nomodel'.*transformers .* knows it neither"):
        wherefrom.load(folder)


def lines_of(recording: Recording, folder: Path) -> dict[str, str]:
    """What `wherefrom info` says of a recording, by the names of its facts."""
    place = wherefrom.save_recording(recording, folder / "said.wherefrom", overwrite=True)
    ended = typed(folder, "info", place)
    assert ended.code == 0
    found: dict[str, str] = {}
    name = ""
    for line in ended.out.splitlines()[1:]:
        name = line[:13].strip() or name
        found[name] = f"{found.get(name, '')} {line[13:].strip()}".strip()
    return found


def test_what_is_not_known_is_left_out_of_what_is_said(tmp_path: Path) -> None:
    model, _ = made("llama")
    recording = wherefrom.record(model, ONE)
    said = lines_of(recording, tmp_path)
    assert "text" not in said
    assert "context 64" in said["model"]
    unknown = replace(recording, model=replace(recording.model, context=0))
    assert "context" not in lines_of(unknown, tmp_path)["model"]
    one = replace(recording, written_from=1)
    assert lines_of(one, tmp_path)["given"].startswith("position 0; 1 to 8 were written by the model")
    one = replace(recording, written_from=8)
    assert lines_of(one, tmp_path)["given"].startswith("positions 0 to 7; 8 was written by the model")


def test_nothing_is_left_out_where_all_is_listed() -> None:
    model, _ = made("llama")
    recording = wherefrom.record(model, ONE)
    assert wherefrom.sources(recording).left_out == "Nothing is left out."
    assert wherefrom.sources(recording, top=3).left_out.startswith("Not listed: 6 more sources")


def test_a_text_beyond_the_training_is_said(tmp_path: Path) -> None:
    model, _ = made("gemma2")
    folder = folder_of(model, tmp_path / "g", letters())
    said = "g was trained on up to 64 tokens and reads 71: beyond its training its predictions get worse."
    for command in (("trace", "--carried", "0"), ("record", "--out", "a.wherefrom")):
        ended = typed(tmp_path, command[0], "a" * 70, *command[1:], "--model", folder)
        assert (ended.code, said in sentence(ended.err)) == (0, True)
    ended = typed(tmp_path, "record", "a" * 60, "--out", "b.wherefrom", "--generate", "9", "--model", folder)
    assert "may read 70" in sentence(ended.err)
    ended = typed(tmp_path, "record", "a" * 60, "--out", "c.wherefrom", "--model", folder)
    assert (ended.code, ended.err) == (0, "")
    ended = typed(tmp_path, "info", "a.wherefrom")
    assert "context 64 (the text is longer)" in sentence(ended.out)
