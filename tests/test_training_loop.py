"""The training loop: one pass prices every token, small batches add up to a big one, the loss falls below counting."""

from __future__ import annotations

import copy
import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import wherefrom
from training_small import CONFIG, CONTEXT, CORPUS, SETTINGS, TEXT, TOKENIZER, bits, run, timeless
from wherefrom.errors import InputError, TrainingError
from wherefrom.model.cache import KeyValueCache
from wherefrom.model.config import Config
from wherefrom.model.initial import draw
from wherefrom.training.baselines import baselines
from wherefrom.training.log import read_log
from wherefrom.training.loop import train
from wherefrom.training.optimizer import make_optimizer, named_groups
from wherefrom.training.settings import Settings
from wherefrom.training.text import Corpus, byte_tokenizer, train_tokenizer
from wherefrom.training.trainer import Hardware, Task, Trainer, next_token_loss

GPT2 = Config.decoder(layers=1, width=16, heads=2, vocabulary=257, context=CONTEXT, style="gpt2")
UNTIED = Config.decoder(layers=2, width=16, heads=2, vocabulary=257, context=CONTEXT, tied=False)
CPU = Hardware(torch.device("cpu"), bfloat16=False)


def trainer_of(config: Config = CONFIG, **changes: Any) -> Trainer:
    settings = Settings(**(SETTINGS | changes))
    return Trainer(draw(config, settings.seed), Task(config, CORPUS, TOKENIZER, settings, CPU))


def gradients(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> tuple[float, float, list[torch.Tensor]]:
    """One update's loss, norm and gradients, the weights left where they were."""
    monkeypatch.setattr(trainer.optimizer, "step", lambda: None)
    monkeypatch.setattr(trainer.optimizer, "zero_grad", lambda **_: None)
    row = trainer.advance()
    return row.train_loss, row.gradient_norm, [weight.grad for weight in trainer.transformer.parameters()]


@pytest.mark.parametrize("config", [CONFIG, GPT2], ids=["llama", "gpt2"])
def test_one_pass_is_the_loss_of_token_after_token(config: Config) -> None:
    transformer = draw(config, 3)
    with torch.no_grad():
        for weight in transformer.parameters():
            weight += 0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel()))
    ids = torch.from_numpy(CORPUS.batch(0, 3, CONTEXT, seed=1))
    with torch.no_grad():
        parallel = next_token_loss(transformer, ids).item()
        total, cache = 0.0, KeyValueCache(config, CONTEXT, batch=3)
        for place in range(CONTEXT):
            logits = transformer(ids[:, place : place + 1], cache=cache)[:, 0].double()
            total -= torch.log_softmax(logits, dim=-1).gather(1, ids[:, place + 1 : place + 2]).sum().item()
    assert parallel == pytest.approx(total / (3 * CONTEXT), abs=1e-5)
    assert abs(parallel - math.log(257)) > 0.01  # so that the comparison says something


def test_a_fresh_model_knows_nothing() -> None:
    loss = trainer_of(learning_rate=1e-9, steps=1).advance()
    assert loss.train_loss == pytest.approx(math.log(257), abs=0.3)
    assert loss.validation_loss == pytest.approx(math.log(257), abs=0.3)


