"""Commands on recordings' files (floor 7): write one, and say what is in one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import wherefrom
from wherefrom.cli.app import Command, Json, Library, Model, app
from wherefrom.cli.printing import print_json, progress_bar
from wherefrom.cli.prompt import File, Text, read_text, say_of_other
from wherefrom.cli.ranges import METAVAR, Numbers
from wherefrom.errors import InputError, WherefromError
from wherefrom.views.streams import output, say

if TYPE_CHECKING:  # nothing heavy before the options are understood
    from wherefrom.capture.huggingface.model import TransformersModel
    from wherefrom.model.language import LanguageModel
    from wherefrom.recording import Recording
    from wherefrom.tokens import Tokens

IN_OPTIONS = {"overwrite=True": "--overwrite", 'store="float16"': "--store float16"}
"""What Python calls that, and what it is here."""
Recorded = Annotated[Path, typer.Argument(metavar="RECORDING", help="Folder of a recording, by custom NAME.wherefrom.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]


@app.command(cls=Command)
def record(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The recording's folder, by custom NAME.wherefrom.", metavar="RECORDING")
    ],
    text: Text = None,
    file: File = None,
    written: Annotated[
        str | None, typer.Option(help="With an encoder-decoder: what has been written so far of its output.")
    ] = None,
    generate: Annotated[
        int | None, typer.Option(min=1, help="Also write at most so many tokens, and record them.", metavar="TOKENS")
    ] = None,
    predictions: Annotated[
        Literal["last", "all"], typer.Option(help="Keep what the model expected at the end, or at every position.")
    ] = "last",
    layers: Annotated[
        str | None, typer.Option(help='Keep only these layers: "0:3,5" is 0, 1, 2 and 5.', metavar=METAVAR)
    ] = None,
    heads: Annotated[
        str | None, typer.Option(help="Keep only these heads of each layer, likewise.", metavar=METAVAR)
    ] = None,
    positions: Annotated[
        str | None,
        typer.Option(
            help='Keep only these positions as destinations, likewise, or "last"; each may still read all sources.',
            metavar=METAVAR,
        ),
    ] = None,
    store: Annotated[
        Literal["float16", "bfloat16"] | None,
        typer.Option(help="Round q, k and v: half the size; the error that it makes is measured and kept."),
    ] = None,
    no_output: Annotated[
        bool, typer.Option("--no-output", help="Leave out the layers' output projections, which do not grow with n.")
    ] = False,
    overwrite: Overwrite = False,
    context: Annotated[
        int | None, typer.Option(help="Read up to so many tokens, beyond what the model was trained for too.")
    ] = None,
    model: Model = "smollm2",
    library: Library = None,
    as_json: Json = False,
) -> None:
    """Record a pass over a text into a file.

    The file (a folder) holds what every weight of every head can be computed from, exactly, without the model: it
    grows with the text's length, not with its square. It is written while the model runs, layer by layer, and
    is whole or not there. How large it will be, and what is free, is said before.

    \b
    Examples:
      wherefrom record "The capital of Italy is" --out italy.wherefrom
      wherefrom record --file book.txt --out book.wherefrom --store float16
      wherefrom record --file book.txt --out end.wherefrom --positions last
      wherefrom record "Once upon a time" --out tale.wherefrom --generate 100
      wherefrom info italy.wherefrom
    """
    kept = {"layers": layers, "heads": heads, "positions": positions}
    if generate is not None:
        _refuse_beside_generate({**kept, "predictions": None if predictions == "last" else predictions}, written)
    chosen = {
        name: Numbers.of(f"--{name}", given, last=name == "positions")
        for name, given in kept.items()
        if given is not None
    }
    prompt, out = read_text(text, file), _place_of(out)
    with _in_options():
        _check_place(out, overwrite=overwrite)
    loaded = wherefrom.load(model, context=context, library=library, say=say)
    say_of_other(loaded, prompt, room=generate or 0)
    asked: _Asked | _AskedOther
    if isinstance(loaded, wherefrom.LanguageModel):
        asked = _Asked.of(loaded, prompt, written, generate, chosen)
    else:
        asked = _AskedOther.of(loaded, prompt, written, generate, chosen)
    size = asked.forecast(predictions, store, output=not no_output)
    free = shutil.disk_usage(out.resolve().parent).free
    if not as_json:
        _print_forecast(size, free, asked.counted)
    with _in_options():
        _check_place(out, overwrite=overwrite, room=size)
    how: dict[str, Any] = {"to": out, "store": store, "output": not no_output, "overwrite": overwrite}
    with _in_options(), progress_bar(quiet=as_json) as bar:
        if generate is not None:
            made = wherefrom.record_generation(loaded, prompt, max_tokens=generate, **how)
        else:
            told = None if bar is None else lambda done, total: bar("recording", done, total)
            own: dict[str, Any] = {"written": asked.written, "predictions": predictions, "progress": told}
            made = wherefrom.record(loaded, asked.text, **own, **asked.kept, **how)
    _print_made(made, out, forecast=size, free=free, as_json=as_json)


@app.command(cls=Command)
def info(
    recording: Recorded,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every byte, and compare it with what was written.")
    ] = False,
    tokens: Annotated[str | None, typer.Option(help='List these tokens too: "0:40".', metavar="RANGE")] = None,
    as_json: Json = False,
) -> None:
    """Say what is in a recording.

    Which model, which text, which layers, heads and positions, in which number format, how many bytes of
    what, what was predicted at the end, and what the self-checks found. Of the arrays nothing is read: it takes a
    moment, however large they are. With --verify it takes as long as reading all of it.

    \b
    Examples:
      wherefrom info italy.wherefrom
      wherefrom info italy.wherefrom --tokens 0:40
      wherefrom info italy.wherefrom --verify --json
    """
    listed = None if tokens is None else Numbers.of("--tokens", tokens)
    opened = wherefrom.open_recording(recording)
    shown = None if listed is None else listed.window("position", len(opened))
    verified = wherefrom.verify_recording(recording) if verify else None
    from wherefrom.views.recorded import recording_facts, token_facts

    facts = {**recording_facts(opened), "path": str(recording)}  # as it was typed
    facts["verified"] = verified and {"files": verified.files, "arrays": verified.arrays, "bytes": verified.bytes}
    facts["listed"] = None if shown is None else token_facts(opened, shown)
    if as_json:
        print_json(facts)
        return
    from wherefrom.views.answers import print_lines
    from wherefrom.views.recorded import info_lines

    with output():
        print_lines(lambda width: info_lines(facts, width=width))


@dataclass(frozen=True)
class _Asked:
    """What is to be recorded, before anything runs.

    Attributes:
        model: which one.
        text: what it reads; with an encoder beside the decoder, what the encoder reads.
        written: what the decoder has written so far, where there is an encoder beside it.
        more: how many tokens are to be written at most.
        kept: the layers, heads and positions that are kept, where not all are.
    """

    model: LanguageModel
    text: Tokens
    written: Tokens | None
    more: int
    kept: dict[str, Any]

    @classmethod
    def of(
        cls,
        model: LanguageModel,
        prompt: str,
        written: str | None,
        more: int | None,
        chosen: Mapping[str, Numbers],
    ) -> _Asked:
        """Return it with the tokens of its texts, and the numbers that are kept.

        Raises:
            InputError: a text that the model cannot read; numbers beyond what there is.
        """
        from wherefrom.capture.native import refuse_written
        from wherefrom.model.language import read_prompt, start_tokens

        config, text, so_far = model.config, read_prompt(model, prompt), None
        if config.kind == "encoder-decoder":
            so_far = start_tokens(model, written)
        else:
            refuse_written(model, written)
        sizes = {
            "layers": max(config.layers, config.encoder_layers),
            "heads": config.heads,
            "positions": len(so_far or text),
        }
        kept = {name: numbers.within(name[:-1], sizes[name]) for name, numbers in chosen.items()}
        return cls(model, text, so_far, more or 0, kept)

    @property
    def length(self) -> int:
        """The tokens of the part that predicts, at most."""
        return len(self.written or self.text) + self.more

    @property
    def counted(self) -> str:
        """How many tokens there are, in words."""
        own = f"{'at most ' * bool(self.more)}{self.length:,} token{'s' * (self.length != 1)}"
        return own if self.written is None else f"{own}, {len(self.text):,} of the encoder's"

    def forecast(self, predictions: str, store: str | None, *, output: bool) -> int:
        """Return how many bytes the recording will have, within a few hundredths."""
        from wherefrom.capture.passes import file_bytes
        from wherefrom.capture.streaming import Keep

        texts = [text for text in (self.text, self.written) if text is not None]
        return file_bytes(
            self.model,
            self.length,
            sources=0 if self.written is None else len(self.text),
            keep=Keep(**self.kept),
            store=store,
            output=output,
            predictions=self.length if predictions == "all" else 1 + self.more,
            text_bytes=None if self.more else sum(len(text.text.encode()) for text in texts),
            written=self.more,
        )


@dataclass(frozen=True)
class _AskedOther:
    """The same of a model of transformers, which tells its sizes by its configuration, where it does."""

    model: TransformersModel
    text: Tokens
    written: str | None
    more: int
    kept: dict[str, Any]

    @classmethod
    def of(
        cls,
        model: TransformersModel,
        prompt: str,
        written: str | None,
        more: int | None,
        chosen: Mapping[str, Numbers],
    ) -> _AskedOther:
        """Return it with the tokens of its text, and the numbers that are kept.

        Raises:
            InputError: numbers beyond what there is.
        """
        from wherefrom.capture.huggingface.texts import encode

        text, config = encode(model.tokenizer, prompt), model.text_config
        sizes = {
            "layers": int(getattr(config, "num_hidden_layers", 0) or 0),
            "heads": int(getattr(config, "num_attention_heads", 0) or 0),
            "positions": len(text),
        }
        kept = {name: numbers.within(name[:-1], sizes[name]) for name, numbers in chosen.items()}
        return cls(model, text, written, more or 0, kept)

    @property
    def counted(self) -> str:
        """How many tokens there are, in words."""
        length = len(self.text) + self.more
        return f"{'at most ' * bool(self.more)}{length:,} token{'s' * (length != 1)}"

    def forecast(self, predictions: str, store: str | None, *, output: bool) -> int:
        """Return how many bytes the recording will have, as the configuration tells it: within a tenth, mostly."""
        from wherefrom.recording import ModelFacts, forecast_file_bytes

        config = self.model.text_config
        heads, layers, width = (
            int(getattr(config, name, 0) or 0) for name in ("num_attention_heads", "num_hidden_layers", "hidden_size")
        )
        if not (heads and layers and width):
            return 0
        kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
        head_size = int(getattr(config, "head_dim", None) or width // heads)
        facts = ModelFacts(self.model.name, "0" * 64, layers, heads, kv_heads, head_size, self.model.context)
        length = len(self.text) + self.more
        return forecast_file_bytes(
            facts,
            length,
            layers=self.kept.get("layers"),
            heads=self.kept.get("heads"),
            positions=self.kept.get("positions"),
            item_size=4 if store is None else 2,
            output_width=width if output else None,
            predictions=length if predictions == "all" else 1 + self.more,
            written=self.more,
        )


def _refuse_beside_generate(kept: Mapping[str, str | None], written: str | None) -> None:
    """Refuse what only a pass over a given text takes."""
    beside = [name for name, given in {**kept, "written": written}.items() if given is not None]
    if beside:
        raise InputError(
            f"--{beside[0]}",
            expected="none beside --generate",
            given="one",
            way_out="Of a text that is being written everything is kept; record the finished text to keep less.",
        )


def _place_of(out: Path) -> Path:
    """Return where a recording is to be, as Python's door reads a path too."""
    from wherefrom.recording.layout import folder_of

    return folder_of(out)


