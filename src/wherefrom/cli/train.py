"""The command that trains (floor 7): a decoder on text, from nothing or from another model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from wherefrom.checks import whole
from wherefrom.cli.app import Command, Json, app
from wherefrom.cli.printing import print_json, print_text, progress_bar
from wherefrom.cli.trained import closing, opening, result, step_line
from wherefrom.errors import InputError
from wherefrom.views.streams import say

if TYPE_CHECKING:  # nothing heavy before the options are understood
    from wherefrom.training.log import LogRow
    from wherefrom.training.text import Corpus

SHAPE = "Shape of the model"
COURSE = "Course of the training"
KEEPING = "What is measured and kept"
HELD_OUT = 0.1
BYTES = 257
"""Tokens of the vocabulary of single bytes: each of them, and the mark at an end."""
WATCH_TOKENS, LEAST_WATCHED = 64, 4
SIZES = {"layers": 4, "width": 128, "heads": 4, "context": 128}


def _option(cell: str, panel: str, *names: str, **how: Any) -> Any:
    return typer.Option(*names, help=cell, rich_help_panel=panel, **how)


@app.command(cls=Command)
def train(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="UTF-8 text files, a document each.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The run's folder: checkpoints and tables.")],
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the folder's newest checkpoint.")] = False,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", help="Begin with this model's weights and vocabulary, not from nothing.", metavar="MODEL"
        ),
    ] = None,
    style: Annotated[Literal["llama", "gpt2"] | None, _option("Kind of decoder (llama).", SHAPE)] = None,
    layers: Annotated[int | None, _option("Blocks (4).", SHAPE)] = None,
    width: Annotated[int | None, _option("Numbers that stand for a token (128).", SHAPE)] = None,
    heads: Annotated[int | None, _option("Heads of a layer (4).", SHAPE)] = None,
    context: Annotated[int | None, _option("Tokens that it reads at most (128).", SHAPE)] = None,
    vocabulary: Annotated[
        str | None, _option('"bytes" (default), or how many tokens a vocabulary learnt from the text has.', SHAPE)
    ] = None,
    steps: Annotated[int | None, _option("Updates of the weights (2000).", COURSE)] = None,
    batch: Annotated[int | None, _option("Windows read side by side (32).", COURSE)] = None,
    accumulate: Annotated[int | None, _option("Batches per update (1).", COURSE)] = None,
    learning_rate: Annotated[float | None, _option("Its peak (0.001).", COURSE)] = None,
    warmup: Annotated[int | None, _option("Steps before the peak (a tenth, at most 100).", COURSE)] = None,
    weight_decay: Annotated[float | None, _option("On matrices (0.1).", COURSE)] = None,
    clip: Annotated[float | None, _option("Largest norm of a gradient (1.0).", COURSE)] = None,
    seed: Annotated[int | None, _option("The same seed gives the same run (0).", COURSE)] = None,
    precision: Annotated[
        Literal["auto", "float32", "bfloat16"] | None, _option("Of matrix products (auto).", COURSE)
    ] = None,
    device: Annotated[str | None, _option('Such as "cpu" or "cuda" (auto).', COURSE)] = None,
    held_out: Annotated[float | None, _option("Share of the text, at its end, for validation (0.1).", KEEPING)] = None,
    validate_every: Annotated[int | None, _option("Steps between two validation losses (250).", KEEPING)] = None,
    checkpoint_every: Annotated[int | None, _option("Steps between two checkpoints (250).", KEEPING)] = None,
    keep: Annotated[int | None, _option("How many checkpoints stay (2).", KEEPING)] = None,
    watch: Annotated[
        int | None, _option("Measure what each head reads, every so many steps.", KEEPING, metavar="STEPS")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a language model on text.

    It begins with random weights, or with those of another model. Every position's next token is predicted in
    one causal pass. The end of the text is held out; the validation loss is printed beside what counting tokens
    (unigram) and pairs of tokens (bigram) would reach. Numbers in brackets are the defaults.

    The folder holds whole checkpoints, which trace, generate and cost read like any model: --model FOLDER. A run
    that was interrupted goes on with --resume and the same text, and ends in the same weights, bit for bit; one
    that was watched goes on being watched.

    \b
    Examples:
      wherefrom train book.txt --out run
      wherefrom train book.txt --out run --resume
      wherefrom train *.py --out run --vocabulary 2048 --width 256 --watch 50
      wherefrom watch run
      wherefrom trace "def main(" --model run
    """
    shape: dict[str, Any] = {"layers": layers, "width": width, "heads": heads, "context": context, "style": style}
    course = {
        "steps": steps,
        "batch": batch,
        "accumulate": accumulate,
        "learning_rate": learning_rate,
        "warmup": warmup,
        "weight_decay": weight_decay,
        "clip": clip,
        "seed": seed,
        "precision": precision,
        "device": device,
        "validate_every": validate_every,
        "checkpoint_every": checkpoint_every,
        "keep": keep,
    }
    from wherefrom.training.place import run_folder

    out = run_folder(out)
    given = {name: value for name, value in course.items() if value is not None}
    shape = {name: value for name, value in {**shape, "vocabulary": vocabulary}.items() if value is not None}
    if resume:
        plan = _resumed(out, files, given, {**shape, **_known(start, held_out)})
        watch = _watched_every(out) if watch is None else watch
    else:
        _check_new(out)
        share = HELD_OUT if held_out is None else held_out
        plan = _new(files, given, shape, share) if start is None else _begun(start, files, given, shape, share)
    _run(plan, out, watch, resume=resume, as_json=as_json)


