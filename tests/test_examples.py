"""The examples: each is run in a short form of its own functions, and must show what it says that it shows."""

from __future__ import annotations

import ast
import random
import sys
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import wherefrom
from wherefrom.training.run import checkpoints
from wherefrom.training.watched import Watched, read_watched
from wherefrom.views.forming import forming_lines

EXAMPLES = Path(__file__).parent.parent / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))


def imported(name: str) -> ModuleType:
    """An example's functions; importing it trains nothing."""
    found = util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = util.module_from_spec(found)
    sys.modules[found.name] = module  # where its dataclasses and annotations are looked up
    found.loader.exec_module(module)
    return module


induction, reverse_and_sort, standard_library = map(imported, ("induction", "reverse_and_sort", "standard_library"))
kv_cache = imported("kv_cache")


@pytest.mark.parametrize("name", NAMES)
def test_each_says_what_it_shows_and_how_it_is_run(name: str) -> None:
    module = imported(name)
    assert f"\n    python examples/{name}.py [folder]\n" in (module.__doc__ or "")
    assert "on two cores" in (module.__doc__ or "")
    source = (EXAMPLES / f"{name}.py").read_text()
    assert source.endswith('\n\n\nif __name__ == "__main__":\n    main()\n')
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), node.name
    assert set(NAMES) == {"induction", "kv_cache", "reverse_and_sort", "standard_library"}


