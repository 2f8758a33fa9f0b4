"""A small model that answers the benchmark's prompts, trained here: python -m benchmarks.small_model OUT

It learns from the generators of `benchmarks.prompts` with other seeds than the benchmark's. A document is a prompt, its
answer, and more about the same sources: further questions, and sources said again. The loss is that of the answers
alone, since nothing else in such a text can be known. Families come one after the other, each first with few sources:
the next begins, and a source is added, when what there is has been learnt.

A decoder that begins with random weights reads some ten million such tokens before it looks anything up. This one
begins near it, see `begun`.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

import wherefrom
from benchmarks.prompts import FAMILIES, THINGS, Prompt, code, facts, indirect_object, key_value, prompts
from wherefrom import Config, LanguageModel
from wherefrom.model.checkpoint import WEIGHTS, write_folder
from wherefrom.model.initial import draw
from wherefrom.model.positions import rotate
from wherefrom.model.transformer import Attention, Transformer
from wherefrom.tokens import Tokenizer
from wherefrom.training.optimizer import make_optimizer
from wherefrom.training.settings import Settings
from wherefrom.training.text import train_tokenizer

LEARNT: dict[str, Callable[[int, int], Prompt]] = {
    "key value": key_value,
    "facts": facts,
    "code": code,
    "indirect object": indirect_object,
}
"""The families, the simplest first."""
FORMS = (
    (r"(?P<name>\w+) lives in (?P<answer>\w+)\.", "\nQuestion: Where does {name} live?\nAnswer: {name} lives in"),
    (
        r"(?P<name>\w+) works as a (?P<answer>\w+)\.",
        "\nQuestion: What is the job of {name}?\nAnswer: {name} works as a",
    ),
    (
        r"(?P<name>\w+) has a (?P<answer>\w+) car\.",
        "\nQuestion: Which colour is the car of {name}?\nAnswer: {name} has a",
    ),
    (r"(?P<name>\w+) and (?P<answer>\w+) went to the (?P<place>\w+)\.", " At the {place}, {name} gave a {thing} to"),
    (r"(?P<answer>\w+) and (?P<name>\w+) went to the (?P<place>\w+)\.", " At the {place}, {name} gave a {thing} to"),
    (r"(?P<name>\w+): (?P<answer>\w+)", "\n\nLookup\n{name}:"),
    (r"def (?P<name>\w+)\(\w+\): return \w+ \+ (?P<answer>\w+)", "\n\nassert {name}(0) =="),
    (r"(?P<name>[A-Z]+) = (?P<answer>\w+)", "\n\nassert {name} =="),
)
"""What a source looks like, and what asks for the answer in it: as the generators have them."""
BETWEEN = {"facts": " ", "key value": "\n", "code": "\n"}
"""What stands between two sources, in the families whose sources end with their answers: these are said again, too."""

SHAPE = {"layers": 3, "width": 96, "heads": 4}
CONTEXT = 1024
"""The longest document has about 300 tokens; positions are rotary, so `wherefrom.load` may be told more."""
ROPE_BASE = 1e6
"""Most pairs of coordinates hardly turn over a prompt, so that contents can be compared from one end to the other."""
SHARPNESS, FAST_PAIRS = 20.0, 3
"""The largest score of a head that begins by looking back, and the pairs of coordinates that make it."""
FIRST_SEED = 1_000_000
"""Of the prompts that are learnt from; those that are measured begin at 0."""
VOCABULARY_PROMPTS, VOCABULARY = 1000, 4096
"""Prompts of each family that the tokens are learnt from, and the most tokens: every word becomes one of them."""
LEAST_SOURCES, FIRST_SOURCES, SETTLED_SOURCES = 2, 4, 8
"""Of a document at any time; at most at the beginning; at most where the next family begins."""
ASKED_AGAIN, SAID_AGAIN = 8, 0.5
"""How often the sources of a document are asked for beyond its own question, and how many of these say them again."""
LEARNT_AT, MEMORY = 0.5, 0.95
"""A family has learnt what it has if the running mean of its loss is below so many nats; its weight on the past."""
SHARE_ONCE_LEARNT = 8
"""The part, one of so many, of a batch that a family has once it has learnt all."""
FINAL = "small"
"""What the last checkpoint is called, and so the model."""
NOT_LEARNT = -100
"""What `cross_entropy` leaves out."""


@dataclass(frozen=True)
class Document:
    """A text to learn from, in pieces that alternate: what is only read, and the answer to it."""

    pieces: tuple[str, ...]

    @classmethod
    def of(cls, family: str, seed: int, most: int) -> Document:
        """Return a prompt of at most so many sources, its answer, and more about any of them."""
        choose = Random(f"document {family} {seed}")
        prompt = LEARNT[family](seed, choose.randint(LEAST_SOURCES, most))
        pieces, rest = [prompt.text, prompt.answer], ""
        for source in choose.choices(prompt.sources, k=ASKED_AGAIN):
            if family in BETWEEN and choose.random() < SAID_AGAIN:
                before, answer, after = said(source)
                before = BETWEEN[family] + before
            else:
                (before, answer), after = question(source, choose), ""
            pieces += [rest + before, answer]
            rest = after
        return cls(tuple(pieces))

    def encoded(self, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
        """Return its token ids and, for each, the token to predict there: the next one if it is of an answer."""
        ids: list[int] = []
        learnt: list[bool] = []
        for number, piece in enumerate(self.pieces):
            own = tokenizer.inner.encode(piece).ids
            ids += own
            learnt += [number % 2 == 1] * len(own)
        following = [token if wanted else NOT_LEARNT for token, wanted in zip(ids[1:], learnt[1:], strict=True)]
        return ids, [*following, NOT_LEARNT]


def question(source: str, choose: Random) -> tuple[str, str]:
    """Return what asks for a source's content in its family's words, and the answer with the blank before it."""
    match, form = choose.choice(_read(source))
    return form.format(**match.groupdict(), thing=choose.choice(THINGS)), f" {match['answer']}"


def said(source: str) -> tuple[str, str, str]:
    """Return a source in three: what comes before its answer, the answer with the blank before it, the rest."""
    match, _ = _read(source)[0]
    start, stop = match.span("answer")
    return source[: start - 1], source[start - 1 : stop], source[stop:]


def _read(source: str) -> list[tuple[re.Match[str], str]]:
    return [(match, form) for pattern, form in FORMS if (match := re.fullmatch(pattern, source))]


def most_sources(family: str) -> int:
    """Return how many sources the benchmark's prompts of a family have."""
    return len(FAMILIES[family](0).sources)