def _check_place(out: Path, *, overwrite: bool, room: int = 0) -> None:
    """Refuse a place that could not be written to, or without room for so many bytes, before anything is computed."""
    from wherefrom.recording.place import Place

    place = Place(out, overwrite=overwrite)
    try:
        place.require_room(room)
    finally:
        place.abandon()


@contextmanager
def _in_options() -> Iterator[None]:
    """Have an error speak of options where it speaks of Python's arguments."""
    try:
        yield
    except WherefromError as error:
        way_out = error.way_out
        for argument, option in IN_OPTIONS.items():
            way_out = way_out.replace(argument, option)
        if way_out == error.way_out:
            raise
        raise error.with_way_out(way_out) from error


def _print_forecast(size: int, free: int, counted: str) -> None:
    from wherefrom.views.answers import print_lines
    from wherefrom.views.recorded import forecast_lines

    with output():
        print_lines(lambda width: forecast_lines(size, free, counted, width=width))


def _print_made(made: Recording, out: Path, *, forecast: int, free: int, as_json: bool) -> None:
    """Say what was written."""
    from wherefrom.views.recorded import made_lines, recording_facts

    facts = {**recording_facts(made), "path": str(out)}
    if as_json:
        names = ("path", "tokens", "source_tokens", "written_from", "seconds", "bytes", "checks", "stored", "gaps")
        own = {name: facts[name] for name in names}
        print_json({**own, "calls": len(made.calls), "forecast_bytes": forecast, "free_bytes": free})
        return
    from wherefrom.views.answers import print_lines

    with output():
        print_lines(lambda width: made_lines(facts, width=width))
