"""What is asked for (floor 5): a token, or the difference of two tokens, as a number in nats at one position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from wherefrom.checks import as_index, whole
from wherefrom.errors import InputError
from wherefrom.model.layers import Linear
from wherefrom.model.transformer import Transformer

VOCABULARY_STRIP = 1024
"""Logits formed together, for all rows: they stay in the processor's cache, where a whole row's would not."""


@dataclass(frozen=True)
class Target:
    """A token's log-probability, or its lead over another token's, in nats.

    Attributes:
        id: the token.
        against: the other token of a difference, log p(id) - log p(against); None for the log-probability itself.

    Raises:
        InputError: anything but whole numbers from 0 up, or a token against itself.
    """

    id: int
    against: int | None = None

    def __post_init__(self) -> None:
        way_out = '`model.tokenizer.one_token(" Mary")` finds the id of a token.'
        for name in ("id", "against"):
            if name == "id" or self.against is not None:
                number = whole(f"a target's {name}", getattr(self, name), least=0, way_out=way_out)
                object.__setattr__(self, name, number)
        if self.id == self.against:
            raise InputError(
                "a target's against",
                expected="another token than its id",
                given=f"{self.id} for both",
                way_out="Leave it out to ask for the target alone.",
                token=self.id,
            )

    def require_in(self, vocabulary: int) -> None:
        """Refuse tokens that a model does not have.

        Raises:
            InputError: an id that is not below the size of the vocabulary.
        """
        for number in (self.id, self.against):
            if number is not None and number >= vocabulary:
                raise InputError(
                    "the target",
                    expected=f"a token id from 0 to {vocabulary - 1}",
                    given=str(number),
                    way_out="Use an id of this model's tokenizer.",
                    token=number,
                )

    def value(self, transformer: Transformer, x: Tensor) -> Tensor:
        """Return the target in nats, float64 [R], for residual streams x [R, M] after the last block.

        Raises:
            InputError: the model has no such token.
        """
        head = transformer.vocabulary_head
        self.require_in(head.out_features)
        x = transformer.final(x)  # R M
        if self.against is not None:  # the normaliser of softmax cancels: two rows of the head are enough
            logits = _logits(x, head, [self.id, self.against])  # R 2
            lead: Tensor = (logits[:, 0] - logits[:, 1]).double()
            return lead
        starts = range(0, head.out_features, VOCABULARY_STRIP)
        strips = (_logits(x, head, slice(start, start + VOCABULARY_STRIP)) for start in starts)
        normalizer = torch.stack([torch.logsumexp(strip, dim=-1) for strip in strips]).double()  # strips R
        return _logits(x, head, [self.id])[:, 0].double() - torch.logsumexp(normalizer, dim=0)

    def of_logits(self, logits: Tensor) -> Tensor:
        """Return the target in nats, float64 [...], of logits [..., N].

        Raises:
            InputError: there is no such token among the N.
        """
        self.require_in(logits.shape[-1])
        if self.against is not None:
            return (logits[..., self.id] - logits[..., self.against]).double()
        return logits[..., self.id].double() - torch.logsumexp(logits, dim=-1).double()


def _logits(x: Tensor, head: Linear, tokens: list[int] | slice) -> Tensor:
    """Return some tokens' logits, [R, tokens], of what the vocabulary matrix multiplies, [R, M]."""
    logits = x @ head.weight[tokens].T
    return logits if head.bias is None else logits + head.bias[tokens]


class Vocabulary(Protocol):
    """What is asked of a tokenizer here."""

    def label(self, number: int, /) -> str:
        """Return what a person sees of a token."""

    def one_token(self, text: str, /) -> int:
        """Return the id of the token that spells a text, or refuse it with its pieces."""


def find_target(
    tokenizer: Vocabulary, logits: Tensor, wanted: str | int | None, against: str | int | None = None
) -> Target:
    """Return the target that a user means at a position with next-token logits [N].

    A text names the token that it is exactly, or the token that it is with a blank before it (words within
    a sentence are such tokens); if both exist, the one that the model finds likelier. A number is a token's id.

    Args:
        tokenizer: the model's.
        logits: of the position.
        wanted: text or id; None is the model's own next token.
        against: text or id of a token to subtract; None subtracts nothing.

    Raises:
        InputError: a text that is no single token (its pieces are offered), an id outside the vocabulary, a
            token against itself.
    """
    chosen = int(logits.argmax()) if wanted is None else _token(tokenizer, logits, wanted, "the target")
    if against is None:
        return Target(chosen)
    other = _token(tokenizer, logits, against, "the token to compare with")
    if other == chosen:
        raise InputError(
            "the token to compare with",
            expected="another token than the target",
            given=f'"{tokenizer.label(other)}" for both',
            way_out="Leave it out to ask for the target alone.",
            token=other,
        )
    return Target(chosen, other)


def _token(tokenizer: Vocabulary, logits: Tensor, wanted: Any, what: str) -> int:
    if not isinstance(wanted, str):
        number = as_index(wanted)
        if number is None or not 0 <= number < logits.shape[-1]:
            raise InputError(
                what,
                expected=f"a token id from 0 to {logits.shape[-1] - 1}",
                given=repr(wanted),
                way_out="Give the token's text instead.",
                token=wanted,
            )
        return number
    spaced = None if not wanted or wanted[0].isspace() else _one_or_none(tokenizer, " " + wanted)
    if spaced is None:
        return tokenizer.one_token(wanted)
    exact = _one_or_none(tokenizer, wanted)
    return max((token for token in (exact, spaced) if token is not None), key=lambda token: float(logits[token]))


def _one_or_none(tokenizer: Vocabulary, text: str) -> int | None:
    try:
        return tokenizer.one_token(text)
    except InputError:
        return None
