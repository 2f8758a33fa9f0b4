"""What an answer drew on, asked on the command line (floor 7): the options of `wherefrom trace` that speak of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import wherefrom
from wherefrom.cli.printing import print_json, progress_bar
from wherefrom.cli.prompt import read_text, require_reader
from wherefrom.cli.ranges import METAVAR, Numbers
from wherefrom.errors import InputError
from wherefrom.model.chat import check_messages
from wherefrom.views.streams import output, say

Units = Literal["token", "word", "sentence", "line", "paragraph", "document"]
Answer = Annotated[
    str | None,
    typer.Option(help="Ask about this answer, scored as it is given: what did it draw on?", metavar="TEXT"),
]
Write = Annotated[
    int | None,
    typer.Option(
        min=1, help="Ask about the answer that the model writes itself, at most so many tokens.", metavar="TOKENS"
    ),
]
Question = Annotated[
    str | None,
    typer.Option(
        help="What is asked behind the prompt, before the answer: it is read and never taken away. Without it the part "
        "in which the prompt ends stays.",
        metavar="TEXT",
    ),
]
By = Annotated[Units | None, typer.Option(help="What the prompt is divided into (sentence).")]
Marks = Annotated[
    list[str] | None,
    typer.Option(
        "--mark",
        help="A part of the prompt that is one source, as it stands there; may be given several times.",
        metavar="TEXT",
    ),
]
Chat = Annotated[
    Path | None,
    typer.Option(
        help='A file of chat messages, [{"role": ..., "content": ...}], which the model\'s template writes '
        "out, instead of a prompt."
    ),
]
Budget = Annotated[
    float | None,
    typer.Option(
        help="Passes over the whole text that may be run, forward and backward (12); the least is 3. Given without an "
        "answer, the one that the model writes, of at most 32 tokens, is asked about."
    ),
]
How = Annotated[
    Literal["deletion", "total", "direct"] | None,
    typer.Option(
        help="How parts are taken away when it is measured: their tokens taken out (deletion, the default), no later "
        "token may read them (total), the answer's tokens may not (direct)."
    ),
]
Lens = Annotated[
    str | None,
    typer.Option(
        help="Which numbers are shown beside what was measured, of weight, moved, gradient, closed, gate and direct "
        "(weight,gradient,gate); direct takes two passes more. --json has all that were run.",
        metavar="NAMES",
    ),
]
Layers = Annotated[
    str | None,
    typer.Option(
        help='With --how total or direct: price, gate and cut in these layers only; "0:3,5" is 0, 1, 2 and 5.',
        metavar=METAVAR,
    ),
]
Heads = Annotated[str | None, typer.Option(help="Likewise, in these heads of each of those layers.", metavar=METAVAR)]
OfUnit = Annotated[
    Literal["log-odds", "log-probability"] | None,
    typer.Option("--unit", help="What of the answer is asked about (log-odds)."),
]


@dataclass(frozen=True)
class Asked:
    """What was typed of an answer's options."""

    answer: str | None
    write: int | None
    question: str | None
    by: Units | None
    marks: list[str] | None
    chat: Path | None
    budget: float | None
    how: Literal["deletion", "total", "direct"] | None
    unit: Literal["log-odds", "log-probability"] | None
    lens: str | None
    layers: str | None
    heads: str | None

    @property
    def of_answer(self) -> bool:
        """Whether an answer is asked about."""
        return any(value not in (None, []) for value in vars(self).values())


def refuse_beside(given: Mapping[str, Any]) -> None:
    """Refuse the options that ask about one token, beside those that ask about an answer.

    Raises:
        InputError: one of them was given.
    """
    for name, value in given.items():
        if value is not None:
            raise InputError(
                name,
                expected="none where a whole answer is asked about",
                given=str(value),
                way_out="Leave it out, or leave out --answer, --write and the other options of an answer.",
            )


