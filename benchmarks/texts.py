"""The texts that benchmarks read: real English, of any length in tokens, that every Python installation carries."""

from __future__ import annotations

import pydoc_data.topics

from wherefrom import LanguageModel
from wherefrom.tokens import Tokens

LONG = "\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))

TWENTY = (
    "When Mary and John went to the store, John gave a drink to",
    "The capital of France is Paris. The capital of Italy is",
    "def add(a, b):\n    return a +",
    "The sun rises in the east and sets in the",
    "1, 2, 3, 4, 5, 6,",
    "My name is Anna. I live in Berlin. My name is",
    "Roses are red, violets are",
    "for (int i = 0; i < n; i++) { sum += a[",
    "Le chat est assis sur la",
    "北京是中国的首都。东京是日本的",
    "Q: What colour is the sky?\nA:",
    "The opposite of hot is",
    "Once upon a time there was a little girl who lived in a",
    "She poured the water into the glass until it was",
    "import numpy as",
    "Monday, Tuesday, Wednesday,",
    "The quick brown fox jumps over the lazy",
    "Emoji: 🙂 🙃 🙂 🙃 🙂",
    "The bridge was closed because it",
    "Tom has a red ball and Sue has a blue kite. Sue has a blue",
)


def text_of(model: LanguageModel, tokens: int) -> Tokens:
    """Return the beginning of the long text that has exactly so many tokens."""
    whole = model.tokenizer.encode(LONG[: 8 * tokens])
    return Tokens(LONG[: whole[tokens - 1].span[1]], whole.items[:tokens])