def vocabulary() -> Tokenizer:
    """Return tokens for these families, learnt from documents of seeds of their own."""
    seeds = range(FIRST_SEED - VOCABULARY_PROMPTS, FIRST_SEED)
    texts = ["".join(Document.of(family, seed, most_sources(family)).pieces) for family in LEARNT for seed in seeds]
    return train_tokenizer(texts, VOCABULARY)


def begun(tokenizer: Tokenizer, seed: int) -> Transformer:
    """Return a transformer whose heads look back and compare from the beginning; the rest is drawn.

    In the first layer head h reads what stands h + 1 tokens before, by its biases, and all heads write the same of it:
    a convolution over four tokens, where a head's positions are put as in ConViT (d'Ascoli et al. 2021). In the later
    layers queries begin equal to keys, and outputs as the values' transpose: a head reads what resembles its
    destination, and copies it (after Trockman and Kolter 2023, "Mimetic initialization of self-attention layers"). All
    of it is free to change.
    """
    biases = {"attention_bias": True, "output_bias": True}
    config = Config.decoder(
        **SHAPE, vocabulary=tokenizer.vocabulary_size, context=CONTEXT, rope_base=ROPE_BASE, **biases
    )
    transformer = draw(config, seed)
    with torch.no_grad():
        transformer.embedding.weight *= 5.0  # so that tokens outweigh what random layers add to them
        for block in transformer.blocks:
            _compare(block.attention)
        for head in range(config.heads):
            _look_back(transformer, head)
    return transformer


