"""What measures for the explorer (floor 7): the model that was named at the start, loaded while the page opens."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock, Thread
from typing import Any

from wherefrom.errors import InputError, WherefromError
from wherefrom.questions.scope import Scope
from wherefrom.recording import Recording
from wherefrom.views.web.jobs import Progress, Wish
from wherefrom.views.web.measured import measured
from wherefrom.views.web.wire import Message

MOST_LETTERS = 200
ANOTHER_TARGET = (
    "Ask for another token, or leave it empty for the likeliest; `wherefrom trace --target-id` takes a token by its id."
)


class ModelMeasurer:
    """Measures recordings of one model.

    Args:
        load: returns the model; it is called once, in a thread that nobody waits for at the end.
    """

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load
        self._model: Future[Any] = Future()
        self._begun = Lock()

    def begin(self) -> None:
        """Begin to load, unless that was begun."""
        if self._begun.acquire(blocking=False):
            Thread(target=self._loaded, name="loading", daemon=True).start()

    def _loaded(self) -> None:
        try:
            self._model.set_result(self._load())
        except BaseException as error:  # told to whoever asks for the model
            self._model.set_exception(error)

    def model(self) -> Any:
        """Return the model, once it is loaded.

        Raises:
            WherefromError: it cannot be.
        """
        self.begin()
        return self._model.result()

    def refusal(self, recording: Recording, wish: Wish) -> WherefromError | None:
        """Return why nothing of a recording can be measured: of its model, of what it keeps, or of the part."""
        self.begin()
        error = self._model.exception()  # asked for, not raised: a traceback would grow with every question
        if isinstance(error, WherefromError):
            return error
        if error is not None:
            given = f"{type(error).__name__}: {error}"
            return InputError("the model", expected="one that loads", given=given, way_out="Name another by --model.")
        model = self._model.result()
        if model.fingerprint == recording.model.fingerprint:
            from wherefrom.evidence.at import why_not_measured

            return why_not_measured(recording, _wished(recording, wish))
        return InputError(
            "measuring",
            expected=f"the model that made the recording, {recording.model.name}, with the same weights",
            given=f"{model.name}",
            way_out="Start the explorer with --model and that model's folder.",
        )

    def measure(self, recording: Recording, wish: Wish, progress: Progress) -> Message:
        """Return what was measured.

        Raises:
            WherefromError: as `wherefrom.evidence.at.evidence_at`.
        """
        from wherefrom.evidence.at import evidence_at

        if wish.target is not None and len(wish.target) > MOST_LETTERS:
            raise InputError(
                "the target", expected="one token", given=f"{len(wish.target):,} characters", way_out=ANOTHER_TARGET
            )
        model, at = self.model(), wish.destination
        try:
            return measured(
                evidence_at(model, recording, at, target=wish.target, scope=_wished(recording, wish), progress=progress)
            )
        except InputError as error:
            if "pieces" not in error.facts:
                raise
            raise error.with_way_out(ANOTHER_TARGET) from error


def scope_of(recording: Recording, layer: int | None, head: int | None, kind: str, part: str | None) -> Scope:
    """Return the scope of what is measured: one layer or all, one head of each or all."""
    return Scope(
        None if layer is None else (layer,),
        None if head is None else (head,),
        kind,
        None if part == recording.model.part else part,
    )


def _wished(recording: Recording, wish: Wish) -> Scope:
    return scope_of(recording, wish.layer, wish.head, wish.kind, wish.part)
