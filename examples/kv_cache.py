"""Which part of a key/value cache may go? Rank sources by the attention they received, drop the rest, and measure.

    python examples/kv_cache.py [folder]

A minute on two cores. A cache grows with every token. Policies such as "heavy hitters" (Zhang et al. 2023,
H2O, arXiv:2306.14048) keep the sources that have received most attention so far, and the newest ones. That needs the
sum of every column of the n x n weights, which one scan of a recording gives exactly, in linear memory. A weight is no
proof that a source matters, so the policies are put to the test: the tokens that follow are read again without what
each policy drops, in all layers and heads, and what they lose is measured. With a folder, the recording stays there,
and `wherefrom received FOLDER/prefix.wherefrom` shows the ranking.
"""

from __future__ import annotations

import argparse
import pydoc_data.topics
from pathlib import Path
from typing import TypeAlias

import numpy as np

import wherefrom
from wherefrom.questions.asked import mean_row
from wherefrom.tokens import Tokens

TEXT = pydoc_data.topics.topics["for"]
Follower: TypeAlias = tuple[wherefrom.Destination, wherefrom.Target]
READ, FOLLOWING = 384, 16
SHARES = (0.5, 0.2, 0.1)


def first_tokens(model: wherefrom.LanguageModel, count: int) -> Tokens:
    """Return the beginning of the text, so many tokens of it."""
    whole = model.tokenizer.encode(TEXT)
    return Tokens(TEXT[: whole[count - 1].span[1]], tuple(whole.items[:count]))


def received(recording: wherefrom.Recording) -> np.ndarray:
    """Return the attention that each source received from all destinations, mean over all heads, [S]."""
    scans = (wherefrom.scan(recording, call.layer, ["received"])["received"] for call in recording.calls)
    return np.concatenate([np.asarray(scan) for scan in scans]).mean(axis=0)


def kept_by(policy: str, ranking: np.ndarray, budget: int) -> set[int]:
    """Return the sources of a prefix that a policy keeps."""
    count, half = len(ranking), budget // 2
    if policy == "the newest":
        return set(range(count - budget, count))
    if policy == "the first 4 and the newest":
        return {*range(4), *range(count - budget + 4, count)}
    if policy == "drawn at random":
        return set(np.random.default_rng(0).choice(count, budget, replace=False).tolist())
    strongest = np.argsort(-ranking[: count - half], kind="stable")[: budget - half]
    return {*strongest.tolist(), *range(count - half, count)}


POLICIES = ("heavy hitters and the newest", "the newest", "the first 4 and the newest", "drawn at random")


def followers(model: wherefrom.LanguageModel, recording: wherefrom.Recording, read: int) -> list[Follower]:
    """Return the positions behind a prefix that predict a token which is known, the last one's left out."""
    ids = recording.tokens.ids
    return [
        (wherefrom.Destination(model, recording, at), wherefrom.Target(ids[at + 1])) for at in range(read, len(ids) - 1)
    ]


def lost(following: list[Follower], dropped: list[int]) -> float:
    """Return what the true next tokens lose, mean in nats, when they are predicted without what was dropped."""
    return float(np.mean([wherefrom.knock_out(at, target, [dropped]).nats[0] for at, target in following]))


def main() -> None:
    """Print how each policy does at several budgets."""
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("folder", type=Path, nargs="?", help="where the recording stays")
    folder = command.parse_args().folder
    model = wherefrom.load()
    prefix = None
    if folder is not None:
        prefix = folder / "prefix.wherefrom"
        prefix.parent.mkdir(parents=True, exist_ok=True)
    before = wherefrom.record(model, first_tokens(model, READ), to=prefix, overwrite=prefix is not None)
    after = wherefrom.record(model, first_tokens(model, READ + FOLLOWING + 1))
    ranking, following = received(before), followers(model, after, READ)
    rows = np.mean([mean_row(after, at.position, wherefrom.Scope()) for at, _ in following], axis=0)
    print(wherefrom.received(before, top=5), end="\n\n")
    print(f"{READ} tokens are cached; the {FOLLOWING} that follow read what is kept, and one another.")
    print(f"{'of the cache kept, by':<34}{'weight dropped':>15}{'nats lost':>11}")
    for share in SHARES:
        for policy in POLICIES:
            dropped = sorted(set(range(READ)) - kept_by(policy, ranking, round(share * READ)))
            print(f"{share:>4.0%}  {policy:<28}{rows[dropped].sum():>15.1%}{lost(following, dropped):>+11.2f}")


if __name__ == "__main__":
    main()