@pytest.mark.parametrize("accumulate", [2, 3, 12])
def test_small_batches_add_up_to_a_big_one(monkeypatch: pytest.MonkeyPatch, accumulate: int) -> None:
    whole = gradients(trainer_of(batch=12, accumulate=1, clip=None), monkeypatch)
    parts = gradients(trainer_of(batch=12 // accumulate, accumulate=accumulate, clip=None), monkeypatch)
    assert parts[:2] == pytest.approx(whole[:2], abs=1e-6)
    assert max((a - b).abs().max().item() for a, b in zip(parts[2], whole[2], strict=True)) < 1e-6
    assert min(gradient.abs().max().item() for gradient in whole[2]) > 1e-4


def test_the_gradient_is_that_of_the_loss_clipped_to_a_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(clip=None)
    twin = copy.deepcopy(trainer.transformer)
    loss, norm, free = gradients(trainer, monkeypatch)
    ids = torch.from_numpy(CORPUS.batch(0, 6, CONTEXT, seed=0))
    F.cross_entropy(twin(ids[:, :-1]).transpose(1, 2), ids[:, 1:]).backward()
    twins = [weight.grad for weight in twin.parameters()]
    assert max((a - b).abs().max().item() for a, b in zip(free, twins, strict=True)) < 1e-6
    assert norm == pytest.approx(math.sqrt(sum(gradient.pow(2).sum().item() for gradient in free)), rel=1e-5)
    clipped_loss, clipped_norm, clipped = gradients(trainer_of(clip=0.01), monkeypatch)
    assert (clipped_loss, clipped_norm) == (loss, norm)
    assert math.sqrt(sum(gradient.pow(2).sum().item() for gradient in clipped)) == pytest.approx(0.01, rel=1e-3)


def test_each_step_reads_its_own_windows() -> None:
    trainer = trainer_of(learning_rate=1e-9)
    losses = [trainer.advance().train_loss for _ in range(4)]
    windows = [torch.from_numpy(CORPUS.batch(step, 6, CONTEXT, seed=0)) for step in range(4)]
    expected = [next_token_loss(trainer.transformer, ids).item() for ids in windows]
    assert losses == pytest.approx(expected, abs=1e-5)
    assert min(abs(a - b) for a, b in pairwise(losses)) > 1e-4


def test_an_update_is_adamw_by_hand() -> None:
    trainer = trainer_of(steps=10, warmup=3, learning_rate=0.01, weight_decay=0.5, clip=None, accumulate=1)
    before = copy.deepcopy(trainer.transformer)
    next_token_loss(before, torch.from_numpy(CORPUS.batch(0, 3, CONTEXT, seed=0))).backward()
    trainer.advance()
    rate = 0.01 / 4  # of the first of three warm-up steps
    after = dict(trainer.transformer.named_parameters())
    for name, weight in before.named_parameters():
        decay = 0.5 if name.endswith(("query.weight", "key.weight", "value.weight", "output.weight")) else 0.0
        decay = 0.5 if ".feed_forward." in name else decay
        # at the first step the averages are g and g^2, after their bias is taken out
        expected = weight * (1 - rate * decay) - rate * weight.grad / (weight.grad.abs() + 1e-8)
        assert (after[name] - expected).abs().max().item() < 1e-6, name


DECAYED = {"query.weight", "key.weight", "value.weight", "output.weight", "gate.weight", "up.weight", "down.weight"}


@pytest.mark.parametrize("config", [CONFIG, GPT2, UNTIED], ids=["llama", "gpt2", "untied"])
def test_matrices_decay_and_nothing_else(config: Config) -> None:
    transformer = draw(config, 0)
    decayed, others = named_groups(transformer)
    expected = {
        name
        for name, _ in transformer.named_parameters()
        if ".".join(name.rsplit(".", 2)[-2:]) in DECAYED or name == "head.weight"
    }
    assert set(decayed) == expected
    assert len(decayed) == (4 + 3 if config.gated else 4 + 2) * config.layers + (not config.tied)
    assert set(decayed).isdisjoint(others)
    assert {*decayed, *others} == {name for name, _ in transformer.named_parameters()}
    assert all(weight.ndim == 1 or "embedding" in name for name, weight in others.items())
    groups = make_optimizer(transformer, Settings(weight_decay=0.3)).param_groups
    assert [(len(group["params"]), group["weight_decay"]) for group in groups] == [
        (len(decayed), 0.3),
        (len(others), 0.0),
    ]


def test_the_log_says_what_was_done(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    steps: list[Any] = []
    trained = run(
        tmp_path / "run",
        steps=23,
        how={"progress": lambda *at: told.append(at), "on_step": lambda row, model: steps.append((row, model))},
    )
    rows = read_log(tmp_path / "run" / "log.csv")
    settings = Settings(**(SETTINGS | {"steps": 23}))
    assert [row.step for row in rows] == list(range(1, 24))
    assert [row.tokens for row in rows] == [step * 3 * 2 * CONTEXT for step in range(1, 24)]
    assert [row.learning_rate for row in rows] == [settings.learning_rate_at(step) for step in range(23)]
    assert [row.step for row in rows if row.validation_loss is not None] == [10, 20, 23]
    assert all(row.gradient_norm > 0 and row.tokens_per_second > 0 for row in rows)
    assert told == [(step, 23) for step in range(24)]
    assert [row for row, _ in steps] == list(rows)
    assert {id(model) for _, model in steps} == {id(trained.transformer)}
    assert (trained.step, trained.tokens) == (23, rows[-1].tokens)
    assert (trained.train_loss, trained.validation_loss) == (rows[-1].train_loss, rows[-1].validation_loss)
    assert trained.best_validation_loss == min(row.validation_loss for row in rows if row.validation_loss is not None)
    assert trained.checkpoint == trained.best == tmp_path / "run" / "step-00000023"
    assert str(trained.validation_loss)[:6] in repr(trained)


def test_the_validation_loss_is_the_mean_over_its_windows() -> None:
    trainer = trainer_of(batch=5)
    windows = torch.from_numpy(CORPUS.windows(CONTEXT).astype(np.int64))
    assert len(windows) % 5  # the last batch is smaller
    assert trainer.validation_loss() == pytest.approx(next_token_loss(trainer.transformer, windows).item(), abs=1e-6)
    some = trainer_of(validate_windows=2)
    expected = next_token_loss(some.transformer, windows[[0, len(windows) - 1]]).item()
    assert some.validation_loss() == pytest.approx(expected, abs=1e-6)


def test_the_same_seed_trains_the_same_model(tmp_path: Path) -> None:
    runs = {
        name: run(tmp_path / name, steps=8, seed=seed) for name, seed in {"one": 1, "again": 1, "another": 2}.items()
    }
    same, again, another = (bits(trained.checkpoint) for trained in runs.values())
    assert same == again
    assert timeless(tmp_path / "one") == timeless(tmp_path / "again")
    changed = [name for name in same if same[name] != another[name]]
    assert sorted(changed) == sorted(name for name in same if not name.startswith("step/"))


def test_the_seed_draws_weights_and_windows_apart(tmp_path: Path) -> None:
    start = draw(CONFIG, 5)
    losses = {seed: run(tmp_path / str(seed), model=start, steps=2, seed=seed).train_loss for seed in (5, 6)}
    assert losses[5] != losses[6]  # other windows for the same weights
    assert run(tmp_path / "drawn", steps=2, seed=5).train_loss == losses[5]


def test_a_model_learns_what_pairs_do_not_tell(tmp_path: Path) -> None:
    config = Config.decoder(layers=2, width=24, heads=2, vocabulary=257, context=32)
    trained = run(tmp_path, model=config, steps=150, batch=8, accumulate=1, checkpoint_every=150)
    counted = baselines(CORPUS, 32)
    assert trained.validation_loss < 0.5 * counted.bigram
    loaded = wherefrom.load(tmp_path)
    written = wherefrom.generate(loaded, "whether it is", max_tokens=19)
    assert written.text == " nobler in the mind"


def test_bfloat16_learns_as_float32_does(tmp_path: Path) -> None:
    losses = {p: run(tmp_path / p, precision=p).validation_loss for p in ("float32", "bfloat16")}
    assert losses["bfloat16"] != losses["float32"]
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.02)
    exact = next_token_loss(draw(CONFIG, 0), torch.from_numpy(CORPUS.batch(0, 6, CONTEXT, seed=0))).item()
    errors = [abs(read_log(tmp_path / p / "log.csv")[0].train_loss - exact) for p in ("float32", "bfloat16")]
    assert errors[0] < 1e-6 < errors[1]
    weights = wherefrom.load(tmp_path / "bfloat16").transformer.parameters()
    assert {weight.dtype for weight in weights} == {torch.float32}


def test_shorter_windows_than_the_context(tmp_path: Path) -> None:
    trained = run(tmp_path, steps=3, context=8, validate_every=1)
    assert trained.tokens == 3 * 6 * 8
    assert trained.transformer.config.context == CONTEXT
    with pytest.raises(InputError, match="context: expected at most 16, the model's, got 17"):
        run(tmp_path / "longer", context=17)


def test_a_transformer_is_trained_further_and_not_changed(tmp_path: Path) -> None:
    first = run(tmp_path / "first", model=GPT2, steps=30)
    model = wherefrom.load(first.checkpoint)
    before = [weight.clone() for weight in model.transformer.parameters()]
    further = run(tmp_path / "further", model=model.transformer, steps=30, seed=9)
    assert further.validation_loss < first.validation_loss
    assert all(torch.equal(old, new) for old, new in zip(before, model.transformer.parameters(), strict=True))
    assert not any(weight.requires_grad for weight in model.transformer.parameters())
    assert read_log(tmp_path / "further" / "log.csv")[0].train_loss < 4 < math.log(257)


def test_a_finished_model_is_ready_to_be_asked(tmp_path: Path) -> None:
    trained = run(tmp_path, steps=5)
    assert not trained.transformer.training
    assert not any(weight.requires_grad for weight in trained.transformer.parameters())
    loaded = wherefrom.load(trained.checkpoint)
    assert loaded.config == CONFIG
    assert loaded.tokenizer.encode(TEXT[:9]).ids == TOKENIZER.encode(TEXT[:9]).ids
    ids = torch.from_numpy(CORPUS.batch(0, 1, 9, seed=0))
    assert torch.equal(loaded.transformer(ids), trained.transformer(ids))


def poison(step: int) -> dict[str, Any]:
    def spoil(row: Any, transformer: Any) -> None:
        if row.step == step:
            with torch.no_grad():
                transformer.norm.weight[3] = torch.nan

    return {"on_step": spoil}


def test_a_loss_that_is_no_number_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(TrainingError) as caught:
        run(tmp_path, how=poison(15))
    assert str(caught.value) == (
        "the loss of step 16: expected a finite number, got nan. Lower learning_rate (now 0.01) or clip (now 1.0). "
        f"The last good checkpoint is {tmp_path / 'step-00000014'}."
    )
    assert caught.value.checkpoint == tmp_path / "step-00000014"
    assert wherefrom.load(caught.value.checkpoint).config == CONFIG
    assert read_log(tmp_path / "log.csv")[-1].step == 15


def test_a_learning_rate_far_too_high_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(
        TrainingError, match=r"the (loss|gradient's norm) of step 2: expected a finite number, got (nan|inf)"
    ) as caught:
        run(tmp_path, learning_rate=1e30, warmup=0)
    assert caught.value.checkpoint is None
    assert str(caught.value).endswith("(now 1e+30) or clip (now 1.0). No checkpoint had been written before.")


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"validate_every": 1}, "the validation loss of step 1"),
        ({"checkpoint_every": 1}, "the weights .* after step 1"),
        (
            {"clip": None, "checkpoint_every": 1, "learning_rate": 1e38, "weight_decay": 9.0},
            "the weights .* after step 1",
        ),
    ],
)
def test_weights_that_are_no_numbers_are_not_kept(tmp_path: Path, changes: dict[str, Any], what: str) -> None:
    start = draw(CONFIG, 0)
    with pytest.raises(TrainingError, match=f"{what}: expected a finite number, got"):
        run(tmp_path, model=start, **({"learning_rate": 3e38, "weight_decay": 2.0, "warmup": 0} | changes))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.csv"]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"model": "llama"}, "the model: expected a Transformer, got 'llama'. Give a Config, or a model's transformer"),
    (
        {"model": Config.encoder(layers=1, width=16, heads=2, vocabulary=257, context=CONTEXT)},
        "the model: expected a decoder, which predicts the next token from those before it, got an encoder.",
    ),
    (
        {"model": Config.encoder_decoder(layers=1, width=16, heads=2, vocabulary=257, context=16, start_id=0)},
        "got an encoder-decoder. Make one with Config.decoder(...).",
    ),
    ({"corpus": TEXT}, "the text: expected a Corpus, got a value of type str. Make a corpus of it"),
    ({"corpus": Corpus.of("abc" * 9, TOKENIZER)}, "the validation text: expected at least 17 tokens"),
    (
        {"corpus": Corpus.of(TEXT, train_tokenizer(TEXT, 280))},
        "the model's vocabulary: expected at least the text's 280 ids, got 257 rows.",
    ),
    (
        {"corpus": Corpus(CORPUS.train, CORPUS.validation, 256)},
        "the tokenizer: expected the one that made the corpus, of 256 tokens, got one of 257.",
    ),
    ({"device": "cuda:99"}, "device: expected \"cpu\", or another device of this machine, got 'cuda:99' ("),
    ({"device": "nowhere"}, "got 'nowhere' ("),
]


@pytest.mark.parametrize(("given", "sentence"), WRONG, ids=[sentence for _, sentence in WRONG])
def test_what_does_not_go_together_is_refused(tmp_path: Path, given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)):
        run(tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5, True, None])
def test_what_is_no_seed(seed: Any) -> None:
    with pytest.raises(InputError, match=r"the seed: expected a whole number from 0 to 2\^63 - 1, got"):
        draw(CONFIG, seed)
    assert draw(CONFIG, 2**63 - 1).config == CONFIG


def test_settings_and_tokenizer_are_of_their_kind(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the settings: expected a Settings, got a value of type dict"):
        train(CONFIG, CORPUS, TOKENIZER, SETTINGS, tmp_path)
    with pytest.raises(InputError, match="the tokenizer: expected a Tokenizer, got"):
        train(CONFIG, CORPUS, byte_tokenizer().inner, Settings(), tmp_path)


def test_auto_decides_for_this_machine() -> None:
    auto = Hardware.of(Settings())
    assert auto.device.type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert Hardware.of(Settings(device="cpu")) == CPU
    assert Hardware.of(Settings(device="cpu", precision="bfloat16")).precision == "bfloat16"
