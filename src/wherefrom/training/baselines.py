"""What a trained model must beat (floor 5): the cross-entropy of counting tokens, and of counting pairs of them.

Takes a corpus from beside it. Gives `Baselines`, in nats per token, over the very tokens that the validation loss is
the mean of. A model whose loss is not below the bigram's has learnt nothing that reading one token back does not tell.
Memory is linear in the text: of the N x N pairs only those that occur are held. No torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wherefrom.checks import check_kind, whole
from wherefrom.training.text import Corpus, Ids

Probabilities = NDArray[np.float64]


@dataclass(frozen=True)
class Baselines:
    """Cross-entropy of the validation tokens, in nats per token.

    Attributes:
        uniform: of knowing nothing, log N.
        unigram: of knowing how often each token occurs in the training text.
        bigram: of knowing which token came before, too.
        tokens: how many predicted tokens it is the mean of.
    """

    uniform: float
    unigram: float
    bigram: float
    tokens: int


def baselines(corpus: Corpus, context: int, *, windows: int | None = None) -> Baselines:
    """Return what counting gives, on the tokens that a model with this context is tested on.

    Args:
        corpus: counts are of its training part, scores of its validation part.
        context: the model's, in tokens.
        windows: the settings' ``validate_windows``.

    Raises:
        InputError: no corpus, no whole number from 1 up, or the text is shorter than a window of the context.
    """
    corpus = check_kind("the text", corpus, Corpus, way_out="Make a corpus of it: Corpus.of(text, tokenizer).")
    if windows is not None:
        windows = whole("the windows", windows, least=1, way_out="None is all of them.")
    corpus.require(context, corpus.vocabulary)
    scored = corpus.windows(context, windows)
    previous, following = scored[:, :-1].ravel(), scored[:, 1:].ravel()
    unigram = unigram_probabilities(corpus.train, corpus.vocabulary)
    bigram = Bigram.counted(corpus.train, corpus.vocabulary)
    return Baselines(
        uniform=math.log(corpus.vocabulary),
        unigram=float(-np.log(unigram[following]).mean()),
        bigram=float(-np.log(bigram.probabilities(previous, following)).mean()),
        tokens=len(following),
    )


def unigram_probabilities(train: Ids, vocabulary: int) -> Probabilities:
    """Return p(w) [N] = (c(w) + 1) / (n + N): add-one, so that no token is impossible (Laplace)."""
    return (np.bincount(train, minlength=vocabulary) + 1.0) / (len(train) + vocabulary)


@dataclass(frozen=True, eq=False)
class Bigram:
    """p(w | v) = (c(v w) + t(v) p(w)) / (c(v) + t(v)), interpolated with the unigram's p(w).

    c(v w) counts the pair, c(v) the pairs that v begins, t(v) the different tokens that follow v: the more different
    ones did, the likelier is yet another (Witten and Bell 1991, method C; Chen and Goodman 1999, section 2.4). Where
    v begins no pair, p(w | v) is p(w).

    Attributes:
        unigram: p [N].
        pairs: v N + w of every pair that occurs, ascending.
        counts: c(v w), of each.
        begun: c(v) [N].
        kinds: t(v) [N].
    """

    unigram: Probabilities
    pairs: NDArray[np.uint64]
    counts: NDArray[np.int64]
    begun: NDArray[np.int64]
    kinds: NDArray[np.int64]

    @classmethod
    def counted(cls, train: Ids, vocabulary: int) -> Bigram:
        """Return the bigram of a training text."""
        pairs, counts = np.unique(_codes(train[:-1], train[1:], vocabulary), return_counts=True)
        first = (pairs // np.uint64(vocabulary)).astype(np.int64)
        return cls(
            unigram=unigram_probabilities(train, vocabulary),
            pairs=pairs,
            counts=counts,
            begun=np.bincount(train[:-1], minlength=vocabulary),
            kinds=np.bincount(first, minlength=vocabulary),
        )

    def probabilities(self, previous: Ids, following: Ids) -> Probabilities:
        """Return p(following | previous), element by element."""
        codes = _codes(previous, following, len(self.unigram))
        places = np.minimum(np.searchsorted(self.pairs, codes), len(self.pairs) - 1)
        seen = np.where(self.pairs[places] == codes, self.counts[places], 0)
        begun, kinds = self.begun[previous], self.kinds[previous]
        alone = begun == 0
        shared = (seen + kinds * self.unigram[following]) / (begun + kinds + alone)
        return np.where(alone, self.unigram[following], shared)


def _codes(previous: Ids, following: Ids, vocabulary: int) -> NDArray[np.uint64]:
    return previous.astype(np.uint64) * np.uint64(vocabulary) + following.astype(np.uint64)
