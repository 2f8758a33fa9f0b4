"""Writing a recording's file (floor 2): call by call to the disk, in one pass over each, renamed into place at the end.

Takes the layout, the tensors and the place from beside it. Gives capture a `Writer`, everyone `save_recording`. The
same recording is the same bytes, in whatever order its calls were added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from wherefrom import __version__
from wherefrom.checks import check_kind
from wherefrom.recording import agreement, words
from wherefrom.recording.call import Array, Call, call_named
from wherefrom.recording.contents import ModelFacts, Prediction, Recording, check_recording
from wherefrom.recording.gaps import Gap
from wherefrom.recording.given import MEND, Look, check_store, facts_of, tensors_of
from wherefrom.recording.layout import (
    MANIFEST,
    PREDICTIONS,
    TOKENS,
    CallFacts,
    FileFacts,
    Manifest,
    parse_manifest,
)
from wherefrom.recording.place import Place
from wherefrom.recording.rounding import measure
from wherefrom.recording.strict import broken
from wherefrom.recording.tensors import Look as Looks
from wherefrom.recording.tensors import Tensor, write_tensors
from wherefrom.spans import Tokens

KINDS = {"int64": "I64", "float64": "F64", "uint8": "U8"}


class Writer:
    """A recording's file while it is being written; a context, left before the end it leaves nothing behind.

    Args:
        path: the folder that the recording becomes, by custom NAME.wherefrom. Its parent must be there.
        model: which model.
        tokens: what it read.
        source: what an encoder read for the decoder.
        store: "float16" or "bfloat16" to round q, k and v; None leaves them as the kernel was given them.
        overwrite: replace a recording that is there, once this one is whole. Nothing else is ever replaced.
        forecast: how many bytes will be written, if that is known; more than are free are refused at once.

    Raises:
        RecordingError: something is there already; another process is writing there; too little room; no permission.
        InputError: another number format.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        model: ModelFacts,
        tokens: Tokens,
        source: Tokens | None = None,
        store: str | None = None,
        overwrite: bool = False,
        forecast: int | None = None,
    ) -> None:
        self._model, self._store, self._tokens = model, check_store(store), len(tokens)
        self._calls: dict[str, CallFacts] = {}
        self._files: dict[str, FileFacts] = {}
        self._place = Place(path, overwrite=overwrite)
        try:
            self.path = self._place.path
            self._place.require_room(forecast or 0)
            arrays = words.tokens_as_arrays(self.path, tokens)
            words.tokens_of_arrays(self.path, arrays)  # which refuses what could not be opened again
            if source is not None:
                arrays |= words.tokens_as_arrays(self.path, source, "source.")
                words.tokens_of_arrays(self.path, arrays, "source.")
            self._write(TOKENS, arrays)
        except BaseException:
            self._place.abandon()
            raise

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()

    def abandon(self) -> None:
        """Remove what was written, unless the recording is finished."""
        self._place.abandon()

    def add(self, call: Call) -> None:
        """Write a call to the disk, now; its arrays can be dropped afterwards.

        Raises:
            RecordingError: a number that is not finite, by layer, head and position; arrays that do not fit one
                another; the same call twice; too little room. Of a disk that is full nothing is left.
        """
        self._require_open()
        call = check_kind("the call", call, Call, way_out="Give one of recording.calls.")
        facts = facts_of(self.path, call, self._store)
        if facts.file in self._calls:
            what = f"the call of {call_named(call)}"
            broken(self.path, what, expected="it once", given="it twice", way_out=MEND, layer=call.layer)
        tensors = tensors_of(self.path, call, facts)
        agreement.check_call(self.path, facts, {name: one.spec for name, one in tensors.items()}, MEND)
        self._put(facts.file, tensors, Look(self.path, call))
        if facts.stored is not None and call.stored is None:
            facts = replace(facts, stored=measure(call, facts.stored.format))
        self._calls[facts.file] = facts

    def finish(
        self,
        *,
        predictions: Sequence[Prediction],
        written_from: int | None = None,
        seconds: float = 0.0,
        gaps: Sequence[Gap] = (),
    ) -> Path:
        """Write the manifest, bring everything to the disk, rename it into place, and return the recording's path.

        Args:
            predictions: see `Recording`; so are the others.
            written_from: the position of the first generated token; None if all of the text was given.
            seconds: how long the pass took.
            gaps: what is not among the calls.

        Raises:
            RecordingError: what was added does not fit together; too little room; something came to be there
                meanwhile. Nothing is left then.
        """
        self._require_open()
        try:
            arrays = words.predictions_as_arrays(self.path, predictions)
            words.predictions_of_arrays(self.path, arrays, self._tokens)
            self._write(PREDICTIONS, arrays)
            data = self._manifest(written_from, seconds, tuple(gaps))
            self._place.require_room(len(data))
            self._place.settle(data)
        finally:
            self._place.abandon()
        return self.path

    def _manifest(self, written_from: int | None, seconds: float, gaps: tuple[Gap, ...]) -> bytes:
        """Return the manifest's bytes, which were read again as `open_recording` will."""
        manifest = Manifest(
            __version__, self._model, written_from, float(seconds), tuple(self._calls.values()), self._files, gaps
        )
        try:
            data = manifest.to_bytes()
        except (TypeError, ValueError) as error:
            expected = "finite numbers and texts in the model's facts and the calls'"
            broken(self.path, MANIFEST, expected=expected, given=f"{error}", way_out=MEND)
        agreement.check_agreement(self.path, parse_manifest(self.path, data), MEND)
        return data

    def _write(self, file: str, arrays: Mapping[str, Array]) -> None:
        self._put(file, {name: Tensor(array, KINDS[array.dtype.name]) for name, array in arrays.items()})

    def _put(self, file: str, tensors: Mapping[str, Tensor], look: Looks | None = None) -> None:
        """Write a file of arrays; of one that is refused nothing is left."""
        self._place.require_room(sum(tensor.spec.bytes for tensor in tensors.values()))
        place = self._place.partial / file
        with self._place.writing(file):
            try:
                specs = write_tensors(place, tensors, look)
            except BaseException:
                place.unlink(missing_ok=True)
                raise
            self._place.written(place)
            self._files[file] = FileFacts(place.stat().st_size, specs)

    def _require_open(self) -> None:
        if not self._place.open:
            expected, way_out = (
                "a writer that is still open",
                "Make another Writer: this one finished, failed or ended.",
            )
            broken(self.path, "the writer", expected=expected, given="one that is closed", way_out=way_out)


def save_recording(
    recording: Recording, path: str | Path, *, store: str | None = None, overwrite: bool = False
) -> Path:
    """Write a recording to a folder that `open_recording` opens, and return its path.

    Args:
        recording: of any model, in memory or opened from another file.
        path: the folder that it becomes, by custom NAME.wherefrom. Its parent must be there.
        store: "float16" or "bfloat16" to round q, k and v; None leaves them as they are.
        overwrite: replace a recording that is there, once this one is whole. Nothing else is ever replaced.

    Raises:
        InputError: no recording, or another number format.
        RecordingError: see `Writer`.
    """
    recording = check_recording(recording)
    with Writer(
        path,
        model=recording.model,
        tokens=recording.tokens,
        source=recording.source,
        store=store,
        overwrite=overwrite,
        forecast=recording.bytes // (2 if store else 1),
    ) as writer:
        for call in recording.calls:
            writer.add(call)
        return writer.finish(
            predictions=recording.predictions,
            written_from=recording.written_from,
            seconds=recording.seconds,
            gaps=recording.gaps,
        )