def _compare(attention: Attention) -> None:
    attention.query.weight *= 2.0
    attention.key.weight.copy_(attention.query.weight)
    attention.output.weight.copy_(2.0 * attention.value.weight.T)


def _look_back(transformer: Transformer, head: int) -> None:
    """Give a head of the first layer biases whose score is largest head + 1 tokens back; let it write what head 0 does.

    Of the coordinates only the pairs that turn fastest are used: their angle tells neighbours apart.
    """
    attention, size = transformer.blocks[0].attention, transformer.config.head_size
    own, back = slice(head * size, (head + 1) * size), transformer.rotation(torch.tensor([-(head + 1.0)]))
    key = torch.zeros(1, 1, 1, size)
    key[..., :FAST_PAIRS] = math.sqrt(SHARPNESS * math.sqrt(size) / FAST_PAIRS)
    attention.key.bias[own], attention.query.bias[own] = key.flatten(), rotate(key, back).flatten()
    attention.value.weight[own] = attention.value.weight[:size]
    attention.output.weight[:, own] = attention.output.weight[:, :size]
    attention.query.weight[own] *= 0.3
    attention.key.weight[own] *= 0.3


class Course:
    """What is taught when: the families that have begun, and the most sources that a document of each may have."""

    def __init__(self) -> None:
        self.most = {next(iter(LEARNT)): FIRST_SOURCES}
        self.loss = dict.fromkeys(LEARNT, math.log(VOCABULARY))

    def heard(self, family: str, loss: float) -> None:
        """Take in the loss of a batch; the course goes on if that is learnt."""
        self.loss[family] = MEMORY * self.loss[family] + (1 - MEMORY) * loss
        if self.loss[family] < LEARNT_AT and self.most[family] < most_sources(family):
            self.most[family] += 1
            self.loss[family] = 1.3 * LEARNT_AT  # to be shown anew

    def finished(self, family: str) -> bool:
        """Whether a family has learnt all that the benchmark has: a few documents then keep it."""
        return self.most[family] == most_sources(family) and self.loss[family] < LEARNT_AT / 5

    def begin_next(self) -> None:
        """Begin the next family if all that have begun are settled."""
        waiting = [family for family in LEARNT if family not in self.most]
        if waiting and all(most >= SETTLED_SOURCES for most in self.most.values()):
            self.most[waiting[0]] = FIRST_SOURCES

    def __str__(self) -> str:
        return "; ".join(
            f"{family}: {self.loss[family]:.3f} nats at up to {most} sources" for family, most in self.most.items()
        )


def batch(family: str, most: int, seeds: range, tokenizer: Tokenizer) -> tuple[Tensor, Tensor]:
    """Return the ids of documents [B, T] and what to predict there [B, T]; the shorter are filled up at their ends."""
    made = [Document.of(family, seed, most).encoded(tokenizer) for seed in seeds]
    length = max(len(ids) for ids, _ in made)
    ids = torch.tensor([own + [0] * (length - len(own)) for own, _ in made])
    return ids, torch.tensor([own + [NOT_LEARNT] * (length - len(own)) for _, own in made])


def answer_loss(transformer: Transformer, ids: Tensor, wanted: Tensor) -> Tensor:
    """Return the mean cross-entropy of the answers' tokens, in nats; only their rows are scored."""
    at = wanted != NOT_LEARNT
    return F.cross_entropy(transformer.logits(transformer.stream(ids)[at]), wanted[at])


