"""Watch induction heads form: a model of two layers, trained on text in which every chunk comes twice.

    python examples/induction.py [folder]

A minute or two on two cores. Nothing in the text can be predicted but the second coming of a chunk, and only by looking
for what followed the same letter before. For hundreds of steps nothing seems to happen; then, within a few looks, a
head of layer 0 learns to read the token before, a head of layer 1 to look for what followed the same token, and the
loss of the repeated half falls (Olsson et al. 2022, "In-context Learning and Induction Heads").
"""

from __future__ import annotations

import random
import string
import sys
import tempfile
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from wherefrom import Config, Corpus, Settings, Watch, train
from wherefrom.model.transformer import Transformer
from wherefrom.tokens import Tokenizer
from wherefrom.training.log import LogRow
from wherefrom.training.watch import repeated_probe
from wherefrom.training.watched import Watched, read_watched
from wherefrom.views.forming import forming_lines

LETTERS = string.ascii_letters + string.digits
STEPS = 1200


def chunks(count: int, seed: int = 0, *, copies: int = 2) -> str:
    """Return a text of random chunks, each of which comes twice, or so many times."""
    draw = random.Random(seed)
    pieces = ("".join(draw.choices(LETTERS, k=draw.randint(16, 28))) for _ in range(count))
    return "".join(copies * piece for piece in pieces)


def letters() -> Tokenizer:
    """Return a vocabulary of these letters alone: the fewer there are to tell apart, the sooner the heads form."""
    inner = tokenizers.Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(LETTERS)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return Tokenizer(inner)


def watch(
    folder: Path,
    *,
    steps: int = STEPS,
    seed: int = 0,
    copies: int = 2,
    learning_rate: float = 3e-3,
    **shape: int,
) -> Watched:
    """Train the model in a folder and return what its heads did on the way.

    With four copies of each chunk and hardly any feed-forward the heads form in a third of the time.
    """
    tokenizer = letters()
    corpus = Corpus.of(chunks(24_000 // copies, copies=copies), tokenizer)
    sizes: dict[str, Any] = {"layers": 2, "width": 64, "heads": 4, "context": 64} | shape
    config = Config.decoder(
        **sizes,
        vocabulary=tokenizer.vocabulary_size,
        rope_base=100.0,  # short wavelengths: "one before" is easy to tell from "two before"
        tied=False,
    )
    settings = Settings(
        steps=steps,
        learning_rate=learning_rate,
        final_share=1.0,
        weight_decay=0.0,
        seed=seed,
        validate_every=steps,
        validate_windows=64,
        checkpoint_every=steps,
    )
    look = Watch(folder, repeated_probe(corpus, 48), every=50)

    def on_step(row: LogRow, transformer: Transformer) -> None:
        look(row, transformer)
        if row.step % 200 == 0:
            print(f"step {row.step:>5}  train loss {row.train_loss:.3f}")

    train(config, corpus, tokenizer, settings, folder, on_step=on_step)
    return read_watched(folder)


def main() -> None:
    """Train, and draw what happened."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(temporary) / "run"
        watched = watch(folder)
        for figure in ("previous", "induction"):
            print("\n".join(forming_lines(watched, figure)), end="\n\n")


if __name__ == "__main__":
    main()