@pytest.mark.parametrize(
    ("name", "trained_here"),
    [
        pytest.param("induction", "formed", marks=pytest.mark.long),
        ("reverse_and_sort", "solved"),
        ("standard_library", "learnt"),
    ],
)
@pytest.mark.parametrize("named", [True, False], ids=["in a folder", "nowhere"])
def test_each_runs_as_a_script(
    name: str,
    trained_here: str,
    named: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    """Its main, with the training itself put aside: what was trained here already is what it goes on with."""
    module, seen = imported(name), []
    made = request.getfixturevalue(trained_here)

    def trained(*given: Any, **how: Any) -> Any:
        seen.append(given)
        return made[:2] if name == "standard_library" else made

    monkeypatch.setattr(module, "watch" if name == "induction" else "learn", trained)
    if name == "reverse_and_sort":
        aligned = module.aligned
        monkeypatch.setattr(module, "aligned", lambda model, count: aligned(model, 5, longest=3))
    monkeypatch.setattr(sys, "argv", [name, str(tmp_path / "a" / "run")] if named else [name])
    module.main()
    out = capsys.readouterr().out
    if name == "induction":
        assert "previous of every head" in out
        assert "induction of every head" in out
    elif name == "reverse_and_sort":
        assert "of 2,000 held-out strings exact" in out
        assert out.splitlines()[-6].split() == ["nats", "reverse", "3", "1", "4", "2", "5", "<end>"]
        assert (tmp_path / "a" / "run" / "model.safetensors").exists() == named
    else:
        assert f"\n  this model  {made[0].validation_loss:.3f}\n" in out
        assert f"\n  bigram      {made[1].bigram:.3f}\n" in out
    if seen[0]:
        assert (seen[0][0] == tmp_path / "a" / "run") == named


@pytest.fixture(scope="module")
def formed(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    """Four copies of each chunk and hardly any feed-forward: the same story in 320 steps."""
    folder = tmp_path_factory.mktemp("induction") / "run"
    how = {"steps": 320, "copies": 4, "learning_rate": 6e-3, "heads": 1, "feed_forward": 16}
    seen: Watched = induction.watch(folder, **how)
    assert read_watched(folder).steps.tolist() == seen.steps.tolist() == [1, 50, 100, 150, 200, 250, 300]
    return seen


@pytest.mark.long
def test_an_induction_head_forms(formed: Watched) -> None:
    figure = formed.of("induction")
    assert figure[:4].max() < 0.1  # for long nothing seems to happen
    assert figure[-1, 1].max() > 0.3
    onset = formed.onset("induction", 1, 0, 0.3)
    assert onset is not None
    assert onset >= 200
    assert figure[-1, 0].max() < 0.1  # it needs a layer below it


@pytest.mark.long
def test_a_head_below_it_reads_the_token_before(formed: Watched) -> None:
    previous = formed.of("previous")
    assert previous[-1, 0, 0] > 2 * previous[0, 0, 0]
    assert previous[-1, 0, 0] > previous[-1, 1, 0]


@pytest.mark.long
def test_the_repeated_half_is_predicted_once_it_has_formed(formed: Watched) -> None:
    gain = formed.new_nats - formed.again_nats
    assert abs(gain[0]) < 0.2
    assert gain[-1] > 2.0
    assert gain[-1] > gain[:4].max() + 1.0  # what counting letters gives is passed
    assert formed.new_nats.min() > 3.8  # nothing tells a new letter: log 62 is 4.13
    assert "\n".join(forming_lines(formed)).count("L1 H0") >= 1


def test_its_text_is_chunks_that_come_again() -> None:
    for copies in (2, 3):
        text = induction.chunks(40, seed=1, copies=copies)
        assert text == induction.chunks(40, seed=1, copies=copies)
        at = chunks = 0
        while at < len(text):  # the chunk that begins here is the shortest whose copies follow
            size = next(n for n in range(16, 29) if text[at : at + n * copies] == copies * text[at : at + n])
            at, chunks = at + copies * size, chunks + 1
        assert chunks == 40
        assert set(text) <= set(induction.LETTERS)
    tokenizer = induction.letters()
    assert tokenizer.vocabulary_size == 62
    assert tokenizer.decode(tokenizer.encode("aZ09").ids) == "aZ09"
    assert len(tokenizer.encode("aZ09")) == 4


@pytest.fixture(scope="module")
def solved() -> tuple[Any, Any]:
    """Strings of at most four digits are learnt in some seconds."""
    found: tuple[Any, Any] = reverse_and_sort.learn(350, longest=4, say=False)
    return found


@pytest.fixture(scope="module")
def translator(solved: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> wherefrom.LanguageModel:
    folder = tmp_path_factory.mktemp("reverse")
    wherefrom.write_folder(folder, *solved)
    return wherefrom.load(folder)


def test_strings_never_seen_are_reversed_and_sorted(solved: tuple[Any, Any]) -> None:
    model, tokenizer = solved
    assert reverse_and_sort.exact(model, tokenizer, 1000, longest=4) >= 0.99
    untrained = wherefrom.draw(model.config, 0).eval()
    assert reverse_and_sort.exact(untrained, tokenizer, 100, longest=4) < 0.05


def test_it_writes_them_like_any_model(translator: wherefrom.LanguageModel) -> None:
    right = [
        wherefrom.generate(translator, source, max_tokens=8).text == target
        for source, target in reverse_and_sort.pairs(50, random.Random(5), held_out=True, longest=4)
    ]
    assert np.mean(right) >= 0.95


def test_the_largest_knock_out_is_the_digit_that_is_written_next(translator: wherefrom.LanguageModel) -> None:
    hits, total = reverse_and_sort.aligned(translator, 30, longest=4)
    assert total == sum(
        len(target) for _, target in reverse_and_sort.pairs(30, random.Random(2), held_out=True, longest=4)
    )
    assert hits / total > 0.8
    untrained = wherefrom.draw(translator.config, 0).eval().requires_grad_(False)
    blind = wherefrom.LanguageModel(untrained, translator.checkpoint)
    chance, total = reverse_and_sort.aligned(blind, 30, longest=4)
    assert chance / total < 0.6


def test_the_alignment_of_a_reversal_is_its_diagonal_backwards(translator: wherefrom.LanguageModel) -> None:
    header, *rows = reverse_and_sort.alignment(translator, "reverse 3914", "4193").splitlines()
    assert header.split() == ["nats", "reverse", "3", "9", "1", "4", "<end>"]
    assert [row.split()[0] for row in rows] == ["4", "1", "9", "3"]
    nats = np.array([[float(cell) for cell in row.split()[1:]] for row in rows])
    assert nats.argmax(axis=1).tolist() == [4, 3, 2, 1]
    traced = wherefrom.trace(translator, "reverse 3914", written="4", target="1", carried_sources=0)
    assert nats[1] == pytest.approx(traced.nats, abs=0.005)


def test_no_string_is_both_learnt_and_tested() -> None:
    drawn = [
        {text for text, _ in reverse_and_sort.pairs(600, random.Random(seed), held_out=held, longest=3)}
        for seed, held in ((0, True), (1, False))
    ]
    assert not drawn[0] & drawn[1]
    for source, target in reverse_and_sort.pairs(200, random.Random(3), held_out=False):
        task, digits = source.split()
        assert target == (digits[::-1] if task == "reverse" else "".join(sorted(digits)))
        assert 1 <= len(digits) <= 8
    share = np.mean([reverse_and_sort.hash_of(f"sort {number}") % 10 == 0 for number in range(10_000)])
    assert 0.08 < share < 0.12


def test_a_batch_is_padded_and_its_padding_is_not_learnt() -> None:
    tokenizer = reverse_and_sort.vocabulary()
    source, read, write = reverse_and_sort.batch_of(tokenizer, [("reverse 123", "321"), ("sort 9", "9")])
    start, end = reverse_and_sort.START, reverse_and_sort.END
    assert tokenizer.vocabulary_size == 14
    assert source.tolist() == [[10, 1, 2, 3, end], [11, 9, end, end, end]]
    assert read.tolist() == [[start, 3, 2, 1], [start, 9, end, end]]
    assert write.tolist() == [[3, 2, 1, end], [9, end, end, end]]
    assert reverse_and_sort.real(write).tolist() == [[True] * 4, [True, True, False, False]]


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path]:
    folder = tmp_path_factory.mktemp("library") / "run"
    sizes = {"megabytes": 0.3, "vocabulary": 260, "steps": 300}
    shape = {"layers": 2, "width": 64, "heads": 4, "context": 32}
    trained, counted = standard_library.learn(folder, **sizes, **shape)
    return trained, counted, folder


def test_a_small_model_beats_counting_pairs(learnt: tuple[Any, Any, Path]) -> None:
    trained, counted, folder = learnt
    assert trained.validation_loss < counted.bigram < counted.unigram < counted.uniform
    assert checkpoints(folder)[-1].name == "step-00000300"
    assert read_watched(folder).steps.tolist() == [1, 50, 100, 150, 200, 250, 300]


def test_its_model_is_read_like_any_other(learnt: tuple[Any, Any, Path]) -> None:
    model = wherefrom.load(learnt[2])
    traced = wherefrom.trace(model, "def main(self")
    assert len(traced.tokens) > 5
    assert torch.isfinite(torch.tensor(traced.nats)).all()


def test_the_text_is_the_standard_library() -> None:
    chosen = standard_library.modules(0.2)
    size = sum(path.stat().st_size for path in chosen)
    assert 200_000 <= size < 200_000 + max(path.stat().st_size for path in chosen)
    assert len(chosen) == len(set(chosen)) > 2
    assert all(path.suffix == ".py" for path in chosen)
    assert chosen == standard_library.modules(0.2)
    assert chosen == standard_library.modules(0.4)[: len(chosen)]
    assert chosen != standard_library.modules(0.2, seed=1)


@pytest.mark.parametrize("policy", kv_cache.POLICIES)
def test_a_policy_keeps_what_it_says(policy: str) -> None:
    ranking = np.random.default_rng(1).random(40)
    kept = kv_cache.kept_by(policy, ranking, 10)
    assert len(kept) == 10
    assert kept <= set(range(40))
    if policy != "drawn at random":
        assert {36, 37, 38, 39} <= kept
    if policy.startswith("heavy"):
        assert kept - set(range(35, 40)) == set(np.argsort(-ranking[:35])[:5].tolist())


@pytest.mark.parametrize("named", [True, False], ids=["in a folder", "nowhere"])
def test_what_a_cache_may_drop(
    named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"READ": 60, "FOLLOWING": 3, "SHARES": (0.2,)}.items():
        monkeypatch.setattr(kv_cache, name, value)
    monkeypatch.setattr(sys, "argv", ["kv_cache", str(tmp_path / "a")] if named else ["kv_cache"])
    kv_cache.main()
    lines = capsys.readouterr().out.splitlines()[-4:]
    dropped = {line[6:34].strip(): float(line.split()[-2].strip("%")) for line in lines}
    assert set(dropped) == set(kv_cache.POLICIES)
    assert dropped["heavy hitters and the newest"] < dropped["the first 4 and the newest"] < dropped["the newest"]
    assert (tmp_path / "a" / "prefix.wherefrom").exists() == named


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_its_help_says_what_it_is_and_runs_nothing(
    option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wherefrom, "load", lambda *_: pytest.fail("it was run"))
    monkeypatch.setattr(sys, "argv", ["kv_cache.py", option])
    with pytest.raises(SystemExit) as ended:
        kv_cache.main()
    assert ended.value.code == 0
    assert (kv_cache.__doc__ or "").strip() in capsys.readouterr().out
