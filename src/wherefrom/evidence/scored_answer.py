"""An answer as it was scored (floor 5): what the traces of answers have in common, and say alike in JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from wherefrom.passages import Passage
from wherefrom.tokens import Tokens

DECIMALS = 6


@dataclass(frozen=True)
class AnswerCost:
    """What was run, in forward passes over the whole text.

    Attributes:
        forward: passes, those with passages left out counted by their share of the tokens.
        backward: gradients with respect to the text, each about the work of a forward pass.
        budget: what was allowed, forward and backward together.
        seconds: wall clock.
        reading: forward passes that came before, outside the budget: to write the answer, or to tell which way of
            writing it (with a blank before it or without) the model finds likelier.
    """

    forward: float
    backward: float
    budget: float
    seconds: float
    reading: float = 0.0

    @property
    def passes(self) -> float:
        """Forward and backward passes together."""
        return self.forward + self.backward

    def to_json(self) -> dict[str, Any]:
        """Return it as what `json.dumps` takes."""
        return {name: rounded(value) for name, value in vars(self).items()}


@dataclass(frozen=True, eq=False)
class ScoredAnswer:
    """A prompt, an answer to it, and what a model thought of it.

    Attributes:
        model: its name.
        fingerprint: of its weights.
        tokens: of the prompt and the answer.
        first: the position of the answer's first token.
        written: whether the model wrote the answer itself.
        chosen: positions of the answer's tokens that count.
        token_log_probabilities: of each of these, in nats.
        unit: of the answer's value: "log-odds" or "log-probability".
        value: the answer's, nothing left out and nothing knocked out.
    """

    model: str
    fingerprint: str
    tokens: Tokens
    first: int
    written: bool
    chosen: tuple[int, ...]
    token_log_probabilities: tuple[float, ...]
    unit: str
    value: float

    @property
    def answer(self) -> str:
        """The answer's text."""
        spans = [token.span for token in self.tokens.items[self.first :]]
        return self.tokens.text[spans[0][0] : spans[-1][1]]

    def scored_json(self) -> dict[str, Any]:
        """Return the model, the text and the answer as what `json.dumps` takes."""
        return {
            "model": {"name": self.model, "fingerprint": self.fingerprint},
            "text": self.tokens.text,
            "answer": {
                "text": self.answer,
                "first": self.first,
                "written": self.written,
                "unit": self.unit,
                "value": rounded(self.value),
                "tokens": [
                    {"position": at, "id": self.tokens[at].id, "token": self.tokens[at].label, "nats": rounded(nats)}
                    for at, nats in zip(self.chosen, self.token_log_probabilities, strict=True)
                ],
            },
        }

    def place_json(self, number: int, place: Passage) -> dict[str, Any]:
        """Return a part of the text as what `json.dumps` takes."""
        return {
            "number": number,
            "tokens": [place.start, place.stop],
            "span": [self.tokens[place.start].span[0], self.tokens[place.stop - 1].span[1]],
            "label": place.label,
            "name": place.name,
        }


def rounded(value: float | None) -> float | None:
    """Return a number as JSON takes it, to six decimals; None where there is none or it is not finite."""
    return None if value is None or not math.isfinite(value) else round(float(value), DECIMALS)
