"""What is asked about (floor 5): a number of a model's logits that can be differentiated, such as an answer's log-odds.

A goal knows the whole text, prompt and answer, and at which rows its tokens are predicted: row t - 1 wrote token t.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from wherefrom.checks import as_index, check_items, whole
from wherefrom.errors import InputError, RecordingError
from wherefrom.evidence.target import Target

Unit: TypeAlias = Literal["log-odds", "log-probability"]
WAY_OUT = 'Ask for its log-probability: unit="log-probability" (--unit log-probability).'


class Goal(ABC):
    """A number of the logits of some rows of a text.

    Attributes:
        ids: the text's tokens, those of the answer included.
        prompt: how many of them stand before the answer: these can be sources that are left out.
        rows: at which positions the logits are needed, in order.
        unit: what the number is in.
    """

    ids: tuple[int, ...]
    prompt: int
    rows: tuple[int, ...]
    unit: str

    @abstractmethod
    def value(self, logits: Tensor) -> Tensor:
        """Return the number, float64 [B], of the logits [B, R, N] of `rows`."""

    def without(self, kept: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the ids and the rows when only some positions of the prompt are kept; all of the answer is.

        Args:
            kept: positions below `prompt`, in order.
        """
        gone = self.prompt - len(kept)
        ids = tuple(self.ids[position] for position in kept) + self.ids[self.prompt :]
        return ids, tuple(row - gone for row in self.rows)


@dataclass(frozen=True)
class TokenGoal(Goal):
    """The log-probability of the token after a prompt, or its lead over another's, in nats."""

    ids: tuple[int, ...]
    target: Target

    @property
    def prompt(self) -> int:  # type: ignore[override]
        """All tokens but the last, which predicts and stays."""
        return len(self.ids) - 1

    @property
    def rows(self) -> tuple[int, ...]:  # type: ignore[override]
        """The last position."""
        return (len(self.ids) - 1,)

    @property
    def unit(self) -> str:  # type: ignore[override]
        """Nats."""
        return "log-probability" if self.target.against is None else "lead in log-probability"

    def value(self, logits: Tensor) -> Tensor:
        """Return the target in nats, float64 [B]."""
        return self.target.of_logits(logits[:, -1].double())


