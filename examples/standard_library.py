"""Train a small decoder on Python's own standard library, and compare it with counting.

    python examples/standard_library.py [folder]

A few minutes on two cores. The text is on every machine that has Python: the modules of its standard library, some
megabytes, shuffled, the end held out. What is trained is a model like any other afterwards:

    wherefrom generate "def main(" --model folder
    wherefrom trace "for i in range(len(" --model folder
    wherefrom watch folder
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path
from sysconfig import get_path

from wherefrom import Config, Corpus, Settings, Watch, baselines, train
from wherefrom.model.transformer import Transformer
from wherefrom.training.baselines import Baselines
from wherefrom.training.files import read_texts
from wherefrom.training.log import LogRow
from wherefrom.training.loop import Trained
from wherefrom.training.text import train_tokenizer
from wherefrom.training.watch import repeated_probe

MEGABYTES = 4
VOCABULARY = 1024


def modules(megabytes: float, seed: int = 0) -> list[Path]:
    """Return source files of the standard library, in random order, up to a size."""
    files = sorted(path for path in Path(get_path("stdlib")).glob("*.py") if path.stat().st_size)
    random.Random(seed).shuffle(files)
    chosen, size = [], 0.0
    for file in files:
        if size < megabytes * 1e6:
            chosen.append(file)
            size += file.stat().st_size
    return chosen


def learn(
    folder: Path, *, megabytes: float = MEGABYTES, vocabulary: int = VOCABULARY, steps: int = 800, **shape: int
) -> tuple[Trained, Baselines]:
    """Return the trained model and what counting gives on the same held-out tokens."""
    texts = read_texts(modules(megabytes))
    tokenizer = train_tokenizer(texts, vocabulary)
    corpus = Corpus.of(texts, tokenizer)
    sizes = {"layers": 4, "width": 128, "heads": 4, "context": 128} | shape
    config = Config.decoder(**sizes, vocabulary=tokenizer.vocabulary_size)
    settings = Settings(steps=steps, learning_rate=2e-3, validate_every=200, validate_windows=256, checkpoint_every=400)
    watch = Watch(folder, repeated_probe(corpus, min(64, config.context)), every=50)

    def on_step(row: LogRow, transformer: Transformer) -> None:
        watch(row, transformer)
        if row.validation_loss is not None:
            print(f"step {row.step:>5}  train loss {row.train_loss:.3f}  validation loss {row.validation_loss:.3f}")

    trained = train(config, corpus, tokenizer, settings, folder, on_step=on_step)
    return trained, baselines(corpus, config.context, windows=settings.validate_windows)


def main() -> None:
    """Train, and print the model's loss beside the baselines'."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(temporary) / "run"
        trained, counted = learn(folder)
        print(f"\nvalidation loss, nats a token, of {counted.tokens:,} held-out tokens ({trained.seconds:.0f} s)")
        print(f"  this model  {trained.validation_loss:.3f}")
        print(f"  bigram      {counted.bigram:.3f}")
        print(f"  unigram     {counted.unigram:.3f}")


if __name__ == "__main__":
    main()
