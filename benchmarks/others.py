"""Recording a model of transformers as it is: what that costs beside its own forward pass with SDPA."""

from __future__ import annotations

from collections.abc import Iterator

import torch

import wherefrom
from benchmarks.forward import theirs
from benchmarks.measure import Result, at_most, paired, require
from benchmarks.texts import text_of
from wherefrom.questions import row_of_weights


@torch.inference_mode()
def run(rounds: int = 7) -> Iterator[Result]:
    """Yield the lines of the table."""
    own = wherefrom.load()
    model = theirs("sdpa")
    for length, pairs in ((2048, 3 * rounds), (8192, 3)):
        yield _at_length(own, model, length, pairs)


def _at_length(own: wherefrom.LanguageModel, model: torch.nn.Module, length: int, rounds: int) -> Result:
    tokens = text_of(own, length)
    ids = torch.tensor([tokens.ids])

    def plain() -> torch.Tensor:
        return model(ids, logits_to_keep=1, use_cache=False).logits

    def recorded() -> wherefrom.Recording:
        return wherefrom.record(model, input_ids=ids)

    recording, logits = recorded(), plain()
    kept = recording.predictions[0]
    expected = torch.log_softmax(logits[0, -1], dim=-1)[kept.ids[0]]
    require(abs(float(expected) - kept.log_probabilities[0]) < 1e-4, "the recorded prediction is another one")
    for call in recording.calls:
        row = row_of_weights(call, length - 1)
        require(float(abs(row.sum(axis=1) - 1).max()) < 1e-4, f"a row of layer {call.layer} does not sum to one")
    return at_most(
        f"recording a model of transformers / its SDPA forward alone, {length:,} tokens",
        paired(recorded, plain, rounds=rounds),
        1.03,
        "same prediction, every call passed its self-check, rows sum to one",
    )