@dataclass(frozen=True)
class Plan:
    """What is trained, on what, and how."""

    config: Any
    corpus: Corpus
    tokenizer: Any
    settings: Any
    begin: Any = None  # a transformer, where the weights are not drawn

    @property
    def context(self) -> int:
        """Tokens of a window."""
        return int(self.settings.context or self.config.context)


def _check_new(out: Path) -> None:
    """Refuse a folder for a new run that is no folder, or a model's: it would be read instead of the run."""
    given = "a file" if out.is_file() else "a model's folder" if (out / "config.json").exists() else None
    if given is not None:
        raise InputError(
            f"--out {out}", expected="a folder for a run", given=given, way_out="Name another: it is made.", path=out
        )


def _known(start: str | None, held_out: float | None) -> dict[str, Any]:
    """Return what a run's folder says, if it was given again."""
    given = {"from": start, "held_out": held_out}
    return {name: value for name, value in given.items() if value is not None}


def _watched_every(out: Path) -> int | None:
    """Return the steps between two looks of a run that was watched, None if it was not."""
    from wherefrom.training.watched import NAME, read_rows

    if not (out / NAME).exists():
        return None
    rows = read_rows(out / NAME)
    return int(rows[-1][-1]) if rows else None


def _new(files: list[Path], given: dict[str, Any], shape: dict[str, Any], held_out: float) -> Plan:
    """Return the training of a model with random weights."""
    from wherefrom.training.files import read_texts
    from wherefrom.training.settings import Settings
    from wherefrom.training.text import Corpus, byte_tokenizer, train_tokenizer

    settings, tokenizer = Settings(**given), byte_tokenizer()
    size = _vocabulary(shape.pop("vocabulary", None))
    sizes: dict[str, Any] = SIZES | shape
    _check_sizes(**sizes)
    texts = read_texts(files)
    from wherefrom.model.config import Config

    try:  # before a vocabulary is learnt
        config = Config.decoder(**sizes, vocabulary=tokenizer.vocabulary_size)
    except InputError as error:  # what is left is far too large
        names, way_out = "--layers, --width, --heads, --context", "Choose smaller ones."
        raise InputError(names, expected=f"{error.what} {error.expected}", given=error.given, way_out=way_out) from None
    if size is not None:
        tokenizer = train_tokenizer(texts, size)
        config = replace(config, vocabulary=tokenizer.vocabulary_size)
    return Plan(config, Corpus.of(texts, tokenizer, held_out=held_out), tokenizer, settings)


def _check_sizes(layers: int, width: int, heads: int, context: int, style: str = "llama") -> None:
    """Refuse sizes that make no model by the names that they have here."""
    for name, value in {"layers": layers, "width": width, "heads": heads, "context": context}.items():
        whole(f"--{name}", value, least=1, way_out=f"{SIZES[name]} is the default.")
    parts = 1 if style == "gpt2" else 2
    if width % (parts * heads):
        part = "the heads share it evenly" + (", and rotary positions turn pairs" if parts == 2 else "")
        raise InputError(
            "--width",
            expected=f"a multiple of {parts * heads} with --heads {heads} ({part})",
            given=f"{width}",
            way_out=f"--width {-(-width // (parts * heads)) * parts * heads} would do, or another number of --heads.",
            width=width,
            heads=heads,
        )


def _begun(start: str, files: list[Path], given: dict[str, Any], shape: dict[str, Any], held_out: float) -> Plan:
    """Return the further training of a model; of its shape, only the length of the windows can be chosen."""
    import wherefrom
    from wherefrom.training.files import read_texts
    from wherefrom.training.loop import require_decoder
    from wherefrom.training.settings import Settings
    from wherefrom.training.text import Corpus

    context = shape.pop("context", None)
    _refuse_shape(shape, "--from", "The shape and the vocabulary are that model's; leave it out.")
    settings = Settings(**given, context=context)
    texts = read_texts(files)
    model = wherefrom.load(start, library="wherefrom", say=say)
    require_decoder(model.transformer)  # before its vocabulary is looked at
    corpus = Corpus.of(texts, model.tokenizer, held_out=held_out)
    return Plan(model.config, corpus, model.tokenizer, settings, begin=model.transformer)