def trace_answer(
    asked: Asked,
    text: str | None,
    file: Path | None,
    *,
    model: str,
    context: int | None,
    library: Literal["wherefrom", "transformers"] | None,
    top: int,
    carried: int,
    as_json: bool,
) -> None:
    """Trace an answer and print what it drew on."""
    require_one_answer(asked.answer, asked.write)
    if asked.by is not None and asked.marks:
        way_out = "Give marks, or say what the prompt is divided into."
        raise InputError("the sources", expected="--by or --mark", given="both", way_out=way_out)
    typed = {"layer": asked.layers, "head": asked.heads}
    within = {what: Numbers.of(f"--{what}s", text) for what, text in typed.items() if text is not None}
    lenses = _lenses(asked.lens)
    prompt = prompt_of(text, file, asked.chat)
    loaded = wherefrom.load(model, context=context, library=library, say=say)
    require_reader(loaded)
    options: dict[str, Any] = {"budget": asked.budget, "how": asked.how, "unit": asked.unit}
    with progress_bar(quiet=as_json) as progress:
        found = wherefrom.trace_answer(
            loaded,
            prompt,
            asked.answer,
            question=asked.question,
            by=list(asked.marks) if asked.marks else asked.by or "sentence",
            max_tokens=asked.write,
            direct="direct" in lenses,
            progress=progress,
            **_sizes(loaded, within),
            **{name: value for name, value in options.items() if value is not None},
        )
    if as_json:
        print_json(found.to_json())
        return
    from wherefrom.views.answered import print_answer

    with output():
        print_answer(found, top=top, lenses=lenses, carried=carried)


def _lenses(typed: str | None) -> tuple[str, ...]:
    """Return the lenses that are shown, each by its name or by the head of its column."""
    from wherefrom.views.answered import LENSES, SHORT, SHOWN_LENSES

    if typed is None:
        return SHOWN_LENSES
    known = {SHORT.get(name, name): name for name in LENSES}
    names = [known.get(name.strip(), name.strip()) for name in typed.split(",")]
    for name in names:
        if name not in LENSES:
            raise InputError(
                "--lens",
                expected=f"names of {', '.join(known)}, apart by commas",
                given=f'"{name}"',
                way_out="docs/answers.md says what they are.",
            )
    return tuple(dict.fromkeys(names))


def _sizes(loaded: Any, within: Mapping[str, Numbers]) -> dict[str, Any]:
    """Return the layers and heads that were typed, for a model that has so many."""
    if not within:
        return {}
    from wherefrom.evidence.running import runner_of
    from wherefrom.evidence.where import sizes_of

    sizes = sizes_of(runner_of(loaded))
    most = {"layer": max(sizes) + 1, "head": max(sizes.values())}
    return {f"{what}s": numbers.within(what, most[what]) for what, numbers in within.items()}


def require_one_answer(answer: str | None, write: int | None) -> None:
    """Refuse an answer that is given and written too.

    Raises:
        InputError: it is.
    """
    if answer is not None and write is not None:
        way_out = "Give the answer, or have the model write it."
        raise InputError("the answer", expected="one", given="--answer and --write", way_out=way_out)


def prompt_of(text: str | None, file: Path | None, chat: Path | None) -> Any:
    """Return the prompt: a text, or the chat messages of a file.

    Raises:
        InputError: several prompts, none, or one that cannot be read.
    """
    return read_text(text, file) if chat is None else _messages(chat, text, file)


def _messages(path: Path, text: str | None, file: Path | None) -> Any:
    """Return chat messages from a file."""
    if text is not None or file is not None:
        way_out = "Give the chat, or a prompt."
        raise InputError("the prompt", expected="one source", given="a text and --chat", way_out=way_out)
    try:
        return check_messages(json.loads(path.read_text(encoding="utf-8-sig")))
    except OSError as error:
        raise InputError(
            "the chat's file",
            expected="a file that can be read",
            given=f"{path} ({error.strerror})",
            way_out="Check the path.",
            path=path,
        ) from error
    except (ValueError, RecursionError) as error:
        why = "it is nested too deep" if isinstance(error, RecursionError) else error
        raise InputError(
            "the chat's file",
            expected='a list of messages as JSON, [{"role": "user", "content": "..."}]',
            given=f"{path}, which is none ({why})",
            way_out="Write it with json.dumps(messages).",
            path=path,
        ) from error