def train(out: Path, settings: Settings) -> None:
    """Train, and write each checkpoint into a folder of its own in `out`, the last one as `FINAL`."""
    tokenizer, course = vocabulary(), Course()
    transformer = begun(tokenizer, settings.seed)
    optimizer = make_optimizer(transformer, settings)
    first, began, tokens = FIRST_SEED * (1 + settings.seed), time.perf_counter(), 0
    for step in range(settings.steps):
        start = first + step * settings.batch
        for family, most in list(course.most.items()):
            count = settings.batch // SHARE_ONCE_LEARNT if course.finished(family) else settings.batch
            ids, wanted = batch(family, most, range(start, start + count), tokenizer)
            loss = answer_loss(transformer, ids, wanted)
            (loss / len(course.most)).backward()
            course.heard(family, float(loss.detach()))
            tokens += ids.numel()
        course.begin_next()
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate_at(step)
        torch.nn.utils.clip_grad_norm_(transformer.parameters(), settings.clip or math.inf)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if settings.validates_after(step + 1):
            print(f"step {step + 1}, {tokens:,} tokens, {time.perf_counter() - began:.0f} s: {course}", flush=True)
        if settings.checkpoints_after(step + 1):
            name = FINAL if step + 1 == settings.steps else f"step-{step + 1:08d}"
            write(out / name, transformer, tokenizer)


def write(folder: Path, transformer: Transformer, tokenizer: Tokenizer) -> None:
    """Write a model's folder, its weights rounded to float16; it is whole or not there."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    write_folder(partial, transformer, tokenizer)
    tensors = {name: tensor.half() for name, tensor in load_file(partial / WEIGHTS).items()}
    save_file(tensors, partial / WEIGHTS, metadata={"format": "pt"})
    fields = json.loads((partial / "config.json").read_text(encoding="utf-8")) | {"dtype": "float16"}
    (partial / "config.json").write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


@dataclass(frozen=True)
class Score:
    """How well a model answers prompts of a family.

    Attributes:
        family: which.
        prompts: how many.
        right: the share of them whose answer is the most probable token.
        log_odds: the mean of log(p / (1 - p)) of the answer, in nats.
        tokens: of a prompt, the mean.
    """

    family: str
    prompts: int
    right: float
    log_odds: float
    tokens: float


@torch.no_grad()
def scored(model: LanguageModel, family: str, count: int) -> Score:
    """Return how well a model answers the first so many prompts of a family; each answer must be one of its tokens."""
    right, odds, tokens = 0, 0.0, 0
    for prompt in prompts(family, count):
        ids = torch.tensor([model.tokenizer.encode(prompt.text).ids])
        answer = model.tokenizer.one_token(prompt.answer)
        logits = model.transformer(ids, last_only=True)[0, -1].double()
        others = torch.cat((logits[:answer], logits[answer + 1 :]))
        right += int(logits.argmax()) == answer
        odds += float(logits[answer] - others.logsumexp(0))
        tokens += ids.shape[1]
    return Score(family, count, right / count, odds / count, tokens / count)


def main() -> None:
    """Train, write the last weights as OUT/small, and say how well they answer the benchmark's first 100 prompts."""
    parser = argparse.ArgumentParser(description="Train a small model that answers the benchmark's prompts.")
    parser.add_argument("out", type=Path, help="the folder for its checkpoints; the last is OUT/small")
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    settings = Settings(
        steps=asked.steps,
        seed=asked.seed,
        batch=16,
        learning_rate=2e-3,
        warmup=min(50, asked.steps - 1),
        final_share=0.05,
        weight_decay=0.0,
        betas=(0.9, 0.98),
        validate_every=50,
        checkpoint_every=50,
        device="cpu",
    )
    torch.set_num_threads(1)  # the sums then have one order, and the weights come out the same
    train(asked.out, settings)
    model = wherefrom.load(asked.out / FINAL)
    for family in LEARNT:
        print(scored(model, family, 100))


if __name__ == "__main__":
    main()