def _refuse_shape(shape: dict[str, Any], beside: str, way_out: str) -> None:
    if shape:
        name = f"--{next(iter(shape)).replace('_', '-')}"
        raise InputError(name, expected=f"none beside {beside}", given="one", way_out=way_out)


def _resumed(out: Path, files: list[Path], given: dict[str, Any], again: dict[str, Any]) -> Plan:
    """Return what a run's folder says; what is given again of the model's shape, and the like, must be the same."""
    from wherefrom.training.files import read_texts
    from wherefrom.training.loop import Begun

    begun = Begun.of(out)
    state, checkpoint = begun.state, begun.checkpoint
    context = state.settings["context"] or checkpoint.config.context
    tokens = state.train_tokens + state.validation_tokens
    _refuse_other(again, checkpoint.config, context, tokens, state.validation_tokens)
    corpus, settings = begun.again(read_texts(files), **given)
    return Plan(checkpoint.config, corpus, checkpoint.tokenizer, settings)


def _refuse_other(again: dict[str, Any], config: Any, context: int, tokens: int, held_out: int) -> None:
    """Refuse what is given beside --resume and is not what the run began with."""
    own = {"layers": config.layers, "width": config.width, "heads": config.heads, "context": context}
    own |= {"style": config.architecture, "vocabulary": str(config.vocabulary), "held_out": round(held_out / tokens, 3)}
    same = {"held_out": lambda share: round(tokens * share) == held_out}
    same["vocabulary"] = lambda size: size in (own["vocabulary"], "bytes" if config.vocabulary == BYTES else None)
    for name, value in again.items():
        if name not in own or not same.get(name, lambda given, name=name: given == own[name])(value):
            raise InputError(
                f"--{name.replace('_', '-')}",
                expected=f"{own[name]}, as the run began" if name in own else "none beside --resume",
                given=f"{value}",
                way_out="The run's folder knows it; leave it out.",
            )


def _vocabulary(text: str | None) -> int | None:
    if text is None or text == "bytes":
        return None
    if not text.isdecimal():
        raise InputError(
            "--vocabulary",
            expected='"bytes" or a whole number',
            given=f'"{text}"',
            way_out="2048 suits a few megabytes of text.",
        )
    return int(text)


def _run(plan: Plan, out: Path, watch: int | None, *, resume: bool, as_json: bool) -> None:
    from wherefrom.model.cost import parameters
    from wherefrom.training.baselines import baselines
    from wherefrom.training.loop import train as run
    from wherefrom.training.watch import Watch, repeated_probe

    plan.corpus.require(plan.context, plan.config.vocabulary)
    looks = None if watch is None else Watch(out, repeated_probe(plan.corpus, _watch_tokens(plan.context)), watch)
    show = _silent if as_json else print_text
    opened: list[bool] = []
    with progress_bar(quiet=as_json) as bar:

        def progress(done: int, total: int) -> None:
            if not opened:  # the run's folder has been looked at, and is right
                show(opening(plan, parameters(plan.config)))
                opened.append(True)
            if bar is not None:
                bar("training", done, total)

        def on_step(row: LogRow, transformer: Any) -> None:
            if looks is not None:
                looks(row, transformer)
            if row.validation_loss is not None:
                show(step_line(row))

        how: dict[str, Any] = {"resume": resume, "on_step": on_step, "progress": progress}
        with _telling_what_is_kept(out):
            trained = run(plan.begin or plan.config, plan.corpus, plan.tokenizer, plan.settings, out, **how)
    counted = baselines(plan.corpus, plan.context, windows=plan.settings.validate_windows)
    if as_json:
        print_json(result(trained, counted, plan, out))
    else:
        print_text(closing(trained, counted, plan, out, watched=looks is not None))


@contextmanager
def _telling_what_is_kept(out: Path) -> Iterator[None]:
    """Say what Ctrl-C left."""
    from wherefrom.training.run import checkpoints

    try:
        yield
    except KeyboardInterrupt:
        found = checkpoints(out)
        say(f"wherefrom: {found[-1]} is kept; go on with --resume" if found else "wherefrom: nothing is kept")
        raise


def _watch_tokens(context: int) -> int:
    """Return how many tokens a look reads."""
    expected = f"at least {LEAST_WATCHED} tokens beside --watch"
    if context < LEAST_WATCHED:
        way_out = "What is watched is read twice in a row; 64 or more shows it well."
        raise InputError("--context", expected=expected, given=f"{context}", way_out=way_out)
    return min(WATCH_TOKENS, context)


def _silent(text: str) -> None:
    """Print nothing."""