@dataclass(frozen=True)
class AnswerGoal(Goal):
    """A whole answer behind a prompt: its log-odds log p - log(1 - p), p the product of its tokens' probabilities.

    Attributes:
        ids: of the prompt and the answer.
        first: the position of the answer's first token.
        unit: "log-odds", or "log-probability", log p.
        chosen: places of the answer's tokens that count, from 0, ascending, each once; None: all. p is then their
            product alone.

    Raises:
        InputError: no answer, or no prompt before it; another unit; places that are not the answer's, or not ascending;
            ids that are no whole numbers.
    """

    ids: tuple[int, ...]
    first: int
    unit: Unit = "log-odds"
    chosen: Sequence[int] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", _checked_ids(self.ids))  # numpy's numbers become plain ones
        way_out = "It is the position of the answer's first token."
        object.__setattr__(self, "first", whole("where the answer begins", self.first, least=0, way_out=way_out))
        if not 0 < self.first < len(self.ids):
            missing = "answer" if self.first else "prompt"
            raise InputError(
                f"the {missing}",
                expected="at least one token",
                given="none",
                way_out="Write one; the model's own is taken where none is given." if self.first else "Write one.",
            )
        if not isinstance(self.unit, str) or self.unit not in get_args(Unit):
            raise InputError(
                "the unit",
                expected=" or ".join(map(repr, get_args(Unit))),
                given=repr(self.unit),
                way_out="Log-odds are log p - log(1 - p), the log-probability is log p, p the answer's probability.",
            )
        object.__setattr__(self, "chosen", _checked_places(self.chosen, len(self.ids) - self.first))

    @property
    def prompt(self) -> int:  # type: ignore[override]
        """The tokens before the answer."""
        return self.first

    @property
    def rows(self) -> tuple[int, ...]:  # type: ignore[override]
        """The rows that write the tokens that count."""
        places = range(len(self.ids) - self.first) if self.chosen is None else self.chosen
        return tuple(self.first - 1 + place for place in places)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The ids of the tokens that count."""
        return tuple(self.ids[row + 1] for row in self.rows)

    def log_probabilities(self, logits: Tensor) -> Tensor:
        """Return the log-probability of each token that counts, float64 [B, R], of the logits [B, R, N].

        Raises:
            InputError: the model has no such token.
            RecordingError: logits that are NaN or infinite.
        """
        if max(self.tokens) >= logits.shape[-1]:
            raise unknown_token(max(self.tokens), logits.shape[-1])
        own = torch.tensor(self.tokens, device=logits.device).expand(len(logits), -1).unsqueeze(-1)  # B R 1
        wide = logits.double()
        norm = torch.logsumexp(wide, dim=-1)  # B R; finite where some logits are -inf, as of tokens that are never said
        if not bool(torch.isfinite(norm.detach()).all()):
            raise RecordingError(
                "the logits of the answer's rows",
                expected="finite numbers",
                given="NaN or an infinity",
                way_out="The model's numbers overflow on this text; nothing was measured.",
            )
        return wide.gather(-1, own)[..., 0] - norm

    def value(self, logits: Tensor) -> Tensor:
        """Return the answer's log-odds or log-probability, float64 [B].

        Raises:
            InputError: log-odds that are infinite, of a probability that is 0 or 1 in double precision.
            RecordingError: logits that are NaN or infinite.
        """
        log_p = self.log_probabilities(logits).sum(dim=-1)  # B
        if self.unit == "log-probability":
            return log_p
        odds = log_p - log1mexp(log_p)
        if not bool(torch.isfinite(odds).all()):
            certain = bool((log_p.detach() > -1).any())
            raise InputError(
                "the answer's log-odds",
                expected="a probability between 0 and 1",
                given=f"a probability of {1 if certain else 0} in double precision, whose log-odds are infinite",
                way_out=WAY_OUT,
            )
        return odds


def unknown_token(token: int, vocabulary: int) -> InputError:
    """Return the refusal of a token id that a model does not have."""
    return InputError(
        "the token ids",
        expected=f"numbers from 0 to {vocabulary - 1}",
        given=f"{token}",
        way_out="Use ids of this model's tokenizer.",
        token=token,
    )


def _checked_ids(ids: Any) -> tuple[int, ...]:
    """Return token ids as plain numbers; refuse others."""
    how = {"expected": "whole numbers from 0 up, such as (12, 7)", "way_out": "Use ids of the model's tokenizer."}
    found = []
    for one in check_items("the token ids", ids, **how):
        number = as_index(one)
        if number is None or number < 0:
            raise InputError("the token ids", given=repr(one if number is None else number), **how)
        found.append(number)
    return tuple(found)


def _checked_places(chosen: Any, count: int) -> tuple[int, ...] | None:
    """Return which of an answer's tokens count, as plain numbers; refuse what is none of them or in another order."""
    if chosen is None:
        return None
    what = "the chosen tokens of the answer"
    how = {
        "expected": f"places from 0 to {count - 1}, at least one, ascending, each once",
        "way_out": "A single one is (0,); leave them out to ask about the whole answer.",
    }
    found: list[int] = []
    for one in check_items(what, chosen, **how):
        number = as_index(one)
        if number is None or not 0 <= number < count:
            raise InputError(what, given=repr(one if number is None else number), **how)
        if found and number <= found[-1]:
            given = f"{number} twice" if number in found else f"{number} behind {found[-1]}"
            raise InputError(what, given=given, **how)
        found.append(number)
    if not found:
        raise InputError(what, given="none", **how)
    return tuple(found)


def log1mexp(x: Tensor) -> Tensor:
    """Return log(1 - exp(x)) for x <= 0, to full precision at both ends, with its gradient.

    Two forms, parted at -log 2: Maechler 2012, "Accurately computing log(1 - exp(-|a|))".
    """
    near = x > -0.6931471805599453
    small = torch.where(near, x, torch.full_like(x, -0.5))  # the form that is not taken gets a number that is harmless
    large = torch.where(near, torch.full_like(x, -1.0), x)
    return torch.where(near, torch.log(-torch.expm1(small)), torch.log1p(-torch.exp(large)))
