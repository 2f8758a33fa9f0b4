"""The original encoder-decoder learns to reverse and to sort strings of digits; cutting cross-attention shows the
alignment.

    python examples/reverse_and_sort.py [folder]

A minute or two on two cores. The encoder reads "reverse 31415" or "sort 31415", the decoder writes "51413" or "11345".
Then, for strings that it has never seen, each edge from the next digit's position to a digit of the source is cut in
all of the cross-attention, and what the next digit loses is measured. The largest loss says which digit it was taken
from.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

import tokenizers
import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from torch import Tensor
from torch.nn import functional as F

import wherefrom
from wherefrom import Config, draw, write_folder
from wherefrom.model.transformer import Transformer
from wherefrom.tokens import Tokenizer

TASKS = {"reverse ": lambda digits: digits[::-1], "sort ": lambda digits: "".join(sorted(digits))}
LONGEST = 8
STEPS, BATCH, PEAK = 1500, 64, 2e-3
DIGITS = "0123456789"
START, END = 12, 13  # behind the ten digits and the two tasks


def vocabulary() -> Tokenizer:
    """Return fourteen tokens: digits, names of the tasks, a start mark, and an end mark that closes every source."""
    inner = tokenizers.Tokenizer(models.BPE(vocab={digit: i for i, digit in enumerate(DIGITS)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_tokens([AddedToken(name, normalized=False) for name in TASKS])
    inner.add_special_tokens(["<start>", "<end>"])
    inner.post_processor = processors.TemplateProcessing(single="$A <end>", special_tokens=[("<end>", END)])
    return Tokenizer(inner)


def pairs(count: int, chance: random.Random, *, held_out: bool, longest: int = LONGEST) -> list[tuple[str, str]]:
    """Return (source, target) texts; a tenth of all strings is held out, and no string is ever on both sides."""
    found = []
    while len(found) < count:
        task = chance.choice(list(TASKS))
        digits = "".join(chance.choices(DIGITS, k=chance.randint(1, longest)))
        if (hash_of(task + digits) % 10 == 0) == held_out:
            found.append((task + digits, TASKS[task](digits)))
    return found


def hash_of(text: str) -> int:
    """Return a number that depends on the text alone, on every machine."""
    return sum(ord(letter) * 31**place for place, letter in enumerate(text)) % 1_000_003


def batch_of(tokenizer: Tokenizer, texts: list[tuple[str, str]]) -> tuple[Tensor, Tensor, Tensor]:
    """Return sources [B, S], what the decoder reads [B, T], and what it should write [B, T]; END pads them all."""
    sources = [list(tokenizer.encode(source).ids) for source, _ in texts]
    targets = [list(tokenizer.encode(target, marks=False).ids) for _, target in texts]
    return _padded(sources), _padded([[START, *ids] for ids in targets]), _padded([[*ids, END] for ids in targets])


def _padded(rows: list[list[int]]) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [END] * (longest - len(row)) for row in rows])


def real(ids: Tensor) -> Tensor:
    """Return which tokens are real, bool [B, S]: all up to the first END."""
    return (ids == END).cumsum(dim=1) - (ids == END).int() == 0


def learn(
    steps: int = STEPS, *, seed: int = 0, longest: int = LONGEST, say: bool = True
) -> tuple[Transformer, Tokenizer]:
    """Return a model that was trained for some steps, on strings of at most so many digits."""
    tokenizer, chance = vocabulary(), random.Random(seed)
    config = Config.encoder_decoder(
        layers=2, width=64, heads=4, vocabulary=END + 1, context=32, start_id=START, eos_ids=(END,)
    )
    model = draw(config, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 200, max(0.05, 1 - step / steps))
    )
    for step in range(1, steps + 1):
        source, read, write = batch_of(tokenizer, pairs(BATCH, chance, held_out=False, longest=longest))
        memory = model.encode(source, padding=real(source))
        logits = model(read, memory=memory, memory_padding=real(source))  # B T N
        losses = F.cross_entropy(logits.transpose(1, 2), write, reduction="none")  # B T
        loss = losses[real(write)].mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if say and step % 250 == 0:
            share = exact(model, tokenizer, 300, longest=longest)
            print(f"step {step:>5}  loss {loss.item():.4f}  {share:.1%} of 300 held-out strings exact")
    return model.eval().requires_grad_(False), tokenizer


@torch.no_grad()
def exact(model: Transformer, tokenizer: Tokenizer, count: int, seed: int = 1, *, longest: int = LONGEST) -> float:
    """Return the share of held-out strings of which the model writes every digit, and then its end mark."""
    source, _, write = batch_of(tokenizer, pairs(count, random.Random(seed), held_out=True, longest=longest))
    memory = model.encode(source, padding=real(source))
    written = torch.full((count, 1), START)
    for _ in range(write.shape[1]):
        logits = model(written, memory=memory, memory_padding=real(source))
        written = torch.cat((written, logits[:, -1:].argmax(dim=-1)), dim=1)
    right = (written[:, 1:] == write) | ~real(write)
    return float(right.all(dim=1).float().mean())


def aligned(model: wherefrom.LanguageModel, count: int, seed: int = 2, *, longest: int = LONGEST) -> tuple[int, int]:
    """Return how often the largest knock-out is the digit that was written next, of how many digits written."""
    hits = total = 0
    for source, target in pairs(count, random.Random(seed), held_out=True, longest=longest):
        first = 1  # behind the task's token
        digits = source.split(" ")[1]
        for place in range(len(target)):
            traced = wherefrom.trace(model, source, written=target[:place] or None, carried_sources=0)
            where = int(traced.order[0]) - first
            here = [len(digits) - 1 - place] if source.startswith("reverse") else _places(digits, target[place])
            hits += where in here
            total += 1
    return hits, total


def _places(digits: str, digit: str) -> list[int]:
    return [place for place, other in enumerate(digits) if other == digit]


def alignment(model: wherefrom.LanguageModel, source: str, target: str) -> str:
    """Return a table: what each written digit loses, in nats, when it may not read a token of the source."""
    rows = []
    for place in range(len(target)):
        traced = wherefrom.trace(model, source, written=target[:place] or None, target=target[place], carried_sources=0)
        if not rows:
            rows.append(f"{'nats':<8}" + "".join(f"{token.label.strip():>8}" for token in traced.source_tokens))
        rows.append(f"{target[place]:<8}" + "".join(f"{nats:>8.2f}" for nats in traced.nats))
    return "\n".join(rows)


def main() -> None:
    """Train, test, and show the alignment."""
    start = time.perf_counter()
    model, tokenizer = learn()
    print(f"{exact(model, tokenizer, 2000):.2%} of 2,000 held-out strings exact, {time.perf_counter() - start:.0f} s")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
        folder.mkdir(parents=True, exist_ok=True)
        write_folder(folder, model, tokenizer)
        loaded = wherefrom.load(folder)
        hits, total = aligned(loaded, 60)
        print(f"the largest knock-out is the digit written next for {hits} of {total} digits written\n")
        print(alignment(loaded, "reverse 31425", "52413"))


if __name__ == "__main__":
    main()
